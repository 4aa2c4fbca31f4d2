// What a query sees, and what happens to its scores: windows, bias, softcap, sinks, extremes.

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "tests/cpp/kernel_reference.h"
#include "tests/cpp/kernel_scenes.h"

namespace lean_attention::testing {
namespace {

class KernelMasks : public ::testing::TestWithParam<StepTypes> {
 protected:
  StepSpec SpecOf(std::vector<int32_t> lengths) const {
    StepSpec spec;
    spec.types = GetParam();
    spec.lengths = std::move(lengths);
    return spec;
  }
};

TEST_P(KernelMasks, AWindowCountsTheTokenItself) {
  for (int64_t window : {1, 2, 4, 16, 63, 64, 65, 199, 200, 300}) {
    for (int32_t tokens : {1, 3, 8}) {
      StepSpec spec = SpecOf({10, 64, 65, 200});
      spec.sequence_length = tokens;
      spec.window = window;
      ExpectRunIsRight(Step(spec));
    }
  }
}

TEST_P(KernelMasks, BiasOfEveryShape) {
  for (bool per_sequence : {false, true}) {
    for (bool per_head : {false, true}) {
      for (int32_t tokens : {1, 4}) {
        StepSpec spec = SpecOf({77, 10, 131});
        spec.sequence_length = tokens;
        spec.bias = true;
        spec.bias_per_sequence = per_sequence;
        spec.bias_per_head = per_head;
        ExpectRunIsRight(Step(spec));
        spec.window = 70;
        ExpectRunIsRight(Step(spec));
      }
    }
  }
}

TEST_P(KernelMasks, SoftcapComesBeforeBias) {
  for (bool per_head : {false, true}) {
    StepSpec spec = SpecOf({10, 90});
    spec.softcap = 2;
    spec.scale = 1;  // scores far beyond the cap
    spec.bias = true;
    spec.bias_per_head = per_head;
    spec.bias_per_sequence = per_head;
    ExpectRunIsRight(Step(spec));
  }
}

TEST_P(KernelMasks, ASinkCountsOnce) {
  for (int64_t window : {-1, 3}) {
    for (int32_t tokens : {1, 2}) {
      StepSpec spec = SpecOf({2, 64, 200, 300});  // up to five tiles
      spec.sequence_length = tokens;
      spec.window = window;
      spec.smooth_softmax = true;
      ExpectRunIsRight(Step(spec));
      spec.sink = true;
      ExpectRunIsRight(Step(spec));
    }
  }
}

// The same, with the tiles of a sequence and head in several shares.
TEST_P(KernelMasks, ASinkCountsOnceWhereSharesMeet) {
  StepSpec spec = SpecOf({300, 200});
  spec.sink = true;
  const Step before(spec);
  ExpectRight(After(before, Schedule::kLean, 7), before);
}

TEST_P(KernelMasks, RowsThatBiasMasksGiveZeros) {
  for (double mask : {-double{INFINITY}, -double{FLT_MAX}}) {
    if (mask < -65504 && mask > -INFINITY && GetParam().element != ElementType::kFloat32) continue;
    for (bool sink : {false, true}) {
      StepSpec spec = SpecOf({10, 150});
      spec.bias = true;
      spec.sink = sink;
      const Step before = WithMaskedKeys(spec, 0, 150, mask);
      for (int64_t amount : {1, 5}) {
        const Step run = After(before, Schedule::kLean, amount);
        ExpectRight(run, before);
        for (int64_t i = 0; i < run.output.count(); ++i) ASSERT_EQ(run.output[i], 0);
      }
    }
  }
}

// Keys [begin, end) of every row, for either mask, within one share and across shares.
void ExpectMaskedKeysDoNotCount(const StepTypes& types, int64_t begin, int64_t end) {
  const double least = types.element == ElementType::kFloat32 ? -double{FLT_MAX} : -6e4;
  for (double mask : {-double{INFINITY}, least}) {
    StepSpec spec;
    spec.types = types;
    spec.lengths = {200};
    spec.bias = true;
    const Step before = WithMaskedKeys(spec, begin, end, mask);
    for (int64_t amount : {1, 3, 8}) {
      ExpectRight(After(before, Schedule::kLean, amount), before);
    }
  }
}

TEST_P(KernelMasks, TheFirstThreeKeysMasked) { ExpectMaskedKeysDoNotCount(GetParam(), 0, 3); }
TEST_P(KernelMasks, TheFirstTileMasked) { ExpectMaskedKeysDoNotCount(GetParam(), 0, 64); }
TEST_P(KernelMasks, AMiddleTileMasked) { ExpectMaskedKeysDoNotCount(GetParam(), 64, 128); }
TEST_P(KernelMasks, TheLastTileMasked) { ExpectMaskedKeysDoNotCount(GetParam(), 192, 200); }
TEST_P(KernelMasks, AllButOneKeyMasked) { ExpectMaskedKeysDoNotCount(GetParam(), 0, 199); }

INSTANTIATE_TEST_SUITE_P(All, KernelMasks, ::testing::ValuesIn(kStepTypes),
                         [](const auto& info) { return info.param.name; });

// Caches that hold any number.
class KernelExtremes : public KernelMasks {};

TEST_P(KernelExtremes, AWindowOfOneGivesTheNewestValue) {
  StepSpec spec = SpecOf({10});
  spec.window = 1;
  const Step step = After(Step(spec));
  for (int64_t h = 0; h < spec.head_size; ++h) {
    EXPECT_EQ(step.output[step.OutputRow(0, 0, 3) + h], step.value()[step.ValueRow(0, 0, 1) + h]);
  }
}

// Windows and several tokens, so that some blocks of keys are masked and others are not: equal
// scores must weigh the same in both.
TEST_P(KernelExtremes, EqualHugeScoresGiveTheMeanOfTheValues) {
  for (int32_t tokens : {1, 3}) {
    for (int64_t window : {-1, 140}) {
      StepSpec spec = SpecOf({150});
      spec.sequence_length = tokens;
      spec.window = window;
      spec.head_size = 16;
      spec.kv_num_heads = 1;
      spec.scale = 1;
      ExpectRunIsRight(WithEqualHugeScores(spec));  // scores of 640,000
    }
  }
}

// Weights are 0 or 1, and the largest keys share the row among them.
TEST_P(KernelExtremes, ScoresFarApart) {
  StepSpec spec = SpecOf({150});
  spec.head_size = 16;
  spec.num_heads = spec.kv_num_heads = 1;
  spec.scale = 1;
  const Step before = WithScoresFarApart(spec);
  for (int64_t amount : {1, 3}) {
    ExpectRight(After(before, Schedule::kLean, amount), before);
  }
}

INSTANTIATE_TEST_SUITE_P(All, KernelExtremes,
                         ::testing::ValuesIn(std::begin(kStepTypes), std::begin(kStepTypes) + 3),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lean_attention::testing
