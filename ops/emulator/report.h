// What a launch on the emulator found wrong.

#ifndef LEAN_ATTENTION_OPS_EMULATOR_REPORT_H_
#define LEAN_ATTENTION_OPS_EMULATOR_REPORT_H_

#include <optional>
#include <string>
#include <vector>

namespace lean_attention::emulator {

// A line of kernel source.
struct Place {
  const char* file = "";
  int line = 0;

  friend bool operator==(const Place& a, const Place& b);
  friend bool operator!=(const Place& a, const Place& b) { return !(a == b); }
};

enum class FaultKind {
  kOutOfBounds,
  kMisaligned,
  kReadOnly,     // a write to a frozen buffer
  kSharedRace,   // two threads of a block, one shared address, no barrier between them
  kGlobalRace,   // two threads, one global address, neither barrier nor fence and atomic between
  kNotWaited,    // the destination of an asynchronous copy touched before the wait, or never waited
                 // for
  kDivergence,   // threads of a block or warp at different barriers or collectives
  kEarlyExit,    // a thread ended while others wait for it
  kBadArgument,  // a lane, mask or size that the instruction does not have
  kTooLong,      // more synchronisation than the clocks can count: a thread that spins
  kException,    // thrown by the kernel itself
};

struct Actor {
  Place place;
  int block = 0;
  int thread = 0;
};

struct Fault {
  FaultKind kind;
  std::string what;
  Actor here;
  std::optional<Actor> other;  // who came before
};

// One line: what, who, where; then the other side.
std::string ToString(const Fault& fault);

struct Report {
  std::vector<Fault> faults;  // empty after a sound launch; the first one ended the launch

  bool ok() const { return faults.empty(); }
  std::string ToString() const;  // a line for each
};

}  // namespace lean_attention::emulator

#endif  // LEAN_ATTENTION_OPS_EMULATOR_REPORT_H_
