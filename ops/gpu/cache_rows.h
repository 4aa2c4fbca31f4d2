// The rows of one KV head in a cache, and which of them are read.

#ifndef LEAN_ATTENTION_OPS_GPU_CACHE_ROWS_H_
#define LEAN_ATTENTION_OPS_GPU_CACHE_ROWS_H_

#include "ops/gpu/portable.h"

namespace lean_attention::gpu {

// Those outside [begin, end) are never read.
template <typename Cache>
struct CacheRows {
  GlobalPtr<const Cache> k;  // row 0
  GlobalPtr<const Cache> v;
  int32_t begin;
  int32_t end;

  LEAN_ATTENTION_DEVICE bool Has(int32_t row) const { return row >= begin && row < end; }
};

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_CACHE_ROWS_H_
