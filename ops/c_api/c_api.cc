#include "ops/c_api/c_api.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <vector>

#include "ops/cpu/decode_attention.h"

namespace {

using namespace lean_attention;

constexpr int64_t kMostAmount = 1 << 16;
constexpr int64_t kMostRows = 1 << 20;

bool SizesAreValid(const lean_attention_decode& d) {
  const bool quantised = d.cache_type == LEAN_ATTENTION_INT8 || d.cache_type == LEAN_ATTENTION_INT4;
  return d.type >= LEAN_ATTENTION_FLOAT32 && d.type <= LEAN_ATTENTION_BFLOAT16 &&
         (quantised || d.cache_type == d.type) && d.batch_size > 0 && d.sequence_length > 0 &&
         d.num_heads > 0 && d.num_heads <= 65536 && d.kv_num_heads > 0 &&
         d.num_heads % d.kv_num_heads == 0 && d.head_size > 0 && d.head_size <= 4096 &&
         d.cache_rows >= d.sequence_length && d.cache_rows <= INT32_MAX &&
         d.local_window_size <= INT32_MAX && std::isfinite(d.scale) && std::isfinite(d.softcap) &&
         d.softcap >= 0 && int64_t{d.sequence_length} * d.num_heads <= kMostRows;
}

bool PointersAreValid(const lean_attention_decode& d) {
  return d.seqlens_k != nullptr && d.query != nullptr && d.key != nullptr && d.value != nullptr &&
         d.key_cache != nullptr && d.value_cache != nullptr && d.output != nullptr &&
         (d.cache_type == d.type || (d.k_scale != nullptr && d.v_scale != nullptr)) &&
         (d.cos_cache == nullptr) == (d.sin_cache == nullptr);
}

bool LengthsAreValid(const lean_attention_decode& d) {
  return std::all_of(d.seqlens_k, d.seqlens_k + d.batch_size, [&](int32_t last) {
    return last >= d.sequence_length - 1 && last < d.cache_rows &&
           (d.cos_cache == nullptr || last < d.rotary_rows);
  });
}

bool RotaryIsValid(const lean_attention_decode& d) {
  return d.cos_cache == nullptr || (d.rotary_half > 0 && d.rotary_half <= d.head_size / 2);
}

cpu::DecodeArgs ArgsOf(const lean_attention_decode& d) {
  const auto cache_type = static_cast<ElementType>(d.cache_type);
  cpu::DecodeArgs args = {};
  args.problem = {d.batch_size, d.sequence_length,
                  d.num_heads,  d.kv_num_heads,
                  d.head_size,  d.cache_rows,
                  d.seqlens_k,  d.local_window_size,
                  cache_type,   cpu::TileTokens(d.head_size, cache_type)};
  args.element_type = static_cast<ElementType>(d.type);
  args.query = d.query;
  args.key = d.key;
  args.value = d.value;
  args.query_stride = int64_t{d.num_heads} * d.head_size;
  args.kv_stride = int64_t{d.kv_num_heads} * d.head_size;
  args.past_key = args.present_key = d.key_cache;
  args.past_value = args.present_value = d.value_cache;
  args.past_rows = d.cache_rows;
  args.k_scale = d.k_scale;
  args.v_scale = d.v_scale;
  args.scale_per_channel = d.scale_per_channel != 0;
  args.cos_cache = d.cos_cache;
  args.sin_cache = d.sin_cache;
  args.rotary_half = d.rotary_half;
  args.rotary_interleaved = d.rotary_interleaved != 0;
  args.head_sink = d.head_sink;
  args.scale = d.scale;
  args.softcap = d.softcap;
  args.output = d.output;
  return args;
}

struct AlignedDelete {
  void operator()(char* memory) const {
    ::operator delete[](memory, std::align_val_t(cpu::kWorkspaceAlignment));
  }
};

void Decode(const lean_attention_decode& decode, const Decision& decision, uint64_t order_seed) {
  const cpu::DecodeArgs args = ArgsOf(decode);
  const cpu::Plan plan = cpu::MakePlan(args, decision);
  const std::unique_ptr<char[], AlignedDelete> workspace(
      new (std::align_val_t(cpu::kWorkspaceAlignment)) char[plan.workspace_bytes]);
  cpu::PrepareWorkspace(plan, workspace.get());
  std::vector<int64_t> order(plan.cut.shares());
  std::iota(order.begin(), order.end(), 0);
  if (order_seed != 0) std::shuffle(order.begin(), order.end(), std::mt19937_64(order_seed));
  for (int64_t share : order) cpu::RunShare(args, plan, workspace.get(), share);
}

}  // namespace

const char* lean_attention_version(void) { return LEAN_ATTENTION_VERSION; }

const char* lean_attention_cpu_target(void) { return cpu::TargetName(); }

const char* lean_attention_status_message(int32_t status) {
  switch (status) {
    case LEAN_ATTENTION_OK:
      return "ok";
    case LEAN_ATTENTION_INVALID_ARGUMENT:
      return "invalid argument: a size, length or pointer is outside what the function accepts";
    case LEAN_ATTENTION_OUT_OF_MEMORY:
      return "out of memory";
    case LEAN_ATTENTION_UNSUPPORTED_CPU:
      return "this processor lacks every instruction set that the library was compiled for";
    case LEAN_ATTENTION_UNSUPPORTED_GPU:
      return "no GPU kernel in the library, or not this GPU, takes such a step";
    case LEAN_ATTENTION_DEVICE_ERROR:
      return "the GPU's runtime reported an error";
    case LEAN_ATTENTION_NOT_BUILT:
      return "the library was built without GPU kernels";
    default:
      return "unknown status";
  }
}

int32_t lean_attention_cpu_decode(const lean_attention_decode* decode, int32_t schedule,
                                  int64_t amount, uint64_t order_seed) {
  if (decode == nullptr || schedule < LEAN_ATTENTION_LEAN || schedule > LEAN_ATTENTION_DIRECT ||
      amount < 1 || amount > kMostAmount || !SizesAreValid(*decode) || !PointersAreValid(*decode) ||
      !RotaryIsValid(*decode) || !LengthsAreValid(*decode)) {
    return LEAN_ATTENTION_INVALID_ARGUMENT;
  }
  if (cpu::TargetName() == nullptr) return LEAN_ATTENTION_UNSUPPORTED_CPU;
  try {
    Decode(*decode, {static_cast<Schedule>(schedule), amount, "asked for"}, order_seed);
  } catch (const std::bad_alloc&) {
    return LEAN_ATTENTION_OUT_OF_MEMORY;
  }
  return LEAN_ATTENTION_OK;
}
