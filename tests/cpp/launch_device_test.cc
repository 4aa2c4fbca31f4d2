// The launcher with its kernels, on whatever machine this is.

#include <gtest/gtest.h>

#include "ops/gpu/launch/launcher.h"

namespace lean_attention::gpu {
namespace {

TEST(QueryDevice, FindsAGpuOrSaysWhyNot) {
  Device device = {};
  const Status status = QueryDevice(&device);
  if (status.ok()) {
    EXPECT_GT(device.multiprocessors, 0);
    EXPECT_GE(device.shared_bytes, 48 * 1024);
  } else {
    EXPECT_EQ(status.code, StatusCode::kDeviceError);
    EXPECT_EQ(status.message.find("the current GPU could not be asked: "), 0u) << status.message;
  }
}

TEST(QueryMachine, KnowsEveryKernelThatIsBuilt) {
  Device device = {};
  const bool has_device = QueryDevice(&device).ok();
  for (const ElementType type : {ElementType::kFloat16, ElementType::kBFloat16}) {
    for (const int head_size : {64, 80, 96, 128, 256}) {
      for (const ElementType cache : {type, ElementType::kInt8, ElementType::kFloat8E4M3}) {
        GpuDecode decode = {};
        decode.element_type = type;
        decode.problem = {1, 1, 1, 1, head_size, 1, nullptr, 0, cache, kGpuTileTokens};
        if (has_device && SharedBytes(decode.problem) > device.shared_bytes) continue;
        GpuMachine machine = {};
        const Status status = QueryMachine(decode, &machine);
        EXPECT_EQ(status.code, has_device ? StatusCode::kOk : StatusCode::kDeviceError)
            << NameOf(type) << " " << NameOf(cache) << " " << head_size << ": " << status.message;
        EXPECT_EQ(machine.blocks() > 0, has_device);
      }
    }
  }
}

}  // namespace
}  // namespace lean_attention::gpu
