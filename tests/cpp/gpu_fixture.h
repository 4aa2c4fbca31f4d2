// What tests of the GPU kernel have in common that take types and a head size.

#ifndef LEAN_ATTENTION_TESTS_CPP_GPU_FIXTURE_H_
#define LEAN_ATTENTION_TESTS_CPP_GPU_FIXTURE_H_

#include <gtest/gtest.h>

#include <tuple>
#include <utility>
#include <vector>

#include "tests/cpp/gpu_step.h"

namespace lean_attention::testing {

class GpuTypesAndHeadSize : public ::testing::TestWithParam<std::tuple<StepTypes, int>> {
 protected:
  StepSpec SpecOf(std::vector<int32_t> lengths) const {
    StepSpec spec;
    std::tie(spec.types, spec.head_size) = GetParam();
    spec.tile_tokens = 32;
    spec.lengths = std::move(lengths);
    return spec;
  }
};

}  // namespace lean_attention::testing

#endif  // LEAN_ATTENTION_TESTS_CPP_GPU_FIXTURE_H_
