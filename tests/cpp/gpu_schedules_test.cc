// The same bits of the GPU kernel for every schedule, number of shares, grid and interleaving, and
// for a sequence among others as alone.

#include <gtest/gtest.h>

#include <vector>

#include "tests/cpp/gpu_step.h"
#include "tests/cpp/kernel_reference.h"
#include "tests/cpp/kernel_scenes.h"

namespace lean_attention::testing {
namespace {

constexpr Schedule kSchedules[] = {Schedule::kLean, Schedule::kFixedSplit, Schedule::kDirect};
constexpr int64_t kAmounts[] = {1, 2, 3, 7, 16, 40, 132, 264};

class GpuSchedules : public ::testing::TestWithParam<StepTypes> {
 protected:
  // Sequences of 1 to 7 tiles: alone in a share, many in one, and split.
  StepSpec Ragged() const {
    StepSpec spec;
    spec.types = GetParam();
    spec.num_heads = 6;
    spec.head_size = 64;
    spec.lengths = {1, 16, 17, 100};
    spec.tile_tokens = 16;
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
  spec.lengths = {6, 16, 17, 150};
  spec.sequence_length = 6;  // 18 rows: the keys are taken twice
  spec.window = 70;
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

TEST_P(GpuSchedules, SameBitsForAllInterleavings) {
  const Step before(Ragged());
  const Step want = Want(before);
  for (uint64_t seed = 0; seed < (IsFullGrid() ? 400 : 24); ++seed) {
    for (int resident_blocks = 1; resident_blocks <= 8; resident_blocks += seed % 3 + 1) {
      const auto turn = static_cast<int64_t>(seed);
      const int64_t amount = 2 + turn * resident_blocks % 15;
      const int blocks = turn % 4 == 3 ? resident_blocks : 0;
      ExpectSameBits(
          AfterLaunch(before, {kSchedules[turn % 2], amount, blocks, seed, resident_blocks}), want);
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

INSTANTIATE_TEST_SUITE_P(All, GpuSchedules, ::testing::Values(kFloat16Step, kBFloat16Step),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lean_attention::testing
