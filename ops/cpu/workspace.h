// How a plan's workspace is laid out.

#ifndef LEAN_ATTENTION_OPS_CPU_WORKSPACE_H_
#define LEAN_ATTENTION_OPS_CPU_WORKSPACE_H_

#include <atomic>
#include <cstdint>

#include "ops/cpu/decode_attention.h"

namespace lean_attention::cpu {

inline constexpr int64_t kFloatsPerLine = 16;
// Keys for which a share keeps scores, per row.
inline constexpr int64_t kScoreKeys = 64;

constexpr int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

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
