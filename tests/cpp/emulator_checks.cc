#include "tests/cpp/emulator_checks.h"

#include <fstream>

namespace lean_attention::emulator {

std::string SourceLine(const Place& place) {
  std::ifstream source(place.file);
  std::string text;
  for (int line = 0; line < place.line; ++line) std::getline(source, text);
  return text;
}

testing::AssertionResult Found(const Report& report, FaultKind kind, const std::string& here,
                               const std::string& other) {
  if (report.faults.size() != 1) {
    return testing::AssertionFailure() << report.faults.size() << " faults\n" << report.ToString();
  }
  const Fault& fault = report.faults.front();
  const auto is_at = [](const Place& place, const std::string& text) {
    return SourceLine(place).find(text) != std::string::npos;
  };
  if (fault.kind != kind || !is_at(fault.here.place, here) ||
      fault.other.has_value() == other.empty() ||
      (fault.other && !is_at(fault.other->place, other))) {
    return testing::AssertionFailure() << report.ToString();
  }
  return testing::AssertionSuccess() << report.ToString();
}

}  // namespace lean_attention::emulator
