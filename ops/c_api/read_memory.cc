#include "ops/c_api/read_memory.h"

#include <new>
#include <system_error>
#include <vector>

#include "ops/cpu/read_memory.h"

namespace {

using namespace lean_attention;

constexpr int32_t kMostThreads = 1024;

bool ArgumentsAreValid(const void* const* buffers, const int64_t* bytes, int64_t count,
                       int32_t threads, int32_t streams, const double* seconds) {
  if (buffers == nullptr || bytes == nullptr || seconds == nullptr || count < 1 || threads < 1 ||
      threads > kMostThreads || (streams != 1 && streams != 2 && streams != 4)) {
    return false;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (bytes[i] < 0 || (bytes[i] > 0 && buffers[i] == nullptr)) return false;
  }
  return true;
}

}  // namespace

int32_t lean_attention_read_memory(const void* const* buffers, const int64_t* bytes, int64_t count,
                                   int32_t threads, int32_t streams, double* seconds,
                                   uint64_t* combined) {
  if (!ArgumentsAreValid(buffers, bytes, count, threads, streams, seconds)) {
    return LEAN_ATTENTION_INVALID_ARGUMENT;
  }
  try {
    std::vector<cpu::Memory> memory(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) memory[i] = {buffers[i], bytes[i]};
    const cpu::ReadResult result = cpu::ReadMemory(memory, threads, streams);
    *seconds = result.seconds;
    if (combined != nullptr) *combined = result.combined;
  } catch (const std::bad_alloc&) {
    return LEAN_ATTENTION_OUT_OF_MEMORY;
  } catch (const std::system_error&) {
    return LEAN_ATTENTION_OUT_OF_MEMORY;
  }
  return LEAN_ATTENTION_OK;
}
