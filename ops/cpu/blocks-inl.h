// How a tile is taken apart: blocks of keys that fit the L1 cache, blocks of query rows that fit
// the registers. Included once per instruction set.

#if defined(LEAN_ATTENTION_OPS_CPU_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAN_ATTENTION_OPS_CPU_BLOCKS_INL_H_
#undef LEAN_ATTENTION_OPS_CPU_BLOCKS_INL_H_
#else
#define LEAN_ATTENTION_OPS_CPU_BLOCKS_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "ops/cpu/vectors-inl.h"
#include "ops/cpu/workspace.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace lean_attention::cpu {
namespace HWY_NAMESPACE {

inline constexpr int64_t kCacheLine = 64;

// Whether what is fetched goes to the L2 cache instead of to the L1 cache. A core of Zen 4 keeps 24
// misses of its L1 cache in flight, worth 14 GB/s, and more of its L2 cache; Zen 3, which has no
// AVX-512, did better with the L1 cache, and so does what arithmetic bounds (docs/performance.md).
template <ElementType kType>
inline constexpr bool kFetchToL2 = HWY_TARGET == HWY_AVX3 && !IsQuantised(kType);

// Bytes ahead of its place in the stream. One row reads memory in its order, which the processor
// follows by itself: there it is only in the way.
template <int kRows>
inline constexpr int64_t kFetchAhead = kRows == 1 ? 0 : 2048;

// Brings the part [from, from + bytes) of a stream, or what comes after it, closer.
template <ElementType kType, int kRows>
HWY_INLINE void Fetch(const uint8_t* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kCacheLine) {
    if constexpr (kFetchToL2<kType>) {
      __builtin_prefetch(from + i + kFetchAhead<kRows>, 0, 2);
    } else {
      __builtin_prefetch(from + i, 0, 3);
    }
  }
}

// Of the rows to fetch during a pass over a block, the part that one block of query rows sees to.
struct FetchPart {
  int index;
  int count;
};

// Query rows as they lie beside each other among a block's scores. Three would not divide a vector.
constexpr int PaddedRows(int rows) { return rows == 3 ? 4 : rows; }

// What a block of query rows takes at a time: keys for their scores, vectors of columns for their
// values. Twelve sums in flight hide the latency of a multiply-add and leave room for the operands,
// but for those that int4 is unpacked with: a sum that no longer fits the registers costs two
// fifths.
template <ElementType kType, int kRows>
struct RegisterTile {
  static constexpr int kOfFourRows = kType == ElementType::kInt4 ? 2 : 3;
  static constexpr int kKeys = kRows == 1 ? 8 : (kRows == 2 ? 6 : (kRows == 3 ? 4 : kOfFourRows));
  static constexpr int kColumns = kRows == 1 ? 8 : (kRows == 4 ? kOfFourRows : 4);
};

// Calls body(std::integral_constant<int, rows>, first row) for runs of at most kBlockRows rows.
template <typename Body>
HWY_INLINE void ForRowBlocks(int rows, Body body) {
  static_assert(kBlockRows == 4);
  int r = 0;
  for (; r + 4 <= rows; r += 4) body(std::integral_constant<int, 4>(), r);
  switch (rows - r) {
    case 3:
      return body(std::integral_constant<int, 3>(), r);
    case 2:
      return body(std::integral_constant<int, 2>(), r);
    case 1:
      return body(std::integral_constant<int, 1>(), r);
    default:
      return;
  }
}

// What the query rows of a KV head ask of its keys. Row r is head r % G of the group at query token
// r / G.
struct Rows {
  const float* q;  // [count, stride], rotated, zero from head_size to stride
  int count;
  int64_t stride;  // floats; a multiple of kLanes
  int64_t head_size;
  float scale;
  float softcap;  // 0: none
  ElementType bias_type;
  const void* const* bias;       // [count] rows indexed by absolute position; null: none
  const int64_t* visible_begin;  // [count] absolute positions, inclusive
  const int64_t* visible_end;    // [count] exclusive
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace lean_attention::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // per-target include guard
