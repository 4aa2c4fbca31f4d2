// What a query sees, and what happens to its scores, on the GPU kernel.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/cpp/gpu_fixture.h"
#include "tests/cpp/kernel_scenes.h"

namespace lean_attention::testing {
namespace {

using ::testing::Combine;
using ::testing::Values;
using ::testing::ValuesIn;

class GpuMasks : public GpuTypesAndHeadSize {};

TEST_P(GpuMasks, AWindowCountsTheTokenItself) {
  for (int64_t window : {1, 15, 16, 17, 33, 64, 129, 130, 1000}) {
    for (int32_t tokens : {1, 3, 8}) {
      StepSpec spec = SpecOf({10, 64, 65, 130});
      spec.sequence_length = tokens;
      spec.window = window;
      ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 3});
    }
  }
}

TEST_P(GpuMasks, AWindowOfOneGivesTheNewestValue) {
  StepSpec spec = SpecOf({10});
  spec.window = 1;
  const Step step = AfterLaunch(Step(spec));
  const ElementFormat& format = step.output.format();
  for (int64_t h = 0; h < spec.head_size; ++h) {
    const double want = step.present_value[step.PresentRow(0, 1, 9) + h] * step.ValueScale(1, h);
    const double rounding =
        spec.types.IsQuantised() ? format.epsilon * std::fabs(want) + format.tiny : 0;
    EXPECT_NEAR(step.output[step.OutputRow(0, 0, 3) + h], want, rounding);
  }
}

// A bias that each sequence has for itself is NaN past its length.
TEST_P(GpuMasks, BiasOfEveryShape) {
  for (bool per_sequence : {false, true}) {
    for (bool per_head : {false, true}) {
      for (int32_t tokens : {1, 4}) {
        StepSpec spec = SpecOf({77, 10, 131});
        spec.sequence_length = tokens;
        spec.bias = true;
        spec.bias_per_sequence = per_sequence;
        spec.bias_per_head = per_head;
        ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 3});
        spec.window = 70;
        ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 3});
      }
    }
  }
}

TEST_P(GpuMasks, SoftcapComesBeforeBias) {
  for (bool bias : {false, true}) {
    StepSpec spec = SpecOf({10, 90});
    spec.softcap = 2;
    spec.scale = 1.0f;  // scores far beyond the cap
    spec.bias = bias;
    spec.bias_per_head = true;
    ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 3});
  }
}

TEST_P(GpuMasks, ASinkCountsOnce) {
  for (int64_t window : {-1, 3}) {
    for (int32_t tokens : {1, 2}) {
      StepSpec spec = SpecOf({2, 32, 100, 150});  // up to five tiles
      spec.sequence_length = tokens;
      spec.window = window;
      for (int64_t amount : {1, 7}) {
        spec.smooth_softmax = true;
        spec.sink = false;
        ExpectLaunchIsRight(Step(spec), {Schedule::kLean, amount});
        spec.sink = true;
        ExpectLaunchIsRight(Step(spec), {Schedule::kLean, amount});
      }
    }
  }
}

TEST_P(GpuMasks, RowsThatBiasMasksGiveZeros) {
  for (bool sink : {false, true}) {
    StepSpec spec = SpecOf({10, 150});
    spec.bias = true;
    spec.sink = sink;
    const Step before = WithMaskedKeys(spec, 0, 150, -INFINITY);
    for (int64_t amount : {1, 5}) {
      const Step step = AfterLaunch(before, {Schedule::kLean, amount});
      for (int64_t i = 0; i < step.output.count(); ++i) ASSERT_EQ(step.output[i], 0);
    }
  }
}

TEST_P(GpuMasks, MaskedKeysDoNotCount) {
  const std::pair<int64_t, int64_t> kRanges[] = {{0, 3}, {0, 32}, {32, 64}, {128, 140}, {0, 139}};
  for (const auto& [begin, end] : kRanges) {
    for (double mask : {-double{INFINITY}, -6e4}) {
      StepSpec spec = SpecOf({140});
      spec.bias = true;
      for (int64_t amount : {1, 3}) {
        ExpectLaunchIsRight(WithMaskedKeys(spec, begin, end, mask), {Schedule::kLean, amount});
      }
    }
  }
}

// Windows and several tokens, so that some blocks of keys are masked and others are not: equal
// scores must weigh the same in both.
TEST_P(GpuMasks, EqualHugeScoresGiveTheMeanOfTheValues) {
  for (int32_t tokens : {1, 3}) {
    for (int64_t window : {-1, 140}) {
      StepSpec spec = SpecOf({150});
      spec.sequence_length = tokens;
      spec.window = window;
      spec.scale = 1.0f;
      ExpectLaunchIsRight(WithEqualHugeScores(spec), {Schedule::kLean, 3});
    }
  }
}

// Weights are 0 or 1, and the largest keys share the row among them.
TEST_P(GpuMasks, ScoresFarApart) {
  StepSpec spec = SpecOf({150});
  spec.num_heads = spec.kv_num_heads = 1;
  spec.scale = 1.0f;
  for (int64_t amount : {1, 3}) {
    ExpectLaunchIsRight(WithScoresFarApart(spec), {Schedule::kLean, amount});
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuMasks,
                         Combine(Values(kFloat16Step, kBFloat16Step),
                                 ValuesIn(InFullGrid<int>({64, 80, 96, 128, 256}, {64}))),
                         NameOfTypesAndNumber());
INSTANTIATE_TEST_SUITE_P(Quantised, GpuMasks,
                         Combine(ValuesIn(kGpuQuantisedSteps),
                                 ValuesIn(InFullGrid<int>({64, 80, 96, 128, 256}, {64}))),
                         NameOfTypesAndNumber());

}  // namespace
}  // namespace lean_attention::testing
