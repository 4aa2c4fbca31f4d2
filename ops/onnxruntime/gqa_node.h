// What the kernels of all execution providers hold of a node.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_NODE_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_NODE_H_

#include <optional>
#include <string>

#include "ops/onnxruntime/gqa_inputs.h"
#include "ops/onnxruntime/gqa_schema.h"
#include "ops/onnxruntime/ort.h"
#include "ops/onnxruntime/stock_op.h"

namespace lean_attention::onnxruntime {

struct GqaOutputs {
  Ort::UnownedValue attention;
  Ort::UnownedValue present_key;
  Ort::UnownedValue present_value;
};

class GqaNode {
 public:
  // Fails for a node that no kernel may run.
  GqaNode(const Ort::ConstKernelInfo& info, const TensorTypes& types);

  const Attributes& attributes() const { return attributes_; }
  const TensorTypes& types() const { return types_; }
  bool HasStock() const { return stock_.has_value(); }

  GqaOutputs AllocateOutputs(const Ort::KernelContext& context, const CallShape& shape) const;

  // Fails where this ONNX Runtime has no stock operator for these types; `calls` are those that a
  // provider's kernel leaves to it, beside those of schedule = stock.
  void RequireStock(const char* calls) const;
  void RunStock(OrtKernelContext* context, const GqaOutputs& outputs) const;

  // Whether decisions are to be logged, and one of them.
  static bool IsExplaining();
  void Log(const Ort::KernelContext& context, const std::string& decision) const;

 private:
  Attributes attributes_;
  TensorTypes types_;
  std::optional<StockOp> stock_;  // none where this ONNX Runtime has it not for these types
  std::string why_no_stock_;
};

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_NODE_H_
