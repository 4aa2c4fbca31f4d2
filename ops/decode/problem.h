// What one decode step attends to: sizes, layouts, masks and cache formats.
//
// Throughout: B sequences, S query tokens each, N query heads, K KV heads, G = N / K query heads
// per KV head (the group), H head size, C rows of cache per sequence and KV head, T_b valid rows of
// sequence b after this step, Q_b <= S its query tokens: of more rows the rest are padding. Query
// token s of sequence b stands at position T_b - Q_b + s and sees the keys at positions <= its own,
// under a window W only the last W of those.

#ifndef LEAN_ATTENTION_OPS_DECODE_PROBLEM_H_
#define LEAN_ATTENTION_OPS_DECODE_PROBLEM_H_

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define LEAN_HOST_DEVICE __host__ __device__
#else
#define LEAN_HOST_DEVICE
#endif

namespace lean_attention {

// The last three are cache formats only: numbers times a scale. An int4 row packs two values to a
// byte, the even channel in the low half, each as value + 8. Of the last (OCP, 1 + 4 + 3 bits, no
// infinity) there is no CPU kernel.
enum class ElementType : int32_t {
  kFloat32 = 0,
  kFloat16 = 1,
  kBFloat16 = 2,
  kInt8 = 3,
  kInt4 = 4,
  kFloat8E4M3 = 5
};

LEAN_HOST_DEVICE constexpr bool IsQuantised(ElementType type) {
  return type == ElementType::kInt8 || type == ElementType::kInt4 ||
         type == ElementType::kFloat8E4M3;
}

LEAN_HOST_DEVICE constexpr int32_t BitsOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return 32;
    case ElementType::kFloat16:
    case ElementType::kBFloat16:
      return 16;
    case ElementType::kInt8:
    case ElementType::kFloat8E4M3:
      return 8;
    case ElementType::kInt4:
      break;
  }
  return 4;
}

inline const char* NameOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kBFloat16:
      return "bfloat16";
    case ElementType::kInt8:
      return "int8";
    case ElementType::kFloat8E4M3:
      return "float8e4m3";
    case ElementType::kInt4:
      break;
  }
  return "int4";
}

// Bytes of `count` consecutive elements.
LEAN_HOST_DEVICE constexpr int64_t BytesOf(ElementType type, int64_t count) {
  return (count * BitsOf(type) + 7) / 8;
}

struct Problem {
  int32_t batch_size;         // B >= 1
  int32_t sequence_length;    // S >= 1
  int32_t num_heads;          // N
  int32_t kv_num_heads;       // K, divides N
  int32_t head_size;          // H
  int64_t cache_rows;         // C
  const int32_t* seqlens_k;   // [B], T_b - 1, each in [0, C - 1]
  int64_t local_window_size;  // W, counts the query's own position; <= 0: no window
  ElementType cache_type;     // of K and V, [B, K, C, H] each
  int32_t tile_tokens;        // keys per tile before long sequences widen it
  // [B], Q_b, each in [0, min(S, T_b)]; 0: the sequence idles. Null: min(S, T_b) for all.
  const int32_t* query_seqlens = nullptr;
};

LEAN_HOST_DEVICE inline int32_t GroupSize(const Problem& p) { return p.num_heads / p.kv_num_heads; }

// Rows of the score matrix that share one KV head's keys: (query token, head of the group).
LEAN_HOST_DEVICE inline int32_t RowsPerKvHead(const Problem& p) {
  return p.sequence_length * GroupSize(p);
}

// What a step is to one sequence.
struct Lengths {
  int64_t keys;     // T_b
  int32_t queries;  // Q_b

  // The position of the first query token.
  LEAN_HOST_DEVICE int64_t past() const { return keys - queries; }
};

// Lengths as they may be used: within the cache and the step whatever the caller said, where nobody
// could check.
LEAN_HOST_DEVICE inline Lengths BoundedLengths(const Problem& p, int64_t keys, int64_t queries) {
  keys = keys < 1 ? 1 : (keys > p.cache_rows ? p.cache_rows : keys);
  const int64_t most = keys < p.sequence_length ? keys : p.sequence_length;
  queries = queries < 0 ? 0 : (queries > most ? most : queries);
  return {keys, static_cast<int32_t>(queries)};
}

LEAN_HOST_DEVICE inline Lengths LengthsOf(const Problem& p, int32_t sequence) {
  return BoundedLengths(p, int64_t{p.seqlens_k[sequence]} + 1,
                        p.query_seqlens != nullptr ? p.query_seqlens[sequence] : p.sequence_length);
}

LEAN_HOST_DEVICE inline int64_t CacheRowBytes(const Problem& p) {
  return BytesOf(p.cache_type, p.head_size);
}

// Byte offset of a cache row in [B, K, C, H]. 64-bit: a cache may pass 2^31 bytes.
LEAN_HOST_DEVICE inline int64_t CacheOffset(const Problem& p, int32_t sequence, int32_t kv_head,
                                            int64_t row) {
  return ((int64_t{sequence} * p.kv_num_heads + kv_head) * p.cache_rows + row) * CacheRowBytes(p);
}

// Half-open range of positions.
struct KeyRange {
  int64_t begin;
  int64_t end;
};

// The keys that query token `token` sees.
LEAN_HOST_DEVICE inline KeyRange VisibleKeys(const Problem& p, const Lengths& lengths,
                                             int32_t token) {
  const int64_t end = lengths.past() + token + 1;
  const int64_t begin = p.local_window_size > 0 ? end - p.local_window_size : 0;
  return {begin > 0 ? begin : 0, end};
}

// The first key that a step reads of a sequence. Of one that idles, the last, so that it has a tile
// to do what else there is to do in.
LEAN_HOST_DEVICE inline int64_t FirstVisibleKey(const Problem& p, const Lengths& lengths) {
  return lengths.queries == 0 ? lengths.keys - 1 : VisibleKeys(p, lengths, 0).begin;
}

}  // namespace lean_attention

#endif  // LEAN_ATTENTION_OPS_DECODE_PROBLEM_H_
