// The names of ops/gpu/portable.h for nvcc, compute capability 8.0 and up. PTX ISA 7.0.

#ifndef LEAN_ATTENTION_OPS_GPU_PORTABLE_NVIDIA_H_
#define LEAN_ATTENTION_OPS_GPU_PORTABLE_NVIDIA_H_

#include <cuda_fp16.h>

#include "ops/gpu/portable/common.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "Asynchronous copies need compute capability 8.0"
#endif

#define LEAN_ATTENTION_AMD 0

namespace lean_attention::gpu {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFF;

LEAN_ATTENTION_DEVICE int ThreadIndex() { return static_cast<int>(threadIdx.x); }
LEAN_ATTENTION_DEVICE int Lane() { return ThreadIndex() % kWarpSize; }
// Shuffled, so that the compiler sees it to be the same in all lanes.
template <typename T>
LEAN_ATTENTION_DEVICE T Uniform(T value) {
  return __shfl_sync(kAllLanes, value, 0);
}
LEAN_ATTENTION_DEVICE int Warp() { return Uniform(ThreadIndex() / kWarpSize); }

LEAN_ATTENTION_DEVICE void SyncWarp() { __syncwarp(); }

template <typename T>
LEAN_ATTENTION_DEVICE T ShuffleXor(T value, int mask) {
  return __shfl_xor_sync(kAllLanes, value, mask);
}
template <typename T>
LEAN_ATTENTION_DEVICE T ShuffleDown(T value, int delta) {
  return __shfl_down_sync(kAllLanes, value, static_cast<unsigned>(delta));
}
template <typename T>
LEAN_ATTENTION_DEVICE T ShuffleUp(T value, int delta) {
  return __shfl_up_sync(kAllLanes, value, static_cast<unsigned>(delta));
}
template <typename T>
LEAN_ATTENTION_DEVICE T ShuffleFrom(T value, int lane) {
  return __shfl_sync(kAllLanes, value, lane);
}
LEAN_ATTENTION_DEVICE bool Any(bool holds) { return __any_sync(kAllLanes, holds) != 0; }
LEAN_ATTENTION_DEVICE uint64_t Ballot(bool holds) { return __ballot_sync(kAllLanes, holds); }

LEAN_ATTENTION_DEVICE unsigned SharedAddress(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

LEAN_ATTENTION_DEVICE void CopyAsync16(SharedPtr<std::byte> to, GlobalPtr<const std::byte> from,
                                       int valid = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)),
               "l"(__cvta_generic_to_global(from)), "r"(valid)
               : "memory");
}
LEAN_ATTENTION_DEVICE void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kGroups>
LEAN_ATTENTION_DEVICE void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

template <typename Element>
LEAN_ATTENTION_DEVICE void MmaM16N8K16(float* d, const uint32_t* a, const uint32_t* b) {
  if constexpr (Element::kIsBFloat16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

LEAN_ATTENTION_DEVICE void LoadMatrixX4(uint32_t* r, SharedPtr<const std::byte> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
LEAN_ATTENTION_DEVICE void LoadMatrixX4Transposed(uint32_t* r, SharedPtr<const std::byte> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
LEAN_ATTENTION_DEVICE void LoadMatrixX2(uint32_t* r, SharedPtr<const std::byte> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(SharedAddress(row))
               : "memory");
}
LEAN_ATTENTION_DEVICE void LoadMatrixX2Transposed(uint32_t* r, SharedPtr<const std::byte> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(SharedAddress(row))
               : "memory");
}

LEAN_ATTENTION_DEVICE float HalfToFloat(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
LEAN_ATTENTION_DEVICE uint16_t HalfFromFloat(float x) {
  return __half_as_ushort(__float2half_rn(x));
}
LEAN_ATTENTION_DEVICE uint16_t BFloat16FromFloat(float x) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
LEAN_ATTENTION_DEVICE uint32_t PackHalves(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
LEAN_ATTENTION_DEVICE uint32_t PackBFloat16s(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// As a half, its exponent is 8 too low; halves have the range for that, down to its subnormals.
LEAN_ATTENTION_DEVICE float Fp8E4M3ToFloat(uint8_t bits) {
  const unsigned magnitude = bits & 0x7Fu;
  const unsigned half = (bits & 0x80u) << 8 | (magnitude == 0x7F ? 0x7E00u : magnitude << 7);
  return HalfToFloat(static_cast<uint16_t>(half)) * 256.0f;
}

LEAN_ATTENTION_DEVICE float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_PORTABLE_NVIDIA_H_
