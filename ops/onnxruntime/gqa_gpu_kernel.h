// LeanGroupQueryAttention on the execution provider of the GPUs that the library was built for.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_GPU_KERNEL_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_GPU_KERNEL_H_

#include "ops/gpu/launch/launcher.h"
#include "ops/onnxruntime/gqa_node.h"
#include "ops/onnxruntime/ort.h"
#include "ops/onnxruntime/stream_workspace.h"

namespace lean_attention::onnxruntime {

// One node. Calls change nothing of it but what it keeps of each stream. Nothing waits for the
// device or reads its memory, so a graph may be captured.
class GqaGpuKernel {
 public:
  // CUDAExecutionProvider or ROCMExecutionProvider.
  static constexpr const char* kProvider = LEAN_ATTENTION_GPU_PROVIDER;

  GqaGpuKernel(const Ort::ConstKernelInfo& info, const TensorTypes& types);

  void Compute(OrtKernelContext* context) const;

 private:
  bool RunsStock(const GqaInputs& inputs, const gpu::GpuDecode& step) const;
  void Decode(const Ort::KernelContext& context, const GqaInputs& inputs,
              const gpu::GpuDecode& step, const OrtMemoryInfo& memory) const;
  void ThrowUnlessOk(const gpu::Status& status) const;

  GqaNode node_;
  mutable UsedWorkspaces workspaces_;
};

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_GPU_KERNEL_H_
