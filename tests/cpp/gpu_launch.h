// The GPU kernel of one pair of types and one head size, launched over the tensors of a step.

#ifndef LEAN_ATTENTION_TESTS_CPP_GPU_LAUNCH_H_
#define LEAN_ATTENTION_TESTS_CPP_GPU_LAUNCH_H_

#include <algorithm>
#include <vector>

#include "ops/emulator/launch.h"
#include "ops/gpu/decode_attention.h"
#include "tests/cpp/emulated_tensors.h"
#include "tests/cpp/gpu_step.h"

namespace lean_attention::testing {

template <typename Element, typename Cache, int kHeadSize>
GpuOutcome RunKernel(const Step& before, const GpuLaunch& launch) {
  GpuOutcome outcome = {before, {}, false};
  EmulatedTensors<Element, Cache> tensors(DecodeOf(&outcome.step, launch));
  gpu::DecodeArgs<Element, Cache> args = tensors.Args();
  const Problem p = outcome.step.Args().problem;
  const Cut cut(p, launch.schedule, launch.amount);
  const gpu::RegionLayout region = gpu::RegionLayoutOf(p, args.max_length);
  emulator::DeviceBuffer<float> states(cut.regions() * region.region_floats());
  emulator::DeviceBuffer<int32_t> arrived(std::vector<int32_t>(cut.regions(), 0));
  args.schedule = launch.schedule;
  args.amount = launch.amount;
  args.states = states.Ptr();
  args.arrived = arrived.Ptr();

  emulator::LaunchConfig config;
  config.blocks = launch.blocks > 0 ? launch.blocks : static_cast<int>(cut.shares());
  config.threads = gpu::kThreads;
  config.shared_bytes = gpu::SharedLayout<Cache, kHeadSize>(RowsPerKvHead(p), p.batch_size).bytes();
  config.seed = launch.seed;
  config.resident_blocks = launch.resident_blocks;
  outcome.report =
      emulator::Launch(config, [&] { gpu::DecodeAttention<Element, Cache, kHeadSize>(args); });
  outcome.counters_are_zero =
      std::all_of(arrived.begin(), arrived.end(), [](int32_t n) { return n == 0; });
  tensors.CopyBack();
  return outcome;
}

}  // namespace lean_attention::testing

#endif  // LEAN_ATTENTION_TESTS_CPP_GPU_LAUNCH_H_
