#include "ops/onnxruntime/operators.h"

namespace lean_attention::onnxruntime {

void AddGpuOperators(Ort::CustomOpDomain*) {}

}  // namespace lean_attention::onnxruntime
