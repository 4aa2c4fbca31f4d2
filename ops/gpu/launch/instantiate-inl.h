// The body of an instantiation file.

#ifndef LEAN_ATTENTION_OPS_GPU_LAUNCH_INSTANTIATE_INL_H_
#define LEAN_ATTENTION_OPS_GPU_LAUNCH_INSTANTIATE_INL_H_

#include "ops/gpu/decode_attention.h"
#include "ops/gpu/launch/instance.h"
#include "ops/gpu/launch/runtime.h"

// Kernels of Element over caches of it. HIP defines a kernel's handle where the kernel itself is
// instantiated, not where its address is taken.
#define LEAN_ATTENTION_INSTANTIATE(Element, kHeadSize)                               \
  namespace lean_attention::gpu {                                                    \
  template __global__ void DecodeAttention<Element, kHeadSize>(DecodeArgs<Element>); \
  template Instance InstanceOf<Element, kHeadSize>();                                \
  }

namespace lean_attention::gpu {

template <typename Element>
DecodeArgs<Element> ArgsOf(const GpuDecode& d, const GpuDecision& decision,
                           const WorkspaceBuffers& buffers) {
  const auto input = [](const void* tensor) { return static_cast<const Element*>(tensor); };
  const auto output = [](void* tensor) { return static_cast<Element*>(tensor); };
  DecodeArgs<Element> args = {};
  args.problem = d.problem;
  args.problem.seqlens_k = nullptr;
  args.seqlens_k = d.seqlens_k;
  args.max_length = d.max_length;
  args.schedule = decision.schedule;
  args.amount = decision.amount;
  args.query = input(d.query);
  args.key = input(d.key);
  args.value = input(d.value);
  args.query_stride = d.query_stride;
  args.kv_stride = d.kv_stride;
  args.key_cache = output(d.key_cache);
  args.value_cache = output(d.value_cache);
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
  args.output = output(d.output);
  args.states = static_cast<float*>(buffers.states);
  args.arrived = buffers.counters;
  return args;
}

template <typename Element>
Status LaunchInstance(const Instance& instance, const GpuDecode& decode,
                      const GpuDecision& decision, const WorkspaceBuffers& buffers, void* stream) {
  DecodeArgs<Element> args = ArgsOf<Element>(decode, decision, buffers);
  void* arguments[] = {&args};
  const Problem& p = decode.problem;
  const int64_t shared_bytes = SharedBytes(p.head_size, RowsPerKvHead(p), p.batch_size);
  return runtime::AsStatus(runtime::LaunchKernel(instance.kernel, decision.blocks, instance.threads,
                                                 arguments, shared_bytes, stream),
                           "the launch failed");
}

template <typename Element, int kHeadSize>
Instance InstanceOf() {
  return {reinterpret_cast<const void*>(&DecodeAttention<Element, kHeadSize>), kThreads,
          &LaunchInstance<Element>};
}

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_LAUNCH_INSTANTIATE_INL_H_
