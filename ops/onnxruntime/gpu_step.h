// A call's inputs as the GPU kernel takes them. The host reads nothing that a device holds.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_GPU_STEP_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_GPU_STEP_H_

#include "ops/gpu/launch/launcher.h"
#include "ops/onnxruntime/gqa_inputs.h"
#include "ops/onnxruntime/gqa_node.h"

namespace lean_attention::onnxruntime {

gpu::GpuDecode GpuStep(const GqaInputs& inputs, GqaOutputs* outputs);

// Whether the kernel takes the call: one token per sequence, or a few after a past. More are a
// prompt, and so are a few that come first, unless query_seqlens says how many of them there are.
// With a bias, and without position_ids, it takes any number.
bool IsGpuStep(const GqaInputs& inputs);

// Enqueues a copy of the past into present tensors that are other buffers, and zeros after it.
gpu::Status CopyPast(const GqaInputs& inputs, const gpu::GpuDecode& step, void* stream);

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_GPU_STEP_H_
