#include "tests/cpp/kernel_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

namespace lean_attention::testing {
namespace {

double Uniform(double least, double most, std::mt19937& random) {
  constexpr double kRange = std::mt19937::max();
  return least + (most - least) * (random() / kRange);
}

// Numbers in [-most, most], or all whole numbers of a quantised type.
void Fill(Tensor& tensor, int64_t begin, int64_t end, double most, std::mt19937& random) {
  const int largest = tensor.format().most;
  for (int64_t i = begin; i < end; ++i) {
    tensor.Set(i, largest > 0 ? std::floor(Uniform(-largest - 1, largest + 0.999, random))
                              : Uniform(-most, most, random));
  }
}

void FillAll(Tensor& tensor, double most, std::mt19937& random) {
  Fill(tensor, 0, tensor.count(), most, random);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const StepSpec& spec) {
  out << spec.types << ' ' << spec.num_heads << '/' << spec.kv_num_heads << " heads of "
      << spec.head_size << ", " << spec.sequence_length << " tokens, lengths";
  for (int32_t length : spec.lengths) out << ' ' << length;
  for (size_t b = 0; b < spec.queries.size(); ++b) {
    out << (b == 0 ? ", queries " : " ") << spec.queries[b];
  }
  return out << ", window " << spec.window << ", rotary " << spec.rotary_half
             << (spec.separate_past ? ", separate past" : "") << (spec.packed ? ", packed" : "")
             << (spec.without_new_rows ? ", no new rows" : "") << (spec.norm ? ", norm" : "");
}

Tensor::Tensor(ElementType type, int64_t rows, int64_t row_size, bool misaligned)
    : format_(&FormatOf(type)),
      count_(rows * row_size),
      row_size_(row_size),
      row_bytes_((row_size * format_->bits + 7) / 8) {
  buffer_.emplace(rows * row_bytes_, misaligned ? (format_->bits + 7) / 8 : 0);
}

void Tensor::Poison(int64_t begin, int64_t end) {
  std::memset(data() + ByteOffset(begin), std::to_integer<int>(kNaNByte),
              ByteOffset(end) - ByteOffset(begin));
}

bool Tensor::IsSameAs(const Tensor& other) const {
  return count_ == other.count_ && std::memcmp(data(), other.data(), ByteOffset(count_)) == 0;
}

Step::Step(const StepSpec& spec)
    : spec_(spec),
      longest_(*std::max_element(spec.lengths.begin(), spec.lengths.end())),
      past_rows_(0),
      cache_rows_(longest_ + spec.spare_rows) {
  for (int64_t b = 0; b < batch_size(); ++b) past_rows_ = std::max(past_rows_, given(b));
  const auto tensor = [&](int64_t rows, int64_t row_size) {
    return Tensor(spec_.types.element, rows, row_size, spec_.misaligned);
  };
  const auto cache = [&](int64_t rows) {
    return Tensor(spec_.types.cache, rows, spec_.head_size, spec_.misaligned);
  };
  std::mt19937 random(spec_.seed);
  const int64_t tokens = batch_size() * spec_.sequence_length;
  const int64_t size = spec_.head_size;
  const int64_t kv_heads = spec_.kv_num_heads;

  if (spec_.packed) {
    query = tensor(tokens, InputStride());
    FillAll(query, 2, random);
  } else {
    query = tensor(tokens * spec_.num_heads, size);
    key_ = tensor(tokens * kv_heads, size);
    value_ = tensor(tokens * kv_heads, size);
    FillAll(query, 4, random);
    FillAll(key_, 1, random);
    FillAll(value_, 1, random);
  }

  present_key = cache(batch_size() * kv_heads * cache_rows_);
  present_value = cache(batch_size() * kv_heads * cache_rows_);
  if (spec_.separate_past && past_rows_ > 0) {
    past_key_ = cache(batch_size() * kv_heads * past_rows_);
    past_value_ = cache(batch_size() * kv_heads * past_rows_);
  }
  for (int64_t b = 0; b < batch_size(); ++b) {
    for (int64_t k = 0; k < kv_heads && given(b) > 0; ++k) {
      const int64_t begin = PastRow(b, k, 0);
      const int64_t end = PastRow(b, k, given(b));
      Fill(past_key(), begin, end, 1, random);
      Fill(past_value(), begin, end, 1, random);
    }
  }
  if (spec_.types.IsQuantised()) {
    // Some numbers of this step are too large for the smaller scales.
    const double most = std::max(present_key.format().most, 1);
    std::mt19937 scale_random(spec_.seed);  // the same whatever the lengths
    const int64_t scales = spec_.types.scale_per_channel ? kv_heads * size : 1;
    for (auto* scale : {&k_scale_, &v_scale_}) {
      for (int64_t i = 0; i < scales; ++i) scale->push_back(Uniform(0.5, 1.1, scale_random) / most);
    }
  }

  for (int32_t length : spec_.lengths) seqlens_k_.push_back(length - 1);
  if (spec_.position_ids) {
    for (int64_t i = 0; i < tokens; ++i) position_ids_.push_back((7 * i + 3) % (longest_ + 5));
  }
  if (spec_.rotary_half > 0) {
    int64_t positions = longest_;  // as many rows as are needed, not one more
    for (int64_t position : position_ids_) positions = std::max(positions, position + 1);
    cos = tensor(positions, spec_.rotary_half);
    sin = tensor(positions, spec_.rotary_half);
    for (int64_t i = 0; i < cos.count(); ++i) {
      const int64_t pair = i % spec_.rotary_half;
      const double angle = static_cast<double>(i / spec_.rotary_half) * std::pow(1e4, -pair / 64.0);
      cos.Set(i, std::cos(angle));
      sin.Set(i, std::sin(angle));
    }
  }
  if (spec_.bias) {
    bias = tensor((spec_.bias_per_sequence ? batch_size() : 1) *
                      (spec_.bias_per_head ? spec_.num_heads : 1) * spec_.sequence_length,
                  longest_);
    FillAll(bias, 3, random);
    // What no row sees of a sequence that is shorter than the others.
    for (int64_t row = 0; spec_.bias_per_sequence && row < bias.count() / longest_; ++row) {
      const int64_t b = row / (bias.count() / longest_ / batch_size());
      bias.Poison(row * longest_ + spec_.lengths[b], (row + 1) * longest_);
    }
  }
  if (spec_.sink) {
    sink = tensor(1, spec_.num_heads);
    FillAll(sink, 2, random);
  }
  if (spec_.norm) {
    q_norm = tensor(1, size);
    k_norm = tensor(1, size);
    FillAll(q_norm, 2, random);
    FillAll(k_norm, 2, random);
  }
  output = tensor(tokens * spec_.num_heads, size);
}

int64_t Step::queries(int64_t b) const {
  return spec_.queries.empty() ? std::min(spec_.sequence_length, spec_.lengths[b])
                               : spec_.queries[b];
}

float Step::scale() const {
  return spec_.scale.value_or(1 / std::sqrt(static_cast<float>(spec_.head_size)));
}

float Step::ScaleOf(const std::vector<float>& scales, int64_t k, int64_t h) const {
  if (scales.empty()) return 1;
  return spec_.types.scale_per_channel ? scales[k * spec_.head_size + h] : scales[0];
}

int64_t Step::InputStride() const {
  const int64_t heads =
      spec_.packed ? spec_.num_heads + 2 * spec_.kv_num_heads : spec_.kv_num_heads;
  return heads * spec_.head_size;
}

int64_t Step::QueryRow(int64_t b, int64_t s, int64_t n) const {
  const int64_t stride = spec_.packed ? InputStride() : int64_t{spec_.num_heads} * spec_.head_size;
  return (b * spec_.sequence_length + s) * stride + n * spec_.head_size;
}

int64_t Step::KeyRow(int64_t b, int64_t s, int64_t k) const {
  const int64_t head = spec_.packed ? spec_.num_heads + k : k;
  return (b * spec_.sequence_length + s) * InputStride() + head * spec_.head_size;
}

int64_t Step::ValueRow(int64_t b, int64_t s, int64_t k) const {
  return KeyRow(b, s, spec_.packed ? spec_.kv_num_heads + k : k);
}

int64_t Step::PastRow(int64_t b, int64_t k, int64_t row) const {
  if (!spec_.separate_past) return PresentRow(b, k, row);
  return ((b * spec_.kv_num_heads + k) * past_rows_ + row) * spec_.head_size;
}

int64_t Step::PresentRow(int64_t b, int64_t k, int64_t row) const {
  return ((b * spec_.kv_num_heads + k) * cache_rows_ + row) * spec_.head_size;
}

int64_t Step::OutputRow(int64_t b, int64_t s, int64_t n) const {
  return ((b * spec_.sequence_length + s) * spec_.num_heads + n) * spec_.head_size;
}

int64_t Step::BiasRow(int64_t b, int64_t s, int64_t n) const {
  const int64_t heads = spec_.bias_per_head ? spec_.num_heads : 1;
  const int64_t matrix = (spec_.bias_per_sequence ? b : 0) * heads + (spec_.bias_per_head ? n : 0);
  return (matrix * spec_.sequence_length + s) * longest_;
}

int64_t Step::Position(int64_t b, int64_t s) const {
  return spec_.position_ids ? position_ids_[b * spec_.sequence_length + s] : past(b) + s;
}

cpu::DecodeArgs Step::Args() {
  cpu::DecodeArgs args = {};
  args.problem.batch_size = static_cast<int32_t>(batch_size());
  args.problem.sequence_length = spec_.sequence_length;
  args.problem.num_heads = spec_.num_heads;
  args.problem.kv_num_heads = spec_.kv_num_heads;
  args.problem.head_size = spec_.head_size;
  args.problem.cache_rows = cache_rows_;
  args.problem.seqlens_k = seqlens_k_.data();
  args.problem.local_window_size = spec_.window;
  args.problem.cache_type = spec_.types.cache;
  args.problem.tile_tokens = spec_.tile_tokens;
  args.problem.query_seqlens = spec_.queries.empty() ? nullptr : spec_.queries.data();

  args.element_type = spec_.types.element;

  args.query = query.data();
  if (!spec_.without_new_rows) {
    args.key = key().data() + key().ByteOffset(KeyRow(0, 0, 0));
    args.value = value().data() + value().ByteOffset(ValueRow(0, 0, 0));
  }
  args.query_stride = spec_.packed ? InputStride() : int64_t{spec_.num_heads} * spec_.head_size;
  args.kv_stride = InputStride();

  args.past_key = past_key().data();
  args.past_value = past_value().data();
  args.past_rows = spec_.separate_past ? past_rows_ : cache_rows_;
  args.present_key = present_key.data();
  args.present_value = present_value.data();

  args.k_scale = spec_.types.IsQuantised() ? k_scale_.data() : nullptr;
  args.v_scale = spec_.types.IsQuantised() ? v_scale_.data() : nullptr;
  args.scale_per_channel = spec_.types.scale_per_channel;

  args.q_norm_weight = q_norm.data();
  args.k_norm_weight = k_norm.data();
  args.q_norm_epsilon = 1e-6f;
  args.k_norm_epsilon = 0.5f;  // of the size of a mean square, so that leaving it out would show

  args.cos_cache = cos.data();
  args.sin_cache = sin.data();
  args.rotary_half = spec_.rotary_half;
  args.rotary_interleaved = spec_.rotary_interleaved;
  args.position_ids = spec_.position_ids ? position_ids_.data() : nullptr;

  args.attention_bias = bias.data();
  if (!bias.empty()) {
    args.bias_row_stride = longest_;
    args.bias_head_stride = spec_.bias_per_head ? spec_.sequence_length * longest_ : 0;
    args.bias_batch_stride = spec_.bias_per_sequence ? BiasRow(1, 0, 0) : 0;
  }
  args.head_sink = sink.data();
  args.smooth_softmax = spec_.smooth_softmax;
  args.scale = scale();
  args.softcap = spec_.softcap;
  args.output = output.data();
  return args;
}

bool Step::IsIntact() const {
  for (const Tensor* tensor :
       {&query, &key_, &value_, &past_key_, &past_value_, &present_key, &present_value, &q_norm,
        &k_norm, &cos, &sin, &bias, &sink, &output}) {
    if (!tensor->IsIntact()) return false;
  }
  return true;
}

void InOrder(const cpu::DecodeArgs& args, const cpu::Plan& plan, void* workspace) {
  for (int64_t share = 0; share < plan.cut.shares(); ++share) {
    cpu::RunShare(args, plan, workspace, share);
  }
}

void Backwards(const cpu::DecodeArgs& args, const cpu::Plan& plan, void* workspace) {
  for (int64_t share = plan.cut.shares(); share-- > 0;) {
    cpu::RunShare(args, plan, workspace, share);
  }
}

ShareRunner OnThreads(int threads, Deal deal) {
  return [=](const cpu::DecodeArgs& args, const cpu::Plan& plan, void* workspace) {
    // Relaxed, so that the shares are ordered by nothing but what the kernel does.
    std::atomic<int64_t> next{0};
    std::atomic<int> waiting{threads};
    const auto work = [&](int thread) {
      waiting.fetch_sub(1, std::memory_order_relaxed);
      while (waiting.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
      const auto take = [&](int64_t done) {
        return deal == Deal::kFromOneCounter ? next.fetch_add(1, std::memory_order_relaxed)
                                             : thread + done * threads;
      };
      int64_t done = 0;
      for (int64_t share = take(done); share < plan.cut.shares(); share = take(++done)) {
        cpu::RunShare(args, plan, workspace, share);
      }
    };
    std::vector<std::thread> pool;
    for (int thread = 1; thread < threads; ++thread) pool.emplace_back(work, thread);
    work(0);
    for (std::thread& thread : pool) thread.join();
  };
}

Step After(const Step& before, Schedule schedule, int64_t amount, const ShareRunner& runner) {
  Step step = before;
  const cpu::DecodeArgs args = step.Args();
  const cpu::Plan plan = cpu::MakePlan(args, {schedule, amount, "of a test"});
  Buffer workspace(plan.workspace_bytes);
  cpu::PrepareWorkspace(plan, workspace.data());
  runner(args, plan, workspace.data());
  EXPECT_TRUE(workspace.IsIntact()) << "wrote past its workspace: " << step.spec();
  EXPECT_TRUE(step.IsIntact()) << "wrote past a tensor: " << step.spec();
  return step;
}

}  // namespace lean_attention::testing
