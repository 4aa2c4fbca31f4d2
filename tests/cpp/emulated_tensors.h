// The tensors of a launch in the emulator's memory: buffers of their exact sizes.

#ifndef LEAN_ATTENTION_TESTS_CPP_EMULATED_TENSORS_H_
#define LEAN_ATTENTION_TESTS_CPP_EMULATED_TENSORS_H_

#include <cstdint>
#include <vector>

#include "ops/emulator/launch.h"
#include "ops/gpu/decode_args.h"
#include "ops/gpu/launch/launcher.h"
#include "tests/cpp/emulated_memory.h"

namespace lean_attention::testing {

// Copies of what a GpuDecode points to.
template <typename Element, typename Cache>
class EmulatedTensors {
  template <typename T>
  using Buffer = emulator::DeviceBuffer<T>;

 public:
  explicit EmulatedTensors(const gpu::GpuDecode& decode)
      : decode_(decode),
        seqlens_k_(CopyOf<int32_t>(decode.seqlens_k, decode.problem.batch_size)),
        query_seqlens_(CopyOf<int32_t>(decode.query_seqlens, decode.problem.batch_size)),
        query_(CopyOf<Element>(decode.query, TokensOf(decode.query_stride, num_heads()))),
        key_(CopyOf<Element>(decode.key, TokensOf(decode.kv_stride, kv_num_heads()))),
        value_(CopyOf<Element>(decode.value, TokensOf(decode.kv_stride, kv_num_heads()))),
        key_cache_(CopyOf<Cache>(decode.key_cache, CacheCount())),
        value_cache_(CopyOf<Cache>(decode.value_cache, CacheCount())),
        k_scale_(CopyOf<float>(decode.k_scale, ScaleCount())),
        v_scale_(CopyOf<float>(decode.v_scale, ScaleCount())),
        q_norm_(CopyOf<Element>(decode.q_norm_weight, head_size())),
        k_norm_(CopyOf<Element>(decode.k_norm_weight, head_size())),
        cos_(CopyOf<Element>(decode.cos_cache, decode.rotary_rows * decode.rotary_half)),
        sin_(CopyOf<Element>(decode.sin_cache, decode.rotary_rows * decode.rotary_half)),
        position_ids_(CopyOf<int64_t>(decode.position_ids, Tokens())),
        bias_(CopyOf<Element>(decode.attention_bias, BiasCount())),
        sink_(CopyOf<Element>(decode.head_sink, num_heads())),
        output_(CopyOf<Element>(decode.output, OutputCount())) {}

  // But for the cut and the workspace.
  gpu::DecodeArgs<Element, Cache> Args() {
    gpu::DecodeArgs<Element, Cache> args = {};
    args.problem = decode_.problem;
    args.problem.seqlens_k = nullptr;  // the host's, which no kernel may need
    args.problem.query_seqlens = nullptr;
    args.seqlens_k = seqlens_k_.ConstPtr();
    args.query_seqlens = IfAny(query_seqlens_);
    args.max_length = decode_.max_length;
    args.query = query_.ConstPtr();
    args.key = IfAny(key_);
    args.value = IfAny(value_);
    args.query_stride = decode_.query_stride;
    args.kv_stride = decode_.kv_stride;
    args.key_cache = key_cache_.Ptr();
    args.value_cache = value_cache_.Ptr();
    args.k_scale = IfAny(k_scale_);
    args.v_scale = IfAny(v_scale_);
    args.scale_per_channel = decode_.scale_per_channel;
    args.q_norm_weight = IfAny(q_norm_);
    args.k_norm_weight = IfAny(k_norm_);
    args.q_norm_epsilon = decode_.q_norm_epsilon;
    args.k_norm_epsilon = decode_.k_norm_epsilon;
    args.cos_cache = IfAny(cos_);
    args.sin_cache = IfAny(sin_);
    args.rotary_rows = decode_.rotary_rows;
    args.rotary_half = decode_.rotary_half;
    args.rotary_interleaved = decode_.rotary_interleaved;
    args.position_ids = IfAny(position_ids_);
    args.attention_bias = IfAny(bias_);
    args.bias_batch_stride = decode_.bias_batch_stride;
    args.bias_head_stride = decode_.bias_head_stride;
    args.bias_row_stride = decode_.bias_row_stride;
    args.head_sink = IfAny(sink_);
    args.smooth_softmax = decode_.smooth_softmax;
    args.scale = decode_.scale;
    args.softcap = decode_.softcap;
    args.output = output_.Ptr();
    return args;
  }

  void CopyBack() const {
    CopyTo(decode_.key_cache, key_cache_);
    CopyTo(decode_.value_cache, value_cache_);
    CopyTo(decode_.output, output_);
  }

 private:
  int64_t num_heads() const { return decode_.problem.num_heads; }
  int64_t kv_num_heads() const { return decode_.problem.kv_num_heads; }
  int64_t head_size() const { return decode_.problem.head_size; }
  int64_t Tokens() const {
    return int64_t{decode_.problem.batch_size} * decode_.problem.sequence_length;
  }
  int64_t TokensOf(int64_t stride, int64_t heads) const {
    return (Tokens() - 1) * stride + heads * head_size();
  }
  int64_t OutputCount() const { return Tokens() * num_heads() * head_size(); }
  int64_t CacheCount() const {
    return decode_.problem.batch_size * kv_num_heads() * decode_.problem.cache_rows * head_size();
  }
  int64_t ScaleCount() const {
    return decode_.scale_per_channel ? kv_num_heads() * head_size() : 1;
  }
  int64_t BiasCount() const {
    return (decode_.problem.batch_size - 1) * decode_.bias_batch_stride +
           (num_heads() - 1) * decode_.bias_head_stride +
           (decode_.problem.sequence_length - 1) * decode_.bias_row_stride + decode_.max_length;
  }

  template <typename T>
  static Buffer<T> CopyOf(const void* tensor, int64_t count) {
    Buffer<T> buffer(tensor == nullptr ? 0 : count);
    if (buffer.size() > 0) {
      CopyMemory(buffer.data(), tensor, static_cast<size_t>(count) * sizeof(T));
    }
    return buffer;
  }
  template <typename T>
  static void CopyTo(void* tensor, const Buffer<T>& buffer) {
    CopyMemory(tensor, buffer.data(), static_cast<size_t>(buffer.size()) * sizeof(T));
  }
  template <typename T>
  static gpu::GlobalPtr<const T> IfAny(const Buffer<T>& buffer) {
    return buffer.size() > 0 ? buffer.ConstPtr() : nullptr;
  }

  const gpu::GpuDecode decode_;
  Buffer<int32_t> seqlens_k_, query_seqlens_;
  Buffer<Element> query_, key_, value_;
  Buffer<Cache> key_cache_, value_cache_;
  Buffer<float> k_scale_, v_scale_;
  Buffer<Element> q_norm_, k_norm_, cos_, sin_;
  Buffer<int64_t> position_ids_;
  Buffer<Element> bias_, sink_, output_;
};

}  // namespace lean_attention::testing

#endif  // LEAN_ATTENTION_TESTS_CPP_EMULATED_TENSORS_H_
