// The GPU kernel against the plain reference: head sizes, groups, lengths, tiles, query tokens.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/cpp/gpu_step.h"

namespace lean_attention::testing {
namespace {

using ::testing::Combine;
using ::testing::Values;
using ::testing::ValuesIn;

const auto kTypes = Values(kFloat16Step, kBFloat16Step);

// Lengths on both sides of the ends of a warp's 16 keys, of the four warps' 64, and of tiles.
std::vector<int32_t> LengthsAroundTheEnds() {
  return {1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 193, 257};
}

class GpuHeadSizes : public ::testing::TestWithParam<std::tuple<StepTypes, int>> {
 protected:
  StepSpec SpecOf(int32_t kv_num_heads, int32_t group) const {
    StepSpec spec;
    std::tie(spec.types, spec.head_size) = GetParam();
    spec.kv_num_heads = kv_num_heads;
    spec.num_heads = kv_num_heads * group;
    return spec;
  }
};

TEST_P(GpuHeadSizes, AreRightAtAllLengths) {
  StepSpec spec = SpecOf(1, 3);
  spec.lengths = LengthsAroundTheEnds();
  ExpectLaunchIsRight(Step(spec));
  ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 7});
}

// Groups of more than 16 heads take the keys several times.
TEST_P(GpuHeadSizes, AreRightForAllGroups) {
  for (int32_t group : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 32}) {
    StepSpec spec = SpecOf(IsFullGrid() ? 2 : 1, group);
    spec.lengths = {1, 17, 71};
    ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 3});
  }
}

TEST_P(GpuHeadSizes, AreRightForSeveralTokens) {
  for (int32_t tokens = 1; tokens <= 8; ++tokens) {
    StepSpec spec = SpecOf(IsFullGrid() ? 2 : 1, 3);
    spec.sequence_length = tokens;
    // No past, one row of it, and new tokens on both sides of the end of a tile.
    spec.lengths = {tokens, tokens + 1, 64 + tokens / 2};
    ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 1 + tokens % 4});
  }
}

TEST_P(GpuHeadSizes, AreRightForAllTiles) {
  for (int32_t tile_tokens : {16, 32, 64, 128}) {
    StepSpec spec = SpecOf(2, 2);
    spec.tile_tokens = tile_tokens;
    spec.lengths = {tile_tokens - 1, tile_tokens, tile_tokens + 1, 2 * tile_tokens + 17};
    ExpectLaunchIsRight(Step(spec), {Schedule::kFixedSplit, 2});
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuHeadSizes, Combine(kTypes, Values(64, 80, 96, 128, 256)),
                         NameOfTypesAndNumber());

INSTANTIATE_TEST_SUITE_P(Quantised, GpuHeadSizes,
                         Combine(ValuesIn(kGpuQuantisedSteps),
                                 ValuesIn(InFullGrid<int>({64, 80, 96, 128, 256}, {80}))),
                         NameOfTypesAndNumber());

class GpuShapes : public ::testing::TestWithParam<StepTypes> {
 protected:
  StepSpec Spec() const {
    StepSpec spec;
    spec.types = GetParam();
    spec.head_size = 64;
    return spec;
  }
};

TEST_P(GpuShapes, ManyTokensOfManyHeads) {
  for (int32_t group : InFullGrid<int32_t>({1, 2, 3, 4, 5, 7, 8, 16, 32}, {2, 5, 16})) {
    for (int32_t tokens : InFullGrid<int32_t>({1, 2, 3, 4, 5, 6, 7, 8}, {3, 8})) {
      StepSpec spec = Spec();
      spec.kv_num_heads = 1;
      spec.num_heads = group;
      spec.sequence_length = tokens;
      spec.tile_tokens = 16;
      spec.lengths = {tokens, 15 + tokens, 64};
      ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 4});
    }
  }
}

TEST_P(GpuShapes, AllNumbersOfKvHeads) {
  for (int32_t kv_num_heads = 1; kv_num_heads <= 8; ++kv_num_heads) {
    StepSpec spec = Spec();
    spec.kv_num_heads = kv_num_heads;
    spec.num_heads = 2 * kv_num_heads;
    spec.tile_tokens = 32;
    spec.lengths = {40, 3, 97};
    ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 5});
  }
}

// The first warp reads the lengths, one a lane: fewer, as many and more than it has lanes.
TEST_P(GpuShapes, BatchesOfMoreSequencesThanAWarpHasLanes) {
  for (int32_t batch_size : {31, 32, 33, 40, 63, 64, 65, 130}) {
    StepSpec spec = Spec();
    spec.kv_num_heads = 1;
    spec.num_heads = 2;
    spec.tile_tokens = 16;
    spec.lengths.clear();
    for (int32_t b = 0; b < batch_size; ++b) spec.lengths.push_back(1 + 7 * b % 41);
    ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 6});
  }
}

// More keys than kMaxTiles tiles of 16 hold: tiles widen, and those of the neighbour do not.
TEST_P(GpuShapes, TilesWidenWithTheLength) {
  for (int32_t length : InFullGrid<int32_t>({4095, 4096, 4097, 8192, 8193, 16411}, {4096, 8193})) {
    StepSpec spec = Spec();
    spec.kv_num_heads = 1;
    spec.num_heads = 2;
    spec.tile_tokens = 16;
    spec.lengths = {length, 50};
    ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 5});
    spec.window = 100;
    ExpectLaunchIsRight(Step(spec), {Schedule::kLean, 3});
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuShapes, kTypes, [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lean_attention::testing
