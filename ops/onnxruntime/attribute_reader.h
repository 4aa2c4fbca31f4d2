// Optional attributes. ONNX Runtime's wrapper throws where one is absent, which is no error here.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_ATTRIBUTE_READER_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_ATTRIBUTE_READER_H_

#include <optional>
#include <string>
#include <type_traits>

#include "ops/onnxruntime/gqa_schema.h"
#include "ops/onnxruntime/ort.h"

namespace lean_attention::onnxruntime {

namespace detail {

// Asks for an attribute of one type; whether the node has it as that.
inline bool Read(const Ort::ConstKernelInfo& info, const char* name, int64_t* value) {
  return Ort::Status(Ort::GetApi().KernelInfoGetAttribute_int64(info, name, value)).IsOK();
}

inline bool Read(const Ort::ConstKernelInfo& info, const char* name, float* value) {
  return Ort::Status(Ort::GetApi().KernelInfoGetAttribute_float(info, name, value)).IsOK();
}

inline bool Read(const Ort::ConstKernelInfo& info, const char* name, std::string* value) {
  const OrtApi& api = Ort::GetApi();
  size_t size = 0;
  if (!Ort::Status(api.KernelInfoGetAttribute_string(info, name, nullptr, &size)).IsOK()) {
    return false;
  }
  value->resize(size);
  if (!Ort::Status(api.KernelInfoGetAttribute_string(info, name, value->data(), &size)).IsOK()) {
    return false;
  }
  value->resize(size == 0 ? 0 : size - 1);  // `size` counts the terminating zero
  return true;
}

template <typename T>
bool HasAs(const Ort::ConstKernelInfo& info, const char* name) {
  T value;
  return Read(info, name, &value);
}

// An array's size is written, or the status says that a buffer is too small, only where it exists.
inline bool HasAsArray(const Ort::ConstKernelInfo& info, const char* name) {
  const OrtApi& api = Ort::GetApi();
  size_t size = 0;
  return Ort::Status(api.KernelInfoGetAttributeArray_int64(info, name, nullptr, &size)).IsOK() ||
         Ort::Status(api.KernelInfoGetAttributeArray_float(info, name, nullptr, &size)).IsOK();
}

}  // namespace detail

// An attribute of type T: int64_t, float or std::string. Fails where the node has it as another
// type.
template <typename T>
std::optional<T> FindAttribute(const Ort::ConstKernelInfo& info, const char* name) {
  T value{};
  if (detail::Read(info, name, &value)) return value;
  const char* found = detail::HasAs<int64_t>(info, name)       ? "an integer"
                      : detail::HasAs<float>(info, name)       ? "a float"
                      : detail::HasAs<std::string>(info, name) ? "a string"
                      : detail::HasAsArray(info, name)         ? "a list"
                                                               : nullptr;
  Require(found == nullptr, NodeName(info), ": the attribute ", name, " is ", found,
          "; it must be ",
          std::is_same_v<T, int64_t> ? "an integer"
                                     : (std::is_same_v<T, float> ? "a float" : "a string"));
  return std::nullopt;
}

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_ATTRIBUTE_READER_H_
