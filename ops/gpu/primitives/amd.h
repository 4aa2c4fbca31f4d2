// Attention of 16 query rows over 16 keys in v_mfma_f32_16x16x16 instructions, transposed:
//
//   scores^T [16 keys, 16 rows]      = K [16, H] Q^T
//   output^T [16 channels, 16 rows] += V^T [16 channels, 16 keys] P^T
//
// Then a lane holds numbers of one query row in all of them, and what the scores' instruction
// leaves in it is what the output's takes as its B. Lane layouts: ops/emulator/matrix.h.

#ifndef LEAN_ATTENTION_OPS_GPU_PRIMITIVES_AMD_H_
#define LEAN_ATTENTION_OPS_GPU_PRIMITIVES_AMD_H_

#include "ops/gpu/cache_format.h"

namespace lean_attention::gpu {

// As in primitives/nvidia.h.
template <typename Element, typename Cache>
struct Matrix {
  static constexpr int kRowSlots = 1;
  static constexpr int kValues = 4;

  static LEAN_ATTENTION_DEVICE int Row(int) { return Lane() % 16; }
  static constexpr LEAN_ATTENTION_DEVICE int SlotOf(int) { return 0; }
  static LEAN_ATTENTION_DEVICE int KeyOf(int i) { return Lane() / 16 * 4 + i; }
  static LEAN_ATTENTION_DEVICE int ChannelOf(int i) { return KeyOf(i); }
  static LEAN_ATTENTION_DEVICE bool SpeaksForRow() { return Lane() / 16 == 0; }

  static LEAN_ATTENTION_DEVICE float RowMax(float x) {
    x = fmaxf(x, ShuffleXor(x, 16));
    return fmaxf(x, ShuffleXor(x, 32));
  }
  static LEAN_ATTENTION_DEVICE float RowSum(float x) {
    x += ShuffleXor(x, 16);
    return x + ShuffleXor(x, 32);
  }

  using Queries = Vec<Element, 4>;

  static LEAN_ATTENTION_DEVICE Queries LoadQueries(SharedPtr<const std::byte> q, int stride,
                                                   int step) {
    return Load(As<Queries>(q + Lane() % 16 * stride), step * 4 + Lane() / 16);
  }

  static LEAN_ATTENTION_DEVICE void AddScores(const Queries& queries, SharedPtr<const std::byte> k,
                                              int stride, int step, float (&scores)[kValues]) {
    using Four = Vec<Cache, 4>;
    const Four four = Load(As<Four>(k + Lane() % 16 * stride), step * 4 + Lane() / 16);
    Element a[4];
    for (int i = 0; i < 4; ++i) a[i] = ToElement<Element>(four[i]);
    Mfma16x16x16(scores, a, queries.values);
  }

  struct Weights {
    Element b[4];
  };

  static LEAN_ATTENTION_DEVICE Weights ToWeights(const float (&p)[kValues]) {
    Weights weights;
    for (int i = 0; i < 4; ++i) weights.b[i] = FromFloat<Element>(p[i]);
    return weights;
  }

  static LEAN_ATTENTION_DEVICE void AddValues(const Weights& weights, SharedPtr<const std::byte> v,
                                              int stride, int step, float (&output)[kValues]) {
    Element a[4];
    for (int i = 0; i < 4; ++i) {
      const Cache x = Load(As<Cache>(v + KeyOf(i) * stride), step * 16 + Lane() % 16);
      a[i] = ToElement<Element>(x);
    }
    Mfma16x16x16(output, a, weights.b);
  }
};

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_PRIMITIVES_AMD_H_
