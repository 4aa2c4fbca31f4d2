// The launcher over the emulator instead of a GPU: launches are over when they return. Every launch
// runs under another interleaving; what the emulator reports is a device error.

#include <atomic>
#include <mutex>
#include <string>

#include "ops/emulator/launch.h"
#include "ops/gpu/decode_attention.h"
#include "ops/gpu/launch/built.h"
#include "ops/gpu/launch/launcher.h"
#include "tests/cpp/emulated_memory.h"
#include "tests/cpp/emulated_tensors.h"

namespace lean_attention::gpu {
namespace {

// Few, so that shares end inside sequences.
constexpr Device kDevice = {3, 227 * 1024};
constexpr int kBlocksPerMultiprocessor = 2;

// One stream for all: launches that come at the same time run one after the other.
std::mutex& Stream() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

template <typename Element, typename Cache, int kHeadSize>
emulator::Report Run(const GpuDecode& decode, const GpuDecision& decision,
                     const WorkspaceBuffers& buffers) {
  static std::atomic<uint64_t> launches{0};
  const Workspace workspace = WorkspaceOf(decode.problem, decode.max_length, decision);
  emulator::DeviceBuffer<float> states(workspace.state_bytes / int64_t{sizeof(float)});
  emulator::DeviceBuffer<int32_t> arrived(workspace.counters);
  if (arrived.size() > 0) {
    testing::CopyMemory(arrived.data(), buffers.counters, arrived.size() * sizeof(int32_t));
  }
  testing::EmulatedTensors<Element, Cache> tensors(decode);
  DecodeArgs<Element, Cache> args = tensors.Args();
  args.schedule = decision.schedule;
  args.amount = decision.amount;
  args.states = states.Ptr();
  args.arrived = arrived.Ptr();
  emulator::LaunchConfig config;
  config.blocks = decision.blocks;
  config.threads = kThreads;
  config.shared_bytes = static_cast<int>(SharedBytes(decode.problem));
  config.seed = ++launches;
  config.resident_blocks = kDevice.multiprocessors * kBlocksPerMultiprocessor;
  emulator::Report report =
      emulator::Launch(config, [&] { DecodeAttention<Element, Cache, kHeadSize>(args); });
  tensors.CopyBack();
  if (arrived.size() > 0) {
    testing::CopyMemory(buffers.counters, arrived.data(), arrived.size() * sizeof(int32_t));
    testing::CopyMemory(buffers.states, states.data(), workspace.state_bytes);
  }
  return report;
}

template <typename Element, int kHeadSize>
emulator::Report RunCache(const GpuDecode& decode, const GpuDecision& decision,
                          const WorkspaceBuffers& buffers) {
  switch (decode.problem.cache_type) {
    case ElementType::kInt8:
      return Run<Element, int8_t, kHeadSize>(decode, decision, buffers);
    case ElementType::kFloat8E4M3:
      return Run<Element, Fp8E4M3, kHeadSize>(decode, decision, buffers);
    default:
      return Run<Element, Element, kHeadSize>(decode, decision, buffers);
  }
}

}  // namespace

const char* BackendName() { return "emulator"; }

Status QueryDevice(Device* device) {
  *device = kDevice;
  return {};
}

Status QueryMachine(const GpuDecode&, GpuMachine* machine) {
  *machine = {kDevice.multiprocessors, kBlocksPerMultiprocessor};
  return {};
}

Status Launch(const GpuDecode& decode, const GpuDecision& decision, const WorkspaceBuffers& buffers,
              void* /*stream*/) {
  const Status status = CheckBuffers(decode, decision, buffers);
  if (!status.ok()) return status;
  const std::lock_guard<std::mutex> lock(Stream());
  emulator::Report report;
  WithHeadSize(decode.problem.head_size, [&](auto size) {
    constexpr int kHeadSize = decltype(size)::value;
    report = decode.element_type == ElementType::kFloat16
                 ? RunCache<Half, kHeadSize>(decode, decision, buffers)
                 : RunCache<BFloat16, kHeadSize>(decode, decision, buffers);
  });
  if (report.ok()) return {};
  return {StatusCode::kDeviceError, "the launch failed: " + report.ToString()};
}

Status CopyRows(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t bytes,
                int64_t rows, void* /*stream*/) {
  for (int64_t row = 0; row < rows; ++row) {
    testing::CopyMemory(static_cast<char*>(to) + row * to_stride,
                        static_cast<const char*>(from) + row * from_stride,
                        static_cast<size_t>(bytes));
  }
  return {};
}

Status ClearRows(void* to, int64_t stride, int64_t bytes, int64_t rows, void* /*stream*/) {
  for (int64_t row = 0; row < rows; ++row) {
    testing::ClearMemory(static_cast<char*>(to) + row * stride, static_cast<size_t>(bytes));
  }
  return {};
}

}  // namespace lean_attention::gpu
