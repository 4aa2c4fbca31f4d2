// The plain truth of a decode step, in double.

#ifndef LEAN_ATTENTION_TESTS_CPP_KERNEL_REFERENCE_H_
#define LEAN_ATTENTION_TESTS_CPP_KERNEL_REFERENCE_H_

#include "tests/cpp/kernel_step.h"

namespace lean_attention::testing {

// What a kernel multiplies: float32, or numbers of the element type, as matrix instructions do.
// Then rotated queries and the weights of the softmax are rounded to it.
enum class Operands { kFloat32, kElements };

// Checks what the kernel left behind. The cache: earlier rows bit by bit, this step's rows (rotated
// keys to within rounding), untouched rows of a shared cache and zeros in a copied one after them.
// The output: against attention over that cache, to within 2e-6 and the rounding of its type, and
// of the weights where these are rounded. `before` is the step before it was run.
void ExpectRight(const Step& step, const Step& before, Operands operands = Operands::kFloat32);

// Runs the step in one share and checks it.
void ExpectRunIsRight(const Step& step);

}  // namespace lean_attention::testing

#endif  // LEAN_ATTENTION_TESTS_CPP_KERNEL_REFERENCE_H_
