// How a plan's workspace is laid out.

#ifndef LEAN_ATTENTION_OPS_CPU_WORKSPACE_H_
#define LEAN_ATTENTION_OPS_CPU_WORKSPACE_H_

#include <atomic>
#include <cstdint>

#include "ops/cpu/decode_attention.h"

namespace lean_attention::cpu {

inline constexpr int64_t kFloatsPerLine = 16;
inline constexpr int kMaxLanes = 8;       // floats in a vector, on any instruction set
inline constexpr int kBlockRows = 4;      // query rows that share registers
inline constexpr int kMinBlockKeys = 12;  // whole register tiles for any number of rows
inline constexpr int kMaxBlockKeys = 48;

constexpr int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Keys of a block. K and V of one and the next K lie in the L1 cache together: memory then is
// evenly busy (of 3, 6, 8, 12 and 16 KiB, 6 was best). Depends on nothing but the cache's format,
// since the bits of a result do on it.
constexpr int BlockKeys(int64_t row_bytes) {
  const int64_t keys = 6 * 1024 / row_bytes / kMinBlockKeys * kMinBlockKeys;
  return static_cast<int>(keys < kMinBlockKeys ? kMinBlockKeys
                                               : (keys > kMaxBlockKeys ? kMaxBlockKeys : keys));
}

// What a share has to itself, part by part, each on cache lines of its own.
class ShareLayout {
 public:
  // rows: of a KV head. stride: floats of a padded row.
  ShareLayout(int64_t rows, int64_t stride) : rows_(rows), stride_(stride) {}

  int64_t query_floats() const { return Lines(rows_ * stride_); }
  int64_t score_floats() const { return Lines(RoundUp(rows_, kBlockRows) * kMaxBlockKeys); }
  int64_t running_floats() const { return Lines(RowBlocks() * 3 * kMaxLanes); }
  int64_t state_floats() const { return Lines(rows_ * (stride_ + 2)); }
  int64_t row_floats() const { return Lines(stride_); }
  // 64-bit words, one per row.
  int64_t word_floats() const { return Lines(2 * rows_); }

  // Queries, scores, the running softmax, two states, four rows of channels, three words per row.
  int64_t share_floats() const {
    return query_floats() + score_floats() + running_floats() + 2 * state_floats() +
           4 * row_floats() + 3 * word_floats();
  }

 private:
  static int64_t Lines(int64_t floats) { return RoundUp(floats, kFloatsPerLine); }
  int64_t RowBlocks() const { return (rows_ + kBlockRows - 1) / kBlockRows; }

  int64_t rows_;
  int64_t stride_;
};

// [shares][share_floats] floats, [regions][region_tiles][state_floats] floats, [regions] counters.
class Workspace {
 public:
  Workspace(const Plan& plan, void* memory) : plan_(plan), floats_(static_cast<float*>(memory)) {}

  float* Share(int64_t share) const { return floats_ + share * plan_.share_floats; }

  float* RegionState(int64_t region, int64_t tile) const {
    return Share(plan_.cut.shares()) + (region * plan_.region_tiles + tile) * plan_.state_floats;
  }

  // Tiles of a region that have arrived.
  std::atomic<int32_t>& Arrived(int64_t region) const {
    float* counters = RegionState(plan_.cut.regions(), 0);
    return reinterpret_cast<std::atomic<int32_t>*>(counters)[region];
  }

 private:
  const Plan& plan_;
  float* floats_;
};

static_assert(sizeof(std::atomic<int32_t>) == sizeof(float), "counters follow the floats");

}  // namespace lean_attention::cpu

#endif  // LEAN_ATTENTION_OPS_CPU_WORKSPACE_H_
