#include "ops/onnxruntime/gqa_gpu_kernel.h"
#include "ops/onnxruntime/gqa_op.h"
#include "ops/onnxruntime/operators.h"

namespace lean_attention::onnxruntime {

void AddGpuOperators(Ort::CustomOpDomain* domain) {
  for (ElementType element : {ElementType::kFloat16, ElementType::kBFloat16}) {
    // No kernel takes int4: it is here to be left to the provider's stock operator, since ONNX
    // Runtime would look for another provider.
    for (ElementType cache :
         {element, ElementType::kInt8, ElementType::kFloat8E4M3, ElementType::kInt4}) {
      domain->Add(new GqaOp<GqaGpuKernel>({element, cache}));
    }
  }
}

}  // namespace lean_attention::onnxruntime
