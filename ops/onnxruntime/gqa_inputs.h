// From the tensors of one call to sizes that were checked against each other and against the
// attributes, on every execution provider alike. Every mistake is an error that names the input,
// what was found and what is accepted. What tensors hold is for cpu_step.h to check, and for the
// GPU kernel to bound.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_INPUTS_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_INPUTS_H_

#include <cmath>

#include "ops/decode/problem.h"
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
  int64_t new_rows;  // of key and value: S, or 0 where the cache has them already
  int64_t head_size;
  int64_t cache_width;            // last dimension of the caches
  bool packed;                    // query holds Q, K and V
  int64_t past_rows;              // 0 without a past
  int64_t present_rows;           // C
  int64_t total_sequence_length;  // the input

  // Whether the past is nobody's and the call a first prompt.
  bool is_first_prompt() const { return total_sequence_length == sequence_length; }

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
  const TensorView& operator[](Input input) const { return inputs_[input]; }
  const Attributes& attributes() const { return attributes_; }
  const TensorTypes& types() const { return types_; }

  // Sizes and masks; lengths, if the host may read them, and the kernel's tile are the caller's.
  Problem ProblemOf(const int32_t* lengths, int32_t tile_tokens) const;

  // Whatever cpu::DecodeArgs and gpu::GpuDecode name alike, but for the outputs.
  template <typename Step>
  void Describe(Step* step) const {
    const int64_t query_width = attributes_.num_heads * shape_.head_size;
    const int64_t kv_width = attributes_.kv_num_heads * shape_.head_size;
    step->element_type = types_.element;
    step->query = inputs_[kQuery].data;
    if (shape_.packed) {
      const auto* packed = static_cast<const char*>(step->query);
      step->key = packed + BytesOf(types_.element, query_width);
      step->value = packed + BytesOf(types_.element, query_width + kv_width);
      step->query_stride = step->kv_stride = query_width + 2 * kv_width;
    } else {
      step->key = shape_.new_rows > 0 ? inputs_[kKey].data : nullptr;
      step->value = shape_.new_rows > 0 ? inputs_[kValue].data : nullptr;
      step->query_stride = query_width;
      step->kv_stride = kv_width;
    }
    if (IsQuantised(types_.cache)) {
      step->k_scale = static_cast<const float*>(inputs_[kKScale].data);
      step->v_scale = static_cast<const float*>(inputs_[kVScale].data);
      step->scale_per_channel = attributes_.scale_per_channel;
    }
    step->q_norm_weight = inputs_[kQNormWeight].data;
    step->k_norm_weight = inputs_[kKNormWeight].data;
    step->q_norm_epsilon = attributes_.q_norm_epsilon;
    step->k_norm_epsilon = attributes_.k_norm_epsilon;
    if (attributes_.do_rotary) {
      step->cos_cache = inputs_[kCosCache].data;
      step->sin_cache = inputs_[kSinCache].data;
      step->rotary_half = static_cast<int32_t>(inputs_[kCosCache].shape[1]);
      step->rotary_interleaved = attributes_.rotary_interleaved;
      step->position_ids = static_cast<const int64_t*>(inputs_[kPositionIds].data);
    }
    if (Has(kAttentionBias)) {
      const Shape& bias = inputs_[kAttentionBias].shape;
      step->attention_bias = inputs_[kAttentionBias].data;
      step->bias_row_stride = bias[3];
      step->bias_head_stride = bias[1] == 1 ? 0 : bias[2] * bias[3];
      step->bias_batch_stride = bias[0] == 1 ? 0 : bias[1] * bias[2] * bias[3];
    }
    step->head_sink = inputs_[kHeadSink].data;
    step->smooth_softmax = attributes_.smooth_softmax;
    step->scale =
        attributes_.scale.value_or(1.0f / std::sqrt(static_cast<float>(shape_.head_size)));
    step->softcap = attributes_.softcap;
  }

  // Fails with the node's name, the input's and its shape in front of what is accepted.
  template <typename... Parts>
  void RequireShape(bool condition, Input input, const Parts&... accepted) const {
    Require(condition, attributes_.node, ": input ", kInputNames[input], " has shape ",
            inputs_[input].shape, "; expected ", accepted...);
  }

 private:
  void ReadQueryShape();
  void ReadPastShape();
  int64_t ReadTotalLength() const;
  void ReadKeyAndValue();
  void CheckLengths() const;
  void CheckNorms() const;
  void CheckRotary() const;
  void CheckBias() const;
  void CheckSink() const;
  void CheckScales() const;

  const Attributes& attributes_;
  const TensorTypes types_;
  TensorView inputs_[kInputCount];
  CallShape shape_;
};

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_INPUTS_H_
