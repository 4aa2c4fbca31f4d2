// How a tile is taken apart: blocks of keys that fit the L1 cache, blocks of query rows that fit
// the registers. Included once per instruction set.

#if defined(LEAN_ATTENTION_OPS_CPU_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAN_ATTENTION_OPS_CPU_BLOCKS_INL_H_
#undef LEAN_ATTENTION_OPS_CPU_BLOCKS_INL_H_
#else
#define LEAN_ATTENTION_OPS_CPU_BLOCKS_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <type_traits>

#include "ops/cpu/vectors-inl.h"
#include "ops/cpu/workspace.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace lean_attention::cpu {
namespace HWY_NAMESPACE {

inline constexpr int64_t kCacheLine = 64;

// Brings [from, from + bytes) to the L1 cache.
HWY_INLINE void Fetch(const uint8_t* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kCacheLine) hwy::Prefetch(from + i);
}

// Query rows as they lie beside each other among a block's scores. Three would not divide a vector.
constexpr int PaddedRows(int rows) { return rows == 3 ? 4 : rows; }

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
