// What CUDA and HIP spell alike. The names are those of ops/gpu/portable.h.

#ifndef LEAN_ATTENTION_OPS_GPU_PORTABLE_COMMON_H_
#define LEAN_ATTENTION_OPS_GPU_PORTABLE_COMMON_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define LEAN_ATTENTION_DEVICE __device__ __forceinline__
#define LEAN_ATTENTION_ROLLED _Pragma("unroll 1")
// Two blocks of a multiprocessor: without that bound compilers guess, and spill to fit three or
// take the registers of two for one.
#define LEAN_ATTENTION_KERNEL(threads) __global__ __launch_bounds__(threads, 2)

namespace lean_attention::gpu {

template <typename T>
using GlobalPtr = T*;
template <typename T>
using SharedPtr = T*;

LEAN_ATTENTION_DEVICE SharedPtr<std::byte> SharedMemory() {
  extern __shared__ __align__(16) std::byte shared_memory[];
  return shared_memory;
}

template <typename U, typename T>
LEAN_ATTENTION_DEVICE std::conditional_t<std::is_const_v<T>, const U, U>* As(T* pointer) {
  return reinterpret_cast<std::conditional_t<std::is_const_v<T>, const U, U>*>(pointer);
}

template <typename T>
LEAN_ATTENTION_DEVICE T Load(const T* pointer, int64_t index = 0) {
  return pointer[index];
}

template <typename T>
LEAN_ATTENTION_DEVICE void Store(T* pointer, int64_t index, const std::common_type_t<T>& value) {
  pointer[index] = value;
}

LEAN_ATTENTION_DEVICE int BlockThreads() { return static_cast<int>(blockDim.x); }
LEAN_ATTENTION_DEVICE int BlockIndex() { return static_cast<int>(blockIdx.x); }
LEAN_ATTENTION_DEVICE int GridBlocks() { return static_cast<int>(gridDim.x); }

LEAN_ATTENTION_DEVICE void SyncThreads() { __syncthreads(); }
LEAN_ATTENTION_DEVICE void ThreadFence() { __threadfence(); }

template <typename T>
LEAN_ATTENTION_DEVICE T AtomicAdd(T* pointer, std::common_type_t<T> value) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned>);
  return atomicAdd(pointer, value);
}

LEAN_ATTENTION_DEVICE unsigned AtomicIncrementWrap(unsigned* pointer, unsigned last) {
  return atomicInc(pointer, last);
}

LEAN_ATTENTION_DEVICE float FloatOfBits(uint32_t bits) { return __uint_as_float(bits); }
LEAN_ATTENTION_DEVICE uint32_t BitsOfFloat(float x) { return __float_as_uint(x); }

LEAN_ATTENTION_DEVICE float BFloat16ToFloat(uint16_t bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_PORTABLE_COMMON_H_
