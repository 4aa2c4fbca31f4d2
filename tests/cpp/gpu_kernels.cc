// Every GPU kernel that the tests run.

#include <stdexcept>

#include "tests/cpp/gpu_launch.h"

namespace lean_attention::testing {
namespace {

template <typename Element, typename Cache>
GpuOutcome RunHeadSize(const Step& before, const GpuLaunch& launch) {
  switch (before.spec().head_size) {
    case 64:
      return RunKernel<Element, Cache, 64>(before, launch);
    case 80:
      return RunKernel<Element, Cache, 80>(before, launch);
    case 96:
      return RunKernel<Element, Cache, 96>(before, launch);
    case 128:
      return RunKernel<Element, Cache, 128>(before, launch);
    case 256:
      return RunKernel<Element, Cache, 256>(before, launch);
    default:
      throw std::invalid_argument("no GPU kernel for this head size");
  }
}

template <typename Element>
GpuOutcome RunCache(const Step& before, const GpuLaunch& launch) {
  switch (before.spec().types.cache) {
    case ElementType::kInt8:
      return RunHeadSize<Element, int8_t>(before, launch);
    case ElementType::kFloat8E4M3:
      return RunHeadSize<Element, gpu::Fp8E4M3>(before, launch);
    default:
      return RunHeadSize<Element, Element>(before, launch);
  }
}

}  // namespace

GpuOutcome Run(const Step& before, const GpuLaunch& launch) {
  switch (before.spec().types.element) {
    case ElementType::kFloat16:
      return RunCache<gpu::Half>(before, launch);
    case ElementType::kBFloat16:
      return RunCache<gpu::BFloat16>(before, launch);
    default:
      throw std::invalid_argument("no GPU kernel for this type");
  }
}

}  // namespace lean_attention::testing
