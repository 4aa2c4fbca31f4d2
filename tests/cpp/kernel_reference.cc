#include "tests/cpp/kernel_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

namespace lean_attention::testing {
namespace {

using Row = std::vector<double>;

Row RowOf(const Tensor& tensor, int64_t begin, int64_t count) {
  Row row(count);
  for (int64_t i = 0; i < count; ++i) row[i] = tensor[begin + i];
  return row;
}

Row Rounded(const Row& row, ElementType type) {
  Tensor tensor(type, 1, static_cast<int64_t>(row.size()), false);
  for (size_t i = 0; i < row.size(); ++i) tensor.Set(static_cast<int64_t>(i), row[i]);
  return RowOf(tensor, 0, tensor.count());
}

// The element that is furthest outside of absolute + relative * |what it should be|, if any is.
class Differences {
 public:
  Differences(double absolute, double relative) : absolute_(absolute), relative_(relative) {}

  void Compare(double got, double want, const int64_t (&at)[4]) {
    const double excess = std::fabs(got - want) - absolute_ - relative_ * std::fabs(want);
    if (excess <= worst_ || std::isnan(worst_)) return;  // a NaN is the worst
    worst_ = excess;
    got_ = got;
    want_ = want;
    std::copy(std::begin(at), std::end(at), at_);
  }

  void Expect(const char* what, const StepSpec& spec) const {
    EXPECT_LE(worst_, 0) << what << " [" << at_[0] << "][" << at_[1] << "][" << at_[2] << "]["
                         << at_[3] << "] is " << got_ << ", not " << want_ << ": " << spec;
  }

 private:
  double absolute_;
  double relative_;
  double worst_ = 0;
  double got_ = 0;
  double want_ = 0;
  int64_t at_[4] = {};
};

Row Rotated(const Step& step, Row x, int64_t b, int64_t s) {
  const StepSpec& spec = step.spec();
  const int64_t half = spec.rotary_half;
  for (int64_t i = 0; i < half; ++i) {
    const double cos = step.cos[step.Position(b, s) * half + i];
    const double sin = step.sin[step.Position(b, s) * half + i];
    double& first = x[spec.rotary_interleaved ? 2 * i : i];
    double& second = x[spec.rotary_interleaved ? 2 * i + 1 : half + i];
    const double rotated = first * cos - second * sin;
    second = second * cos + first * sin;
    first = rotated;
  }
  return x;
}

// The RMS norm of a head of Q or K.
Row Normalised(Row x, const Tensor& weight, double epsilon) {
  if (weight.empty()) return x;
  double squares = 0;
  for (double value : x) squares += value * value;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  for (size_t h = 0; h < x.size(); ++h) x[h] *= factor * weight[static_cast<int64_t>(h)];
  return x;
}

Row QueryOf(const Step& step, int64_t b, int64_t s, int64_t n) {
  Row query = RowOf(step.query, step.QueryRow(b, s, n), step.spec().head_size);
  return Rotated(step, Normalised(std::move(query), step.q_norm, 1e-6f), b, s);
}

Row KeyOf(const Step& step, int64_t b, int64_t s, int64_t k) {
  Row key = RowOf(step.key(), step.KeyRow(b, s, k), step.spec().head_size);
  return Rotated(step, Normalised(std::move(key), step.k_norm, 0.5f), b, s);
}

bool SameBytes(const Tensor& a, int64_t a_begin, const Tensor& b, int64_t b_begin, int64_t count) {
  const int64_t from = a.ByteOffset(a_begin);
  return std::memcmp(a.data() + from, b.data() + b.ByteOffset(b_begin),
                     a.ByteOffset(a_begin + count) - from) == 0;
}

bool AllBytesAre(std::byte byte, const Tensor& tensor, int64_t begin, int64_t end) {
  return std::all_of(tensor.data() + tensor.ByteOffset(begin),
                     tensor.data() + tensor.ByteOffset(end),
                     [byte](std::byte other) { return other == byte; });
}

// The number that x becomes in a quantised cache, by the reciprocal of the scale in float32; as a
// whole number the largest for a NaN.
double Quantised(double x, float scale, const ElementFormat& format) {
  const float number = static_cast<float>(x) * (1 / scale);
  if (format.most == 0) return Rounded({number}, format.type)[0];
  if (std::isnan(number)) return format.most;
  return std::clamp<double>(std::nearbyint(number), -format.most - 1, format.most);
}

// The rows that this step appends for one KV head.
void ExpectNewRowsAreRight(const Step& step, int64_t b, int64_t k) {
  const StepSpec& spec = step.spec();
  const int64_t size = spec.head_size;
  const ElementFormat& format = step.present_key.format();
  const bool quantised = spec.types.IsQuantised();
  const auto stored = [&](double x, float scale) {
    return quantised ? Quantised(x, scale, format) : x;
  };
  // What is not rotated or normalised is stored exactly. Next to the middle between two whole
  // numbers, what is may end on either side.
  const bool exact = spec.rotary_half == 0 && !spec.norm;
  const double step_between = format.most > 0 ? 1 : 2 * format.tiny;
  Differences keys(exact ? 0 : (quantised ? step_between : 1e-6),
                   exact ? 0 : format.epsilon * (quantised ? 2 : 1));
  Differences values(0, 0);
  for (int64_t s = 0; s < step.queries(b) && !spec.without_new_rows; ++s) {
    const Row key = KeyOf(step, b, s, k);
    const Row value = RowOf(step.value(), step.ValueRow(b, s, k), size);
    const int64_t token = step.past(b) + s;
    const int64_t row = step.PresentRow(b, k, token);
    for (int64_t h = 0; h < size; ++h) {
      keys.Compare(step.present_key[row + h], stored(key[h], step.KeyScale(k, h)),
                   {b, k, token, h});
      values.Compare(step.present_value[row + h], stored(value[h], step.ValueScale(k, h)),
                     {b, k, token, h});
    }
  }
  keys.Expect("present_key", spec);
  values.Expect("present_value", spec);
}

void ExpectCacheIsRight(const Step& step, const Step& before) {
  const StepSpec& spec = step.spec();
  const std::byte tail = spec.separate_past ? std::byte{0} : kNaNByte;
  for (int64_t b = 0; b < step.batch_size(); ++b) {
    for (int64_t k = 0; k < spec.kv_num_heads; ++k) {
      const int64_t past = step.PastRow(b, k, 0);
      const int64_t begin = step.PresentRow(b, k, 0);
      const int64_t count = step.given(b) * spec.head_size;
      EXPECT_TRUE(count == 0 ||
                  (SameBytes(step.present_key, begin, before.past_key(), past, count) &&
                   SameBytes(step.present_value, begin, before.past_value(), past, count)))
          << "earlier rows of sequence " << b << ", head " << k << ": " << spec;
      ExpectNewRowsAreRight(step, b, k);
      const int64_t length = step.PresentRow(b, k, spec.lengths[b]);
      const int64_t end = step.PresentRow(b, k, step.cache_rows());
      EXPECT_TRUE(AllBytesAre(tail, step.present_key, length, end) &&
                  AllBytesAre(tail, step.present_value, length, end))
          << "rows past the end of sequence " << b << ", head " << k << ": " << spec;
    }
  }
}

// Softmax over scores, with a sink, of rows of values [scores.size(), size].
Row Attend(const Row& scores, const double* values, int64_t size, double sink) {
  Row out(size);
  const double most = *std::max_element(scores.begin(), scores.end());
  if (most <= -FLT_MAX) return out;
  const double reference = std::max(most, sink);
  double total = std::exp(sink - reference);
  for (size_t j = 0; j < scores.size(); ++j) {
    const double weight = std::exp(scores[j] - reference);
    total += weight;
    for (int64_t h = 0; h < size; ++h) out[h] += weight * values[j * size + h];
  }
  for (double& x : out) x /= total;
  return out;
}

// The scores of one query over the keys that it sees; rows of keys [T, H].
Row ScoresOf(const Step& step, int64_t b, int64_t s, int64_t n, const KeyRange& visible,
             const Row& keys, Operands operands) {
  const StepSpec& spec = step.spec();
  const int64_t size = spec.head_size;
  Row query = QueryOf(step, b, s, n);
  if (operands == Operands::kElements) query = Rounded(query, spec.types.element);
  Row scores;
  for (int64_t j = visible.begin; j < visible.end; ++j) {
    double score = 0;
    for (int64_t h = 0; h < size; ++h) score += query[h] * keys[j * size + h];
    score *= step.scale();
    if (spec.softcap > 0) score = spec.softcap * std::tanh(score / spec.softcap);
    if (spec.bias) score += step.bias[step.BiasRow(b, s, n) + j];
    scores.push_back(score);
  }
  return scores;
}

void ExpectOutputIsRight(const Step& step, Operands operands) {
  const StepSpec& spec = step.spec();
  const int64_t size = spec.head_size;
  const ElementFormat& format = step.output.format();
  // A sum of values is off by no more than a weight is, relatively, times the largest of them: 1,
  // or with scales 1.1 times 128 / 127.
  const double weights = operands == Operands::kElements ? 1.11 * format.epsilon : 0;
  Differences outputs(2e-6 + weights + format.tiny, format.epsilon);
  for (int64_t row = 0; row < step.batch_size() * spec.kv_num_heads; ++row) {
    const int64_t b = row / spec.kv_num_heads;
    const int64_t k = row % spec.kv_num_heads;
    const int64_t cache = step.PresentRow(b, k, 0);
    Row keys = RowOf(step.present_key, cache, spec.lengths[b] * size);
    Row values = RowOf(step.present_value, cache, spec.lengths[b] * size);
    for (int64_t i = 0; i < spec.lengths[b] * size; ++i) {
      keys[i] *= step.KeyScale(k, i % size);
      values[i] *= step.ValueScale(k, i % size);
    }
    for (int64_t n = k * step.group(); n < (k + 1) * step.group(); ++n) {
      const double sink = spec.sink ? step.sink[n] : (spec.smooth_softmax ? 0.0 : -INFINITY);
      for (int64_t s = step.queries(b); s < spec.sequence_length; ++s) {
        const Row padding = RowOf(step.output, step.OutputRow(b, s, n), size);
        for (int64_t h = 0; h < size; ++h) outputs.Compare(padding[h], 0, {b, s, n, h});
      }
      for (int64_t s = 0; s < step.queries(b); ++s) {
        const int64_t end = step.past(b) + s + 1;
        const int64_t begin = spec.window > 0 ? std::max<int64_t>(0, end - spec.window) : 0;
        const Row scores = ScoresOf(step, b, s, n, {begin, end}, keys, operands);
        const Row want = Attend(scores, values.data() + begin * size, size, sink);
        const Row got = RowOf(step.output, step.OutputRow(b, s, n), size);
        for (int64_t h = 0; h < size; ++h) outputs.Compare(got[h], want[h], {b, s, n, h});
      }
    }
  }
  outputs.Expect("output", spec);
}

}  // namespace

void ExpectRight(const Step& step, const Step& before, Operands operands) {
  ExpectCacheIsRight(step, before);
  ExpectOutputIsRight(step, operands);
}

void ExpectRunIsRight(const Step& step) { ExpectRight(After(step), step); }

}  // namespace lean_attention::testing
