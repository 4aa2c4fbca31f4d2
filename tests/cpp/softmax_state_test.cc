#include "ops/decode/softmax_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace lean_attention {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct State {
  float m = -kInf;
  float l = 0;
  float o = 0;
};

State Of(const std::vector<float>& scores, const std::vector<float>& values) {
  State s;
  for (float x : scores) s.m = std::max(s.m, x);
  for (size_t i = 0; i < scores.size(); ++i) {
    const float p = s.m == -kInf ? 0 : std::exp2(scores[i] - s.m);
    s.l += p;
    s.o += p * values[i];
  }
  return s;
}

State MergeOf(const State& a, const State& b) {
  const MergeWeights w = Merge(a.m, b.m);
  return {w.m, a.l * w.a + b.l * w.b, a.o * w.a + b.o * w.b};
}

TEST(Merge, EqualsTheStateOfTheUnion) {
  const State whole = Of({1, 5, -2, 3}, {1, 2, 3, 4});
  const State merged = MergeOf(Of({1, 5}, {1, 2}), Of({-2, 3}, {3, 4}));
  EXPECT_EQ(merged.m, whole.m);
  EXPECT_NEAR(merged.l, whole.l, 1e-6);
  EXPECT_NEAR(merged.o, whole.o, 1e-6);
}

TEST(Merge, AStateThatSawNothingChangesNothing) {
  const State some = Of({1, 5}, {1, 2});
  for (const State& merged : {MergeOf(State(), some), MergeOf(some, State())}) {
    EXPECT_EQ(merged.m, some.m);
    EXPECT_EQ(merged.l, some.l);
    EXPECT_EQ(merged.o, some.o);
  }
  const State nothing = MergeOf(State(), State());
  EXPECT_EQ(nothing.m, -kInf);
  EXPECT_EQ(nothing.l, 0);
}

TEST(Merge, StaysFiniteForScoresFarApart) {
  const State merged = MergeOf(Of({-6e4f}, {1}), Of({6e4f}, {2}));
  EXPECT_EQ(merged.o / merged.l, 2);
}

TEST(Merge, KeepsANaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(Merge(nan, 1).m));
  EXPECT_TRUE(std::isnan(Merge(1, nan).m));
}

TEST(OutputScale, GivesZeroForRowsThatSeeNothing) {
  EXPECT_EQ(OutputScale(-kInf, 0, -kInf), 0);
  EXPECT_EQ(OutputScale(-std::numeric_limits<float>::max(), 7, -kInf), 0);
  EXPECT_EQ(OutputScale(-kInf, 0, 1), 0);
}

TEST(OutputScale, KeepsANaN) {
  EXPECT_TRUE(std::isnan(OutputScale(-kInf, std::numeric_limits<float>::quiet_NaN(), -kInf)));
}

TEST(OutputScale, CountsTheSinkOnce) {
  const State s = Of({1, 2}, {1, 1});
  EXPECT_FLOAT_EQ(OutputScale(s.m, s.l, -kInf), 1 / s.l);
  // o * scale with o = l: the values' share of the denominator.
  for (float sink : {-3.0f, 0.5f, 40.0f}) {
    const double weights = std::exp2(1.0) + std::exp2(2.0);
    EXPECT_NEAR(s.l * OutputScale(s.m, s.l, sink), weights / (weights + std::exp2(double{sink})),
                1e-6);
  }
}

}  // namespace
}  // namespace lean_attention
