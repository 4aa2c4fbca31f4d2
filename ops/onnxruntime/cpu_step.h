// A call's inputs as the CPU kernel takes them, and what the host checks of their numbers.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_CPU_STEP_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_CPU_STEP_H_

#include <vector>

#include "ops/cpu/decode_attention.h"
#include "ops/onnxruntime/gqa_inputs.h"

namespace lean_attention::onnxruntime {

struct CpuStep {
  // Fails where a length or a position is outside its buffer, whoever computes the call.
  explicit CpuStep(const GqaInputs& inputs);
  CpuStep(const CpuStep&) = delete;
  CpuStep& operator=(const CpuStep&) = delete;

  // Whether this is a step as the kernel knows it: every token stands at the position that the
  // lengths say, none is padding, and the stock operator would take it.
  bool IsWhole(const GqaInputs& inputs) const;

  // A copy of seqlens_k, so that nobody can change a length after it was checked.
  std::vector<int32_t> lengths;
  // But for the outputs' pointers; of use where the step is whole.
  cpu::DecodeArgs args;
};

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_CPU_STEP_H_
