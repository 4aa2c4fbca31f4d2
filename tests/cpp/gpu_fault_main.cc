// Runs a kernel with a planted fault until it shows as the argument says, under 20 interleavings at
// most; `sound` is to show nothing under any of them. See plant_fault.py.

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tests/cpp/gpu_step.h"
#include "tests/cpp/kernel_reference.h"

namespace lean_attention::testing {
namespace {

constexpr uint64_t kSeeds = 20;
constexpr char kSound[] = "sound";

const char* NameOf(emulator::FaultKind kind) {
  using emulator::FaultKind;
  switch (kind) {
    case FaultKind::kOutOfBounds:
      return "out_of_bounds";
    case FaultKind::kSharedRace:
      return "shared_race";
    case FaultKind::kGlobalRace:
      return "global_race";
    case FaultKind::kNotWaited:
      return "not_waited";
    case FaultKind::kDivergence:
      return "divergence";
    default:
      return "another kind of fault";
  }
}

// The longest sequence ends with its cache and a bias of its own, inside a block of keys; a warp
// takes two blocks of a tile, and more in all than its ring has places. Other numbers for each
// seed: what differs in float32 may be the same in float16.
StepSpec SpecOf(uint64_t seed) {
  StepSpec spec;
  spec.types = kFloat16Step;
  spec.head_size = 64;
  spec.num_heads = 6;
  spec.sequence_length = 2;
  spec.lengths = {2, 37, 457};
  spec.queries = {2, 1, 2};
  spec.tile_tokens = 128;
  spec.bias = true;
  spec.bias_per_sequence = true;
  spec.rotary_half = 8;
  spec.position_ids = true;
  spec.norm = true;
  spec.seed = static_cast<uint32_t>(seed);
  return spec;
}

bool IsRight(const Step& step, const Step& before) {
  ::testing::TestPartResultArray failures;
  const ::testing::ScopedFakeTestPartResultReporter reporter(
      ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
  ExpectRight(step, before, Operands::kElements);
  return failures.size() == 0;
}

// What a launch shows; `first` is what an earlier one left, whose bits are the same.
std::string Shown(const Step& before, const GpuLaunch& launch, std::optional<Step>* first) {
  const GpuOutcome outcome = Run(before, launch);
  if (!outcome.report.ok()) {
    std::printf("seed %d: %s", static_cast<int>(launch.seed), outcome.report.ToString().c_str());
    return NameOf(outcome.report.faults.front().kind);
  }
  if (!outcome.counters_are_zero) return "counter";
  const bool is_as_said = launch.seqlens_k.empty() && launch.position_ids.empty();
  if (!is_as_said) return kSound;
  if (!first->has_value()) *first = outcome.step;
  const bool is_same = outcome.step.output.IsSameAs((*first)->output);
  return is_same && IsRight(outcome.step, before) ? kSound : "wrong";
}

// Whether the kernel shows what is expected.
bool ShowsAs(const std::string& expected) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Step before(SpecOf(seed));
    std::optional<Step> first;
    const int resident_blocks = 1 + static_cast<int>(seed % 8);
    std::vector<GpuLaunch> launches = {
        {Schedule::kDirect, 1, 0, seed, resident_blocks},
        {Schedule::kLean, 9, 0, seed, resident_blocks},
        {Schedule::kFixedSplit, 3, 4, seed, resident_blocks},
        {Schedule::kLean,
         5,
         0,
         seed,
         resident_blocks,
         {0, kMost - 1, 456},
         {0, 1, -1, 2, 9, kMost}},
    };
    for (const GpuLaunch& launch : launches) {
      const std::string shown = Shown(before, launch, &first);
      if (shown == kSound) continue;
      std::printf("seed %d: %s\n", static_cast<int>(seed), shown.c_str());
      if (expected == kSound) return false;
      if (shown == expected) return true;
    }
  }
  return expected == kSound;
}

}  // namespace
}  // namespace lean_attention::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "What does the fault show as?\n");
    return 2;
  }
  return lean_attention::testing::ShowsAs(argv[1]) ? 0 : 1;
}
