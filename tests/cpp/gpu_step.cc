#include "tests/cpp/gpu_step.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

#include "tests/cpp/kernel_reference.h"

namespace lean_attention::testing {

Step AfterLaunch(const Step& before, const GpuLaunch& launch) {
  GpuOutcome outcome = Run(before, launch);
  EXPECT_TRUE(outcome.report.ok()) << outcome.report.ToString() << "\n" << before.spec();
  EXPECT_TRUE(outcome.counters_are_zero) << "a counter is left: " << before.spec();
  return std::move(outcome.step);
}

void ExpectLaunchIsRight(const Step& before, const GpuLaunch& launch) {
  ExpectRight(AfterLaunch(before, launch), before, Operands::kElements);
}

bool IsFullGrid() { return std::getenv("LEAN_ATTENTION_EMULATOR_FULL") != nullptr; }

}  // namespace lean_attention::testing
