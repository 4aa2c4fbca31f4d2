// A block's share of the stream, found inside the kernel from the lengths in device memory.
//
// The first warp reads all lengths, bounds them, and leaves them in shared memory with
// the running sum of their costs; places in the stream are then found by bisection.

#ifndef LEAN_ATTENTION_OPS_GPU_STREAM_H_
#define LEAN_ATTENTION_OPS_GPU_STREAM_H_

#include "ops/gpu/decode_args.h"

namespace lean_attention::gpu {

// In shared memory: cost_ends [B], the cost of sequences 0 .. b; then keys [B].
class SharedStream {
 public:
  static constexpr int kBytesPerSequence = sizeof(int64_t) + sizeof(int32_t);

  LEAN_ATTENTION_DEVICE SharedStream(const Problem& problem, GlobalPtr<const int32_t> query_seqlens,
                                     int64_t max_length, SharedPtr<std::byte> memory)
      : problem_(problem),
        query_seqlens_(query_seqlens),
        max_length_(max_length),
        cost_ends_(As<int64_t>(memory)),
        keys_(As<int32_t>(memory + problem.batch_size * int64_t{sizeof(int64_t)})) {}

  // For all lanes of one warp; others may read after SyncThreads.
  LEAN_ATTENTION_DEVICE void Fill(GlobalPtr<const int32_t> seqlens_k) const {
    int64_t before = 0;
    for (int32_t first = 0; first < problem_.batch_size; first += kWarpSize) {
      const int32_t b = first + Lane();
      int64_t cost = 0;
      if (b < problem_.batch_size) {
        const Lengths lengths = Bounded(b, int64_t{Load(seqlens_k, b)} + 1);
        Store(keys_, b, static_cast<int32_t>(lengths.keys));
        cost = problem_.kv_num_heads * PairCost(TilingFor(problem_, lengths));
      }
      for (int delta = 1; delta < kWarpSize; delta *= 2) {
        const int64_t other = ShuffleUp(cost, delta);
        if (Lane() >= delta) cost += other;
      }
      cost += before;
      if (b < problem_.batch_size) Store(cost_ends_, b, cost);
      before = ShuffleFrom(cost, kWarpSize - 1);
    }
  }

  LEAN_ATTENTION_DEVICE const Problem& problem() const { return problem_; }
  LEAN_ATTENTION_DEVICE Lengths LengthsOf(int32_t sequence) const {
    return Bounded(sequence, Load(keys_, sequence));
  }
  LEAN_ATTENTION_DEVICE Tiling TilingOf(int32_t sequence) const {
    return TilingFor(problem_, LengthsOf(sequence));
  }
  LEAN_ATTENTION_DEVICE int64_t total_cost() const {
    return Load(cost_ends_, problem_.batch_size - 1);
  }

  LEAN_ATTENTION_DEVICE Located Locate(int64_t cost) const {
    int32_t low = 0;
    int32_t high = problem_.batch_size;
    while (low < high) {
      const int32_t middle = (low + high) / 2;
      if (cost < Load(cost_ends_, middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return {low, low > 0 ? cost - Load(cost_ends_, low - 1) : cost};
  }

 private:
  // Numbers of query tokens stay in device memory: few calls have them, and shared memory is
  // scarce.
  LEAN_ATTENTION_DEVICE Lengths Bounded(int32_t sequence, int64_t keys) const {
    const int32_t queries =
        query_seqlens_ != nullptr ? Load(query_seqlens_, sequence) : problem_.sequence_length;
    if (keys > max_length_) keys = max_length_;
    return BoundedLengths(problem_, keys, queries);
  }

  const Problem& problem_;  // outlives this
  GlobalPtr<const int32_t> query_seqlens_;
  int64_t max_length_;
  SharedPtr<int64_t> cost_ends_;
  SharedPtr<int32_t> keys_;
};

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_STREAM_H_
