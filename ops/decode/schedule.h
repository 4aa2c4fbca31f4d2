// Tiles -> stream -> shares.
//
// A tile is a run of consecutive keys of one sequence and one KV head, for all query heads of the
// group. The stream is all tiles, ordered by sequence, then KV head, then position. A schedule cuts
// it into contiguous shares; a worker reduces one share at a time:
//
//   direct        one share per sequence and head               (FlashAttention)
//   fixed_split   k pieces of equally many tiles per sequence and head  (FlashDecoding)
//   lean          equally costly shares across sequences and heads      (LeanAttention)
//
// Tile boundaries depend on a sequence's own length alone, never on the cut. Since tile states are
// merged in order of position, every cut gives the same bits.

#ifndef LEAN_ATTENTION_OPS_DECODE_SCHEDULE_H_
#define LEAN_ATTENTION_OPS_DECODE_SCHEDULE_H_

#include "ops/decode/problem.h"

namespace lean_attention {

enum class Schedule : int32_t { kLean = 0, kFixedSplit = 1, kDirect = 2 };

// A sequence and head never has more tiles than this: longer sequences get wider tiles, so that the
// merge, and the workspace of a split sequence, stay small.
inline constexpr int32_t kMaxTiles = 256;

// What the ends of a sequence and head cost (rotary, append, merge, output), in keys.
inline constexpr int64_t kEndCost = 16;

struct Tiling {
  int64_t tile_tokens;
  int64_t first;  // the first tile with a visible key; tile i starts at position i * tile_tokens
  int32_t count;  // >= 1
};

LEAN_HOST_DEVICE inline Tiling TilingFor(const Problem& p, const Lengths& lengths) {
  int64_t tile_tokens = p.tile_tokens;
  while (lengths.keys > tile_tokens * kMaxTiles) tile_tokens *= 2;
  const int64_t first = FirstVisibleKey(p, lengths) / tile_tokens;
  return {tile_tokens, first, static_cast<int32_t>((lengths.keys - 1) / tile_tokens - first + 1)};
}

LEAN_HOST_DEVICE inline Tiling TilingOf(const Problem& p, int32_t sequence) {
  return TilingFor(p, LengthsOf(p, sequence));
}

// What a sequence and head costs, in keys.
LEAN_HOST_DEVICE inline int64_t PairCost(const Tiling& t) {
  return kEndCost + t.count * t.tile_tokens;
}

// A place between two tiles; `tile` counts from the first visible one and is < its pair's count,
// except at the end of the stream: {B * K, 0}.
struct Position {
  int64_t pair;  // sequence * K + KV head
  int32_t tile;
};

LEAN_HOST_DEVICE inline bool operator<(const Position& a, const Position& b) {
  return a.pair < b.pair || (a.pair == b.pair && a.tile < b.tile);
}
LEAN_HOST_DEVICE inline bool operator==(const Position& a, const Position& b) {
  return a.pair == b.pair && a.tile == b.tile;
}

// The part of one sequence and head that one share holds.
struct Piece {
  int32_t sequence;
  int32_t kv_head;
  Tiling tiling;
  int32_t tile_begin;  // counts from tiling.first
  int32_t tile_end;
  // Where the other pieces of a split sequence and head meet this one; -1 where it is not split.
  // Named after the pair, or the share that holds its first tile, of which there are fewer.
  int64_t region;
  int32_t prefix_tiles;  // of the region's first piece

  LEAN_HOST_DEVICE bool IsSplit() const { return region >= 0; }
};

// A place in the stream by its cost: in this sequence, after `rest` keys' worth of it.
struct Located {
  int32_t sequence;  // B past the end
  int64_t rest;
};

// The sequences of a stream one after the other, as the host sees them. (Inside a GPU kernel
// another class, with prefix sums, does the same.)
class ProblemStream {
 public:
  explicit ProblemStream(const Problem& problem) : problem_(problem), total_cost_(0) {
    for (int32_t b = 0; b < problem_.batch_size; ++b) total_cost_ += SequenceCost(b);
  }

  LEAN_HOST_DEVICE const Problem& problem() const { return problem_; }
  Tiling TilingOf(int32_t sequence) const { return lean_attention::TilingOf(problem_, sequence); }
  int64_t total_cost() const { return total_cost_; }

  Located Locate(int64_t cost) const {
    int32_t b = 0;
    for (; b < problem_.batch_size && cost >= SequenceCost(b); ++b) cost -= SequenceCost(b);
    return {b, cost};
  }

 private:
  int64_t SequenceCost(int32_t b) const { return problem_.kv_num_heads * PairCost(TilingOf(b)); }

  Problem problem_;
  int64_t total_cost_;
};

// A stream and one way to cut it.
template <typename Stream>
class BasicCut {
 public:
  // `amount`: the number of shares (lean), of pieces per sequence and head (fixed_split), or
  // ignored (direct); >= 1. The lengths are read whenever a position is asked for.
  LEAN_HOST_DEVICE BasicCut(const Stream& stream, Schedule schedule, int64_t amount)
      : stream_(stream), schedule_(schedule), amount_(schedule == Schedule::kDirect ? 1 : amount) {}

  LEAN_HOST_DEVICE int64_t pairs() const {
    return int64_t{stream_.problem().batch_size} * stream_.problem().kv_num_heads;
  }

  LEAN_HOST_DEVICE int64_t shares() const {
    return schedule_ == Schedule::kLean ? amount_ : pairs() * amount_;
  }

  // Regions in which the pieces of split sequences meet; each has kMaxTiles places at most.
  LEAN_HOST_DEVICE int64_t regions() const {
    return amount_ == 1 ? 0 : (HasRegionPerPair() ? pairs() : amount_);
  }

  // Where a share begins; Begin(shares()) is the end of the stream.
  LEAN_HOST_DEVICE Position Begin(int64_t share) const {
    if (share >= shares()) return {pairs(), 0};
    return schedule_ == Schedule::kLean ? LeanBegin(share) : FixedBegin(share);
  }

  // Calls visit(piece) for each piece of a share, in order.
  template <typename Visit>
  LEAN_HOST_DEVICE void ForEachPiece(int64_t share, Visit visit) const {
    Position at = Begin(share);
    const Position end = Begin(share + 1);
    while (at < end) {
      // Where a piece begins with its sequence and head, this is the first share that holds it.
      const int64_t first_share = at.tile == 0 ? share : ShareAt({at.pair, 0}, share);
      visit(PieceAt(at, end, first_share));
      at = {at.pair + 1, 0};
    }
  }

  // The piece of [at, end) that begins at `at`; `first_share` holds the first tile of its pair.
  LEAN_HOST_DEVICE Piece PieceAt(Position at, Position end, int64_t first_share) const {
    const int32_t kv_num_heads = stream_.problem().kv_num_heads;
    Piece piece;
    piece.sequence = static_cast<int32_t>(at.pair / kv_num_heads);
    piece.kv_head = static_cast<int32_t>(at.pair % kv_num_heads);
    piece.tiling = stream_.TilingOf(piece.sequence);
    piece.tile_begin = at.tile;
    piece.tile_end = end.pair == at.pair ? end.tile : piece.tiling.count;
    piece.region = -1;
    piece.prefix_tiles = 0;
    if (piece.tile_begin > 0 || piece.tile_end < piece.tiling.count) {
      piece.prefix_tiles = at.tile == 0 ? piece.tile_end : Begin(first_share + 1).tile;
      piece.region = HasRegionPerPair() ? at.pair : first_share;
    }
    return piece;
  }

 private:
  // Otherwise there are fewer shares, of which each starts at most one split pair.
  LEAN_HOST_DEVICE bool HasRegionPerPair() const {
    return schedule_ != Schedule::kLean || pairs() <= amount_;
  }

  // The tile boundary nearest to the share's part of the total cost.
  LEAN_HOST_DEVICE Position LeanBegin(int64_t share) const {
    // share * total stays below 2^63: shares < 2^20 and a stream of 2^43 keys would not fit memory.
    const Located at = stream_.Locate(share * stream_.total_cost() / amount_);
    if (at.sequence >= stream_.problem().batch_size) return {pairs(), 0};
    const Tiling tiling = stream_.TilingOf(at.sequence);
    const int64_t pair_cost = PairCost(tiling);
    const int64_t head = at.rest / pair_cost;
    const int64_t pair = int64_t{at.sequence} * stream_.problem().kv_num_heads + head;
    const int64_t keys = at.rest - head * pair_cost - kEndCost;
    const int64_t tile = keys <= 0 ? 0 : (keys + tiling.tile_tokens / 2) / tiling.tile_tokens;
    return Normalised(pair, tile, tiling.count);
  }

  LEAN_HOST_DEVICE Position FixedBegin(int64_t share) const {
    const int64_t pair = share / amount_;
    const Tiling tiling =
        stream_.TilingOf(static_cast<int32_t>(pair / stream_.problem().kv_num_heads));
    return Normalised(pair, tiling.count * (share % amount_) / amount_, tiling.count);
  }

  LEAN_HOST_DEVICE static Position Normalised(int64_t pair, int64_t tile, int32_t count) {
    return tile >= count ? Position{pair + 1, 0} : Position{pair, static_cast<int32_t>(tile)};
  }

  // The last share up to `limit` that begins at or before a position.
  LEAN_HOST_DEVICE int64_t ShareAt(Position position, int64_t limit) const {
    int64_t low = 0;
    int64_t high = limit;
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      if (position < Begin(middle)) {
        high = middle - 1;
      } else {
        low = middle;
      }
    }
    return low;
  }

  Stream stream_;
  Schedule schedule_;
  int64_t amount_;
};

class Cut : public BasicCut<ProblemStream> {
 public:
  Cut(const Problem& problem, Schedule schedule, int64_t amount)
      : BasicCut(ProblemStream(problem), schedule, amount) {}
};

}  // namespace lean_attention

#endif  // LEAN_ATTENTION_OPS_DECODE_SCHEDULE_H_
