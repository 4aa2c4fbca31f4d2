// Global memory: buffers of exact size, which tests own.

#ifndef LEAN_ATTENTION_OPS_EMULATOR_BUFFER_H_
#define LEAN_ATTENTION_OPS_EMULATOR_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "ops/emulator/pointer.h"
#include "ops/emulator/shadow.h"

namespace lean_attention::emulator {

inline constexpr std::align_val_t kBufferAlignment{256};  // as cudaMalloc and hipMalloc promise

// The bytes of one allocation, and what a launch has done to them.
struct Buffer {
  explicit Buffer(int64_t bytes)
      : size(bytes),
        data(static_cast<std::byte*>(
            ::operator new(static_cast<size_t>(bytes > 0 ? bytes : 1), kBufferAlignment))),
        shadow(bytes) {}
  ~Buffer() { ::operator delete(data, kBufferAlignment); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  const int64_t size;
  std::byte* const data;
  bool written = false;  // a pointer to non-const was taken: reads of it may race
  bool frozen = false;
  Shadow shadow;
  // What the atomics on a word pass on, by the word's byte offset; of one launch.
  std::unordered_map<int64_t, KnowledgePtr> released;
  uint64_t released_in = 0;
};

// An array in global memory. Starts as NaN (all bits set) unless its contents are given. Contents
// are read and written by the host between launches, without any check.
template <typename T>
class DeviceBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit DeviceBuffer(int64_t count)
      : buffer_(std::make_unique<Buffer>(count * static_cast<int64_t>(sizeof(T)))) {
    std::memset(buffer_->data, 0xFF, static_cast<size_t>(buffer_->size));
  }
  explicit DeviceBuffer(const std::vector<T>& contents)
      : DeviceBuffer(static_cast<int64_t>(contents.size())) {
    if (!contents.empty()) std::memcpy(buffer_->data, contents.data(), contents.size() * sizeof(T));
  }

  int64_t size() const { return buffer_->size / static_cast<int64_t>(sizeof(T)); }
  T* data() { return reinterpret_cast<T*>(buffer_->data); }
  const T* data() const { return reinterpret_cast<const T*>(buffer_->data); }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size(); }

  // Every write through a device pointer, from now on, is a fault.
  void Freeze() { buffer_->frozen = true; }

  // What a kernel gets. A buffer that only const pointers lead to is not watched for races.
  GlobalPtr<T> Ptr() {
    buffer_->written = true;
    return GlobalPtr<T>(buffer_.get(), 0);
  }
  GlobalPtr<const T> ConstPtr() const { return GlobalPtr<const T>(buffer_.get(), 0); }

 private:
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace lean_attention::emulator

#endif  // LEAN_ATTENTION_OPS_EMULATOR_BUFFER_H_
