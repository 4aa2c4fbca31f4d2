// The names of ops/gpu/portable.h on the emulator. Only that header includes this one: kernels do
// not know where they run.

#ifndef LEAN_ATTENTION_OPS_EMULATOR_DEVICE_H_
#define LEAN_ATTENTION_OPS_EMULATOR_DEVICE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "ops/emulator/access.h"
#include "ops/emulator/grid.h"
#include "ops/emulator/matrix.h"
#include "ops/emulator/numbers.h"
#include "ops/emulator/pointer.h"

#if LEAN_ATTENTION_EMULATED_WARP_SIZE == 64
#define LEAN_ATTENTION_AMD 1
#elif LEAN_ATTENTION_EMULATED_WARP_SIZE == 32
#define LEAN_ATTENTION_AMD 0
#else
#error "LEAN_ATTENTION_EMULATED_WARP_SIZE is 32 or 64"
#endif

#define LEAN_ATTENTION_DEVICE inline
#define LEAN_ATTENTION_ROLLED
#define LEAN_ATTENTION_KERNEL(threads)

namespace lean_attention::gpu {

using emulator::BFloat16FromFloat;
using emulator::BFloat16ToFloat;
using emulator::Fp8E4M3ToFloat;
using emulator::GlobalPtr;
using emulator::HalfFromFloat;
using emulator::HalfToFloat;
using emulator::SharedPtr;

inline constexpr int kWarpSize = LEAN_ATTENTION_EMULATED_WARP_SIZE;

inline float FloatOfBits(uint32_t bits) { return emulator::FloatOf(bits); }
inline uint32_t BitsOfFloat(float x) { return emulator::BitsOf(x); }

// As a default argument: where the function was called.
constexpr emulator::Place Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return {file, line};
}

// Threads

inline int ThreadIndex() { return emulator::current->index; }
inline int BlockThreads() { return emulator::current->block->grid->config().threads; }
inline int BlockIndex() { return emulator::current->block->index; }
inline int GridBlocks() { return emulator::current->block->grid->config().blocks; }
inline int Lane() { return emulator::current->lane; }
inline int Warp() { return ThreadIndex() / kWarpSize; }

// Memory

inline SharedPtr<std::byte> SharedMemory() { return {nullptr, 0}; }

template <typename U, typename T, typename Memory>
auto As(emulator::Pointer<T, Memory> pointer) {
  using Element = std::conditional_t<std::is_const_v<T>, const U, U>;
  return emulator::Pointer<Element, Memory>(pointer.memory(), pointer.bytes());
}

template <typename T>
constexpr emulator::Shape ShapeOf() {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
  return {sizeof(T), alignof(T)};
}

template <typename T>
std::remove_const_t<T> Load(GlobalPtr<T> pointer, int64_t index = 0,
                            emulator::Place place = Here()) {
  pointer += index;
  std::remove_const_t<T> value;
  std::memcpy(&value, emulator::ReadGlobal(pointer.memory(), pointer.bytes(), ShapeOf<T>(), place),
              sizeof(T));
  return value;
}

template <typename T>
std::remove_const_t<T> Load(SharedPtr<T> pointer, int64_t index = 0,
                            emulator::Place place = Here()) {
  pointer += index;
  std::remove_const_t<T> value;
  std::memcpy(&value, emulator::ReadShared(pointer.bytes(), ShapeOf<T>(), place), sizeof(T));
  return value;
}

template <typename T>
std::enable_if_t<!std::is_const_v<T>> Store(GlobalPtr<T> pointer, int64_t index,
                                            const std::common_type_t<T>& value,
                                            emulator::Place place = Here()) {
  pointer += index;
  emulator::WriteGlobal(pointer.memory(), pointer.bytes(), ShapeOf<T>(), &value, place);
}

template <typename T>
std::enable_if_t<!std::is_const_v<T>> Store(SharedPtr<T> pointer, int64_t index,
                                            const std::common_type_t<T>& value,
                                            emulator::Place place = Here()) {
  pointer += index;
  emulator::WriteShared(pointer.bytes(), ShapeOf<T>(), &value, place);
}

// Order

inline void SyncThreads(emulator::Place place = Here()) {
  emulator::Thread& thread = *emulator::current;
  thread.place = place;
  thread.block->grid->SyncThreads(thread);
}

inline void SyncWarp(emulator::Place place = Here()) {
  emulator::Thread& thread = *emulator::current;
  thread.place = place;
  thread.block->grid->SyncWarp(thread);
}

inline void ThreadFence(emulator::Place place = Here()) { emulator::Fence(place); }

template <typename T>
T AtomicAdd(GlobalPtr<T> pointer, std::common_type_t<T> value, emulator::Place place = Here()) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned>);
  const auto add = [](uint32_t word, uint32_t operand) { return word + operand; };
  return static_cast<T>(emulator::Atomic(pointer.memory(), pointer.bytes(), add,
                                         static_cast<uint32_t>(value), place));
}

inline unsigned AtomicIncrementWrap(GlobalPtr<unsigned> pointer, unsigned last,
                                    emulator::Place place = Here()) {
  const auto increment = [](uint32_t word, uint32_t operand) {
    return word >= operand ? 0 : word + 1;
  };
  return emulator::Atomic(pointer.memory(), pointer.bytes(), increment, last, place);
}

// Collectives

// Every lane brings a value; returns that of another lane.
template <typename T>
T Exchange(T value, int from, emulator::Place place) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  emulator::Thread& thread = *emulator::current;
  thread.place = place;
  if (from < 0 || from >= kWarpSize) {
    thread.block->grid->Fail(thread, emulator::FaultKind::kBadArgument,
                             "a shuffle from lane " + std::to_string(from));
  }
  std::memcpy(emulator::NextSlot(thread), &value, sizeof(T));
  const emulator::Slot* slots = thread.block->grid->Collect(thread, nullptr);
  std::memcpy(&value, slots[from].bytes, sizeof(T));
  return value;
}

template <typename T>
T ShuffleXor(T value, int mask, emulator::Place place = Here()) {
  return Exchange(value, Lane() ^ mask, place);
}

template <typename T>
T ShuffleDown(T value, int delta, emulator::Place place = Here()) {
  return Exchange(value, Lane() + delta < kWarpSize ? Lane() + delta : Lane(), place);
}

template <typename T>
T ShuffleUp(T value, int delta, emulator::Place place = Here()) {
  return Exchange(value, Lane() - delta >= 0 ? Lane() - delta : Lane(), place);
}

template <typename T>
T ShuffleFrom(T value, int lane, emulator::Place place = Here()) {
  return Exchange(value, lane, place);
}

template <typename T>
T Uniform(T value, emulator::Place place = Here()) {
  static_assert(std::is_integral_v<T>);
  if (Exchange(value, 0, place) != value) {
    emulator::Thread& thread = *emulator::current;
    thread.block->grid->Fail(thread, emulator::FaultKind::kBadArgument,
                             "lane 0 has another value of what is said to be uniform");
  }
  return value;
}

inline uint64_t Ballot(bool holds, emulator::Place place = Here()) {
  emulator::Thread& thread = *emulator::current;
  thread.place = place;
  *emulator::NextSlot(thread) = std::byte{holds};
  const emulator::Slot* slots = thread.block->grid->Collect(thread, nullptr);
  uint64_t lanes = 0;
  for (int i = 0; i < kWarpSize; ++i) lanes |= static_cast<uint64_t>(slots[i].bytes[0]) << i;
  return lanes;
}

inline bool Any(bool holds, emulator::Place place = Here()) { return Ballot(holds, place) != 0; }

// Asynchronous copies. AMD's have landed at once; kernels wait all the same, for one source's sake.

inline void CopyAsync16(SharedPtr<std::byte> to, GlobalPtr<const std::byte> from, int valid = 16,
                        emulator::Place place = Here()) {
  emulator::StartCopy(to.bytes(), from.memory(), from.bytes(), valid, place);
}

inline void CommitCopies(emulator::Place place = Here()) { emulator::CommitCopies(place); }

template <int kGroups>
void WaitCopies(emulator::Place place = Here()) {
  emulator::WaitCopies(kGroups, place);
}

// Matrix instructions

#if LEAN_ATTENTION_AMD

template <typename Element>
void Mfma16x16x16(float* d, const Element* a, const Element* b, emulator::Place place = Here()) {
  emulator::MfmaFragments fragments;
  std::memcpy(fragments.a, a, sizeof(fragments.a));
  std::memcpy(fragments.b, b, sizeof(fragments.b));
  std::memcpy(fragments.d, d, sizeof(fragments.d));
  emulator::Mfma(fragments, Element::kIsBFloat16, place);
  std::memcpy(d, fragments.d, sizeof(fragments.d));
}

#else

template <typename Element>
void MmaM16N8K16(float* d, const uint32_t* a, const uint32_t* b, emulator::Place place = Here()) {
  emulator::MmaFragments fragments;
  std::memcpy(fragments.a, a, sizeof(fragments.a));
  std::memcpy(fragments.b, b, sizeof(fragments.b));
  std::memcpy(fragments.d, d, sizeof(fragments.d));
  emulator::Mma(fragments, Element::kIsBFloat16, place);
  std::memcpy(d, fragments.d, sizeof(fragments.d));
}

inline void LoadMatrixX4(uint32_t* r, SharedPtr<const std::byte> row,
                         emulator::Place place = Here()) {
  emulator::LoadMatrices(r, 4, row.bytes(), false, place);
}
inline void LoadMatrixX4Transposed(uint32_t* r, SharedPtr<const std::byte> row,
                                   emulator::Place place = Here()) {
  emulator::LoadMatrices(r, 4, row.bytes(), true, place);
}
inline void LoadMatrixX2(uint32_t* r, SharedPtr<const std::byte> row,
                         emulator::Place place = Here()) {
  emulator::LoadMatrices(r, 2, row.bytes(), false, place);
}
inline void LoadMatrixX2Transposed(uint32_t* r, SharedPtr<const std::byte> row,
                                   emulator::Place place = Here()) {
  emulator::LoadMatrices(r, 2, row.bytes(), true, place);
}

#endif

// Numbers

inline uint32_t PackHalves(float low, float high) {
  return HalfFromFloat(low) | static_cast<uint32_t>(HalfFromFloat(high)) << 16;
}
inline uint32_t PackBFloat16s(float low, float high) {
  return BFloat16FromFloat(low) | static_cast<uint32_t>(BFloat16FromFloat(high)) << 16;
}

inline float Exp2(float x) { return std::exp2(x); }

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_EMULATOR_DEVICE_H_
