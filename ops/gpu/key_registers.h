// As key_ring.h for AMD, which has no asynchronous copies into shared memory: a warp's next block
// of keys and values is on its way to registers while the block before is worked on.

#ifndef LEAN_ATTENTION_OPS_GPU_KEY_REGISTERS_H_
#define LEAN_ATTENTION_OPS_GPU_KEY_REGISTERS_H_

#include "ops/gpu/cache_rows.h"
#include "ops/gpu/primitives/amd.h"

namespace lean_attention::gpu {

template <typename Cache, int kHeadSize>
class KeysInFlight {
  using Block = KeyBlock<Cache, kHeadSize>;
  // Where there are no registers for two blocks, values are fetched when their keys are used.
  static constexpr bool kValuesAhead = sizeof(Block) <= 128;

 public:
  static constexpr int kAhead = 1;

  // Needs no shared memory.
  LEAN_ATTENTION_DEVICE KeysInFlight(SharedPtr<std::byte>, const CacheRows<Cache>& rows)
      : rows_(rows) {}

  LEAN_ATTENTION_DEVICE void Fetch(int32_t key) {
    key_ = key;
    FetchKeys();
    if (kValuesAhead) FetchValues(&next_);
  }

  LEAN_ATTENTION_DEVICE void FetchNothing() {}

  LEAN_ATTENTION_DEVICE Block Next() const {
    Block block = next_;
    if (!kValuesAhead) FetchValues(&block);
    return block;
  }

 private:
  LEAN_ATTENTION_DEVICE void FetchKeys() {
    const int32_t row = key_ + Block::KeyOfK();
    const bool is_read = rows_.Has(row);
    const GlobalPtr<const Cache> k = rows_.k + (is_read ? int64_t{row} * kHeadSize : 0);
    for (int step = 0; step < Block::kSteps; ++step) {
      using Part = typename Block::KPart;
      next_.k[step] = is_read ? Load(As<Part>(k + Block::ChannelOfK(step))) : Part{};
    }
  }

  LEAN_ATTENTION_DEVICE void FetchValues(Block* block) const {
    for (int i = 0; i < 4; ++i) {
      const int32_t row = key_ + Block::KeyOfV(i);
      const bool is_read = rows_.Has(row) && Block::ChannelOfV() < kHeadSize;
      const GlobalPtr<const Cache> v = rows_.v + (is_read ? int64_t{row} * kHeadSize : 0);
      for (int part = 0; part < Block::kVParts; ++part) {
        using Part = typename Block::VPart;
        block->v[i][part] = is_read ? Load(As<Part>(v + Block::ChannelOfV()), part) : Part{};
      }
    }
  }

  CacheRows<Cache> rows_;
  int32_t key_ = 0;  // the first of next_
  Block next_;
};

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_KEY_REGISTERS_H_
