// Element types as the kernel tests see them: scalar conversions, written apart from the kernel's.

#ifndef LEAN_ATTENTION_TESTS_CPP_KERNEL_ELEMENTS_H_
#define LEAN_ATTENTION_TESTS_CPP_KERNEL_ELEMENTS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <ostream>

#include "ops/decode/problem.h"

namespace lean_attention::testing {

// A floating-point format of 16 bits: sign, exponent, fraction.
template <int kExponentBits>
struct Float16Bits {
  static constexpr int kFractionBits = 15 - kExponentBits;
  static constexpr int kOne = 1 << kFractionBits;  // of the exponent, or past the fraction
  static constexpr int kInfinity = 0x7fff / kOne * kOne;
  // The least exponent of a normal number 1.f * 2^e; subnormal ones have it too.
  static constexpr int kLeastExponent = 2 - (1 << (kExponentBits - 1));

  static double ToDouble(uint16_t bits) {
    const int magnitude = bits & 0x7fff;
    const int exponent = std::max(magnitude / kOne, 1);
    const int steps = magnitude - (exponent - 1) * kOne;
    double x = std::ldexp(steps, exponent - 1 + kLeastExponent - kFractionBits);
    if (magnitude == kInfinity) x = std::numeric_limits<double>::infinity();
    if (magnitude > kInfinity) x = std::numeric_limits<double>::quiet_NaN();
    return (bits & 0x8000) != 0 ? -x : x;
  }

  // To the nearest, ties to even.
  static uint16_t FromDouble(double x) {
    const int sign = std::signbit(x) ? 0x8000 : 0;
    if (std::isnan(x)) return static_cast<uint16_t>(sign | (kInfinity + kOne / 2));
    if (std::isinf(x)) return static_cast<uint16_t>(sign | kInfinity);
    const int exponent = x == 0 ? kLeastExponent : std::max(std::ilogb(x), kLeastExponent);
    const auto steps =
        static_cast<int>(std::nearbyint(std::ldexp(std::fabs(x), kFractionBits - exponent)));
    // A carry out of the fraction moves into the exponent by itself.
    const int64_t magnitude = steps + int64_t{exponent - kLeastExponent} * kOne;
    return static_cast<uint16_t>(sign | std::min<int64_t>(magnitude, kInfinity));
  }
};

using Half = Float16Bits<5>;
using BFloat16 = Float16Bits<8>;

template <typename T>
T ReadAs(const std::byte* row, int64_t i) {
  T x;
  std::memcpy(&x, row + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return x;
}

template <typename T>
void WriteAs(std::byte* row, int64_t i, T x) {
  std::memcpy(row + i * static_cast<int64_t>(sizeof(T)), &x, sizeof(T));
}

// OCP 8-bit floating point, E4M3: 1 + 4 + 3 bits, biased by 7, no infinity.
struct Float8E4M3 {
  static constexpr int kNaN = 0x7F;
  static constexpr int kLargest = 0x7E;  // 448

  static double ToDouble(uint8_t bits) {
    const int magnitude = bits & 0x7F;
    const int exponent = std::max(magnitude >> 3, 1);
    const int steps = magnitude - (exponent - 1) * 8;
    const double x = magnitude == kNaN ? std::numeric_limits<double>::quiet_NaN()
                                       : std::ldexp(steps, exponent - 10);
    return (bits & 0x80) != 0 ? -x : x;
  }

  // The nearest there is, of two the even one; the largest for what is larger.
  static uint8_t FromDouble(double x) {
    const int sign = std::signbit(x) ? 0x80 : 0;
    if (std::isnan(x)) return static_cast<uint8_t>(sign | kNaN);
    int nearest = 0;
    for (int bits = 1; bits <= kLargest; ++bits) {
      const double better = std::fabs(ToDouble(static_cast<uint8_t>(nearest)) - std::fabs(x)) -
                            std::fabs(ToDouble(static_cast<uint8_t>(bits)) - std::fabs(x));
      if (better > 0 || (better == 0 && bits % 2 == 0)) nearest = bits;
    }
    return static_cast<uint8_t>(sign | nearest);
  }
};

// One element type. A number x of its range is stored to within epsilon * |x| + tiny. `most`: the
// largest whole number of a quantised type, the least being -most - 1; 0 for others.
struct ElementFormat {
  ElementType type;
  const char* name;
  int bits;
  int most;
  double epsilon;
  double tiny;
  double (*get)(const std::byte* row, int64_t i);
  void (*set)(std::byte* row, int64_t i, double x);
};

inline const ElementFormat kElementFormats[] = {
    {ElementType::kFloat32, "float32", 32, 0, 0x1p-24, 0x1p-150,
     [](const std::byte* row, int64_t i) { return double{ReadAs<float>(row, i)}; },
     [](std::byte* row, int64_t i, double x) { WriteAs(row, i, static_cast<float>(x)); }},
    {ElementType::kFloat16, "float16", 16, 0, 0x1p-11, 0x1p-25,
     [](const std::byte* row, int64_t i) { return Half::ToDouble(ReadAs<uint16_t>(row, i)); },
     [](std::byte* row, int64_t i, double x) { WriteAs(row, i, Half::FromDouble(x)); }},
    {ElementType::kBFloat16, "bfloat16", 16, 0, 0x1p-8, 0x1p-134,
     [](const std::byte* row, int64_t i) { return BFloat16::ToDouble(ReadAs<uint16_t>(row, i)); },
     [](std::byte* row, int64_t i, double x) { WriteAs(row, i, BFloat16::FromDouble(x)); }},
    {ElementType::kInt8, "int8", 8, 127, 0, 0,
     [](const std::byte* row, int64_t i) { return static_cast<double>(ReadAs<int8_t>(row, i)); },
     [](std::byte* row, int64_t i, double x) { WriteAs(row, i, static_cast<int8_t>(x)); }},
    // Two to a byte, the even one in the low half, 8 added to each.
    {ElementType::kInt4, "int4", 4, 7, 0, 0,
     [](const std::byte* row, int64_t i) {
       return double((ReadAs<uint8_t>(row, i / 2) >> (i % 2 * 4) & 15) - 8);
     },
     [](std::byte* row, int64_t i, double x) {
       const int shift = i % 2 * 4;
       const int others = ReadAs<uint8_t>(row, i / 2) & ~(15 << shift);
       const int bits = (static_cast<int>(x) + 8) << shift;
       WriteAs(row, i / 2, static_cast<uint8_t>(others | bits));
     }},
    {ElementType::kFloat8E4M3, "float8e4m3", 8, 0, 0x1p-4, 0x1p-10,
     [](const std::byte* row, int64_t i) { return Float8E4M3::ToDouble(ReadAs<uint8_t>(row, i)); },
     [](std::byte* row, int64_t i, double x) { WriteAs(row, i, Float8E4M3::FromDouble(x)); }},
};

inline const ElementFormat& FormatOf(ElementType type) {
  return *std::find_if(std::begin(kElementFormats), std::end(kElementFormats),
                       [type](const ElementFormat& format) { return format.type == type; });
}

// What a step is made of: the type of its tensors and that of its caches.
struct StepTypes {
  const char* name;
  ElementType element;
  ElementType cache;
  bool scale_per_channel;

  bool IsQuantised() const { return element != cache; }
};

inline std::ostream& operator<<(std::ostream& out, const StepTypes& types) {
  return out << types.name;
}

inline constexpr StepTypes kFloat32Step = {"float32", ElementType::kFloat32, ElementType::kFloat32,
                                           false};
inline constexpr StepTypes kFloat16Step = {"float16", ElementType::kFloat16, ElementType::kFloat16,
                                           false};
inline constexpr StepTypes kBFloat16Step = {"bfloat16", ElementType::kBFloat16,
                                            ElementType::kBFloat16, false};
// Quantised caches of the GPU kernel, and all types of the CPU kernel.
inline constexpr StepTypes kGpuQuantisedSteps[] = {
    {"float16_int8", ElementType::kFloat16, ElementType::kInt8, false},
    {"bfloat16_int8_channels", ElementType::kBFloat16, ElementType::kInt8, true},
    {"float16_float8_channels", ElementType::kFloat16, ElementType::kFloat8E4M3, true},
    {"bfloat16_float8", ElementType::kBFloat16, ElementType::kFloat8E4M3, false},
};
inline constexpr StepTypes kStepTypes[] = {
    kFloat32Step,
    kFloat16Step,
    kBFloat16Step,
    {"float32_int8", ElementType::kFloat32, ElementType::kInt8, false},
    {"float32_int4_channels", ElementType::kFloat32, ElementType::kInt4, true},
    {"float16_int8_channels", ElementType::kFloat16, ElementType::kInt8, true},
    {"float16_int4", ElementType::kFloat16, ElementType::kInt4, false},
    {"bfloat16_int8", ElementType::kBFloat16, ElementType::kInt8, false},
};

}  // namespace lean_attention::testing

#endif  // LEAN_ATTENTION_TESTS_CPP_KERNEL_ELEMENTS_H_
