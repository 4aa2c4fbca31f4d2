// How a test runs a kernel on the emulator.
//
//   DeviceBuffer<float> x(inputs), y(1000);
//   const Report report = Launch({blocks, threads, shared_bytes, seed}, [&] {
//     Kernel(x.ConstPtr(), y.Ptr());
//   });
//   EXPECT_TRUE(report.ok()) << report.ToString();
//
// The first fault ends the launch: what it had done until then stays in the buffers.

#ifndef LEAN_ATTENTION_OPS_EMULATOR_LAUNCH_H_
#define LEAN_ATTENTION_OPS_EMULATOR_LAUNCH_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "ops/emulator/buffer.h"
#include "ops/emulator/device.h"
#include "ops/emulator/grid.h"
#include "ops/emulator/report.h"

namespace lean_attention::emulator {

struct LaunchConfig {
  int blocks = 1;
  int threads = gpu::kWarpSize;  // of a block: whole warps
  int shared_bytes = 0;          // of a block
  uint64_t seed = 0;             // draws the interleaving
  int resident_blocks = 4;       // that run at a time
};

// Runs `kernel` in every thread of the grid, which holds them all: no kernel may wait for a block
// that is not resident. Throws std::invalid_argument for a grid that no device could run.
inline Report Launch(const LaunchConfig& config, std::function<void()> kernel) {
  return Grid({config.blocks, config.threads, config.shared_bytes, config.seed,
               config.resident_blocks, gpu::kWarpSize},
              std::move(kernel))
      .Run();
}

}  // namespace lean_attention::emulator

#endif  // LEAN_ATTENTION_OPS_EMULATOR_LAUNCH_H_
