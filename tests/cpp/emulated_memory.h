// Where a launch's tensors lie when the launcher is emulated: in the host's memory, or in that of
// the CUDA runtime that this process has loaded, which the host may reach by its copies alone.

#ifndef LEAN_ATTENTION_TESTS_CPP_EMULATED_MEMORY_H_
#define LEAN_ATTENTION_TESTS_CPP_EMULATED_MEMORY_H_

#include <cstddef>

namespace lean_attention::testing {

void CopyMemory(void* to, const void* from, size_t bytes);
void ClearMemory(void* to, size_t bytes);

}  // namespace lean_attention::testing

#endif  // LEAN_ATTENTION_TESTS_CPP_EMULATED_MEMORY_H_
