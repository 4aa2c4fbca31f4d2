// Sequences that differ in more than their length: chunks with padding, idle sequences, layers that
// share a cache; and the norm of queries and keys.

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/cpp/kernel_reference.h"
#include "tests/cpp/kernel_scenes.h"

namespace lean_attention::testing {
namespace {

class KernelSequences : public ::testing::TestWithParam<std::tuple<StepTypes, bool>> {
 protected:
  static StepSpec Spec() {
    StepSpec spec;
    std::tie(spec.types, spec.separate_past) = GetParam();
    spec.sequence_length = 5;
    spec.lengths = {1, 3, 64, 66, 150, 199};
    spec.rotary_half = 8;
    spec.spare_rows = 3;
    return spec;
  }

  static void ExpectRightForAllCuts(const StepSpec& spec) {
    const Step before(spec);
    const Step want = After(before);
    ExpectRight(want, before);
    for (Schedule schedule : {Schedule::kLean, Schedule::kFixedSplit, Schedule::kDirect}) {
      for (int64_t amount : {2, 7, 30}) {
        ExpectSameBits(After(before, schedule, amount, Backwards), want);
      }
    }
  }
};

TEST_P(KernelSequences, MayHaveFewerTokensThanTheOthers) {
  for (int64_t window : {-1, 2, 40}) {
    StepSpec spec = Spec();
    spec.window = window;
    spec.bias = spec.bias_per_sequence = true;
    ExpectRightForAllCuts(spec);  // two are shorter than the step
    spec.queries = {1, 2, 5, 0, 4, 0};
    ExpectRightForAllCuts(spec);
  }
}

TEST_P(KernelSequences, MayAllIdle) {
  StepSpec spec = Spec();
  spec.queries = {0, 0, 0, 0, 0, 0};
  ExpectRightForAllCuts(spec);
  spec.sequence_length = 1;
  ExpectRightForAllCuts(spec);
}

TEST_P(KernelSequences, MayHaveTheirRowsInTheCacheAlready) {
  for (int64_t window : {-1, 40}) {
    StepSpec spec = Spec();
    spec.window = window;
    spec.without_new_rows = true;
    ExpectRightForAllCuts(spec);
    spec.sequence_length = 1;
    ExpectRightForAllCuts(spec);
  }
}

TEST_P(KernelSequences, AreNormalisedBeforeTheRotation) {
  for (int head_size : {7, 32, 40}) {
    StepSpec spec = Spec();
    spec.head_size = head_size;
    spec.norm = true;
    spec.rotary_half = 0;
    ExpectRightForAllCuts(spec);
    spec.rotary_half = 3;
    spec.packed = true;
    spec.queries = {1, 2, 5, 0, 4, 5};
    ExpectRightForAllCuts(spec);
  }
}

// A padded sequence gives the bits that it gives by itself, without padding.
TEST_P(KernelSequences, DoNotFeelTheirPadding) {
  StepSpec spec = Spec();
  spec.lengths = {100, 150};
  spec.queries = {2, 5};
  spec.packed = true;
  spec.separate_past = false;  // since Alone does not take a past along
  const Step padded = After(Step(spec));
  ExpectSameBitsOf(0, padded, 0, After(Alone(Step(spec), 0)));
}

INSTANTIATE_TEST_SUITE_P(All, KernelSequences,
                         ::testing::Combine(::testing::ValuesIn(kStepTypes), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) ? "_separate" : "_shared");
                         });

}  // namespace
}  // namespace lean_attention::testing
