// What ONNX Runtime asks about the operator, for one execution provider and one pair of types.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_OP_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_OP_H_

#include <exception>

#include "ops/onnxruntime/gqa_schema.h"
#include "ops/onnxruntime/ort.h"

namespace lean_attention::onnxruntime {

// The boundary to ONNX Runtime: errors become a status, nothing is thrown.
template <typename Body>
OrtStatusPtr AsStatus(Body body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Ort::Exception& error) {
    return Ort::GetApi().CreateStatus(error.GetOrtErrorCode(), error.what());
  } catch (const std::exception& error) {
    return Ort::GetApi().CreateStatus(ORT_RUNTIME_EXCEPTION, error.what());
  }
}

template <typename Kernel>
struct KernelWithStatus : Kernel {
  using Kernel::Kernel;
  OrtStatusPtr ComputeV2(OrtKernelContext* context) const noexcept {
    return AsStatus([&] { this->Compute(context); });
  }
};

// Kernel(info, types) is one node, Compute(context) a call of it; kProvider is where it runs.
// Several threads may run one session at once.
template <typename Kernel>
class GqaOp
    : public Ort::CustomOpBase<GqaOp<Kernel>, KernelWithStatus<Kernel>, /*WithStatus=*/true> {
 public:
  explicit GqaOp(const TensorTypes& types) : types_(types) {}

  OrtStatusPtr CreateKernelV2(const OrtApi& /*api*/, const OrtKernelInfo* info,
                              void** kernel) const noexcept {
    return AsStatus(
        [&] { *kernel = new KernelWithStatus<Kernel>(Ort::ConstKernelInfo(info), types_); });
  }
  const char* GetName() const { return kOpName; }
  const char* GetExecutionProviderType() const { return Kernel::kProvider; }

  size_t GetInputTypeCount() const { return kInputCount; }
  ONNXTensorElementDataType GetInputType(size_t index) const { return InputType(index, types_); }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(size_t index) const {
    return IsRequired(static_cast<Input>(index)) ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
  }
  // The host must know how long the longest sequence may be.
  OrtMemType GetInputMemoryType(size_t index) const {
    return index == kTotalSequenceLength ? OrtMemTypeCPUInput : OrtMemTypeDefault;
  }

  size_t GetOutputTypeCount() const { return kOutputCount; }
  ONNXTensorElementDataType GetOutputType(size_t index) const { return OutputType(index, types_); }
  OrtCustomOpInputOutputCharacteristic GetOutputCharacteristic(size_t index) const {
    return index == kAttention ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
  }

 private:
  TensorTypes types_;
};

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_OP_H_
