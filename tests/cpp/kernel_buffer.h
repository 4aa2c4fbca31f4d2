// Memory of exactly the size that a tensor has. Under AddressSanitizer nothing lies behind it, so
// that any byte past an end is seen; else guards lie on both sides, and IsIntact tells whether they
// were written. What is read of a guard is a NaN.

#ifndef LEAN_ATTENTION_TESTS_CPP_KERNEL_BUFFER_H_
#define LEAN_ATTENTION_TESTS_CPP_KERNEL_BUFFER_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

namespace lean_attention::testing {

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LEAN_ATTENTION_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(LEAN_ATTENTION_ADDRESS_SANITIZER) || defined(__SANITIZE_ADDRESS__)
inline constexpr size_t kGuardBytes = 0;
#else
inline constexpr size_t kGuardBytes = 64;
#endif

// All bits set: a NaN in every floating-point type.
inline constexpr std::byte kNaNByte{0xff};

class Buffer {
 public:
  static constexpr std::align_val_t kAlignment{64};

  // Filled with NaN. The data begin `misalignment` bytes after a multiple of 64.
  explicit Buffer(size_t bytes, size_t misalignment = 0)
      : bytes_(bytes),
        offset_(kGuardBytes + misalignment),
        memory_(
            static_cast<std::byte*>(::operator new(offset_ + bytes + kGuardBytes, kAlignment))) {
    std::memset(memory_.get(), std::to_integer<int>(kNaNByte), offset_ + bytes + kGuardBytes);
  }

  Buffer(const Buffer& other) : Buffer(other.bytes_, other.offset_ - kGuardBytes) {
    std::memcpy(data(), other.data(), bytes_);
  }
  Buffer(Buffer&&) = default;
  Buffer& operator=(Buffer&&) = default;

  std::byte* data() { return memory_.get() + offset_; }
  const std::byte* data() const { return memory_.get() + offset_; }

  bool IsIntact() const {
    const auto untouched = [](std::byte byte) { return byte == kNaNByte; };
    const std::byte* begin = memory_.get();
    const std::byte* end = data() + bytes_;
    return std::all_of(begin, data(), untouched) && std::all_of(end, end + kGuardBytes, untouched);
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  };

  size_t bytes_;
  size_t offset_;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace lean_attention::testing

#endif  // LEAN_ATTENTION_TESTS_CPP_KERNEL_BUFFER_H_
