#include "ops/onnxruntime/gqa_gpu_kernel.h"

#include "ops/decode/policy.h"
#include "ops/onnxruntime/gpu_step.h"

namespace lean_attention::onnxruntime {

GqaGpuKernel::GqaGpuKernel(const Ort::ConstKernelInfo& info, const TensorTypes& types)
    : node_(info, types) {}

void GqaGpuKernel::ThrowUnlessOk(const gpu::Status& status) const {
  if (status.ok()) return;
  const bool is_invalid = status.code == gpu::StatusCode::kInvalidArgument;
  const bool is_unsupported = status.code == gpu::StatusCode::kUnsupported;
  Fail(is_invalid ? ORT_INVALID_ARGUMENT : (is_unsupported ? ORT_NOT_IMPLEMENTED : ORT_FAIL),
       node_.attributes().node, ": ", status.message);
}

bool GqaGpuKernel::RunsStock(const GqaInputs& inputs, const gpu::GpuDecode& step) const {
  if (node_.attributes().always_stock || !IsGpuStep(inputs)) {
    node_.RequireStock("prompts");
    return true;
  }
  gpu::Device device = {};
  ThrowUnlessOk(gpu::QueryDevice(&device));
  const gpu::Status status = gpu::Check(step, device);
  if (status.code == gpu::StatusCode::kUnsupported && node_.HasStock()) return true;
  ThrowUnlessOk(status);
  return false;
}

void GqaGpuKernel::Decode(const Ort::KernelContext& context, const GqaInputs& inputs,
                          const gpu::GpuDecode& step, const OrtMemoryInfo& memory) const {
  GpuMachine machine = {};
  ThrowUnlessOk(gpu::QueryMachine(step, &machine));
  const GpuDecision decision = DecideGpu(step.problem, step.max_length, machine, step.schedule);
  if (GqaNode::IsExplaining()) {
    node_.Log(context, ExplainGpu(step.problem, step.max_length, machine, decision));
  }
  void* const stream = context.GetGPUComputeStream();
  int device = 0;
  Ort::ThrowOnError(Ort::GetApi().MemoryInfoGetId(&memory, &device));
  gpu::WorkspaceBuffers buffers = {};
  ThrowUnlessOk(workspaces_.On({device, stream})
                    .Reserve(gpu::WorkspaceOf(step.problem, step.max_length, decision), context,
                             memory, &buffers));
  ThrowUnlessOk(CopyPast(inputs, step, stream));
  ThrowUnlessOk(gpu::Launch(step, decision, buffers, stream));
}

void GqaGpuKernel::Compute(OrtKernelContext* context) const {
  const GqaInputs inputs(context, node_.attributes(), node_.types());
  const Ort::KernelContext kernel_context(context);
  GqaOutputs outputs = node_.AllocateOutputs(kernel_context, inputs.shape());
  const gpu::GpuDecode step = GpuStep(inputs, &outputs);
  if (RunsStock(inputs, step)) {
    node_.RunStock(context, outputs);
    return;
  }
  const OrtMemoryInfo* memory = nullptr;
  Ort::ThrowOnError(Ort::GetApi().GetTensorMemoryInfo(outputs.attention, &memory));
  Decode(kernel_context, inputs, step, *memory);
}

}  // namespace lean_attention::onnxruntime
