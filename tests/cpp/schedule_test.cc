#include "ops/decode/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace lean_attention {
namespace {

// A problem that owns its lengths.
struct Lengths {
  std::vector<int32_t> seqlens_k;
  Problem problem = {};

  explicit Lengths(std::vector<int32_t> last, int64_t window = -1, int32_t tile_tokens = 64)
      : seqlens_k(std::move(last)) {
    problem.batch_size = static_cast<int32_t>(seqlens_k.size());
    problem.sequence_length = 1;
    problem.num_heads = 8;
    problem.kv_num_heads = 2;
    problem.head_size = 64;
    problem.cache_rows = int64_t{1} << 31;
    problem.seqlens_k = seqlens_k.data();
    problem.local_window_size = window;
    problem.tile_tokens = tile_tokens;
  }
};

int64_t CountTiles(const Problem& p) {
  int64_t tiles = 0;
  for (int32_t b = 0; b < p.batch_size; ++b) tiles += p.kv_num_heads * TilingOf(p, b).count;
  return tiles;
}

// Every share's pieces, in order.
std::vector<std::vector<Piece>> PiecesOf(const Cut& cut) {
  std::vector<std::vector<Piece>> shares(cut.shares());
  for (int64_t share = 0; share < cut.shares(); ++share) {
    cut.ForEachPiece(share, [&](const Piece& piece) { shares[share].push_back(piece); });
  }
  return shares;
}

using CutCase = std::tuple<std::vector<int32_t>, int64_t, Schedule, int64_t>;

class CutTest : public testing::TestWithParam<CutCase> {
 protected:
  CutTest()
      : lengths_(std::get<0>(GetParam()), std::get<1>(GetParam())),
        cut_(lengths_.problem, std::get<2>(GetParam()), std::get<3>(GetParam())) {}

  Lengths lengths_;
  Cut cut_;
};

TEST_P(CutTest, VisitsEachTileOnceInStreamOrder) {
  int64_t tiles = 0;
  Position next = {0, 0};
  for (const auto& share : PiecesOf(cut_)) {
    for (const Piece& piece : share) {
      const int64_t pair = int64_t{piece.sequence} * lengths_.problem.kv_num_heads + piece.kv_head;
      EXPECT_TRUE((next == Position{pair, piece.tile_begin}));
      EXPECT_LT(piece.tile_begin, piece.tile_end);
      tiles += piece.tile_end - piece.tile_begin;
      next = piece.tile_end == piece.tiling.count ? Position{pair + 1, 0}
                                                  : Position{pair, piece.tile_end};
    }
  }
  EXPECT_EQ(tiles, CountTiles(lengths_.problem));
  EXPECT_TRUE((next == Position{cut_.pairs(), 0}));
}

TEST_P(CutTest, PiecesOfASplitPairMeetInARegionOfTheirOwn) {
  std::map<int64_t, std::set<std::pair<int32_t, int32_t>>> pairs_of_region;
  std::map<int64_t, int32_t> tiles_of_region;
  for (const auto& share : PiecesOf(cut_)) {
    for (const Piece& piece : share) {
      const bool whole = piece.tile_end - piece.tile_begin == piece.tiling.count;
      EXPECT_EQ(piece.IsSplit(), !whole);
      if (whole) continue;
      EXPECT_GE(piece.region, 0);
      EXPECT_LT(piece.region, cut_.regions());
      pairs_of_region[piece.region].insert({piece.sequence, piece.kv_head});
      tiles_of_region[piece.region] += piece.tile_end - piece.tile_begin;
      EXPECT_EQ(piece.tile_begin == 0, piece.tile_end == piece.prefix_tiles);
      EXPECT_LE(piece.tiling.count, kMaxTiles);
      if (tiles_of_region[piece.region] > piece.tiling.count) ADD_FAILURE() << "too many tiles";
    }
  }
  for (const auto& [region, pairs] : pairs_of_region) EXPECT_EQ(pairs.size(), 1u) << region;
}

INSTANTIATE_TEST_SUITE_P(
    AllSchedules, CutTest,
    testing::Combine(testing::Values(std::vector<int32_t>{0}, std::vector<int32_t>{63},
                                     std::vector<int32_t>{64}, std::vector<int32_t>{128},
                                     std::vector<int32_t>{0, 1, 63, 64, 500},
                                     std::vector<int32_t>{20000, 3, 3, 3, 70000}),
                     testing::Values(int64_t{-1}, int64_t{1}, int64_t{100}),
                     testing::Values(Schedule::kLean, Schedule::kFixedSplit, Schedule::kDirect),
                     testing::Values(1, 2, 3, 8, 16, 132)));

TEST(Tiling, DependsOnTheSequencesOwnLengthAlone) {
  const Lengths alone({5000});
  const Lengths among({9, 5000, 100000});
  const Tiling a = TilingOf(alone.problem, 0);
  const Tiling b = TilingOf(among.problem, 1);
  EXPECT_EQ(a.tile_tokens, b.tile_tokens);
  EXPECT_EQ(a.count, b.count);
}

TEST(Tiling, NeverPassesTheMostTiles) {
  for (int32_t last : {0, 63, 64, 64 * kMaxTiles - 1, 64 * kMaxTiles, 1 << 20, INT32_MAX - 1}) {
    const Lengths lengths({last});
    const Tiling tiling = TilingOf(lengths.problem, 0);
    EXPECT_GE(tiling.count, 1);
    EXPECT_LE(tiling.count, kMaxTiles);
    EXPECT_GE(tiling.count * tiling.tile_tokens, int64_t{last} + 1);
    EXPECT_LT((tiling.count - 1) * tiling.tile_tokens, int64_t{last} + 1);
  }
}

TEST(Tiling, AWindowNeedsOnlyTheTilesThatItTouches) {
  const Lengths lengths({999}, /*window=*/100);  // keys 900..999, tiles of 64: 14 and 15
  const Tiling tiling = TilingOf(lengths.problem, 0);
  EXPECT_EQ(tiling.first, 14);
  EXPECT_EQ(tiling.count, 2);
}

TEST(LeanCut, SharesCostAboutTheSame) {
  const Lengths lengths({16383, 1023, 1023, 511});
  for (int64_t amount : {2, 3, 8, 16}) {
    const Cut cut(lengths.problem, Schedule::kLean, amount);
    std::vector<int64_t> costs;
    for (const auto& share : PiecesOf(cut)) {
      int64_t cost = 0;
      for (const Piece& piece : share) {
        cost += (piece.tile_end - piece.tile_begin) * piece.tiling.tile_tokens;
      }
      costs.push_back(cost);
    }
    // A boundary is off by half a tile at most, and ends of pairs count kEndCost each.
    const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
    EXPECT_LE(*most - *least, 2 * 64 + 8 * kEndCost) << amount << " shares";
  }
}

}  // namespace
}  // namespace lean_attention
