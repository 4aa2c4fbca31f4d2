// The C functions of the GPU kernel, over the emulator: device memory is the host's.

#include "ops/c_api/gpu_api.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/cpp/gpu_step.h"
#include "tests/cpp/kernel_reference.h"
#include "tests/cpp/kernel_scenes.h"

namespace lean_attention::testing {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

lean_attention_gpu_step CStepOf(Step* step) {
  const gpu::GpuDecode d = DecodeOf(step, {});
  const Problem& p = d.problem;
  lean_attention_gpu_step s = {};
  s.type = static_cast<int32_t>(d.element_type);
  s.cache_type = static_cast<int32_t>(p.cache_type);
  s.batch_size = p.batch_size;
  s.sequence_length = p.sequence_length;
  s.num_heads = p.num_heads;
  s.kv_num_heads = p.kv_num_heads;
  s.head_size = p.head_size;
  s.cache_rows = p.cache_rows;
  s.local_window_size = p.local_window_size;
  s.max_length = d.max_length;
  s.seqlens_k = d.seqlens_k;
  s.query_seqlens = d.query_seqlens;
  s.query = d.query;
  s.key = d.key;
  s.value = d.value;
  s.query_stride = d.query_stride;
  s.kv_stride = d.kv_stride;
  s.key_cache = d.key_cache;
  s.value_cache = d.value_cache;
  s.k_scale = d.k_scale;
  s.v_scale = d.v_scale;
  s.scale_per_channel = d.scale_per_channel ? 1 : 0;
  s.q_norm_weight = d.q_norm_weight;
  s.k_norm_weight = d.k_norm_weight;
  s.q_norm_epsilon = d.q_norm_epsilon;
  s.k_norm_epsilon = d.k_norm_epsilon;
  s.cos_cache = d.cos_cache;
  s.sin_cache = d.sin_cache;
  s.rotary_rows = d.rotary_rows;
  s.rotary_half = d.rotary_half;
  s.rotary_interleaved = d.rotary_interleaved ? 1 : 0;
  s.position_ids = d.position_ids;
  s.attention_bias = d.attention_bias;
  s.bias_batch_stride = d.bias_batch_stride;
  s.bias_head_stride = d.bias_head_stride;
  s.bias_row_stride = d.bias_row_stride;
  s.head_sink = d.head_sink;
  s.smooth_softmax = d.smooth_softmax ? 1 : 0;
  s.scale = d.scale;
  s.softcap = d.softcap;
  s.output = d.output;
  return s;
}

StepSpec SpecWithEverything() {
  StepSpec spec;
  spec.types = kFloat16Step;
  spec.head_size = 64;
  spec.lengths = {300, 1, 140};
  spec.spare_rows = 4;
  spec.packed = true;
  spec.window = 250;
  spec.softcap = 5;
  spec.scale = 0.2f;
  spec.bias = spec.bias_per_sequence = spec.bias_per_head = true;
  spec.sink = true;
  spec.rotary_half = 24;
  spec.rotary_interleaved = true;
  spec.position_ids = true;
  spec.norm = true;
  return spec;
}

// Says what went wrong, as a caller sees it.
struct Outcome {
  int32_t status;
  std::string message;
};

Outcome MakePlan(const lean_attention_gpu_step& step, lean_attention_gpu_plan* plan,
                 int32_t schedule = -1, int64_t amount = 0, int32_t blocks = 0) {
  char message[512] = "";
  const int32_t status =
      lean_attention_gpu_make_plan(&step, schedule, amount, blocks, plan, message, sizeof(message));
  return {status, message};
}

// Runs a plan in a workspace of exactly its size; the counters must be zero again.
Outcome Decode(const lean_attention_gpu_step& step, const lean_attention_gpu_plan& plan) {
  Buffer states(static_cast<size_t>(plan.state_bytes));
  std::vector<int32_t> counters(static_cast<size_t>(plan.counters));
  char message[512] = "";
  const int32_t status = lean_attention_gpu_decode(
      &step, &plan, plan.state_bytes > 0 ? states.data() : nullptr,
      counters.empty() ? nullptr : counters.data(), nullptr, message, sizeof(message));
  EXPECT_TRUE(states.IsIntact());
  EXPECT_TRUE(std::all_of(counters.begin(), counters.end(), [](int32_t n) { return n == 0; }));
  return {status, message};
}

Step AfterPlan(const Step& before, int32_t schedule = -1, int64_t amount = 0, int32_t blocks = 0) {
  Step step = before;
  const lean_attention_gpu_step c_step = CStepOf(&step);
  lean_attention_gpu_plan plan = {};
  const Outcome planned = MakePlan(c_step, &plan, schedule, amount, blocks);
  EXPECT_EQ(planned.status, LEAN_ATTENTION_OK) << planned.message;
  const Outcome run = Decode(c_step, plan);
  EXPECT_EQ(run.status, LEAN_ATTENTION_OK) << run.message;
  return step;
}

void ExpectRight(const StepSpec& spec) {
  const Step before(spec);
  ExpectRight(AfterPlan(before), before, Operands::kElements);
}

TEST(GpuApi, NamesItsBackend) { EXPECT_STREQ(lean_attention_gpu_backend(), "emulator"); }

TEST(GpuApi, PassesEveryInputOn) {
  ExpectRight(SpecWithEverything());
  StepSpec spec = SpecWithEverything();
  spec.sink = spec.position_ids = spec.rotary_interleaved = spec.packed = false;
  spec.bias_per_head = false;
  spec.smooth_softmax = true;
  ExpectRight(spec);
  spec.sequence_length = 3;
  spec.queries = {2, 0, 3};
  ExpectRight(spec);
  spec.without_new_rows = true;
  ExpectRight(spec);
}

TEST(GpuApi, TakesEveryType) {
  std::vector<StepTypes> all = {kFloat16Step, kBFloat16Step};
  all.insert(all.end(), std::begin(kGpuQuantisedSteps), std::end(kGpuQuantisedSteps));
  for (const StepTypes& types : all) {
    SCOPED_TRACE(types.name);
    StepSpec spec;
    spec.types = types;
    spec.head_size = 64;
    spec.lengths = {130};
    ExpectRight(spec);
  }
}

TEST(GpuApi, GivesTheSameBitsForEveryPlan) {
  StepSpec spec = SpecWithEverything();
  spec.window = -1;
  const Step before(spec);
  const Step expected = AfterPlan(before, LEAN_ATTENTION_DIRECT);
  for (int32_t schedule = -1; schedule <= LEAN_ATTENTION_DIRECT; ++schedule) {
    ExpectSameBits(AfterPlan(before, schedule), expected);
  }
  for (const int32_t amount : {1, 2, 5, 40}) {
    ExpectSameBits(AfterPlan(before, LEAN_ATTENTION_LEAN, amount), expected);
    ExpectSameBits(AfterPlan(before, LEAN_ATTENTION_FIXED_SPLIT, amount), expected);
  }
  ExpectSameBits(AfterPlan(before, LEAN_ATTENTION_FIXED_SPLIT, 3, 2), expected);
}

TEST(GpuApi, ExplainsAPlan) {
  Step step(SpecWithEverything());
  const lean_attention_gpu_step c_step = CStepOf(&step);
  lean_attention_gpu_plan plan = {};
  EXPECT_EQ(MakePlan(c_step, &plan).message.rfind("lean in 6 shares on 6 resident blocks (", 0),
            0u);
  EXPECT_EQ(plan.schedule, LEAN_ATTENTION_LEAN);
  EXPECT_EQ(plan.amount, 6);
  EXPECT_EQ(plan.shares, 6);
  EXPECT_EQ(plan.blocks, 6);
  EXPECT_EQ(plan.is_persistent, 1);
  EXPECT_EQ(plan.counters, 6);
  EXPECT_EQ(plan.state_bytes, 6 * 3 * 2 * (64 + 2) * int64_t{sizeof(float)});
  EXPECT_EQ(MakePlan(c_step, &plan, LEAN_ATTENTION_FIXED_SPLIT, 5, 4)
                .message.rfind("fixed_split in 30 shares on 4 resident blocks (asked for): ", 0),
            0u);
  EXPECT_EQ(plan.amount, 5);
  EXPECT_EQ(plan.blocks, 4);
  EXPECT_EQ(MakePlan(c_step, &plan, LEAN_ATTENTION_FIXED_SPLIT, 5).status, LEAN_ATTENTION_OK);
  EXPECT_EQ(plan.is_persistent, 0);
  EXPECT_EQ(MakePlan(c_step, &plan, LEAN_ATTENTION_DIRECT, 5).status, LEAN_ATTENTION_OK);
  EXPECT_EQ(plan.amount, 1);
  EXPECT_EQ(plan.counters, 0);
}

TEST(GpuApi, CutsMessagesOffAndTakesNone) {
  lean_attention_gpu_plan plan = {};
  char message[9];
  std::memset(message, '#', sizeof(message));
  const auto plan_null = [&](char* to, int64_t size) {
    return lean_attention_gpu_make_plan(nullptr, -1, 0, 0, &plan, to, size);
  };
  EXPECT_EQ(plan_null(message, 8), LEAN_ATTENTION_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(message, 9), std::string("the ste\0#", 9));
  EXPECT_EQ(plan_null(message, 1), LEAN_ATTENTION_INVALID_ARGUMENT);
  EXPECT_EQ(message[0], '\0');
  std::memset(message, '#', sizeof(message));
  EXPECT_EQ(plan_null(message, 0), LEAN_ATTENTION_INVALID_ARGUMENT);
  EXPECT_EQ(plan_null(message, -1), LEAN_ATTENTION_INVALID_ARGUMENT);
  EXPECT_EQ(message[0], '#');
  EXPECT_EQ(plan_null(nullptr, 100), LEAN_ATTENTION_INVALID_ARGUMENT);
}

// What both functions refuse, before anything is written.
TEST(GpuApi, RefusesSteps) {
  using CStep = lean_attention_gpu_step;
  constexpr int32_t kInvalid = LEAN_ATTENTION_INVALID_ARGUMENT;
  constexpr int32_t kUnsupported = LEAN_ATTENTION_UNSUPPORTED_GPU;
  const struct {
    int32_t status;
    const char* message;  // the beginning of it
    std::function<void(CStep&)> change;
  } cases[] = {
      {kInvalid, "type is -1 and cache_type 1;", [](CStep& s) { s.type = -1; }},
      {kInvalid, "type is 1 and cache_type 6;", [](CStep& s) { s.cache_type = 6; }},
      {kUnsupported, "tensors are float32", [](CStep& s) { s.type = s.cache_type = 0; }},
      {kUnsupported, "tensors are float16 and caches int4", [](CStep& s) { s.cache_type = 4; }},
      {kInvalid, "k_scale is null", [](CStep& s) { s.cache_type = LEAN_ATTENTION_INT8; }},
      {kInvalid, "batch_size is 0", [](CStep& s) { s.batch_size = 0; }},
      {kInvalid, "sizes and strides give key_cache ",
       [](CStep& s) { s.batch_size = std::numeric_limits<int32_t>::max(); }},
      {kUnsupported, "head_size 64 with 2 query rows per KV head and a batch of 100000",
       [](CStep& s) { s.batch_size = 100000; }},
      {kInvalid, "sequence_length is -1", [](CStep& s) { s.sequence_length = -1; }},
      {kInvalid, "num_heads is 4, not a multiple", [](CStep& s) { s.kv_num_heads = 3; }},
      {kInvalid, "kv_num_heads is 0", [](CStep& s) { s.kv_num_heads = 0; }},
      {kUnsupported, "head_size is -64", [](CStep& s) { s.head_size = -64; }},
      {kInvalid, "cache_rows is 9223372036854775807", [](CStep& s) { s.cache_rows = kMost; }},
      {kInvalid, "sequence_length is 1, and the cache has -9223372036854775808 rows",
       [](CStep& s) { s.cache_rows = std::numeric_limits<int64_t>::min(); }},
      {kInvalid, "max_length is 0", [](CStep& s) { s.max_length = 0; }},
      {kInvalid, "max_length is 305", [](CStep& s) { s.max_length = 305; }},
      {kInvalid, "query is null", [](CStep& s) { s.query = nullptr; }},
      {kInvalid, "output is not aligned",
       [](CStep& s) { s.output = static_cast<char*>(s.output) + 1; }},
      {kInvalid, "query_stride is -9", [](CStep& s) { s.query_stride = -9; }},
      {kInvalid, "sizes and strides give key ", [](CStep& s) { s.kv_stride = kMost; }},
      {kInvalid, "sizes and strides give attention_bias ",
       [](CStep& s) { s.bias_head_stride = kMost; }},
      {kInvalid, "rotary_half is 33", [](CStep& s) { s.rotary_half = 33; }},
      {kInvalid, "sizes and strides give cos_cache ", [](CStep& s) { s.rotary_rows = kMost; }},
      {kInvalid, "value is null; key and value must be given together",
       [](CStep& s) { s.value = nullptr; }},
      {kInvalid, "q_norm_epsilon is 0", [](CStep& s) { s.q_norm_epsilon = 0; }},
      {kInvalid, "scale is nan",
       [](CStep& s) { s.scale = std::numeric_limits<float>::quiet_NaN(); }},
      {kInvalid, "softcap is -1", [](CStep& s) { s.softcap = -1; }},
  };
  const Step before(SpecWithEverything());
  Step step = before;
  lean_attention_gpu_plan plan = {};
  ASSERT_EQ(MakePlan(CStepOf(&step), &plan).status, LEAN_ATTENTION_OK);
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    CStep changed = CStepOf(&step);
    c.change(changed);
    lean_attention_gpu_plan unused = {};
    for (const Outcome& outcome : {MakePlan(changed, &unused), Decode(changed, plan)}) {
      EXPECT_EQ(outcome.status, c.status) << outcome.message;
      EXPECT_EQ(outcome.message.rfind(c.message, 0), 0u) << outcome.message;
    }
    EXPECT_EQ(unused.blocks, 0);
  }
  ExpectSameBits(step, before);
}

TEST(GpuApi, RefusesWishes) {
  Step step(SpecWithEverything());
  const lean_attention_gpu_step c_step = CStepOf(&step);
  lean_attention_gpu_plan plan = {};
  const struct {
    const char* message;
    int32_t schedule;
    int64_t amount;
    int32_t blocks;
  } cases[] = {
      {"schedule is -2;", -2, 0, 0},
      {"schedule is 3;", 3, 0, 0},
      {"amount is -1;", LEAN_ATTENTION_LEAN, -1, 0},
      {"amount is 65537;", LEAN_ATTENTION_LEAN, 65537, 0},
      {"amount is 9223372036854775807;", LEAN_ATTENTION_FIXED_SPLIT, kMost, 0},
      {"amount is 2, without a schedule", -1, 2, 0},
      {"blocks is -1;", -1, 0, -1},
      {"blocks is 3, more than the 2 shares", LEAN_ATTENTION_LEAN, 2, 3},
  };
  for (const auto& c : cases) {
    const Outcome outcome = MakePlan(c_step, &plan, c.schedule, c.amount, c.blocks);
    EXPECT_EQ(outcome.status, LEAN_ATTENTION_INVALID_ARGUMENT) << c.message;
    EXPECT_EQ(outcome.message.rfind(c.message, 0), 0u) << outcome.message;
  }
  EXPECT_EQ(MakePlan(c_step, nullptr).message, "the plan is null");
}

TEST(GpuApi, RefusesPlansThatAreNotOfTheStep) {
  using Plan = lean_attention_gpu_plan;
  const Step before(SpecWithEverything());
  Step step = before;
  const lean_attention_gpu_step c_step = CStepOf(&step);
  Plan right = {};
  ASSERT_EQ(MakePlan(c_step, &right, LEAN_ATTENTION_LEAN, 4).status, LEAN_ATTENTION_OK);
  const struct {
    const char* message;
    std::function<void(Plan&)> change;
  } cases[] = {
      {"the plan's schedule is 3;", [](Plan& p) { p.schedule = 3; }},
      {"the plan's schedule is -1;", [](Plan& p) { p.schedule = -1; }},
      {"the plan has 4 shares, and this step 24", [](Plan& p) { p.schedule = 1; }},
      {"the plan has 4 shares, and this step 6", [](Plan& p) { p.schedule = 2; }},
      {"the plan's amount is 0;", [](Plan& p) { p.amount = 0; }},
      {"the plan's amount is 9223372036854775807;", [](Plan& p) { p.amount = kMost; }},
      {"the plan has 4 shares, and this step 5", [](Plan& p) { p.amount = 5; }},
      {"the plan has -1 shares", [](Plan& p) { p.shares = -1; }},
      {"the plan's blocks are 0;", [](Plan& p) { p.blocks = 0; }},
      {"the plan's blocks are -7;", [](Plan& p) { p.blocks = -7; }},
      {"the plan's blocks are 5;", [](Plan& p) { p.blocks = 5; }},
      {"the plan has a workspace of ", [](Plan& p) { --p.state_bytes; }},
      {"the plan has a workspace of ", [](Plan& p) { p.counters = 3; }},
  };
  for (const auto& c : cases) {
    Plan plan = right;
    c.change(plan);
    char message[512] = "";
    // Neither is written, nor is there anything to write to.
    const int32_t status = lean_attention_gpu_decode(&c_step, &plan, nullptr, nullptr, nullptr,
                                                     message, sizeof(message));
    EXPECT_EQ(status, LEAN_ATTENTION_INVALID_ARGUMENT) << c.message;
    EXPECT_EQ(std::string(message).rfind(c.message, 0), 0u) << message;
  }
  ExpectSameBits(step, before);
}

TEST(GpuApi, TakesThePlanOfALongerStep) {
  StepSpec spec = SpecWithEverything();
  const Step before(spec);
  Step step = before;
  lean_attention_gpu_step c_step = CStepOf(&step);
  lean_attention_gpu_plan plan = {};
  ASSERT_EQ(MakePlan(c_step, &plan, LEAN_ATTENTION_LEAN, 4).status, LEAN_ATTENTION_OK);
  spec.lengths = {60, 20, 7};
  const Step shorter_before(spec);
  Step shorter = shorter_before;
  const Outcome run = Decode(CStepOf(&shorter), plan);
  EXPECT_EQ(run.status, LEAN_ATTENTION_OK) << run.message;
  ExpectRight(shorter, shorter_before, Operands::kElements);

  spec.lengths = {600, 20, 7};
  Step longer(spec);
  EXPECT_EQ(Decode(CStepOf(&longer), plan).status, LEAN_ATTENTION_INVALID_ARGUMENT);
}

TEST(GpuApi, RefusesNullPointersToItsStructures) {
  Step step(SpecWithEverything());
  const lean_attention_gpu_step c_step = CStepOf(&step);
  lean_attention_gpu_plan plan = {};
  ASSERT_EQ(MakePlan(c_step, &plan).status, LEAN_ATTENTION_OK);
  EXPECT_EQ(lean_attention_gpu_decode(nullptr, &plan, nullptr, nullptr, nullptr, nullptr, 0),
            LEAN_ATTENTION_INVALID_ARGUMENT);
  EXPECT_EQ(lean_attention_gpu_decode(&c_step, nullptr, nullptr, nullptr, nullptr, nullptr, 0),
            LEAN_ATTENTION_INVALID_ARGUMENT);
  EXPECT_EQ(lean_attention_gpu_decode(&c_step, &plan, nullptr, nullptr, nullptr, nullptr, 0),
            LEAN_ATTENTION_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace lean_attention::testing
