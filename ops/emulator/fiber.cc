#include "ops/emulator/fiber.h"

#include <sys/mman.h>

#include <memory>
#include <new>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define LEAN_ATTENTION_ASAN(call) call
#else
#define LEAN_ATTENTION_ASAN(call)
#endif

namespace lean_attention::emulator {
namespace {

using boost::context::fiber;
using boost::context::stack_context;

constexpr size_t kPage = 4096;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStack = 256 * 1024;  // instrumented frames are large
#else
constexpr size_t kStack = 64 * 1024;
#endif

// Mapped stacks above a page that faults. Their tops are staggered: at equal offsets the hot lines
// of all stacks would compete for the same few sets of the caches.
class StackPool {
 public:
  ~StackPool() {
    for (std::byte* stack : all_) munmap(stack, kPage + kStack);
  }

  stack_context Take() {
    if (free_.empty()) Map();
    const stack_context stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void Give(const stack_context& stack) { free_.push_back(stack); }

 private:
  void Map() {
    void* memory = mmap(nullptr, kPage + kStack, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    auto* bottom = static_cast<std::byte*>(memory);
    if (mprotect(bottom, kPage, PROT_NONE) != 0) throw std::bad_alloc();
    const size_t stagger = all_.size() % 61 * 192;
    all_.push_back(bottom);
    stack_context stack;
    stack.sp = bottom + kPage + kStack - stagger;
    stack.size = kStack - stagger;
    free_.push_back(stack);
  }

  std::vector<std::byte*> all_;
  std::vector<stack_context> free_;
};

thread_local StackPool stack_pool;

struct StackAllocator {
  const void** bottom;
  size_t* size;

  stack_context allocate() {
    const stack_context stack = stack_pool.Take();
    *bottom = static_cast<std::byte*>(stack.sp) - stack.size;
    *size = stack.size;
    return stack;
  }
  void deallocate(const stack_context& stack) { stack_pool.Give(stack); }
};

}  // namespace

void Fiber::Start(Body body, void* argument) {
  inside_ = fiber(std::allocator_arg, StackAllocator{&stacks_.inside_bottom, &stacks_.inside_size},
                  [this, body, argument](fiber&& outside) {
                    outside_ = std::move(outside);
                    stacks_.fake_inside = nullptr;
                    Enter();
                    body(argument);
                    LEAN_ATTENTION_ASAN(__sanitizer_start_switch_fiber(
                        nullptr, stacks_.outside_bottom, stacks_.outside_size));
                    return std::move(outside_);
                  });
  Resume();
}

void Fiber::Resume() {
  LEAN_ATTENTION_ASAN(__sanitizer_start_switch_fiber(&stacks_.fake_outside, stacks_.inside_bottom,
                                                     stacks_.inside_size));
  inside_ = std::move(inside_).resume();
  Left();
}

void Fiber::Suspend() {
  LEAN_ATTENTION_ASAN(__sanitizer_start_switch_fiber(&stacks_.fake_inside, stacks_.outside_bottom,
                                                     stacks_.outside_size));
  outside_ = std::move(outside_).resume();
  Enter();
}

void Fiber::Enter() {
  LEAN_ATTENTION_ASAN(__sanitizer_finish_switch_fiber(stacks_.fake_inside, &stacks_.outside_bottom,
                                                      &stacks_.outside_size));
}

void Fiber::Left() {
  LEAN_ATTENTION_ASAN(__sanitizer_finish_switch_fiber(stacks_.fake_outside, nullptr, nullptr));
}

}  // namespace lean_attention::emulator
