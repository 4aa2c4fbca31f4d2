// The same bits for every schedule, amount, order and number of threads. ThreadSanitizer sees here
// how shares meet.

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/cpp/kernel_reference.h"
#include "tests/cpp/kernel_scenes.h"

namespace lean_attention::testing {
namespace {

constexpr Schedule kSchedules[] = {Schedule::kLean, Schedule::kFixedSplit, Schedule::kDirect};

class KernelThreads : public ::testing::TestWithParam<StepTypes> {
 protected:
  // Sequences of 1 to 5 tiles: alone in a share, many in one, and split.
  StepSpec Ragged() const {
    StepSpec spec;
    spec.types = GetParam();
    spec.num_heads = 6;
    spec.head_size = 24;
    spec.lengths = {1, 64, 65, 300};
    spec.sink = true;
    return spec;
  }
};

TEST_P(KernelThreads, SameBitsForAllSchedulesAndOrders) {
  for (bool separate_past : {false, true}) {
    StepSpec spec = Ragged();
    spec.separate_past = separate_past;
    const Step before(spec);
    const Step want = After(before, Schedule::kDirect, 1, InOrder);
    ExpectRight(want, before);
    for (Schedule schedule : kSchedules) {
      for (int64_t amount : {1, 2, 3, 5, 8, 16, 50, 132}) {
        for (const auto runner : {InOrder, Backwards}) {
          ExpectSameBits(After(before, schedule, amount, runner), want);
        }
      }
    }
  }
}

TEST_P(KernelThreads, SameBitsWithWindowsAndSeveralTokens) {
  StepSpec spec = Ragged();
  spec.lengths = {3, 64, 65, 513};
  spec.sequence_length = 3;
  spec.window = 300;
  const Step before(spec);
  const Step want = After(before, Schedule::kDirect, 1, InOrder);
  ExpectRight(want, before);
  for (int64_t amount : {2, 7, 40}) {
    for (Schedule schedule : kSchedules) {
      ExpectSameBits(After(before, schedule, amount, Backwards), want);
    }
  }
}

TEST_P(KernelThreads, SameBitsForAllNumbersOfThreads) {
  const Step before(Ragged());
  const Step want = After(before, Schedule::kDirect, 1, InOrder);
  for (int threads : {1, 2, 3, 4, 8}) {
    for (int repetition = 0; repetition < 50; ++repetition) {
      const Deal deal = repetition % 2 == 0 ? Deal::kFromOneCounter : Deal::kInTurns;
      const Schedule schedule = kSchedules[repetition % 3];
      const int64_t amount = threads * (1 + repetition % 5);
      ExpectSameBits(After(before, schedule, amount, OnThreads(threads, deal)), want);
    }
  }
}

TEST_P(KernelThreads, SameBitsAmongOtherSequencesAsAlone) {
  const Step before(Ragged());
  const Step batch = After(before, Schedule::kLean, 5, InOrder);
  for (int64_t b = 0; b < batch.batch_size(); ++b) {
    ExpectSameBitsOf(b, batch, 0, After(Alone(before, b), Schedule::kLean, 2));
  }
}

TEST_P(KernelThreads, StepsAtTheSameTimeDoNotDisturbEachOther) {
  constexpr int kSteps = 4;
  std::vector<Step> before;
  std::vector<Step> want;
  for (int i = 0; i < kSteps; ++i) {
    StepSpec spec = Ragged();
    spec.head_size = 16 + 8 * i;
    spec.lengths = {100 + 150 * i, 10 + i};
    spec.seed = 10 + i;
    spec.rotary_half = i;
    before.emplace_back(spec);
    want.push_back(After(before.back(), Schedule::kDirect, 1, InOrder));
    ExpectRight(want.back(), before.back());
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kSteps; ++i) {
    threads.emplace_back([&, i] {
      for (int repetition = 0; repetition < 10; ++repetition) {
        const ShareRunner runner = repetition % 2 == 0 ? InOrder : OnThreads(2, Deal::kInTurns);
        ExpectSameBits(After(before[i], kSchedules[repetition % 3], 4, runner), want[i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(All, KernelThreads, ::testing::ValuesIn(kStepTypes),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lean_attention::testing
