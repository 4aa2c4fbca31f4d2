// Optional attributes. ONNX Runtime's wrapper throws where one is absent, which is no error here.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_ATTRIBUTE_READER_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_ATTRIBUTE_READER_H_

#include <optional>
#include <string>

#include "ops/onnxruntime/ort.h"

namespace lean_attention::onnxruntime {

// T: int64_t, float or std::string. An attribute of another type reads as absent.
template <typename T>
std::optional<T> FindAttribute(const Ort::ConstKernelInfo& info, const char* name) {
  const OrtApi& api = Ort::GetApi();
  Ort::Status status{nullptr};
  if constexpr (std::is_same_v<T, std::string>) {
    size_t size = 0;
    status = Ort::Status(api.KernelInfoGetAttribute_string(info, name, nullptr, &size));
    if (!status.IsOK() || size == 0) return std::nullopt;
    std::string value(size, '\0');
    status = Ort::Status(api.KernelInfoGetAttribute_string(info, name, value.data(), &size));
    if (!status.IsOK()) return std::nullopt;
    value.resize(size - 1);  // `size` counts the terminating zero
    return value;
  } else {
    T value = 0;
    if constexpr (std::is_same_v<T, float>) {
      status = Ort::Status(api.KernelInfoGetAttribute_float(info, name, &value));
    } else {
      status = Ort::Status(api.KernelInfoGetAttribute_int64(info, name, &value));
    }
    return status.IsOK() ? std::optional<T>(value) : std::nullopt;
  }
}

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_ATTRIBUTE_READER_H_
