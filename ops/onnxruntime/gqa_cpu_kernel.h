// LeanGroupQueryAttention on the CPU execution provider.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_CPU_KERNEL_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_CPU_KERNEL_H_

#include "ops/cpu/decode_attention.h"
#include "ops/onnxruntime/cpu_step.h"
#include "ops/onnxruntime/gqa_node.h"
#include "ops/onnxruntime/ort.h"

namespace lean_attention::onnxruntime {

// One node. Holds nothing that a call changes.
class GqaCpuKernel {
 public:
  static constexpr const char* kProvider = "CPUExecutionProvider";

  GqaCpuKernel(const Ort::ConstKernelInfo& info, const TensorTypes& types);

  void Compute(OrtKernelContext* context) const;

 private:
  bool RunsStock(const GqaInputs& inputs) const;
  void Decode(OrtKernelContext* context, const cpu::DecodeArgs& args) const;

  GqaNode node_;
  Ort::MemoryInfo memory_;
};

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_CPU_KERNEL_H_
