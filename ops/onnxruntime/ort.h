// ONNX Runtime's C++ wrappers, and errors with formatted messages.
//
// The library links nothing of ONNX Runtime: the API table arrives in RegisterCustomOps.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_ORT_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_ORT_H_

#ifndef ORT_API_MANUAL_INIT
#define ORT_API_MANUAL_INIT
#endif
#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

namespace lean_attention::onnxruntime {

using Shape = std::vector<int64_t>;

inline std::ostream& operator<<(std::ostream& stream, const Shape& shape) {
  stream << '[';
  for (size_t i = 0; i < shape.size(); ++i) stream << (i == 0 ? "" : ", ") << shape[i];
  return stream << ']';
}

template <typename... Parts>
std::string Concatenate(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

// Throws what the kernel's boundary turns into an OrtStatus.
template <typename... Parts>
[[noreturn]] void Fail(OrtErrorCode code, const Parts&... parts) {
  throw Ort::Exception(Concatenate(parts...), code);
}

template <typename... Parts>
void Require(bool condition, const Parts&... parts) {
  if (!condition) Fail(ORT_INVALID_ARGUMENT, parts...);
}

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_ORT_H_
