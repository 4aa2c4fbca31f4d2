// The same bits of the GPU kernel for every schedule, number of shares, grid and interleaving, and
// for a sequence among others as alone.

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/cpp/gpu_step.h"
#include "tests/cpp/kernel_reference.h"
#include "tests/cpp/kernel_scenes.h"

namespace lean_attention::testing {
namespace {

constexpr Schedule kSchedules[] = {Schedule::kLean, Schedule::kFixedSplit, Schedule::kDirect};
constexpr int64_t kAmounts[] = {1, 2, 3, 7, 16, 40, 132, 264};

// Of tiles of 16 keys one warp does all; of those of 128 each of the four has two blocks.
class GpuSchedules : public ::testing::TestWithParam<std::tuple<StepTypes, int>> {
 protected:
  // Sequences of 1 to 4 tiles: alone in a share, many in one, and split.
  StepSpec Ragged() const {
    StepSpec spec;
    std::tie(spec.types, spec.tile_tokens) = GetParam();
    spec.num_heads = 6;
    spec.head_size = 64;
    spec.lengths = {1, spec.tile_tokens, spec.tile_tokens + 1, 4 * spec.tile_tokens - 5};
    spec.sink = true;
    spec.rotary_half = 32;
    return spec;
  }
  // What one share after the other leaves, as the reference says.
  static Step Want(const Step& before) {
    const Step want = AfterLaunch(before, {Schedule::kDirect, 1, 1});
    ExpectRight(want, before, Operands::kElements);
    return want;
  }
};

TEST_P(GpuSchedules, SameBitsForAllSchedulesAndAmounts) {
  const Step before(Ragged());
  const Step want = Want(before);
  for (Schedule schedule : kSchedules) {
    for (int64_t amount : kAmounts) {
      ExpectSameBits(AfterLaunch(before, {schedule, amount}), want);
    }
  }
}

TEST_P(GpuSchedules, SameBitsWithWindowsAndSeveralTokens) {
  StepSpec spec = Ragged();
  spec.lengths[0] = 6;
  spec.sequence_length = 6;  // 18 rows: the keys are taken twice
  spec.window = 2 * spec.tile_tokens + 6;
  const Step before(spec);
  const Step want = Want(before);
  for (Schedule schedule : kSchedules) {
    for (int64_t amount : {2, 7, 40}) ExpectSameBits(AfterLaunch(before, {schedule, amount}), want);
  }
}

// Blocks that take share after share.
TEST_P(GpuSchedules, SameBitsForGridsOfFewerBlocksThanShares) {
  const Step before(Ragged());
  const Step want = Want(before);
  for (Schedule schedule : kSchedules) {
    for (int64_t amount : {7, 16, 40}) {
      for (int blocks : {1, 2, 3, 5}) {
        ExpectSameBits(AfterLaunch(before, {schedule, amount, blocks}), want);
      }
    }
  }
}

// Other numbers for each seed too: what differs in float32 may be the same in 16 bits.
TEST_P(GpuSchedules, SameBitsForAllInterleavings) {
  for (int seed = 0; seed < (IsFullGrid() ? 400 : 24); ++seed) {
    StepSpec spec = Ragged();
    spec.seed = static_cast<uint32_t>(seed);
    const Step before(spec);
    const Step want = Want(before);
    const int64_t amount = 2 + seed % 13;
    const int resident_blocks = 1 + seed % 8;
    const int blocks = seed % 4 == 3 ? resident_blocks : 0;
    for (Schedule schedule : {Schedule::kLean, Schedule::kFixedSplit}) {
      const GpuLaunch launch = {schedule, amount, blocks, spec.seed, resident_blocks};
      ExpectSameBits(AfterLaunch(before, launch), want);
    }
  }
}

// More pieces of a sequence and head than a warp has lanes, and more shares than tiles.
TEST_P(GpuSchedules, SameBitsForASequenceInManyPieces) {
  StepSpec spec = Ragged();
  spec.num_heads = spec.kv_num_heads = 1;
  spec.lengths = {20, 150 * 16};
  const Step before(spec);
  const Step want = Want(before);
  for (Schedule schedule : {Schedule::kLean, Schedule::kFixedSplit}) {
    for (int64_t amount : {33, 66, 264}) {
      ExpectSameBits(AfterLaunch(before, {schedule, amount}), want);
    }
  }
}

TEST_P(GpuSchedules, SameBitsAmongOtherSequencesAsAlone) {
  const Step before(Ragged());
  const Step batch = AfterLaunch(before, {Schedule::kLean, 5});
  for (int64_t b = 0; b < batch.batch_size(); ++b) {
    ExpectSameBitsOf(b, batch, 0, AfterLaunch(Alone(before, b), {Schedule::kLean, 2}));
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuSchedules,
                         ::testing::Combine(::testing::Values(kFloat16Step, kBFloat16Step),
                                            ::testing::Values(16, 128)),
                         NameOfTypesAndNumber());
INSTANTIATE_TEST_SUITE_P(Quantised, GpuSchedules,
                         ::testing::Combine(::testing::ValuesIn(kGpuQuantisedSteps),
                                            ::testing::Values(128)),
                         NameOfTypesAndNumber());

}  // namespace
}  // namespace lean_attention::testing
