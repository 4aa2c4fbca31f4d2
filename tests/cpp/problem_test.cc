#include "ops/decode/problem.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lean_attention {
namespace {

TEST(CacheOffset, CountsBytesPast32Bits) {
  Problem p = {};
  p.kv_num_heads = 8;
  p.head_size = 128;
  p.cache_rows = 131072;
  for (ElementType type : {ElementType::kFloat32, ElementType::kFloat16, ElementType::kBFloat16,
                           ElementType::kInt8, ElementType::kInt4}) {
    p.cache_type = type;
    const int64_t row_bytes = 16 * BitsOf(type);
    // 64 sequences of 8 heads: 2^31 bytes are passed in the last one, whatever the type.
    const int64_t last = CacheOffset(p, 63, 7, 131071);
    EXPECT_EQ(last, ((int64_t{63} * 8 + 7) * 131072 + 131071) * row_bytes);
    EXPECT_GT(last, int64_t{1} << 31);
    EXPECT_EQ(CacheOffset(p, 0, 1, 0), 131072 * row_bytes);
    EXPECT_EQ(CacheOffset(p, 0, 0, 1), row_bytes);
  }
}

TEST(BytesOf, RoundsUpToWholeBytes) {
  EXPECT_EQ(BytesOf(ElementType::kInt4, 7), 4);
  EXPECT_EQ(BytesOf(ElementType::kInt4, 8), 4);
  EXPECT_EQ(BytesOf(ElementType::kBFloat16, 3), 6);
}

TEST(LengthsOf, StaysWithinCacheAndStepWhateverTheCallerSays) {
  const int32_t seqlens_k[] = {1, 9, 10, INT32_MAX, -1, INT32_MIN};
  Problem p = {};
  p.batch_size = 6;
  p.sequence_length = 2;
  p.cache_rows = 10;
  p.seqlens_k = seqlens_k;
  const int64_t keys[] = {2, 10, 10, 10, 1, 1};
  for (int32_t b = 0; b < p.batch_size; ++b) {
    EXPECT_EQ(LengthsOf(p, b).keys, keys[b]);
    EXPECT_EQ(LengthsOf(p, b).queries, std::min<int64_t>(2, keys[b]));
  }
  const int32_t query_seqlens[] = {0, 1, INT32_MAX, INT32_MIN, -1, 2};
  p.query_seqlens = query_seqlens;
  const int32_t queries[] = {0, 1, 2, 0, 0, 1};
  for (int32_t b = 0; b < p.batch_size; ++b) {
    EXPECT_EQ(LengthsOf(p, b).keys, keys[b]);
    EXPECT_EQ(LengthsOf(p, b).queries, queries[b]);
  }
}

TEST(FirstVisibleKey, IsTheOldestTokensOrTheLastOfAllWhereASequenceIdles) {
  Problem p = {};
  EXPECT_EQ(FirstVisibleKey(p, {10, 3}), 0);
  EXPECT_EQ(FirstVisibleKey(p, {10, 0}), 9);
  p.local_window_size = 2;
  EXPECT_EQ(FirstVisibleKey(p, {10, 3}), 6);
  EXPECT_EQ(FirstVisibleKey(p, {10, 1}), 8);
  EXPECT_EQ(FirstVisibleKey(p, {10, 0}), 9);
}

TEST(VisibleKeys, EndsAtTheTokenAndBeginsWithTheWindow) {
  const Lengths lengths = {10, 3};
  Problem p = {};
  EXPECT_EQ(lengths.past(), 7);
  for (int32_t token = 0; token < 3; ++token) {
    EXPECT_EQ(VisibleKeys(p, lengths, token).begin, 0);
    EXPECT_EQ(VisibleKeys(p, lengths, token).end, 8 + token);
  }
  p.local_window_size = 1;
  EXPECT_EQ(VisibleKeys(p, lengths, 2).begin, 9);
  EXPECT_EQ(VisibleKeys(p, lengths, 2).end, 10);
  p.local_window_size = 9;
  EXPECT_EQ(VisibleKeys(p, lengths, 0).begin, 0);
  EXPECT_EQ(VisibleKeys(p, lengths, 2).begin, 1);
}

}  // namespace
}  // namespace lean_attention
