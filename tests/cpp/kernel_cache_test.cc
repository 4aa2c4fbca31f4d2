// What the step writes to the cache: rotary embedding, append, copy of a cache that is not shared.

#include <gtest/gtest.h>

#include <tuple>

#include "tests/cpp/kernel_reference.h"

namespace lean_attention::testing {
namespace {

class KernelCache : public ::testing::TestWithParam<std::tuple<StepTypes, bool>> {
 protected:
  StepSpec SpecOf(std::vector<int32_t> lengths) const {
    StepSpec spec;
    std::tie(spec.types, spec.separate_past) = GetParam();
    spec.lengths = std::move(lengths);
    return spec;
  }
};

TEST_P(KernelCache, IsRightForRaggedBatches) {
  for (int64_t spare : {0, 1, 5}) {
    StepSpec spec = SpecOf({1, 5, 16, 64, 65, 200});
    spec.spare_rows = spare;
    ExpectRunIsRight(Step(spec));
  }
}

TEST_P(KernelCache, IsRightWithoutAPast) {
  for (int32_t tokens : {1, 5}) {
    StepSpec spec = SpecOf({tokens, tokens});
    spec.sequence_length = tokens;
    ExpectRunIsRight(Step(spec));
  }
}

TEST_P(KernelCache, IsRightBeforeAWindow) {
  for (int64_t window : {1, 64, 100}) {
    StepSpec spec = SpecOf({1, 64, 200, 300});
    spec.window = window;
    const Step before(spec);
    for (int64_t amount : {1, 6}) {
      ExpectRight(After(before, Schedule::kLean, amount), before);
    }
  }
}

TEST_P(KernelCache, IsRightWhateverShareAppends) {
  StepSpec spec = SpecOf({130, 67, 3});
  spec.sequence_length = 3;  // the new rows of the first two sequences lie in two tiles
  spec.rotary_half = 16;
  const Step before(spec);
  for (Schedule schedule : {Schedule::kLean, Schedule::kFixedSplit, Schedule::kDirect}) {
    for (int64_t amount : {1, 2, 3, 8, 40}) {
      for (const auto runner : {InOrder, Backwards}) {
        ExpectRight(After(before, schedule, amount, runner), before);
      }
    }
  }
}

TEST_P(KernelCache, HoldsRotatedKeys) {
  for (bool interleaved : {false, true}) {
    for (int32_t half : {1, 3, 8, 12, 16, 20}) {
      StepSpec spec = SpecOf({1, 20, 100});
      spec.head_size = 40;
      spec.rotary_half = half;
      spec.rotary_interleaved = interleaved;
      ExpectRunIsRight(Step(spec));
      spec.packed = true;
      ExpectRunIsRight(Step(spec));
    }
  }
}

TEST_P(KernelCache, HoldsKeysRotatedToTheirOwnPositions) {
  StepSpec spec = SpecOf({4, 20, 100});
  spec.sequence_length = 4;
  spec.rotary_half = 16;
  ExpectRunIsRight(Step(spec));
  spec.position_ids = true;
  ExpectRunIsRight(Step(spec));
}

INSTANTIATE_TEST_SUITE_P(All, KernelCache,
                         ::testing::Combine(::testing::ValuesIn(kStepTypes), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) ? "_separate" : "_shared");
                         });

}  // namespace
}  // namespace lean_attention::testing
