// From the raw scores of a block to its weights, online. Included once per instruction set.

#if defined(LEAN_ATTENTION_OPS_CPU_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAN_ATTENTION_OPS_CPU_SOFTMAX_INL_H_
#undef LEAN_ATTENTION_OPS_CPU_SOFTMAX_INL_H_
#else
#define LEAN_ATTENTION_OPS_CPU_SOFTMAX_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>

#include "ops/cpu/blocks-inl.h"
#include "ops/decode/softmax_state.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace lean_attention::cpu {
namespace HWY_NAMESPACE {

// 2^x for x <= 0, and 0 below 2^-127. The exact 1 at 0. Relative error below 1e-7: a degree-6
// minimax polynomial (Lawson's iteration, its error 2e-9) over [-1/2, 1/2] and float32 rounding.
HWY_INLINE FloatVec Exp2(FloatVec x) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> words;
  // Adding this rounds to an integer, whose bits then are the lowest ones, an exponent's bias
  // added.
  const FloatVec magic = hn::Set(d, 12582912.0f + 127.0f);  // 1.5 * 2^23
  const FloatVec clamped = hn::Max(hn::Set(d, -127.0f), x);
  const FloatVec shifted = hn::Add(clamped, magic);
  const FloatVec f = hn::Sub(clamped, hn::Sub(shifted, magic));
  FloatVec p = hn::Set(d, 0.00015353362f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.0013398874f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.009618437f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.055503324f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24022648f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931472f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(words, shifted))));
}

// The maximum of the lanes that belong to the same row, in each of them: lane i belongs to row
// i % kPadded.
template <int kPadded>
HWY_INLINE FloatVec MaxOfRows(FloatVec v) {
  const FloatTag d;
  if constexpr (kLanes == 8) v = hn::Max(v, hn::ConcatLowerUpper(d, v, v));
  if constexpr (kPadded <= 2) v = hn::Max(v, hn::Shuffle1032(v));
  if constexpr (kPadded == 1) v = hn::Max(v, hn::Shuffle2301(v));
  return v;
}

// NaN where s is one, else 0. (Maxima and Exp2 may drop a NaN; and Ne is false for one.)
HWY_INLINE FloatVec NanOf(FloatVec s) { return hn::IfThenZeroElse(hn::Eq(s, s), s); }

// The online softmax of a block of rows, as it goes from block to block of keys.
struct RunningSoftmax {
  float* m;      // [kLanes] of the lane's row, in units of log 2
  float* l;      // [kLanes] the lane's part of its row's sum
  float* decay;  // [kLanes] what the row's sums before the last block are multiplied by
};

// Raw dot products -> scores in units of log 2, -inf where a row does not see a key; in place, up
// to whole vectors. Order: scale, softcap, bias, mask. Adds NaN to `nan` where a visible score is
// one.
template <int kRows>
HWY_INLINE void MaskedScores(const Rows& rows, int r, int64_t begin, int keys, float* scores,
                             FloatVec* nan) {
  constexpr int kPadded = PaddedRows(kRows);
  const FloatTag d;
  float bias[kMaxBlockKeys * kPadded] = {};
  alignas(32) float first[kLanes];
  alignas(32) float last[kLanes];
  alignas(32) float index[kLanes];
  // Positions relative to the block; small enough to be exact in float32.
  const auto relative = [&](int64_t position) {
    return static_cast<float>(std::clamp<int64_t>(position - begin, 0, keys));
  };
  for (int lane = 0; lane < kLanes; ++lane) {
    const int row = r + std::min(lane % kPadded, kRows - 1);
    first[lane] = relative(rows.visible_begin[row]);
    last[lane] = relative(rows.visible_end[row]);
    index[lane] = static_cast<float>(lane / kPadded);
  }
  if (rows.bias != nullptr) {
    for (int row = 0; row < kRows; ++row) {
      float line[kMaxBlockKeys];
      ReadFloats(rows.bias_type, rows.bias[r + row], begin, keys, line);
      for (int j = 0; j < keys; ++j) bias[j * kPadded + row] = line[j];
    }
  }
  for (int i = 0; i < keys * kPadded; i += kLanes) {
    const FloatVec key =
        hn::Add(Load(index), hn::Set(d, static_cast<float>(i / kPadded)));  // kPadded divides i
    const auto visible = hn::And(hn::Ge(key, Load(first)), hn::Lt(key, Load(last)));
    FloatVec s = hn::IfThenElseZero(visible, Load(scores + i));
    *nan = hn::Add(*nan, NanOf(s));
    s = hn::Mul(s, hn::Set(d, rows.scale));
    if (rows.softcap > 0) {
      s = hn::Mul(hn::Set(d, rows.softcap), hn::Tanh(d, hn::Mul(s, hn::Set(d, 1 / rows.softcap))));
    }
    if (rows.bias != nullptr) {
      s = hn::Add(s, Load(bias + i));
      *nan = hn::Add(*nan, NanOf(s));
    }
    s = hn::Mul(s, hn::Set(d, kLog2E));
    Store(hn::IfThenElse(visible, s, hn::Set(d, -INFINITY)), scores + i);
  }
}

// Raw dot products [keys, PaddedRows(kRows)] of rows r, r + 1, ... -> weights 2^(score - m), in
// place; updates the running softmax.
template <int kRows>
HWY_INLINE void SoftmaxBlock(const Rows& rows, int r, int64_t begin, int keys, float* scores,
                             RunningSoftmax running) {
  constexpr int kPadded = PaddedRows(kRows);
  const FloatTag d;
  const int count = keys * kPadded;
  bool plain = rows.softcap == 0 && rows.bias == nullptr && rows.scale > 0;
  for (int i = r; i < r + kRows; ++i) {
    plain = plain && rows.visible_begin[i] <= begin && rows.visible_end[i] >= begin + keys;
  }
  FloatVec nan = hn::Zero(d);  // stays 0 unless a score is NaN
  // What the stored numbers are multiplied by to become scores.
  const FloatVec factor = hn::Set(d, plain ? rows.scale * kLog2E : 1.0f);
  const int rest = count % kLanes;
  if (plain) {
    // The last vector is filled up with what it holds anyway, and not counted below.
    for (int i = count; rest != 0 && i < count - rest + kLanes; ++i) {
      scores[i] = scores[i - kPadded];
    }
  } else {
    MaskedScores<kRows>(rows, r, begin, keys, scores, &nan);
  }

  FloatVec top = hn::Set(d, -INFINITY);
  for (int i = 0; i < count; i += kLanes) {
    const FloatVec s = Load(scores + i);
    nan = hn::Add(nan, NanOf(s));
    top = hn::Max(top, s);
  }
  const FloatVec m_old = Load(running.m);
  const FloatVec m = hn::Max(m_old, MaxOfRows<kPadded>(hn::Mul(top, factor)));
  // Nothing visible so far: any finite reference gives 2^-inf = 0 and never inf - inf.
  const FloatVec reference = hn::IfThenZeroElse(hn::Eq(m, hn::Set(d, -INFINITY)), m);
  FloatVec sum = nan;
  const auto weigh = [&](int i) HWY_ATTR {
    // Two roundings, as the maximum's, so that no difference is above 0.
    const FloatVec p = Exp2(hn::Sub(hn::Mul(Load(scores + i), factor), reference));
    Store(p, scores + i);
    return p;
  };
  for (int i = 0; i + kLanes <= count; i += kLanes) sum = hn::Add(sum, weigh(i));
  if (rest != 0) {
    sum = hn::Add(sum, hn::IfThenElseZero(hn::FirstN(d, rest), weigh(count - rest)));
  }
  const FloatVec decay = Exp2(hn::Sub(m_old, reference));
  Store(m, running.m);
  Store(hn::MulAdd(Load(running.l), decay, sum), running.l);
  Store(decay, running.decay);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace lean_attention::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // per-target include guard
