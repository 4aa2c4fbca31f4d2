// The body of an instantiation file.

#ifndef LEAN_ATTENTION_OPS_GPU_LAUNCH_INSTANTIATE_INL_H_
#define LEAN_ATTENTION_OPS_GPU_LAUNCH_INSTANTIATE_INL_H_

#include "ops/gpu/decode_attention.h"
#include "ops/gpu/launch/instance.h"
#include "ops/gpu/launch/runtime.h"

// HIP defines a kernel's handle where the kernel itself is instantiated, not where its address is
// taken.
#define LEAN_ATTENTION_INSTANTIATE_CACHE(Element, Cache, kHeadSize)                                \
  template __global__ void DecodeAttention<Element, Cache, kHeadSize>(DecodeArgs<Element, Cache>); \
  template Instance InstanceOf<Element, Cache, kHeadSize>();

// Kernels of Element over all types of caches.
#define LEAN_ATTENTION_INSTANTIATE(Element, kHeadSize)          \
  namespace lean_attention::gpu {                               \
  LEAN_ATTENTION_INSTANTIATE_CACHE(Element, Element, kHeadSize) \
  LEAN_ATTENTION_INSTANTIATE_CACHE(Element, int8_t, kHeadSize)  \
  LEAN_ATTENTION_INSTANTIATE_CACHE(Element, Fp8E4M3, kHeadSize) \
  }

namespace lean_attention::gpu {

template <typename Element, typename Cache>
DecodeArgs<Element, Cache> ArgsOf(const GpuDecode& d, const GpuDecision& decision,
                                  const WorkspaceBuffers& buffers) {
  const auto input = [](const void* tensor) { return static_cast<const Element*>(tensor); };
  DecodeArgs<Element, Cache> args = {};
  args.problem = d.problem;
  args.problem.seqlens_k = args.problem.query_seqlens = nullptr;
  args.seqlens_k = d.seqlens_k;
  args.query_seqlens = d.query_seqlens;
  args.max_length = d.max_length;
  args.schedule = decision.schedule;
  args.amount = decision.amount;
  args.query = input(d.query);
  args.key = input(d.key);
  args.value = input(d.value);
  args.query_stride = d.query_stride;
  args.kv_stride = d.kv_stride;
  args.key_cache = static_cast<Cache*>(d.key_cache);
  args.value_cache = static_cast<Cache*>(d.value_cache);
  args.k_scale = d.k_scale;
  args.v_scale = d.v_scale;
  args.scale_per_channel = d.scale_per_channel;
  args.q_norm_weight = input(d.q_norm_weight);
  args.k_norm_weight = input(d.k_norm_weight);
  args.q_norm_epsilon = d.q_norm_epsilon;
  args.k_norm_epsilon = d.k_norm_epsilon;
  args.cos_cache = input(d.cos_cache);
  args.sin_cache = input(d.sin_cache);
  args.rotary_rows = d.rotary_rows;
  args.rotary_half = d.rotary_half;
  args.rotary_interleaved = d.rotary_interleaved;
  args.position_ids = d.position_ids;
  args.attention_bias = input(d.attention_bias);
  args.bias_batch_stride = d.bias_batch_stride;
  args.bias_head_stride = d.bias_head_stride;
  args.bias_row_stride = d.bias_row_stride;
  args.head_sink = input(d.head_sink);
  args.smooth_softmax = d.smooth_softmax;
  args.scale = d.scale;
  args.softcap = d.softcap;
  args.output = static_cast<Element*>(d.output);
  args.states = static_cast<float*>(buffers.states);
  args.arrived = buffers.counters;
  return args;
}

template <typename Element, typename Cache>
Status LaunchInstance(const Instance& instance, const GpuDecode& decode,
                      const GpuDecision& decision, const WorkspaceBuffers& buffers, void* stream) {
  DecodeArgs<Element, Cache> args = ArgsOf<Element, Cache>(decode, decision, buffers);
  void* arguments[] = {&args};
  const Problem& p = decode.problem;
  const int64_t shared_bytes = SharedBytes(p);
  return runtime::AsStatus(runtime::LaunchKernel(instance.kernel, decision.blocks, instance.threads,
                                                 arguments, shared_bytes, stream),
                           "the launch failed");
}

template <typename Element, typename Cache, int kHeadSize>
Instance InstanceOf() {
  return {reinterpret_cast<const void*>(&DecodeAttention<Element, Cache, kHeadSize>), kThreads,
          &LaunchInstance<Element, Cache>};
}

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_LAUNCH_INSTANTIATE_INL_H_
