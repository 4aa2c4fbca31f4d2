// The instruction sets that the kernel is compiled for, and its function for each of them.
//
// Included before Highway, whose choice of targets this is.

#ifndef LEAN_ATTENTION_OPS_CPU_TARGETS_H_
#define LEAN_ATTENTION_OPS_CPU_TARGETS_H_

#include <cstdint>

#include "ops/cpu/decode_attention.h"

// Two instruction sets besides the baseline are worth their size on x86; SSE4 serves what has
// neither, since the baseline of Highway 1.0 under GCC 12 is scalar code.
#define HWY_WANT_SSE4 1
#ifndef LEAN_ATTENTION_DISABLED_TARGETS  // more that a build leaves out
#define LEAN_ATTENTION_DISABLED_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS                                                   \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   LEAN_ATTENTION_DISABLED_TARGETS)

namespace lean_attention::cpu {

using RunShareFunction = void (*)(const DecodeArgs&, const Plan&, void* workspace, int64_t share);

// Null where an instruction set is not compiled in.
struct RunShareOfTargets {
  RunShareFunction avx512;
  RunShareFunction avx2;
  RunShareFunction sse4;
  RunShareFunction baseline;  // what the compiler's flags allow, on any other architecture the best
};

// One per type of cache, each in a file of its own in ops/cpu/kernels.
extern const RunShareOfTargets kRunShareFloat32;
extern const RunShareOfTargets kRunShareFloat16;
extern const RunShareOfTargets kRunShareBFloat16;
extern const RunShareOfTargets kRunShareInt8;
extern const RunShareOfTargets kRunShareInt4;

}  // namespace lean_attention::cpu

#endif  // LEAN_ATTENTION_OPS_CPU_TARGETS_H_
