// Leaves the CPU execution provider to the emulated GPU operators.

#include "ops/onnxruntime/operators.h"

namespace lean_attention::onnxruntime {

void AddCpuOperators(Ort::CustomOpDomain*) {}

}  // namespace lean_attention::onnxruntime
