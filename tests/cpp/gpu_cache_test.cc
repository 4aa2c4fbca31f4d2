// What the GPU kernel reads and writes at the ends: rotary embedding, append, packed inputs, rows
// of the cache that hold nothing.

#include <gtest/gtest.h>

#include <vector>

#include "tests/cpp/gpu_fixture.h"

namespace lean_attention::testing {
namespace {

using ::testing::Combine;
using ::testing::Values;
using ::testing::ValuesIn;

class GpuCache : public GpuTypesAndHeadSize {};

// Rows that hold nothing are NaN; without spare ones the longest sequence ends with its cache.
TEST_P(GpuCache, IsRightForRaggedBatches) {
  for (int64_t spare : {0, 1, 5, 100}) {
    StepSpec spec = SpecOf({1, 5, 16, 64, 65, 131});
    spec.spare_rows = spare;
    ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 5});
  }
}

TEST_P(GpuCache, IsRightWithoutAPast) {
  for (int32_t tokens : {1, 2, 5, 8, 20, 40}) {
    StepSpec spec = SpecOf({tokens, tokens});
    spec.sequence_length = tokens;
    spec.spare_rows = 3;
    spec.rotary_half = 8;
    ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 3});
  }
}

TEST_P(GpuCache, IsRightBeforeAWindow) {
  for (int64_t window : {1, 32, 70}) {
    StepSpec spec = SpecOf({3, 33, 100, 140});
    spec.sequence_length = 3;
    spec.window = window;
    spec.spare_rows = 2;
    for (int64_t amount : {1, 6}) ExpectLaunchIsRight(Step(spec), {Schedule::kLean, amount});
  }
}

TEST_P(GpuCache, IsRightWhateverShareAppends) {
  StepSpec spec = SpecOf({66, 35, 3});
  spec.sequence_length = 3;  // the new rows of the first two sequences lie in two tiles
  spec.rotary_half = 16;
  for (Schedule schedule : {Schedule::kLean, Schedule::kFixedSplit, Schedule::kDirect}) {
    for (int64_t amount : {1, 2, 3, 8}) ExpectLaunchIsRight(Step(spec), {schedule, amount});
  }
}

TEST_P(GpuCache, HoldsRotatedKeys) {
  for (bool interleaved : {false, true}) {
    for (int32_t half : {1, 3, 8, 24, 32}) {
      StepSpec spec = SpecOf({1, 20, 70});
      spec.rotary_half = half;
      spec.rotary_interleaved = interleaved;
      ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 3});
      spec.packed = true;
      ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 3});
    }
  }
}

TEST_P(GpuCache, HoldsKeysRotatedToTheirOwnPositions) {
  for (bool position_ids : {false, true}) {
    StepSpec spec = SpecOf({4, 20, 70});
    spec.sequence_length = 4;
    spec.rotary_half = 16;
    spec.position_ids = position_ids;
    ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 3});
  }
}

TEST_P(GpuCache, IsRightPacked) {
  for (int32_t tokens : {1, 3}) {
    StepSpec spec = SpecOf({3, 67});
    spec.num_heads = 6;
    spec.sequence_length = tokens;
    spec.packed = true;
    spec.bias = true;
    ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 3});
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuCache,
                         Combine(Values(kFloat16Step, kBFloat16Step),
                                 ValuesIn(InFullGrid<int>({64, 80, 96, 128, 256}, {64}))),
                         NameOfTypesAndNumber());
INSTANTIATE_TEST_SUITE_P(Quantised, GpuCache,
                         Combine(ValuesIn(kGpuQuantisedSteps),
                                 ValuesIn(InFullGrid<int>({64, 80, 96, 128, 256}, {64}))),
                         NameOfTypesAndNumber());

}  // namespace
}  // namespace lean_attention::testing
