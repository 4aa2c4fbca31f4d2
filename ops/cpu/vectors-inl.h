// Vectors of float32 and what memory holds in their place. Included once per instruction set.

#if defined(LEAN_ATTENTION_OPS_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAN_ATTENTION_OPS_CPU_VECTORS_INL_H_
#undef LEAN_ATTENTION_OPS_CPU_VECTORS_INL_H_
#else
#define LEAN_ATTENTION_OPS_CPU_VECTORS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "ops/decode/problem.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace lean_attention::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Wider vectors would need another transpose in StoreSums, and memory, not arithmetic, is the
// limit.
using FloatTag = hn::CappedTag<float, 8>;
using FloatVec = hn::Vec<FloatTag>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
static_assert(kLanes == 4 || kLanes == 8, "StoreSums knows vectors of 4 and 8 floats");

HWY_INLINE FloatVec Load(const float* p) { return hn::LoadU(FloatTag(), p); }

HWY_INLINE void Store(FloatVec v, float* p) { hn::StoreU(v, FloatTag(), p); }

// An element type in memory. Load reads the kLanes elements from element `i` of `row` on, i being a
// multiple of kLanes. An int4 comes out times 16^lane; all others as they are.
template <ElementType kType>
struct Format;

template <>
struct Format<ElementType::kFloat32> {
  static HWY_INLINE FloatVec Load(const uint8_t* row, int64_t i) {
    return hn::LoadU(FloatTag(), reinterpret_cast<const float*>(row) + i);
  }
  static HWY_INLINE void Store(FloatVec v, uint8_t* row, int64_t i) {
    hn::StoreU(v, FloatTag(), reinterpret_cast<float*>(row) + i);
  }
};

#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_EMU128
// Highway's own conversions round towards zero and know neither infinities nor NaN where the
// processor has none.
template <>
struct Format<ElementType::kFloat16> {
  using Word = hn::Rebind<uint32_t, FloatTag>;
  using Half = hn::Rebind<uint16_t, FloatTag>;
  static HWY_INLINE FloatVec Load(const uint8_t* row, int64_t i) {
    const FloatTag d;
    const Word word;
    const auto half = hn::LoadU(Half(), reinterpret_cast<const uint16_t*>(row) + i);
    const auto bits = hn::PromoteTo(word, half);
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(word, 0x7FFFu)));
    // The exponents' biases differ by 112; this way subnormal numbers come out right too.
    const auto finite = hn::BitCast(word, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f)));
    const auto special = hn::Or(magnitude, hn::Set(word, 0x7F800000u));
    const auto is_finite = hn::Lt(magnitude, hn::Set(word, 0x7C00u << 13));
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(word, 0x8000u)));
    return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(is_finite, finite, special)));
  }
  // Rounds to nearest, ties to even; a NaN stays one.
  static HWY_INLINE void Store(FloatVec v, uint8_t* row, int64_t i) {
    const FloatTag d;
    const Word word;
    const auto bits = hn::BitCast(word, v);
    const auto magnitude = hn::And(bits, hn::Set(word, 0x7FFFFFFFu));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(word, 1u));
    const auto rounded = hn::Add(magnitude, hn::Add(odd, hn::Set(word, 0xFFFu)));
    const auto normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(word, 112u << 23)));
    // A sum with 1/2, whose last bit is worth 2^-24, rounds as a subnormal number must.
    const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
    const auto subnormal = hn::Sub(hn::BitCast(word, shifted), hn::Set(word, 0x3F000000u));
    const auto is_subnormal = hn::Lt(magnitude, hn::Set(word, 0x38800000u));  // below 2^-14
    const auto is_large = hn::Gt(magnitude, hn::Set(word, 0x477FFFFFu));      // from 2^16 on
    const auto is_nan = hn::Gt(magnitude, hn::Set(word, 0x7F800000u));
    auto half = hn::IfThenElse(is_subnormal, subnormal, normal);
    half = hn::IfThenElse(is_large, hn::Set(word, 0x7C00u), half);
    half = hn::IfThenElse(is_nan, hn::Set(word, 0x7E00u), half);
    half = hn::Or(half, hn::And(hn::ShiftRight<16>(bits), hn::Set(word, 0x8000u)));
    hn::StoreU(hn::TruncateTo(Half(), half), Half(), reinterpret_cast<uint16_t*>(row) + i);
  }
};
#else
template <>
struct Format<ElementType::kFloat16> {
  using Half = hn::Rebind<hwy::float16_t, FloatTag>;
  static HWY_INLINE FloatVec Load(const uint8_t* row, int64_t i) {
    return hn::PromoteTo(FloatTag(),
                         hn::LoadU(Half(), reinterpret_cast<const hwy::float16_t*>(row) + i));
  }
  static HWY_INLINE void Store(FloatVec v, uint8_t* row, int64_t i) {
    hn::StoreU(hn::DemoteTo(Half(), v), Half(), reinterpret_cast<hwy::float16_t*>(row) + i);
  }
};
#endif

template <>
struct Format<ElementType::kBFloat16> {
  using Word = hn::Rebind<uint32_t, FloatTag>;
  using Half = hn::Rebind<uint16_t, FloatTag>;
  static HWY_INLINE FloatVec Load(const uint8_t* row, int64_t i) {
    const auto half = hn::LoadU(Half(), reinterpret_cast<const uint16_t*>(row) + i);
    return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(Word(), half)));
  }
  // Rounds to nearest, ties to even; a NaN keeps its sign and stays one.
  static HWY_INLINE void Store(FloatVec v, uint8_t* row, int64_t i) {
    const Word word;
    const auto bits = hn::BitCast(word, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(word, 1u));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(word, 0x7FFFu)));
    const auto quiet = hn::Or(bits, hn::Set(word, 0x400000u));
    const auto is_number = hn::Eq(v, v);
    const auto kept = hn::IfThenElse(hn::RebindMask(word, is_number), rounded, quiet);
    hn::StoreU(hn::TruncateTo(Half(), hn::ShiftRight<16>(kept)), Half(),
               reinterpret_cast<uint16_t*>(row) + i);
  }
};

template <>
struct Format<ElementType::kInt8> {
  static HWY_INLINE FloatVec Load(const uint8_t* row, int64_t i) {
    const hn::Rebind<int8_t, FloatTag> bytes;
    const hn::Rebind<int32_t, FloatTag> words;
    const auto value = hn::LoadU(bytes, reinterpret_cast<const int8_t*>(row) + i);
    return hn::ConvertTo(FloatTag(), hn::PromoteTo(words, value));
  }
};

// Four bits at a time would need a shift per lane. Instead each lane of a word that holds all
// values keeps its own bits in their place: value * 16^lane, exact in float32, and what is computed
// from them is scaled back by LaneFactors.
template <>
struct Format<ElementType::kInt4> {
  static HWY_INLINE FloatVec Load(const uint8_t* row, int64_t i) {
    static constexpr uint32_t kMask[8] = {0xF,     0xF0,     0xF00,     0xF000,
                                          0xF0000, 0xF00000, 0xF000000, 0xF0000000};
    static constexpr uint32_t kEight[8] = {0x8,     0x80,     0x800,     0x8000,
                                           0x80000, 0x800000, 0x8000000, 0x80000000};
    const hn::Rebind<uint32_t, FloatTag> words;
    std::conditional_t<kLanes == 8, uint32_t, uint16_t> packed;
    memcpy(&packed, row + i / 2, sizeof(packed));
    const auto own = hn::And(hn::Set(words, packed), hn::LoadU(words, kMask));
    const auto number = hn::Sub(own, hn::LoadU(words, kEight));
    return hn::ConvertTo(FloatTag(), hn::BitCast(hn::RebindToSigned<FloatTag>(), number));
  }

  // 16^-lane.
  static HWY_INLINE FloatVec LaneFactors() {
    static constexpr float kFactors[8] = {1.0f,     0x1p-4f,  0x1p-8f,  0x1p-12f,
                                          0x1p-16f, 0x1p-20f, 0x1p-24f, 0x1p-28f};
    return hn::LoadU(FloatTag(), kFactors);
  }
};

// The `count` < kLanes elements from element `i` on, zero bits after them; touches no byte beyond.
template <ElementType kType>
HWY_INLINE FloatVec LoadFirst(const uint8_t* row, int64_t i, int count) {
  alignas(32) uint8_t lanes[kLanes * sizeof(float)] = {};
  memcpy(lanes, row + BytesOf(kType, i), BytesOf(kType, count));
  return Format<kType>::Load(lanes, 0);
}

template <ElementType kType>
HWY_INLINE void StoreFirst(FloatVec v, uint8_t* row, int64_t i, int count) {
  alignas(32) uint8_t lanes[kLanes * sizeof(float)];
  Format<kType>::Store(v, lanes, 0);
  memcpy(row + BytesOf(kType, i), lanes, BytesOf(kType, count));
}

// Calls body(std::integral_constant<ElementType, type>).
template <typename Body>
HWY_INLINE void WithFloatType(ElementType type, Body body) {
  switch (type) {
    case ElementType::kFloat16:
      return body(std::integral_constant<ElementType, ElementType::kFloat16>());
    case ElementType::kBFloat16:
      return body(std::integral_constant<ElementType, ElementType::kBFloat16>());
    default:
      return body(std::integral_constant<ElementType, ElementType::kFloat32>());
  }
}

// to[j] = element index + j of a tensor of a float type, j < count.
HWY_INLINE void ReadFloats(ElementType type, const void* tensor, int64_t index, int64_t count,
                           float* to) {
  WithFloatType(type, [&](auto constant) HWY_ATTR {
    constexpr ElementType kType = decltype(constant)::value;
    const uint8_t* row = static_cast<const uint8_t*>(tensor) + BytesOf(kType, index);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) Store(Format<kType>::Load(row, i), to + i);
    const int rest = static_cast<int>(count - i);
    if (rest > 0) {
      StoreFirst<ElementType::kFloat32>(LoadFirst<kType>(row, i, rest),
                                        reinterpret_cast<uint8_t*>(to), i, rest);
    }
  });
}

// The other way round: tensor[index + j] = from[j].
HWY_INLINE void WriteFloats(ElementType type, const float* from, int64_t count, void* tensor,
                            int64_t index) {
  WithFloatType(type, [&](auto constant) HWY_ATTR {
    constexpr ElementType kType = decltype(constant)::value;
    uint8_t* row = static_cast<uint8_t*>(tensor) + BytesOf(kType, index);
    const auto* floats = reinterpret_cast<const uint8_t*>(from);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) Format<kType>::Store(Load(from + i), row, i);
    const int rest = static_cast<int>(count - i);
    if (rest > 0) {
      StoreFirst<kType>(LoadFirst<ElementType::kFloat32>(floats, i, rest), row, i, rest);
    }
  });
}

// Adds halves so that two levels of it, the second on pairs of lanes, leave one sum of each of four
// vectors per 128-bit block.
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

HWY_INLINE FloatVec BlockSumsOf4(const FloatVec* v) {
  return AddInterleavedPairs(AddInterleaved(v[0], v[1]), AddInterleaved(v[2], v[3]));
}

// sums[i] = the sum of vector i.
template <int kCount>
HWY_INLINE void StoreSums(const FloatVec (&v)[kCount], float* sums) {
  static_assert(kCount % 4 == 0);
  const FloatTag d;
  if constexpr (kLanes == 4) {
    for (int i = 0; i < kCount; i += 4) Store(BlockSumsOf4(v + i), sums + i);
  } else {
    int i = 0;
    for (; i + 8 <= kCount; i += 8) {
      const FloatVec low = BlockSumsOf4(v + i);
      const FloatVec high = BlockSumsOf4(v + i + 4);
      Store(hn::Add(hn::ConcatLowerLower(d, high, low), hn::ConcatUpperUpper(d, high, low)),
            sums + i);
    }
    if (i < kCount) {
      const hn::Half<FloatTag> half;
      const FloatVec both = BlockSumsOf4(v + i);
      hn::StoreU(hn::Add(hn::LowerHalf(half, both), hn::UpperHalf(half, both)), half, sums + i);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace lean_attention::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // per-target include guard
