// The matrix instructions of a warp: D = A B + C on fragments that its lanes hold.
//
// Products and sums are float64, rounded once to float32. Hardware adds in an order, and with
// intermediate roundings, that neither vendor documents.

#ifndef LEAN_ATTENTION_OPS_EMULATOR_MATRIX_H_
#define LEAN_ATTENTION_OPS_EMULATOR_MATRIX_H_

#include <cstdint>

#include "ops/emulator/grid.h"

namespace lean_attention::emulator {

// A lane's fragments for mma.m16n8k16 with 16-bit elements, two to a register, the lower first.
// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"; with g = lane / 4 and
// t = lane % 4, register by register:
//   a  rows g, g + 8, g, g + 8 of A; columns 2t, 2t + 1, the last two 8 higher
//   b  column g of B; rows 2t, 2t + 1, then 8 higher
//   d  rows g, g, g + 8, g + 8 of C and D; columns 2t, 2t + 1, 2t, 2t + 1
struct MmaFragments {
  uint32_t a[4];
  uint32_t b[2];
  float d[4];
};

// A lane's fragments for v_mfma_f32_16x16x16 with 16-bit elements. AMD Instinct MI200 ISA, "Matrix
// Arithmetic Instructions", and AMD's Matrix Instruction Calculator; with g = lane / 16 and
// t = lane % 16, element i:
//   a  row t, column 4g + i of A
//   b  row 4g + i, column t of B
//   d  row 4g + i, column t of C and D
struct MfmaFragments {
  uint16_t a[4];
  uint16_t b[4];
  float d[4];
};

// Collectives of the running thread's warp.
void Mma(MmaFragments& fragments, bool bfloat16, Place place);
void Mfma(MfmaFragments& fragments, bool bfloat16, Place place);

// ldmatrix: 2 or 4 matrices of 8 x 8 16-bit elements in shared memory. `row` is the byte at which
// row lane % 8 of matrix lane / 8 starts. The lane gets, of each matrix, elements 2t and 2t + 1 of
// row g (of column g if transposed), with g = lane / 4 and t = lane % 4; PTX ISA, "ldmatrix".
void LoadMatrices(uint32_t* registers, int matrices, int64_t row, bool transposed, Place place);

}  // namespace lean_attention::emulator

#endif  // LEAN_ATTENTION_OPS_EMULATOR_MATRIX_H_
