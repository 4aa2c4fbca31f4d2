// Queries and launches, for the CUDA and the HIP runtime.

#include "ops/gpu/launch/built.h"
#include "ops/gpu/launch/instance.h"
#include "ops/gpu/launch/launcher.h"
#include "ops/gpu/launch/runtime.h"
#include "ops/gpu/portable.h"

namespace lean_attention::gpu {
namespace {

template <typename Element, int kHeadSize>
Instance InstanceOfCache(ElementType cache_type) {
  switch (cache_type) {
    case ElementType::kInt8:
      return InstanceOf<Element, int8_t, kHeadSize>();
    case ElementType::kFloat8E4M3:
      return InstanceOf<Element, Fp8E4M3, kHeadSize>();
    default:
      return InstanceOf<Element, Element, kHeadSize>();
  }
}

// The kernel of a step that has passed Check.
Instance InstanceFor(const GpuDecode& decode) {
  Instance instance = {};
  WithHeadSize(decode.problem.head_size, [&](auto size) {
    constexpr int kHeadSize = decltype(size)::value;
    instance = decode.element_type == ElementType::kFloat16
                   ? InstanceOfCache<Half, kHeadSize>(decode.problem.cache_type)
                   : InstanceOfCache<BFloat16, kHeadSize>(decode.problem.cache_type);
  });
  return instance;
}

// Lets a kernel's blocks have all that the device has: the limit belongs to the kernel, and
// launches of other sizes may be on their way from other threads.
Status AllowSharedBytes(const Instance& instance, const Device& device) {
  return runtime::AsStatus(
      runtime::AllowSharedBytes(instance.kernel, static_cast<int>(device.shared_bytes)),
      "the device refused a block's shared memory");
}

}  // namespace

const char* BackendName() { return runtime::kName; }

Status QueryDevice(Device* device) {
  constexpr const char* kDoing = "the current GPU could not be asked";
  int id = 0;
  int multiprocessors = 0;
  int shared_bytes = 0;
  Status status = runtime::AsStatus(runtime::kGetDevice(&id), kDoing);
  if (status.ok()) {
    status = runtime::AsStatus(
        runtime::kGetAttribute(&multiprocessors, runtime::kMultiprocessors, id), kDoing);
  }
  if (status.ok()) {
    status =
        runtime::AsStatus(runtime::kGetAttribute(&shared_bytes, runtime::kSharedBytes, id), kDoing);
  }
  if (status.ok()) *device = {multiprocessors, shared_bytes};
  return status;
}

Status QueryMachine(const GpuDecode& decode, GpuMachine* machine) {
  const Problem& p = decode.problem;
  const Instance instance = InstanceFor(decode);
  const int64_t shared_bytes = SharedBytes(p);
  Device device = {};
  int blocks = 0;
  Status status = QueryDevice(&device);
  if (status.ok()) status = AllowSharedBytes(instance, device);
  if (status.ok()) {
    status = runtime::AsStatus(
        runtime::CountBlocks(&blocks, instance.kernel, instance.threads, shared_bytes),
        "the device could not say how many blocks fit");
  }
  if (status.ok() && blocks < 1) {
    status = {StatusCode::kUnsupported, "no block of the kernel fits this device"};
  }
  if (status.ok()) *machine = {device.multiprocessors, blocks};
  return status;
}

Status Launch(const GpuDecode& decode, const GpuDecision& decision, const WorkspaceBuffers& buffers,
              void* stream) {
  const Instance instance = InstanceFor(decode);
  Device device = {};
  Status status = CheckBuffers(decode, decision, buffers);
  if (status.ok()) status = QueryDevice(&device);
  if (status.ok()) status = AllowSharedBytes(instance, device);
  if (status.ok()) status = instance.launch(instance, decode, decision, buffers, stream);
  return status;
}

Status CopyRows(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t bytes,
                int64_t rows, void* stream) {
  return runtime::AsStatus(runtime::CopyRows(to, to_stride, from, from_stride, bytes, rows, stream),
                           "a copy on the device failed");
}

Status ClearRows(void* to, int64_t stride, int64_t bytes, int64_t rows, void* stream) {
  return runtime::AsStatus(runtime::ClearRows(to, stride, bytes, rows, stream),
                           "the device could not clear memory");
}

}  // namespace lean_attention::gpu
