#include "ops/emulator/matrix.h"

#include <cstring>

#include "ops/emulator/access.h"
#include "ops/emulator/numbers.h"

namespace lean_attention::emulator {
namespace {

template <typename Fragments>
Fragments& At(Slot* slots, int lane) {
  static_assert(sizeof(Fragments) <= sizeof(Slot));
  return *reinterpret_cast<Fragments*>(slots[lane].bytes);
}

uint16_t Half(uint32_t pair, int which) { return static_cast<uint16_t>(pair >> (16 * which)); }

// d += a b; all row by row.
template <int kColumns>
void Multiply(const double (&a)[16][16], const double (&b)[16][kColumns],
              double (&d)[16][kColumns]) {
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < kColumns; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
}

template <float (*kToFloat)(uint16_t)>
void FinishMma(Warp&, Slot* slots) {
  double a[16][16];
  double b[16][8];
  double d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const MmaFragments& f = At<MmaFragments>(slots, lane);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 2; ++i) {
      for (int r = 0; r < 4; ++r) {
        a[g + r % 2 * 8][2 * t + i + r / 2 * 8] = kToFloat(Half(f.a[r], i));
      }
      for (int r = 0; r < 2; ++r) b[2 * t + i + r * 8][g] = kToFloat(Half(f.b[r], i));
      for (int r = 0; r < 2; ++r) d[g + r * 8][2 * t + i] = f.d[2 * r + i];
    }
  }
  Multiply(a, b, d);
  for (int lane = 0; lane < 32; ++lane) {
    MmaFragments& f = At<MmaFragments>(slots, lane);
    for (int i = 0; i < 4; ++i) {
      f.d[i] = static_cast<float>(d[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2]);
    }
  }
}

template <float (*kToFloat)(uint16_t)>
void FinishMfma(Warp&, Slot* slots) {
  double a[16][16];
  double b[16][16];
  double d[16][16];
  for (int lane = 0; lane < 64; ++lane) {
    const MfmaFragments& f = At<MfmaFragments>(slots, lane);
    for (int i = 0; i < 4; ++i) {
      const int k = 4 * (lane / 16) + i;
      a[lane % 16][k] = kToFloat(f.a[i]);
      b[k][lane % 16] = kToFloat(f.b[i]);
      d[k][lane % 16] = f.d[i];
    }
  }
  Multiply(a, b, d);
  for (int lane = 0; lane < 64; ++lane) {
    MfmaFragments& f = At<MfmaFragments>(slots, lane);
    for (int i = 0; i < 4; ++i) f.d[i] = static_cast<float>(d[4 * (lane / 16) + i][lane % 16]);
  }
}

template <typename Fragments>
void Run(Fragments& fragments, void (*finish)(Warp&, Slot*), Place place) {
  Thread& thread = *current;
  thread.place = place;
  std::memcpy(NextSlot(thread), &fragments, sizeof(fragments));
  const Slot* slots = thread.block->grid->Collect(thread, finish);
  std::memcpy(&fragments, slots[thread.lane].bytes, sizeof(fragments));
}

}  // namespace

void Mma(MmaFragments& fragments, bool bfloat16, Place place) {
  Run(fragments, bfloat16 ? FinishMma<BFloat16ToFloat> : FinishMma<HalfToFloat>, place);
}

void Mfma(MfmaFragments& fragments, bool bfloat16, Place place) {
  Run(fragments, bfloat16 ? FinishMfma<BFloat16ToFloat> : FinishMfma<HalfToFloat>, place);
}

void LoadMatrices(uint32_t* registers, int matrices, int64_t row, bool transposed, Place place) {
  Thread& thread = *current;
  if (thread.lane < 8 * matrices) CheckShared(row, {16, 16}, place);
  thread.place = place;
  std::memcpy(NextSlot(thread), &row, sizeof(row));
  const Slot* slots = thread.block->grid->Collect(thread, nullptr);
  int64_t rows[32];
  for (int i = 0; i < 8 * matrices; ++i) std::memcpy(&rows[i], slots[i].bytes, sizeof(row));

  const int g = thread.lane / 4;
  const int t = thread.lane % 4;
  for (int m = 0; m < matrices; ++m) {
    if (transposed) {
      uint16_t pair[2];
      for (int i = 0; i < 2; ++i) {
        const int64_t element = rows[8 * m + 2 * t + i] + 2 * g;
        std::memcpy(&pair[i], ReadShared(element, {2, 2}, place), sizeof(pair[i]));
      }
      std::memcpy(&registers[m], pair, sizeof(pair));
    } else {
      std::memcpy(&registers[m], ReadShared(rows[8 * m + g] + 4 * t, {4, 4}, place), 4);
    }
  }
}

}  // namespace lean_attention::emulator
