// Pointers that know their memory. They can be moved anywhere; only accesses are checked.

#ifndef LEAN_ATTENTION_OPS_EMULATOR_POINTER_H_
#define LEAN_ATTENTION_OPS_EMULATOR_POINTER_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace lean_attention::emulator {

struct Buffer;

// Memory is an allocation of global memory, or void for the shared memory of the block that runs.
template <typename T, typename Memory>
class Pointer {
  template <typename U>
  using IfAddsConst = std::enable_if_t<std::is_same_v<const U, T>, int>;

 public:
  Pointer() = default;
  Pointer(std::nullptr_t) {}  // NOLINT: as plain pointers convert
  Pointer(Memory* memory, int64_t bytes) : memory_(memory), bytes_(bytes) {}
  template <typename U, IfAddsConst<U> = 0>
  Pointer(const Pointer<U, Memory>& other)  // NOLINT: as plain pointers convert
      : Pointer(other.memory(), other.bytes()) {}

  Memory* memory() const { return memory_; }
  int64_t bytes() const { return bytes_; }  // from the start of the memory

  Pointer& operator+=(int64_t n) {
    bytes_ += n * static_cast<int64_t>(sizeof(T));
    return *this;
  }
  Pointer& operator-=(int64_t n) { return *this += -n; }
  Pointer& operator++() { return *this += 1; }
  Pointer& operator--() { return *this += -1; }
  friend Pointer operator+(Pointer p, int64_t n) { return p += n; }
  friend Pointer operator+(int64_t n, Pointer p) { return p += n; }
  friend Pointer operator-(Pointer p, int64_t n) { return p += -n; }
  // Both into one memory, as for plain pointers.
  friend int64_t operator-(const Pointer& a, const Pointer& b) {
    return (a.bytes_ - b.bytes_) / static_cast<int64_t>(sizeof(T));
  }

  explicit operator bool() const { return *this != nullptr; }
  friend bool operator==(const Pointer& a, const Pointer& b) {
    return a.memory_ == b.memory_ && a.bytes_ == b.bytes_;
  }
  friend bool operator!=(const Pointer& a, const Pointer& b) { return !(a == b); }
  friend bool operator<(const Pointer& a, const Pointer& b) { return a.bytes_ < b.bytes_; }
  friend bool operator>(const Pointer& a, const Pointer& b) { return b < a; }
  friend bool operator<=(const Pointer& a, const Pointer& b) { return !(b < a); }
  friend bool operator>=(const Pointer& a, const Pointer& b) { return !(a < b); }

 private:
  static constexpr int64_t kNull = INT64_MIN;

  Memory* memory_ = nullptr;
  int64_t bytes_ = kNull;
};

template <typename T>
using GlobalPtr = Pointer<T, Buffer>;
template <typename T>
using SharedPtr = Pointer<T, void>;

}  // namespace lean_attention::emulator

#endif  // LEAN_ATTENTION_OPS_EMULATOR_POINTER_H_
