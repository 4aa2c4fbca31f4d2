// The C functions of the GPU kernel in a library without one.

#include <gtest/gtest.h>

#include <string>

#include "ops/c_api/gpu_api.h"

namespace {

TEST(NoGpuApi, SaysHowToGetTheKernels) {
  EXPECT_EQ(lean_attention_gpu_backend(), nullptr);
  const std::string expected =
      "the library was built without GPU kernels; install it with 'pip install . "
      "-C cmake.define.LEAN_ATTENTION_CUDA=ON' (or LEAN_ATTENTION_ROCM=ON)";
  char message[256] = "";
  lean_attention_gpu_step step = {};
  lean_attention_gpu_plan plan = {};
  EXPECT_EQ(lean_attention_gpu_make_plan(&step, -1, 0, 0, &plan, message, sizeof(message)),
            LEAN_ATTENTION_NOT_BUILT);
  EXPECT_EQ(message, expected);
  message[0] = '\0';
  EXPECT_EQ(
      lean_attention_gpu_decode(&step, &plan, nullptr, nullptr, nullptr, message, sizeof(message)),
      LEAN_ATTENTION_NOT_BUILT);
  EXPECT_EQ(message, expected);
  EXPECT_EQ(lean_attention_gpu_decode(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0),
            LEAN_ATTENTION_NOT_BUILT);
}

}  // namespace
