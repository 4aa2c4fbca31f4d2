// Attention of 16 query rows over 16 keys in mma.m16n8k16 instructions.
//
//   scores [16 rows, 16 keys]      = Q [16, H] K^T, two instructions for 16 channels
//   output [16 rows, 16 channels] += P [16, 16 keys] V, two instructions
//
// What the scores' instructions leave in a lane is what the output's take as their A: weights never
// leave the registers. Lane layouts: PTX ISA, "Matrix fragments for mma.m16n8k16".
//
// Caches of 8-bit numbers are taken four bytes at a time. The order of channels is free as long as
// both sides have the same: for scores a lane has four neighbouring ones where the instruction
// counts 2t, 2t + 1, 2t + 8, 2t + 9; of values, which are transposed two to a 16-bit unit, the even
// and the odd channels go to an instruction each.

#ifndef LEAN_ATTENTION_OPS_GPU_PRIMITIVES_NVIDIA_H_
#define LEAN_ATTENTION_OPS_GPU_PRIMITIVES_NVIDIA_H_

#include "ops/gpu/shared_layout.h"

namespace lean_attention::gpu {

// 16 keys in shared memory, rows SharedLayout's kStride apart.
struct KeyBlock {
  SharedPtr<const std::byte> k;
  SharedPtr<const std::byte> v;
};

template <typename Element, typename Cache, int kHeadSize>
struct Matrix {
  using Layout = SharedLayout<Cache, kHeadSize>;
  using Block = KeyBlock;

  static constexpr int kValueSteps = kHeadSize / 16;  // that values take, of 16 channels each
  static constexpr int kRowSlots = 2;                 // query rows that a lane holds something of
  static constexpr int kValues = 8;                   // of 16 x 16 in a lane

  static LEAN_ATTENTION_DEVICE int Row(int slot) { return Lane() / 4 + 8 * slot; }
  // Of value i of a lane: which of its row slots, and which key.
  static constexpr LEAN_ATTENTION_DEVICE int SlotOf(int i) { return i / 2 % 2; }
  static LEAN_ATTENTION_DEVICE int KeyOf(int i) { return Lane() % 4 * 2 + KeyOffset(i); }
  // Of value i of a step, counted from the first channel of the lane.
  static LEAN_ATTENTION_DEVICE int FirstChannel() {
    return Lane() % 4 * (kIsQuantised<Cache> ? 4 : 2);
  }
  static constexpr LEAN_ATTENTION_DEVICE int ChannelOffset(int step, int i) {
    return step * 16 + (kIsQuantised<Cache> ? i % 2 * 2 + i / 4 : KeyOffset(i));
  }
  // Of the lanes that hold the same rows, the one that speaks for all.
  static LEAN_ATTENTION_DEVICE bool SpeaksForRow() { return Lane() % 4 == 0; }

  static LEAN_ATTENTION_DEVICE float RowMax(float x) {
    x = fmaxf(x, ShuffleXor(x, 1));
    return fmaxf(x, ShuffleXor(x, 2));
  }
  static LEAN_ATTENTION_DEVICE float RowSum(float x) {
    x += ShuffleXor(x, 1);
    return x + ShuffleXor(x, 2);
  }

  // 16 channels of the queries.
  struct Queries {
    uint32_t a[4];
  };

  static LEAN_ATTENTION_DEVICE Queries LoadQueries(SharedPtr<const std::byte> q, int stride,
                                                   int step) {
    Queries queries;
    if constexpr (kIsQuantised<Cache>) {
      using Four = Vec<uint32_t, 2>;  // channels
      for (int slot = 0; slot < 2; ++slot) {
        const Four four = Load(As<Four>(q + Row(slot) * stride + step * 32), Lane() % 4);
        queries.a[slot] = four[0];
        queries.a[slot + 2] = four[1];
      }
    } else {
      LoadMatrixX4(queries.a, q + Lane() % 16 * stride + Lane() / 16 * 16 + step * 32);
    }
    return queries;
  }

  // Adds the products of 16 channels.
  static LEAN_ATTENTION_DEVICE void AddScores(const Queries& queries, const Block& block, int step,
                                              float (&scores)[kValues]) {
    uint32_t b[4];
    if constexpr (kIsQuantised<Cache>) {
      for (int half = 0; half < 2; ++half) {
        const int key = Lane() / 4 + 8 * half;
        Unpack<Element, Cache>(
            Load(As<uint32_t>(block.k + key * Layout::kStride + step * 16), Lane() % 4),
            b + 2 * half);
      }
    } else {
      const int key = Lane() % 8 + Lane() / 16 * 8;
      LoadMatrixX4(b, block.k + key * Layout::kStride + Lane() / 8 % 2 * 16 + step * 32);
    }
    MmaM16N8K16<Element>(scores, queries.a, b);
    MmaM16N8K16<Element>(scores + 4, queries.a, b + 2);
  }

  // 16 keys' weights.
  struct Weights {
    uint32_t a[4];
  };

  static LEAN_ATTENTION_DEVICE Weights ToWeights(const float (&p)[kValues]) {
    Weights weights;
    for (int i = 0; i < 4; ++i) weights.a[i] = PackPair<Element>(p[2 * i], p[2 * i + 1]);
    return weights;
  }

  // Adds 16 keys' values in 16 channels.
  static LEAN_ATTENTION_DEVICE void AddValues(const Weights& weights, const Block& block, int step,
                                              float (&output)[kValues]) {
    const SharedPtr<const std::byte> v = block.v + Lane() % 16 * Layout::kStride;
    uint32_t b[4];
    if constexpr (kIsQuantised<Cache>) {
      uint32_t keys[2];  // two channels of two keys in each
      LoadMatrixX2Transposed(keys, v + step * 16);
      for (int half = 0; half < 2; ++half) {
        uint32_t channels[2];
        Unpack<Element, Cache>(SwapInnerBytes(keys[half]), channels);
        b[half] = channels[0];
        b[2 + half] = channels[1];
      }
    } else {
      LoadMatrixX4Transposed(b, v + Lane() / 16 * 16 + step * 32);
    }
    MmaM16N8K16<Element>(output, weights.a, b);
    MmaM16N8K16<Element>(output + 4, weights.a, b + 2);
  }

 private:
  static constexpr LEAN_ATTENTION_DEVICE int KeyOffset(int i) { return i / 4 * 8 + i % 2; }

  static LEAN_ATTENTION_DEVICE uint32_t SwapInnerBytes(uint32_t x) {
    return (x & 0xFF0000FFu) | (x >> 8 & 0xFF00u) | (x & 0xFF00u) << 8;
  }
};

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_PRIMITIVES_NVIDIA_H_
