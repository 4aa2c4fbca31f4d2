#include "ops/emulator/shadow.h"

namespace lean_attention::emulator {
namespace {

bool SameThread(const Record& a, const Record& b) {
  return a.thread == b.thread && a.block == b.block;
}

bool Races(const Record& before, const Record& access, const View& view) {
  return (before.bytes & access.bytes) != 0 && !(before.atomic && access.atomic) &&
         !view.Knows(before);
}

}  // namespace

const Record* Read(Cell& cell, const Record& access, const View& view) {
  if (Races(cell.write, access, view)) return &cell.write;
  const Record last = cell.read;
  cell.read = access;
  if (last.bytes == 0) return nullptr;
  if (SameThread(last, access)) {
    if (last.time == access.time) cell.read.bytes |= last.bytes;
    return nullptr;
  }
  const int warp_threads = view.present.warp_threads;
  const int warp = static_cast<int>(last.thread) / warp_threads;
  if (last.block == access.block && warp == view.present.thread / warp_threads) {
    cell.warp_read = last;
  } else {
    // An earlier read of this warp cannot race where `last`, which came after it, does not.
    cell.warp_read = {};
    cell.other_read = last;
  }
  return nullptr;
}

const Record* Write(Cell& cell, const Record& access, const View& view) {
  for (Record* before : {&cell.write, &cell.read, &cell.warp_read, &cell.other_read}) {
    if (Races(*before, access, view)) return before;
  }
  // Whoever comes after this write comes after those reads.
  for (Record* read : {&cell.read, &cell.warp_read, &cell.other_read}) read->bytes &= ~access.bytes;
  const Record last = cell.write;
  cell.write = access;
  if (SameThread(last, access) && last.time == access.time) cell.write.bytes |= last.bytes;
  return nullptr;
}

void Shadow::Clear(std::unique_ptr<Page>& page, uint64_t launch) {
  if (!page) page = std::make_unique<Page>();
  *page = Page{};
  page->launch = launch;
}

}  // namespace lean_attention::emulator
