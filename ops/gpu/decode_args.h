// What the GPU kernel is given.

#ifndef LEAN_ATTENTION_OPS_GPU_DECODE_ARGS_H_
#define LEAN_ATTENTION_OPS_GPU_DECODE_ARGS_H_

#include "ops/decode/schedule.h"
#include "ops/gpu/portable.h"

namespace lean_attention::gpu {

// One decode step, of tensors of Element (Half or BFloat16) and caches of Cache (the same, int8_t
// or Fp8E4M3). Tensors are row-major in device memory, the caches aligned to 16 bytes; a null
// pointer stands for an input that is not there. B, S, N, K, H, C as in ops/decode/problem.h.
template <typename Element, typename Cache>
struct DecodeArgs {
  Problem problem;                         // its pointers are not read: the next ones are
  GlobalPtr<const int32_t> seqlens_k;      // [B], T_b - 1; in the kernel bounded to the cache
  GlobalPtr<const int32_t> query_seqlens;  // [B], Q_b, likewise; null: min(S, T_b) for all
  int64_t max_length;                      // of all sequences; longer ones are bounded to it

  Schedule schedule;
  int64_t amount;  // as BasicCut takes it

  GlobalPtr<const Element> query;  // [B, S, N, H], query_stride elements from token to token
  GlobalPtr<const Element> key;    // [B, S, K, H], kv_stride elements from token to token; null:
                                   // the cache holds the step's rows already
  GlobalPtr<const Element> value;  // as key
  int64_t query_stride;            // N * H, or (N + 2K) * H when packed
  int64_t kv_stride;

  GlobalPtr<Cache> key_cache;  // [B, K, C, H]: past and present in one buffer
  GlobalPtr<Cache> value_cache;

  // Of caches of bytes: a cached number stands for number * scale.
  GlobalPtr<const float> k_scale;  // [K, H], or [1]
  GlobalPtr<const float> v_scale;  // likewise
  bool scale_per_channel;

  GlobalPtr<const Element> q_norm_weight;  // [H], of the RMS norm of each head; null: none
  GlobalPtr<const Element> k_norm_weight;
  float q_norm_epsilon;
  float k_norm_epsilon;

  GlobalPtr<const Element> cos_cache;  // [rotary_rows, rotary_half]; null: no rotary
  GlobalPtr<const Element> sin_cache;
  int64_t rotary_rows;
  int32_t rotary_half;                    // rotated pairs per head, 2 * rotary_half <= H
  bool rotary_interleaved;                // pairs (2i, 2i + 1) instead of (i, i + rotary_half)
  GlobalPtr<const int64_t> position_ids;  // [B, S]; null: the token's position

  GlobalPtr<const Element> attention_bias;  // [B or 1, N or 1, S, T]; null: none
  int64_t bias_batch_stride;                // elements; 0 where the dimension is broadcast
  int64_t bias_head_stride;
  int64_t bias_row_stride;

  GlobalPtr<const Element> head_sink;  // [N]; null: none
  bool smooth_softmax;                 // without head_sink: a sink of 0 for every head

  float scale;    // applied to the scores, in float32
  float softcap;  // 0: none; cap * tanh(score / cap)

  GlobalPtr<Element> output;  // [B, S, N, H]; of padding 0

  // Where the pieces of split sequences meet; see RegionLayout.
  GlobalPtr<float> states;
  GlobalPtr<int32_t> arrived;  // [regions], zero before and after every launch
};

// The softmax states of one tile, of all rows of a KV head: o [rows, H], m [rows], l [rows].
struct RegionLayout {
  int64_t rows;
  int64_t head_size;
  int64_t tiles;  // a region has room for

  LEAN_HOST_DEVICE int64_t state_floats() const { return rows * (head_size + 2); }
  LEAN_HOST_DEVICE int64_t region_floats() const { return tiles * state_floats(); }
};

LEAN_HOST_DEVICE inline RegionLayout RegionLayoutOf(const Problem& p, int64_t max_length) {
  const int64_t tiles = (max_length + p.tile_tokens - 1) / p.tile_tokens;
  return {RowsPerKvHead(p), p.head_size, tiles < kMaxTiles ? tiles : kMaxTiles};
}

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_DECODE_ARGS_H_
