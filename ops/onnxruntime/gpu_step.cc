#include "ops/onnxruntime/gpu_step.h"

#include <algorithm>

#include "ops/decode/policy.h"

namespace lean_attention::onnxruntime {

gpu::GpuDecode GpuStep(const GqaInputs& inputs, GqaOutputs* outputs) {
  gpu::GpuDecode step = {};
  inputs.Describe(&step);
  step.problem = inputs.ProblemOf(nullptr, kGpuTileTokens);
  step.seqlens_k = static_cast<const int32_t*>(inputs[kSeqlensK].data);
  step.query_seqlens = static_cast<const int32_t*>(inputs[kQuerySeqlens].data);
  step.max_length = inputs.shape().total_sequence_length;
  step.schedule = inputs.attributes().schedule;
  step.key_cache = outputs->present_key.GetTensorMutableRawData();
  step.value_cache = outputs->present_value.GetTensorMutableRawData();
  if (step.cos_cache != nullptr) step.rotary_rows = inputs[kCosCache].shape[0];
  step.output = outputs->attention.GetTensorMutableRawData();
  return step;
}

bool IsGpuStep(const GqaInputs& inputs) {
  const CallShape& shape = inputs.shape();
  if (shape.sequence_length == 1) return true;
  // The stock CUDA operator has no bias. Of a first prompt's positions the kernel takes each.
  if (inputs.Has(kAttentionBias) && !inputs.Has(kPositionIds)) return true;
  return shape.sequence_length <= kMaxSplitTokens &&
         (inputs.Has(kQuerySeqlens) || !shape.is_first_prompt());
}

gpu::Status CopyPast(const GqaInputs& inputs, const gpu::GpuDecode& step, void* stream) {
  const CallShape& shape = inputs.shape();
  const int64_t row_bytes = CacheRowBytes(step.problem);
  const int64_t past_bytes = shape.past_rows * row_bytes;
  const int64_t present_bytes = shape.present_rows * row_bytes;
  // Rows past the longest sequence are nobody's.
  const int64_t copied = std::min(shape.past_rows, shape.total_sequence_length) * row_bytes;
  const int64_t pairs = int64_t{step.problem.batch_size} * step.problem.kv_num_heads;
  for (const auto& [input, cache] :
       {std::pair(kPastKey, step.key_cache), std::pair(kPastValue, step.value_cache)}) {
    const void* past = inputs[input].data;
    if (past == cache) continue;
    auto* present = static_cast<char*>(cache);
    gpu::Status status;
    if (copied > 0) {
      status = gpu::CopyRows(present, present_bytes, past, past_bytes, copied, pairs, stream);
    }
    if (status.ok() && copied < present_bytes) {
      status =
          gpu::ClearRows(present + copied, present_bytes, present_bytes - copied, pairs, stream);
    }
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace lean_attention::onnxruntime
