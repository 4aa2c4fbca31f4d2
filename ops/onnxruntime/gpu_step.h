// A call's inputs as the GPU kernel takes them. The host reads nothing that a device holds.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_GPU_STEP_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_GPU_STEP_H_

#include "ops/gpu/launch/launcher.h"
#include "ops/onnxruntime/gqa_inputs.h"
#include "ops/onnxruntime/gqa_node.h"

namespace lean_attention::onnxruntime {

gpu::GpuDecode GpuStep(const GqaInputs& inputs, GqaOutputs* outputs);

// Whether the kernel takes the call: one token per sequence, or a few of one sequence after its
// past. More may be a prompt with padding, of which the lengths that the device has would tell.
bool IsGpuStep(const CallShape& shape);

// Enqueues a copy of the past into present tensors that are other buffers, and zeros after it.
gpu::Status CopyPast(const GqaInputs& inputs, const gpu::GpuDecode& step, void* stream);

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_GPU_STEP_H_
