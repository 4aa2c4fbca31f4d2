#include "ops/decode/policy.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lean_attention
