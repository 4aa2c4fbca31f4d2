// One tile: from queries, keys and values to a softmax state. Included once per instruction set.
//
// A tile is worked in blocks of keys that fit the L1 cache. Memory must never idle: while the
// scores of a block are computed its V rows are fetched, and while they are summed the next K rows
// are.

#if defined(LEAN_ATTENTION_OPS_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAN_ATTENTION_OPS_CPU_TILE_INL_H_
#undef LEAN_ATTENTION_OPS_CPU_TILE_INL_H_
#else
#define LEAN_ATTENTION_OPS_CPU_TILE_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "ops/cpu/blocks-inl.h"
#include "ops/cpu/scores-inl.h"
#include "ops/cpu/softmax-inl.h"
#include "ops/cpu/values-inl.h"
#include "ops/decode/softmax_state.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace lean_attention::cpu {
namespace HWY_NAMESPACE {

// The softmax state of all query rows of a KV head.
struct State {
  float* o;  // [rows, stride]
  float* m;  // [rows] in units of log 2
  float* l;  // [rows]
};

// Keys [begin, end) of one tile, all of them visible to at least one row.
struct Tile {
  const uint8_t* k;  // row of position 0
  const uint8_t* v;
  int64_t row_bytes;
  int64_t begin;  // absolute positions
  int64_t end;
  int64_t length;         // valid rows of the sequence; nothing at or past it is read
  const uint8_t* next_k;  // where K goes on after the sequence, to fetch
};

// Scratch of a share: scores [rows rounded up to kBlockRows, kMaxBlockKeys], and the running
// softmax [rows / kBlockRows rounded up, 3, kMaxLanes].
struct TileScratch {
  float* scores;
  float* running;
};

// Reduces a tile from a fresh state.
template <ElementType kType>
HWY_INLINE void ReduceTile(const Rows& rows, const Tile& tile, const TileScratch& scratch,
                           State state) {
  static_assert(kLanes <= kMaxLanes);
  const auto scores = [&](int r) { return scratch.scores + r * kMaxBlockKeys; };
  const auto running = [&](int r) -> RunningSoftmax {
    float* block = scratch.running + r / kBlockRows * 3 * kMaxLanes;
    return {block, block + kMaxLanes, block + 2 * kMaxLanes};
  };
  const auto part = [&](int r) -> FetchPart {
    return {r / kBlockRows, (rows.count + kBlockRows - 1) / kBlockRows};
  };
  std::fill_n(state.o, rows.count * rows.stride, 0.0f);
  for (int r = 0; r < rows.count; r += kBlockRows) {
    std::fill_n(running(r).m, kLanes, -INFINITY);
    std::fill_n(running(r).l, kLanes, 0.0f);
  }

  const int block_keys = BlockKeys(tile.row_bytes);
  for (int64_t begin = tile.begin; begin < tile.end; begin += block_keys) {
    const int keys = static_cast<int>(std::min<int64_t>(block_keys, tile.end - begin));
    const uint8_t* k = tile.k + begin * tile.row_bytes;
    const uint8_t* v = tile.v + begin * tile.row_bytes;
    ForRowBlocks(rows.count, [&](auto block, int r) HWY_ATTR {
      constexpr int kRows = decltype(block)::value;
      const float* q = rows.q + r * rows.stride;
      ScoreRows<kType, kRows>(q, rows.stride, k, v, tile.row_bytes, rows.head_size, keys, part(r),
                              scores(r));
    });
    const uint8_t* next_k = begin + keys < tile.length ? k + keys * tile.row_bytes : tile.next_k;
    ForRowBlocks(rows.count, [&](auto block, int r) HWY_ATTR {
      constexpr int kRows = decltype(block)::value;
      SoftmaxBlock<kRows>(rows, r, begin, keys, scores(r), running(r));
      const ValueBlock values = {
          scores(r), running(r).decay,          v,           tile.row_bytes, rows.head_size,
          keys,      state.o + r * rows.stride, rows.stride, next_k,         part(r)};
      SumRows<kType, kRows>(values);
    });
  }
  ForRowBlocks(rows.count, [&](auto block, int r) {
    constexpr int kRows = decltype(block)::value;
    const RunningSoftmax of = running(r);
    for (int i = 0; i < kRows; ++i) {
      state.m[r + i] = of.m[i];
      state.l[r + i] = 0;
      for (int lane = i; lane < kLanes; lane += PaddedRows(kRows)) state.l[r + i] += of.l[lane];
    }
  });
}

// into = into + from, always by this expression, `into` being the earlier part of the sequence.
HWY_INLINE void MergeStates(int rows, int64_t stride, State into, State from) {
  const FloatTag d;
  for (int r = 0; r < rows; ++r) {
    const MergeWeights w = Merge(into.m[r], from.m[r]);
    into.m[r] = w.m;
    into.l[r] = into.l[r] * w.a + from.l[r] * w.b;
    const FloatVec a = hn::Set(d, w.a);
    const FloatVec b = hn::Set(d, w.b);
    float* HWY_RESTRICT o = into.o + r * stride;
    const float* HWY_RESTRICT other = from.o + r * stride;
    for (int64_t h = 0; h < stride; h += kLanes) {
      Store(hn::MulAdd(Load(other + h), b, hn::Mul(Load(o + h), a)), o + h);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace lean_attention::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // per-target include guard
