// The GPU kernel of one pair of types and one head size, launched over the tensors of a step.

#ifndef LEAN_ATTENTION_TESTS_CPP_GPU_LAUNCH_H_
#define LEAN_ATTENTION_TESTS_CPP_GPU_LAUNCH_H_

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "ops/emulator/launch.h"
#include "ops/gpu/decode_attention.h"
#include "tests/cpp/gpu_step.h"

namespace lean_attention::testing {

// The tensors of a step in device memory.
template <typename Element, typename Cache>
class DeviceStep {
  template <typename T>
  using Buffer = emulator::DeviceBuffer<T>;

 public:
  DeviceStep(Step* step, const GpuLaunch& launch)
      : host_(step->Args()),
        max_length_(step->cache_rows() - step->spec().spare_rows),
        query_(ToDevice<Element>(step->query)),
        key_(ToDevice<Element>(step->key())),
        value_(ToDevice<Element>(step->value())),
        key_cache_(ToDevice<Cache>(step->present_key)),
        value_cache_(ToDevice<Cache>(step->present_value)),
        k_scale_(Override({}, host_.k_scale, Scales())),
        v_scale_(Override({}, host_.v_scale, Scales())),
        cos_(ToDevice<Element>(step->cos)),
        sin_(ToDevice<Element>(step->sin)),
        bias_(ToDevice<Element>(step->bias)),
        sink_(ToDevice<Element>(step->sink)),
        output_(ToDevice<Element>(step->output)),
        seqlens_k_(Override(launch.seqlens_k, host_.problem.seqlens_k, step->batch_size())),
        position_ids_(Override(launch.position_ids, host_.position_ids,
                               step->batch_size() * step->spec().sequence_length)),
        first_key_(step->KeyRow(0, 0, 0)),
        first_value_(step->ValueRow(0, 0, 0)) {}

  const Problem& problem() const { return host_.problem; }
  int64_t max_length() const { return max_length_; }

  gpu::DecodeArgs<Element, Cache> Args() {
    gpu::DecodeArgs<Element, Cache> args = {};
    args.problem = host_.problem;
    args.problem.seqlens_k = nullptr;  // the host's, which no kernel may need
    args.seqlens_k = seqlens_k_.ConstPtr();
    args.max_length = max_length_;
    args.query = query_.ConstPtr();
    args.key = key_.ConstPtr() + first_key_;
    args.value = value_.ConstPtr() + first_value_;
    args.query_stride = host_.query_stride;
    args.kv_stride = host_.kv_stride;
    args.key_cache = key_cache_.Ptr();
    args.value_cache = value_cache_.Ptr();
    args.k_scale = IfAny(k_scale_);
    args.v_scale = IfAny(v_scale_);
    args.scale_per_channel = host_.scale_per_channel;
    args.cos_cache = IfAny(cos_);
    args.sin_cache = IfAny(sin_);
    args.rotary_rows = host_.rotary_half > 0 ? cos_.size() / host_.rotary_half : 0;
    args.rotary_half = host_.rotary_half;
    args.rotary_interleaved = host_.rotary_interleaved;
    args.position_ids = IfAny(position_ids_);
    args.attention_bias = IfAny(bias_);
    args.bias_batch_stride = host_.bias_batch_stride;
    args.bias_head_stride = host_.bias_head_stride;
    args.bias_row_stride = host_.bias_row_stride;
    args.head_sink = IfAny(sink_);
    args.smooth_softmax = host_.smooth_softmax;
    args.scale = host_.scale;
    args.softcap = host_.softcap;
    args.output = output_.Ptr();
    return args;
  }

  void CopyBack(Step* step) const {
    FromDevice(key_cache_, &step->present_key);
    FromDevice(value_cache_, &step->present_value);
    FromDevice(output_, &step->output);
  }

 private:
  int64_t Scales() const {
    const Problem& p = host_.problem;
    return host_.scale_per_channel ? int64_t{p.kv_num_heads} * p.head_size : 1;
  }
  template <typename T>
  static Buffer<T> ToDevice(const Tensor& tensor) {
    Buffer<T> buffer(tensor.count());
    if (!tensor.empty()) {
      std::memcpy(buffer.data(), tensor.data(), tensor.ByteOffset(tensor.count()));
    }
    return buffer;
  }
  template <typename T>
  static void FromDevice(const Buffer<T>& buffer, Tensor* tensor) {
    std::memcpy(tensor->data(), buffer.data(), tensor->ByteOffset(tensor->count()));
  }
  template <typename T>
  static Buffer<T> Override(const std::vector<T>& numbers, const T* host, int64_t count) {
    if (!numbers.empty() || host == nullptr) return Buffer<T>(numbers);
    return Buffer<T>(std::vector<T>(host, host + count));
  }
  template <typename T>
  static gpu::GlobalPtr<const T> IfAny(const Buffer<T>& buffer) {
    return buffer.size() > 0 ? buffer.ConstPtr() : nullptr;
  }

  cpu::DecodeArgs host_;
  int64_t max_length_;
  Buffer<Element> query_, key_, value_;
  Buffer<Cache> key_cache_, value_cache_;
  Buffer<float> k_scale_, v_scale_;
  Buffer<Element> cos_, sin_, bias_, sink_, output_;
  Buffer<int32_t> seqlens_k_;
  Buffer<int64_t> position_ids_;
  int64_t first_key_, first_value_;  // elements before them
};

template <typename Element, typename Cache, int kHeadSize>
GpuOutcome RunKernel(const Step& before, const GpuLaunch& launch) {
  GpuOutcome outcome = {before, {}, false};
  DeviceStep<Element, Cache> device(&outcome.step, launch);
  const Problem& p = device.problem();
  const Cut cut(p, launch.schedule, launch.amount);
  const gpu::RegionLayout region = gpu::RegionLayoutOf(p, device.max_length());
  emulator::DeviceBuffer<float> states(cut.regions() * region.region_floats());
  emulator::DeviceBuffer<int32_t> arrived(std::vector<int32_t>(cut.regions(), 0));

  gpu::DecodeArgs<Element, Cache> args = device.Args();
  args.schedule = launch.schedule;
  args.amount = launch.amount;
  args.states = states.Ptr();
  args.arrived = arrived.Ptr();

  emulator::LaunchConfig config;
  config.blocks = launch.blocks > 0 ? launch.blocks : static_cast<int>(cut.shares());
  config.threads = gpu::kThreads;
  config.shared_bytes = gpu::SharedLayout<Cache, kHeadSize>(RowsPerKvHead(p), p.batch_size).bytes();
  config.seed = launch.seed;
  config.resident_blocks = launch.resident_blocks;
  outcome.report =
      emulator::Launch(config, [&] { gpu::DecodeAttention<Element, Cache, kHeadSize>(args); });
  outcome.counters_are_zero =
      std::all_of(arrived.begin(), arrived.end(), [](int32_t n) { return n == 0; });
  device.CopyBack(&outcome.step);
  return outcome;
}

}  // namespace lean_attention::testing

#endif  // LEAN_ATTENTION_TESTS_CPP_GPU_LAUNCH_H_
