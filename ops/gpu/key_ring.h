// A warp's keys in flight: a ring of shared memory, in which blocks of keys and values arrive while
// earlier ones are worked on.

#ifndef LEAN_ATTENTION_OPS_GPU_KEY_RING_H_
#define LEAN_ATTENTION_OPS_GPU_KEY_RING_H_

#include "ops/gpu/cache_rows.h"
#include "ops/gpu/primitives/nvidia.h"

namespace lean_attention::gpu {

template <typename Cache, int kHeadSize>
class KeysInFlight {
  using Layout = SharedLayout<Cache, kHeadSize>;

 public:
  static constexpr int kAhead = Layout::kStages - 1;  // blocks that are fetched ahead

  // memory: kRingBytes.
  LEAN_ATTENTION_DEVICE KeysInFlight(SharedPtr<std::byte> memory, const CacheRows<Cache>& rows)
      : memory_(memory), rows_(rows) {}

  // Starts the copy of kKeys rows from `key` on into the next place; for all lanes, as all of this.
  // Zeros stand for rows that are not read.
  LEAN_ATTENTION_DEVICE void Fetch(int32_t key) {
    constexpr int kChunk = 16 / sizeof(Cache);
    constexpr int kChunksOfRow = kHeadSize / kChunk;
    const SharedPtr<std::byte> to = Place(fetched_++);
    for (int i = Lane(); i < kKeys * kChunksOfRow; i += kWarpSize) {
      const int row = i / kChunksOfRow;
      const int chunk = i % kChunksOfRow;
      const bool is_read = rows_.Has(key + row);
      const int64_t from = (is_read ? int64_t{key + row} * kHeadSize : 0) + chunk * kChunk;
      const int valid = is_read ? 16 : 0;
      const SharedPtr<std::byte> place = to + row * Layout::kStride + chunk * 16;
      CopyAsync16(place, As<std::byte>(rows_.k + from), valid);
      CopyAsync16(place + Layout::kMatrixBytes, As<std::byte>(rows_.v + from), valid);
    }
    CommitCopies();
  }

  // Keeps the count of fetched blocks where there is none to fetch.
  LEAN_ATTENTION_DEVICE void FetchNothing() {
    ++fetched_;
    CommitCopies();
  }

  // Waits for the oldest block, K and then V. After it the block before may be overwritten.
  LEAN_ATTENTION_DEVICE KeyBlock Next() {
    WaitCopies<kAhead - 1>();
    SyncWarp();
    const SharedPtr<const std::byte> block = Place(used_++);
    return {block, block + Layout::kMatrixBytes};
  }

 private:
  LEAN_ATTENTION_DEVICE SharedPtr<std::byte> Place(int block) const {
    return memory_ + block % Layout::kStages * (2 * Layout::kMatrixBytes);
  }

  SharedPtr<std::byte> memory_;
  CacheRows<Cache> rows_;
  int fetched_ = 0;
  int used_ = 0;
};

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_KEY_RING_H_
