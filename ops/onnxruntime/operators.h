// The operators of each kind of device. A build without GPUs has none for them.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_OPERATORS_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_OPERATORS_H_

#include "ops/onnxruntime/ort.h"

namespace lean_attention::onnxruntime {

// They are never destroyed.
void AddCpuOperators(Ort::CustomOpDomain* domain);
void AddGpuOperators(Ort::CustomOpDomain* domain);

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_OPERATORS_H_
