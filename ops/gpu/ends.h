// What happens at the ends of a sequence and head: rotary embedding, the append to the cache, the
// query rows of a group, the output.

#ifndef LEAN_ATTENTION_OPS_GPU_ENDS_H_
#define LEAN_ATTENTION_OPS_GPU_ENDS_H_

#include <cmath>

#include "ops/decode/softmax_state.h"
#include "ops/gpu/cache_format.h"
#include "ops/gpu/decode_args.h"

namespace lean_attention::gpu {

// A query token, or the row of the cache that it appends.
struct Token {
  int32_t sequence;
  int32_t index;     // of S
  int64_t position;  // in its sequence
};

// A head of a query or key, normalised: x * factor * weight.
template <typename Element>
struct Head {
  GlobalPtr<const Element> x;       // [H]
  GlobalPtr<const Element> weight;  // [H]; null: x as it is
  float factor;

  LEAN_ATTENTION_DEVICE float At(int32_t c) const {
    const float value = ToFloat(Load(x, c));
    return weight == nullptr ? value : value * factor * ToFloat(Load(weight, c));
  }
};

// x [size] with its RMS norm (arXiv 1910.07467), x / sqrt(mean(x^2) + epsilon) * weight; for all
// lanes of a warp.
template <typename Element>
LEAN_ATTENTION_DEVICE Head<Element> Normalised(GlobalPtr<const Element> x,
                                               GlobalPtr<const Element> weight, float epsilon,
                                               int32_t size) {
  if (weight == nullptr) return {x, weight, 1};
  float squares = 0;
  LEAN_ATTENTION_ROLLED
  for (int32_t c = Lane(); c < size; c += kWarpSize) {
    const float value = ToFloat(Load(x, c));
    squares = fmaf(value, value, squares);
  }
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) squares += ShuffleXor(squares, mask);
  return {x, weight, 1 / sqrtf(squares / static_cast<float>(size) + epsilon)};
}

// Channel c of a head rotated by the angle of its token's position (RoFormer, arXiv 2104.09864):
// (a, b) -> (a cos - b sin, b cos + a sin) for each pair; channels past the pairs stay.
template <typename Element, typename Cache>
LEAN_ATTENTION_DEVICE float Rotated(const DecodeArgs<Element, Cache>& args, Token token,
                                    const Head<Element>& head, int32_t c) {
  const int32_t half = args.rotary_half;
  if (args.cos_cache == nullptr || c >= 2 * half) return head.At(c);
  int64_t position = token.position;
  if (args.position_ids != nullptr) {
    const int64_t row = int64_t{token.sequence} * args.problem.sequence_length + token.index;
    position = Load(args.position_ids, row);
  }
  // Nothing outside the tables is read, whatever the positions are.
  if (position >= args.rotary_rows) position = args.rotary_rows - 1;
  if (position < 0) position = 0;
  const int32_t pair = args.rotary_interleaved ? c / 2 : c % half;
  const bool is_first = args.rotary_interleaved ? c % 2 == 0 : c < half;
  const float a = head.At(args.rotary_interleaved ? 2 * pair : pair);
  const float b = head.At(args.rotary_interleaved ? 2 * pair + 1 : pair + half);
  const float cos = ToFloat(Load(args.cos_cache, position * half + pair));
  const float sin = ToFloat(Load(args.sin_cache, position * half + pair));
  return is_first ? fmaf(a, cos, -(b * sin)) : fmaf(a, sin, b * cos);
}

// Elements before a row of the cache.
LEAN_ATTENTION_DEVICE int64_t CacheRow(const Problem& p, int32_t sequence, int32_t kv_head,
                                       int64_t row) {
  return ((int64_t{sequence} * p.kv_num_heads + kv_head) * p.cache_rows + row) * p.head_size;
}

// The scale of a channel of a quantised cache.
template <typename Element, typename Cache>
LEAN_ATTENTION_DEVICE float ScaleAt(const DecodeArgs<Element, Cache>& args,
                                    GlobalPtr<const float> scales, int32_t kv_head, int32_t c) {
  return Load(scales, args.scale_per_channel ? int64_t{kv_head} * args.problem.head_size + c : 0);
}

// A number as it is cached: by the reciprocal of the scale, as the CPU does.
template <typename Element, typename Cache>
LEAN_ATTENTION_DEVICE Cache ToCache(const DecodeArgs<Element, Cache>& args,
                                    GlobalPtr<const float> scales, int32_t kv_head, int32_t c,
                                    Element x) {
  if constexpr (kIsQuantised<Cache>) {
    const float scale = ScaleAt(args, scales, kv_head, c);
    return Quantised<Cache>(ToFloat(x) * (scale != 0.0f ? 1.0f / scale : 1.0f));
  } else {
    return x;
  }
}

// Writes a token's key and value to the cache; for all threads of the block.
template <typename Element, typename Cache>
LEAN_ATTENTION_DEVICE void AppendRow(const DecodeArgs<Element, Cache>& args, Token token,
                                     int32_t kv_head) {
  const Problem& p = args.problem;
  const int64_t from =
      (int64_t{token.sequence} * p.sequence_length + token.index) * args.kv_stride +
      int64_t{kv_head} * p.head_size;
  const int64_t to = CacheRow(p, token.sequence, kv_head, token.position);
  const Head<Element> head =
      Normalised(args.key + from, args.k_norm_weight, args.k_norm_epsilon, p.head_size);
  for (int32_t c = ThreadIndex(); c < p.head_size; c += BlockThreads()) {
    const Element k = FromFloat<Element>(Rotated(args, token, head, c));
    const Element v = Load(args.value, from + c);
    Store(args.key_cache, to + c, ToCache(args, args.k_scale, kv_head, c, k));
    Store(args.value_cache, to + c, ToCache(args, args.v_scale, kv_head, c, v));
  }
}

// Row r of a KV head's rows: head r % G of the group at query token r / G.
LEAN_ATTENTION_DEVICE int32_t HeadOf(const Problem& p, int32_t kv_head, int32_t row) {
  return kv_head * GroupSize(p) + row % GroupSize(p);
}

// A query row as it was given; for all lanes of a warp.
template <typename Element, typename Cache>
LEAN_ATTENTION_DEVICE Head<Element> QueryHead(const DecodeArgs<Element, Cache>& args,
                                              int32_t sequence, int32_t kv_head, int32_t row) {
  const Problem& p = args.problem;
  const int64_t token = int64_t{sequence} * p.sequence_length + row / GroupSize(p);
  const int64_t from = token * args.query_stride + int64_t{HeadOf(p, kv_head, row)} * p.head_size;
  return Normalised(args.query + from, args.q_norm_weight, args.q_norm_epsilon, p.head_size);
}

// Channel c of a query row, normalised, rotated and rounded.
template <typename Element, typename Cache>
LEAN_ATTENTION_DEVICE Element QueryChannel(const DecodeArgs<Element, Cache>& args, int32_t sequence,
                                           int64_t past, int32_t row, const Head<Element>& head,
                                           int32_t c) {
  const int32_t index = row / GroupSize(args.problem);
  return FromFloat<Element>(Rotated(args, {sequence, index, past + index}, head, c));
}

// A softmax state's part in one channel.
struct ChannelState {
  float m;
  float l;
  float o;
};

// a before b, always by this expression.
LEAN_ATTENTION_DEVICE ChannelState MergeChannels(const ChannelState& a, const ChannelState& b) {
  const MergeWeights w = Merge(a.m, b.m);
  return {w.m, fmaf(b.l, w.b, a.l * w.a), fmaf(b.o, w.b, a.o * w.a)};
}

// Channel c of a query row of the output.
template <typename Element, typename Cache>
LEAN_ATTENTION_DEVICE int64_t OutputIndex(const DecodeArgs<Element, Cache>& args, int32_t sequence,
                                          int32_t kv_head, int32_t row, int32_t c) {
  const Problem& p = args.problem;
  const int64_t token = int64_t{sequence} * p.sequence_length + row / GroupSize(p);
  return (token * p.num_heads + HeadOf(p, kv_head, row)) * p.head_size + c;
}

// Finishes the softmax of a row's channel and writes it.
template <typename Element, typename Cache>
LEAN_ATTENTION_DEVICE void WriteOutput(const DecodeArgs<Element, Cache>& args, int32_t sequence,
                                       int32_t kv_head, int32_t row, int32_t c,
                                       const ChannelState& state) {
  const int32_t head = HeadOf(args.problem, kv_head, row);
  float sink = args.smooth_softmax ? 0.0f : -INFINITY;
  if (args.head_sink != nullptr) sink = ToFloat(Load(args.head_sink, head));
  float o = state.o * OutputScale(state.m, state.l, sink * kLog2E);
  if constexpr (kIsQuantised<Cache>) o *= ScaleAt(args, args.v_scale, kv_head, c);
  Store(args.output, OutputIndex(args, sequence, kv_head, row, c), FromFloat<Element>(o));
}

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_ENDS_H_
