#include "ops/emulator/grid.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include "ops/emulator/fiber.h"

namespace lean_attention::emulator {
namespace {

constexpr uint64_t kAccessesPerTurn = 64;  // on average, before a warp gives way

uint64_t NextLaunch() {
  static std::atomic<uint64_t> launches{0};
  return ++launches;
}

uint64_t Bit(const Thread& thread) { return uint64_t{1} << thread.lane; }

int LowestLane(uint64_t lanes) { return __builtin_ctzll(lanes); }

uint64_t AllLanes(int warp_threads) { return ~uint64_t{0} >> (64 - warp_threads); }

Actor ActorOf(const Thread& thread) { return {thread.place, thread.block->index, thread.index}; }

// Threads leave a barrier knowing what any of them knew.
void Share(Thread* threads, int count) {
  KnowledgePtr known;
  for (int i = 0; i < count; ++i) known = Join(known, threads[i].known);
  for (int i = 0; i < count; ++i) threads[i].known = known;
}

void Check(const GridConfig& config) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
  };
  require(config.warp_threads == 32 || config.warp_threads == 64, "warps have 32 or 64 threads");
  require(config.blocks > 0 && config.blocks < kMaxBlocks, "a grid has 1 to 8191 blocks");
  require(config.threads > 0 && config.threads <= kMaxThreads &&
              config.threads % config.warp_threads == 0,
          "a block has whole warps, at most 1024 threads");
  require(config.shared_bytes >= 0, "shared memory has a size");
  require(config.resident_blocks > 0, "at least one block is resident");
}

}  // namespace

Thread::Thread() : fiber(std::make_unique<Fiber>()) {}
Thread::~Thread() = default;

Extent Thread::Present() const {
  const int warp_threads = block->grid->config().warp_threads;
  return {block->index, index, warp_threads, block->time, warp->synced, block->barrier};
}

Grid::Grid(const GridConfig& config, std::function<void()> kernel)
    : config_(config),
      kernel_(std::move(kernel)),
      launch_(NextLaunch()),
      random_(config.seed),
      until_yield_(kAccessesPerTurn) {
  Check(config_);
  // Blocks start in no order that a kernel may count on.
  for (int i = 0; i < config_.blocks; ++i) to_come_.push_back(i);
  for (size_t i = to_come_.size(); i > 1; --i)
    std::swap(to_come_[i - 1], to_come_[random_.Below(i)]);
}

Grid::~Grid() = default;

Report Grid::Run() {
  for (int i = 0; i < std::min(config_.resident_blocks, config_.blocks); ++i) {
    resident_.push_back(std::make_unique<Block>());
    Admit(*resident_.back());
  }
  Thread* const outer = current;
  while (!ready_.empty() && report_.ok()) {
    Warp& warp = *ready_[random_.Below(ready_.size())];
    Turn(warp);
    Block& block = *warp.threads->block;
    if (block.ended == config_.threads && !to_come_.empty() && report_.ok()) Admit(block);
  }
  if (report_.ok()) CheckThatAllEnded();
  if (!report_.ok()) Abandon();
  current = outer;
  return std::move(report_);
}

void Grid::Admit(Block& block) {
  block.grid = this;
  block.index = to_come_.back();
  to_come_.pop_back();
  block.threads = std::vector<Thread>(static_cast<size_t>(config_.threads));
  block.warps.assign(static_cast<size_t>(config_.threads / config_.warp_threads), Warp{});
  block.time = block.barrier = 0;
  block.at_barrier = block.ended = 0;
  block.learnt = false;

  const size_t bytes = static_cast<size_t>(config_.shared_bytes);
  block.shared.assign(bytes + 15, std::byte{0xFF});
  const size_t misaligned = reinterpret_cast<uintptr_t>(block.shared.data()) % 16;
  block.shared_data = block.shared.data() + (misaligned == 0 ? 0 : 16 - misaligned);
  block.shared_cells.assign((bytes + 3) / 4, Cell{});

  for (int i = 0; i < config_.threads; ++i) {
    Thread& thread = block.threads[static_cast<size_t>(i)];
    thread.block = &block;
    thread.warp = &block.warps[static_cast<size_t>(i / config_.warp_threads)];
    thread.index = i;
    thread.lane = i % config_.warp_threads;
    if (thread.lane == 0) thread.warp->threads = &thread;
  }
  for (Warp& warp : block.warps) MakeReady(warp, AllLanes(config_.warp_threads));
}

void Grid::Turn(Warp& warp) {
  yielded_ = false;
  const int first = static_cast<int>(random_.Below(static_cast<uint64_t>(config_.warp_threads)));
  while (warp.ready != 0 && !yielded_ && report_.ok()) {
    const uint64_t after_first = warp.ready >> first << first;
    Thread& thread = warp.threads[LowestLane(after_first != 0 ? after_first : warp.ready)];
    current = &thread;
    if (thread.fiber->active()) {
      thread.fiber->Resume();
    } else {
      thread.fiber->Start(&RunThread, &thread);
    }
  }
}

void Grid::RunThread(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  Grid& grid = *thread.block->grid;
  // No fault is raised inside a handler, nor does a thread ever wait in one.
  std::optional<std::string> thrown;
  try {
    try {
      grid.kernel_();
    } catch (const Abandoned&) {
      throw;
    } catch (const std::exception& error) {
      thrown = error.what();
    } catch (...) {
      thrown = "something that is no std::exception";
    }
    if (thrown) grid.Fail(thread, FaultKind::kException, "the kernel threw: " + *thrown);
    grid.End(thread);
  } catch (const Abandoned&) {
  }
}

void Grid::End(Thread& thread) {
  Block& block = *thread.block;
  Warp& warp = *thread.warp;
  if (!thread.copies.empty()) {
    thread.place = thread.copies.front().place;
    Fail(thread, FaultKind::kNotWaited, "an asynchronous copy is never waited for");
  }
  if (warp.waiting != 0) {
    Fail(thread, FaultKind::kEarlyExit, "a thread ends, and its warp waits for it; it was last",
         ActorOf(warp.threads[LowestLane(warp.waiting)]));
  }
  if (block.at_barrier != 0) {
    const auto waits = [](const Thread& t) { return (t.warp->at_barrier & Bit(t)) != 0; };
    Fail(thread, FaultKind::kEarlyExit, "a thread ends, and its block waits for it; it was last",
         ActorOf(*std::find_if(block.threads.begin(), block.threads.end(), waits)));
  }
  warp.ended |= Bit(thread);
  ++block.ended;
  TakeReady(warp, Bit(thread));
}

// Whoever waits in vain is found when the others end or go elsewhere. Should one slip through, a
// launch must not pass for sound.
void Grid::CheckThatAllEnded() {
  for (const std::unique_ptr<Block>& block : resident_) {
    for (const Thread& thread : block->threads) {
      if (!thread.fiber->active()) continue;
      report_.faults.push_back(
          {FaultKind::kDivergence, "a thread waits for ever", ActorOf(thread), std::nullopt});
      return;
    }
  }
}

void Grid::Abandon() {
  abandoning_ = true;
  for (const std::unique_ptr<Block>& block : resident_) {
    for (Thread& thread : block->threads) {
      current = &thread;
      if (thread.fiber->active()) thread.fiber->Resume();
    }
  }
}

void Grid::Fail(Thread& thread, FaultKind kind, std::string what, std::optional<Actor> other) {
  report_.faults.push_back({kind, std::move(what), ActorOf(thread), std::move(other)});
  throw Abandoned();
}

void Grid::Yield(Thread& thread) {
  yielded_ = true;
  until_yield_ = static_cast<int64_t>(1 + random_.Below(2 * kAccessesPerTurn));
  thread.fiber->Suspend();
  if (abandoning_) throw Abandoned();
}

void Grid::Wait(Thread& thread) {
  TakeReady(*thread.warp, Bit(thread));
  thread.fiber->Suspend();
  if (abandoning_) throw Abandoned();
}

void Grid::MakeReady(Warp& warp, uint64_t lanes) {
  if (warp.ready == 0 && lanes != 0) {
    warp.ready_at = static_cast<int64_t>(ready_.size());
    ready_.push_back(&warp);
  }
  warp.ready |= lanes;
}

void Grid::TakeReady(Warp& warp, uint64_t lanes) {
  warp.ready &= ~lanes;
  if (warp.ready != 0) return;
  ready_.back()->ready_at = warp.ready_at;
  ready_[static_cast<size_t>(warp.ready_at)] = ready_.back();
  ready_.pop_back();
}

uint32_t Grid::Tick(Thread& thread) {
  Block& block = *thread.block;
  if (++block.time == kMaxTime) {
    Fail(thread, FaultKind::kTooLong, "the block has synchronised 16 million times: does it spin?");
  }
  return block.time;
}

const Slot* Grid::Collect(Thread& thread, void (*finish)(Warp&, Slot*)) {
  Warp& warp = *thread.warp;
  if (warp.ended != 0) {
    Fail(thread, FaultKind::kEarlyExit, "a collective of a warp of which a thread has ended",
         ActorOf(warp.threads[LowestLane(warp.ended)]));
  }
  const uint64_t elsewhere =
      warp.waiting != 0 && warp.collective != thread.place ? warp.waiting : warp.at_barrier;
  if (elsewhere != 0) {
    Fail(thread, FaultKind::kDivergence, "lanes of a warp wait at different places",
         ActorOf(warp.threads[LowestLane(elsewhere)]));
  }
  Slot* const slots = warp.slots[warp.round];
  warp.collective = thread.place;
  warp.waiting |= Bit(thread);
  if (warp.waiting != AllLanes(config_.warp_threads)) {
    Wait(thread);
    return slots;
  }
  if (finish != nullptr) finish(warp, slots);
  MakeReady(warp, warp.waiting & ~Bit(thread));
  warp.waiting = 0;
  warp.round ^= 1;
  MayYield(thread);
  return slots;
}

void Grid::SyncWarp(Thread& thread) {
  Collect(thread, [](Warp& warp, Slot*) {
    Thread& first = *warp.threads;
    Grid& grid = *first.block->grid;
    warp.synced = grid.Tick(first);
    if (warp.learnt) Share(warp.threads, grid.config_.warp_threads);
    warp.learnt = false;
  });
}

void Grid::SyncThreads(Thread& thread) {
  Block& block = *thread.block;
  Warp& warp = *thread.warp;
  if (block.ended != 0) {
    const auto ended = [](const Thread& t) { return (t.warp->ended & Bit(t)) != 0; };
    Fail(thread, FaultKind::kEarlyExit, "a barrier of a block of which a thread has ended",
         ActorOf(*std::find_if(block.threads.begin(), block.threads.end(), ended)));
  }
  if (warp.waiting != 0) {
    Fail(thread, FaultKind::kDivergence, "lanes of a warp wait at different places",
         ActorOf(warp.threads[LowestLane(warp.waiting)]));
  }
  if (block.at_barrier != 0 && block.barrier_place != thread.place) {
    const auto waits = [](const Thread& t) { return (t.warp->at_barrier & Bit(t)) != 0; };
    Fail(thread, FaultKind::kDivergence, "threads of a block wait at different barriers",
         ActorOf(*std::find_if(block.threads.begin(), block.threads.end(), waits)));
  }
  block.barrier_place = thread.place;
  warp.at_barrier |= Bit(thread);
  if (++block.at_barrier != config_.threads) {
    Wait(thread);
    return;
  }
  block.barrier = Tick(thread);
  if (block.learnt) Share(block.threads.data(), config_.threads);
  block.learnt = false;
  block.at_barrier = 0;
  for (Warp& other : block.warps) {
    other.synced = block.barrier;
    other.learnt = false;
    MakeReady(other, other.at_barrier & ~(&other == &warp ? Bit(thread) : 0));
    other.at_barrier = 0;
  }
  Yield(thread);
}

}  // namespace lean_attention::emulator
