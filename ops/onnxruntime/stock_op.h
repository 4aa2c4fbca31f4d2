// com.microsoft.GroupQueryAttention of the same execution provider, as an operator inside ours: it
// computes prompts, and whatever our kernel does not.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_STOCK_OP_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_STOCK_OP_H_

#include "ops/onnxruntime/gqa_schema.h"
#include "ops/onnxruntime/ort.h"

namespace lean_attention::onnxruntime {

class StockOp {
 public:
  // Creates the operator with the node's own attributes.
  StockOp(const Ort::ConstKernelInfo& info, const TensorTypes& types);

  // Runs it on the node's inputs. The outputs must have been allocated: stock crashes on null ones.
  void Invoke(OrtKernelContext* context, OrtValue* output, OrtValue* present_key,
              OrtValue* present_value) const;

 private:
  // OrtOp is immutable once created; the wrapper's Invoke merely lacks a const.
  mutable Ort::Op op_{nullptr};
  size_t input_count_;
};

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_STOCK_OP_H_
