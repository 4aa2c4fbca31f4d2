// One launch of the GPU kernel on the emulator, over the tensors of a step.

#ifndef LEAN_ATTENTION_TESTS_CPP_GPU_STEP_H_
#define LEAN_ATTENTION_TESTS_CPP_GPU_STEP_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "ops/decode/schedule.h"
#include "ops/emulator/report.h"
#include "ops/gpu/launch/launcher.h"
#include "tests/cpp/kernel_step.h"

namespace lean_attention::testing {

struct GpuLaunch {
  Schedule schedule = Schedule::kLean;
  int64_t amount = 1;       // as a cut takes it
  int blocks = 0;           // of the grid; 0: one for each share
  uint64_t seed = 0;        // of the interleaving
  int resident_blocks = 4;  // that run at a time

  // What device memory holds instead of what the step says; empty: the same.
  std::vector<int32_t> seqlens_k = {};
  std::vector<int64_t> position_ids = {};
  std::vector<int32_t> query_seqlens = {};
};

// What a launch leaves behind. Tensors were in buffers of their exact size, which only the output
// and the caches may be written of; states that nobody has written were NaN.
struct GpuOutcome {
  Step step;
  emulator::Report report;
  bool counters_are_zero;
};

// The step as a launch takes it; valid as long as both.
gpu::GpuDecode DecodeOf(Step* step, const GpuLaunch& launch);

GpuOutcome Run(const Step& before, const GpuLaunch& launch);

// The step after a launch. Fails the test where the emulator finds a fault, or a counter is left.
Step AfterLaunch(const Step& before, const GpuLaunch& launch = {});

// Launches the kernel and checks it against the plain reference.
void ExpectLaunchIsRight(const Step& before, const GpuLaunch& launch = {});

// Names a test after its types and a number.
struct NameOfTypesAndNumber {
  template <typename Info>
  std::string operator()(const Info& info) const {
    return std::string(std::get<0>(info.param).name) + "_" +
           std::to_string(std::get<1>(info.param));
  }
};

// Whether LEAN_ATTENTION_EMULATOR_FULL asks for the larger grid of tests.
bool IsFullGrid();

// What a test goes through: all of it, or a sample.
template <typename T>
std::vector<T> InFullGrid(std::vector<T> all, std::vector<T> sample) {
  return IsFullGrid() ? all : sample;
}

}  // namespace lean_attention::testing

#endif  // LEAN_ATTENTION_TESTS_CPP_GPU_STEP_H_
