// From shape, lengths and machine to a schedule and a number of shares. Pure: testable anywhere.

#ifndef LEAN_ATTENTION_OPS_DECODE_POLICY_H_
#define LEAN_ATTENTION_OPS_DECODE_POLICY_H_

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "ops/decode/problem.h"
#include "ops/decode/schedule.h"

namespace lean_attention {

struct Machine {
  int32_t workers;  // processors that may run shares at the same time, >= 1
};

struct Decision {
  Schedule schedule;
  int64_t amount;  // as Cut takes it
  const char* reason;
};

// Handing a share to another thread costs microseconds, in which one core reads about this much.
inline constexpr int64_t kMinShareBytes = 96 * 1024;

// More shares than workers, so that a worker that was delayed can leave some to the others.
inline constexpr int64_t kSharesPerWorker = 4;

// Query tokens per sequence that a step splits a head for. A split one keeps a state of every row
// for each tile; of a prompt these would be many, and it has work enough for all without.
inline constexpr int32_t kMaxSplitTokens = 8;

// Bytes of K and V that the step reads.
inline int64_t VisibleBytes(const Problem& p) {
  int64_t keys = 0;
  for (int32_t b = 0; b < p.batch_size; ++b) {
    const Lengths lengths = LengthsOf(p, b);
    keys += lengths.keys - FirstVisibleKey(p, lengths);
  }
  return 2 * keys * p.kv_num_heads * CacheRowBytes(p);
}

// FlashDecoding's rule: the fewest pieces that fill at least 0.85 as much of the last wave as the
// best number does (the FlashAttention-2 authors' heuristic, restated).
inline int64_t FixedSplits(int64_t pairs, int32_t workers, int64_t max_splits) {
  const auto efficiency = [&](int64_t splits) {
    const double waves = static_cast<double>(pairs * splits) / workers;
    return waves / static_cast<double>((pairs * splits + workers - 1) / workers);
  };
  double best = 0;
  for (int64_t k = 1; k <= max_splits; ++k) best = std::max(best, efficiency(k));
  int64_t k = 1;
  while (efficiency(k) < 0.85 * best) ++k;
  return k;
}

inline Decision Decide(const Problem& p, const Machine& machine) {
  if (p.sequence_length > kMaxSplitTokens) return {Schedule::kDirect, 1, "many query tokens"};
  const int64_t by_bytes = VisibleBytes(p) / kMinShareBytes;
  if (machine.workers == 1) return {Schedule::kLean, 1, "one worker"};
  if (by_bytes < 2) return {Schedule::kLean, 1, "too little to hand to a second thread"};
  const int64_t most = machine.workers * kSharesPerWorker;
  if (by_bytes < most)
    return {Schedule::kLean, by_bytes, "as many shares as are worth a hand-over"};
  return {Schedule::kLean, most, "equal shares for all workers"};
}

// The same for a schedule that the caller chose.
inline Decision DecideFor(const Problem& p, const Machine& machine, Schedule schedule) {
  if (p.sequence_length > kMaxSplitTokens) return Decide(p, machine);
  switch (schedule) {
    case Schedule::kDirect:
      return {schedule, 1, "asked for"};
    case Schedule::kFixedSplit: {
      int64_t most = 1;
      for (int32_t b = 0; b < p.batch_size; ++b) {
        most = std::max<int64_t>(most, TilingOf(p, b).count);
      }
      const int64_t pairs = int64_t{p.batch_size} * p.kv_num_heads;
      return {schedule, FixedSplits(pairs, machine.workers, most), "asked for"};
    }
    case Schedule::kLean:
      break;
  }
  return Decide(p, machine);
}

inline const char* NameOf(Schedule schedule) {
  switch (schedule) {
    case Schedule::kDirect:
      return "direct";
    case Schedule::kFixedSplit:
      return "fixed_split";
    case Schedule::kLean:
      break;
  }
  return "lean";
}

// One line: the decision, why, and what it was made from.
inline std::string Explain(const Problem& p, const Machine& machine, const Decision& d) {
  int64_t keys = 0;
  int64_t tiles = 0;
  for (int32_t b = 0; b < p.batch_size; ++b) {
    keys += LengthsOf(p, b).keys;
    tiles += int64_t{p.kv_num_heads} * TilingOf(p, b).count;
  }
  return std::string(NameOf(d.schedule)) + " in " +
         std::to_string(Cut(p, d.schedule, d.amount).shares()) + " shares (" + d.reason +
         "): " + std::to_string(tiles) + " tiles of " + std::to_string(TilingOf(p, 0).tile_tokens) +
         " keys, " + std::to_string(p.batch_size) + " sequences of " + std::to_string(keys) +
         " keys in all, " + std::to_string(p.sequence_length) + " query tokens, " +
         std::to_string(p.num_heads) + "/" + std::to_string(p.kv_num_heads) + " heads of " +
         std::to_string(p.head_size) + ", " + NameOf(p.cache_type) + " cache, " +
         std::to_string(machine.workers) + " processors";
}

// A GPU, as one kernel finds it.
struct GpuMachine {
  int32_t multiprocessors;
  int32_t blocks_per_multiprocessor;  // that fit at the same time, >= 1

  int64_t blocks() const { return int64_t{multiprocessors} * blocks_per_multiprocessor; }
};

// Block b of the grid takes shares b, b + blocks, b + 2 blocks, ...
struct GpuDecision {
  Schedule schedule;
  int64_t amount;  // as BasicCut takes it
  int64_t shares;
  int32_t blocks;      // of the grid, at most as many as shares
  bool is_persistent;  // all blocks of the grid fit at the same time
  const char* reason;
};

// Keys per tile on GPUs: two blocks of 16 for each of four warps.
inline constexpr int32_t kGpuTileTokens = 128;

// The most tiles of a sequence and head of any length up to `max_length`. Those of a longer
// sequence may be fewer, as they are wider.
inline int64_t MostTiles(const Problem& p, int64_t max_length) {
  int64_t tiles = (max_length + p.tile_tokens - 1) / p.tile_tokens;
  if (p.local_window_size > 0 && p.local_window_size < max_length) {
    // n keys, wherever they begin, touch (n - 1 + t - 1) / t + 1 tiles of t.
    const int64_t visible = p.local_window_size + p.sequence_length - 1;
    tiles = std::min(tiles, (visible + p.tile_tokens - 2) / p.tile_tokens + 1);
  }
  return std::min<int64_t>(tiles, kMaxTiles);
}

// A cut and the grid for it: a block for each share.
inline GpuDecision GpuDecisionOf(const Problem& p, const GpuMachine& machine, Schedule schedule,
                                 int64_t amount, const char* reason) {
  const int64_t pairs = int64_t{p.batch_size} * p.kv_num_heads;
  if (schedule == Schedule::kDirect) amount = 1;
  const int64_t shares = schedule == Schedule::kLean ? amount : pairs * amount;
  const int64_t blocks = std::min<int64_t>(shares, std::numeric_limits<int32_t>::max());
  return {schedule, amount, shares, static_cast<int32_t>(blocks), blocks <= machine.blocks(),
          reason};
}

// For a step whose lengths only the device knows: none is above `max_length`. The capacity of the
// cache plays no part.
inline GpuDecision DecideGpu(const Problem& p, int64_t max_length, const GpuMachine& machine,
                             std::optional<Schedule> wish = std::nullopt) {
  const int64_t pairs = int64_t{p.batch_size} * p.kv_num_heads;
  const int64_t most_tiles = MostTiles(p, max_length);
  const auto cut = [&](Schedule schedule, int64_t amount, const char* reason) {
    return GpuDecisionOf(p, machine, schedule, amount, reason);
  };
  if (p.sequence_length > kMaxSplitTokens) {
    return cut(Schedule::kDirect, 1, "many query tokens");
  }
  const char* reason = "asked for";
  if (!wish) {
    if (most_tiles == 1) return cut(Schedule::kDirect, 1, "one tile per sequence and head");
    reason = "equal shares for all blocks that fit";
  }
  switch (wish.value_or(Schedule::kLean)) {
    case Schedule::kDirect:
      return cut(Schedule::kDirect, 1, reason);
    case Schedule::kFixedSplit: {
      const auto workers = static_cast<int32_t>(machine.blocks());
      return cut(Schedule::kFixedSplit, FixedSplits(pairs, workers, most_tiles), reason);
    }
    case Schedule::kLean:
      break;
  }
  const int64_t tiles = pairs * most_tiles;
  if (tiles < machine.blocks()) return cut(Schedule::kLean, tiles, "as many shares as tiles");
  return cut(Schedule::kLean, machine.blocks(), reason);
}

// One line: the decision, why, and what it was made from.
inline std::string ExplainGpu(const Problem& p, int64_t max_length, const GpuMachine& machine,
                              const GpuDecision& d) {
  const int64_t tiles = int64_t{p.batch_size} * p.kv_num_heads * MostTiles(p, max_length);
  return std::string(NameOf(d.schedule)) + " in " + std::to_string(d.shares) + " shares on " +
         std::to_string(d.blocks) + (d.is_persistent ? " resident" : " queued") + " blocks (" +
         d.reason + "): at most " + std::to_string(tiles) + " tiles of " +
         std::to_string(p.tile_tokens) + " keys, " + std::to_string(p.batch_size) +
         " sequences of at most " + std::to_string(max_length) + " keys, " +
         std::to_string(p.sequence_length) + " query tokens, " + std::to_string(p.num_heads) + "/" +
         std::to_string(p.kv_num_heads) + " heads of " + std::to_string(p.head_size) + ", " +
         NameOf(p.cache_type) + " cache, " + std::to_string(machine.multiprocessors) +
         " multiprocessors of " + std::to_string(machine.blocks_per_multiprocessor) + " blocks";
}

}  // namespace lean_attention

#endif  // LEAN_ATTENTION_OPS_DECODE_POLICY_H_
