// How a block's shared memory is laid out, and how large its parts are.

#ifndef LEAN_ATTENTION_OPS_GPU_SHARED_LAYOUT_H_
#define LEAN_ATTENTION_OPS_GPU_SHARED_LAYOUT_H_

#include "ops/gpu/cache_format.h"
#include "ops/gpu/stream.h"

namespace lean_attention::gpu {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = kWarps * kWarpSize;
inline constexpr int kRows = 16;  // query rows that a block works on at a time
inline constexpr int kKeys = 16;  // that a warp works on at a time

template <typename Cache, int kHeadSize>
struct SharedLayout {
  static_assert(kHeadSize % 16 == 0, "matrix instructions take 16 channels at a time");

  // Rows an odd multiple of 16 bytes apart: those of a matrix are in different banks.
  static constexpr int StrideOf(int row_bytes) {
    return row_bytes + (row_bytes % 32 == 0 ? 16 : 0);
  }
  static constexpr int kStride = StrideOf(kHeadSize * static_cast<int>(sizeof(Cache)));
  static constexpr int kQueryStride = StrideOf(kHeadSize * 2);
  // Queries in two parts, the second of them what the first leaves out, where scales of channels
  // are in them.
  static constexpr int kQueryParts = kIsQuantised<Cache> ? 2 : 1;
  static constexpr int kQueryBytes = kRows * kQueryStride;
  static constexpr int kMatrixBytes = kKeys * kStride;
  // Blocks of keys, K and V, in flight or in use by each warp: as many as let two blocks of threads
  // share a multiprocessor, and two at least. On AMD they are in registers.
  static constexpr int kStageBytes = kWarps * 2 * kMatrixBytes;
  static constexpr int kStages = kStageBytes > 24 * 1024 ? 2 : (kStageBytes > 16 * 1024 ? 4 : 5);
  static constexpr int kRingBytes = kVendor == Vendor::kAmd ? 0 : kStages * 2 * kMatrixBytes;
  // For states, those of the warps and the folded ones: so that 16 rows of 256 channels fit the
  // 163 KiB of sm_80 and, twice, the 64 KiB of AMD's compute units, both with 16-bit caches.
  static constexpr int kMaxStateBytes = 20992;

  int rows;         // of a KV head that are worked on at a time, at most kRows
  int merged_rows;  // of these whose states the warps have in shared memory at a time
  int batch_size;   // B

  LEAN_HOST_DEVICE SharedLayout(int64_t rows_per_kv_head, int32_t batch)
      : rows(rows_per_kv_head < kRows ? static_cast<int>(rows_per_kv_head) : kRows),
        batch_size(batch) {
    const int most = (kMaxStateBytes - 4 * folded_floats()) / (kWarps * 4 * (kHeadSize + 2));
    const int turns = (rows + most - 1) / most;
    merged_rows = (rows + turns - 1) / turns;
  }

  LEAN_HOST_DEVICE int flag() const { return 0; }  // whether this block arrived last
  LEAN_HOST_DEVICE int queries(int part) const { return 16 + part * kQueryBytes; }
  LEAN_HOST_DEVICE int ring(int warp) const { return queries(kQueryParts) + warp * kRingBytes; }
  // The states of one tile that the warps have: o [merged_rows, H], m, l each.
  LEAN_HOST_DEVICE int state_floats() const { return merged_rows * (kHeadSize + 2); }
  LEAN_HOST_DEVICE int state(int warp) const { return ring(kWarps) + warp * 4 * state_floats(); }
  // All tiles of a piece so far: o [rows, H], and two turns of m [rows], l [rows].
  LEAN_HOST_DEVICE int folded() const { return state(kWarps); }
  LEAN_HOST_DEVICE int folded_floats() const { return rows * (kHeadSize + 4); }
  LEAN_HOST_DEVICE int stream() const { return (folded() + 4 * folded_floats() + 15) / 16 * 16; }
  LEAN_HOST_DEVICE int bytes() const {
    return stream() + batch_size * SharedStream::kBytesPerSequence;
  }
};

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_SHARED_LAYOUT_H_
