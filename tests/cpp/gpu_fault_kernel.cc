// The one kernel of a test of a planted fault: what it includes of ops/gpu is a changed copy.

#include "tests/cpp/gpu_launch.h"

namespace lean_attention::testing {

GpuOutcome Run(const Step& before, const GpuLaunch& launch) {
  return RunKernel<gpu::Half, gpu::Half, 64>(before, launch);
}

}  // namespace lean_attention::testing
