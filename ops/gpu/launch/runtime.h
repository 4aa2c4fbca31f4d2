// The few calls in which the CUDA and the HIP runtime differ by name.

#ifndef LEAN_ATTENTION_OPS_GPU_LAUNCH_RUNTIME_H_
#define LEAN_ATTENTION_OPS_GPU_LAUNCH_RUNTIME_H_

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#else
#include <cuda_runtime_api.h>
#endif

#include <string>

#include "ops/gpu/launch/launcher.h"

namespace lean_attention::gpu::runtime {

#if defined(__HIPCC__)

inline constexpr const char* kName = "ROCm";
using Error = hipError_t;
inline constexpr Error kSuccess = hipSuccess;
inline constexpr auto kMultiprocessors = hipDeviceAttributeMultiprocessorCount;
inline constexpr auto kSharedBytes = hipDeviceAttributeMaxSharedMemoryPerBlock;
inline constexpr auto kGetDevice = hipGetDevice;
inline constexpr auto kGetAttribute = hipDeviceGetAttribute;

inline Error LaunchKernel(const void* kernel, int blocks, int threads, void** args,
                          int64_t shared_bytes, void* stream) {
  return hipLaunchKernel(kernel, dim3(blocks), dim3(threads), args,
                         static_cast<size_t>(shared_bytes), static_cast<hipStream_t>(stream));
}

// Blocks may have all of it without asking.
inline Error AllowSharedBytes(const void*, int) { return kSuccess; }
inline Error CountBlocks(int* blocks, const void* kernel, int threads, int64_t shared_bytes) {
  return hipOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads,
                                                      static_cast<size_t>(shared_bytes));
}
inline Error CopyRows(void* to, int64_t to_stride, const void* from, int64_t from_stride,
                      int64_t bytes, int64_t rows, void* stream) {
  return hipMemcpy2DAsync(to, static_cast<size_t>(to_stride), from,
                          static_cast<size_t>(from_stride), static_cast<size_t>(bytes),
                          static_cast<size_t>(rows), hipMemcpyDeviceToDevice,
                          static_cast<hipStream_t>(stream));
}
inline Error ClearRows(void* to, int64_t stride, int64_t bytes, int64_t rows, void* stream) {
  return hipMemset2DAsync(to, static_cast<size_t>(stride), 0, static_cast<size_t>(bytes),
                          static_cast<size_t>(rows), static_cast<hipStream_t>(stream));
}
inline const char* Words(Error error) { return hipGetErrorString(error); }
inline void ForgetError() { static_cast<void>(hipGetLastError()); }

#else

inline constexpr const char* kName = "CUDA";
using Error = cudaError_t;
inline constexpr Error kSuccess = cudaSuccess;
inline constexpr auto kMultiprocessors = cudaDevAttrMultiProcessorCount;
inline constexpr auto kSharedBytes = cudaDevAttrMaxSharedMemoryPerBlockOptin;
inline constexpr auto kGetDevice = cudaGetDevice;
inline constexpr auto kGetAttribute = cudaDeviceGetAttribute;

inline Error LaunchKernel(const void* kernel, int blocks, int threads, void** args,
                          int64_t shared_bytes, void* stream) {
  return cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), args,
                          static_cast<size_t>(shared_bytes), static_cast<cudaStream_t>(stream));
}

// More than 48 KiB must be asked for, on each device.
inline Error AllowSharedBytes(const void* kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}
inline Error CountBlocks(int* blocks, const void* kernel, int threads, int64_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads,
                                                       static_cast<size_t>(shared_bytes));
}
inline Error CopyRows(void* to, int64_t to_stride, const void* from, int64_t from_stride,
                      int64_t bytes, int64_t rows, void* stream) {
  return cudaMemcpy2DAsync(to, static_cast<size_t>(to_stride), from,
                           static_cast<size_t>(from_stride), static_cast<size_t>(bytes),
                           static_cast<size_t>(rows), cudaMemcpyDeviceToDevice,
                           static_cast<cudaStream_t>(stream));
}
inline Error ClearRows(void* to, int64_t stride, int64_t bytes, int64_t rows, void* stream) {
  return cudaMemset2DAsync(to, static_cast<size_t>(stride), 0, static_cast<size_t>(bytes),
                           static_cast<size_t>(rows), static_cast<cudaStream_t>(stream));
}
inline const char* Words(Error error) { return cudaGetErrorString(error); }
inline void ForgetError() { static_cast<void>(cudaGetLastError()); }

#endif

// Leaves no error behind for the runtime's next caller to find.
inline Status AsStatus(Error error, const char* doing) {
  if (error == kSuccess) return {};
  ForgetError();
  return {StatusCode::kDeviceError, std::string(doing) + ": " + Words(error)};
}

}  // namespace lean_attention::gpu::runtime

#endif  // LEAN_ATTENTION_OPS_GPU_LAUNCH_RUNTIME_H_
