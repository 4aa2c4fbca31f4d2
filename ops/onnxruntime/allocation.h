// Memory of a session's allocator.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_ALLOCATION_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_ALLOCATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ops/onnxruntime/gqa_schema.h"
#include "ops/onnxruntime/ort.h"

namespace lean_attention::onnxruntime {

class Allocation {
 public:
  // Takes over the allocator: ONNX Runtime hands out a new handle at each call, and a handle that
  // is not released keeps the session's whole arena alive.
  Allocation(OrtAllocator* allocator, size_t bytes, size_t alignment)
      : allocator_(allocator, &Release) {
    memory_ = allocator->Alloc(allocator, bytes + alignment);
    if (memory_ == nullptr) Fail(ORT_FAIL, kOpName, ": no memory for ", bytes, " bytes of scratch");
    const auto address = reinterpret_cast<uintptr_t>(memory_);
    aligned_ = reinterpret_cast<void*>((address + alignment - 1) / alignment * alignment);
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() { allocator_->Free(allocator_.get(), memory_); }

  void* get() const { return aligned_; }

 private:
  static void Release(OrtAllocator* allocator) { Ort::GetApi().ReleaseAllocator(allocator); }

  std::unique_ptr<OrtAllocator, void (*)(OrtAllocator*)> allocator_;
  void* memory_;
  void* aligned_;
};

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_ALLOCATION_H_
