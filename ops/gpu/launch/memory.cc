// How much shared memory and workspace a launch needs.

#include "ops/gpu/decode_args.h"
#include "ops/gpu/launch/built.h"
#include "ops/gpu/launch/launcher.h"
#include "ops/gpu/shared_layout.h"

namespace lean_attention::gpu {
namespace {

// A stream of which only the shape is known: enough to count a cut's regions.
class ShapeStream {
 public:
  explicit ShapeStream(const Problem& problem) : problem_(problem) {}
  LEAN_HOST_DEVICE const Problem& problem() const { return problem_; }

 private:
  Problem problem_;
};

}  // namespace

int64_t SharedBytes(const Problem& p) {
  const int64_t rows = RowsPerKvHead(p);
  int64_t bytes = 0;
  WithHeadSize(p.head_size, [&](auto size) {
    constexpr int kHeadSize = decltype(size)::value;
    // The lengths, of which there may be more than an int counts bytes, lie after all else.
    bytes = (IsQuantised(p.cache_type) ? SharedLayout<int8_t, kHeadSize>(rows, 0).bytes()
                                       : SharedLayout<Half, kHeadSize>(rows, 0).bytes()) +
            int64_t{p.batch_size} * SharedStream::kBytesPerSequence;
  });
  return bytes;
}

Workspace WorkspaceOf(const Problem& problem, int64_t max_length, const GpuDecision& decision) {
  const BasicCut cut(ShapeStream(problem), decision.schedule, decision.amount);
  const int64_t region_floats = RegionLayoutOf(problem, max_length).region_floats();
  return {cut.regions() * region_floats * int64_t{sizeof(float)}, cut.regions()};
}

}  // namespace lean_attention::gpu
