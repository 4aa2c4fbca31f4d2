// What a running thread does to memory, checked. Every fault ends the launch.

#ifndef LEAN_ATTENTION_OPS_EMULATOR_ACCESS_H_
#define LEAN_ATTENTION_OPS_EMULATOR_ACCESS_H_

#include <cstddef>
#include <cstdint>

#include "ops/emulator/buffer.h"
#include "ops/emulator/report.h"

namespace lean_attention::emulator {

struct Shape {
  int size;  // bytes
  int alignment;
};

// Offsets are in bytes. What is returned stays valid until the thread's next access.
const std::byte* ReadGlobal(Buffer* buffer, int64_t offset, Shape shape, Place place);
void WriteGlobal(Buffer* buffer, int64_t offset, Shape shape, const void* value, Place place);
const std::byte* ReadShared(int64_t offset, Shape shape, Place place);
void WriteShared(int64_t offset, Shape shape, const void* value, Place place);
// Bounds and alignment alone.
void CheckShared(int64_t offset, Shape shape, Place place);

// Replaces a 32-bit word by update(word, operand); returns what it was.
uint32_t Atomic(Buffer* buffer, int64_t offset, uint32_t (*update)(uint32_t, uint32_t),
                uint32_t operand, Place place);

// Makes known what this thread's atomics have seen, and lets its next ones pass on what it knows.
void Fence(Place place);

// Sixteen bytes to shared memory: the first `valid` from global memory, then zeros. The destination
// holds NaN and may not be touched until the wait for the copy's group.
void StartCopy(int64_t to, Buffer* from, int64_t from_offset, int valid, Place place);
void CommitCopies(Place place);
// Until at most `groups` committed groups are in flight.
void WaitCopies(int groups, Place place);

}  // namespace lean_attention::emulator

#endif  // LEAN_ATTENTION_OPS_EMULATOR_ACCESS_H_
