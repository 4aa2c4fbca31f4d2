#include "ops/onnxruntime/gqa_cpu_kernel.h"
#include "ops/onnxruntime/gqa_op.h"
#include "ops/onnxruntime/operators.h"

namespace lean_attention::onnxruntime {

void AddCpuOperators(Ort::CustomOpDomain* domain) {
  for (ElementType element :
       {ElementType::kFloat32, ElementType::kFloat16, ElementType::kBFloat16}) {
    for (ElementType cache : {element, ElementType::kInt8, ElementType::kInt4}) {
      domain->Add(new GqaOp<GqaCpuKernel>({element, cache}));
    }
  }
}

}  // namespace lean_attention::onnxruntime
