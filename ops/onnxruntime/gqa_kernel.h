// LeanGroupQueryAttention on the CPU execution provider.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_KERNEL_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_KERNEL_H_

#include <optional>
#include <string>
#include <vector>

#include "ops/onnxruntime/gqa_inputs.h"
#include "ops/onnxruntime/gqa_schema.h"
#include "ops/onnxruntime/ort.h"
#include "ops/onnxruntime/stock_op.h"

namespace lean_attention::onnxruntime {

// One node. Holds nothing that a call changes: several threads may run one session at once.
class GqaKernel {
 public:
  GqaKernel(const Ort::ConstKernelInfo& info, const TensorTypes& types);

  // The boundary to ONNX Runtime: errors become a status, nothing is thrown.
  OrtStatusPtr ComputeV2(OrtKernelContext* context) const noexcept;

 private:
  void Compute(OrtKernelContext* context) const;
  bool RunsStock(const GqaInputs& inputs, const std::vector<int32_t>& lengths) const;
  void Decode(OrtKernelContext* context, const cpu::DecodeArgs& args) const;

  Attributes attributes_;
  TensorTypes types_;
  std::optional<StockOp> stock_;  // none where this ONNX Runtime has it not for these types
  std::string why_no_stock_;
  Ort::MemoryInfo cpu_memory_;
};

// What ONNX Runtime asks about the operator, for one pair of types.
class GqaOp : public Ort::CustomOpBase<GqaOp, GqaKernel, /*WithStatus=*/true> {
 public:
  explicit GqaOp(const TensorTypes& types) : types_(types) {}

  OrtStatusPtr CreateKernelV2(const OrtApi& api, const OrtKernelInfo* info,
                              void** kernel) const noexcept;
  const char* GetName() const { return kOpName; }
  const char* GetExecutionProviderType() const { return "CPUExecutionProvider"; }
  size_t GetInputTypeCount() const { return kInputCount; }
  ONNXTensorElementDataType GetInputType(size_t index) const { return InputType(index, types_); }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(size_t index) const;
  size_t GetOutputTypeCount() const { return kOutputCount; }
  ONNXTensorElementDataType GetOutputType(size_t index) const { return OutputType(index, types_); }
  OrtCustomOpInputOutputCharacteristic GetOutputCharacteristic(size_t index) const;

 private:
  TensorTypes types_;
};

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_KERNEL_H_
