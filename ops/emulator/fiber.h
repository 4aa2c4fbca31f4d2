// A stack of its own for each emulated thread. The only file that knows Boost.

#ifndef LEAN_ATTENTION_OPS_EMULATOR_FIBER_H_
#define LEAN_ATTENTION_OPS_EMULATOR_FIBER_H_

#include <boost/context/fiber.hpp>
#include <cstddef>

namespace lean_attention::emulator {

// Runs body(argument), which may suspend itself and must not throw. A fiber that has started must
// end before it is destroyed. Stacks come from a pool of the operating system's thread.
class Fiber {
 public:
  using Body = void (*)(void* argument);

  bool active() const { return static_cast<bool>(inside_); }
  void Start(Body body, void* argument);  // until it suspends or ends
  void Resume();                          // the same; from the thread that started it
  void Suspend();                         // from inside

 private:
  void Enter();
  void Left();

  boost::context::fiber inside_;   // while suspended
  boost::context::fiber outside_;  // while running

  // What AddressSanitizer has to know about the stacks.
  struct Stacks {
    void* fake_inside = nullptr;
    void* fake_outside = nullptr;
    const void* inside_bottom = nullptr;
    size_t inside_size = 0;
    const void* outside_bottom = nullptr;
    size_t outside_size = 0;
  };
  Stacks stacks_;
};

}  // namespace lean_attention::emulator

#endif  // LEAN_ATTENTION_OPS_EMULATOR_FIBER_H_
