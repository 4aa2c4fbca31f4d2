// What a launch refuses before it starts. Pointers stand for device memory and are never followed.

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ops/gpu/launch/launcher.h"

namespace lean_attention::gpu {
namespace {

void* Address(uintptr_t address) { return reinterpret_cast<void*>(address); }

constexpr Device kDevice = {132, 227 * 1024};

// Two sequences, eight query heads over two KV heads of 128, with every optional input.
GpuDecode ValidDecode() {
  GpuDecode d = {};
  d.problem = {2, 1, 8, 2, 128, 4096, nullptr, 0, ElementType::kFloat16, 128};
  d.element_type = ElementType::kFloat16;
  d.max_length = 1000;
  d.seqlens_k = static_cast<const int32_t*>(Address(0x1000));
  d.query = Address(0x2000);
  d.key = Address(0x3000);
  d.value = Address(0x4000);
  d.query_stride = 8 * 128;
  d.kv_stride = 2 * 128;
  d.key_cache = Address(0x5000);
  d.value_cache = Address(0x6000);
  d.cos_cache = Address(0x7000);
  d.sin_cache = Address(0x8000);
  d.rotary_rows = 1000;
  d.rotary_half = 64;
  d.position_ids = nullptr;
  d.attention_bias = Address(0x9000);
  d.bias_row_stride = 1000;
  d.head_sink = Address(0xA000);
  d.scale = 0.125f;
  d.output = Address(0xB000);
  return d;
}

void SetCache(ElementType type, GpuDecode& d) {
  d.problem.cache_type = type;
  d.k_scale = static_cast<const float*>(Address(0xD000));
  d.v_scale = static_cast<const float*>(Address(0xE000));
}

void SetNorm(float epsilon, GpuDecode& d) {
  d.q_norm_weight = Address(0xF000);
  d.k_norm_weight = Address(0xF100);
  d.q_norm_epsilon = d.k_norm_epsilon = epsilon;
}

using Change = std::function<void(GpuDecode&)>;

Status After(const Change& change) {
  GpuDecode decode = ValidDecode();
  change(decode);
  return Check(decode, kDevice);
}

struct Case {
  const char* message;  // the beginning of it
  Change change;
};

void ExpectRefused(StatusCode code, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const Status status = After(c.change);
    EXPECT_EQ(status.code, code) << c.message;
    EXPECT_EQ(status.message.rfind(c.message, 0), 0u)
        << "\"" << status.message << "\" instead of \"" << c.message << "\"";
  }
}

TEST(Check, PassesWhatIsRight) {
  const std::vector<Change> changes = {
      [](GpuDecode&) {},
      [](GpuDecode& d) { d.problem.cache_type = d.element_type = ElementType::kBFloat16; },
      [](GpuDecode& d) { SetCache(ElementType::kInt8, d); },
      [](GpuDecode& d) { SetCache(ElementType::kFloat8E4M3, d); },
      [](GpuDecode& d) { d.cos_cache = d.sin_cache = nullptr; },
      [](GpuDecode& d) { d.attention_bias = d.head_sink = nullptr; },
      [](GpuDecode& d) { d.rotary_half = 1; },
      [](GpuDecode& d) { d.problem.cache_rows = int64_t{1} << 30; },
      [](GpuDecode& d) { d.max_length = 1; },
      [](GpuDecode& d) { d.query_stride = d.kv_stride = 12 * 128; },
      [](GpuDecode& d) { d.max_length = d.rotary_rows = d.bias_row_stride = d.problem.cache_rows; },
      [](GpuDecode& d) { d.problem.sequence_length = 100; },
      [](GpuDecode& d) { d.key = d.value = nullptr; },
      [](GpuDecode& d) { SetNorm(1e-6f, d); },
      [](GpuDecode& d) {
        d.position_ids = static_cast<const int64_t*>(Address(0xC000));
        d.rotary_rows = 1;
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    const Status status = After(changes[i]);
    EXPECT_TRUE(status.ok()) << i << ": " << status.message;
    EXPECT_EQ(status.message, "");
  }
}

TEST(Check, RefusesNullPointers) {
  ExpectRefused(
      StatusCode::kInvalidArgument,
      {{"seqlens_k is null", [](GpuDecode& d) { d.seqlens_k = nullptr; }},
       {"query is null", [](GpuDecode& d) { d.query = nullptr; }},
       {"key is null; key and value must be given", [](GpuDecode& d) { d.key = nullptr; }},
       {"value is null; key and value must be", [](GpuDecode& d) { d.value = nullptr; }},
       {"key_cache is null", [](GpuDecode& d) { d.key_cache = nullptr; }},
       {"value_cache is null", [](GpuDecode& d) { d.value_cache = nullptr; }},
       {"output is null", [](GpuDecode& d) { d.output = nullptr; }}});
}

TEST(Check, RefusesMisalignedPointers) {
  const auto at = [](uintptr_t address) { return Address(address); };
  const std::vector<std::pair<std::string, Change>> cases = {
      {"seqlens_k is not aligned to 4 bytes",
       [=](GpuDecode& d) { d.seqlens_k = static_cast<const int32_t*>(at(0x1002)); }},
      {"query_seqlens is not aligned to 4 bytes",
       [=](GpuDecode& d) { d.query_seqlens = static_cast<const int32_t*>(at(0x1102)); }},
      {"q_norm_weight is not aligned to 2 bytes",
       [=](GpuDecode& d) { d.q_norm_weight = at(0xF001); }},
      {"k_norm_weight is not aligned to 2 bytes",
       [=](GpuDecode& d) { d.k_norm_weight = at(0xF101); }},
      {"query is not aligned to 2 bytes", [=](GpuDecode& d) { d.query = at(0x2001); }},
      {"key is not aligned to 2 bytes", [=](GpuDecode& d) { d.key = at(0x3001); }},
      {"value is not aligned to 2 bytes", [=](GpuDecode& d) { d.value = at(0x4001); }},
      {"key_cache is not aligned to 16 bytes", [=](GpuDecode& d) { d.key_cache = at(0x5008); }},
      {"value_cache is not aligned to 16 bytes", [=](GpuDecode& d) { d.value_cache = at(0x6004); }},
      {"cos_cache is not aligned to 2 bytes", [=](GpuDecode& d) { d.cos_cache = at(0x7001); }},
      {"sin_cache is not aligned to 2 bytes", [=](GpuDecode& d) { d.sin_cache = at(0x8001); }},
      {"position_ids is not aligned to 8 bytes",
       [=](GpuDecode& d) { d.position_ids = static_cast<const int64_t*>(at(0xC004)); }},
      {"attention_bias is not aligned to 2 bytes",
       [=](GpuDecode& d) { d.attention_bias = at(0x9001); }},
      {"head_sink is not aligned to 2 bytes", [=](GpuDecode& d) { d.head_sink = at(0xA001); }},
      {"output is not aligned to 2 bytes", [=](GpuDecode& d) { d.output = at(0xB001); }}};
  for (const auto& [message, change] : cases) {
    ExpectRefused(StatusCode::kInvalidArgument, {{message.c_str(), change}});
  }
}

TEST(Check, RefusesOneBufferForKeysAndValues) {
  ExpectRefused(StatusCode::kInvalidArgument,
                {{"key_cache and value_cache are one buffer",
                  [](GpuDecode& d) { d.value_cache = d.key_cache; }}});
}

TEST(Check, RefusesWhatIsNotBuilt) {
  ExpectRefused(
      StatusCode::kUnsupported,
      {{"head_size is 72; built for GPUs are 64, 80, 96, 128, 256",
        [](GpuDecode& d) { d.problem.head_size = 72; }},
       {"head_size is 0;", [](GpuDecode& d) { d.problem.head_size = 0; }},
       {"tensors are float32 and caches float32;",
        [](GpuDecode& d) { d.problem.cache_type = d.element_type = ElementType::kFloat32; }},
       {"tensors are float16 and caches bfloat16;",
        [](GpuDecode& d) { d.problem.cache_type = ElementType::kBFloat16; }},
       {"tensors are float16 and caches int4;",
        [](GpuDecode& d) { d.problem.cache_type = ElementType::kInt4; }}});
}

TEST(Check, RefusesQuantisedCachesWithoutScales) {
  ExpectRefused(StatusCode::kInvalidArgument, {{"k_scale is null",
                                                [](GpuDecode& d) {
                                                  SetCache(ElementType::kInt8, d);
                                                  d.k_scale = nullptr;
                                                }},
                                               {"v_scale is null", [](GpuDecode& d) {
                                                  SetCache(ElementType::kFloat8E4M3, d);
                                                  d.v_scale = nullptr;
                                                }}});
}

TEST(Check, RefusesSizes) {
  ExpectRefused(StatusCode::kInvalidArgument,
                {{"batch_size is 0", [](GpuDecode& d) { d.problem.batch_size = 0; }},
                 {"sequence_length is -1", [](GpuDecode& d) { d.problem.sequence_length = -1; }},
                 {"num_heads is 0", [](GpuDecode& d) { d.problem.num_heads = 0; }},
                 {"kv_num_heads is 0", [](GpuDecode& d) { d.problem.kv_num_heads = 0; }},
                 {"num_heads is 8, not a multiple of kv_num_heads, 3",
                  [](GpuDecode& d) { d.problem.kv_num_heads = 3; }},
                 {"num_heads is 2, not a multiple",
                  [](GpuDecode& d) {
                    d.problem.num_heads = 2;
                    d.problem.kv_num_heads = 4;
                  }},
                 {"tile_tokens is 24", [](GpuDecode& d) { d.problem.tile_tokens = 24; }},
                 {"tile_tokens is 0", [](GpuDecode& d) { d.problem.tile_tokens = 0; }},
                 {"sequence_length 16777216 times 4 heads",
                  [](GpuDecode& d) { d.problem.sequence_length = 1 << 24; }}});
}

TEST(Check, RefusesLengthsAboveCapacity) {
  ExpectRefused(StatusCode::kInvalidArgument,
                {{"sequence_length is 4097, and the cache has 4096 rows",
                  [](GpuDecode& d) { d.problem.sequence_length = 4097; }},
                 {"max_length is 4097;", [](GpuDecode& d) { d.max_length = 4097; }},
                 {"max_length is 4; it must be from sequence_length, 5,",
                  [](GpuDecode& d) {
                    d.problem.sequence_length = 5;
                    d.max_length = 4;
                  }},
                 {"sequence_length is 1, and the cache has -1 rows",
                  [](GpuDecode& d) { d.problem.cache_rows = -1; }},
                 {"cache_rows is 1073741825; it must be at most 1073741824",
                  [](GpuDecode& d) { d.problem.cache_rows = (int64_t{1} << 30) + 1; }}});
}

TEST(Check, RefusesStrides) {
  ExpectRefused(StatusCode::kInvalidArgument,
                {{"query_stride is 1023,", [](GpuDecode& d) { d.query_stride = 1023; }},
                 {"kv_stride is 255,", [](GpuDecode& d) { d.kv_stride = 255; }},
                 {"bias_row_stride is 999, less than max_length, 1000",
                  [](GpuDecode& d) { d.bias_row_stride = 999; }},
                 {"bias_batch_stride and bias_head_stride are -1 and 0",
                  [](GpuDecode& d) { d.bias_batch_stride = -1; }},
                 {"bias_batch_stride and bias_head_stride are 0 and -2",
                  [](GpuDecode& d) { d.bias_head_stride = -2; }}});
}

TEST(Check, RefusesSizesThatNoTensorHas) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  ExpectRefused(
      StatusCode::kInvalidArgument,
      {{"sizes and strides give key_cache 3.51",
        [](GpuDecode& d) {
          d.problem.num_heads = d.problem.kv_num_heads = 1 << 23;
          d.query_stride = d.kv_stride = int64_t{1} << 30;
          d.problem.cache_rows = int64_t{1} << 14;
        }},
       {"sizes and strides give query 1.84467e+19", [](GpuDecode& d) { d.query_stride = kMost; }},
       {"sizes and strides give key 1.84467e+19", [](GpuDecode& d) { d.kv_stride = kMost; }},
       {"sizes and strides give cos_cache 5.90",
        [](GpuDecode& d) {
          d.rotary_rows = kMost;
          d.position_ids = static_cast<const int64_t*>(Address(0xC000));
        }},
       {"sizes and strides give attention_bias 1.84467e+19",
        [](GpuDecode& d) { d.bias_batch_stride = kMost; }},
       {"sizes and strides give attention_bias 7.3787e+19",
        [](GpuDecode& d) { d.bias_head_stride = kMost; }},
       {"sizes and strides give attention_bias 9.22337e+18 elements; no more than 17592186044416",
        [](GpuDecode& d) { d.bias_row_stride = kMost; }}});
}

TEST(Check, RefusesRotary) {
  ExpectRefused(StatusCode::kInvalidArgument,
                {{"sin_cache is null; cos_cache and sin_cache must be given together",
                  [](GpuDecode& d) { d.sin_cache = nullptr; }},
                 {"cos_cache is null; cos_cache and sin_cache must be given together",
                  [](GpuDecode& d) { d.cos_cache = nullptr; }},
                 {"rotary_half is 65; for head_size 128 it must be from 1 to 64",
                  [](GpuDecode& d) { d.rotary_half = 65; }},
                 {"rotary_half is 0;", [](GpuDecode& d) { d.rotary_half = 0; }},
                 {"cos_cache and sin_cache have 999 rows; positions need 1000",
                  [](GpuDecode& d) { d.rotary_rows = 999; }},
                 {"cos_cache and sin_cache have 0 rows; positions need 1", [](GpuDecode& d) {
                    d.position_ids = static_cast<const int64_t*>(Address(0xC000));
                    d.rotary_rows = 0;
                  }}});
}

TEST(Check, RefusesNumbers) {
  ExpectRefused(
      StatusCode::kInvalidArgument,
      {{"scale is nan", [](GpuDecode& d) { d.scale = std::numeric_limits<float>::quiet_NaN(); }},
       {"q_norm_epsilon is 0;", [](GpuDecode& d) { SetNorm(0, d); }},
       {"q_norm_epsilon is inf;",
        [](GpuDecode& d) { SetNorm(std::numeric_limits<float>::infinity(), d); }},
       {"k_norm_epsilon is -1;",
        [](GpuDecode& d) {
          SetNorm(1, d);
          d.k_norm_epsilon = -1;
        }},
       {"softcap is inf;",
        [](GpuDecode& d) { d.softcap = std::numeric_limits<float>::infinity(); }},
       {"softcap is -1;", [](GpuDecode& d) { d.softcap = -1; }}});
}

TEST(Check, RefusesABatchWhoseSharedMemoryDoesNotFit) {
  GpuDecode decode = ValidDecode();
  // Twelve bytes for each sequence.
  Problem empty = decode.problem;
  empty.batch_size = 0;
  const int64_t others = SharedBytes(empty);
  const auto most = static_cast<int32_t>((kDevice.shared_bytes - others) / 12);
  decode.problem.batch_size = most;
  EXPECT_TRUE(Check(decode, kDevice).ok());
  decode.problem.batch_size = most + 1;
  const Status status = Check(decode, kDevice);
  EXPECT_EQ(status.code, StatusCode::kUnsupported);
  EXPECT_EQ(status.message, "head_size 128 with 4 query rows per KV head and a batch of " +
                                std::to_string(most + 1) + " needs " +
                                std::to_string(others + 12 * (most + 1)) +
                                " bytes of shared memory; a block of this device may have 232448");
}

TEST(CheckBuffers, RefusesThemWhereASplitNeedsThem) {
  const GpuDecode decode = ValidDecode();
  GpuDecision split = {};
  split.schedule = Schedule::kLean;
  split.amount = 3;
  int32_t* const counters = static_cast<int32_t*>(Address(0x2000));
  EXPECT_TRUE(CheckBuffers(decode, split, {Address(0x1000), counters}).ok());
  EXPECT_EQ(CheckBuffers(decode, split, {nullptr, counters}).message,
            "the workspace is null; lean needs 49920 bytes for states");
  EXPECT_EQ(CheckBuffers(decode, split, {Address(0x1004), counters}).message,
            "the workspace is not aligned to 16 bytes");
  EXPECT_EQ(CheckBuffers(decode, split, {Address(0x1000), nullptr}).message,
            "the counters are null; lean needs 3");
  EXPECT_EQ(CheckBuffers(decode, split, {Address(0x1000), static_cast<int32_t*>(Address(0x2002))})
                .message,
            "the counters are not aligned to 4 bytes");

  GpuDecision whole = {};
  whole.schedule = Schedule::kDirect;
  whole.amount = 1;
  EXPECT_TRUE(CheckBuffers(decode, whole, {nullptr, nullptr}).ok());
}

}  // namespace
}  // namespace lean_attention::gpu
