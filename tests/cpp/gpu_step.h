// One launch of the GPU kernel on the emulator, over the tensors of a step.

#ifndef LEAN_ATTENTION_TESTS_CPP_GPU_STEP_H_
#define LEAN_ATTENTION_TESTS_CPP_GPU_STEP_H_

#include <cstdint>

#include "ops/decode/schedule.h"
#include "ops/emulator/report.h"
#include "tests/cpp/kernel_step.h"

namespace lean_attention::testing {

struct GpuLaunch {
  Schedule schedule = Schedule::kLean;
  int64_t amount = 1;       // as a cut takes it
  int blocks = 0;           // of the grid; 0: one for each share
  uint64_t seed = 0;        // of the interleaving
  int resident_blocks = 4;  // that run at a time
};

// What a launch leaves behind. Tensors are in buffers of their exact size, those that are only read
// are frozen; states that nobody has written are NaN, and the counters must be zero afterwards.
// Fails the test, with the report, where the emulator finds a fault.
Step AfterLaunch(const Step& before, const GpuLaunch& launch = {});

}  // namespace lean_attention::testing

#endif  // LEAN_ATTENTION_TESTS_CPP_GPU_STEP_H_
