/* The plain C functions of the library: no framework, raw pointers and sizes. They check what a
 * pointer's owner cannot vouch for (sizes, lengths, null pointers), return a status, and neither
 * print nor abort. */

#ifndef LEAN_ATTENTION_OPS_C_API_C_API_H_
#define LEAN_ATTENTION_OPS_C_API_C_API_H_

#include <stdint.h>

/* The library is built with hidden visibility; its version script lets these through. */
#define LEAN_ATTENTION_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum lean_attention_status {
  LEAN_ATTENTION_OK = 0,
  LEAN_ATTENTION_INVALID_ARGUMENT = 1,
  LEAN_ATTENTION_OUT_OF_MEMORY = 2,
  LEAN_ATTENTION_UNSUPPORTED_CPU = 3,
  LEAN_ATTENTION_UNSUPPORTED_GPU = 4,
  LEAN_ATTENTION_DEVICE_ERROR = 5,
  LEAN_ATTENTION_NOT_BUILT = 6
};

/* The last three are for caches only: numbers times a scale; an int4 row packs two values to a
 * byte, the even channel in the low half, each as value + 8; float8 (OCP, 4 bits of exponent and 3
 * of mantissa, no infinity) is for GPUs, int4 for CPUs. */
enum lean_attention_type {
  LEAN_ATTENTION_FLOAT32 = 0,
  LEAN_ATTENTION_FLOAT16 = 1,
  LEAN_ATTENTION_BFLOAT16 = 2,
  LEAN_ATTENTION_INT8 = 3,
  LEAN_ATTENTION_INT4 = 4,
  LEAN_ATTENTION_FLOAT8E4M3 = 5
};

enum lean_attention_schedule {
  LEAN_ATTENTION_LEAN = 0,
  LEAN_ATTENTION_FIXED_SPLIT = 1,
  LEAN_ATTENTION_DIRECT = 2
};

/* One decode step. Tensors are contiguous, of type `type`, the caches of type `cache_type`; B =
 * batch_size, S = sequence_length, N = num_heads, K = kv_num_heads, H = head_size, C = cache_rows.
 */
struct lean_attention_decode {
  int32_t type;       /* enum lean_attention_type: float32, float16 or bfloat16 */
  int32_t cache_type; /* the same, or int8 or int4 */
  int32_t batch_size;
  int32_t sequence_length;
  int32_t num_heads;
  int32_t kv_num_heads;
  int32_t head_size;
  int64_t cache_rows;
  int64_t local_window_size; /* counts the query's own position; <= 0: none */
  const int32_t* seqlens_k;  /* [B]: valid rows of each sequence after this step, less one */
  const void* query;         /* [B, S, N * H] */
  const void* key;           /* [B, S, K * H] */
  const void* value;         /* [B, S, K * H] */
  void* key_cache;           /* [B, K, C, H]: past and present in one buffer */
  void* value_cache;         /* [B, K, C, H] */
  const float* k_scale;      /* of quantised caches: [K, H], or [1] */
  const float* v_scale;      /* as k_scale */
  int32_t scale_per_channel; /* 0 or 1 */
  const void* cos_cache;     /* [rotary_rows, rotary_half]; null: no rotary embedding */
  const void* sin_cache;     /* as cos_cache */
  int64_t rotary_rows;
  int32_t rotary_half;
  int32_t rotary_interleaved; /* 0 or 1 */
  const void* head_sink;      /* [N]; null: none */
  float scale;
  float softcap; /* 0: none */
  void* output;  /* [B, S, N * H] */
};

LEAN_ATTENTION_EXPORT const char* lean_attention_version(void);

/* The instruction set that the CPU kernel uses on this machine; null where it has none. */
LEAN_ATTENTION_EXPORT const char* lean_attention_cpu_target(void);

/* One line that says what a status means. */
LEAN_ATTENTION_EXPORT const char* lean_attention_status_message(int32_t status);

/* Runs one step on the calling thread.
 *
 * schedule: enum lean_attention_schedule. amount: the number of shares (lean) or of pieces per
 * sequence and head (fixed_split). order_seed: shares run in an order drawn from it, 0: in theirs.
 * The results do not depend on any of the three. */
LEAN_ATTENTION_EXPORT int32_t lean_attention_cpu_decode(const struct lean_attention_decode* decode,
                                                        int32_t schedule, int64_t amount,
                                                        uint64_t order_seed);

#ifdef __cplusplus
}
#endif

#endif /* LEAN_ATTENTION_OPS_C_API_C_API_H_ */
