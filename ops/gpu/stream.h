// A block's share of the stream, found inside the kernel from the lengths in device memory.
//
// The first warp reads all lengths, bounds them, and leaves them in shared memory with
// the running sum of their costs; places in the stream are then found by bisection.

#ifndef LEAN_ATTENTION_OPS_GPU_STREAM_H_
#define LEAN_ATTENTION_OPS_GPU_STREAM_H_

#include "ops/gpu/decode_args.h"

namespace lean_attention::gpu {

// In shared memory: cost_ends [B], the cost of sequences 0 .. b; then keys [B] and queries [B].
class SharedStream {
 public:
  static constexpr int kBytesPerSequence = sizeof(int64_t) + 2 * sizeof(int32_t);

  LEAN_ATTENTION_DEVICE SharedStream(const Problem& problem, SharedPtr<std::byte> memory)
      : problem_(problem),
        cost_ends_(As<int64_t>(memory)),
        keys_(As<int32_t>(memory + problem.batch_size * int64_t{sizeof(int64_t)})),
        queries_(keys_ + problem.batch_size) {}

  // For all lanes of one warp; others may read after SyncThreads.
  LEAN_ATTENTION_DEVICE void Fill(GlobalPtr<const int32_t> seqlens_k,
                                  GlobalPtr<const int32_t> query_seqlens,
                                  int64_t max_length) const {
    int64_t before = 0;
    for (int32_t first = 0; first < problem_.batch_size; first += kWarpSize) {
      const int32_t b = first + Lane();
      int64_t cost = 0;
      if (b < problem_.batch_size) {
        int64_t keys = int64_t{Load(seqlens_k, b)} + 1;
        if (keys > max_length) keys = max_length;
        const int32_t queries =
            query_seqlens != nullptr ? Load(query_seqlens, b) : problem_.sequence_length;
        const Lengths lengths = BoundedLengths(problem_, keys, queries);
        Store(keys_, b, static_cast<int32_t>(lengths.keys));
        Store(queries_, b, lengths.queries);
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
    return {Load(keys_, sequence), Load(queries_, sequence)};
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
  const Problem& problem_;  // outlives this
  SharedPtr<int64_t> cost_ends_;
  SharedPtr<int32_t> keys_;
  SharedPtr<int32_t> queries_;
};

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_STREAM_H_
