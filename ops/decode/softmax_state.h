// The online-softmax state of one query row over a set of keys, and its associative merge.
//
//   m = max_j s_j        l = sum_j 2^(s_j - m)        o = sum_j 2^(s_j - m) v_j
//
// Scores s are in units of log 2: the caller multiplies them by kLog2E once, and powers of two cost
// less than those of e.
//
// The state of a union of disjoint sets follows from their states alone (Milakov and Gimelshein,
// arXiv 1805.02867; LeanAttention, arXiv 2405.10480, section 4):
//
//   m = max(m_a, m_b)    l = l_a 2^(m_a - m) + l_b 2^(m_b - m)    o likewise
//
// Associative in exact arithmetic, not in floating point: callers merge in order of position.

#ifndef LEAN_ATTENTION_OPS_DECODE_SOFTMAX_STATE_H_
#define LEAN_ATTENTION_OPS_DECODE_SOFTMAX_STATE_H_

#include <cfloat>
#include <cmath>

#include "ops/decode/problem.h"

namespace lean_attention {

inline constexpr float kLog2E = 1.44269504f;

// What the two sides are multiplied by.
struct MergeWeights {
  float m;  // of the union
  float a;
  float b;
};

// 2^(x - m) for a state whose maximum is x; a state that saw nothing (x = -inf) weighs nothing.
LEAN_HOST_DEVICE inline float WeightOf(float x, float m) { return x == m ? 1.0f : exp2f(x - m); }

LEAN_HOST_DEVICE inline MergeWeights Merge(float m_a, float m_b) {
  // Written so that a NaN on either side stays a NaN.
  const float m = m_a > m_b ? m_a : (m_b >= m_a ? m_b : m_a + m_b);
  return {m, WeightOf(m_a, m), WeightOf(m_b, m)};
}

// What a finished row is multiplied by to become the output. The sink (in units of log 2; -inf
// where there is none) joins the denominator once, without a value. Rows that see nothing, or only
// keys whose bias is -inf or -FLT_MAX, give zeros; a NaN among the scores, which shows in l, stays
// one.
LEAN_HOST_DEVICE inline float OutputScale(float m, float l, float sink) {
  if (m <= -FLT_MAX) return l != l ? l : 0.0f;
  if (sink == -INFINITY) return 1.0f / l;
  const MergeWeights w = Merge(m, sink);
  return w.a / (l * w.a + w.b);
}

}  // namespace lean_attention

#endif  // LEAN_ATTENTION_OPS_DECODE_SOFTMAX_STATE_H_
