// The weighted sum of a block's values. Included once per instruction set.

#if defined(LEAN_ATTENTION_OPS_CPU_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAN_ATTENTION_OPS_CPU_VALUES_INL_H_
#undef LEAN_ATTENTION_OPS_CPU_VALUES_INL_H_
#else
#define LEAN_ATTENTION_OPS_CPU_VALUES_INL_H_
#endif

#include "ops/cpu/blocks-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace lean_attention::cpu {
namespace HWY_NAMESPACE {

// What a block of keys adds to kRows rows of o.
struct ValueBlock {
  const float* weights;  // [keys, PaddedRows(kRows)]
  const float* decay;    // [kRows] what the sums so far are multiplied by
  const uint8_t* v;      // [keys] rows, row_bytes apart
  int64_t row_bytes;
  int64_t head_size;
  int keys;
  float* o;  // [kRows, stride]
  int64_t stride;
  const uint8_t* next_k;  // rows to fetch, as many and as long
  FetchPart part;         // of them
};

// o[r] = o[r] * decay[r] + sum_j weights[j][r] v[j] for kColumns vectors of columns from column h
// on; `load` reads one. Each key brings in as many bytes of next_k as it reads, or its part of
// them.
template <ElementType kType, int kRows, int kColumns, typename LoadValue>
HWY_INLINE void SumColumns(const ValueBlock& b, int64_t h, LoadValue load) {
  constexpr int kPadded = PaddedRows(kRows);
  constexpr int64_t kBytes = BytesOf(kType, kColumns * kLanes);
  const FloatTag d;
  float* HWY_RESTRICT o = b.o + h;
  FloatVec sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    const FloatVec decay = hn::Set(d, b.decay[r]);
    for (int c = 0; c < kColumns; ++c) {
      sum[r][c] = hn::Mul(Load(o + r * b.stride + c * kLanes), decay);
    }
  }
  const float* HWY_RESTRICT weights = b.weights;
  const uint8_t* HWY_RESTRICT v = b.v;
  const uint8_t* fetch =
      b.next_k + (b.part.index * b.row_bytes + BytesOf(kType, h)) * b.keys / b.part.count;
  // One key at a time: unrolled, the sums no longer fit the registers.
  for (int j = 0; j < b.keys; ++j) {
    // Constant sizes keep the loop short.
    Fetch<kType, kRows>(fetch, b.part.count == 1 ? kBytes : kBytes / 2);
    fetch += kBytes / b.part.count;
    if constexpr (kColumns < kRows) {
      FloatVec value[kColumns];
      for (int c = 0; c < kColumns; ++c) value[c] = load(v, h + c * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const FloatVec weight = hn::Set(d, weights[r]);
        for (int c = 0; c < kColumns; ++c) sum[r][c] = hn::MulAdd(weight, value[c], sum[r][c]);
      }
    } else {
      FloatVec weight[kRows];
      for (int r = 0; r < kRows; ++r) weight[r] = hn::Set(d, weights[r]);
      for (int c = 0; c < kColumns; ++c) {
        const FloatVec value = load(v, h + c * kLanes);
        for (int r = 0; r < kRows; ++r) sum[r][c] = hn::MulAdd(weight[r], value, sum[r][c]);
      }
    }
    v += b.row_bytes;
    weights += kPadded;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) Store(sum[r][c], o + r * b.stride + c * kLanes);
  }
}

// All columns.
template <ElementType kType, int kRows>
HWY_INLINE void SumRows(const ValueBlock& b) {
  constexpr int kColumns = RegisterTile<kType, kRows>::kColumns;
  const auto whole = [](const uint8_t* row, int64_t i)
                         HWY_ATTR { return Format<kType>::Load(row, i); };
  int64_t h = 0;
  const auto left = [&] { return (b.head_size - h) / kLanes; };
  if (kRows == 1 && left() == 12) {  // a head size of 96 in one go
    SumColumns<kType, kRows, 12>(b, h, whole);
    h += 12 * kLanes;
  }
  // Four vectors that are left are better two and two than three and one.
  while (left() >= kColumns && (kColumns != 3 || left() != 4)) {
    SumColumns<kType, kRows, kColumns>(b, h, whole);
    h += kColumns * kLanes;
  }
  for (; left() >= 2; h += 2 * kLanes) SumColumns<kType, kRows, 2>(b, h, whole);
  if (left() == 1) {
    SumColumns<kType, kRows, 1>(b, h, whole);
    h += kLanes;
  }
  if (const int rest = static_cast<int>(b.head_size - h); rest > 0) {
    SumColumns<kType, kRows, 1>(b, h, [&](const uint8_t* row, int64_t i) HWY_ATTR {
      return LoadFirst<kType>(row, i, rest);
    });
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace lean_attention::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // per-target include guard
