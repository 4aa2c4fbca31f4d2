// Lines for a caller's buffer.

#ifndef LEAN_ATTENTION_OPS_C_API_MESSAGE_H_
#define LEAN_ATTENTION_OPS_C_API_MESSAGE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace lean_attention {

// Copies as much of a line as fits, and a zero. A buffer may be null, or have no room at all.
inline void WriteMessage(std::string_view line, char* message, int64_t message_size) {
  if (message == nullptr || message_size < 1) return;
  const auto length = std::min<int64_t>(static_cast<int64_t>(line.size()), message_size - 1);
  std::memcpy(message, line.data(), static_cast<size_t>(length));
  message[length] = '\0';
}

}  // namespace lean_attention

#endif  // LEAN_ATTENTION_OPS_C_API_MESSAGE_H_
