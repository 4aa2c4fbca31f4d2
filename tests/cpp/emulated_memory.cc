#include "tests/cpp/emulated_memory.h"

#include <dlfcn.h>

#include <cstring>

namespace lean_attention::testing {
namespace {

constexpr int kDefaultKind = 4;  // cudaMemcpyDefault

struct CudaRuntime {
  int (*copy)(void*, const void*, size_t, int kind, void* stream) = nullptr;
  int (*set)(void*, int, size_t, void* stream) = nullptr;
};

// Without functions where ONNX Runtime has loaded none.
const CudaRuntime& Loaded() {
  static const CudaRuntime runtime = [] {
    CudaRuntime found;
    if (void* const library = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD)) {
      found.copy = reinterpret_cast<decltype(found.copy)>(dlsym(library, "cudaMemcpyAsync"));
      found.set = reinterpret_cast<decltype(found.set)>(dlsym(library, "cudaMemsetAsync"));
    }
    return found;
  }();
  return runtime;
}

}  // namespace

void CopyMemory(void* to, const void* from, size_t bytes) {
  if (Loaded().copy != nullptr) {
    Loaded().copy(to, from, bytes, kDefaultKind, nullptr);
  } else {
    std::memcpy(to, from, bytes);
  }
}

void ClearMemory(void* to, size_t bytes) {
  if (Loaded().set != nullptr) {
    Loaded().set(to, 0, bytes, nullptr);
  } else {
    std::memset(to, 0, bytes);
  }
}

}  // namespace lean_attention::testing
