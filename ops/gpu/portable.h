// The few names in which CUDA, HIP and the emulator differ. Kernels use these and plain C++ only.
//
// Pointers and accesses. GlobalPtr<T> and SharedPtr<T> are T* on devices, and checked pointers on
// the emulator. Memory is touched through the functions alone:
//   SharedMemory()                     SharedPtr<std::byte>, the block's dynamic shared memory
//   As<U>(pointer)                     the same address as elements U; keeps const
//   Load(pointer, index = 0)           any trivially copyable T of at most 16 bytes
//   Store(pointer, index, value)       the same; Vec<T, n> makes it one access of n elements
//
// Threads. Grids and blocks have one dimension; blocks are whole warps.
//   ThreadIndex() BlockThreads() BlockIndex() GridBlocks() Lane(), and kWarpSize
//   Warp()                             Uniform (below), so for all lanes of a warp at once
//
// Order. Only these order what threads do to memory: shuffles, votes and matrix instructions bring
// the lanes of a warp together without it (CUDA C++ Programming Guide, "Warp Shuffle Functions").
//   SyncThreads()                      all threads of the block
//   SyncWarp()                         all lanes of the warp
//   ThreadFence()                      device scope, release and acquire
//   AtomicAdd(pointer, value)          int or unsigned; the old value
//   AtomicIncrementWrap(pointer, last) unsigned; 0, 1, ... last, 0, ...; the old value
// A block passes data on by SyncThreads(), then in one thread ThreadFence() and an atomic; another
// takes it over by an atomic and ThreadFence() in one thread, then SyncThreads().
//
// Collectives, for all lanes of a warp at once; values are int, unsigned, int64_t or float.
//   ShuffleXor(value, mask) ShuffleFrom(value, lane)
//   ShuffleDown(value, delta) ShuffleUp(value, delta)    the own value where there is no such lane
//   Any(bool)  Ballot(bool)            bit i of the 64 is lane i's
//   Uniform(value)                     int or int64_t: the value, which is the same in all lanes;
//                                      compilers then hold it, and branch on it, once for a warp
//
// Asynchronous copies. A thread reads its own after the wait, other threads after a barrier too.
//   CopyAsync16(to, from, valid = 16)  16 bytes; only the first `valid` are read, the rest is zero
//   CommitCopies()                     closes a group
//   WaitCopies<n>()                    until at most n groups of this thread are in flight
//
// Matrix instructions, for all lanes of a warp at once: D += A B, float32 sums. Element is Half or
// BFloat16. Lane layouts: ops/emulator/matrix.h.
//   NVIDIA  MmaM16N8K16<Element>(float d[4], uint32_t a[4], uint32_t b[2])
//           LoadMatrixX4(uint32_t r[4], row)  LoadMatrixX2(uint32_t r[2], row)
//           LoadMatrixX4Transposed, LoadMatrixX2Transposed
//             8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix
//             i / 8, 16-byte aligned; for X2 those of lanes 16 and up are ignored
//   AMD     Mfma16x16x16(float d[4], Element a[4], Element b[4])
//
// Loops. LEAN_ATTENTION_ROLLED before one keeps compilers from unrolling it, which costs registers.
//
// Numbers.
//   ToFloat(Half | BFloat16 | Fp8E4M3 | int8_t)    exact
//   FromFloat<Half | BFloat16>(float)              to nearest, ties to even; NaN stays NaN
//   PackPair<Half | BFloat16>(low, high)           two of them in a uint32_t
//   FloatOfBits(uint32_t)  BitsOfFloat(float)      the same bits
//   Exp2(float)                                    2^x to a few units in the last place

#ifndef LEAN_ATTENTION_OPS_GPU_PORTABLE_H_
#define LEAN_ATTENTION_OPS_GPU_PORTABLE_H_

#include <cstddef>
#include <cstdint>

#if defined(LEAN_ATTENTION_EMULATED)
#include "ops/emulator/device.h"
#elif defined(__HIPCC__)
#include "ops/gpu/portable/amd.h"
#elif defined(__CUDACC__)
#include "ops/gpu/portable/nvidia.h"
#else
#error "Kernels are for nvcc, hipcc or, with LEAN_ATTENTION_EMULATED, the emulator"
#endif

namespace lean_attention::gpu {

enum class Vendor { kNvidia, kAmd };
inline constexpr Vendor kVendor = LEAN_ATTENTION_AMD ? Vendor::kAmd : Vendor::kNvidia;

// n elements that are loaded and stored at once; aligned to their size of 4, 8 or 16 bytes.
template <typename T, int n>
struct alignas(sizeof(T) * n) Vec {
  T values[n];

  LEAN_ATTENTION_DEVICE T& operator[](int i) { return values[i]; }
  LEAN_ATTENTION_DEVICE const T& operator[](int i) const { return values[i]; }
};

// Formats of storage; arithmetic is in float.
struct Half {
  uint16_t bits;
  static constexpr bool kIsBFloat16 = false;
};
struct BFloat16 {
  uint16_t bits;
  static constexpr bool kIsBFloat16 = true;
};
struct Fp8E4M3 {  // OCP: no infinity, 0x7F and 0xFF are NaN; 448 at most
  uint8_t bits;
};

LEAN_ATTENTION_DEVICE float ToFloat(Half x) { return HalfToFloat(x.bits); }
LEAN_ATTENTION_DEVICE float ToFloat(BFloat16 x) { return BFloat16ToFloat(x.bits); }
LEAN_ATTENTION_DEVICE float ToFloat(Fp8E4M3 x) { return Fp8E4M3ToFloat(x.bits); }
LEAN_ATTENTION_DEVICE float ToFloat(int8_t x) { return static_cast<float>(x); }

template <typename Element>
LEAN_ATTENTION_DEVICE Element FromFloat(float x) {
  return {Element::kIsBFloat16 ? BFloat16FromFloat(x) : HalfFromFloat(x)};
}

template <typename Element>
LEAN_ATTENTION_DEVICE uint32_t PackPair(float low, float high) {
  return Element::kIsBFloat16 ? PackBFloat16s(low, high) : PackHalves(low, high);
}

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_PORTABLE_H_
