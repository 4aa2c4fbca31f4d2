// Whole kernels on the emulator: right ones give the right numbers under every interleaving, and
// what is planted in them is found, at both of its places.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/cpp/emulator_checks.h"
#include "tests/cpp/emulator_toys.cuh"

namespace lean_attention::emulator {
namespace {

using gpu::kWarpSize;
using gpu::toys::Planted;

constexpr uint64_t kSeeds = 40;

// Small whole numbers: every order of summation gives the same.
std::vector<float> Ramp(int count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i % 113 - 50);
  return x;
}

float Sum(const std::vector<float>& x, int64_t begin, int64_t end) {
  float sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += x[static_cast<size_t>(i)];
  return sum;
}

constexpr int kBlocks = 7;
constexpr int kThreads = 4 * kWarpSize;
constexpr int kCount = 1000;  // of a block

template <Planted planted>
Report RunBlockSums(uint64_t seed) {
  const std::vector<float> x = Ramp(kBlocks * kCount);
  const DeviceBuffer<float> device_x(x);
  DeviceBuffer<float> sums(kBlocks);
  Report report = Launch({kBlocks, kThreads, 4 * sizeof(float), seed}, [&] {
    gpu::toys::BlockSums<planted>(device_x.ConstPtr(), kCount, sums.Ptr());
  });
  for (int i = 0; i < kBlocks && report.ok(); ++i) {
    EXPECT_EQ(sums[i], Sum(x, i * kCount, (i + 1) * kCount)) << "seed " << seed;
  }
  return report;
}

TEST(EmulatorKernels, BlockSums) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Report report = RunBlockSums<Planted::kNothing>(seed);
    EXPECT_TRUE(report.ok()) << report.ToString();
    // Which of the two comes first is the seed's choice.
    const Report race = RunBlockSums<Planted::kNoBarrier>(seed);
    EXPECT_TRUE(Found(race, FaultKind::kSharedRace, "Load(warp_sums", "Store(warp_sums") ||
                Found(race, FaultKind::kSharedRace, "Store(warp_sums", "Load(warp_sums"))
        << race.ToString();
    EXPECT_TRUE(Found(RunBlockSums<Planted::kReadPastEnd>(seed), FaultKind::kOutOfBounds,
                      "sum += Load(x, i)"));
    EXPECT_TRUE(Found(RunBlockSums<Planted::kReadPastSharedEnd>(seed), FaultKind::kOutOfBounds,
                      "total += Load(warp_sums"));
  }
}

template <Planted planted>
Report RunRotateInWarp(uint64_t seed) {
  const std::vector<float> x = Ramp(kThreads);
  const DeviceBuffer<float> device_x(x);
  DeviceBuffer<float> y(kThreads);
  Report report = Launch({1, kThreads, kThreads * sizeof(float), seed},
                         [&] { gpu::toys::RotateInWarp<planted>(device_x.ConstPtr(), y.Ptr()); });
  for (int i = 0; i < kThreads && report.ok(); ++i) {
    const int from = i / kWarpSize * kWarpSize + (i + 1) % kWarpSize;
    EXPECT_EQ(y[i], x[static_cast<size_t>(from)]) << "seed " << seed;
  }
  return report;
}

TEST(EmulatorKernels, RotateInWarp) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Report report = RunRotateInWarp<Planted::kNothing>(seed);
    EXPECT_TRUE(report.ok()) << report.ToString();
    const Report race = RunRotateInWarp<Planted::kNoSyncWarp>(seed);
    EXPECT_TRUE(Found(race, FaultKind::kSharedRace, "Load(values", "Store(values") ||
                Found(race, FaultKind::kSharedRace, "Store(values", "Load(values"))
        << race.ToString();
  }
}

template <Planted planted>
Report RunPipelinedColumnSums(uint64_t seed) {
  constexpr int kRows = 9;
  constexpr int kColumns = 4 * kThreads;
  const std::vector<float> x = Ramp(kRows * kColumns);
  const DeviceBuffer<float> device_x(x);
  DeviceBuffer<float> sums(kColumns);
  Report report = Launch({1, kThreads, 2 * kColumns * sizeof(float), seed}, [&] {
    gpu::toys::PipelinedColumnSums<planted>(device_x.ConstPtr(), kRows, sums.Ptr());
  });
  for (int column = 0; column < kColumns && report.ok(); ++column) {
    float sum = 0;
    for (int row = 0; row < kRows; ++row) sum += x[static_cast<size_t>(row * kColumns + column)];
    EXPECT_EQ(sums[column], sum) << "seed " << seed;
  }
  return report;
}

TEST(EmulatorKernels, PipelinedColumnSums) {
  const std::string load = "Load(As<Columns>(stages";
  const std::string copy = "CopyAsync16(stages";
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Report report = RunPipelinedColumnSums<Planted::kNothing>(seed);
    EXPECT_TRUE(report.ok()) << report.ToString();
    EXPECT_TRUE(
        Found(RunPipelinedColumnSums<Planted::kNoWait>(seed), FaultKind::kNotWaited, load, copy));
    EXPECT_TRUE(Found(RunPipelinedColumnSums<Planted::kOneGroupTooFew>(seed), FaultKind::kNotWaited,
                      load, copy));
    // Without the barrier a thread meets a copy that has landed or one that has not.
    const Report race = RunPipelinedColumnSums<Planted::kNoBarrier>(seed);
    EXPECT_TRUE(Found(race, FaultKind::kSharedRace, load, copy) ||
                Found(race, FaultKind::kNotWaited, load, copy) ||
                Found(race, FaultKind::kSharedRace, copy, load))
        << race.ToString();
    const Report reuse = RunPipelinedColumnSums<Planted::kNoBarrierReuse>(seed);
    EXPECT_TRUE(Found(reuse, FaultKind::kSharedRace, copy, load) ||
                Found(reuse, FaultKind::kNotWaited, load, copy))
        << reuse.ToString();
  }
}

template <Planted planted>
Report RunLastArriverSum(int blocks, uint64_t seed, int launches = 1) {
  const std::vector<float> x = Ramp(kCount);
  const DeviceBuffer<float> device_x(x);
  DeviceBuffer<float> partials(blocks * kThreads);
  DeviceBuffer<unsigned> counter(std::vector<unsigned>{0});
  DeviceBuffer<float> sum(1);
  Report report;
  for (int i = 0; i < launches && report.ok(); ++i) {
    report =
        Launch({blocks, kThreads, sizeof(int), seed + 1000 * static_cast<uint64_t>(i), 6}, [&] {
          gpu::toys::LastArriverSum<planted>(device_x.ConstPtr(), kCount, partials.Ptr(),
                                             counter.Ptr(), sum.Ptr());
        });
    if (!report.ok()) break;
    EXPECT_EQ(counter[0], 0u);
    EXPECT_EQ(sum[0], Sum(x, 0, kCount)) << blocks << " blocks, seed " << seed;
  }
  return report;
}

TEST(EmulatorKernels, LastArriverSumForEveryNumberOfBlocks) {
  for (int blocks = 1; blocks <= 24; ++blocks) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const Report report = RunLastArriverSum<Planted::kNothing>(blocks, seed, 2);
      EXPECT_TRUE(report.ok()) << report.ToString();
    }
  }
}

TEST(EmulatorKernels, LastArriverSumWithFaults) {
  const std::string load = "Load(partials";
  const std::string store = "Store(partials";
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_TRUE(Found(RunLastArriverSum<Planted::kNoFenceBefore>(5, seed), FaultKind::kGlobalRace,
                      load, store));
    EXPECT_TRUE(Found(RunLastArriverSum<Planted::kNoFenceAfter>(5, seed), FaultKind::kGlobalRace,
                      load, store));
  }
  // Thread 0 publishes what it knows of; of the others' writes it knows nothing. A merge that
  // happens to come after all barriers of its own block still reads theirs.
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_TRUE(Found(RunLastArriverSum<Planted::kNoBarrier>(5, seed), FaultKind::kGlobalRace, load,
                      store));
  }
}

}  // namespace
}  // namespace lean_attention::emulator
