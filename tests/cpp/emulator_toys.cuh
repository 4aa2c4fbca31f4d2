// Small kernels that use every name of ops/gpu/portable.h. Each can be built with a fault planted
// in it: the emulator has to notice. nvcc and hipcc compile them too.

#ifndef LEAN_ATTENTION_TESTS_CPP_EMULATOR_TOYS_CUH_
#define LEAN_ATTENTION_TESTS_CPP_EMULATOR_TOYS_CUH_

#include "ops/gpu/portable.h"

namespace lean_attention::gpu::toys {

enum class Planted {
  kNothing,
  kNoBarrier,          // between writes and reads of other threads
  kNoBarrierReuse,     // between reads and the next writes of other threads
  kNoSyncWarp,         // the same within a warp
  kNoWait,             // for asynchronous copies
  kOneGroupTooFew,     // waited for
  kReadPastEnd,        // of a global buffer, by one element
  kReadPastSharedEnd,  // of shared memory, by one element
  kNoFenceBefore,      // the counter
  kNoFenceAfter,       // the counter
  kSwappedRows,        // of a matrix fragment
};

// Block sums. sums[block] = the sum of x[block * count], ... x[block * count + count - 1]; one
// float of shared memory for each warp.
template <Planted planted>
LEAN_ATTENTION_KERNEL(256)
void BlockSums(GlobalPtr<const float> x, int count, GlobalPtr<float> sums) {
  const SharedPtr<float> warp_sums = As<float>(SharedMemory());
  const int warps = BlockThreads() / kWarpSize;
  x += int64_t{1} * BlockIndex() * count;

  float sum = 0;
  const int end = planted == Planted::kReadPastEnd ? count + 1 : count;
  for (int i = ThreadIndex(); i < end; i += BlockThreads()) sum += Load(x, i);
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) sum += ShuffleXor(sum, mask);

  if (Lane() == 0) Store(warp_sums, Warp(), sum);
  if (planted != Planted::kNoBarrier) SyncThreads();

  if (ThreadIndex() == 0) {
    float total = 0;
    const int last = planted == Planted::kReadPastSharedEnd ? warps + 1 : warps;
    for (int i = 0; i < last; ++i) total += Load(warp_sums, i);
    Store(sums, BlockIndex(), total);
  }
}

// Each lane hands its value to the next lane through shared memory, a float for each thread.
template <Planted planted>
LEAN_ATTENTION_KERNEL(256)
void RotateInWarp(GlobalPtr<const float> x, GlobalPtr<float> y) {
  const SharedPtr<float> values = As<float>(SharedMemory()) + Warp() * kWarpSize;
  Store(values, Lane(), Load(x, ThreadIndex()));
  if (planted != Planted::kNoSyncWarp) SyncWarp();
  Store(y, ThreadIndex(), Load(values, (Lane() + 1) % kWarpSize));
}

// Column sums of x[rows][4 * threads], by one block, through two stages of shared memory of a row
// each. A thread copies four columns and sums those that its mirror image has copied.
template <Planted planted>
LEAN_ATTENTION_KERNEL(256)
void PipelinedColumnSums(GlobalPtr<const float> x, int rows, GlobalPtr<float> sums) {
  using Columns = Vec<float, 4>;
  constexpr int kStages = 2;
  const SharedPtr<std::byte> stages = SharedMemory();
  const int64_t row_bytes = BlockThreads() * int64_t{sizeof(Columns)};
  const int mine = BlockThreads() - 1 - ThreadIndex();

  const auto copy = [&](int row) {
    if (row < rows) {
      const int64_t column = ThreadIndex() * int64_t{sizeof(Columns)};
      CopyAsync16(stages + row % kStages * row_bytes + column,
                  As<const std::byte>(x) + row * row_bytes + column);
    }
    CommitCopies();
  };

  Columns sum = {};
  copy(0);
  for (int row = 0; row < rows; ++row) {
    copy(row + 1);
    if (planted == Planted::kOneGroupTooFew) {
      WaitCopies<2>();
    } else if (planted != Planted::kNoWait) {
      WaitCopies<1>();
    }
    if (planted != Planted::kNoBarrier) SyncThreads();
    const auto columns = Load(As<Columns>(stages + row % kStages * row_bytes), mine);
    for (int i = 0; i < 4; ++i) sum[i] += columns[i];
    if (planted != Planted::kNoBarrierReuse) SyncThreads();
  }
  Store(As<Columns>(sums), mine, sum);
}

// The sum of x[count], split among all blocks; whichever arrives last adds the partial sums, in
// order. partials: [blocks][threads]; counter: zero before and after. One int of shared memory.
template <Planted planted>
LEAN_ATTENTION_KERNEL(256)
void LastArriverSum(GlobalPtr<const float> x, int count, GlobalPtr<float> partials,
                    GlobalPtr<unsigned> counter, GlobalPtr<float> sum) {
  const SharedPtr<int> is_last = As<int>(SharedMemory());
  const int share = (count + GridBlocks() - 1) / GridBlocks();
  const int begin = BlockIndex() * share;
  const int end = begin + share < count ? begin + share : count;

  float partial = 0;
  for (int i = begin + ThreadIndex(); i < end; i += BlockThreads()) partial += Load(x, i);
  Store(partials, BlockIndex() * BlockThreads() + ThreadIndex(), partial);

  if (planted != Planted::kNoBarrier) SyncThreads();
  if (ThreadIndex() == 0) {
    const unsigned last = static_cast<unsigned>(GridBlocks() - 1);
    if (planted != Planted::kNoFenceBefore) ThreadFence();
    const unsigned arrived = AtomicIncrementWrap(counter, last);
    if (planted != Planted::kNoFenceAfter) ThreadFence();
    Store(is_last, 0, arrived == last ? 1 : 0);
  }
  SyncThreads();
  if (Uniform(Load(is_last)) == 0) return;

  float total = 0;
  for (int i = Lane(); i < GridBlocks() * BlockThreads(); i += kWarpSize)
    total += Load(partials, i);
  for (int delta = kWarpSize / 2; delta > 0; delta /= 2) total += ShuffleDown(total, delta);
  if (ThreadIndex() == 0) Store(sum, 0, total);
}

// c[16][16] = a[16][16] b[16][16], by one warp; b is transposed where kTransposed. Shared memory of
// 1 KiB holds both.
template <typename Element, bool kTransposed, Planted planted>
LEAN_ATTENTION_KERNEL(64)
void MatrixProduct(GlobalPtr<const Element> a, GlobalPtr<const Element> b, GlobalPtr<float> c) {
  const SharedPtr<Element> a_tile = As<Element>(SharedMemory());
  const SharedPtr<Element> b_tile = a_tile + 16 * 16;
  for (int i = Lane(); i < 16 * 16; i += kWarpSize) {
    Store(a_tile, i, Load(a, i));
    Store(b_tile, i, Load(b, i));
  }
  SyncWarp();

#if LEAN_ATTENTION_AMD
  const int group = Lane() / 16;
  const int index = Lane() % 16;
  Element a_fragment[4], b_fragment[4];
  for (int i = 0; i < 4; ++i) {
    const int k = 4 * group + i;
    a_fragment[i] = Load(a_tile, 16 * (planted == Planted::kSwappedRows ? index ^ 1 : index) + k);
    b_fragment[i] = Load(b_tile, kTransposed ? 16 * index + k : 16 * k + index);
  }
  float d[4] = {};
  Mfma16x16x16(d, a_fragment, b_fragment);
  for (int i = 0; i < 4; ++i) Store(c, 16 * (4 * group + i) + index, d[i]);
#else
  // Of the four matrices that a load takes, lane / 8 is this lane's: rows first, then columns.
  const int row = Lane() % 8 + Lane() / 8 % 2 * 8;
  const int column = Lane() / 16 * 8;
  uint32_t a_fragment[4], b_fragment[4];
  const int a_row = planted == Planted::kSwappedRows ? row ^ 1 : row;
  LoadMatrixX4(a_fragment, As<std::byte>(a_tile + 16 * a_row + column));
  if (kTransposed) {
    // Rows of memory are columns of b: matrices in the order (columns, rows) 00, 08, 80, 88.
    const int b_row = Lane() % 8 + Lane() / 16 * 8;
    LoadMatrixX4(b_fragment, As<std::byte>(b_tile + 16 * b_row + Lane() / 8 % 2 * 8));
  } else {
    LoadMatrixX4Transposed(b_fragment, As<std::byte>(b_tile + 16 * row + column));
  }
  for (int half = 0; half < 2; ++half) {
    float d[4] = {};
    MmaM16N8K16<Element>(d, a_fragment, b_fragment + 2 * half);
    for (int i = 0; i < 4; ++i) {
      Store(c, 16 * (Lane() / 4 + i / 2 * 8) + 8 * half + 2 * (Lane() % 4) + i % 2, d[i]);
    }
  }
#endif
}

// Everything else: y[i] for lane i, from x[i].
template <typename Element>
LEAN_ATTENTION_KERNEL(64)
void Numbers(GlobalPtr<const float> x, GlobalPtr<const Fp8E4M3> fp8, GlobalPtr<const int8_t> int8,
             GlobalPtr<int> count, GlobalPtr<float> y) {
  const Element rounded = FromFloat<Element>(Load(x, Lane()));
  const uint32_t pair = PackPair<Element>(ToFloat(rounded), 1.0f);
  float value = Exp2(ToFloat(Element{static_cast<uint16_t>(pair & 0xFFFF)}));
  value += ToFloat(Load(fp8, Lane())) + ToFloat(Load(int8, Lane()));
  const int64_t lanes = ShuffleUp(ShuffleFrom(int64_t{1} << 40, 3), 1);
  if (Any(lanes != int64_t{1} << 40) || Ballot(Lane() == 1) != 2) value = 0;
  AtomicAdd(count, 1);
  Store(y, Lane(), value);
}

}  // namespace lean_attention::gpu::toys

#endif  // LEAN_ATTENTION_TESTS_CPP_EMULATOR_TOYS_CUH_
