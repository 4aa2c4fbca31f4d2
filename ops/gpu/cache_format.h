// The element formats of a cache: from float32 into it, and out of it as what matrix instructions
// multiply.

#ifndef LEAN_ATTENTION_OPS_GPU_CACHE_FORMAT_H_
#define LEAN_ATTENTION_OPS_GPU_CACHE_FORMAT_H_

#include <cmath>
#include <type_traits>

#include "ops/gpu/portable.h"

namespace lean_attention::gpu {

// Numbers of one byte, times a scale; others are stored as they are.
template <typename Cache>
inline constexpr bool kIsQuantised = sizeof(Cache) == 1;

// Rounds to the nearest, ties to even; what is too large, and for int8 a NaN, becomes the largest.
template <typename Cache>
LEAN_ATTENTION_DEVICE Cache Quantised(float x) {
  if constexpr (std::is_same_v<Cache, int8_t>) {
    const float bounded = fmaxf(x, -128.0f);
    return static_cast<int8_t>(rintf(bounded < 127.0f && x == x ? bounded : 127.0f));
  } else {
    static_assert(std::is_same_v<Cache, Fp8E4M3>);
    const uint32_t bits = BitsOfFloat(x);
    const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
    const float magnitude = FloatOfBits(bits & 0x7FFFFFFFu);
    if (magnitude != magnitude) return {static_cast<uint8_t>(sign | 0x7Fu)};
    if (magnitude >= 448.0f) return {static_cast<uint8_t>(sign | 0x7Eu)};
    // Subnormal numbers are whole multiples of 2^-9, which are their bits.
    if (magnitude < 0x1p-6f) {
      return {static_cast<uint8_t>(sign | static_cast<uint8_t>(rintf(magnitude * 512.0f)))};
    }
    const uint32_t wide = BitsOfFloat(magnitude);
    const uint32_t rounded = wide + 0x7FFFFu + (wide >> 20 & 1u);  // 20 bits are dropped
    return {static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)))};
  }
}

// Four numbers of a byte each, lowest first, as two pairs of Elements. Exact.
template <typename Element, typename Cache>
LEAN_ATTENTION_DEVICE void Unpack(uint32_t bytes, uint32_t* pairs) {
  float x[4];
  for (int i = 0; i < 4; ++i) {
    const uint32_t byte = bytes >> (8 * i) & 0xFFu;
    if constexpr (std::is_same_v<Cache, int8_t>) {
      // 2^23 + (byte + 128): no conversion, of which devices do fewer than additions.
      x[i] = FloatOfBits(0x4B000000u | (byte ^ 0x80u)) - 8388736.0f;
    } else {
      x[i] = ToFloat(Fp8E4M3{static_cast<uint8_t>(byte)});
    }
  }
  pairs[0] = PackPair<Element>(x[0], x[1]);
  pairs[1] = PackPair<Element>(x[2], x[3]);
}

// One number as it takes part in a sum.
template <typename Element, typename Cache>
LEAN_ATTENTION_DEVICE Element ToElement(Cache x) {
  if constexpr (std::is_same_v<Element, Cache>) {
    return x;
  } else {
    return FromFloat<Element>(ToFloat(x));
  }
}

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_CACHE_FORMAT_H_
