// What the host can see to be wrong with a step.

#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>

#include "ops/gpu/launch/built.h"
#include "ops/gpu/launch/launcher.h"
#include "ops/gpu/shared_layout.h"

namespace lean_attention::gpu {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
// The kernel counts positions in 32 bits, past the end of a sequence by up to a tile.
constexpr int64_t kMaxCacheRows = int64_t{1} << 30;
// Of a tensor: more than any device holds, and few enough that no offset, size of a workspace or
// cost of a stream (times up to 2^16 shares) leaves 64 bits.
constexpr int64_t kMaxElements = int64_t{1} << 44;

template <typename... Parts>
Status Refusal(StatusCode code, const Parts&... parts) {
  std::ostringstream line;
  (line << ... << parts);
  return {code, line.str()};
}

template <typename... Parts>
Status Invalid(const Parts&... parts) {
  return Refusal(StatusCode::kInvalidArgument, parts...);
}

template <int... kHeadSizes>
std::string Listed(std::integer_sequence<int, kHeadSizes...>) {
  std::ostringstream list;
  const char* separator = "";
  ((list << separator << kHeadSizes, separator = ", "), ...);
  return list.str();
}

Status CheckSizes(const Problem& p) {
  const struct {
    const char* name;
    int32_t size;
  } sizes[] = {{"batch_size", p.batch_size},
               {"sequence_length", p.sequence_length},
               {"num_heads", p.num_heads},
               {"kv_num_heads", p.kv_num_heads}};
  for (const auto& [name, size] : sizes) {
    if (size < 1) return Invalid(name, " is ", size, "; it must be at least 1");
  }
  if (p.num_heads % p.kv_num_heads != 0) {
    return Invalid("num_heads is ", p.num_heads, ", not a multiple of kv_num_heads, ",
                   p.kv_num_heads);
  }
  if (p.tile_tokens < kKeys || p.tile_tokens % kKeys != 0) {
    return Invalid("tile_tokens is ", p.tile_tokens, "; it must be a multiple of ", kKeys);
  }
  if (int64_t{p.sequence_length} * GroupSize(p) > kMaxInt32 / p.head_size) {
    return Invalid("sequence_length ", p.sequence_length, " times ", GroupSize(p),
                   " heads of a group is too much; run fewer query tokens at a time");
  }
  return {};
}

Status CheckBuilt(const GpuDecode& d) {
  const Problem& p = d.problem;
  if (!WithHeadSize(p.head_size, [](auto) {})) {
    return Refusal(StatusCode::kUnsupported, "head_size is ", p.head_size, "; built for GPUs are ",
                   Listed(BuiltHeadSizes()));
  }
  if (!IsBuiltType(d.element_type, p.cache_type)) {
    return Refusal(
        StatusCode::kUnsupported, "tensors are ", NameOf(d.element_type), " and caches ",
        NameOf(p.cache_type),
        "; built for GPUs are float16 and bfloat16, with caches of the same type, of int8 and "
        "of float8e4m3");
  }
  return {};
}

Status CheckLengths(const GpuDecode& d) {
  const Problem& p = d.problem;
  if (p.cache_rows > kMaxCacheRows) {
    return Invalid("cache_rows is ", p.cache_rows, "; it must be at most ", kMaxCacheRows);
  }
  if (p.sequence_length > p.cache_rows) {
    return Invalid("sequence_length is ", p.sequence_length, ", and the cache has ", p.cache_rows,
                   " rows");
  }
  if (d.max_length < p.sequence_length || d.max_length > p.cache_rows) {
    return Invalid("max_length is ", d.max_length, "; it must be from sequence_length, ",
                   p.sequence_length, ", to the rows of the cache, ", p.cache_rows);
  }
  return {};
}

// Caches are read 16 bytes at a time, all else by its elements.
Status CheckPointers(const GpuDecode& d) {
  constexpr size_t kCache = 16;
  constexpr size_t kElement = 2;
  const bool has_scales = IsQuantised(d.problem.cache_type);
  const struct {
    const char* name;
    const void* pointer;
    size_t alignment;
    bool is_optional;
  } tensors[] = {{"seqlens_k", d.seqlens_k, sizeof(int32_t), false},
                 {"query_seqlens", d.query_seqlens, sizeof(int32_t), true},
                 {"k_scale", d.k_scale, sizeof(float), !has_scales},
                 {"v_scale", d.v_scale, sizeof(float), !has_scales},
                 {"query", d.query, kElement, false},
                 {"key", d.key, kElement, true},
                 {"value", d.value, kElement, true},
                 {"key_cache", d.key_cache, kCache, false},
                 {"value_cache", d.value_cache, kCache, false},
                 {"output", d.output, kElement, false},
                 {"q_norm_weight", d.q_norm_weight, kElement, true},
                 {"k_norm_weight", d.k_norm_weight, kElement, true},
                 {"cos_cache", d.cos_cache, kElement, true},
                 {"sin_cache", d.sin_cache, kElement, true},
                 {"position_ids", d.position_ids, sizeof(int64_t), true},
                 {"attention_bias", d.attention_bias, kElement, true},
                 {"head_sink", d.head_sink, kElement, true}};
  for (const auto& [name, pointer, alignment, is_optional] : tensors) {
    if (pointer == nullptr && !is_optional) return Invalid(name, " is null; the step needs it");
    if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
      return Invalid(name, " is not aligned to ", alignment, " bytes");
    }
  }
  if ((d.key == nullptr) != (d.value == nullptr)) {
    return Invalid(d.key == nullptr ? "key" : "value",
                   " is null; key and value must be given together");
  }
  if (d.key_cache == d.value_cache) {
    return Invalid("key_cache and value_cache are one buffer; each needs its own");
  }
  return {};
}

Status CheckStrides(const GpuDecode& d) {
  const Problem& p = d.problem;
  const int64_t query_row = int64_t{p.num_heads} * p.head_size;
  const int64_t kv_row = int64_t{p.kv_num_heads} * p.head_size;
  if (d.query_stride < query_row) {
    return Invalid("query_stride is ", d.query_stride, ", less than a token's ", query_row);
  }
  if (d.kv_stride < kv_row) {
    return Invalid("kv_stride is ", d.kv_stride, ", less than a token's ", kv_row);
  }
  if (d.attention_bias == nullptr) return {};
  if (d.bias_batch_stride < 0 || d.bias_head_stride < 0) {
    return Invalid("bias_batch_stride and bias_head_stride are ", d.bias_batch_stride, " and ",
                   d.bias_head_stride, "; they must not be negative");
  }
  if (d.bias_row_stride < d.max_length) {
    return Invalid("bias_row_stride is ", d.bias_row_stride, ", less than max_length, ",
                   d.max_length);
  }
  return {};
}

// Sizes that no tensor can have. Counted in floating point, which does not overflow.
Status CheckExtents(const GpuDecode& d) {
  const Problem& p = d.problem;
  const auto product = [](auto... sizes) { return (1.0 * ... * static_cast<double>(sizes)); };
  const double bias = product(p.batch_size, d.bias_batch_stride) +
                      product(p.num_heads, d.bias_head_stride) +
                      product(p.sequence_length, d.bias_row_stride);
  const struct {
    const char* name;
    double elements;
  } tensors[] = {{"key_cache", product(p.batch_size, p.kv_num_heads, p.cache_rows, p.head_size)},
                 {"query", product(p.batch_size, p.sequence_length, d.query_stride)},
                 {"key", product(p.batch_size, p.sequence_length, d.kv_stride)},
                 {"cos_cache", d.cos_cache == nullptr ? 0 : product(d.rotary_rows, d.rotary_half)},
                 {"attention_bias", d.attention_bias == nullptr ? 0 : bias}};
  for (const auto& [name, elements] : tensors) {
    if (elements > kMaxElements) {
      return Invalid("sizes and strides give ", name, " ", elements, " elements; no more than ",
                     kMaxElements, " can be");
    }
  }
  return {};
}

Status CheckRotary(const GpuDecode& d) {
  if ((d.cos_cache == nullptr) != (d.sin_cache == nullptr)) {
    return Invalid(d.cos_cache == nullptr ? "cos_cache" : "sin_cache",
                   " is null; cos_cache and sin_cache must be given together");
  }
  if (d.cos_cache == nullptr) return {};
  if (d.rotary_half < 1 || d.rotary_half > d.problem.head_size / 2) {
    return Invalid("rotary_half is ", d.rotary_half, "; for head_size ", d.problem.head_size,
                   " it must be from 1 to ", d.problem.head_size / 2);
  }
  const int64_t positions = d.position_ids == nullptr ? d.max_length : 1;
  if (d.rotary_rows < positions) {
    return Invalid("cos_cache and sin_cache have ", d.rotary_rows, " rows; positions need ",
                   positions);
  }
  return {};
}

Status CheckNumbers(const GpuDecode& d) {
  if (!std::isfinite(d.scale)) return Invalid("scale is ", d.scale, "; it must be finite");
  const struct {
    const char* name;
    const void* weight;
    float epsilon;
  } norms[] = {{"q_norm_epsilon", d.q_norm_weight, d.q_norm_epsilon},
               {"k_norm_epsilon", d.k_norm_weight, d.k_norm_epsilon}};
  for (const auto& [name, weight, epsilon] : norms) {
    if (weight != nullptr && !(epsilon > 0 && std::isfinite(epsilon))) {
      return Invalid(name, " is ", epsilon, "; it must be positive and finite");
    }
  }
  if (!std::isfinite(d.softcap) || d.softcap < 0) {
    return Invalid("softcap is ", d.softcap, "; it must be finite, and not negative");
  }
  return {};
}

Status CheckShared(const Problem& p, const Device& device) {
  const int64_t bytes = SharedBytes(p);
  if (bytes > device.shared_bytes) {
    return Refusal(StatusCode::kUnsupported, "head_size ", p.head_size, " with ", RowsPerKvHead(p),
                   " query rows per KV head and a batch of ", p.batch_size, " needs ", bytes,
                   " bytes of shared memory; a block of this device may have ",
                   device.shared_bytes);
  }
  return {};
}

}  // namespace

Status Check(const GpuDecode& decode, const Device& device) {
  Status status = CheckBuilt(decode);
  if (status.ok()) status = CheckSizes(decode.problem);
  if (status.ok()) status = CheckLengths(decode);
  if (status.ok()) status = CheckPointers(decode);
  if (status.ok()) status = CheckStrides(decode);
  if (status.ok()) status = CheckRotary(decode);
  if (status.ok()) status = CheckExtents(decode);
  if (status.ok()) status = CheckNumbers(decode);
  if (status.ok()) status = CheckShared(decode.problem, device);
  return status;
}

Status CheckBuffers(const GpuDecode& decode, const GpuDecision& decision,
                    const WorkspaceBuffers& buffers) {
  const Workspace needed = WorkspaceOf(decode.problem, decode.max_length, decision);
  if (needed.counters == 0) return {};
  if (buffers.states == nullptr) {
    return Invalid("the workspace is null; ", NameOf(decision.schedule), " needs ",
                   needed.state_bytes, " bytes for states");
  }
  if (reinterpret_cast<uintptr_t>(buffers.states) % 16 != 0) {
    return Invalid("the workspace is not aligned to 16 bytes");
  }
  if (buffers.counters == nullptr) {
    return Invalid("the counters are null; ", NameOf(decision.schedule), " needs ",
                   needed.counters);
  }
  if (reinterpret_cast<uintptr_t>(buffers.counters) % alignof(int32_t) != 0) {
    return Invalid("the counters are not aligned to ", alignof(int32_t), " bytes");
  }
  return {};
}

}  // namespace lean_attention::gpu
