// The CPU backend: one decode step of grouped-query attention, share by share.
//
//   plan = MakePlan(args, decision)
//   allocate plan.workspace_bytes and PrepareWorkspace(plan, memory)
//   RunShare(args, plan, memory, share)
//
// the last once for each share in [0, plan.cut.shares()), in any order, on any threads.
//
// A share appends the new rows of its tiles to the cache, reduces the tiles, and, where it is the
// last to arrive at a sequence and head, merges and writes the output. Nothing is left to do after
// the last share.

#ifndef LEAN_ATTENTION_OPS_CPU_DECODE_ATTENTION_H_
#define LEAN_ATTENTION_OPS_CPU_DECODE_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "ops/decode/policy.h"
#include "ops/decode/problem.h"
#include "ops/decode/schedule.h"

namespace lean_attention::cpu {

// Tensors are row-major and of type `element_type` unless said otherwise; the caches are of type
// `problem.cache_type`. The caller has checked every length against its buffer.
struct DecodeArgs {
  Problem problem;
  ElementType element_type;  // float32, float16 or bfloat16; the caches' too where not quantised

  const void* query;     // [B, S, N, H], query_stride elements from token to token
  const void* key;       // [B, S, K, H], kv_stride elements from token to token; null: the cache
                         // holds the step's rows already, as of layers that share one
  const void* value;     // as key
  int64_t query_stride;  // N * H, or (N + 2K) * H when packed
  int64_t kv_stride;

  const void* past_key;    // [B, K, past_rows, H]; may be present_key itself; null: T_b = Q_b
  const void* past_value;  // likewise
  int64_t past_rows;
  void* present_key;  // [B, K, C, H]
  void* present_value;

  // Of quantised caches: a cached number stands for number * scale.
  const float* k_scale;  // [K, H], or [1]
  const float* v_scale;  // likewise
  bool scale_per_channel;

  // Of the RMS normalisation of each head, before the rotary embedding: x / sqrt(mean(x^2) +
  // epsilon) * weight. [H]; null: none.
  const void* q_norm_weight;
  const void* k_norm_weight;
  float q_norm_epsilon;
  float k_norm_epsilon;

  const void* cos_cache;        // [positions, rotary_half]; null: no rotary
  const void* sin_cache;        // as cos_cache
  int32_t rotary_half;          // rotated pairs per head, 2 * rotary_half <= H
  bool rotary_interleaved;      // pairs (2i, 2i + 1) instead of (i, i + rotary_half)
  const int64_t* position_ids;  // [B, S] rows of the cos and sin caches; null: the token's position

  const void* attention_bias;  // [B or 1, N or 1, S, T]; null: none
  int64_t bias_batch_stride;   // elements; 0 where the dimension is broadcast
  int64_t bias_head_stride;
  int64_t bias_row_stride;

  const void* head_sink;  // [N], null: none
  bool smooth_softmax;    // without head_sink: a sink of 0 for every head

  float scale;    // applied to the scores, in float32
  float softcap;  // 0: none; cap * tanh(score / cap)

  void* output;  // [B, S, N, H]; of padding 0
};

struct Plan {
  Cut cut;
  int64_t padded_head_size;  // H rounded up to whole vectors and cache lines, in floats
  int64_t state_floats;      // one softmax state of all rows of a KV head
  int64_t share_floats;      // private to a share: ShareLayout::share_floats
  int64_t region_tiles;      // states a region has room for: the most tiles of any sequence
  size_t workspace_bytes;
};

// Bytes: 4 * (shares * share_floats + regions * region_tiles * state_floats) + 4 * regions. Bounded
// by shares and tiles: region_tiles <= kMaxTiles, and a lean cut has no more regions than shares.
Plan MakePlan(const DecodeArgs& args, const Decision& decision);

// Clears the arrival counters. The memory must be aligned to kWorkspaceAlignment bytes.
inline constexpr size_t kWorkspaceAlignment = 64;
void PrepareWorkspace(const Plan& plan, void* workspace);

void RunShare(const DecodeArgs& args, const Plan& plan, void* workspace, int64_t share);

// Keys per tile for a head size and cache type.
int32_t TileTokens(int32_t head_size, ElementType cache_type);

// The instruction set in use: "AVX512", "AVX2", "SSE4", "NEON" or "baseline". Chosen once: the best
// that the machine has, or the one that the environment variable LEAN_ATTENTION_CPU_TARGET names,
// in any case, if it is compiled in and runs. Null where the machine has none of those compiled in
// (x86-64 without SSE4.2): RunShare must not be called then.
const char* TargetName();

}  // namespace lean_attention::cpu

#endif  // LEAN_ATTENTION_OPS_CPU_DECODE_ATTENTION_H_
