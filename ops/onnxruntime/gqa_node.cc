#include "ops/onnxruntime/gqa_node.h"

#include <algorithm>
#include <cstdlib>

namespace lean_attention::onnxruntime {

GqaNode::GqaNode(const Ort::ConstKernelInfo& info, const TensorTypes& types)
    : attributes_(ReadAttributes(info, types)), types_(types) {
  try {
    stock_.emplace(info, types);
  } catch (const Ort::Exception& error) {
    // Only some calls need it.
    why_no_stock_ = error.what();
    std::replace(why_no_stock_.begin(), why_no_stock_.end(), '\n', ' ');
  }
  const auto connected = [&](Output output) {
    return info.GetOutputCount() > output && !info.GetOutputName(output).empty();
  };
  Require(connected(kPresentKey) && connected(kPresentValue), attributes_.node, ": output ",
          connected(kPresentKey) ? "present_value" : "present_key",
          " is not connected; present_key and present_value must be");
  if (connected(kOutputQk)) {
    Fail(ORT_NOT_IMPLEMENTED, attributes_.node, ": output output_qk is connected, and ", kOpName,
         " does not implement it; leave it out, or use ", kStockDomain, ".", kStockOpName);
  }
}

void GqaNode::RequireStock(const char* calls) const {
  if (stock_) return;
  Fail(ORT_NOT_IMPLEMENTED, attributes_.node, ": ", kOpName, " leaves to ", kStockDomain, ".",
       kStockOpName, " calls with schedule = stock, and ", calls,
       ", but this ONNX Runtime has none for ", NameOf(types_.element), " with ",
       NameOf(types_.cache), " caches: ", why_no_stock_);
}

GqaOutputs GqaNode::AllocateOutputs(const Ort::KernelContext& context,
                                    const CallShape& shape) const {
  const Shape attention = shape.OutputShape(attributes_);
  const Shape present = shape.PresentShape(attributes_);
  GqaOutputs outputs = {context.GetOutput(kAttention, attention),
                        context.GetOutput(kPresentKey, present),
                        context.GetOutput(kPresentValue, present)};
  // Bound by the caller.
  Require(outputs.present_key.GetTensorMutableRawData() !=
              outputs.present_value.GetTensorMutableRawData(),
          attributes_.node,
          ": outputs present_key and present_value are one buffer; bind one each");
  return outputs;
}

void GqaNode::RunStock(OrtKernelContext* context, const GqaOutputs& outputs) const {
  try {
    stock_->Invoke(context, outputs.attention, outputs.present_key, outputs.present_value);
  } catch (const Ort::Exception& error) {
    Fail(error.GetOrtErrorCode(), attributes_.node, ": ", kStockDomain, ".", kStockOpName,
         ", to which this call is left, refuses it: ", error.what());
  }
}

bool GqaNode::IsExplaining() {
  static const bool explaining = [] {
    const char* value = std::getenv("LEAN_ATTENTION_EXPLAIN");
    return value != nullptr && std::string(value) == "1";
  }();
  return explaining;
}

void GqaNode::Log(const Ort::KernelContext& context, const std::string& decision) const {
  // A warning, so that it shows at the level that sessions log at unless told otherwise.
  context.GetLogger().LogMessage(ORT_LOGGING_LEVEL_WARNING, ORT_FILE, __LINE__, __func__,
                                 (attributes_.node + ": " + decision).c_str());
}

}  // namespace lean_attention::onnxruntime
