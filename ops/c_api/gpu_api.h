/* The GPU kernel as plain C functions: device pointers, sizes and a stream.
 *
 * lean_attention_gpu_make_plan says how a step is cut and what workspace it needs,
 * lean_attention_gpu_decode enqueues it. Neither allocates on the device, waits for it or reads its
 * memory from the host, so both may be called while a graph is captured; a captured launch stays
 * right for other lengths up to max_length. Both are about the calling thread's current device, and
 * may be called from several threads at once.
 *
 * message, message_size: where a line that ends with a zero goes, cut off where it does not fit;
 * may be null. After an error it says what was found and what would be right. */

#ifndef LEAN_ATTENTION_OPS_C_API_GPU_API_H_
#define LEAN_ATTENTION_OPS_C_API_GPU_API_H_

#include <stdint.h>

#include "ops/c_api/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One decode step. Tensors are row-major in device memory, of type `type` unless said otherwise,
 * aligned to their elements, the caches to 16 bytes. What the step writes (caches and output) may
 * overlap no other tensor. A null pointer stands for an input that is not there. B = batch_size, S
 * = sequence_length, N = num_heads, K = kv_num_heads, H = head_size, C = cache_rows. */
struct lean_attention_gpu_step {
  int32_t type;       /* enum lean_attention_type: float16 or bfloat16 */
  int32_t cache_type; /* the same, int8 or float8e4m3 */
  int32_t batch_size;
  int32_t sequence_length;
  int32_t num_heads; /* a multiple of kv_num_heads */
  int32_t kv_num_heads;
  int32_t head_size; /* 64, 80, 96, 128 or 256 */
  int64_t cache_rows;
  int64_t local_window_size;    /* counts the query's own position; <= 0: none */
  int64_t max_length;           /* no sequence is longer; longer ones are cut off. S <= it <= C */
  const int32_t* seqlens_k;     /* [B]: valid rows of each sequence after this step, less one */
  const int32_t* query_seqlens; /* [B]: its query tokens, 0 to S, before padding; null: all S */
  const void* query;            /* [B, S, N, H], query_stride elements from token to token */
  const void* key;      /* [B, S, K, H], kv_stride elements from token to token; null, and value:
                           the caches hold the step's rows already */
  const void* value;    /* as key */
  int64_t query_stride; /* N * H, or (N + 2 * K) * H when packed */
  int64_t kv_stride;
  void* key_cache; /* [B, K, C, H]: past and present in one buffer */
  void* value_cache;
  const float* k_scale; /* of quantised caches: [K, H], or [1] */
  const float* v_scale;
  int32_t scale_per_channel; /* 0 or 1 */
  const void* q_norm_weight; /* [H], of the RMS norm of each head before rotation; null: none */
  const void* k_norm_weight;
  float q_norm_epsilon; /* positive, where there is a weight */
  float k_norm_epsilon;
  const void* cos_cache; /* [rotary_rows, rotary_half]; null: no rotary embedding */
  const void* sin_cache;
  int64_t rotary_rows;
  int32_t rotary_half;         /* rotated pairs of a head, at most H / 2 */
  int32_t rotary_interleaved;  /* 0 or 1: pairs (2i, 2i + 1) instead of (i, i + rotary_half) */
  const int64_t* position_ids; /* [B, S], of the angles; null: the tokens' own positions */
  const void* attention_bias;  /* [B or 1, N or 1, S, at least max_length] */
  int64_t bias_batch_stride;   /* elements; 0 where the dimension is 1 */
  int64_t bias_head_stride;
  int64_t bias_row_stride;
  const void* head_sink;  /* [N] */
  int32_t smooth_softmax; /* 0 or 1: without head_sink, a sink of 0 for every head */
  float scale;
  float softcap; /* 0: none */
  void* output;  /* [B, S, N, H] */
};

/* How a step is cut, and the workspace that this takes beside its tensors. */
struct lean_attention_gpu_plan {
  int32_t schedule; /* enum lean_attention_schedule */
  int32_t blocks;   /* of the grid, 1 to shares */
  int64_t amount;   /* of shares (lean), or of pieces per sequence and head (fixed_split) */
  int64_t shares;
  int64_t state_bytes;   /* of any content, aligned to 16 bytes */
  int64_t counters;      /* int32 each, zero before the first launch and again after every one */
  int32_t is_persistent; /* 0 or 1: all blocks run at the same time */
};

/* "CUDA" or "ROCm"; null: the library was built without GPU kernels. */
LEAN_ATTENTION_EXPORT const char* lean_attention_gpu_backend(void);

/* Plans a step; the results do not depend on the plan.
 *
 * schedule: -1: the policy chooses, as it also does for more than 8 query tokens. amount: 0: the
 * policy chooses, as it does without a schedule; at most 65536. blocks: 0: one for each share. The
 * message after success says what was decided, and why. */
LEAN_ATTENTION_EXPORT int32_t lean_attention_gpu_make_plan(
    const struct lean_attention_gpu_step* step, int32_t schedule, int64_t amount, int32_t blocks,
    struct lean_attention_gpu_plan* plan, char* message, int64_t message_size);

/* Enqueues a step, one kernel, on a cudaStream_t or hipStream_t (null: the default stream).
 *
 * plan: of this step, or of another one whose workspace is large enough for this. states, counters:
 * of the sizes that the plan says, which may be larger than the step needs; null where those are 0.
 * Launches that may run at the same time need their own. After LEAN_ATTENTION_DEVICE_ERROR counters
 * must be cleared. */
LEAN_ATTENTION_EXPORT int32_t lean_attention_gpu_decode(const struct lean_attention_gpu_step* step,
                                                        const struct lean_attention_gpu_plan* plan,
                                                        void* states, int32_t* counters,
                                                        void* stream, char* message,
                                                        int64_t message_size);

#ifdef __cplusplus
}
#endif

#endif /* LEAN_ATTENTION_OPS_C_API_GPU_API_H_ */
