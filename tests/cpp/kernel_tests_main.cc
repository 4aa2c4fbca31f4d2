// Runs the kernel tests on the instruction set that LEAN_ATTENTION_CPU_TARGET names, or on the
// best.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ops/cpu/decode_attention.h"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  ::testing::InitGoogleTest(&argc, argv);
  const char* in_use = lean_attention::cpu::TargetName();
  const char* asked_for = std::getenv("LEAN_ATTENTION_CPU_TARGET");
  if (in_use == nullptr) {
    std::printf("This machine runs none of the instruction sets.\n");
    return kSkipped;
  }
  if (asked_for != nullptr && std::strcmp(asked_for, in_use) != 0) {
    std::printf("This machine does not run %s.\n", asked_for);
    return kSkipped;
  }
  std::printf("Instruction set: %s\n", in_use);
  return RUN_ALL_TESTS();
}
