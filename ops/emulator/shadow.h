// A shadow of memory: for each word of four bytes, who wrote it last and who has read it since.
//
// Of the reads, those are kept that decide whether a later write races: the last one, the last one
// of another thread of that warp, and the last one of another warp. Where threads touch different
// bytes of one word between two barriers, the last of them is remembered.

#ifndef LEAN_ATTENTION_OPS_EMULATOR_SHADOW_H_
#define LEAN_ATTENTION_OPS_EMULATOR_SHADOW_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/emulator/ordering.h"

namespace lean_attention::emulator {

struct alignas(32) Cell {
  Record write;
  Record read;
  Record warp_read;   // by another thread of the warp of `read`
  Record other_read;  // by another warp
};

// One thread's view of the order.
struct View {
  Extent present;
  const KnowledgePtr* knowledge;

  bool Knows(const Record& record) const {
    return present.Covers(record) || Covers(*knowledge, record);
  }
};

// Each checks an access to a cell against what the thread knows, then records it. They return the
// earlier access that it races with, or null; valid until the next access to the cell.
const Record* Read(Cell& cell, const Record& access, const View& view);
const Record* Write(Cell& cell, const Record& access, const View& view);

// Cells of a buffer, for those pages that a launch touches.
class Shadow {
 public:
  explicit Shadow(int64_t bytes) : pages_(bytes / (kPageWords * 4) + 1) {}

  // Cells are empty at the first touch in each launch.
  Cell& At(int64_t word, uint64_t launch) {
    std::unique_ptr<Page>& page = pages_[word / kPageWords];
    if (!page || page->launch != launch) Clear(page, launch);
    return page->cells[word % kPageWords];
  }

 private:
  static constexpr int64_t kPageWords = 256;
  struct Page {
    Cell cells[kPageWords];
    uint64_t launch;
  };

  static void Clear(std::unique_ptr<Page>& page, uint64_t launch);

  std::vector<std::unique_ptr<Page>> pages_;
};

}  // namespace lean_attention::emulator

#endif  // LEAN_ATTENTION_OPS_EMULATOR_SHADOW_H_
