// What happens at the ends of a sequence and head: rotary embedding, the append to the cache, the
// copy of a cache that is not shared, and the output. Included once per instruction set.

#if defined(LEAN_ATTENTION_OPS_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAN_ATTENTION_OPS_CPU_ROWS_INL_H_
#undef LEAN_ATTENTION_OPS_CPU_ROWS_INL_H_
#else
#define LEAN_ATTENTION_OPS_CPU_ROWS_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "ops/cpu/decode_attention.h"
#include "ops/cpu/tile-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace lean_attention::cpu {
namespace HWY_NAMESPACE {

// Float scratch for one head's row and its angles: [3, stride].
struct RotaryScratch {
  float* row;
  float* cos;
  float* sin;
};

// Rotates x [head_size] in place by the angles of its position (RoFormer, arXiv 2104.09864):
// (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin). Dimensions past 2 * rotary_half stay.
template <typename T>
HWY_INLINE void Rotate(const DecodeArgs& args, int32_t sequence, int32_t token, float* x,
                       const RotaryScratch& scratch) {
  if (args.cos_cache == nullptr) return;
  const Problem& p = args.problem;
  const int64_t position = args.position_ids != nullptr
                               ? args.position_ids[int64_t{sequence} * p.sequence_length + token]
                               : PastLength(p, sequence) + token;
  const int64_t half = args.rotary_half;
  const int64_t offset = position * half;
  Convert(static_cast<const T*>(args.cos_cache) + offset, half, scratch.cos);
  Convert(static_cast<const T*>(args.sin_cache) + offset, half, scratch.sin);
  const int64_t to_second = args.rotary_interleaved ? 1 : half;
  const int64_t step = args.rotary_interleaved ? 2 : 1;
  for (int64_t i = 0; i < half; ++i) {
    float& first = x[i * step];
    float& second = x[i * step + to_second];
    const float a = first;
    const float b = second;
    first = a * scratch.cos[i] - b * scratch.sin[i];
    second = b * scratch.cos[i] + a * scratch.sin[i];
  }
}

// The queries of one KV head's group, in float32: q [S * G, stride].
template <typename T>
HWY_INLINE void LoadQueries(const DecodeArgs& args, int32_t sequence, int32_t kv_head,
                            int64_t stride, float* q, const RotaryScratch& scratch) {
  const Problem& p = args.problem;
  const int32_t group = GroupSize(p);
  for (int32_t token = 0; token < p.sequence_length; ++token) {
    const T* query = static_cast<const T*>(args.query) +
                     (int64_t{sequence} * p.sequence_length + token) * args.query_stride +
                     int64_t{kv_head} * group * p.head_size;
    for (int32_t g = 0; g < group; ++g) {
      Convert(query + g * p.head_size, p.head_size, q);
      std::fill(q + p.head_size, q + stride, 0.0f);
      Rotate<T>(args, sequence, token, q, scratch);
      q += stride;
    }
  }
}

// Makes present rows [begin, end) valid: earlier ones from a separate past, new ones from this
// step's key and value.
template <typename T>
HWY_INLINE void FillCacheRows(const DecodeArgs& args, int32_t sequence, int32_t kv_head,
                              int64_t begin, int64_t end, const RotaryScratch& scratch) {
  const Problem& p = args.problem;
  const int64_t past = PastLength(p, sequence);
  const int64_t present = CacheOffset(p, sequence, kv_head, 0);
  T* present_key = static_cast<T*>(args.present_key) + present;
  T* present_value = static_cast<T*>(args.present_value) + present;

  if (const int64_t copied_end = std::min(end, past); begin < copied_end) {
    const int64_t from =
        ((int64_t{sequence} * p.kv_num_heads + kv_head) * args.past_rows + begin) * p.head_size;
    const size_t bytes = (copied_end - begin) * p.head_size * sizeof(T);
    if (args.past_key != args.present_key) {
      memcpy(present_key + begin * p.head_size, static_cast<const T*>(args.past_key) + from, bytes);
    }
    if (args.past_value != args.present_value) {
      memcpy(present_value + begin * p.head_size, static_cast<const T*>(args.past_value) + from,
             bytes);
    }
  }
  for (int64_t row = std::max(begin, past); row < end; ++row) {
    const auto token = static_cast<int32_t>(row - past);
    const int64_t from = (int64_t{sequence} * p.sequence_length + token) * args.kv_stride +
                         int64_t{kv_head} * p.head_size;
    Convert(static_cast<const T*>(args.key) + from, p.head_size, scratch.row);
    Rotate<T>(args, sequence, token, scratch.row, scratch);
    Convert(scratch.row, p.head_size, present_key + row * p.head_size);
    memcpy(present_value + row * p.head_size, static_cast<const T*>(args.value) + from,
           p.head_size * sizeof(T));
  }
}

// A cache that was copied has no valid rows past the sequence's end: zeros, not stale memory.
template <typename T>
HWY_INLINE void ClearCacheTail(const DecodeArgs& args, int32_t sequence, int32_t kv_head) {
  const Problem& p = args.problem;
  const int64_t length = TotalLength(p, sequence);
  const int64_t offset = CacheOffset(p, sequence, kv_head, length);
  const int64_t count = (p.cache_rows - length) * p.head_size;
  if (args.past_key != args.present_key) {
    std::fill_n(static_cast<T*>(args.present_key) + offset, count, T());
  }
  if (args.past_value != args.present_value) {
    std::fill_n(static_cast<T*>(args.present_value) + offset, count, T());
  }
}

// Finishes the softmax of all rows of a KV head and writes them.
template <typename T>
HWY_INLINE void WriteOutput(const DecodeArgs& args, int32_t sequence, int32_t kv_head,
                            int64_t stride, State state) {
  const FloatTag d;
  const Problem& p = args.problem;
  const int32_t group = GroupSize(p);
  for (int32_t r = 0; r < RowsPerKvHead(p); ++r) {
    const int32_t head = kv_head * group + r % group;
    float sink = args.smooth_softmax ? 0.0f : -INFINITY;
    if (args.head_sink != nullptr) Convert(static_cast<const T*>(args.head_sink) + head, 1, &sink);
    const FloatVec factor = hn::Set(d, OutputScale(state.m[r], state.l[r], sink));
    T* out =
        static_cast<T*>(args.output) +
        ((int64_t{sequence} * p.sequence_length + r / group) * p.num_heads + head) * p.head_size;
    Transform(state.o + r * stride, p.head_size, out,
              [&](FloatVec o) HWY_ATTR { return hn::Mul(o, factor); });
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace lean_attention::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // per-target include guard
