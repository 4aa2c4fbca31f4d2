// One share of the stream: its pieces, and the meeting of pieces of one sequence and head.
// Included once per instruction set.

#if defined(LEAN_ATTENTION_OPS_CPU_SHARE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAN_ATTENTION_OPS_CPU_SHARE_INL_H_
#undef LEAN_ATTENTION_OPS_CPU_SHARE_INL_H_
#else
#define LEAN_ATTENTION_OPS_CPU_SHARE_INL_H_
#endif

#include <algorithm>

#include "ops/cpu/rows-inl.h"
#include "ops/cpu/tile-inl.h"
#include "ops/cpu/workspace.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace lean_attention::cpu {
namespace HWY_NAMESPACE {

static_assert(kMaxBlockKeys == kScoreKeys);

// Carves the private scratch of a share; the sizes are MakePlan's.
class Carver {
 public:
  explicit Carver(float* memory) : next_(memory) {}
  float* Take(int64_t floats) {
    float* taken = next_;
    next_ += RoundUp(floats, kFloatsPerLine);
    return taken;
  }

 private:
  float* next_;
};

HWY_INLINE State StateAt(float* memory, int rows, int64_t stride) {
  return {memory, memory + rows * stride, memory + rows * stride + rows};
}

template <typename T>
class ShareRunner {
 public:
  ShareRunner(const DecodeArgs& args, const Plan& plan, void* workspace, int64_t share)
      : args_(args),
        problem_(args.problem),
        workspace_(plan, workspace),
        count_(RowsPerKvHead(problem_)),
        stride_(plan.padded_head_size) {
    Carver carver(workspace_.Share(share));
    q_ = carver.Take(count_ * stride_);
    scores_ = carver.Take(count_ * kScoreKeys);
    folded_ = StateAt(carver.Take(plan.state_floats), count_, stride_);
    tile_ = StateAt(carver.Take(plan.state_floats), count_, stride_);
    rotary_ = {carver.Take(stride_), carver.Take(stride_), carver.Take(stride_)};
    visible_begin_ = reinterpret_cast<int64_t*>(carver.Take(2 * count_));
    visible_end_ = reinterpret_cast<int64_t*>(carver.Take(2 * count_));
    bias_ = reinterpret_cast<const T**>(carver.Take(2 * count_));
  }

  void Run(const Piece& piece) {
    Prepare(piece);
    if (!piece.IsSplit()) {
      Fold(piece, folded_);
      WriteOutput<T>(args_, piece.sequence, piece.kv_head, stride_, folded_);
      return;
    }
    // The first piece may fold its tiles, since nothing comes before them; of the others each tile
    // must wait for its turn.
    if (piece.tile_begin == 0) {
      Fold(piece, RegionState(piece, 0));
    } else {
      for (int32_t tile = piece.tile_begin; tile < piece.tile_end; ++tile) {
        Reduce(piece, tile, RegionState(piece, tile));
      }
    }
    const int32_t arriving = piece.tile_end - piece.tile_begin;
    std::atomic<int32_t>& arrived = workspace_.Arrived(piece.region);
    // Release: this piece's states before its arrival. Acquire: the others' states after theirs.
    if (arrived.fetch_add(arriving, std::memory_order_acq_rel) + arriving < piece.tiling.count) {
      return;
    }
    const State all = RegionState(piece, 0);
    for (int32_t tile = piece.prefix_tiles; tile < piece.tiling.count; ++tile) {
      MergeStates(count_, stride_, all, RegionState(piece, tile));
    }
    WriteOutput<T>(args_, piece.sequence, piece.kv_head, stride_, all);
  }

 private:
  State RegionState(const Piece& piece, int32_t tile) {
    return StateAt(workspace_.RegionState(piece.region, tile), count_, stride_);
  }

  void Prepare(const Piece& piece) {
    LoadQueries<T>(args_, piece.sequence, piece.kv_head, stride_, q_, rotary_);
    const int32_t group = GroupSize(problem_);
    for (int32_t r = 0; r < count_; ++r) {
      const KeyRange visible = VisibleKeys(problem_, piece.sequence, r / group);
      visible_begin_[r] = visible.begin;
      visible_end_[r] = visible.end;
      if (args_.attention_bias != nullptr) {
        const int32_t head = piece.kv_head * group + r % group;
        bias_[r] = static_cast<const T*>(args_.attention_bias) +
                   piece.sequence * args_.bias_batch_stride + head * args_.bias_head_stride +
                   r / group * args_.bias_row_stride;
      }
    }
    const int64_t cache = CacheOffset(problem_, piece.sequence, piece.kv_head, 0);
    k_ = static_cast<const T*>(args_.present_key) + cache;
    v_ = static_cast<const T*>(args_.present_value) + cache;
    if (piece.tile_begin == 0) {
      // Rows before the first visible tile are nobody's: a window leaves them out of the stream.
      FillCacheRows<T>(args_, piece.sequence, piece.kv_head, 0,
                       piece.tiling.first * piece.tiling.tile_tokens, rotary_);
    }
    if (piece.tile_end == piece.tiling.count) {
      ClearCacheTail<T>(args_, piece.sequence, piece.kv_head);
    }
  }

  // The state of one tile, after its rows of the cache were made valid.
  void Reduce(const Piece& piece, int32_t tile, State state) {
    const int64_t length = TotalLength(problem_, piece.sequence);
    const int64_t begin = (piece.tiling.first + tile) * piece.tiling.tile_tokens;
    const int64_t end = std::min(begin + piece.tiling.tile_tokens, length);
    FillCacheRows<T>(args_, piece.sequence, piece.kv_head, begin, end, rotary_);
    const Rows<T> rows = {q_,
                          count_,
                          stride_,
                          problem_.head_size,
                          args_.scale,
                          args_.softcap,
                          args_.attention_bias != nullptr ? bias_ : nullptr,
                          visible_begin_,
                          visible_end_};
    // Row 0 is the oldest token, so its window begins first.
    const Tile<T> keys = {k_, v_, std::max(begin, visible_begin_[0]), end, length};
    ReduceTile(rows, keys, scores_, state);
  }

  // All tiles of a piece, merged in order, into `into`.
  void Fold(const Piece& piece, State into) {
    Reduce(piece, piece.tile_begin, into);
    for (int32_t tile = piece.tile_begin + 1; tile < piece.tile_end; ++tile) {
      Reduce(piece, tile, tile_);
      MergeStates(count_, stride_, into, tile_);
    }
  }

  const DecodeArgs& args_;
  const Problem& problem_;
  Workspace workspace_;
  const int count_;  // rows of a KV head
  const int64_t stride_;
  float* q_;
  float* scores_;
  State folded_;
  State tile_;
  RotaryScratch rotary_;
  int64_t* visible_begin_;
  int64_t* visible_end_;
  const T** bias_;
  const T* k_ = nullptr;  // of the current piece: row of position 0
  const T* v_ = nullptr;
};

template <typename T>
void RunShareOf(const DecodeArgs& args, const Plan& plan, void* workspace, int64_t share) {
  ShareRunner<T> runner(args, plan, workspace, share);
  plan.cut.ForEachPiece(share, [&](const Piece& piece) HWY_ATTR { runner.Run(piece); });
}

void RunShare(const DecodeArgs& args, const Plan& plan, void* workspace, int64_t share) {
  if (args.problem.cache_type == ElementType::kFloat32) {
    RunShareOf<float>(args, plan, workspace, share);
  } else {
    RunShareOf<hwy::float16_t>(args, plan, workspace, share);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace lean_attention::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // per-target include guard
