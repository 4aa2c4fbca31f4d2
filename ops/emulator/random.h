// The draws of a launch: the same for the same seed, everywhere.

#ifndef LEAN_ATTENTION_OPS_EMULATOR_RANDOM_H_
#define LEAN_ATTENTION_OPS_EMULATOR_RANDOM_H_

#include <cstdint>

namespace lean_attention::emulator {

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  // In [0, n), n < 2^32.
  uint64_t Below(uint64_t n) { return ((Next() >> 32) * n) >> 32; }

 private:
  uint64_t state_;
};

}  // namespace lean_attention::emulator

#endif  // LEAN_ATTENTION_OPS_EMULATOR_RANDOM_H_
