// From the tensors of one call to sizes that were checked against each other and against the
// attributes. Every mistake is an error that names the input, what was found and what is accepted.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_INPUTS_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_INPUTS_H_

#include <vector>

#include "ops/cpu/decode_attention.h"
#include "ops/onnxruntime/gqa_schema.h"
#include "ops/onnxruntime/ort.h"

namespace lean_attention::onnxruntime {

// One input tensor, or none.
struct TensorView {
  const void* data = nullptr;
  Shape shape;
  bool present = false;

  explicit operator bool() const { return present; }
};

// What must be known to allocate the outputs, whoever computes them.
struct CallShape {
  int64_t batch_size;
  int64_t sequence_length;
  int64_t head_size;
  int64_t cache_width;            // last dimension of the caches
  bool packed;                    // query holds Q, K and V
  int64_t past_rows;              // 0 without a past
  int64_t present_rows;           // C
  int64_t total_sequence_length;  // the input

  Shape OutputShape(const Attributes& attributes) const {
    return {batch_size, sequence_length, attributes.num_heads * head_size};
  }
  Shape PresentShape(const Attributes& attributes) const {
    return {batch_size, attributes.kv_num_heads, present_rows, cache_width};
  }
};

class GqaInputs {
 public:
  GqaInputs(OrtKernelContext* context, const Attributes& attributes, const TensorTypes& types);

  const CallShape& shape() const { return shape_; }

  bool Has(Input input) const { return inputs_[input].present; }

  // Checks all inputs, whoever computes the call; the arguments of a decode step but for the
  // outputs' pointers, of use where IsStep says so. `lengths` receives a copy of seqlens_k, so that
  // nobody can change a length after it was checked; the result points into it.
  cpu::DecodeArgs DecodeStep(std::vector<int32_t>* lengths) const;

  // Whether this is a step as the kernel knows it: every token stands at the position that the
  // lengths say, none is padding, and the stock operator would take it.
  bool IsStep(const std::vector<int32_t>& lengths) const;

 private:
  void ReadQueryShape();
  void ReadPastShape();
  void CheckKeyAndValue() const;
  int64_t ReadTotalLength() const;
  void ReadLengths(std::vector<int32_t>* lengths) const;
  void SetRotary(const std::vector<int32_t>& lengths, cpu::DecodeArgs* args) const;
  void SetBias(const std::vector<int32_t>& lengths, cpu::DecodeArgs* args) const;
  void SetSink(cpu::DecodeArgs* args) const;
  void SetScales(cpu::DecodeArgs* args) const;

  // Fails with the node's name, the input's and its shape in front of what is accepted.
  template <typename... Parts>
  void RequireShape(bool condition, Input input, const Parts&... accepted) const;

  const Attributes& attributes_;
  const TensorTypes types_;
  TensorView inputs_[kInputCount];
  CallShape shape_;
};

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_INPUTS_H_
