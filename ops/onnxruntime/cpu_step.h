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

  // Copies of what was checked, so that nobody can change it afterwards.
  std::vector<int32_t> seqlens_k;
  std::vector<int32_t> query_seqlens;
  std::vector<int64_t> position_ids;
  // But for the outputs' pointers.
  cpu::DecodeArgs args;
};

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_CPU_STEP_H_
