// Shared memory and workspace of a launch.

#include <gtest/gtest.h>

#include <limits>

#include "ops/gpu/launch/launcher.h"
#include "ops/gpu/shared_layout.h"

namespace lean_attention::gpu {
namespace {

// Two sequences of four query heads, two KV heads.
Problem SmallProblem() { return {2, 1, 4, 2, 64, 4096, nullptr, 0, ElementType::kFloat16, 128}; }

GpuDecision DecisionOf(Schedule schedule, int64_t amount) {
  GpuDecision decision = {};
  decision.schedule = schedule;
  decision.amount = amount;
  return decision;
}

TEST(WorkspaceOf, HasNoneWhereNothingIsSplit) {
  for (const GpuDecision& d :
       {DecisionOf(Schedule::kDirect, 1), DecisionOf(Schedule::kFixedSplit, 1),
        DecisionOf(Schedule::kLean, 1)}) {
    const Workspace workspace = WorkspaceOf(SmallProblem(), 4096, d);
    EXPECT_EQ(workspace.state_bytes, 0);
    EXPECT_EQ(workspace.counters, 0);
  }
}

TEST(WorkspaceOf, HasAPlaceForEveryTileOfEveryRegion) {
  // States of two rows, o [64], m and l each, of 8 tiles; regions: shares, or sequences and heads.
  const int64_t region = 8 * 2 * (64 + 2) * int64_t{sizeof(float)};
  const Workspace lean = WorkspaceOf(SmallProblem(), 1000, DecisionOf(Schedule::kLean, 3));
  EXPECT_EQ(lean.counters, 3);
  EXPECT_EQ(lean.state_bytes, 3 * region);
  const Workspace fixed = WorkspaceOf(SmallProblem(), 1000, DecisionOf(Schedule::kFixedSplit, 3));
  EXPECT_EQ(fixed.counters, 4);
  EXPECT_EQ(fixed.state_bytes, 4 * region);
}

TEST(WorkspaceOf, GrowsWithTheLengthsAndNotWithTheCache) {
  const GpuDecision d = DecisionOf(Schedule::kLean, 7);
  Problem large = SmallProblem();
  large.cache_rows = int64_t{1} << 30;
  const int64_t bytes = WorkspaceOf(SmallProblem(), 1000, d).state_bytes;
  EXPECT_EQ(WorkspaceOf(large, 1000, d).state_bytes, bytes);
  EXPECT_EQ(WorkspaceOf(large, 2000, d).state_bytes, 2 * bytes);
}

Problem ProblemOf(int32_t head_size, int32_t rows, int32_t batch_size,
                  ElementType cache = ElementType::kFloat16) {
  return {batch_size, 1, rows, 1, head_size, 1, nullptr, 0, cache, 16};
}

TEST(SharedBytes, AreThoseOfTheKernelsLayout) {
  EXPECT_EQ(SharedBytes(ProblemOf(64, 5, 3)), (SharedLayout<Half, 64>(5, 3).bytes()));
  EXPECT_EQ(SharedBytes(ProblemOf(256, 100, 1000)), (SharedLayout<Half, 256>(100, 1000).bytes()));
  EXPECT_EQ(SharedBytes(ProblemOf(128, 4, 1, ElementType::kFloat8E4M3)),
            (SharedLayout<Fp8E4M3, 128>(4, 1).bytes()));
}

// A block of any kernel, with a large batch, in the 163 KiB that sm_80 lets it have, or in the
// 64 KiB of an AMD compute unit.
TEST(SharedBytes, FitTheSmallestDevices) {
  const int64_t most = (kVendor == Vendor::kAmd ? 64 : 163) * 1024;
  for (int32_t head_size : {64, 80, 96, 128, 256}) {
    for (ElementType cache : {ElementType::kFloat16, ElementType::kInt8}) {
      for (int32_t rows = 1; rows <= 2 * kRows; ++rows) {
        EXPECT_LE(SharedBytes(ProblemOf(head_size, rows, 200, cache)), most)
            << head_size << " " << rows;
      }
    }
  }
}

// Rows that do not fit together are merged in turns of equally many.
TEST(SharedLayout, MergesAsManyRowsAsFit) {
  const auto merged_rows = [](int64_t rows) {
    return SharedLayout<Half, 256>(rows, 1).merged_rows;
  };
  EXPECT_EQ(merged_rows(1), 1);
  EXPECT_EQ(merged_rows(4), 4);
  EXPECT_EQ(merged_rows(5), 3);
  EXPECT_EQ(merged_rows(16), 1);
  EXPECT_EQ(merged_rows(100), 1);
  EXPECT_EQ((SharedLayout<Half, 64>(16, 1).merged_rows), 8);
}

TEST(SharedBytes, DoNotOverflow) {
  EXPECT_GT(SharedBytes(ProblemOf(64, 1, std::numeric_limits<int32_t>::max())),
            int64_t{std::numeric_limits<int32_t>::max()});
}

TEST(SharedBytes, AreNoneOfWhatIsNotBuilt) { EXPECT_EQ(SharedBytes(ProblemOf(72, 1, 1)), 0); }

}  // namespace
}  // namespace lean_attention::gpu
