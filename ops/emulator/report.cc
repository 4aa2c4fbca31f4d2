#include "ops/emulator/report.h"

#include <cstring>

namespace lean_attention::emulator {
namespace {

std::string ToString(const Actor& actor) {
  std::string text =
      "block " + std::to_string(actor.block) + " thread " + std::to_string(actor.thread);
  if (actor.place.line == 0) return text + " before its first access";
  return text + " at " + actor.place.file + ":" + std::to_string(actor.place.line);
}

}  // namespace

bool operator==(const Place& a, const Place& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string ToString(const Fault& fault) {
  std::string text = fault.what + ": " + ToString(fault.here);
  if (fault.other) text += "; before it " + ToString(*fault.other);
  return text;
}

std::string Report::ToString() const {
  std::string text;
  for (const Fault& fault : faults) text += emulator::ToString(fault) + "\n";
  return text;
}

}  // namespace lean_attention::emulator
