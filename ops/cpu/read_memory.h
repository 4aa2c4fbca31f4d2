// Reads memory as fast as plain loads can: the roofline of a decode step, which reads its cache
// once.

#ifndef LEAN_ATTENTION_OPS_CPU_READ_MEMORY_H_
#define LEAN_ATTENTION_OPS_CPU_READ_MEMORY_H_

#include <cstdint>
#include <vector>

namespace lean_attention::cpu {

struct Memory {
  const void* data;
  int64_t bytes;
};

struct ReadResult {
  double seconds;     // without the starting and ending of threads
  uint64_t combined;  // exclusive or of all 8-byte words, zeros after the end of each buffer
};

// Loads every byte of all buffers once, on the calling thread and threads - 1 others.
//
// streams: 1, 2 or 4 places from which each thread reads by turns. One is the plain loop. A core
// keeps more misses in flight with four: its prefetchers follow each of them on its own, and stop
// at the ends of 4 KiB pages.
//
// Throws std::system_error where a thread cannot be started, std::bad_alloc without memory.
ReadResult ReadMemory(const std::vector<Memory>& buffers, int32_t threads, int32_t streams);

}  // namespace lean_attention::cpu

#endif  // LEAN_ATTENTION_OPS_CPU_READ_MEMORY_H_
