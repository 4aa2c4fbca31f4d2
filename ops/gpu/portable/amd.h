// The names of ops/gpu/portable.h for hipcc: CDNA 2 and later (gfx90a, gfx942), waves of 64.

#ifndef LEAN_ATTENTION_OPS_GPU_PORTABLE_AMD_H_
#define LEAN_ATTENTION_OPS_GPU_PORTABLE_AMD_H_

#include <hip/hip_runtime.h>

#include "ops/gpu/portable/common.h"

#define LEAN_ATTENTION_AMD 1

namespace lean_attention::gpu {

inline constexpr int kWarpSize = 64;

LEAN_ATTENTION_DEVICE int32_t Uniform(int32_t x) { return __builtin_amdgcn_readfirstlane(x); }
LEAN_ATTENTION_DEVICE int64_t Uniform(int64_t x) {
  const auto low = static_cast<uint32_t>(Uniform(static_cast<int32_t>(x)));
  return int64_t{Uniform(static_cast<int32_t>(x >> 32))} << 32 | low;
}

// Hidden from the optimizer, which otherwise computes every thread's places in memory ahead of all
// loops and has no registers left inside them.
LEAN_ATTENTION_DEVICE int ThreadIndex() {
  auto index = static_cast<int>(threadIdx.x);
  asm volatile("" : "+v"(index));
  __builtin_assume(index >= 0 && index < 1024);
  return index;
}
LEAN_ATTENTION_DEVICE int Lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }
LEAN_ATTENTION_DEVICE int Warp() { return Uniform(static_cast<int>(threadIdx.x) / kWarpSize); }

// Lanes run in step; what is left is to keep the compiler from moving accesses across.
LEAN_ATTENTION_DEVICE void SyncWarp() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
}

// HIP spells int64_t's shuffle with long long.
template <typename T>
using Shuffled = std::conditional_t<std::is_same_v<T, int64_t>, long long, T>;

template <typename T>
LEAN_ATTENTION_DEVICE T ShuffleXor(T value, int mask) {
  return __shfl_xor(static_cast<Shuffled<T>>(value), mask);
}
template <typename T>
LEAN_ATTENTION_DEVICE T ShuffleDown(T value, int delta) {
  return __shfl_down(static_cast<Shuffled<T>>(value), static_cast<unsigned>(delta));
}
template <typename T>
LEAN_ATTENTION_DEVICE T ShuffleUp(T value, int delta) {
  return __shfl_up(static_cast<Shuffled<T>>(value), static_cast<unsigned>(delta));
}
template <typename T>
LEAN_ATTENTION_DEVICE T ShuffleFrom(T value, int lane) {
  return __shfl(static_cast<Shuffled<T>>(value), lane);
}
LEAN_ATTENTION_DEVICE bool Any(bool holds) { return __any(holds) != 0; }
LEAN_ATTENTION_DEVICE uint64_t Ballot(bool holds) { return __ballot(holds); }

// No asynchronous copies: these have landed when the call returns.
LEAN_ATTENTION_DEVICE void CopyAsync16(SharedPtr<std::byte> to, GlobalPtr<const std::byte> from,
                                       int valid = 16) {
  uint4 data = {0, 0, 0, 0};
  if (valid == 16) {
    data = *reinterpret_cast<const uint4*>(from);
  } else {
    std::byte bytes[16] = {};
    for (int i = 0; i < 16; ++i) bytes[i] = i < valid ? from[i] : std::byte{0};
    __builtin_memcpy(&data, bytes, sizeof(data));
  }
  *reinterpret_cast<uint4*>(to) = data;
}
LEAN_ATTENTION_DEVICE void CommitCopies() {}
template <int kGroups>
LEAN_ATTENTION_DEVICE void WaitCopies() {}

template <typename Element>
LEAN_ATTENTION_DEVICE void Mfma16x16x16(float* d, const Element* a, const Element* b) {
  using Floats = float __attribute__((ext_vector_type(4)));
  // The builtins take bfloat16 as short.
  using Number = std::conditional_t<Element::kIsBFloat16, short, _Float16>;
  using Numbers = Number __attribute__((ext_vector_type(4)));
  Numbers a4, b4;
  __builtin_memcpy(&a4, a, sizeof(a4));
  __builtin_memcpy(&b4, b, sizeof(b4));
  Floats d4 = {d[0], d[1], d[2], d[3]};
  if constexpr (Element::kIsBFloat16) {
    d4 = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a4, b4, d4, 0, 0, 0);
  } else {
    d4 = __builtin_amdgcn_mfma_f32_16x16x16f16(a4, b4, d4, 0, 0, 0);
  }
  for (int i = 0; i < 4; ++i) d[i] = d4[i];
}

LEAN_ATTENTION_DEVICE float HalfToFloat(uint16_t bits) {
  _Float16 half;
  __builtin_memcpy(&half, &bits, sizeof(half));
  return static_cast<float>(half);
}
LEAN_ATTENTION_DEVICE uint16_t HalfFromFloat(float x) {
  const auto half = static_cast<_Float16>(x);
  uint16_t bits;
  __builtin_memcpy(&bits, &half, sizeof(bits));
  return bits;
}
LEAN_ATTENTION_DEVICE uint16_t BFloat16FromFloat(float x) {
  const unsigned bits = __float_as_uint(x);
  if (x != x) return 0x7FFF;
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
LEAN_ATTENTION_DEVICE uint32_t PackHalves(float low, float high) {
  return HalfFromFloat(low) | static_cast<uint32_t>(HalfFromFloat(high)) << 16;
}
LEAN_ATTENTION_DEVICE uint32_t PackBFloat16s(float low, float high) {
  return BFloat16FromFloat(low) | static_cast<uint32_t>(BFloat16FromFloat(high)) << 16;
}
// As a half, its exponent is 8 too low; halves have the range for that, down to its subnormals.
LEAN_ATTENTION_DEVICE float Fp8E4M3ToFloat(uint8_t bits) {
  const unsigned magnitude = bits & 0x7Fu;
  const unsigned half = (bits & 0x80u) << 8 | (magnitude == 0x7F ? 0x7E00u : magnitude << 7);
  return HalfToFloat(static_cast<uint16_t>(half)) * 256.0f;
}

LEAN_ATTENTION_DEVICE float Exp2(float x) { return __builtin_exp2f(x); }

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_PORTABLE_AMD_H_
