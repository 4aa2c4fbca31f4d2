// The plan of a step, and the choice of instruction set. The code of each instruction set comes
// from the -inl.h files, which foreach_target.h includes once per target under that target's flags.

#include "ops/cpu/decode_attention.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "ops/cpu/workspace.h"

// Two instruction sets besides the baseline are worth their size on x86; SSE4 serves what has
// neither, since the baseline of Highway 1.0 under GCC 12 is scalar code.
#define HWY_WANT_SSE4 1
#ifndef LEAN_ATTENTION_DISABLED_TARGETS  // more that a build leaves out
#define LEAN_ATTENTION_DISABLED_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS                                                   \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   LEAN_ATTENTION_DISABLED_TARGETS)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/decode_attention.cc"
#include <hwy/foreach_target.h>  // Must come before highway.h
#include <hwy/highway.h>

#include "ops/cpu/share-inl.h"

#if HWY_ONCE
namespace lean_attention::cpu {
namespace {

struct Target {
  const char* name;
  bool supported;
  void (*run_share)(const DecodeArgs&, const Plan&, void*, int64_t);
};

// Best first; the last one runs everywhere. Highway's own dispatcher would need its library, and
// this one must stand alone.
const Target kTargets[] = {
#if HWY_TARGETS & HWY_AVX3
    {"AVX512",
     __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"),
     &N_AVX3::RunShare},
#endif
#if HWY_TARGETS & HWY_AVX2
    // Highway's AVX2 code also uses F16C, which clang cannot ask for and every processor with AVX2
    // and FMA has.
    {"AVX2",
     __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2"),
     &N_AVX2::RunShare},
#endif
#if HWY_TARGETS & HWY_SSE4
    {"SSE4", __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3"),
     &N_SSE4::RunShare},
#endif
#if HWY_STATIC_TARGET != HWY_SCALAR && HWY_STATIC_TARGET != HWY_SSE4
    {HWY_ARCH_ARM_A64 ? "NEON" : "baseline", true, &HWY_STATIC_DISPATCH(RunShare)},
#endif
};

const Target kUnsupported = {nullptr, false, nullptr};

const Target& ChosenTarget() {
  static const Target& chosen = []() -> const Target& {
    const char* forced = std::getenv("LEAN_ATTENTION_CPU_TARGET");
    for (const Target& target : kTargets) {
      if (forced != nullptr && target.supported && std::strcmp(forced, target.name) == 0) {
        return target;
      }
    }
    const auto* best = std::find_if(std::begin(kTargets), std::end(kTargets),
                                    [](const Target& target) { return target.supported; });
    return best != std::end(kTargets) ? *best : kUnsupported;
  }();
  return chosen;
}

}  // namespace

int32_t TileTokens(int32_t head_size, ElementType cache_type) {
  // Whole blocks of keys; K and V of a tile fill about half of a 512 KiB L2 cache at most.
  const int64_t row_bytes = BytesOf(cache_type, head_size);
  int32_t tokens = 4 * kMaxBlockKeys;
  while (tokens > kMaxBlockKeys && 2 * tokens * row_bytes > 256 * 1024) tokens /= 2;
  return tokens;
}

Plan MakePlan(const DecodeArgs& args, const Decision& decision) {
  const Problem& p = args.problem;
  const int64_t rows = RowsPerKvHead(p);
  const int64_t stride = RoundUp(p.head_size, kFloatsPerLine);
  int64_t tiles = 0;
  for (int32_t b = 0; b < p.batch_size; ++b) {
    tiles = std::max<int64_t>(tiles, TilingOf(p, b).count);
  }
  const ShareLayout layout(rows, stride);
  Plan plan = {Cut(p, decision.schedule, decision.amount),
               stride,
               layout.state_floats(),
               layout.share_floats(),
               tiles,
               0};
  const int64_t floats = plan.cut.shares() * plan.share_floats +
                         plan.cut.regions() * plan.region_tiles * plan.state_floats;
  plan.workspace_bytes = floats * sizeof(float) + plan.cut.regions() * sizeof(std::atomic<int32_t>);
  return plan;
}

void PrepareWorkspace(const Plan& plan, void* workspace) {
  const Workspace layout(plan, workspace);
  for (int64_t region = 0; region < plan.cut.regions(); ++region) {
    new (&layout.Arrived(region)) std::atomic<int32_t>(0);
  }
}

void RunShare(const DecodeArgs& args, const Plan& plan, void* workspace, int64_t share) {
  ChosenTarget().run_share(args, plan, workspace, share);
}

const char* TargetName() { return ChosenTarget().name; }

}  // namespace lean_attention::cpu
#endif  // HWY_ONCE
