#include "tests/cpp/gpu_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "ops/emulator/launch.h"
#include "ops/gpu/decode_attention.h"

namespace lean_attention::testing {
namespace {

using emulator::DeviceBuffer;

template <typename Element>
DeviceBuffer<Element> ToDevice(const Tensor& tensor) {
  DeviceBuffer<Element> buffer(tensor.count());
  if (!tensor.empty()) std::memcpy(buffer.data(), tensor.data(), tensor.ByteOffset(tensor.count()));
  return buffer;
}

template <typename Element>
void FromDevice(const DeviceBuffer<Element>& buffer, Tensor* tensor) {
  std::memcpy(tensor->data(), buffer.data(), tensor->ByteOffset(tensor->count()));
}

template <typename T>
DeviceBuffer<T> CopyToDevice(const T* from, int64_t count) {
  return DeviceBuffer<T>(from == nullptr ? std::vector<T>() : std::vector<T>(from, from + count));
}

// Calls body with objects of the types of elements and of the cache, and with the head size.
template <typename Body>
void WithKernel(const StepSpec& spec, Body body) {
  const auto with_types = [&](auto element, auto cache) {
    switch (spec.head_size) {
      case 64:
        return body(element, cache, std::integral_constant<int, 64>());
      case 80:
        return body(element, cache, std::integral_constant<int, 80>());
      case 96:
        return body(element, cache, std::integral_constant<int, 96>());
      case 128:
        return body(element, cache, std::integral_constant<int, 128>());
      case 256:
        return body(element, cache, std::integral_constant<int, 256>());
      default:
        throw std::invalid_argument("no GPU kernel for this head size");
    }
  };
  const auto with_element = [&](auto element) {
    switch (spec.types.cache) {
      case ElementType::kInt8:
        return with_types(element, int8_t());
      case ElementType::kFloat8E4M3:
        return with_types(element, gpu::Fp8E4M3());
      default:
        return with_types(element, element);
    }
  };
  spec.types.element == ElementType::kFloat16 ? with_element(gpu::Half())
                                              : with_element(gpu::BFloat16());
}

template <typename Element, typename Cache, int kHeadSize>
void Launch(Step* step, const GpuLaunch& launch) {
  const cpu::DecodeArgs host = step->Args();
  const Problem& p = host.problem;
  const int64_t tokens = int64_t{p.batch_size} * p.sequence_length;
  auto query = ToDevice<Element>(step->query);
  auto key = ToDevice<Element>(step->key());
  auto value = ToDevice<Element>(step->value());
  auto key_cache = ToDevice<Cache>(step->present_key);
  auto value_cache = ToDevice<Cache>(step->present_value);
  auto cos = ToDevice<Element>(step->cos);
  auto sin = ToDevice<Element>(step->sin);
  auto bias = ToDevice<Element>(step->bias);
  auto sink = ToDevice<Element>(step->sink);
  auto output = ToDevice<Element>(step->output);
  auto lengths = CopyToDevice(p.seqlens_k, p.batch_size);
  auto positions = CopyToDevice(host.position_ids, tokens);
  const int64_t scales = host.scale_per_channel ? int64_t{p.kv_num_heads} * p.head_size : 1;
  auto k_scale = CopyToDevice(host.k_scale, scales);
  auto v_scale = CopyToDevice(host.v_scale, scales);
  const int64_t max_length = step->cache_rows() - step->spec().spare_rows;

  // No pointer to what the kernel must not need.
  Problem problem = p;
  problem.seqlens_k = nullptr;
  const Cut cut(p, launch.schedule, launch.amount);
  const gpu::RegionLayout region = gpu::RegionLayoutOf(p, max_length);
  DeviceBuffer<float> states(cut.regions() * region.region_floats());
  DeviceBuffer<int32_t> arrived(std::vector<int32_t>(cut.regions(), 0));

  const auto if_any = [](const Tensor& tensor, const DeviceBuffer<Element>& buffer) {
    return tensor.empty() ? gpu::GlobalPtr<const Element>() : buffer.ConstPtr();
  };
  gpu::DecodeArgs<Element, Cache> args = {};
  args.problem = problem;
  args.seqlens_k = lengths.ConstPtr();
  args.max_length = max_length;
  args.schedule = launch.schedule;
  args.amount = launch.amount;
  args.query = query.ConstPtr();
  args.key = key.ConstPtr() + step->KeyRow(0, 0, 0);
  args.value = value.ConstPtr() + step->ValueRow(0, 0, 0);
  args.query_stride = host.query_stride;
  args.kv_stride = host.kv_stride;
  args.key_cache = key_cache.Ptr();
  args.value_cache = value_cache.Ptr();
  if (host.k_scale != nullptr) args.k_scale = k_scale.ConstPtr();
  if (host.v_scale != nullptr) args.v_scale = v_scale.ConstPtr();
  args.scale_per_channel = host.scale_per_channel;
  args.cos_cache = if_any(step->cos, cos);
  args.sin_cache = if_any(step->sin, sin);
  args.rotary_rows = host.rotary_half > 0 ? step->cos.count() / host.rotary_half : 0;
  args.rotary_half = host.rotary_half;
  args.rotary_interleaved = host.rotary_interleaved;
  if (host.position_ids != nullptr) args.position_ids = positions.ConstPtr();
  args.attention_bias = if_any(step->bias, bias);
  args.bias_batch_stride = host.bias_batch_stride;
  args.bias_head_stride = host.bias_head_stride;
  args.bias_row_stride = host.bias_row_stride;
  args.head_sink = if_any(step->sink, sink);
  args.smooth_softmax = host.smooth_softmax;
  args.scale = host.scale;
  args.softcap = host.softcap;
  args.output = output.Ptr();
  args.states = states.Ptr();
  args.arrived = arrived.Ptr();

  emulator::LaunchConfig config;
  config.blocks = launch.blocks > 0 ? launch.blocks : static_cast<int>(cut.shares());
  config.threads = gpu::kThreads;
  config.shared_bytes = gpu::SharedLayout<Cache, kHeadSize>(RowsPerKvHead(p), p.batch_size).bytes();
  config.seed = launch.seed;
  config.resident_blocks = launch.resident_blocks;
  const emulator::Report report =
      emulator::Launch(config, [&] { gpu::DecodeAttention<Element, Cache, kHeadSize>(args); });
  EXPECT_TRUE(report.ok()) << report.ToString() << "\n" << step->spec();
  EXPECT_TRUE(std::all_of(arrived.begin(), arrived.end(), [](int32_t n) { return n == 0; }))
      << "a counter is left: " << step->spec();

  FromDevice(key_cache, &step->present_key);
  FromDevice(value_cache, &step->present_value);
  FromDevice(output, &step->output);
}

}  // namespace

Step AfterLaunch(const Step& before, const GpuLaunch& launch) {
  Step step = before;
  WithKernel(step.spec(), [&](auto element, auto cache, auto head_size) {
    Launch<decltype(element), decltype(cache), decltype(head_size)::value>(&step, launch);
  });
  return step;
}

}  // namespace lean_attention::testing
