// The plan of a step, and the choice of instruction set.

#include "ops/cpu/decode_attention.h"

#include <strings.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "ops/cpu/targets.h"
#include "ops/cpu/workspace.h"

namespace lean_attention::cpu {
namespace {

struct Target {
  const char* name;
  bool supported;
  RunShareFunction RunShareOfTargets::*run_share;
};

// Best first. Highway's own dispatcher would need its library, and this one must stand alone.
const Target kTargets[] = {
#if defined(__x86_64__)
    {"AVX512",
     __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"),
     &RunShareOfTargets::avx512},
    // Highway's AVX2 code also uses F16C, which clang cannot ask for and every processor with AVX2
    // and FMA has.
    {"AVX2",
     __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2"),
     &RunShareOfTargets::avx2},
    {"SSE4", __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3"),
     &RunShareOfTargets::sse4},
#endif
#if defined(__aarch64__)
    {"NEON", true, &RunShareOfTargets::baseline},
#else
    {"baseline", true, &RunShareOfTargets::baseline},
#endif
};

const RunShareOfTargets& KernelFor(ElementType cache_type) {
  switch (cache_type) {
    case ElementType::kFloat32:
    case ElementType::kFloat8E4M3:  // no caller has checked such a cache through
      break;
    case ElementType::kFloat16:
      return kRunShareFloat16;
    case ElementType::kBFloat16:
      return kRunShareBFloat16;
    case ElementType::kInt8:
      return kRunShareInt8;
    case ElementType::kInt4:
      return kRunShareInt4;
  }
  return kRunShareFloat32;
}

const Target* ChosenTarget() {
  static const Target* const chosen = []() -> const Target* {
    const char* forced = std::getenv("LEAN_ATTENTION_CPU_TARGET");
    const Target* best = nullptr;
    for (const Target& target : kTargets) {
      if (!target.supported || kRunShareFloat32.*target.run_share == nullptr) continue;
      if (forced != nullptr && strcasecmp(forced, target.name) == 0) return &target;
      if (best == nullptr) best = &target;
    }
    return best;
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
  const RunShareOfTargets& kernel = KernelFor(args.problem.cache_type);
  (kernel.*ChosenTarget()->run_share)(args, plan, workspace, share);
}

const char* TargetName() {
  const Target* target = ChosenTarget();
  return target != nullptr ? target->name : nullptr;
}

}  // namespace lean_attention::cpu
