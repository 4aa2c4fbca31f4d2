// One decode step with all its tensors: random numbers where the kernel may read, NaN elsewhere.

#ifndef LEAN_ATTENTION_TESTS_CPP_KERNEL_STEP_H_
#define LEAN_ATTENTION_TESTS_CPP_KERNEL_STEP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <vector>

#include "ops/cpu/decode_attention.h"
#include "tests/cpp/kernel_buffer.h"
#include "tests/cpp/kernel_elements.h"

namespace lean_attention::testing {

// What the step looks like. The letters are those of ops/decode/problem.h.
struct StepSpec {
  StepTypes types = kFloat32Step;
  int32_t sequence_length = 1;
  int32_t num_heads = 4;
  int32_t kv_num_heads = 2;
  int32_t head_size = 32;
  std::vector<int32_t> lengths = {33};  // T_b, this step's tokens included
  std::vector<int32_t> queries = {};    // Q_b; empty: min(S, T_b), and the kernel is not told
  int64_t spare_rows = 0;               // of the cache past the longest sequence
  int32_t tile_tokens = 64;

  bool separate_past = false;
  bool without_new_rows = false;  // the cache has them already
  bool packed = false;            // query, key and value in one tensor
  bool misaligned = false;        // tensors begin one element after a multiple of 64 bytes

  int64_t window = -1;
  float softcap = 0;
  std::optional<float> scale;  // default: 1 / sqrt(H)
  bool bias = false;
  bool bias_per_sequence = false;
  bool bias_per_head = false;
  bool sink = false;
  bool smooth_softmax = false;
  int32_t rotary_half = 0;
  bool rotary_interleaved = false;
  bool position_ids = false;  // positions of their own, not those of the rows
  bool norm = false;

  uint32_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const StepSpec& spec);

// Rows of elements; each row begins at a whole byte.
class Tensor {
 public:
  Tensor() = default;
  Tensor(ElementType type, int64_t rows, int64_t row_size, bool misaligned);

  bool empty() const { return !buffer_; }
  int64_t count() const { return count_; }
  const ElementFormat& format() const { return *format_; }
  std::byte* data() { return buffer_ ? buffer_->data() : nullptr; }
  const std::byte* data() const { return buffer_ ? buffer_->data() : nullptr; }

  // Of element i, which begins a byte.
  int64_t ByteOffset(int64_t i) const {
    return i / row_size_ * row_bytes_ + i % row_size_ * format_->bits / 8;
  }
  double operator[](int64_t i) const { return format_->get(Row(i), i % row_size_); }
  // Rounds; a quantised type takes whole numbers of its range.
  void Set(int64_t i, double x) { format_->set(data() + RowOffset(i), i % row_size_, x); }
  void Poison(int64_t begin, int64_t end);
  bool IsSameAs(const Tensor& other) const;
  bool IsIntact() const { return !buffer_ || buffer_->IsIntact(); }

 private:
  int64_t RowOffset(int64_t i) const { return i / row_size_ * row_bytes_; }
  const std::byte* Row(int64_t i) const { return data() + RowOffset(i); }

  const ElementFormat* format_ = nullptr;
  int64_t count_ = 0;
  int64_t row_size_ = 1;
  int64_t row_bytes_ = 0;
  std::optional<Buffer> buffer_;
};

// Copies are independent: a copy made before a run is what the run began with.
class Step {
 public:
  explicit Step(const StepSpec& spec);

  const StepSpec& spec() const { return spec_; }
  int64_t batch_size() const { return static_cast<int64_t>(spec_.lengths.size()); }
  int64_t group() const { return spec_.num_heads / spec_.kv_num_heads; }
  int64_t queries(int64_t b) const;
  int64_t past(int64_t b) const { return spec_.lengths[b] - queries(b); }
  // Rows of the cache that there are before the step.
  int64_t given(int64_t b) const { return spec_.without_new_rows ? spec_.lengths[b] : past(b); }
  int64_t cache_rows() const { return cache_rows_; }
  float scale() const;
  // What a number of the cache stands for, in units of its own.
  float KeyScale(int64_t k, int64_t h) const { return ScaleOf(k_scale_, k, h); }
  float ValueScale(int64_t k, int64_t h) const { return ScaleOf(v_scale_, k, h); }

  // Indices of a row's first element.
  int64_t QueryRow(int64_t b, int64_t s, int64_t n) const;
  int64_t KeyRow(int64_t b, int64_t s, int64_t k) const;    // in key()
  int64_t ValueRow(int64_t b, int64_t s, int64_t k) const;  // in value()
  int64_t PastRow(int64_t b, int64_t k, int64_t row) const;
  int64_t PresentRow(int64_t b, int64_t k, int64_t row) const;
  int64_t OutputRow(int64_t b, int64_t s, int64_t n) const;
  int64_t BiasRow(int64_t b, int64_t s, int64_t n) const;
  int64_t Position(int64_t b, int64_t s) const;  // for rotary

  Tensor& key() { return spec_.packed ? query : key_; }
  Tensor& value() { return spec_.packed ? query : value_; }
  const Tensor& key() const { return spec_.packed ? query : key_; }
  const Tensor& value() const { return spec_.packed ? query : value_; }
  // What holds the rows before this step.
  Tensor& past_key() { return spec_.separate_past ? past_key_ : present_key; }
  Tensor& past_value() { return spec_.separate_past ? past_value_ : present_value; }
  const Tensor& past_key() const { return spec_.separate_past ? past_key_ : present_key; }
  const Tensor& past_value() const { return spec_.separate_past ? past_value_ : present_value; }

  // The kernel's view; valid as long as this step.
  cpu::DecodeArgs Args();

  // Whether nothing was written past a tensor.
  bool IsIntact() const;

  Tensor query, present_key, present_value, q_norm, k_norm, cos, sin, bias, sink, output;

 private:
  float ScaleOf(const std::vector<float>& scales, int64_t k, int64_t h) const;
  int64_t InputStride() const;  // elements between tokens of key and value

  StepSpec spec_;
  int64_t longest_;
  int64_t past_rows_;
  int64_t cache_rows_;
  Tensor key_, value_, past_key_, past_value_;
  std::vector<float> k_scale_, v_scale_;
  std::vector<int32_t> seqlens_k_;
  std::vector<int64_t> position_ids_;
};

// Runs all shares of a plan.
using ShareRunner = std::function<void(const cpu::DecodeArgs&, const cpu::Plan&, void* workspace)>;

void InOrder(const cpu::DecodeArgs& args, const cpu::Plan& plan, void* workspace);
void Backwards(const cpu::DecodeArgs& args, const cpu::Plan& plan, void* workspace);

// Threads that start together. From one counter: each takes the next share when it is free. In
// turns: share i goes to thread i % threads, so that all of them work however short the step is.
enum class Deal { kFromOneCounter, kInTurns };
ShareRunner OnThreads(int threads, Deal deal);

// What a step leaves behind, run in a workspace of exactly the plan's size that is full of NaN.
Step After(const Step& before, Schedule schedule = Schedule::kLean, int64_t amount = 1,
           const ShareRunner& runner = InOrder);

}  // namespace lean_attention::testing

#endif  // LEAN_ATTENTION_TESTS_CPP_KERNEL_STEP_H_
