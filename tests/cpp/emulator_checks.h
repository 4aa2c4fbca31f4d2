// What the tests of the emulator expect of a report.

#ifndef LEAN_ATTENTION_TESTS_CPP_EMULATOR_CHECKS_H_
#define LEAN_ATTENTION_TESTS_CPP_EMULATOR_CHECKS_H_

#include <gtest/gtest.h>

#include <string>

#include "ops/emulator/launch.h"
#include "ops/gpu/portable.h"

namespace lean_attention::emulator {

// The text of a line of source.
std::string SourceLine(const Place& place);

// Succeeds on a report of one fault of a kind: found at a line that contains `here`, against an
// earlier access at a line that contains `other`, or none where that is empty.
testing::AssertionResult Found(const Report& report, FaultKind kind, const std::string& here,
                               const std::string& other = "");

}  // namespace lean_attention::emulator

#endif  // LEAN_ATTENTION_TESTS_CPP_EMULATOR_CHECKS_H_
