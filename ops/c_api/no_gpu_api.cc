// The GPU functions of a library without GPU kernels.

#include "ops/c_api/gpu_api.h"
#include "ops/c_api/message.h"

namespace {

int32_t NotBuilt(char* message, int64_t message_size) {
  lean_attention::WriteMessage(
      "the library was built without GPU kernels; install it with 'pip install . "
      "-C cmake.define.LEAN_ATTENTION_CUDA=ON' (or LEAN_ATTENTION_ROCM=ON)",
      message, message_size);
  return LEAN_ATTENTION_NOT_BUILT;
}

}  // namespace

const char* lean_attention_gpu_backend(void) { return nullptr; }

int32_t lean_attention_gpu_make_plan(const lean_attention_gpu_step*, int32_t, int64_t, int32_t,
                                     lean_attention_gpu_plan*, char* message,
                                     int64_t message_size) {
  return NotBuilt(message, message_size);
}

int32_t lean_attention_gpu_decode(const lean_attention_gpu_step*, const lean_attention_gpu_plan*,
                                  void*, int32_t*, void*, char* message, int64_t message_size) {
  return NotBuilt(message, message_size);
}
