// The kernel against the plain reference: head sizes, groups, lengths, query tokens, types.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/cpp/kernel_reference.h"

namespace lean_attention::testing {
namespace {

using ::testing::Combine;
using ::testing::TestWithParam;
using ::testing::Values;
using ::testing::ValuesIn;

const auto kHeadSizes = {1, 7, 8, 16, 24, 40, 64, 72, 80, 96, 128, 256};

// In all of these the longest sequence comes last, and its length is odd: the cache ends with it,
// and no group of keys that are worked together ends there.

// A ragged batch whose lengths lie on both sides of the ends of vectors, blocks and tiles.
std::vector<int32_t> LengthsAroundTheEnds() {
  return {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 513, 1001};
}

using TypesAndHeadSize = std::tuple<StepTypes, int>;

class KernelHeadSizes : public TestWithParam<TypesAndHeadSize> {
 protected:
  StepSpec SpecOf(int32_t kv_num_heads, int32_t group) const {
    StepSpec spec;
    std::tie(spec.types, spec.head_size) = GetParam();
    spec.kv_num_heads = kv_num_heads;
    spec.num_heads = kv_num_heads * group;
    return spec;
  }
};

TEST_P(KernelHeadSizes, AreRightAtAllLengths) {
  StepSpec spec = SpecOf(1, 3);
  spec.lengths = LengthsAroundTheEnds();
  ExpectRunIsRight(Step(spec));
}

TEST_P(KernelHeadSizes, AreRightForAllGroups) {
  for (int32_t group : {1, 3, 4, 5, 7, 8, 16}) {
    StepSpec spec = SpecOf(2, group);
    spec.lengths = {1, 9, 71};
    ExpectRunIsRight(Step(spec));
  }
}

TEST_P(KernelHeadSizes, AreRightForSeveralTokens) {
  for (int32_t tokens : {2, 3, 5, 8}) {
    StepSpec spec = SpecOf(2, 2);
    spec.sequence_length = tokens;
    // No past, one row of it, and new tokens on both sides of the end of a tile.
    spec.lengths = {tokens, tokens + 1, 67};
    ExpectRunIsRight(Step(spec));
  }
}

TEST_P(KernelHeadSizes, AreRightPackedAndWhereTensorsAreNotAligned) {
  StepSpec spec = SpecOf(2, 4);
  spec.packed = true;
  spec.misaligned = true;
  spec.bias = true;
  spec.lengths = {3, 67};
  ExpectRunIsRight(Step(spec));
}

INSTANTIATE_TEST_SUITE_P(All, KernelHeadSizes, Combine(ValuesIn(kStepTypes), ValuesIn(kHeadSizes)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

using TypesAndGroup = std::tuple<StepTypes, int>;

class KernelGroups : public TestWithParam<TypesAndGroup> {};

TEST_P(KernelGroups, AreRightAtAllLengths) {
  StepSpec spec;
  std::tie(spec.types, spec.num_heads) = GetParam();
  spec.kv_num_heads = 1;
  spec.head_size = 40;
  spec.lengths = LengthsAroundTheEnds();
  ExpectRunIsRight(Step(spec));
}

TEST_P(KernelGroups, AreRightForAllNumbersOfTokens) {
  for (int32_t tokens = 1; tokens <= 8; ++tokens) {
    StepSpec spec;
    std::tie(spec.types, spec.num_heads) = GetParam();
    spec.kv_num_heads = 1;
    spec.head_size = 40;
    spec.sequence_length = tokens;
    spec.lengths = {tokens, 71};
    ExpectRunIsRight(Step(spec));
  }
}

TEST_P(KernelGroups, AreRightWithTheTilesOfTheBackend) {
  StepSpec spec;
  std::tie(spec.types, spec.num_heads) = GetParam();
  spec.num_heads *= 2;
  spec.head_size = 128;
  spec.lengths = {255, 599};
  spec.tile_tokens = cpu::TileTokens(spec.head_size, spec.types.cache);
  ExpectRunIsRight(Step(spec));
}

INSTANTIATE_TEST_SUITE_P(All, KernelGroups,
                         Combine(ValuesIn(kStepTypes), Values(1, 3, 4, 5, 7, 8, 16)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace lean_attention::testing
