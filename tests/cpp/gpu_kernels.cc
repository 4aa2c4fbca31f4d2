// Every GPU kernel that the tests run.

#include <stdexcept>

#include "tests/cpp/gpu_launch.h"

namespace lean_attention::testing {
namespace {

template <typename Element>
GpuOutcome RunHeadSize(const Step& before, const GpuLaunch& launch) {
  switch (before.spec().head_size) {
    case 64:
      return RunKernel<Element, 64>(before, launch);
    case 80:
      return RunKernel<Element, 80>(before, launch);
    case 96:
      return RunKernel<Element, 96>(before, launch);
    case 128:
      return RunKernel<Element, 128>(before, launch);
    case 256:
      return RunKernel<Element, 256>(before, launch);
    default:
      throw std::invalid_argument("no GPU kernel for this head size");
  }
}

}  // namespace

GpuOutcome Run(const Step& before, const GpuLaunch& launch) {
  switch (before.spec().types.cache) {
    case ElementType::kFloat16:
      return RunHeadSize<gpu::Half>(before, launch);
    case ElementType::kBFloat16:
      return RunHeadSize<gpu::BFloat16>(before, launch);
    default:
      throw std::invalid_argument("no GPU kernel for this type");
  }
}

}  // namespace lean_attention::testing
