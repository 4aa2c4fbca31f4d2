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

#include <hwy/cache_control.h>
#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ops/cpu/vectors-inl.h"
#include "ops/decode/softmax_state.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace lean_attention::cpu {
namespace HWY_NAMESPACE {

inline constexpr int kKeysPerStep = 8;  // keys whose scores SumsOf8 finishes together
inline constexpr int kMaxBlockKeys = 64;
inline constexpr int kBlockBytes = 16 * 1024;  // of K, and as much of V: half of a small L1 each
inline constexpr int kCacheLine = 64;

// Keys per block, a multiple of kKeysPerStep.
HWY_INLINE int BlockKeys(int64_t row_bytes) {
  const int64_t keys = kBlockBytes / row_bytes / kKeysPerStep * kKeysPerStep;
  return static_cast<int>(std::clamp<int64_t>(keys, 16, kMaxBlockKeys));
}

// The softmax state of `rows` query rows.
struct State {
  float* o;  // [rows, stride]
  float* m;  // [rows]
  float* l;  // [rows]
};

// What all tiles of a piece share. Row r is head r % G of the group at query token r / G.
template <typename T>
struct Rows {
  const float* q;  // [count, stride], rotated, zero from head_size to stride
  int count;
  int64_t stride;  // floats; a multiple of kLanes
  int64_t head_size;
  float scale;
  float softcap;                 // 0: none
  const T* const* bias;          // [count] rows indexed by absolute position; null: none
  const int64_t* visible_begin;  // [count] absolute positions, inclusive
  const int64_t* visible_end;    // [count] exclusive
};

// Keys [begin, end) of one tile, all of them visible to at least one row.
template <typename T>
struct Tile {
  const T* k;  // row of position 0, rows head_size apart
  const T* v;
  int64_t begin;  // absolute positions
  int64_t end;
  int64_t length;  // valid rows of the sequence; nothing at or past it is read
};

// Fetches [from, from + bytes) to the L1 cache.
HWY_INLINE void PrefetchBytes(const void* from, int64_t bytes) {
  const char* p = static_cast<const char*>(from);
  for (int64_t i = 0; i < bytes; i += kCacheLine) hwy::Prefetch(p + i);
}

// Adds q[r] . k[j] for kRows queries and kKeys keys to the pair sums that SumsOf8 takes:
// pairs[r][j / 2] for j = first, first + 1, ...
template <int kRows, int kKeys, typename T>
HWY_INLINE void DotProducts(const float* HWY_RESTRICT q, int64_t stride, const T* const* keys,
                            int64_t head_size, float* HWY_RESTRICT pairs) {
  static_assert(kKeys % 2 == 0);
  const FloatTag d;
  FloatVec sum[kRows][kKeys];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kKeys; ++j) sum[r][j] = hn::Zero(d);
  }
  int64_t h = 0;
  for (; h + kLanes <= head_size; h += kLanes) {
    FloatVec query[kRows];
    for (int r = 0; r < kRows; ++r) query[r] = Load(q + r * stride + h);
    for (int j = 0; j < kKeys; ++j) {
      const FloatVec key = Load(keys[j] + h);
      for (int r = 0; r < kRows; ++r) sum[r][j] = hn::MulAdd(query[r], key, sum[r][j]);
    }
  }
  if (const int rest = static_cast<int>(head_size - h); rest > 0) {
    for (int j = 0; j < kKeys; ++j) {
      const FloatVec key = LoadFirst(keys[j] + h, rest);
      for (int r = 0; r < kRows; ++r) {
        sum[r][j] = hn::MulAdd(Load(q + r * stride + h), key, sum[r][j]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kKeys; j += 2) {
      Store(AddInterleaved(sum[r][j], sum[r][j + 1]),
            pairs + (r * (kKeysPerStep / 2) + j / 2) * kLanes);
    }
  }
}

// scores[r][0..8) = q[r] . keys[0..8), rows of `scores` kMaxBlockKeys apart.
template <int kRows, typename T>
HWY_INLINE void ScoreStep(const float* q, int64_t stride, const T* const* keys, int64_t head_size,
                          float* scores) {
  // As many accumulators as leave registers for the queries and a key, of 16.
  constexpr int kKeys = kRows == 1 ? 8 : (kRows == 4 ? 2 : 4);
  alignas(64) float pairs[kRows * (kKeysPerStep / 2) * kLanes];
  for (int j = 0; j < kKeysPerStep; j += kKeys) {
    DotProducts<kRows, kKeys>(q, stride, keys + j, head_size, pairs + j / 2 * kLanes);
  }
  for (int r = 0; r < kRows; ++r) {
    const float* p = pairs + r * (kKeysPerStep / 2) * kLanes;
    SumsOf8(Load(p), Load(p + kLanes), Load(p + 2 * kLanes), Load(p + 3 * kLanes),
            scores + r * kMaxBlockKeys);
  }
}

// o[r] = o[r] * decay[r] + sum_j p[r][j] v[j] for kRows rows and kColumns vectors of columns. For
// each key it fetches as many bytes as it reads, from `fetch` on.
template <int kRows, int kColumns, bool kFetch, typename T>
HWY_INLINE void SumValues(const float* HWY_RESTRICT p, const float* HWY_RESTRICT decay,
                          const T* HWY_RESTRICT v, int64_t head_size, int keys,
                          float* HWY_RESTRICT o, int64_t stride, const T* fetch) {
  constexpr int kWidth = kColumns * kLanes;
  const FloatTag d;
  FloatVec sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    const FloatVec factor = hn::Set(d, decay[r]);
    for (int c = 0; c < kColumns; ++c) {
      sum[r][c] = hn::Mul(Load(o + r * stride + c * kLanes), factor);
    }
  }
  for (int j = 0; j < keys; ++j) {
    if constexpr (kFetch) PrefetchBytes(fetch + j * kWidth, kWidth * sizeof(T));
    FloatVec weight[kRows];
    for (int r = 0; r < kRows; ++r) weight[r] = hn::Set(d, p[r * kMaxBlockKeys + j]);
    for (int c = 0; c < kColumns; ++c) {
      const FloatVec value = Load(v + j * head_size + c * kLanes);
      for (int r = 0; r < kRows; ++r) sum[r][c] = hn::MulAdd(weight[r], value, sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) Store(sum[r][c], o + r * stride + c * kLanes);
  }
}

// The columns past the last whole vector, of head sizes that are no multiple of one.
template <typename T>
HWY_INLINE void SumLastValues(int rows, const float* p, const float* decay, const T* v,
                              int64_t head_size, int keys, float* o, int64_t stride, int rest) {
  const FloatTag d;
  for (int r = 0; r < rows; ++r) {
    FloatVec sum = hn::Mul(Load(o + r * stride), hn::Set(d, decay[r]));
    for (int j = 0; j < keys; ++j) {
      const FloatVec value = LoadFirst(v + j * head_size, rest);
      sum = hn::MulAdd(hn::Set(d, p[r * kMaxBlockKeys + j]), value, sum);
    }
    Store(sum, o + r * stride);
  }
}

// All columns. With kFetch the K rows of the next block, as many as are summed, come in alongside,
// spread evenly over the work.
template <int kRows, bool kFetch, typename T>
HWY_INLINE void SumBlock(const float* p, const float* decay, const T* v, int64_t head_size,
                         int keys, float* o, int64_t stride, const T* next_k) {
  // At least eight sums in flight cover the latency of a multiply-add; with the weights and a value
  // they fit sixteen registers.
  constexpr int kColumns = kRows == 1 ? 8 : (kRows == 4 ? 2 : 4);
  constexpr int64_t kStep = kColumns * kLanes;
  int64_t h = 0;
  for (; h + kStep <= head_size; h += kStep) {
    SumValues<kRows, kColumns, kFetch>(p, decay, v + h, head_size, keys, o + h, stride,
                                       next_k + h * keys);
  }
  for (; h + kLanes <= head_size; h += kLanes) {
    SumValues<kRows, 1, kFetch>(p, decay, v + h, head_size, keys, o + h, stride, next_k + h * keys);
  }
  if (const int rest = static_cast<int>(head_size - h); rest > 0) {
    SumLastValues(kRows, p, decay, v + h, head_size, keys, o + h, stride, rest);
  }
}

// Calls body(integral constant, first row) for runs of at most four rows.
template <typename Body>
HWY_INLINE void ForRowBlocks(int rows, Body body) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) body(std::integral_constant<int, 4>(), r);
  switch (rows - r) {
    case 3:
      body(std::integral_constant<int, 3>(), r);
      break;
    case 2:
      body(std::integral_constant<int, 2>(), r);
      break;
    case 1:
      body(std::integral_constant<int, 1>(), r);
      break;
    default:
      break;
  }
}

// Raw dot products of a block. Keys past the block's end repeat its last one; their scores are
// masked by SoftmaxBlock.
template <typename T>
HWY_INLINE void ScoreBlock(const Rows<T>& rows, const Tile<T>& tile, int64_t begin, int keys,
                           float* scores) {
  const int64_t row_bytes = rows.head_size * static_cast<int64_t>(sizeof(T));
  for (int j = 0; j < keys; j += kKeysPerStep) {
    const T* key[kKeysPerStep];
    for (int i = 0; i < kKeysPerStep; ++i) {
      key[i] = tile.k + (begin + std::min(j + i, keys - 1)) * rows.head_size;
    }
    PrefetchBytes(tile.v + (begin + j) * rows.head_size,
                  std::min(kKeysPerStep, keys - j) * row_bytes);
    ForRowBlocks(rows.count, [&](auto block, int r) HWY_ATTR {
      ScoreStep<decltype(block)::value>(rows.q + r * rows.stride, rows.stride, key, rows.head_size,
                                        scores + r * kMaxBlockKeys + j);
    });
  }
}

// Raw dot products -> weights exp(score - m), in place; updates the row's m and l and returns what
// its earlier sums must be multiplied by. Order: scale, softcap, bias, mask, softmax.
template <typename T>
HWY_INLINE float SoftmaxBlock(const Rows<T>& rows, int r, int64_t begin, int keys, float* scores,
                              float* m, float* l) {
  const FloatTag d;
  const FloatVec minus_inf = hn::Set(d, -INFINITY);
  const FloatVec scale = hn::Set(d, rows.scale);
  const FloatVec lanes = hn::Iota(d, 0.0f);
  // Positions relative to the block; small enough to be exact in float32.
  const auto relative = [&](int64_t position) HWY_ATTR {
    return static_cast<float>(std::clamp<int64_t>(position - begin, 0, keys));
  };
  const float first = relative(rows.visible_begin[r]);
  const float last = relative(rows.visible_end[r]);

  FloatVec block_max = minus_inf;
  FloatVec not_finite = hn::Zero(d);  // stays 0 unless a score is NaN or a dot product infinite
  for (int j = 0; j < keys; j += kLanes) {
    FloatVec s = Load(scores + j);
    not_finite = hn::MulAdd(s, hn::Zero(d), not_finite);
    s = hn::Mul(s, scale);
    if (rows.softcap > 0) {
      s = hn::Mul(hn::Set(d, rows.softcap), hn::Tanh(d, hn::Mul(s, hn::Set(d, 1 / rows.softcap))));
    }
    if (rows.bias != nullptr) {
      const T* bias = rows.bias[r] + begin + j;
      const int rest = keys - j;
      s = hn::Add(s, rest >= kLanes ? Load(bias) : LoadFirst(bias, rest));
      // The maximum and exp drop a NaN. (Ne is false for one.)
      not_finite = hn::Add(not_finite, hn::IfThenZeroElse(hn::Eq(s, s), s));
    }
    const FloatVec index = hn::Add(lanes, hn::Set(d, static_cast<float>(j)));
    const auto visible = hn::And(hn::Ge(index, hn::Set(d, first)), hn::Lt(index, hn::Set(d, last)));
    s = hn::IfThenElse(visible, s, minus_inf);
    block_max = hn::Max(block_max, s);
    Store(s, scores + j);
  }

  const float m_new = std::max(*m, hn::GetLane(hn::MaxOfLanes(d, block_max)));
  // Nothing visible so far: any finite reference gives exp(-inf) = 0 and never inf - inf.
  const FloatVec reference = hn::Set(d, m_new == -INFINITY ? 0.0f : m_new);
  FloatVec sum = not_finite;
  for (int j = 0; j < keys; j += kLanes) {
    const FloatVec p = hn::Exp(d, hn::Sub(Load(scores + j), reference));
    sum = hn::Add(sum, p);
    Store(p, scores + j);
  }
  const float decay = WeightOf(*m, m_new);
  *m = m_new;
  *l = *l * decay + hn::GetLane(hn::SumOfLanes(d, sum));
  return decay;
}

// Reduces a tile from a fresh state. `scores` has room for [rows.count, kMaxBlockKeys + kLanes].
template <typename T>
HWY_INLINE void ReduceTile(const Rows<T>& rows, const Tile<T>& tile, float* scores, State state) {
  std::fill_n(state.o, rows.count * rows.stride, 0.0f);
  std::fill_n(state.m, rows.count, -INFINITY);
  std::fill_n(state.l, rows.count, 0.0f);

  const int block_keys = BlockKeys(rows.head_size * static_cast<int64_t>(sizeof(T)));
  for (int64_t begin = tile.begin; begin < tile.end; begin += block_keys) {
    const int keys = static_cast<int>(std::min<int64_t>(block_keys, tile.end - begin));
    ScoreBlock(rows, tile, begin, keys, scores);
    const bool more = begin + keys + block_keys <= tile.length;
    ForRowBlocks(rows.count, [&](auto block, int r) HWY_ATTR {
      constexpr int kRows = decltype(block)::value;
      float decay[kRows];
      for (int i = 0; i < kRows; ++i) {
        decay[i] = SoftmaxBlock(rows, r + i, begin, keys, scores + (r + i) * kMaxBlockKeys,
                                state.m + r + i, state.l + r + i);
      }
      const auto sum = [&](auto fetch) HWY_ATTR {
        SumBlock<kRows, decltype(fetch)::value>(
            scores + r * kMaxBlockKeys, decay, tile.v + begin * rows.head_size, rows.head_size,
            keys, state.o + r * rows.stride, rows.stride, tile.k + (begin + keys) * rows.head_size);
      };
      if (r == 0 && more) {
        sum(std::true_type());
      } else {
        sum(std::false_type());
      }
    });
  }
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
