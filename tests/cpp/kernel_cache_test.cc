// What the step writes to the cache: rotary embedding, append, copy of a cache that is not shared.

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "tests/cpp/kernel_reference.h"

namespace lean_attention::testing {
namespace {

class KernelCache : public ::testing::TestWithParam<std::tuple<StepTypes, bool>> {
 protected:
  StepSpec SpecOf(std::vector<int32_t> lengths) const {
    StepSpec spec;
    std::tie(spec.types, spec.separate_past) = GetParam();
    spec.lengths = std::move(lengths);
    return spec;
  }
};

TEST_P(KernelCache, IsRightForRaggedBatches) {
  for (int64_t spare : {0, 1, 5}) {
    StepSpec spec = SpecOf({1, 5, 16, 64, 65, 199});
    spec.spare_rows = spare;
    ExpectRunIsRight(Step(spec));
  }
}

TEST_P(KernelCache, IsRightWithoutAPast) {
  for (int32_t tokens : {1, 5}) {
    StepSpec spec = SpecOf({tokens, tokens});
    spec.sequence_length = tokens;
    ExpectRunIsRight(Step(spec));
  }
}

TEST_P(KernelCache, IsRightBeforeAWindow) {
  for (int64_t window : {1, 64, 100}) {
    StepSpec spec = SpecOf({1, 64, 200, 300});
    spec.window = window;
    const Step before(spec);
    for (int64_t amount : {1, 6}) {
      ExpectRight(After(before, Schedule::kLean, amount), before);
    }
  }
}

TEST_P(KernelCache, IsRightWhateverShareAppends) {
  StepSpec spec = SpecOf({130, 67, 3});
  spec.sequence_length = 3;  // the new rows of the first two sequences lie in two tiles
  spec.rotary_half = 16;
  const Step before(spec);
  for (Schedule schedule : {Schedule::kLean, Schedule::kFixedSplit, Schedule::kDirect}) {
    for (int64_t amount : {1, 2, 3, 8, 40}) {
      for (const auto runner : {InOrder, Backwards}) {
        ExpectRight(After(before, schedule, amount, runner), before);
      }
    }
  }
}

TEST_P(KernelCache, HoldsRotatedKeys) {
  for (bool interleaved : {false, true}) {
    for (int32_t half : {1, 3, 8, 12, 16, 20}) {
      StepSpec spec = SpecOf({1, 20, 100});
      spec.head_size = 40;
      spec.rotary_half = half;
      spec.rotary_interleaved = interleaved;
      ExpectRunIsRight(Step(spec));
      spec.packed = true;
      ExpectRunIsRight(Step(spec));
    }
  }
}

TEST_P(KernelCache, HoldsKeysRotatedToTheirOwnPositions) {
  StepSpec spec = SpecOf({4, 20, 100});
  spec.sequence_length = 4;
  spec.rotary_half = 16;
  ExpectRunIsRight(Step(spec));
  spec.position_ids = true;
  ExpectRunIsRight(Step(spec));
}

// Next to the middle between two whole numbers the reciprocal of the scale decides, as in the stock
// operator; what is not finite becomes an end of the range.
TEST_P(KernelCache, QuantisesAsTheStockOperator) {
  StepSpec spec = SpecOf({3});
  if (!spec.types.IsQuantised()) return;
  spec.head_size = 256;
  Step step(spec);
  const auto fill = [&](Tensor& tensor, int64_t row, const auto& scale) {
    for (int64_t h = 0; h < spec.head_size; ++h) {
      const double number = static_cast<double>(h % 15) - 7.5;
      tensor.Set(row + h, number * scale(h));
    }
    tensor.Set(row + 5, NAN);
    tensor.Set(row + 6, INFINITY);
    tensor.Set(row + 7, -INFINITY);
  };
  for (int64_t k = 0; k < spec.kv_num_heads; ++k) {
    fill(step.key(), step.KeyRow(0, 0, k), [&](int64_t h) { return step.KeyScale(k, h); });
    fill(step.value(), step.ValueRow(0, 0, k), [&](int64_t h) { return step.ValueScale(k, h); });
  }
  ExpectRunIsRight(step);
}

INSTANTIATE_TEST_SUITE_P(All, KernelCache,
                         ::testing::Combine(::testing::ValuesIn(kStepTypes), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) ? "_separate" : "_shared");
                         });

}  // namespace
}  // namespace lean_attention::testing
