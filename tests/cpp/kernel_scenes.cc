#include "tests/cpp/kernel_scenes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>

namespace lean_attention::testing {
namespace {

// Fills `to` with its part of a tensor of the batch: [B, ...].
void Take(const Tensor& from, int64_t sequence, Tensor& to) {
  const std::byte* begin = from.data() + from.ByteOffset(sequence * to.count());
  std::copy(begin, begin + to.ByteOffset(to.count()), to.data());
}

}  // namespace

Step WithEqualHugeScores(const StepSpec& spec) {
  Step step(spec);
  for (int64_t i = 0; i < step.query.count(); ++i) step.query.Set(i, 200);
  for (int64_t i = 0; i < step.key().count(); ++i) step.key().Set(i, 200);
  for (int64_t b = 0; b < step.batch_size(); ++b) {
    for (int64_t k = 0; k < spec.kv_num_heads; ++k) {
      const int64_t end = step.PastRow(b, k, step.past(b));
      for (int64_t i = step.PastRow(b, k, 0); i < end; ++i) step.past_key().Set(i, 200);
    }
  }
  return step;
}

Step WithScoresFarApart(const StepSpec& spec) {
  Step step(spec);
  for (int64_t h = 0; h < spec.head_size; ++h) step.query.Set(h, h == 0 ? 240 : 0);
  for (int64_t j = 0; j < step.past(0); ++j) {
    step.past_key().Set(step.PresentRow(0, 0, j), j % 50 == 7 ? 250 : -250);
  }
  step.key().Set(0, -250);
  return step;
}

Step WithMaskedKeys(const StepSpec& spec, int64_t begin, int64_t end, double mask) {
  Step step(spec);
  const int64_t row_size = *std::max_element(spec.lengths.begin(), spec.lengths.end());
  for (int64_t row = 0; row < step.bias.count(); row += row_size) {
    for (int64_t j = begin; j < end; ++j) step.bias.Set(row + j, mask);
  }
  return step;
}

Step Alone(const Step& batch, int64_t sequence) {
  StepSpec spec = batch.spec();
  spec.lengths = {spec.lengths[sequence]};
  if (!spec.queries.empty()) spec.queries = {spec.queries[sequence]};
  spec.spare_rows = batch.cache_rows() - spec.lengths[0];
  Step step(spec);
  Take(batch.query, sequence, step.query);
  Take(batch.key(), sequence, step.key());
  Take(batch.value(), sequence, step.value());
  Take(batch.present_key, sequence, step.present_key);
  Take(batch.present_value, sequence, step.present_value);
  if (spec.sink) Take(batch.sink, 0, step.sink);
  return step;
}

void ExpectSameBits(const Step& step, const Step& other) {
  EXPECT_TRUE(step.output.IsSameAs(other.output)) << "other output: " << step.spec();
  EXPECT_TRUE(step.present_key.IsSameAs(other.present_key)) << "other keys: " << step.spec();
  EXPECT_TRUE(step.present_value.IsSameAs(other.present_value)) << "other values: " << step.spec();
}

void ExpectSameBitsOf(int64_t sequence, const Step& step, int64_t other_sequence,
                      const Step& other) {
  const auto same = [&](const Tensor& tensor, const Tensor& others) {
    const int64_t count = tensor.count() / step.batch_size();
    const std::byte* part = tensor.data() + tensor.ByteOffset(sequence * count);
    const std::byte* other_part = others.data() + others.ByteOffset(other_sequence * count);
    return std::equal(part, part + tensor.ByteOffset(count), other_part);
  };
  EXPECT_TRUE(same(step.output, other.output) && same(step.present_key, other.present_key) &&
              same(step.present_value, other.present_value))
      << "sequence " << sequence << " differs: " << step.spec() << "\n"
      << other.spec();
}

}  // namespace lean_attention::testing
