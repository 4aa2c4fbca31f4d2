// Sequences that differ in more than their length, on the GPU kernel: chunks with padding, idle
// sequences, layers that share a cache; and the norm of queries and keys.

#include <gtest/gtest.h>

#include "tests/cpp/gpu_fixture.h"
#include "tests/cpp/kernel_scenes.h"

namespace lean_attention::testing {
namespace {

using ::testing::Combine;
using ::testing::Values;
using ::testing::ValuesIn;

class GpuSequences : public GpuTypesAndHeadSize {
 protected:
  StepSpec Spec() const {
    StepSpec spec = SpecOf({1, 3, 64, 66, 150});
    spec.sequence_length = 5;
    spec.tile_tokens = 32;
    spec.rotary_half = 8;
    spec.spare_rows = 3;
    return spec;
  }

  static void ExpectRightForAllCuts(const StepSpec& spec) {
    const Step before(spec);
    ExpectLaunchIsRight(before, {Schedule::kDirect, 1});
    const Step want = AfterLaunch(before, {Schedule::kDirect, 1});
    ExpectSameBits(AfterLaunch(before, {Schedule::kLean, 7}), want);
    ExpectSameBits(AfterLaunch(before, {Schedule::kFixedSplit, 3}), want);
  }
};

TEST_P(GpuSequences, MayHaveFewerTokensThanTheOthers) {
  for (int64_t window : {-1, 40}) {
    StepSpec spec = Spec();
    spec.window = window;
    spec.bias = spec.bias_per_sequence = true;
    ExpectRightForAllCuts(spec);  // two are shorter than the step
    spec.queries = {1, 2, 5, 0, 4};
    ExpectRightForAllCuts(spec);
  }
}

TEST_P(GpuSequences, MayAllIdle) {
  StepSpec spec = Spec();
  spec.queries = {0, 0, 0, 0, 0};
  ExpectRightForAllCuts(spec);
}

TEST_P(GpuSequences, MayHaveTheirRowsInTheCacheAlready) {
  StepSpec spec = Spec();
  spec.without_new_rows = true;
  ExpectRightForAllCuts(spec);
  spec.sequence_length = 1;
  ExpectRightForAllCuts(spec);
}

// More than 16 rows, too, of which a block takes some at a time.
TEST_P(GpuSequences, AreNormalisedBeforeTheRotation) {
  for (int group : {2, 5}) {
    StepSpec spec = Spec();
    spec.num_heads = spec.kv_num_heads * group;
    spec.norm = true;
    spec.packed = true;
    spec.queries = {1, 2, 5, 0, 4};
    ExpectRightForAllCuts(spec);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuSequences,
                         Combine(Values(kFloat16Step, kBFloat16Step),
                                 ValuesIn(InFullGrid<int>({64, 80, 96, 128, 256}, {80}))),
                         NameOfTypesAndNumber());

INSTANTIATE_TEST_SUITE_P(Quantised, GpuSequences,
                         Combine(ValuesIn(kGpuQuantisedSteps),
                                 ValuesIn(InFullGrid<int>({64, 80, 96, 128, 256}, {64}))),
                         NameOfTypesAndNumber());

}  // namespace
}  // namespace lean_attention::testing
