#include "ops/decode/problem.h"

#include <gtest/gtest.h>

namespace lean_attention {
namespace {

TEST(CacheOffset, CountsPast32Bits) {
  Problem p = {};
  p.kv_num_heads = 8;
  p.head_size = 128;
  p.cache_rows = 131072;
  // 16 sequences of 8 heads: 2^31 elements are passed in the last one.
  const int64_t last = CacheOffset(p, 15, 7, 131071);
  EXPECT_EQ(last, (int64_t{15} * 8 + 7) * 131072 * 128 + int64_t{131071} * 128);
  EXPECT_GT(last * BytesOf(ElementType::kFloat16), int64_t{1} << 31);
  EXPECT_EQ(CacheOffset(p, 0, 1, 0), int64_t{131072} * 128);
  EXPECT_EQ(CacheOffset(p, 0, 0, 1), 128);
}

TEST(VisibleKeys, EndsAtTheTokenAndBeginsWithTheWindow) {
  const int32_t seqlens_k[] = {9};  // T = 10
  Problem p = {};
  p.batch_size = 1;
  p.sequence_length = 3;
  p.seqlens_k = seqlens_k;
  EXPECT_EQ(PastLength(p, 0), 7);
  for (int32_t token = 0; token < 3; ++token) {
    EXPECT_EQ(VisibleKeys(p, 0, token).begin, 0);
    EXPECT_EQ(VisibleKeys(p, 0, token).end, 8 + token);
  }
  p.local_window_size = 1;
  EXPECT_EQ(VisibleKeys(p, 0, 2).begin, 9);
  EXPECT_EQ(VisibleKeys(p, 0, 2).end, 10);
  p.local_window_size = 9;
  EXPECT_EQ(VisibleKeys(p, 0, 0).begin, 0);
  EXPECT_EQ(VisibleKeys(p, 0, 2).begin, 1);
}

}  // namespace
}  // namespace lean_attention
