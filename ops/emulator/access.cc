#include "ops/emulator/access.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "ops/emulator/grid.h"

namespace lean_attention::emulator {
namespace {

constexpr Shape kCopyShape = {16, 16};

// What an access is, for its record and for messages.
struct Kind {
  const char* name;
  bool writes;
  bool atomic;
};
constexpr Kind kRead = {"read", false, false};
constexpr Kind kWrite = {"write", true, false};
constexpr Kind kAtomic = {"atomic", true, true};
constexpr Kind kCopy = {"asynchronous copy", true, false};

std::string Describe(Kind kind, int size, const char* memory, int64_t offset) {
  return std::string(kind.name) + " of " + std::to_string(size) + " bytes at byte " +
         std::to_string(offset) + " of " + memory;
}

Thread& Begin(const Place& place) {
  Thread& thread = *current;
  thread.place = place;
  thread.block->grid->MayYield(thread);
  return thread;
}

void CheckPlacement(Thread& thread, Kind kind, const char* memory, int64_t memory_size,
                    int64_t offset, Shape shape) {
  Grid& grid = *thread.block->grid;
  if (offset < 0 || offset > memory_size - shape.size) {
    grid.Fail(
        thread, FaultKind::kOutOfBounds,
        Describe(kind, shape.size, memory, offset) + ", which has " + std::to_string(memory_size));
  }
  if (offset % shape.alignment != 0) {
    grid.Fail(thread, FaultKind::kMisaligned,
              Describe(kind, shape.size, memory, offset) + ", which is no multiple of " +
                  std::to_string(shape.alignment));
  }
}

Record RecordOf(Thread& thread, Kind kind) {
  Grid& grid = *thread.block->grid;
  const int place = grid.places().NumberOf(thread.place);
  if (place == kMaxPlaces) {
    grid.Fail(thread, FaultKind::kTooLong, "the kernel touches memory at more than 4096 places");
  }
  Record record = {};
  record.time = thread.block->time;
  record.block = static_cast<uint64_t>(thread.block->index);
  record.thread = static_cast<uint64_t>(thread.index);
  record.place = static_cast<uint64_t>(place);
  record.atomic = kind.atomic;
  return record;
}

[[noreturn]] void FailRace(Thread& thread, Kind kind, const char* memory, int64_t offset, int size,
                           const Record& before, bool wrote) {
  Grid& grid = *thread.block->grid;
  const Actor other = {grid.places()[static_cast<int>(before.place)],
                       static_cast<int>(before.block), static_cast<int>(before.thread)};
  std::string what = Describe(kind, size, memory, offset);
  if (before.time == kInFlight) {
    grid.Fail(thread, FaultKind::kNotWaited,
              what + ", where an asynchronous copy has not been waited for", other);
  }
  const bool same_block = other.block == thread.block->index;
  what += wrote ? " races with a write" : " races with a read";
  what += same_block ? ": no barrier between them" : ": no fence, atomic and fence between them";
  const bool shared = memory[0] == 's';
  grid.Fail(thread, shared ? FaultKind::kSharedRace : FaultKind::kGlobalRace, std::move(what),
            other);
}

// Holds an access against the cells of its words and records it there.
template <typename CellAt>
void Watch(Thread& thread, Kind kind, const char* memory, int64_t offset, int size, Record record,
           CellAt cell_at) {
  const View view = thread.view();
  const int64_t end = offset + size;
  for (int64_t word = offset / 4; word * 4 < end; ++word) {
    const int64_t first = std::max<int64_t>(offset - word * 4, 0);
    const int64_t last = std::min<int64_t>(end - word * 4, 4);
    record.bytes = ((1u << last) - 1) & ~((1u << first) - 1);
    Cell& cell = cell_at(word);
    const Record* before = kind.writes ? Write(cell, record, view) : Read(cell, record, view);
    if (before != nullptr) {
      FailRace(thread, kind, memory, offset, size, *before, before == &cell.write);
    }
  }
}

void WatchGlobal(Thread& thread, Kind kind, Buffer& buffer, int64_t offset, int size) {
  const uint64_t launch = thread.block->grid->launch();
  Watch(thread, kind, "a global buffer", offset, size, RecordOf(thread, kind),
        [&](int64_t word) -> Cell& { return buffer.shadow.At(word, launch); });
}

void WatchShared(Thread& thread, Kind kind, int64_t offset, int size, const Record& record) {
  Cell* const cells = thread.block->shared_cells.data();
  Watch(thread, kind, "shared memory", offset, size, record,
        [&](int64_t word) -> Cell& { return cells[word]; });
}

void PlaceGlobal(Thread& thread, Kind kind, Buffer* buffer, int64_t offset, Shape shape) {
  Grid& grid = *thread.block->grid;
  if (buffer == nullptr) {
    grid.Fail(thread, FaultKind::kOutOfBounds, std::string(kind.name) + " through a null pointer");
  }
  CheckPlacement(thread, kind, "a global buffer", buffer->size, offset, shape);
  if (kind.writes && buffer->frozen) {
    grid.Fail(thread, FaultKind::kReadOnly,
              Describe(kind, shape.size, "a frozen global buffer", offset));
  }
}

void PlaceShared(Thread& thread, Kind kind, int64_t offset, Shape shape) {
  CheckPlacement(thread, kind, "shared memory", thread.block->grid->config().shared_bytes, offset,
                 shape);
}

void Land(Thread& thread, const AsyncCopy& copy) {
  std::memcpy(thread.block->shared_data + copy.to, copy.bytes, sizeof(copy.bytes));
  for (int64_t word = copy.to / 4; word < copy.to / 4 + 4; ++word) {
    thread.block->shared_cells[static_cast<size_t>(word)].write.time = thread.block->time;
  }
}

}  // namespace

const std::byte* ReadGlobal(Buffer* buffer, int64_t offset, Shape shape, Place place) {
  Thread& thread = Begin(place);
  PlaceGlobal(thread, kRead, buffer, offset, shape);
  if (buffer->written) WatchGlobal(thread, kRead, *buffer, offset, shape.size);
  return buffer->data + offset;
}

void WriteGlobal(Buffer* buffer, int64_t offset, Shape shape, const void* value, Place place) {
  Thread& thread = Begin(place);
  PlaceGlobal(thread, kWrite, buffer, offset, shape);
  WatchGlobal(thread, kWrite, *buffer, offset, shape.size);
  std::memcpy(buffer->data + offset, value, static_cast<size_t>(shape.size));
}

const std::byte* ReadShared(int64_t offset, Shape shape, Place place) {
  Thread& thread = *current;
  thread.place = place;
  PlaceShared(thread, kRead, offset, shape);
  WatchShared(thread, kRead, offset, shape.size, RecordOf(thread, kRead));
  return thread.block->shared_data + offset;
}

void WriteShared(int64_t offset, Shape shape, const void* value, Place place) {
  Thread& thread = *current;
  thread.place = place;
  PlaceShared(thread, kWrite, offset, shape);
  WatchShared(thread, kWrite, offset, shape.size, RecordOf(thread, kWrite));
  std::memcpy(thread.block->shared_data + offset, value, static_cast<size_t>(shape.size));
}

void CheckShared(int64_t offset, Shape shape, Place place) {
  Thread& thread = *current;
  thread.place = place;
  PlaceShared(thread, kRead, offset, shape);
}

uint32_t Atomic(Buffer* buffer, int64_t offset, uint32_t (*update)(uint32_t, uint32_t),
                uint32_t operand, Place place) {
  Thread& thread = *current;
  Grid& grid = *thread.block->grid;
  thread.place = place;
  grid.Yield(thread);
  PlaceGlobal(thread, kAtomic, buffer, offset, {4, 4});
  WatchGlobal(thread, kAtomic, *buffer, offset, 4);
  grid.Tick(thread);

  if (buffer->released_in != grid.launch()) buffer->released.clear();
  buffer->released_in = grid.launch();
  KnowledgePtr& released = buffer->released[offset];
  thread.acquired = Join(thread.acquired, released);
  released = Join(released, thread.released);

  uint32_t word;
  std::memcpy(&word, buffer->data + offset, sizeof(word));
  const uint32_t updated = update(word, operand);
  std::memcpy(buffer->data + offset, &updated, sizeof(updated));
  return word;
}

void Fence(Place place) {
  Thread& thread = *current;
  Grid& grid = *thread.block->grid;
  thread.place = place;
  if (thread.acquired) {
    thread.known = Join(thread.known, thread.acquired);
    thread.acquired = nullptr;
    thread.warp->learnt = thread.block->learnt = true;
  }
  thread.released = Join(thread.known, thread.Present());
  grid.Tick(thread);
  grid.Yield(thread);
}

void StartCopy(int64_t to, Buffer* from, int64_t from_offset, int valid, Place place) {
  Thread& thread = Begin(place);
  Grid& grid = *thread.block->grid;
  if (valid < 0 || valid > kCopyShape.size) {
    grid.Fail(thread, FaultKind::kBadArgument,
              "an asynchronous copy of " + std::to_string(valid) + " bytes: not 0 to 16");
  }
  PlaceShared(thread, kCopy, to, kCopyShape);
  AsyncCopy copy = {to, {}, thread.committed, place};
  if (valid > 0) {
    PlaceGlobal(thread, kRead, from, from_offset, {valid, kCopyShape.alignment});
    if (from->written) WatchGlobal(thread, kRead, *from, from_offset, valid);
    std::memcpy(copy.bytes, from->data + from_offset, static_cast<size_t>(valid));
  }
  Record record = RecordOf(thread, kCopy);
  record.time = kInFlight;
  WatchShared(thread, kCopy, to, kCopyShape.size, record);
  std::memset(thread.block->shared_data + to, 0xFF, sizeof(copy.bytes));
  thread.copies.push_back(copy);
}

void CommitCopies(Place place) {
  current->place = place;
  ++current->committed;
}

void WaitCopies(int groups, Place place) {
  Thread& thread = *current;
  thread.place = place;
  thread.block->grid->Yield(thread);
  const auto landed = [&](const AsyncCopy& copy) { return copy.group < thread.committed - groups; };
  const auto in_flight = std::find_if_not(thread.copies.begin(), thread.copies.end(), landed);
  for (auto copy = thread.copies.begin(); copy != in_flight; ++copy) Land(thread, *copy);
  thread.copies.erase(thread.copies.begin(), in_flight);
}

}  // namespace lean_attention::emulator
