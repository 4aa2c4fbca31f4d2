// Scratch memory: a formula in shares and tiles, not in heads times context.

#include "ops/cpu/workspace.h"

#include <gtest/gtest.h>

#include <vector>

#include "ops/cpu/decode_attention.h"

namespace lean_attention::cpu {
namespace {

DecodeArgs ArgsOf(const std::vector<int32_t>& seqlens_k, int32_t kv_num_heads) {
  DecodeArgs args = {};
  args.problem.batch_size = static_cast<int32_t>(seqlens_k.size());
  args.problem.sequence_length = 1;
  args.problem.num_heads = 4 * kv_num_heads;
  args.problem.kv_num_heads = kv_num_heads;
  args.problem.head_size = 100;
  args.problem.cache_rows = int64_t{1} << 24;
  args.problem.seqlens_k = seqlens_k.data();
  args.problem.tile_tokens = TileTokens(100, ElementType::kFloat32);
  return args;
}

TEST(Workspace, IsWhatTheFormulaSays) {
  const std::vector<int32_t> lengths = {4999, 99};
  const Plan plan = MakePlan(ArgsOf(lengths, 2), {Schedule::kLean, 6, ""});
  // Rows of 100 channels take 112 floats. Of four rows: queries; scores of 48 keys; three vectors
  // of running softmax, on two cache lines; two states with a maximum and a sum per row; four rows
  // of channels; three words per row, on a cache line each.
  const size_t state = 4 * 112 + 16;
  const size_t share = 4 * 112 + 4 * 48 + 32 + 2 * state + 4 * 112 + 3 * 16;
  const size_t tiles = (5000 + 191) / 192;
  // Four sequences and heads may be split: fewer than the six shares.
  EXPECT_EQ(plan.workspace_bytes, 4 * (6 * share + 4 * tiles * state) + 4 * 4);
  const Plan fewer_shares = MakePlan(ArgsOf(lengths, 2), {Schedule::kLean, 3, ""});
  EXPECT_EQ(fewer_shares.workspace_bytes, 4 * (3 * share + 3 * tiles * state) + 4 * 3);
}

TEST(Workspace, DoesNotGrowWithHeadsOrContext) {
  const std::vector<int32_t> long_context = {100'000};
  const std::vector<int32_t> longer_context = {10'000'000};
  const Decision decision = {Schedule::kLean, 8, ""};
  const size_t bytes = MakePlan(ArgsOf(long_context, 8), decision).workspace_bytes;
  EXPECT_EQ(MakePlan(ArgsOf(long_context, 64), decision).workspace_bytes, bytes);
  const size_t most = 4 * 8 * (static_cast<size_t>(kMaxTiles) * (4 * 112 + 16) + 4096) + 4 * 8;
  EXPECT_LE(bytes, most);
  EXPECT_LE(MakePlan(ArgsOf(longer_context, 64), decision).workspace_bytes, most);
  // What one head's scores alone would take, as the stock operator keeps them.
  EXPECT_LT(MakePlan(ArgsOf(longer_context, 64), decision).workspace_bytes, 10'000'000 * 4);
}

}  // namespace
}  // namespace lean_attention::cpu
