// Attention of 16 query rows over 16 keys in v_mfma_f32_16x16x16 instructions, transposed:
//
//   scores^T [16 keys, 16 rows]      = K [16, H] Q^T
//   output^T [16 channels, 16 rows] += V^T [16 channels, 16 keys] P^T
//
// Then a lane holds numbers of one query row in all of them, and what the scores' instruction
// leaves in it is what the output's takes as its B. Lane layouts: ops/emulator/matrix.h.
//
// K and V go from the cache straight to the registers of the lanes that multiply them. The order of
// channels is free: a lane reads neighbouring channels of a value and gives one to each
// instruction, which so has every kLaneChannels-th channel.

#ifndef LEAN_ATTENTION_OPS_GPU_PRIMITIVES_AMD_H_
#define LEAN_ATTENTION_OPS_GPU_PRIMITIVES_AMD_H_

#include "ops/gpu/cache_format.h"

namespace lean_attention::gpu {

// What a lane holds of 16 keys.
template <typename Cache, int kHeadSize>
struct KeyBlock {
  static constexpr int kSteps = kHeadSize / 16;
  // Of a value in one lane of 16: a power of two, so that lanes read whole vectors; where that is
  // more than a 16th of the head, the last lanes have none.
  static constexpr int kLaneChannels = kSteps <= 4 ? 4 : (kSteps <= 8 ? 8 : 16);
  static_assert(kSteps <= kLaneChannels);
  static constexpr int kBytes = static_cast<int>(sizeof(Cache));  // of a number
  static constexpr int kVParts = kLaneChannels * kBytes > 16 ? 2 : 1;
  static constexpr int kPartChannels = kLaneChannels / kVParts;

  // In words, since compilers give numbers of fewer bits a register each.
  using KPart = Vec<uint32_t, kBytes>;
  using VPart = Vec<uint32_t, kPartChannels / 4 * kBytes>;

  static LEAN_ATTENTION_DEVICE int KeyOfK() { return Lane() % 16; }
  static LEAN_ATTENTION_DEVICE int ChannelOfK(int step) { return step * 16 + Lane() / 16 * 4; }
  static LEAN_ATTENTION_DEVICE int KeyOfV(int i) { return Lane() / 16 * 4 + i; }
  static LEAN_ATTENTION_DEVICE int ChannelOfV() { return Lane() % 16 * kLaneChannels; }

  // Number i of a lane's K in a step; of key i, channel c of its V.
  LEAN_ATTENTION_DEVICE Cache K(int step, int i) const { return At(k[step], i); }
  LEAN_ATTENTION_DEVICE Cache V(int i, int c) const {
    return At(v[i][c / kPartChannels], c % kPartChannels);
  }

  KPart k[kSteps];      // of key KeyOfK(), from ChannelOfK(step) on
  VPart v[4][kVParts];  // of keys KeyOfV(i), from ChannelOfV() on

 private:
  template <typename Words>
  static LEAN_ATTENTION_DEVICE Cache At(const Words& words, int i) {
    const uint32_t word = words[i * kBytes / 4] >> (i * kBytes % 4 * 8);
    Cache x;
    __builtin_memcpy(&x, &word, sizeof(x));
    return x;
  }
};

// As in primitives/nvidia.h.
template <typename Element, typename Cache, int kHeadSize>
struct Matrix {
  using Block = KeyBlock<Cache, kHeadSize>;
  static constexpr int kValueSteps = Block::kLaneChannels;
  static constexpr int kRowSlots = 1;
  static constexpr int kValues = 4;

  static LEAN_ATTENTION_DEVICE int Row(int) { return Lane() % 16; }
  static constexpr LEAN_ATTENTION_DEVICE int SlotOf(int) { return 0; }
  static LEAN_ATTENTION_DEVICE int KeyOf(int i) { return Block::KeyOfV(i); }
  static LEAN_ATTENTION_DEVICE int FirstChannel() { return KeyOf(0) * Block::kLaneChannels; }
  static constexpr LEAN_ATTENTION_DEVICE int ChannelOffset(int step, int i) {
    return i * Block::kLaneChannels + step;
  }
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

  static LEAN_ATTENTION_DEVICE void AddScores(const Queries& queries, const Block& block, int step,
                                              float (&scores)[kValues]) {
    Element a[4];
    for (int i = 0; i < 4; ++i) a[i] = ToElement<Element>(block.K(step, i));
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

  static LEAN_ATTENTION_DEVICE void AddValues(const Weights& weights, const Block& block, int step,
                                              float (&output)[kValues]) {
    Element a[4];
    for (int i = 0; i < 4; ++i) a[i] = ToElement<Element>(block.V(i, step));
    Mfma16x16x16(output, a, weights.b);
  }
};

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_PRIMITIVES_AMD_H_
