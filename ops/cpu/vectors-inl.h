// Loads, stores and reductions that hide the element type. Included once per instruction set.

#if defined(LEAN_ATTENTION_OPS_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAN_ATTENTION_OPS_CPU_VECTORS_INL_H_
#undef LEAN_ATTENTION_OPS_CPU_VECTORS_INL_H_
#else
#define LEAN_ATTENTION_OPS_CPU_VECTORS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace lean_attention::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Wider vectors would need another transpose in SumsOf8, and memory, not arithmetic, is the limit.
using FloatTag = hn::CappedTag<float, 8>;
using FloatVec = hn::Vec<FloatTag>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
static_assert(kLanes == 4 || kLanes == 8, "SumsOf8 knows vectors of 4 and 8 floats");

HWY_INLINE FloatVec Load(const float* p) { return hn::LoadU(FloatTag(), p); }

HWY_INLINE FloatVec Load(const hwy::float16_t* p) {
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  return hn::PromoteTo(FloatTag(), hn::LoadU(half, p));
}

HWY_INLINE void Store(FloatVec v, float* p) { hn::StoreU(v, FloatTag(), p); }

HWY_INLINE void Store(FloatVec v, hwy::float16_t* p) {
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  hn::StoreU(hn::DemoteTo(half, v), half, p);
}

// The first `count` < kLanes elements, zeros after them; touches no byte beyond.
template <typename T>
HWY_INLINE FloatVec LoadFirst(const T* p, int count) {
  alignas(32) T lanes[kLanes] = {};
  memcpy(lanes, p, count * sizeof(T));
  return Load(lanes);
}

template <typename T>
HWY_INLINE void StoreFirst(FloatVec v, T* p, int count) {
  alignas(32) T lanes[kLanes];
  Store(v, lanes);
  memcpy(p, lanes, count * sizeof(T));
}

// to[i] = map(from[i]) for i < count, in float32.
template <typename From, typename To, typename Map>
HWY_INLINE void Transform(const From* from, int64_t count, To* to, Map map) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(map(Load(from + i)), to + i);
  const int rest = static_cast<int>(count - i);
  if (rest > 0) StoreFirst(map(LoadFirst(from + i, rest)), to + i, rest);
}

template <typename From, typename To>
HWY_INLINE void Convert(const From* from, int64_t count, To* to) {
  Transform(from, count, to, [](FloatVec v) HWY_ATTR { return v; });
}

// [a, b]: adds halves so that two levels of it, the second on pairs of lanes, leave one sum of each
// of four vectors per 128-bit block.
HWY_INLINE FloatVec AddInterleaved(FloatVec a, FloatVec b) {
  const FloatTag d;
  return hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
}

HWY_INLINE FloatVec AddInterleavedPairs(FloatVec ab, FloatVec cd) {
  const FloatTag d;
  const hn::RepartitionToWide<FloatTag> pairs;
  const auto x = hn::BitCast(pairs, ab);
  const auto y = hn::BitCast(pairs, cd);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, x, y)),
                 hn::BitCast(d, hn::InterleaveUpper(pairs, x, y)));
}

// sums[i] = the sum of vector i, of eight, given as four pairs after AddInterleaved.
HWY_INLINE void SumsOf8(FloatVec v01, FloatVec v23, FloatVec v45, FloatVec v67, float* sums) {
  const FloatVec low = AddInterleavedPairs(v01, v23);
  const FloatVec high = AddInterleavedPairs(v45, v67);
  if constexpr (kLanes == 8) {
    const FloatTag d;
    Store(hn::Add(hn::ConcatLowerLower(d, high, low), hn::ConcatUpperUpper(d, high, low)), sums);
  } else {
    Store(low, sums);
    Store(high, sums + 4);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace lean_attention::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // per-target include guard
