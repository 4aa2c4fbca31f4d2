// Every half, bfloat16 and fp8 number, and roundings to them, against arithmetic on doubles.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/cpp/emulator_checks.h"
#include "tests/cpp/emulator_toys.cuh"

namespace lean_attention::emulator {
namespace {

using gpu::BFloat16;
using gpu::Half;
using gpu::kWarpSize;

struct Format {
  int exponent_bits;
  int fraction_bits;
  int bias;
  bool has_infinity;
};
constexpr Format kHalf = {5, 10, 15, true};
constexpr Format kBFloat16 = {8, 7, 127, true};
constexpr Format kFp8E4M3 = {4, 3, 7, false};

// The definition of the formats: (1.fraction or 0.fraction) * 2^(exponent - bias).
double Value(uint32_t bits, const Format& format) {
  const uint32_t ones = (1u << format.exponent_bits) - 1;
  const uint32_t exponent = bits >> format.fraction_bits & ones;
  const uint32_t fraction = bits & ((1u << format.fraction_bits) - 1);
  const bool negative = bits >> (format.exponent_bits + format.fraction_bits) != 0;
  double value;
  if (exponent == ones && format.has_infinity) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
  } else if (exponent == ones && fraction == (1u << format.fraction_bits) - 1) {
    value = std::nan("");
  } else {
    const double significand = std::ldexp(fraction, -format.fraction_bits) + (exponent > 0 ? 1 : 0);
    value = std::ldexp(significand, static_cast<int>(exponent > 0 ? exponent : 1) - format.bias);
  }
  return negative ? -value : value;
}

bool Same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

TEST(EmulatorNumbers, EveryBitPattern) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const auto b = static_cast<uint16_t>(bits);
    ASSERT_TRUE(Same(gpu::ToFloat(Half{b}), Value(bits, kHalf))) << bits;
    ASSERT_TRUE(Same(gpu::ToFloat(BFloat16{b}), Value(bits, kBFloat16))) << bits;
  }
  for (uint32_t bits = 0; bits < 1 << 8; ++bits) {
    const auto b = static_cast<uint8_t>(bits);
    ASSERT_TRUE(Same(gpu::ToFloat(gpu::Fp8E4M3{b}), Value(bits, kFp8E4M3))) << bits;
    ASSERT_EQ(gpu::ToFloat(static_cast<int8_t>(b)), static_cast<int8_t>(b));
  }
}

// Around each number and around the middle between it and the next: the nearest one, the even one
// of two. Halves and bfloat16 numbers that follow each other have bits that do.
template <typename Element>
void CheckRounding(const Format& format) {
  const uint32_t infinity = ((1u << format.exponent_bits) - 1) << format.fraction_bits;
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = Value(bits, format);
    // Overflow rounds as if the exponents went on.
    const double high = bits + 1 == infinity ? std::ldexp(1.0, 1 << (format.exponent_bits - 1))
                                             : Value(bits + 1, format);
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(middle, (low + high) / 2);
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    const struct {
      float x;
      uint32_t expected;
    } cases[] = {{static_cast<float>(low), bits},
                 {std::nextafter(middle, 0.0f), bits},
                 {middle, even},
                 {std::nextafter(middle, std::numeric_limits<float>::infinity()), bits + 1}};
    for (const auto& c : cases) {
      ASSERT_EQ(gpu::FromFloat<Element>(c.x).bits, c.expected) << bits << " " << c.x;
      ASSERT_EQ(gpu::FromFloat<Element>(-c.x).bits, c.expected | 0x8000u) << bits << " " << -c.x;
      ASSERT_EQ((gpu::PackPair<Element>(c.x, -c.x)), c.expected | (c.expected | 0x8000u) << 16);
    }
  }
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(gpu::FromFloat<Element>(inf).bits, infinity);
  EXPECT_EQ(gpu::FromFloat<Element>(-inf).bits, infinity | 0x8000u);
  EXPECT_EQ(gpu::FromFloat<Element>(std::numeric_limits<float>::max()).bits, infinity);
  EXPECT_EQ(gpu::FromFloat<Element>(std::numeric_limits<float>::denorm_min()).bits, 0u);
  for (const uint32_t nan : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu}) {
    float x;
    std::memcpy(&x, &nan, sizeof(x));
    EXPECT_TRUE(std::isnan(gpu::ToFloat(gpu::FromFloat<Element>(x))));
  }
}

TEST(EmulatorNumbers, RoundingToHalf) { CheckRounding<Half>(kHalf); }

TEST(EmulatorNumbers, RoundingToBFloat16) { CheckRounding<BFloat16>(kBFloat16); }

TEST(EmulatorNumbers, InAKernel) {
  std::vector<float> x(kWarpSize);
  std::vector<gpu::Fp8E4M3> fp8(kWarpSize);
  std::vector<int8_t> int8(kWarpSize);
  for (int i = 0; i < kWarpSize; ++i) {
    const auto n = static_cast<size_t>(i);
    x[n] = static_cast<float>(i) / 8 - 2;
    fp8[n].bits = static_cast<uint8_t>(3 * i);
    int8[n] = static_cast<int8_t>(1 - i);
  }
  const DeviceBuffer<float> device_x(x);
  const DeviceBuffer<gpu::Fp8E4M3> device_fp8(fp8);
  const DeviceBuffer<int8_t> device_int8(int8);
  DeviceBuffer<int> count(std::vector<int>{0});
  DeviceBuffer<float> y(kWarpSize);
  const Report report = Launch({}, [&] {
    gpu::toys::Numbers<Half>(device_x.ConstPtr(), device_fp8.ConstPtr(), device_int8.ConstPtr(),
                             count.Ptr(), y.Ptr());
  });
  EXPECT_TRUE(report.ok()) << report.ToString();
  EXPECT_EQ(count[0], kWarpSize);
  for (int i = 0; i < kWarpSize; ++i) {
    const auto n = static_cast<size_t>(i);
    const double expected = std::exp2(x[n]) + Value(fp8[n].bits, kFp8E4M3) + int8[n];
    EXPECT_NEAR(y[i], expected, 1e-5 * std::abs(expected) + 1e-5) << i;
  }
}

}  // namespace
}  // namespace lean_attention::emulator
