// Lengths and positions in device memory that nobody has checked: the GPU kernel stays within its
// buffers, which the emulator watches, and nothing else changes.

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "tests/cpp/gpu_step.h"
#include "tests/cpp/kernel_scenes.h"

namespace lean_attention::testing {
namespace {

constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
constexpr int32_t kMost = std::numeric_limits<int32_t>::max();

class GpuHostile : public ::testing::TestWithParam<int> {
 protected:
  StepSpec Spec() const {
    StepSpec spec;
    spec.types = kFloat16Step;
    spec.head_size = 64;
    spec.lengths = {20, 50, 90};
    spec.spare_rows = 7;
    spec.tile_tokens = 16;
    spec.sequence_length = GetParam();
    spec.rotary_half = 8;
    spec.bias = true;
    spec.bias_per_sequence = true;
    return spec;
  }

  static std::vector<int32_t> SeqlensOf(const StepSpec& spec) {
    std::vector<int32_t> seqlens_k;
    for (int32_t length : spec.lengths) seqlens_k.push_back(length - 1);
    return seqlens_k;
  }
};

// One sequence's length at a time is wrong; it is taken for the nearest one that is right.
TEST_P(GpuHostile, Lengths) {
  const Step before(Spec());
  const StepSpec& spec = before.spec();
  const Step want = AfterLaunch(before);
  const int32_t longest = spec.lengths.back() - 1;
  for (int64_t changed = 0; changed < before.batch_size(); ++changed) {
    for (int32_t wrong : {kLeast, kLeast + 1, -2, -1, longest + 1, longest + 8, kMost - 1, kMost}) {
      for (int64_t amount : {1, 5}) {
        GpuLaunch launch = {Schedule::kLean, amount};
        launch.seqlens_k = SeqlensOf(spec);
        launch.seqlens_k[changed] = wrong;
        const Step step = AfterLaunch(before, launch);
        for (int64_t b = 0; b < before.batch_size(); ++b) {
          if (b != changed) ExpectSameBitsOf(b, step, b, want);
        }
        launch.seqlens_k[changed] = wrong < 0 ? 0 : longest;
        ExpectSameBits(step, AfterLaunch(before, launch));
      }
    }
  }
}

// Likewise numbers of query tokens, of a sequence that is long and of one that is shorter than
// them.
TEST_P(GpuHostile, QueryLengths) {
  StepSpec spec = Spec();
  spec.lengths = {20, 50, 1, 90};
  const Step before(spec);
  const int32_t tokens = spec.sequence_length;
  GpuLaunch launch = {Schedule::kLean, 5};
  for (int64_t changed : {1, 2}) {
    for (int32_t wrong : {kLeast, -1, tokens + 1, kMost}) {
      launch.query_seqlens = {tokens, 1, 1, 0};
      launch.query_seqlens[changed] = wrong;
      const Step step = AfterLaunch(before, launch);
      launch.query_seqlens[changed] = wrong < 0 ? 0 : (changed == 2 ? 1 : tokens);
      ExpectSameBits(step, AfterLaunch(before, launch));
    }
  }
  launch.seqlens_k = {kMost, kLeast, -1, 3};
  launch.query_seqlens = {kLeast, kMost, 2, kMost};
  AfterLaunch(before, launch);
}

TEST_P(GpuHostile, AllLengthsAtOnce) {
  const Step before(Spec());
  for (Schedule schedule : {Schedule::kLean, Schedule::kFixedSplit, Schedule::kDirect}) {
    for (int64_t amount : {1, 3, 16}) {
      GpuLaunch launch = {schedule, amount};
      launch.seqlens_k = {kMost, kLeast, -1};
      AfterLaunch(before, launch);
      launch.seqlens_k = {kMost, kMost, kMost};
      AfterLaunch(before, launch);
    }
  }
}

// One token's position at a time is wrong; it is taken for the nearest one that has an angle.
TEST_P(GpuHostile, Positions) {
  StepSpec spec = Spec();
  spec.position_ids = true;
  const Step before(spec);
  const int64_t last = before.cos.count() / spec.rotary_half - 1;
  const int64_t tokens = before.batch_size() * spec.sequence_length;
  for (int64_t changed = 0; changed < tokens; ++changed) {
    for (int64_t wrong : {std::numeric_limits<int64_t>::min(), int64_t{-1}, last + 1,
                          int64_t{1} << 32, std::numeric_limits<int64_t>::max()}) {
      GpuLaunch launch = {Schedule::kLean, 5};
      launch.position_ids.assign(tokens, 1);
      launch.position_ids[changed] = wrong;
      const Step step = AfterLaunch(before, launch);
      launch.position_ids[changed] = wrong < 0 ? 0 : last;
      ExpectSameBits(step, AfterLaunch(before, launch));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuHostile, ::testing::Values(1, 3));

}  // namespace
}  // namespace lean_attention::testing
