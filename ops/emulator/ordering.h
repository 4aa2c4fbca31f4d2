// What happened before what: the order that barriers, fences and atomics give to the accesses of a
// launch. Anything else that two threads do to one address is a race.
//
// Every block counts its own synchronisations; that count is its time. Barriers order all threads
// of a block, SyncWarp those of a warp. Between blocks only this chain does (PTX ISA, "Memory
// Consistency Model"): a fence, an atomic of the same thread, an atomic that sees it, a fence of
// that thread. Fences are cumulative: they pass on whatever their thread has come to know.

#ifndef LEAN_ATTENTION_OPS_EMULATOR_ORDERING_H_
#define LEAN_ATTENTION_OPS_EMULATOR_ORDERING_H_

#include <cstdint>
#include <memory>
#include <vector>

namespace lean_attention::emulator {

inline constexpr int kMaxThreads = 1 << 10;  // of a block
inline constexpr int kMaxBlocks = 1 << 13;   // of a grid
inline constexpr int kMaxPlaces = 1 << 12;   // lines of a kernel that touch memory
inline constexpr uint32_t kMaxTime = (1u << 24) - 1;
inline constexpr uint32_t kInFlight = kMaxTime;  // an asynchronous copy: not yet at any time

// Who touched which bytes of a word of memory last, and when.
struct Record {
  uint64_t time : 24;
  uint64_t block : 13;
  uint64_t thread : 10;
  uint64_t place : 12;
  uint64_t bytes : 4;  // one bit for each byte of the word; 0: nobody
  uint64_t atomic : 1;
};
static_assert(sizeof(Record) == 8);

// The accesses of a block that one of its threads knows to be over.
struct Extent {
  int32_t block;
  int32_t thread;
  int32_t warp_threads;
  uint32_t now;      // its own, up to this time
  uint32_t warp;     // its warp's, before this time: the last SyncWarp
  uint32_t barrier;  // all threads', before this time: the last SyncThreads

  bool Covers(const Record& record) const {
    if (static_cast<int32_t>(record.block) != block) return false;
    if (record.time < barrier) return true;
    const int32_t other = static_cast<int32_t>(record.thread);
    return (record.time <= now && other == thread) ||
           (record.time < warp && other / warp_threads == thread / warp_threads);
  }
};

// What has reached a thread from other threads. Shared, so never changed.
using Knowledge = std::vector<Extent>;                  // ordered by block, then thread
using KnowledgePtr = std::shared_ptr<const Knowledge>;  // null: nothing

bool Covers(const KnowledgePtr& knowledge, const Record& record);
KnowledgePtr Join(const KnowledgePtr& a, const KnowledgePtr& b);
KnowledgePtr Join(const KnowledgePtr& a, const Extent& extent);

}  // namespace lean_attention::emulator

#endif  // LEAN_ATTENTION_OPS_EMULATOR_ORDERING_H_
