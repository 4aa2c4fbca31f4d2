#include "ops/c_api/gpu_api.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>
#include <sstream>
#include <string>

#include "ops/c_api/message.h"
#include "ops/gpu/launch/launcher.h"

namespace {

using namespace lean_attention;
using gpu::Status;
using gpu::StatusCode;

constexpr int64_t kMostAmount = 1 << 16;

template <typename... Parts>
Status Invalid(const Parts&... parts) {
  std::ostringstream line;
  (line << ... << parts);
  return {StatusCode::kInvalidArgument, line.str()};
}

bool IsType(int32_t type) {
  return type >= LEAN_ATTENTION_FLOAT32 && type <= LEAN_ATTENTION_FLOAT8E4M3;
}

gpu::GpuDecode DecodeOf(const lean_attention_gpu_step& s) {
  gpu::GpuDecode d = {};
  d.problem = {s.batch_size,   s.sequence_length,   s.num_heads,
               s.kv_num_heads, s.head_size,         s.cache_rows,
               nullptr,        s.local_window_size, static_cast<ElementType>(s.cache_type),
               kGpuTileTokens};
  d.element_type = static_cast<ElementType>(s.type);
  d.seqlens_k = s.seqlens_k;
  d.query_seqlens = s.query_seqlens;
  d.max_length = s.max_length;
  d.query = s.query;
  d.key = s.key;
  d.value = s.value;
  d.query_stride = s.query_stride;
  d.kv_stride = s.kv_stride;
  d.key_cache = s.key_cache;
  d.value_cache = s.value_cache;
  d.k_scale = s.k_scale;
  d.v_scale = s.v_scale;
  d.scale_per_channel = s.scale_per_channel != 0;
  d.q_norm_weight = s.q_norm_weight;
  d.k_norm_weight = s.k_norm_weight;
  d.q_norm_epsilon = s.q_norm_epsilon;
  d.k_norm_epsilon = s.k_norm_epsilon;
  d.cos_cache = s.cos_cache;
  d.sin_cache = s.sin_cache;
  d.rotary_rows = s.rotary_rows;
  d.rotary_half = s.rotary_half;
  d.rotary_interleaved = s.rotary_interleaved != 0;
  d.position_ids = s.position_ids;
  d.attention_bias = s.attention_bias;
  d.bias_batch_stride = s.bias_batch_stride;
  d.bias_head_stride = s.bias_head_stride;
  d.bias_row_stride = s.bias_row_stride;
  d.head_sink = s.head_sink;
  d.smooth_softmax = s.smooth_softmax != 0;
  d.scale = s.scale;
  d.softcap = s.softcap;
  d.output = s.output;
  return d;
}

Status CheckStep(const lean_attention_gpu_step* step, gpu::GpuDecode* decode) {
  if (step == nullptr) return Invalid("the step is null");
  if (!IsType(step->type) || !IsType(step->cache_type)) {
    return Invalid("type is ", step->type, " and cache_type ", step->cache_type,
                   "; they are values of enum lean_attention_type");
  }
  gpu::Device device = {};
  Status status = gpu::QueryDevice(&device);
  *decode = DecodeOf(*step);
  if (status.ok()) status = gpu::Check(*decode, device);
  return status;
}

Status CheckWish(int32_t schedule, int64_t amount, int32_t blocks) {
  if (schedule < -1 || schedule > LEAN_ATTENTION_DIRECT) {
    return Invalid("schedule is ", schedule,
                   "; it must be a value of enum lean_attention_schedule, or -1");
  }
  if (amount < 0 || amount > kMostAmount) {
    return Invalid("amount is ", amount, "; it must be from 0 to ", kMostAmount);
  }
  if (schedule < 0 && amount != 0) return Invalid("amount is ", amount, ", without a schedule");
  if (blocks < 0) return Invalid("blocks is ", blocks, "; it must not be negative");
  return {};
}

// Fewer blocks than shares take turns with them.
Status SetBlocks(int32_t blocks, const GpuMachine& machine, GpuDecision* decision) {
  if (blocks == 0) return {};
  if (blocks > decision->shares) {
    return Invalid("blocks is ", blocks, ", more than the ", decision->shares, " shares");
  }
  decision->blocks = blocks;
  decision->is_persistent = blocks <= machine.blocks();
  return {};
}

Status MakePlan(const lean_attention_gpu_step* step, int32_t schedule, int64_t amount,
                int32_t blocks, lean_attention_gpu_plan* plan, std::string* explanation) {
  if (plan == nullptr) return Invalid("the plan is null");
  gpu::GpuDecode decode = {};
  GpuMachine machine = {};
  Status status = CheckWish(schedule, amount, blocks);
  if (status.ok()) status = CheckStep(step, &decode);
  if (status.ok()) status = gpu::QueryMachine(decode, &machine);
  if (!status.ok()) return status;
  if (schedule >= 0) decode.schedule = static_cast<Schedule>(schedule);
  GpuDecision decision =
      amount > 0 ? GpuDecisionOf(decode.problem, machine, *decode.schedule, amount, "asked for")
                 : DecideGpu(decode.problem, decode.max_length, machine, decode.schedule);
  status = SetBlocks(blocks, machine, &decision);
  if (!status.ok()) return status;
  const gpu::Workspace workspace = gpu::WorkspaceOf(decode.problem, decode.max_length, decision);
  *plan = {static_cast<int32_t>(decision.schedule),
           decision.blocks,
           decision.amount,
           decision.shares,
           workspace.state_bytes,
           workspace.counters,
           decision.is_persistent ? 1 : 0};
  if (explanation != nullptr) {
    *explanation = ExplainGpu(decode.problem, decode.max_length, machine, decision);
  }
  return {};
}

// A plan may be of another step, or of none.
Status DecisionOf(const lean_attention_gpu_plan* plan, const gpu::GpuDecode& decode,
                  GpuDecision* decision) {
  if (plan == nullptr) return Invalid("the plan is null");
  if (plan->schedule < LEAN_ATTENTION_LEAN || plan->schedule > LEAN_ATTENTION_DIRECT) {
    return Invalid("the plan's schedule is ", plan->schedule,
                   "; it must be a value of enum lean_attention_schedule");
  }
  if (plan->amount < 1 || plan->amount > kMostAmount) {
    return Invalid("the plan's amount is ", plan->amount, "; it must be from 1 to ", kMostAmount);
  }
  *decision = GpuDecisionOf(decode.problem, {}, static_cast<Schedule>(plan->schedule), plan->amount,
                            "planned");
  if (plan->shares != decision->shares) {
    return Invalid("the plan has ", plan->shares, " shares, and this step ", decision->shares);
  }
  if (plan->blocks < 1 || plan->blocks > plan->shares) {
    return Invalid("the plan's blocks are ", plan->blocks, "; they must be from 1 to ",
                   plan->shares);
  }
  decision->blocks = plan->blocks;
  const gpu::Workspace needed = gpu::WorkspaceOf(decode.problem, decode.max_length, *decision);
  if (plan->state_bytes < needed.state_bytes || plan->counters < needed.counters) {
    return Invalid("the plan has a workspace of ", plan->state_bytes, " bytes and ", plan->counters,
                   " counters; this step needs ", needed.state_bytes, " and ", needed.counters);
  }
  return {};
}

Status Decode(const lean_attention_gpu_step* step, const lean_attention_gpu_plan* plan,
              void* states, int32_t* counters, void* stream) {
  gpu::GpuDecode decode = {};
  GpuDecision decision = {};
  Status status = CheckStep(step, &decode);
  if (status.ok()) status = DecisionOf(plan, decode, &decision);
  if (status.ok()) status = gpu::Launch(decode, decision, {states, counters}, stream);
  return status;
}

int32_t CodeOf(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return LEAN_ATTENTION_OK;
    case StatusCode::kInvalidArgument:
      return LEAN_ATTENTION_INVALID_ARGUMENT;
    case StatusCode::kUnsupported:
      return LEAN_ATTENTION_UNSUPPORTED_GPU;
    case StatusCode::kDeviceError:
      break;
  }
  return LEAN_ATTENTION_DEVICE_ERROR;
}

// Runs what returns a Status; no exception leaves the C functions.
template <typename Body>
int32_t Reported(char* message, int64_t message_size, Body body) {
  try {
    const Status status = body();
    if (!status.ok()) WriteMessage(status.message, message, message_size);
    return CodeOf(status.code);
  } catch (const std::bad_alloc&) {
    WriteMessage("out of memory", message, message_size);
    return LEAN_ATTENTION_OUT_OF_MEMORY;
  }
}

}  // namespace

const char* lean_attention_gpu_backend(void) { return gpu::BackendName(); }

int32_t lean_attention_gpu_make_plan(const lean_attention_gpu_step* step, int32_t schedule,
                                     int64_t amount, int32_t blocks, lean_attention_gpu_plan* plan,
                                     char* message, int64_t message_size) {
  return Reported(message, message_size, [&] {
    std::string explanation;
    const Status status =
        MakePlan(step, schedule, amount, blocks, plan, message == nullptr ? nullptr : &explanation);
    if (status.ok()) WriteMessage(explanation, message, message_size);
    return status;
  });
}

int32_t lean_attention_gpu_decode(const lean_attention_gpu_step* step,
                                  const lean_attention_gpu_plan* plan, void* states,
                                  int32_t* counters, void* stream, char* message,
                                  int64_t message_size) {
  return Reported(message, message_size,
                  [&] { return Decode(step, plan, states, counters, stream); });
}
