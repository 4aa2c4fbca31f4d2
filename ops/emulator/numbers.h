// 16-bit and 8-bit floating-point numbers in plain integer arithmetic, exact for every bit pattern.

#ifndef LEAN_ATTENTION_OPS_EMULATOR_NUMBERS_H_
#define LEAN_ATTENTION_OPS_EMULATOR_NUMBERS_H_

#include <cstdint>
#include <cstring>

namespace lean_attention::emulator {

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Drops `count` (1 to 31) low bits; to nearest, ties to even.
inline uint32_t DropBits(uint32_t bits, int count) {
  const uint32_t half = (uint32_t{1} << (count - 1)) - 1;
  return static_cast<uint32_t>((uint64_t{bits} + half + ((bits >> count) & 1)) >> count);
}

// IEEE binary16: 5 bits of exponent, biased by 15, and 10 of fraction.
inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7FFFu;
  if (magnitude >= 0x7C00) return FloatOf(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // As a float, its exponent is 112 too low; the product is exact, for subnormal numbers too.
  return FloatOf(sign | BitsOf(FloatOf(magnitude << 13) * 0x1p112f));
}

inline uint16_t HalfFromFloat(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7FFF;
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 2^16 and more
  if (magnitude >= 0x38800000u) {                                              // 2^-14: normal
    // A carry out of the fraction goes up into the exponent, at the top to infinity.
    return static_cast<uint16_t>(sign | DropBits(magnitude - 0x38000000u, 13));
  }
  // In units of 2^-24. 126 - exponent bits of the significand lie below that.
  const int dropped = 126 - static_cast<int>(magnitude >> 23);
  if (dropped > 24) return static_cast<uint16_t>(sign);
  return static_cast<uint16_t>(sign | DropBits((magnitude & 0x7FFFFFu) | 0x800000u, dropped));
}

// bfloat16: the upper half of a float.
inline float BFloat16ToFloat(uint16_t bits) { return FloatOf(uint32_t{bits} << 16); }

inline uint16_t BFloat16FromFloat(float value) {
  const uint32_t bits = BitsOf(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
  return static_cast<uint16_t>(DropBits(bits, 16));
}

// OCP 8-bit floating point, E4M3: 4 bits of exponent, biased by 7, and 3 of fraction. No infinity;
// all ones is NaN.
inline float Fp8E4M3ToFloat(uint8_t fp8) {
  const uint32_t sign = (fp8 & 0x80u) << 24;
  const uint32_t magnitude = fp8 & 0x7Fu;
  if (magnitude == 0x7F) return FloatOf(sign | 0x7FC00000u);
  return FloatOf(sign | BitsOf(FloatOf(magnitude << 20) * 0x1p120f));
}

}  // namespace lean_attention::emulator

#endif  // LEAN_ATTENTION_OPS_EMULATOR_NUMBERS_H_
