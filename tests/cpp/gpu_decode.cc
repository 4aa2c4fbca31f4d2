#include "tests/cpp/gpu_step.h"

namespace lean_attention::testing {

gpu::GpuDecode DecodeOf(Step* step, const GpuLaunch& launch) {
  const cpu::DecodeArgs args = step->Args();
  gpu::GpuDecode decode = {};
  decode.problem = args.problem;
  decode.element_type = args.element_type;
  decode.seqlens_k = launch.seqlens_k.empty() ? args.problem.seqlens_k : launch.seqlens_k.data();
  decode.query_seqlens =
      launch.query_seqlens.empty() ? args.problem.query_seqlens : launch.query_seqlens.data();
  decode.max_length = step->cache_rows() - step->spec().spare_rows;
  decode.query = args.query;
  decode.key = args.key;
  decode.value = args.value;
  decode.query_stride = args.query_stride;
  decode.kv_stride = args.kv_stride;
  decode.key_cache = args.present_key;
  decode.value_cache = args.present_value;
  decode.k_scale = args.k_scale;
  decode.v_scale = args.v_scale;
  decode.scale_per_channel = args.scale_per_channel;
  decode.q_norm_weight = args.q_norm_weight;
  decode.k_norm_weight = args.k_norm_weight;
  decode.q_norm_epsilon = args.q_norm_epsilon;
  decode.k_norm_epsilon = args.k_norm_epsilon;
  decode.cos_cache = args.cos_cache;
  decode.sin_cache = args.sin_cache;
  decode.rotary_rows = args.rotary_half > 0 ? step->cos.count() / args.rotary_half : 0;
  decode.rotary_half = args.rotary_half;
  decode.rotary_interleaved = args.rotary_interleaved;
  decode.position_ids =
      launch.position_ids.empty() ? args.position_ids : launch.position_ids.data();
  decode.attention_bias = args.attention_bias;
  decode.bias_batch_stride = args.bias_batch_stride;
  decode.bias_head_stride = args.bias_head_stride;
  decode.bias_row_stride = args.bias_row_stride;
  decode.head_sink = args.head_sink;
  decode.smooth_softmax = args.smooth_softmax;
  decode.scale = args.scale;
  decode.softcap = args.softcap;
  decode.output = args.output;
  return decode;
}

}  // namespace lean_attention::testing
