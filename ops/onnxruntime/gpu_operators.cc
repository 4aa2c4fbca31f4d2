#include "ops/onnxruntime/gqa_gpu_kernel.h"
#include "ops/onnxruntime/gqa_op.h"
#include "ops/onnxruntime/operators.h"

namespace lean_attention::onnxruntime {

void AddGpuOperators(Ort::CustomOpDomain* domain) {
  for (ElementType element : {ElementType::kFloat16, ElementType::kBFloat16}) {
    for (ElementType cache : {element, ElementType::kInt8, ElementType::kFloat8E4M3}) {
      domain->Add(new GqaOp<GqaGpuKernel>({element, cache}));
    }
  }
}

}  // namespace lean_attention::onnxruntime
