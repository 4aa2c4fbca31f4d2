// The plain truth of a decode step, in double.

#ifndef LEAN_ATTENTION_TESTS_CPP_KERNEL_REFERENCE_H_
#define LEAN_ATTENTION_TESTS_CPP_KERNEL_REFERENCE_H_

#include "tests/cpp/kernel_step.h"

namespace lean_attention::testing {

// Checks what the kernel left behind. The cache: earlier rows bit by bit, this step's rows (rotated
// keys to within rounding), untouched rows of a shared cache and zeros in a copied one after them.
// The output: against attention over that cache, to within 2e-6 and the rounding of its type.
// `before` is the step before it was run.
void ExpectRight(const Step& step, const Step& before);

// Runs the step in one share and checks it.
void ExpectRunIsRight(const Step& step);

}  // namespace lean_attention::testing

#endif  // LEAN_ATTENTION_TESTS_CPP_KERNEL_REFERENCE_H_
