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

HWY_INLINE State StateAt(float* memory, int rows, int64_t stride) {
  return {memory, memory + rows * stride, memory + rows * stride + rows};
}

template <ElementType kType>
class ShareRunner {
 public:
  ShareRunner(const DecodeArgs& args, const Plan& plan, void* workspace, int64_t share)
      : args_(args),
        problem_(args.problem),
        workspace_(plan, workspace),
        count_(RowsPerKvHead(problem_)),
        stride_(plan.padded_head_size) {
    const ShareLayout layout(count_, stride_);
    float* next = workspace_.Share(share);
    const auto take = [&](int64_t floats) {
      float* taken = next;
      next += floats;
      return taken;
    };
    q_ = take(layout.query_floats());
    scratch_.scores = take(layout.score_floats());
    scratch_.running = take(layout.running_floats());
    folded_ = StateAt(take(layout.state_floats()), count_, stride_);
    tile_ = StateAt(take(layout.state_floats()), count_, stride_);
    row_.row = take(layout.row_floats());
    row_.cos = take(layout.row_floats());
    row_.sin = take(layout.row_floats());
    row_.channel = take(layout.row_floats());
    visible_begin_ = reinterpret_cast<int64_t*>(take(layout.word_floats()));
    visible_end_ = reinterpret_cast<int64_t*>(take(layout.word_floats()));
    bias_ = reinterpret_cast<const void**>(take(layout.word_floats()));
  }

  void Run(const Piece& piece) {
    Prepare(piece);
    if (!piece.IsSplit()) {
      Fold(piece, folded_);
      WriteOutput(args_, piece.sequence, piece.kv_head, stride_, folded_, row_);
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
      MergeStates(rows_, stride_, all, RegionState(piece, tile));
    }
    WriteOutput(args_, piece.sequence, piece.kv_head, stride_, all, row_);
  }

 private:
  State RegionState(const Piece& piece, int32_t tile) {
    return StateAt(workspace_.RegionState(piece.region, tile), count_, stride_);
  }

  void Prepare(const Piece& piece) {
    LoadQueries(args_, piece.sequence, piece.kv_head, stride_, q_, row_);
    const int32_t group = GroupSize(problem_);
    lengths_ = LengthsOf(problem_, piece.sequence);
    rows_ = lengths_.queries * group;
    for (int32_t r = 0; r < rows_; ++r) {
      const KeyRange visible = VisibleKeys(problem_, lengths_, r / group);
      visible_begin_[r] = visible.begin;
      visible_end_[r] = visible.end;
      if (args_.attention_bias != nullptr) {
        const int32_t head = piece.kv_head * group + r % group;
        const int64_t offset = piece.sequence * args_.bias_batch_stride +
                               head * args_.bias_head_stride + r / group * args_.bias_row_stride;
        bias_[r] =
            static_cast<const uint8_t*>(args_.attention_bias) + BytesOf(args_.element_type, offset);
      }
    }
    const int64_t cache = CacheOffset(problem_, piece.sequence, piece.kv_head, 0);
    k_ = static_cast<const uint8_t*>(args_.present_key) + cache;
    v_ = static_cast<const uint8_t*>(args_.present_value) + cache;
    if (piece.tile_begin == 0) {
      // Rows before the first visible tile are nobody's: a window leaves them out of the stream.
      FillCacheRows(args_, piece.sequence, piece.kv_head, 0,
                    piece.tiling.first * piece.tiling.tile_tokens, row_);
    }
    if (piece.tile_end == piece.tiling.count) {
      ClearCacheTail(args_, piece.sequence, piece.kv_head);
    }
  }

  // The state of one tile, after its rows of the cache were made valid.
  void Reduce(const Piece& piece, int32_t tile, State state) {
    const int64_t begin = (piece.tiling.first + tile) * piece.tiling.tile_tokens;
    const int64_t end = std::min(begin + piece.tiling.tile_tokens, lengths_.keys);
    FillCacheRows(args_, piece.sequence, piece.kv_head, begin, end, row_);
    const Rows rows = {q_,
                       rows_,
                       stride_,
                       problem_.head_size,
                       args_.scale,
                       args_.softcap,
                       args_.element_type,
                       args_.attention_bias != nullptr ? bias_ : nullptr,
                       visible_begin_,
                       visible_end_};
    const int64_t row_bytes = CacheRowBytes(problem_);
    const Tile keys = {k_,
                       v_,
                       row_bytes,
                       std::max(begin, FirstVisibleKey(problem_, lengths_)),
                       end,
                       lengths_.keys,
                       k_ + problem_.cache_rows * row_bytes};
    ReduceTile<kType>(rows, keys, scratch_, state);
  }

  // All tiles of a piece, merged in order, into `into`.
  void Fold(const Piece& piece, State into) {
    Reduce(piece, piece.tile_begin, into);
    for (int32_t tile = piece.tile_begin + 1; tile < piece.tile_end; ++tile) {
      Reduce(piece, tile, tile_);
      MergeStates(rows_, stride_, into, tile_);
    }
  }

  const DecodeArgs& args_;
  const Problem& problem_;
  Workspace workspace_;
  const int count_;  // rows of a KV head that there is room for
  const int64_t stride_;
  float* q_;
  TileScratch scratch_;
  State folded_;
  State tile_;
  RowScratch row_;
  int64_t* visible_begin_;
  int64_t* visible_end_;
  const void** bias_;
  // Of the current piece.
  Lengths lengths_ = {};
  int rows_ = 0;                // of the KV head, padding left out
  const uint8_t* k_ = nullptr;  // row of position 0
  const uint8_t* v_ = nullptr;
};

template <ElementType kType>
void RunShareOf(const DecodeArgs& args, const Plan& plan, void* workspace, int64_t share) {
  ShareRunner<kType> runner(args, plan, workspace, share);
  plan.cut.ForEachPiece(share, [&](const Piece& piece) HWY_ATTR { runner.Run(piece); });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace lean_attention::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // per-target include guard
