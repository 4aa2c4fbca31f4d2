// Attention of 16 query rows over 16 keys in mma.m16n8k16 instructions.
//
//   scores [16 rows, 16 keys]      = Q [16, H] K^T, two instructions for 16 channels
//   output [16 rows, 16 channels] += P [16, 16 keys] V, two instructions
//
// What the scores' instructions leave in a lane is what the output's take as their A: weights never
// leave the registers. Lane layouts: PTX ISA, "Matrix fragments for mma.m16n8k16".

#ifndef LEAN_ATTENTION_OPS_GPU_PRIMITIVES_NVIDIA_H_
#define LEAN_ATTENTION_OPS_GPU_PRIMITIVES_NVIDIA_H_

#include "ops/gpu/portable.h"

namespace lean_attention::gpu {

// Matrices in shared memory are rows of `stride` bytes, an odd multiple of 16, so that eight rows
// of a matrix lie in different banks.
template <typename Element, int kHeadSize>
struct Matrix {
  static constexpr int kRowSlots = 2;  // query rows that a lane holds something of
  static constexpr int kValues = 8;    // of 16 x 16 in a lane
  static constexpr int kSteps = kHeadSize / 16;

  static LEAN_ATTENTION_DEVICE int Row(int slot) { return Lane() / 4 + 8 * slot; }
  // Value i of a lane: which of its row slots, and which key or channel of 16.
  static constexpr LEAN_ATTENTION_DEVICE int SlotOf(int i) { return i / 2 % 2; }
  static LEAN_ATTENTION_DEVICE int ColumnOf(int i) { return i / 4 * 8 + Lane() % 4 * 2 + i % 2; }
  // Lanes that hold the same rows: one of them speaks for all.
  static LEAN_ATTENTION_DEVICE bool SpeaksForRow() { return Lane() % 4 == 0; }

  static LEAN_ATTENTION_DEVICE float RowMax(float x) {
    x = fmaxf(x, ShuffleXor(x, 1));
    return fmaxf(x, ShuffleXor(x, 2));
  }
  static LEAN_ATTENTION_DEVICE float RowSum(float x) {
    x += ShuffleXor(x, 1);
    return x + ShuffleXor(x, 2);
  }

  struct Queries {
    uint32_t a[kSteps][4];
  };

  static LEAN_ATTENTION_DEVICE Queries LoadQueries(SharedPtr<const std::byte> q, int stride) {
    Queries queries;
    const SharedPtr<const std::byte> row = q + Lane() % 16 * stride + Lane() / 16 * 16;
    for (int step = 0; step < kSteps; ++step) LoadMatrixX4(queries.a[step], row + step * 32);
    return queries;
  }

  static LEAN_ATTENTION_DEVICE void Scores(const Queries& queries, SharedPtr<const std::byte> k,
                                           int stride, float (&scores)[kValues]) {
    const int key = Lane() % 8 + Lane() / 16 * 8;
    const SharedPtr<const std::byte> row = k + key * stride + Lane() / 8 % 2 * 16;
    for (int step = 0; step < kSteps; ++step) {
      uint32_t b[4];
      LoadMatrixX4(b, row + step * 32);
      MmaM16N8K16<Element>(scores, queries.a[step], b);
      MmaM16N8K16<Element>(scores + 4, queries.a[step], b + 2);
    }
  }

  struct Weights {
    uint32_t a[4];
  };

  static LEAN_ATTENTION_DEVICE Weights ToWeights(const float (&p)[kValues]) {
    Weights weights;
    for (int i = 0; i < 4; ++i) weights.a[i] = PackPair<Element>(p[2 * i], p[2 * i + 1]);
    return weights;
  }

  static LEAN_ATTENTION_DEVICE void AddValues(const Weights& weights, SharedPtr<const std::byte> v,
                                              int stride, float (&output)[kSteps][kValues]) {
    const SharedPtr<const std::byte> row = v + Lane() % 16 * stride + Lane() / 16 * 16;
    for (int step = 0; step < kSteps; ++step) {
      uint32_t b[4];
      LoadMatrixX4Transposed(b, row + step * 32);
      MmaM16N8K16<Element>(output[step], weights.a, b);
      MmaM16N8K16<Element>(output[step] + 4, weights.a, b + 2);
    }
  }
};

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_PRIMITIVES_NVIDIA_H_
