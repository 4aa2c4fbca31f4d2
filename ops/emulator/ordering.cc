#include "ops/emulator/ordering.h"

#include <algorithm>
#include <tuple>

namespace lean_attention::emulator {
namespace {

bool Precedes(const Extent& a, const Extent& b) {
  return std::tie(a.block, a.thread) < std::tie(b.block, b.thread);
}

// Adds an extent to the end of ordered ones; of one thread, the later extent holds the earlier.
void Append(Knowledge& to, const Extent& extent) {
  if (to.empty() || Precedes(to.back(), extent)) {
    to.push_back(extent);
  } else if (to.back().now < extent.now) {
    to.back() = extent;
  }
}

// Of one block, what lies wholly before another thread's barrier adds nothing.
void DropCovered(Knowledge& extents) {
  uint32_t barrier = 0;
  int32_t block = -1;
  const auto covered = [&](const Extent& e) { return e.now < barrier; };
  auto kept = extents.begin();
  for (auto first = extents.begin(); first != extents.end();) {
    block = first->block;
    const auto last =
        std::find_if(first, extents.end(), [&](const Extent& e) { return e.block != block; });
    barrier = 0;
    for (auto e = first; e != last; ++e) barrier = std::max(barrier, e->barrier);
    kept = std::remove_copy_if(first, last, kept, covered);
    first = last;
  }
  extents.erase(kept, extents.end());
}

}  // namespace

bool Covers(const KnowledgePtr& knowledge, const Record& record) {
  if (!knowledge) return false;
  const auto block = static_cast<int32_t>(record.block);
  auto extent = std::lower_bound(knowledge->begin(), knowledge->end(), block,
                                 [](const Extent& e, int32_t b) { return e.block < b; });
  for (; extent != knowledge->end() && extent->block == block; ++extent) {
    if (extent->Covers(record)) return true;
  }
  return false;
}

KnowledgePtr Join(const KnowledgePtr& a, const KnowledgePtr& b) {
  if (!b || a == b) return a;
  if (!a) return b;
  Knowledge joined;
  joined.reserve(a->size() + b->size());
  auto x = a->begin();
  auto y = b->begin();
  while (x != a->end() || y != b->end()) {
    const bool from_a = y == b->end() || (x != a->end() && Precedes(*x, *y));
    Append(joined, from_a ? *x++ : *y++);
  }
  DropCovered(joined);
  return std::make_shared<const Knowledge>(std::move(joined));
}

KnowledgePtr Join(const KnowledgePtr& a, const Extent& extent) {
  return Join(a, std::make_shared<const Knowledge>(1, extent));
}

}  // namespace lean_attention::emulator
