// Steps whose numbers a test chooses, and what is compared of two of them.

#ifndef LEAN_ATTENTION_TESTS_CPP_KERNEL_SCENES_H_
#define LEAN_ATTENTION_TESTS_CPP_KERNEL_SCENES_H_

#include <cstdint>

#include "tests/cpp/kernel_step.h"

namespace lean_attention::testing {

// Queries and keys of 200 throughout: equal scores of 40,000 * H * scale.
Step WithEqualHugeScores(const StepSpec& spec);

// Scores of 6e4 at every fiftieth key from the seventh on, of -6e4 at the others, times the scale:
// one pair of elements makes them, exactly. For one sequence, one token and one head.
Step WithScoresFarApart(const StepSpec& spec);

// The bias of keys [begin, end) of every row is `mask`.
Step WithMaskedKeys(const StepSpec& spec, int64_t begin, int64_t end, double mask);

// One sequence of a batch by itself, in a cache of as many rows.
Step Alone(const Step& batch, int64_t sequence);

// That two steps left the same output and caches, bit by bit.
void ExpectSameBits(const Step& step, const Step& other);

// The same of one sequence of each; caches have as many rows.
void ExpectSameBitsOf(int64_t sequence, const Step& step, int64_t other_sequence,
                      const Step& other);

}  // namespace lean_attention::testing

#endif  // LEAN_ATTENTION_TESTS_CPP_KERNEL_SCENES_H_
