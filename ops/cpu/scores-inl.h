// Raw dot products of a block of keys with the queries of a group. Included once per instruction
// set.

#if defined(LEAN_ATTENTION_OPS_CPU_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAN_ATTENTION_OPS_CPU_SCORES_INL_H_
#undef LEAN_ATTENTION_OPS_CPU_SCORES_INL_H_
#else
#define LEAN_ATTENTION_OPS_CPU_SCORES_INL_H_
#endif

#include <algorithm>

#include "ops/cpu/blocks-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace lean_attention::cpu {
namespace HWY_NAMESPACE {

// scores[j][r] = q[r] . key j for kRows queries and kKeys keys, rows of `scores`
// PaddedRows(kRows) apart. The operand of which there is less stays in registers; the other streams
// by.
template <ElementType kType, int kRows, int kKeys>
HWY_INLINE void ScoreTile(const float* HWY_RESTRICT q, int64_t stride,
                          const uint8_t* const (&keys)[kKeys], int64_t head_size,
                          float* HWY_RESTRICT scores) {
  constexpr int kPadded = PaddedRows(kRows);
  const FloatTag d;
  FloatVec sum[kKeys * kPadded];
  for (FloatVec& s : sum) s = hn::Zero(d);

  const auto multiply_add = [&](int64_t h, auto load) HWY_ATTR {
    if constexpr (kKeys < kRows) {
      FloatVec key[kKeys];
      for (int j = 0; j < kKeys; ++j) key[j] = load(keys[j], h);
      for (int r = 0; r < kRows; ++r) {
        const FloatVec query = Load(q + r * stride + h);
        for (int j = 0; j < kKeys; ++j) {
          sum[j * kPadded + r] = hn::MulAdd(query, key[j], sum[j * kPadded + r]);
        }
      }
    } else {
      FloatVec query[kRows];
      for (int r = 0; r < kRows; ++r) query[r] = Load(q + r * stride + h);
      for (int j = 0; j < kKeys; ++j) {
        const FloatVec key = load(keys[j], h);
        for (int r = 0; r < kRows; ++r) {
          sum[j * kPadded + r] = hn::MulAdd(query[r], key, sum[j * kPadded + r]);
        }
      }
    }
  };
  const auto whole = [](const uint8_t* key, int64_t h)
                         HWY_ATTR { return Format<kType>::Load(key, h); };
  int64_t h = 0;
  for (; h + 2 * kLanes <= head_size; h += 2 * kLanes) {
    multiply_add(h, whole);
    multiply_add(h + kLanes, whole);
  }
  for (; h + kLanes <= head_size; h += kLanes) multiply_add(h, whole);
  if (const int rest = static_cast<int>(head_size - h); rest > 0) {
    multiply_add(
        h, [&](const uint8_t* key, int64_t i) HWY_ATTR { return LoadFirst<kType>(key, i, rest); });
  }
  StoreSums(sum, scores);
}

// The same for one query, key by key: memory then is read in its order, which the processor's own
// prefetchers follow. (Eight keys side by side reached 0.54 of a plain read on one thread of Zen 4,
// this 0.96.) The multiply-adds of several keys overlap without being written that way; where
// arithmetic is the limit they are better written so.
template <ElementType kType, int kKeys>
HWY_INLINE void ScoreKeys(const float* HWY_RESTRICT q, const uint8_t* const (&keys)[kKeys],
                          int64_t head_size, float* HWY_RESTRICT scores) {
  FloatVec sum[kKeys];
  for (int j = 0; j < kKeys; ++j) {
    sum[j] = hn::Zero(FloatTag());
    int64_t h = 0;
    for (; h + kLanes <= head_size; h += kLanes) {
      sum[j] = hn::MulAdd(Load(q + h), Format<kType>::Load(keys[j], h), sum[j]);
    }
    if (const int rest = static_cast<int>(head_size - h); rest > 0) {
      sum[j] = hn::MulAdd(Load(q + h), LoadFirst<kType>(keys[j], h, rest), sum[j]);
    }
  }
  StoreSums(sum, scores);
}

// The scores of a whole block. Keys past its end, where a step reaches past it, repeat the last.
// A part of the block's rows of V comes in alongside: those of a step at once, since spread over
// its arithmetic they kept memory less busy (0.6 to 0.7 of what a plain read does instead of 0.9).
template <ElementType kType, int kRows>
HWY_INLINE void ScoreRows(const float* q, int64_t stride, const uint8_t* k, const uint8_t* v,
                          int64_t row_bytes, int64_t head_size, int keys, FetchPart part,
                          float* scores) {
  constexpr int kPadded = PaddedRows(kRows);
  constexpr int kKeys = RegisterTile<kType, kRows>::kKeys;
  constexpr int kFewKeys = 4 / kPadded;  // that make a whole StoreSums
  const auto step = [&](auto count, int first) HWY_ATTR {
    constexpr int kCount = decltype(count)::value;
    const int64_t fetched = (int64_t{part.index} * keys + first) * row_bytes / part.count;
    Fetch<kType, kRows>(v + fetched, std::min(kCount, keys - first) * row_bytes / part.count);
    const uint8_t* key[kCount];
    for (int i = 0; i < kCount; ++i) key[i] = k + std::min(first + i, keys - 1) * row_bytes;
    if constexpr (kRows == 1 && !IsQuantised(kType)) {
      ScoreKeys<kType>(q, key, head_size, scores + first);
    } else {
      ScoreTile<kType, kRows, kCount>(q, stride, key, head_size, scores + first * kPadded);
    }
  };
  int j = 0;
  for (; j + kKeys <= keys; j += kKeys) step(std::integral_constant<int, kKeys>(), j);
  for (; j < keys; j += kFewKeys) step(std::integral_constant<int, kFewKeys>(), j);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace lean_attention::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // per-target include guard
