// The GPU kernel, thread for thread, against the plain reference.

#include <gtest/gtest.h>

#include <tuple>

#include "tests/cpp/gpu_step.h"
#include "tests/cpp/kernel_reference.h"

namespace lean_attention::testing {
namespace {

constexpr StepTypes kHalfStep = {"float16", ElementType::kFloat16, ElementType::kFloat16, false};
constexpr StepTypes kInt8Step = {"float16_int8", ElementType::kFloat16, ElementType::kInt8, false};
constexpr StepTypes kInt8ChannelsStep = {"bfloat16_int8_channels", ElementType::kBFloat16,
                                         ElementType::kInt8, true};
constexpr StepTypes kInt8HalfChannelsStep = {"float16_int8_channels", ElementType::kFloat16,
                                             ElementType::kInt8, true};
constexpr StepTypes kBFloat16Step = {"bfloat16", ElementType::kBFloat16, ElementType::kBFloat16,
                                     false};

class GpuDecode : public ::testing::TestWithParam<std::tuple<StepTypes, int>> {
 protected:
  StepSpec Spec() const {
    StepSpec spec;
    std::tie(spec.types, spec.head_size) = GetParam();
    spec.num_heads = 6;
    spec.lengths = {1, 33, 150};
    return spec;
  }
  static void ExpectLaunchIsRight(const StepSpec& spec, const GpuLaunch& launch = {}) {
    const Step before(spec);
    ExpectRight(AfterLaunch(before, launch), before, Operands::kElements);
  }
};

TEST_P(GpuDecode, IsRight) { ExpectLaunchIsRight(Spec()); }

TEST_P(GpuDecode, IsRightInShares) { ExpectLaunchIsRight(Spec(), {Schedule::kLean, 5}); }

INSTANTIATE_TEST_SUITE_P(All, GpuDecode,
                         ::testing::Combine(::testing::Values(kHalfStep, kBFloat16Step, kInt8Step,
                                                              kInt8ChannelsStep,
                                                              kInt8HalfChannelsStep),
                                            ::testing::Values(64, 80, 96, 128, 256)));

}  // namespace
}  // namespace lean_attention::testing
