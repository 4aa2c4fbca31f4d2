// The kernel: one decode step of grouped-query attention, in one launch.
//
// A block works through its share of the stream (ops/decode/schedule.h). It appends the new rows
// of the tiles that are its own, then reduces tile after tile: each of its warps takes every fourth
// block of 16 keys, and where a tile ends the states of the warps are merged in their order, a few
// rows at a time. A piece that begins its sequence and head folds the states of its tiles; the
// other pieces leave each tile's state in the workspace. Whichever block arrives last at a split
// sequence and head merges all of them in order of position and writes the output. Nobody waits,
// and the bits do not depend on the cut, on the order of blocks, or on who is last.
//
// More than 16 query rows of a KV head (tokens times heads of the group) take the keys once for
// every 16.

#ifndef LEAN_ATTENTION_OPS_GPU_DECODE_ATTENTION_H_
#define LEAN_ATTENTION_OPS_GPU_DECODE_ATTENTION_H_

#include "ops/gpu/ends.h"
#include "ops/gpu/row_states.h"
#include "ops/gpu/stream.h"
#if LEAN_ATTENTION_AMD
#include "ops/gpu/key_registers.h"
#else
#include "ops/gpu/key_ring.h"
#endif

namespace lean_attention::gpu {

template <typename Element, typename Cache, int kHeadSize>
class DecodeBlock {
  using Args = DecodeArgs<Element, Cache>;
  using Fragments = Matrix<Element, Cache, kHeadSize>;
  using Layout = SharedLayout<Cache, kHeadSize>;
  using Keys = KeysInFlight<Cache, kHeadSize>;
  static constexpr int kSlots = Fragments::kRowSlots;

 public:
  LEAN_ATTENTION_DEVICE explicit DecodeBlock(const Args& args)
      : args_(args),
        layout_(RowsPerKvHead(args.problem), args.problem.batch_size),
        region_(RegionLayoutOf(args.problem, args.max_length)),
        stream_(args.problem, args.query_seqlens, args.max_length,
                SharedMemory() + layout_.stream()),
        cut_(stream_, args.schedule, args.amount) {}

  LEAN_ATTENTION_DEVICE void Run() {
    if (Warp() == 0) stream_.Fill(args_.seqlens_k);
    SyncThreads();
    for (int64_t share = BlockIndex(); share < cut_.shares(); share += GridBlocks()) {
      const Position begin = BeginOf(share);
      const Position end = BeginOf(share + 1);
      for (Position at = begin; at < end; at = {at.pair + 1, 0}) Append(at, end);
      SyncThreads();
      for (Position at = begin; at < end; at = {at.pair + 1, 0}) {
        RunPiece(PieceAt(at, end, at.tile == 0 ? share : FirstShare(at.pair, share)));
      }
    }
  }

 private:
  LEAN_ATTENTION_DEVICE Position BeginOf(int64_t share) const {
    const Position begin = cut_.Begin(share);
    return {Uniform(begin.pair), Uniform(begin.tile)};
  }

  LEAN_ATTENTION_DEVICE Piece PieceAt(Position at, Position end, int64_t first_share) const {
    Piece piece = cut_.PieceAt(at, end, first_share);
    piece.tiling = {Uniform(piece.tiling.tile_tokens), Uniform(piece.tiling.first),
                    Uniform(piece.tiling.count)};
    piece.tile_end = Uniform(piece.tile_end);
    return piece;
  }

  // The share before `share` that holds a pair's first tile: the last one that does not begin after
  // it. Each lane of a warp tries another.
  LEAN_ATTENTION_DEVICE int64_t FirstShare(int64_t pair, int64_t share) const {
    int64_t last = share;
    for (;; last -= kWarpSize) {
      const int64_t mine = last - Lane();
      const bool is_late = mine >= 0 && Position{pair, 0} < cut_.Begin(mine);
      const uint64_t found = ~Ballot(is_late) & (~uint64_t{0} >> (64 - kWarpSize));
      for (int lane = 0; lane < kWarpSize; ++lane) {
        if ((found >> lane & 1) != 0) return last - lane;
      }
    }
  }

  // Writes the new rows of the piece at `at` to the cache.
  LEAN_ATTENTION_DEVICE void Append(Position at, Position end) const {
    if (args_.key == nullptr) return;
    const Problem& p = args_.problem;
    const auto sequence = static_cast<int32_t>(at.pair / p.kv_num_heads);
    const auto kv_head = static_cast<int32_t>(at.pair % p.kv_num_heads);
    const Tiling tiling = stream_.TilingOf(sequence);
    const int64_t tile_end = end.pair == at.pair ? end.tile : tiling.count;
    const Lengths lengths = stream_.LengthsOf(sequence);
    for (int32_t token = 0; token < lengths.queries; ++token) {
      const int64_t position = lengths.past() + token;
      const int64_t tile = position / tiling.tile_tokens - tiling.first;
      if (tile >= at.tile && tile < tile_end) {
        AppendRow(args_, {sequence, token, position}, kv_head);
      }
    }
  }

  LEAN_ATTENTION_DEVICE void RunPiece(const Piece& piece) const {
    const int rows = RowsOf(piece);
    for (int first = 0; first < rows; first += kRows) {
      RunRows(piece, first, rows - first < kRows ? rows - first : kRows);
    }
    if (piece.tile_begin == 0) ClearPadding(piece, rows);
    if (piece.IsSplit()) Meet(piece);
  }

  LEAN_ATTENTION_DEVICE Lengths LengthsOf(const Piece& piece) const {
    const Lengths lengths = stream_.LengthsOf(piece.sequence);
    return {Uniform(lengths.keys), Uniform(lengths.queries)};
  }

  // Query rows of a KV head, padding left out.
  LEAN_ATTENTION_DEVICE int RowsOf(const Piece& piece) const {
    return LengthsOf(piece).queries * GroupSize(args_.problem);
  }

  // Writes zeros to the output for the rows from `rows` on.
  LEAN_ATTENTION_DEVICE void ClearPadding(const Piece& piece, int rows) const {
    const int end = RowsPerKvHead(args_.problem) * kHeadSize;
    for (int i = rows * kHeadSize + ThreadIndex(); i < end; i += kThreads) {
      Store(args_.output,
            OutputIndex(args_, piece.sequence, piece.kv_head, i / kHeadSize, i % kHeadSize),
            FromFloat<Element>(0));
    }
  }

  // Query rows [first, first + rows) over all tiles of a piece.
  LEAN_ATTENTION_DEVICE void RunRows(const Piece& piece, int first, int rows) const {
    const Lengths lengths = LengthsOf(piece);
    const auto length = static_cast<int32_t>(lengths.keys);
    const int64_t row_0 = CacheRow(args_.problem, piece.sequence, piece.kv_head, 0);
    const CacheRows<Cache> cache = {args_.key_cache + row_0, args_.value_cache + row_0,
                                    static_cast<int32_t>(FirstVisibleKey(args_.problem, lengths)),
                                    length};
    Keys keys(SharedMemory() + layout_.ring(Warp()), cache);
    Place fetch = {piece.tile_begin, Warp()};
    const auto fetch_next = [&] {
      Normalise(piece, length, &fetch);
      if (fetch.tile < piece.tile_end) {
        keys.Fetch(KeyAt(piece, fetch));
        fetch.block += kWarps;
      } else {
        keys.FetchNothing();
      }
    };
    for (int i = 0; i < Keys::kAhead; ++i) fetch_next();

    // While the first keys arrive.
    const float key_factor = StoreQueries(piece, lengths.past(), first, rows);
    SyncThreads();
    const QueryFragments<Element, Cache, kHeadSize> queries(SharedMemory() + layout_.queries(0),
                                                            HasTwoParts() ? 2 : 1);
    LaneRow<Element> lane_rows[kSlots];
    for (int slot = 0; slot < kSlots; ++slot) {
      const int row = Fragments::Row(slot);
      lane_rows[slot] = row < rows ? LaneRowOf(piece, lengths, first + row) : LaneRow<Element>{};
    }

    RowStates<Element, Cache, kHeadSize> states;
    for (int32_t tile = piece.tile_begin; tile < piece.tile_end; ++tile) {
      states.Reset();
      for (Place at = {tile, Warp()}; IsInTile(piece, length, at); at.block += kWarps) {
        const auto block = keys.Next();
        fetch_next();
        states.Add(queries, lane_rows, args_.scale * key_factor, args_.softcap, block,
                   KeyAt(piece, at));
      }
      for (int row = 0; row < rows; row += layout_.merged_rows) {
        const int count = rows - row < layout_.merged_rows ? rows - row : layout_.merged_rows;
        states.Write(As<float>(SharedMemory() + layout_.state(Warp())), row, count);
        SyncThreads();
        MergeWarps(piece, tile, first, row, count);
        SyncThreads();  // before the next states
      }
    }
    WaitCopies<0>();
    if (piece.tile_begin == 0) FinishFirstPiece(piece, first, rows);
  }

  // A block of kKeys keys of a tile.
  struct Place {
    int32_t tile;
    int block;
  };

  LEAN_ATTENTION_DEVICE static int32_t KeyAt(const Piece& piece, const Place& at) {
    return static_cast<int32_t>((piece.tiling.first + at.tile) * piece.tiling.tile_tokens) +
           at.block * kKeys;
  }

  LEAN_ATTENTION_DEVICE static bool IsInTile(const Piece& piece, int32_t length, const Place& at) {
    return at.block * kKeys < static_cast<int32_t>(piece.tiling.tile_tokens) &&
           KeyAt(piece, at) < length;
  }

  // From past the end of a tile to this warp's first block of the next one that has any.
  LEAN_ATTENTION_DEVICE static void Normalise(const Piece& piece, int32_t length, Place* at) {
    while (at->tile < piece.tile_end && !IsInTile(piece, length, *at)) *at = {at->tile + 1, Warp()};
  }

  // Scales of K's channels join the queries, which then need more than 16 bits.
  LEAN_ATTENTION_DEVICE bool HasTwoParts() const {
    return kIsQuantised<Cache> && args_.scale_per_channel;
  }

  // Puts the query rows into shared memory; returns what scores are to be multiplied by for the
  // scales of K.
  LEAN_ATTENTION_DEVICE float StoreQueries(const Piece& piece, int64_t past, int first,
                                           int rows) const {
    float factor = 1;
    if constexpr (kIsQuantised<Cache>) factor = LargestKeyScale(piece.kv_head);
    // Where the states will be.
    const SharedPtr<float> norms = As<float>(SharedMemory() + layout_.state(0));
    if (args_.q_norm_weight != nullptr) {
      for (int row = Warp(); row < rows; row += kWarps) {
        const auto x = QueryRow(args_, piece.sequence, piece.kv_head, first + row);
        const float norm = NormFactor(x, kHeadSize, args_.q_norm_epsilon);
        if (Lane() == 0) Store(norms, row, norm);
      }
      SyncThreads();
    }
    const SharedPtr<std::byte> queries = SharedMemory() + layout_.queries(0);
    for (int i = ThreadIndex(); i < kRows * kHeadSize; i += kThreads) {
      const int row = i / kHeadSize;
      const int c = i % kHeadSize;
      Element x = {};
      if (row < rows) {
        const Head<Element> head = {QueryRow(args_, piece.sequence, piece.kv_head, first + row),
                                    args_.q_norm_weight,
                                    args_.q_norm_weight != nullptr ? Load(norms, row) : 1};
        x = QueryChannel(args_, piece.sequence, past, first + row, head, c);
      }
      const SharedPtr<Element> to = As<Element>(queries + row * Layout::kQueryStride);
      if (HasTwoParts()) {
        // Relative to the largest, so that small scales stay within the range of 16 bits.
        const float scale = ScaleAt(args_, args_.k_scale, piece.kv_head, c);
        const float scaled = ToFloat(x) * (factor != 0.0f ? scale / factor : 0.0f);
        x = FromFloat<Element>(scaled);
        Store(to, Layout::kQueryBytes / static_cast<int>(sizeof(Element)) + c,
              FromFloat<Element>(scaled - ToFloat(x)));
      }
      Store(to, c, x);
    }
    return factor;
  }

  // Of a KV head's channels, by size.
  LEAN_ATTENTION_DEVICE float LargestKeyScale(int32_t kv_head) const {
    if (!args_.scale_per_channel) return Load(args_.k_scale);
    float largest = 0;
    for (int c = Lane(); c < kHeadSize; c += kWarpSize) {
      largest = fmaxf(largest, fabsf(ScaleAt(args_, args_.k_scale, kv_head, c)));
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
      largest = fmaxf(largest, ShuffleXor(largest, mask));
    }
    return largest;
  }

  LEAN_ATTENTION_DEVICE LaneRow<Element> LaneRowOf(const Piece& piece, const Lengths& lengths,
                                                   int row) const {
    const int32_t token = row / GroupSize(args_.problem);
    const KeyRange visible = VisibleKeys(args_.problem, lengths, token);
    GlobalPtr<const Element> bias = nullptr;
    if (args_.attention_bias != nullptr) {
      bias = args_.attention_bias +
             (piece.sequence * args_.bias_batch_stride +
              HeadOf(args_.problem, piece.kv_head, row) * args_.bias_head_stride +
              token * args_.bias_row_stride);
    }
    return {static_cast<int32_t>(visible.begin), static_cast<int32_t>(visible.end), bias};
  }

  // The warps' states of a tile, of rows [begin, begin + rows) of those from `first` on, merged;
  // then folded into those of the tiles before, or left in the workspace. A thread has the same
  // channels of the same rows in every tile.
  LEAN_ATTENTION_DEVICE void MergeWarps(const Piece& piece, int32_t tile, int first, int begin,
                                        int rows) const {
    const int turn = (tile - piece.tile_begin) % 2;
    for (int written = ThreadIndex(); written < rows * kHeadSize; written += kThreads) {
      ChannelState state = WarpState(0, written, rows);
      for (int warp = 1; warp < kWarps; ++warp) {
        state = MergeChannels(state, WarpState(warp, written, rows));
      }
      const int i = begin * kHeadSize + written;
      if (piece.tile_begin > 0) {
        StoreToRegion(piece, tile, first * kHeadSize + i, state);
        continue;
      }
      const int row = i / kHeadSize;
      if (tile > 0) state = MergeChannels(Folded(i, row, 1 - turn), state);
      const SharedPtr<float> folded = FoldedStates();
      Store(folded, i, state.o);
      if (i % kHeadSize == 0) {
        Store(folded, FoldedRow(row, turn), state.m);
        Store(folded, FoldedRow(row, turn) + layout_.rows, state.l);
      }
    }
  }

  // Writes what the first piece of a sequence and head has folded.
  LEAN_ATTENTION_DEVICE void FinishFirstPiece(const Piece& piece, int first, int rows) const {
    const int turn = (piece.tile_end - 1) % 2;
    for (int i = ThreadIndex(); i < rows * kHeadSize; i += kThreads) {
      const int row = i / kHeadSize;
      const ChannelState state = Folded(i, row, turn);
      if (piece.IsSplit()) {
        StoreToRegion(piece, 0, first * kHeadSize + i, state);
      } else {
        WriteOutput(args_, piece.sequence, piece.kv_head, first + row, i % kHeadSize, state);
      }
    }
  }

  // Counts this piece's tiles as arrived; whoever completes them merges all states and writes.
  LEAN_ATTENTION_DEVICE void Meet(const Piece& piece) const {
    const SharedPtr<int> is_last = As<int>(SharedMemory() + layout_.flag());
    const int32_t count = piece.tiling.count;
    SyncThreads();
    if (ThreadIndex() == 0) {
      const int32_t arriving = piece.tile_end - piece.tile_begin;
      ThreadFence();
      const int32_t before = AtomicAdd(args_.arrived + piece.region, arriving);
      ThreadFence();
      const bool completes = before + arriving == count;
      if (completes) AtomicAdd(args_.arrived + piece.region, -count);  // as it was before
      Store(is_last, 0, completes ? 1 : 0);
    }
    SyncThreads();
    if (Load(is_last) == 0) return;
    const int rows = RowsOf(piece);
    for (int i = ThreadIndex(); i < rows * kHeadSize; i += kThreads) {
      ChannelState state = LoadFromRegion(piece, 0, i);
      for (int32_t tile = piece.prefix_tiles; tile < count; ++tile) {
        state = MergeChannels(state, LoadFromRegion(piece, tile, i));
      }
      WriteOutput(args_, piece.sequence, piece.kv_head, i / kHeadSize, i % kHeadSize, state);
    }
  }

  // i counts the channels of the rows that the warps have written.
  LEAN_ATTENTION_DEVICE ChannelState WarpState(int warp, int i, int rows) const {
    const SharedPtr<const float> state = As<float>(SharedMemory() + layout_.state(warp));
    const int row = i / kHeadSize;
    return {Load(state, rows * kHeadSize + row), Load(state, rows * (kHeadSize + 1) + row),
            Load(state, i)};
  }

  LEAN_ATTENTION_DEVICE SharedPtr<float> FoldedStates() const {
    return As<float>(SharedMemory() + layout_.folded());
  }
  // m of a row; l lies layout_.rows after it. Two turns, since other threads still read the last
  // tile's when a row's first thread writes this one's.
  LEAN_ATTENTION_DEVICE int FoldedRow(int row, int turn) const {
    return layout_.rows * (kHeadSize + 2 * turn) + row;
  }
  LEAN_ATTENTION_DEVICE ChannelState Folded(int i, int row, int turn) const {
    const SharedPtr<const float> folded = FoldedStates();
    return {Load(folded, FoldedRow(row, turn)), Load(folded, FoldedRow(row, turn) + layout_.rows),
            Load(folded, i)};
  }

  // i counts the channels of all rows of a KV head.
  LEAN_ATTENTION_DEVICE GlobalPtr<float> RegionState(const Piece& piece, int32_t tile) const {
    return args_.states + (piece.region * region_.region_floats() + tile * region_.state_floats());
  }
  LEAN_ATTENTION_DEVICE void StoreToRegion(const Piece& piece, int32_t tile, int i,
                                           const ChannelState& state) const {
    const GlobalPtr<float> to = RegionState(piece, tile);
    Store(to, i, state.o);
    if (i % kHeadSize == 0) {
      Store(to, region_.rows * kHeadSize + i / kHeadSize, state.m);
      Store(to, region_.rows * (kHeadSize + 1) + i / kHeadSize, state.l);
    }
  }
  LEAN_ATTENTION_DEVICE ChannelState LoadFromRegion(const Piece& piece, int32_t tile, int i) const {
    const GlobalPtr<float> from = RegionState(piece, tile);
    return {Load(from, region_.rows * kHeadSize + i / kHeadSize),
            Load(from, region_.rows * (kHeadSize + 1) + i / kHeadSize), Load(from, i)};
  }

  const Args& args_;
  Layout layout_;
  RegionLayout region_;
  SharedStream stream_;
  BasicCut<SharedStream> cut_;
};

// Blocks of kThreads threads, SharedLayout::bytes() of shared memory each, as many as shares or
// fewer.
template <typename Element, typename Cache, int kHeadSize>
LEAN_ATTENTION_KERNEL(kThreads)
void DecodeAttention(const DecodeArgs<Element, Cache> args) {
  DecodeBlock<Element, Cache, kHeadSize>(args).Run();
}

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_DECODE_ATTENTION_H_
