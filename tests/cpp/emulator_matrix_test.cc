// Matrix instructions: whole products through fragments as the vendors lay them out.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/emulator/random.h"
#include "tests/cpp/emulator_checks.h"
#include "tests/cpp/emulator_toys.cuh"

namespace lean_attention::emulator {
namespace {

using gpu::BFloat16;
using gpu::Half;
using gpu::kWarpSize;
using gpu::toys::Planted;

constexpr uint64_t kSeeds = 10;

template <typename Element>
std::vector<Element> RandomMatrix(uint64_t seed) {
  Random random(seed);
  std::vector<Element> matrix(16 * 16);
  for (Element& x : matrix) {
    x = gpu::FromFloat<Element>(static_cast<float>(random.Below(2001)) / 1000 - 1);
  }
  return matrix;
}

// The largest difference from the product in float64, in units of float32's rounding of its terms.
template <typename Element, bool kTransposed, Planted planted>
double Error(uint64_t seed) {
  const std::vector<Element> a = RandomMatrix<Element>(2 * seed);
  const std::vector<Element> b = RandomMatrix<Element>(2 * seed + 1);
  const DeviceBuffer<Element> device_a(a);
  const DeviceBuffer<Element> device_b(b);
  DeviceBuffer<float> c(16 * 16);
  const Report report = Launch({1, kWarpSize, 1024, seed}, [&] {
    gpu::toys::MatrixProduct<Element, kTransposed, planted>(device_a.ConstPtr(),
                                                            device_b.ConstPtr(), c.Ptr());
  });
  EXPECT_TRUE(report.ok()) << report.ToString();
  double error = 0;
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 16; ++column) {
      double sum = 0;
      double terms = 0;
      for (size_t k = 0; k < 16; ++k) {
        const Element b_element = kTransposed ? b[16 * column + k] : b[16 * k + column];
        const double term = double{gpu::ToFloat(a[16 * row + k])} * gpu::ToFloat(b_element);
        sum += term;
        terms += std::abs(term);
      }
      const double difference = std::abs(c[static_cast<int64_t>(16 * row + column)] - sum);
      error = std::max(error, difference / (terms * 0x1p-24));
    }
  }
  return error;
}

template <typename Element, bool kTransposed>
void CheckProduct() {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_LE((Error<Element, kTransposed, Planted::kNothing>(seed)), 1);
    EXPECT_GE((Error<Element, kTransposed, Planted::kSwappedRows>(seed)), 1e5);
  }
}

TEST(EmulatorMatrix, HalfProduct) { CheckProduct<Half, false>(); }
TEST(EmulatorMatrix, HalfTransposed) { CheckProduct<Half, true>(); }
TEST(EmulatorMatrix, BFloat16Product) { CheckProduct<BFloat16, false>(); }
TEST(EmulatorMatrix, BFloat16Transposed) { CheckProduct<BFloat16, true>(); }

// One product of two ones, wherever they are: lane and register of each element, one at a time.
#if LEAN_ATTENTION_AMD

TEST(EmulatorMatrix, LaneLayout) {
  const Half one = gpu::FromFloat<Half>(1);
  const Half zero = {0};
  DeviceBuffer<float> d(16 * 16);
  for (int a_lane = 0; a_lane < 64; a_lane += 7) {
    for (int i = 0; i < 4; ++i) {
      for (int column = 0; column < 16; column += 3) {
        const Report report = Launch({}, [&] {
          Half a[4], b[4];
          for (int j = 0; j < 4; ++j) {
            a[j] = gpu::Lane() == a_lane && j == i ? one : zero;
            b[j] = gpu::Lane() == a_lane / 16 * 16 + column && j == i ? one : zero;
          }
          float sums[4] = {2, 2, 2, 2};
          gpu::Mfma16x16x16(sums, a, b);
          for (int j = 0; j < 4; ++j) {
            gpu::Store(d.Ptr(), 16 * (4 * (gpu::Lane() / 16) + j) + gpu::Lane() % 16, sums[j]);
          }
        });
        ASSERT_TRUE(report.ok()) << report.ToString();
        for (int e = 0; e < 16 * 16; ++e) {
          ASSERT_EQ(d[e], e == 16 * (a_lane % 16) + column ? 3 : 2) << a_lane << " " << i;
        }
      }
    }
  }
}

#else

TEST(EmulatorMatrix, LaneLayout) {
  constexpr uint32_t kOne = 0x3C00;
  DeviceBuffer<float> d(16 * 8);
  for (int a_lane = 0; a_lane < 32; a_lane += 3) {
    for (int i = 0; i < 8; ++i) {
      // a_i: row group or group + 8, column 2 * (lane % 4) + i % 2, 8 higher for the last four.
      const int row = a_lane / 4 + (i / 2 % 2 == 1 ? 8 : 0);
      const int k = 2 * (a_lane % 4) + i % 2 + (i >= 4 ? 8 : 0);
      for (int column = 0; column < 8; ++column) {
        const Report report = Launch({}, [&] {
          uint32_t a[4] = {};
          uint32_t b[2] = {};
          if (gpu::Lane() == a_lane) a[i / 2] = kOne << (16 * (i % 2));
          if (gpu::Lane() == 4 * column + k % 8 / 2) b[k / 8] = kOne << (16 * (k % 2));
          float sums[4] = {2, 2, 2, 2};
          gpu::MmaM16N8K16<Half>(sums, a, b);
          for (int j = 0; j < 4; ++j) {
            const int d_row = gpu::Lane() / 4 + (j >= 2 ? 8 : 0);
            gpu::Store(d.Ptr(), 8 * d_row + 2 * (gpu::Lane() % 4) + j % 2, sums[j]);
          }
        });
        ASSERT_TRUE(report.ok()) << report.ToString();
        for (int e = 0; e < 16 * 8; ++e) {
          ASSERT_EQ(d[e], e == 8 * row + column ? 3 : 2) << a_lane << " " << i;
        }
      }
    }
  }
}

TEST(EmulatorMatrix, LoadMatrix) {
  // Element (row, column) of matrix m is 100 m + 10 row + column; rows lie 48 bytes apart.
  const auto fill = [] {
    const SharedPtr<uint16_t> shared = gpu::As<uint16_t>(gpu::SharedMemory());
    for (int column = 0; column < 8; ++column) {
      const int value = 100 * (gpu::Lane() / 8) + 10 * (gpu::Lane() % 8) + column;
      gpu::Store(shared, 24 * gpu::Lane() + column, static_cast<uint16_t>(value));
    }
    gpu::SyncWarp();
    return gpu::SharedMemory() + 48 * gpu::Lane();
  };
  const auto expect = [](const uint32_t* r, int matrices, bool transposed) {
    for (int m = 0; m < matrices; ++m) {
      for (int i = 0; i < 2; ++i) {
        const int first = gpu::Lane() / 4;
        const int second = 2 * (gpu::Lane() % 4) + i;
        const int row = transposed ? second : first;
        const int column = transposed ? first : second;
        EXPECT_EQ(r[m] >> (16 * i) & 0xFFFF, static_cast<uint32_t>(100 * m + 10 * row + column));
      }
    }
  };
  const Report report = Launch({1, 32, 48 * 32}, [&] {
    const SharedPtr<std::byte> row = fill();
    uint32_t r[4];
    gpu::LoadMatrixX4(r, row);
    expect(r, 4, false);
    gpu::LoadMatrixX4Transposed(r, row);
    expect(r, 4, true);
    // The addresses of the upper half are not looked at.
    const SharedPtr<std::byte> row_or_nowhere = gpu::Lane() < 16 ? row : row + 1000001;
    gpu::LoadMatrixX2(r, row_or_nowhere);
    expect(r, 2, false);
    gpu::LoadMatrixX2Transposed(r, row_or_nowhere);
    expect(r, 2, true);
  });
  EXPECT_TRUE(report.ok()) << report.ToString();
  const Report misaligned = Launch({1, 32, 48 * 32}, [&] {
    uint32_t r[4];
    gpu::LoadMatrixX4(r, fill() + (gpu::Lane() == 9 ? 8 : 0));
  });
  EXPECT_TRUE(Found(misaligned, FaultKind::kMisaligned, "gpu::LoadMatrixX4(r, fill()"));
}

// What other lanes wrote is read only after SyncWarp.
TEST(EmulatorMatrix, LoadMatrixWithoutSyncWarp) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Report report = Launch({1, 32, 512, seed}, [] {
      gpu::Store(gpu::As<gpu::Vec<uint32_t, 4> >(gpu::SharedMemory()), gpu::Lane(), {});
      uint32_t r[4];
      gpu::LoadMatrixX4(r, gpu::SharedMemory() + 16 * gpu::Lane());
    });
    EXPECT_TRUE(Found(report, FaultKind::kSharedRace, "gpu::LoadMatrixX4(r", "gpu::Store("));
  }
}

#endif

// A matrix instruction takes the whole warp.
TEST(EmulatorMatrix, DivergentProduct) {
  const auto multiply = [] {
    float d[4] = {};
#if LEAN_ATTENTION_AMD
    const Half zeros[4] = {};
    gpu::Mfma16x16x16(d, zeros, zeros);  // multiply
#else
    const uint32_t zeros[4] = {};
    gpu::MmaM16N8K16<Half>(d, zeros, zeros);  // multiply
#endif
  };
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Report report = Launch({1, kWarpSize, 0, seed}, [&] {
      if (gpu::Lane() < 16) {
        multiply();
      } else {
        gpu::SyncWarp();
      }
    });
    EXPECT_TRUE(Found(report, FaultKind::kDivergence, "// multiply", "gpu::SyncWarp()") ||
                Found(report, FaultKind::kDivergence, "gpu::SyncWarp()", "// multiply"))
        << report.ToString();
  }
}

}  // namespace
}  // namespace lean_attention::emulator
