#include "ops/decode/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

namespace lean_attention {
namespace {

Problem ProblemOf(const std::vector<int32_t>& seqlens_k, int32_t kv_num_heads = 8) {
  Problem p = {};
  p.batch_size = static_cast<int32_t>(seqlens_k.size());
  p.sequence_length = 1;
  p.num_heads = 4 * kv_num_heads;
  p.kv_num_heads = kv_num_heads;
  p.head_size = 128;
  p.cache_rows = 1 << 20;
  p.seqlens_k = seqlens_k.data();
  p.tile_tokens = 128;
  return p;
}

TEST(Decide, TinyProblemsStayOnOneThread) {
  const std::vector<int32_t> lengths = {7};
  EXPECT_EQ(Decide(ProblemOf(lengths), {16}).amount, 1);
}

TEST(Decide, OneWorkerGetsOneShare) {
  const std::vector<int32_t> lengths = {100000};
  EXPECT_EQ(Decide(ProblemOf(lengths), {1}).amount, 1);
}

TEST(Decide, LargeProblemsGetSharesForAllWorkers) {
  const std::vector<int32_t> lengths = {100000};
  const Decision decision = Decide(ProblemOf(lengths), {16});
  EXPECT_EQ(decision.schedule, Schedule::kLean);
  EXPECT_EQ(decision.amount, 16 * kSharesPerWorker);
}

TEST(Decide, SharesGrowWithTheBytes) {
  int64_t before = 1;
  for (int32_t last : {15, 63, 127, 255, 511, 4095}) {
    const std::vector<int32_t> lengths = {last};
    const int64_t amount = Decide(ProblemOf(lengths), {64}).amount;
    EXPECT_GE(amount, before);
    before = amount;
  }
  EXPECT_GT(before, 1);
}

TEST(VisibleBytes, CountsKAndVOnceAndOnlyTheWindow) {
  const std::vector<int32_t> lengths = {999, 99};
  Problem p = ProblemOf(lengths);
  EXPECT_EQ(VisibleBytes(p), int64_t{2} * (1000 + 100) * 8 * 128 * 4);
  p.local_window_size = 50;
  EXPECT_EQ(VisibleBytes(p), int64_t{2} * (50 + 50) * 8 * 128 * 4);
}

TEST(FixedSplits, FillsTheWaves) {
  EXPECT_EQ(FixedSplits(/*pairs=*/8, /*workers=*/8, /*max_splits=*/64), 1);
  // 13 of 16 workers are 0.81 of the best, 14 are 0.88.
  EXPECT_EQ(FixedSplits(1, 16, 64), 14);
  EXPECT_EQ(FixedSplits(1, 16, 1), 1);
}

TEST(DecideFor, ObeysTheCallersSchedule) {
  const std::vector<int32_t> lengths = {5000};
  const Problem p = ProblemOf(lengths, 1);
  EXPECT_EQ(DecideFor(p, {16}, Schedule::kDirect).schedule, Schedule::kDirect);
  const Decision fixed = DecideFor(p, {16}, Schedule::kFixedSplit);
  EXPECT_EQ(fixed.schedule, Schedule::kFixedSplit);
  EXPECT_GT(fixed.amount, 1);
}

TEST(Explain, SaysWhatWasDecidedAndFromWhat) {
  const std::vector<int32_t> lengths = {5000, 100};
  const Problem p = ProblemOf(lengths, 2);
  EXPECT_EQ(
      Explain(p, {3}, {Schedule::kDirect, 1, "asked for"}),
      "direct in 4 shares (asked for): 82 tiles of 128 keys, 2 sequences of 5102 keys in all, "
      "1 query tokens, 8/2 heads of 128, float32 cache, 3 processors");
}

// Lengths are in device memory: there are none here to read.
Problem GpuProblemOf(int32_t batch_size, int32_t kv_num_heads) {
  return {batch_size, 1, 4 * kv_num_heads,      kv_num_heads,  128, int64_t{1} << 20,
          nullptr,    0, ElementType::kFloat16, kGpuTileTokens};
}

constexpr GpuMachine kGpu = {132, 2};

TEST(MostTiles, BoundsEveryShorterLength) {
  Problem p = GpuProblemOf(1, 1);
  for (const int64_t window : {0, 1, 2, 128, 129, 130, 1000}) {
    for (const int32_t tokens : {1, 3}) {
      p.local_window_size = window;
      p.sequence_length = tokens;
      int64_t most = 0;
      for (int64_t length = tokens; length <= 5000; ++length) {
        most = std::max<int64_t>(most, TilingFor(p, {length, tokens}).count);
        EXPECT_EQ(TilingFor(p, {length, 0}).count, 1);  // idle
        EXPECT_GE(MostTiles(p, length), most) << window << " " << tokens << " " << length;
      }
      EXPECT_EQ(MostTiles(p, 5000), most) << window << " " << tokens;
    }
  }
}

TEST(MostTiles, KnowsThatLongSequencesHaveWiderTiles) {
  const Problem p = GpuProblemOf(1, 1);
  EXPECT_EQ(MostTiles(p, int64_t{kMaxTiles} * kGpuTileTokens), kMaxTiles);
  // One key more, and twice as wide tiles are half as many; but shorter sequences are not.
  EXPECT_EQ(MostTiles(p, int64_t{kMaxTiles} * kGpuTileTokens + 1), kMaxTiles);
}

TEST(DecideGpu, GivesEveryResidentBlockOneShare) {
  const GpuDecision d = DecideGpu(GpuProblemOf(4, 8), 65536, kGpu);
  EXPECT_EQ(d.schedule, Schedule::kLean);
  EXPECT_EQ(d.amount, 264);
  EXPECT_EQ(d.shares, 264);
  EXPECT_EQ(d.blocks, 264);
  EXPECT_TRUE(d.is_persistent);
}

TEST(DecideGpu, HasNoMoreSharesThanTiles) {
  // Two sequences and heads of at most three tiles.
  const GpuDecision d = DecideGpu(GpuProblemOf(1, 2), 2 * kGpuTileTokens + 1, kGpu);
  EXPECT_EQ(d.schedule, Schedule::kLean);
  EXPECT_EQ(d.shares, 6);
  EXPECT_EQ(d.blocks, 6);
  for (int64_t length = 1; length < 3000; length += 7) {
    for (const Schedule wish : {Schedule::kLean, Schedule::kFixedSplit, Schedule::kDirect}) {
      const Problem p = GpuProblemOf(1, 2);
      EXPECT_LE(DecideGpu(p, length, kGpu, wish).shares, 2 * MostTiles(p, length));
    }
  }
}

TEST(DecideGpu, LeavesOneTileWhole) {
  const GpuDecision d = DecideGpu(GpuProblemOf(100, 8), kGpuTileTokens, kGpu);
  EXPECT_EQ(d.schedule, Schedule::kDirect);
  EXPECT_EQ(d.shares, 800);
  EXPECT_EQ(d.blocks, 800);
  EXPECT_FALSE(d.is_persistent);
}

TEST(DecideGpu, DoesNotSplitForManyQueryTokens) {
  Problem p = GpuProblemOf(1, 8);
  p.sequence_length = kMaxSplitTokens;
  EXPECT_EQ(DecideGpu(p, 65536, kGpu).schedule, Schedule::kLean);
  p.sequence_length = kMaxSplitTokens + 1;
  for (const std::optional<Schedule> wish :
       {std::optional<Schedule>(), std::optional<Schedule>(Schedule::kLean)}) {
    const GpuDecision d = DecideGpu(p, 65536, kGpu, wish);
    EXPECT_EQ(d.schedule, Schedule::kDirect);
    EXPECT_EQ(d.shares, 8);
  }
}

TEST(DecideGpu, NeverAsksForTheCapacity) {
  Problem p = GpuProblemOf(3, 8);
  for (const int64_t length : {100, 1000, 100000}) {
    p.cache_rows = length;
    const GpuDecision exact = DecideGpu(p, length, kGpu);
    p.cache_rows = int64_t{1} << 30;
    EXPECT_EQ(DecideGpu(p, length, kGpu).shares, exact.shares);
  }
}

TEST(DecideGpu, ObeysTheCallersSchedule) {
  const Problem p = GpuProblemOf(1, 1);
  const GpuDecision direct = DecideGpu(p, 65536, kGpu, Schedule::kDirect);
  EXPECT_EQ(direct.schedule, Schedule::kDirect);
  EXPECT_EQ(direct.shares, 1);
  const GpuDecision fixed = DecideGpu(p, 65536, kGpu, Schedule::kFixedSplit);
  EXPECT_EQ(fixed.schedule, Schedule::kFixedSplit);
  EXPECT_EQ(fixed.amount, FixedSplits(1, 264, kMaxTiles));
  EXPECT_EQ(fixed.shares, fixed.amount);
  EXPECT_TRUE(fixed.is_persistent);
  EXPECT_EQ(DecideGpu(p, kGpuTileTokens, kGpu, Schedule::kLean).schedule, Schedule::kLean);
}

TEST(DecideGpu, QueuesTheBlocksOfASplitThatDoesNotFit) {
  const GpuDecision d = DecideGpu(GpuProblemOf(40, 8), 65536, kGpu, Schedule::kFixedSplit);
  EXPECT_EQ(d.shares, 320 * d.amount);
  EXPECT_EQ(d.blocks, d.shares);
  EXPECT_FALSE(d.is_persistent);
}

TEST(DecideGpu, KeepsToWhatAGridMayHave) {
  Problem p = GpuProblemOf(std::numeric_limits<int32_t>::max(), 4);
  const GpuDecision d = DecideGpu(p, 65536, kGpu, Schedule::kDirect);
  EXPECT_EQ(d.shares, int64_t{4} * std::numeric_limits<int32_t>::max());
  EXPECT_EQ(d.blocks, std::numeric_limits<int32_t>::max());
}

TEST(ExplainGpu, SaysWhatWasDecidedAndFromWhat) {
  const Problem p = GpuProblemOf(2, 8);
  EXPECT_EQ(ExplainGpu(p, 5000, kGpu, DecideGpu(p, 5000, kGpu)),
            "lean in 264 shares on 264 resident blocks (equal shares for all blocks that fit): at "
            "most 640 tiles of 128 keys, 2 sequences of at most 5000 keys, 1 query tokens, 32/8 "
            "heads of 128, float16 cache, 132 multiprocessors of 2 blocks");
  EXPECT_EQ(ExplainGpu(p, 5000, kGpu, DecideGpu(p, 5000, {4, 1}, Schedule::kDirect))
                .rfind("direct in 16 shares on 16 queued blocks (asked for): ", 0),
            0u);
}

}  // namespace
}  // namespace lean_attention
