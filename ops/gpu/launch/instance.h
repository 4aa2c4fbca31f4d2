// One instantiation of the kernel, as a launch sees it. Each is compiled by a file of its own.

#ifndef LEAN_ATTENTION_OPS_GPU_LAUNCH_INSTANCE_H_
#define LEAN_ATTENTION_OPS_GPU_LAUNCH_INSTANCE_H_

#include "ops/gpu/launch/launcher.h"

namespace lean_attention::gpu {

struct Instance {
  const void* kernel;  // what the runtime knows it by
  int threads;         // of a block
  Status (*launch)(const Instance& instance, const GpuDecode& decode, const GpuDecision& decision,
                   const WorkspaceBuffers& buffers, void* stream);
};

template <typename Element, typename Cache, int kHeadSize>
Instance InstanceOf();

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_LAUNCH_INSTANCE_H_
