// What happens at the ends of a sequence and head: normalisation, rotary embedding, the append to
// the cache, the copy of a cache that is not shared, and the output. Included once per instruction
// set.

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

// Rows of floats, [stride] each, that the ends of a piece work in.
struct RowScratch {
  float* row;
  float* cos;
  float* sin;
  float* channel;  // what each channel of a quantised cache is multiplied by
};

// Normalises x [head_size] in place by its root mean square (RMSNorm, arXiv 1910.07467), in
// float32: x / sqrt(mean(x^2) + epsilon) * weight. No weight: nothing.
HWY_INLINE void NormaliseHead(const DecodeArgs& args, const void* weight, float epsilon, float* x,
                              const RowScratch& scratch) {
  if (weight == nullptr) return;
  const int64_t size = args.problem.head_size;
  float* weights = scratch.cos;
  ReadFloats(args.element_type, weight, 0, size, weights);
  const FloatTag d;
  FloatVec lanes = hn::Zero(d);
  int64_t h = 0;
  for (; h + kLanes <= size; h += kLanes) lanes = hn::MulAdd(Load(x + h), Load(x + h), lanes);
  float squares = hn::GetLane(hn::SumOfLanes(d, lanes));
  for (; h < size; ++h) squares += x[h] * x[h];
  const float factor = 1 / std::sqrt(squares / static_cast<float>(size) + epsilon);
  for (h = 0; h < size; ++h) x[h] = x[h] * factor * weights[h];
}

// Rotates x [head_size] in place by the angles of its position (RoFormer, arXiv 2104.09864):
// (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin). Dimensions past 2 * rotary_half stay. The stock
// operator's grouping of products, so that a cache holds the same bits whoever wrote it.
HWY_INLINE void Rotate(const DecodeArgs& args, int32_t sequence, int32_t token, float* x,
                       const RowScratch& scratch) {
  if (args.cos_cache == nullptr) return;
  const Problem& p = args.problem;
  const int64_t position = args.position_ids != nullptr
                               ? args.position_ids[int64_t{sequence} * p.sequence_length + token]
                               : LengthsOf(p, sequence).past() + token;
  const int64_t half = args.rotary_half;
  ReadFloats(args.element_type, args.cos_cache, position * half, half, scratch.cos);
  ReadFloats(args.element_type, args.sin_cache, position * half, half, scratch.sin);
  const float* cos = scratch.cos;
  const float* sin = scratch.sin;
  if (args.rotary_interleaved) {
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[2 * i];
      const float b = x[2 * i + 1];
      x[2 * i] = std::fma(a, cos[i], -(b * sin[i]));
      x[2 * i + 1] = std::fma(a, sin[i], b * cos[i]);
    }
    return;
  }
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const FloatVec a = Load(x + i);
    const FloatVec b = Load(x + half + i);
    const FloatVec c = Load(cos + i);
    const FloatVec s = Load(sin + i);
    Store(hn::MulSub(a, c, hn::Mul(b, s)), x + i);
    Store(hn::MulAdd(a, s, hn::Mul(b, c)), x + half + i);
  }
  for (; i < half; ++i) {
    const float a = x[i];
    const float b = x[half + i];
    x[i] = std::fma(a, cos[i], -(b * sin[i]));
    x[half + i] = std::fma(a, sin[i], b * cos[i]);
  }
}

// The scale of a quantised channel.
HWY_INLINE float ScaleOf(const DecodeArgs& args, const float* scales, int32_t kv_head, int64_t h) {
  return args.scale_per_channel ? scales[int64_t{kv_head} * args.problem.head_size + h] : scales[0];
}

// The scales of a quantised cache's channels: factors[h], h < head_size.
HWY_INLINE void ReadScales(const DecodeArgs& args, const float* scales, int32_t kv_head,
                           float* factors) {
  for (int64_t h = 0; h < args.problem.head_size; ++h)
    factors[h] = ScaleOf(args, scales, kv_head, h);
}

// What loading a quantised row left undone: x[h] times its channel's factor, h < stride. The lanes
// of int4 are scaled back first, which is exact; a tiny scale would not survive it.
HWY_INLINE void ScaleChannels(ElementType cache_type, const float* factors, int64_t stride,
                              float* x) {
  FloatVec lanes = hn::Set(FloatTag(), 1.0f);
  if (cache_type == ElementType::kInt4) lanes = Format<ElementType::kInt4>::LaneFactors();
  for (int64_t h = 0; h < stride; h += kLanes) {
    Store(hn::Mul(hn::Mul(Load(x + h), lanes), Load(factors + h)), x + h);
  }
}

// The queries of one KV head's group, in float32: q [Q_b * G, stride]. The scales of a quantised K
// join them here.
HWY_INLINE void LoadQueries(const DecodeArgs& args, int32_t sequence, int32_t kv_head,
                            int64_t stride, float* q, const RowScratch& scratch) {
  const Problem& p = args.problem;
  const int32_t group = GroupSize(p);
  const bool quantised = IsQuantised(p.cache_type);
  if (quantised) {
    std::fill_n(scratch.channel, stride, 0.0f);
    ReadScales(args, args.k_scale, kv_head, scratch.channel);
  }
  for (int32_t token = 0; token < LengthsOf(p, sequence).queries; ++token) {
    const int64_t query = (int64_t{sequence} * p.sequence_length + token) * args.query_stride +
                          int64_t{kv_head} * group * p.head_size;
    for (int32_t g = 0; g < group; ++g) {
      ReadFloats(args.element_type, args.query, query + int64_t{g} * p.head_size, p.head_size, q);
      std::fill(q + p.head_size, q + stride, 0.0f);
      NormaliseHead(args, args.q_norm_weight, args.q_norm_epsilon, q, scratch);
      Rotate(args, sequence, token, q, scratch);
      if (quantised) ScaleChannels(p.cache_type, scratch.channel, stride, q);
      q += stride;
    }
  }
}

// Rounds x [head_size] to a quantised cache's row: to the nearest whole number of scales, ties to
// even, saturating, NaN to the largest; as the stock operator does, by the reciprocal of the scale.
HWY_INLINE void QuantiseRow(const DecodeArgs& args, const float* x, const float* scales,
                            int32_t kv_head, uint8_t* row) {
  const Problem& p = args.problem;
  const bool int4 = p.cache_type == ElementType::kInt4;
  const float most = int4 ? 7.0f : 127.0f;
  if (int4) std::fill_n(row, CacheRowBytes(p), uint8_t{0});
  for (int64_t h = 0; h < p.head_size; ++h) {
    const float scale = ScaleOf(args, scales, kv_head, h);
    const float value = x[h] * (scale != 0 ? 1.0f / scale : 1.0f);
    const float bounded = std::max(value, -most - 1);
    const auto number = static_cast<int32_t>(std::nearbyint(bounded < most ? bounded : most));
    if (int4) {
      row[h / 2] |= static_cast<uint8_t>((number + 8) << (h % 2 * 4));
    } else {
      row[h] = static_cast<uint8_t>(number);
    }
  }
}

// Writes x [head_size] to a row of the cache; x is changed.
HWY_INLINE void WriteCacheRow(const DecodeArgs& args, float* x, const float* scales,
                              int32_t kv_head, uint8_t* row) {
  const Problem& p = args.problem;
  if (!IsQuantised(p.cache_type)) {
    WriteFloats(p.cache_type, x, p.head_size, row, 0);
    return;
  }
  QuantiseRow(args, x, scales, kv_head, row);
}

// Makes present rows [begin, end) valid: earlier ones from a separate past, new ones from this
// step's key and value.
HWY_INLINE void FillCacheRows(const DecodeArgs& args, int32_t sequence, int32_t kv_head,
                              int64_t begin, int64_t end, const RowScratch& scratch) {
  const Problem& p = args.problem;
  const Lengths lengths = LengthsOf(p, sequence);
  const int64_t past = args.key != nullptr ? lengths.past() : lengths.keys;
  const int64_t row_bytes = CacheRowBytes(p);
  const int64_t present = CacheOffset(p, sequence, kv_head, 0);
  auto* present_key = static_cast<uint8_t*>(args.present_key) + present;
  auto* present_value = static_cast<uint8_t*>(args.present_value) + present;

  if (const int64_t copied_end = std::min(end, past); begin < copied_end) {
    const int64_t from =
        ((int64_t{sequence} * p.kv_num_heads + kv_head) * args.past_rows + begin) * row_bytes;
    const size_t bytes = (copied_end - begin) * row_bytes;
    if (args.past_key != args.present_key) {
      memcpy(present_key + begin * row_bytes, static_cast<const uint8_t*>(args.past_key) + from,
             bytes);
    }
    if (args.past_value != args.present_value) {
      memcpy(present_value + begin * row_bytes, static_cast<const uint8_t*>(args.past_value) + from,
             bytes);
    }
  }
  for (int64_t row = std::max(begin, past); row < end; ++row) {
    const auto token = static_cast<int32_t>(row - past);
    const int64_t from = (int64_t{sequence} * p.sequence_length + token) * args.kv_stride +
                         int64_t{kv_head} * p.head_size;
    float* x = scratch.row;
    ReadFloats(args.element_type, args.key, from, p.head_size, x);
    NormaliseHead(args, args.k_norm_weight, args.k_norm_epsilon, x, scratch);
    Rotate(args, sequence, token, x, scratch);
    if (IsQuantised(p.cache_type)) {
      // What is quantised is the rotated key as the element type holds it.
      WriteFloats(args.element_type, x, p.head_size, scratch.cos, 0);
      ReadFloats(args.element_type, scratch.cos, 0, p.head_size, x);
    }
    WriteCacheRow(args, x, args.k_scale, kv_head, present_key + row * row_bytes);
    ReadFloats(args.element_type, args.value, from, p.head_size, x);
    WriteCacheRow(args, x, args.v_scale, kv_head, present_value + row * row_bytes);
  }
}

// A cache that was copied has no valid rows past the sequence's end: zeros, not stale memory.
HWY_INLINE void ClearCacheTail(const DecodeArgs& args, int32_t sequence, int32_t kv_head) {
  const Problem& p = args.problem;
  const int64_t length = LengthsOf(p, sequence).keys;
  const int64_t offset = CacheOffset(p, sequence, kv_head, length);
  const int64_t bytes = (p.cache_rows - length) * CacheRowBytes(p);
  if (args.past_key != args.present_key) {
    std::fill_n(static_cast<uint8_t*>(args.present_key) + offset, bytes, uint8_t{0});
  }
  if (args.past_value != args.present_value) {
    std::fill_n(static_cast<uint8_t*>(args.present_value) + offset, bytes, uint8_t{0});
  }
}

// Finishes the softmax of all rows of a KV head and writes them, and zeros for padding.
HWY_INLINE void WriteOutput(const DecodeArgs& args, int32_t sequence, int32_t kv_head,
                            int64_t stride, State state, const RowScratch& scratch) {
  const Problem& p = args.problem;
  const int32_t group = GroupSize(p);
  std::fill_n(scratch.channel, stride, 0.0f);
  if (IsQuantised(p.cache_type)) ReadScales(args, args.v_scale, kv_head, scratch.channel);
  const int32_t rows = LengthsOf(p, sequence).queries * group;
  for (int32_t r = 0; r < RowsPerKvHead(p); ++r) {
    const int32_t head = kv_head * group + r % group;
    const int64_t out =
        ((int64_t{sequence} * p.sequence_length + r / group) * p.num_heads + head) * p.head_size;
    if (r >= rows) {
      std::fill_n(scratch.row, p.head_size, 0.0f);
      WriteFloats(args.element_type, scratch.row, p.head_size, args.output, out);
      continue;
    }
    float sink = args.smooth_softmax ? 0.0f : -INFINITY;
    if (args.head_sink != nullptr) ReadFloats(args.element_type, args.head_sink, head, 1, &sink);
    const float factor = OutputScale(state.m[r], state.l[r], sink * kLog2E);
    float* o = state.o + r * stride;
    const FloatVec factors = hn::Set(FloatTag(), factor);
    for (int64_t h = 0; h < stride; h += kLanes) Store(hn::Mul(Load(o + h), factors), o + h);
    if (IsQuantised(p.cache_type)) ScaleChannels(p.cache_type, scratch.channel, stride, o);
    WriteFloats(args.element_type, o, p.head_size, args.output, out);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace lean_attention::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // per-target include guard
