// A grid while it runs: blocks, warps and threads, and who runs next.
//
// Each thread is a fiber. A turn is one warp's: its lanes run, one after the other, until all of
// them wait or one gives way; then the seed draws the next warp among those of all resident blocks.

#ifndef LEAN_ATTENTION_OPS_EMULATOR_GRID_H_
#define LEAN_ATTENTION_OPS_EMULATOR_GRID_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/emulator/ordering.h"
#include "ops/emulator/places.h"
#include "ops/emulator/random.h"
#include "ops/emulator/report.h"
#include "ops/emulator/shadow.h"

namespace lean_attention::emulator {

inline constexpr int kMaxWarpThreads = 64;

class Fiber;
class Grid;
struct Block;
struct Warp;

// Sixteen bytes on their way from global to shared memory.
struct AsyncCopy {
  int64_t to;  // byte of shared memory
  std::byte bytes[16];
  int64_t group;  // of its thread
  Place place;
};

struct Thread {
  Thread();
  ~Thread();

  View view() const { return {Present(), &known}; }
  Extent Present() const;

  Block* block = nullptr;
  Warp* warp = nullptr;
  int index = 0;  // in the block
  int lane = 0;   // in the warp
  Place place;    // of its latest access or synchronisation
  std::unique_ptr<Fiber> fiber;

  KnowledgePtr known;             // what other threads did, for sure
  KnowledgePtr acquired;          // what its atomics have seen; known after a fence
  KnowledgePtr released;          // what its latest fence covers; its atomics pass it on
  std::vector<AsyncCopy> copies;  // in flight, oldest first
  int64_t committed = 0;          // groups of copies
};

// What a lane brings to a collective.
struct alignas(16) Slot {
  std::byte bytes[48];
};

struct Warp {
  int64_t ready_at = -1;  // in the grid's list of warps that can run
  Thread* threads = nullptr;
  // Lanes that can run, wait for their warp, wait for their block, have ended.
  uint64_t ready = 0;
  uint64_t waiting = 0;
  uint64_t at_barrier = 0;
  uint64_t ended = 0;
  Place collective;     // where lanes wait
  uint32_t synced = 0;  // the last SyncWarp
  bool learnt = false;  // a lane knows more than the others
  int round = 0;        // collectives alternate between two sets of slots, since a lane may be at
  Slot slots[2][kMaxWarpThreads];  // the next one before another has read the results of this one
};

// Where the thread leaves what it brings to its next collective.
inline std::byte* NextSlot(const Thread& thread) {
  return thread.warp->slots[thread.warp->round][thread.lane].bytes;
}

struct Block {
  Grid* grid = nullptr;
  int index = 0;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<std::byte> shared;  // 15 bytes longer than what the kernel has, to align it
  std::byte* shared_data = nullptr;
  std::vector<Cell> shared_cells;
  uint32_t time = 0;
  uint32_t barrier = 0;  // the last SyncThreads
  Place barrier_place;   // where threads wait
  int at_barrier = 0;
  int ended = 0;
  bool learnt = false;  // a thread knows more than the others
};

struct GridConfig {
  int blocks = 1;
  int threads = 32;      // of a block: whole warps
  int shared_bytes = 0;  // of a block
  uint64_t seed = 0;
  int resident_blocks = 4;  // that run at a time
  int warp_threads = 32;    // 32 or 64
};

class Grid {
 public:
  Grid(const GridConfig& config, std::function<void()> kernel);
  ~Grid();

  // Runs every thread, or as far as the first fault.
  Report Run();

  // What follows is called by the running thread.

  // Lets others run. Memory accesses do so now and then.
  void Yield(Thread& thread);
  void MayYield(Thread& thread) {
    if (--until_yield_ <= 0) Yield(thread);
  }
  // Waits for all lanes at a collective; returns their slots.
  const Slot* Collect(Thread& thread, void (*finish)(Warp&, Slot*));
  void SyncWarp(Thread& thread);
  void SyncThreads(Thread& thread);
  // Starts a new time of the block.
  uint32_t Tick(Thread& thread);

  // Ends the launch.
  [[noreturn]] void Fail(Thread& thread, FaultKind kind, std::string what,
                         std::optional<Actor> other = std::nullopt);

  const GridConfig& config() const { return config_; }
  uint64_t launch() const { return launch_; }
  Places& places() { return places_; }

 private:
  struct Abandoned {};  // unwinds the stack of a thread

  static void RunThread(void* thread);
  void End(Thread& thread);
  void Admit(Block& block);
  void Turn(Warp& warp);
  void Wait(Thread& thread);
  void MakeReady(Warp& warp, uint64_t lanes);
  void TakeReady(Warp& warp, uint64_t lanes);
  void CheckThatAllEnded();
  void Abandon();

  const GridConfig config_;
  const std::function<void()> kernel_;
  const uint64_t launch_;
  Random random_;
  Places places_;
  std::vector<int> to_come_;  // blocks that have not started, in reverse
  std::vector<std::unique_ptr<Block>> resident_;
  std::vector<Warp*> ready_;
  int64_t until_yield_;
  bool yielded_ = false;
  bool abandoning_ = false;
  Report report_;
};

// The thread that runs on this thread of the operating system.
inline thread_local Thread* current = nullptr;

}  // namespace lean_attention::emulator

#endif  // LEAN_ATTENTION_OPS_EMULATOR_GRID_H_
