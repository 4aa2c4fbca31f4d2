// The toys for nvcc and hipcc: that they compile is the test.

#include "tests/cpp/emulator_toys.cuh"

namespace lean_attention::gpu::toys {

template __global__ void BlockSums<Planted::kNothing>(const float*, int, float*);
template __global__ void RotateInWarp<Planted::kNothing>(const float*, float*);
template __global__ void PipelinedColumnSums<Planted::kNothing>(const float*, int, float*);
template __global__ void LastArriverSum<Planted::kNothing>(const float*, int, float*, unsigned*,
                                                           float*);
template __global__ void MatrixProduct<Half, false, Planted::kNothing>(const Half*, const Half*,
                                                                       float*);
template __global__ void MatrixProduct<BFloat16, true, Planted::kNothing>(const BFloat16*,
                                                                          const BFloat16*, float*);
template __global__ void Numbers<Half>(const float*, const Fp8E4M3*, const int8_t*, int*, float*);
template __global__ void Numbers<BFloat16>(const float*, const Fp8E4M3*, const int8_t*, int*,
                                           float*);

}  // namespace lean_attention::gpu::toys
