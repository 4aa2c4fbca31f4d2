#include "ops/onnxruntime/gpu_step.h"

#include <algorithm>

#include "ops/decode/policy.h"

namespace lean_attention::onnxruntime {

gpu::GpuDecode GpuStep(const GqaInputs& inputs, GqaOutputs* outputs) {
  gpu::GpuDecode step = {};
  inputs.Describe(&step);
  step.problem = inputs.ProblemOf(nullptr, kGpuTileTokens);
  step.seqlens_k = static_cast<const int32_t*>(inputs[kSeqlensK].data);
  step.max_length = inputs.shape().total_sequence_length;
  step.schedule = inputs.attributes().schedule;
  step.key_cache = outputs->present_key.GetTensorMutableRawData();
  step.value_cache = outputs->present_value.GetTensorMutableRawData();
  if (step.cos_cache != nullptr) step.rotary_rows = inputs[kCosCache].shape[0];
  step.output = outputs->attention.GetTensorMutableRawData();
  return step;
}

bool IsGpuStep(const CallShape& shape) {
  return shape.sequence_length == 1 ||
         (shape.batch_size == 1 && shape.sequence_length <= kMaxSplitTokens &&
          shape.total_sequence_length > shape.sequence_length);
}

gpu::Status CopyPast(const GqaInputs& inputs, const gpu::GpuDecode& step, void* stream) {
  const CallShape& shape = inputs.shape();
  const int64_t row_bytes = CacheRowBytes(step.problem);
  // Rows past the longest sequence are nobody's.
  const int64_t bytes = std::min(shape.past_rows, shape.total_sequence_length) * row_bytes;
  const int64_t pairs = int64_t{step.problem.batch_size} * step.problem.kv_num_heads;
  gpu::Status status;
  for (const auto& [input, present] :
       {std::pair(kPastKey, step.key_cache), std::pair(kPastValue, step.value_cache)}) {
    const void* past = inputs[input].data;
    if (!status.ok() || bytes == 0 || past == present) continue;
    status = gpu::CopyRows(present, shape.present_rows * row_bytes, past,
                           shape.past_rows * row_bytes, bytes, pairs, stream);
  }
  return status;
}

}  // namespace lean_attention::onnxruntime
