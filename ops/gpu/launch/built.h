// Which kernels there are: each of these head sizes for each of these types of tensors and caches.

#ifndef LEAN_ATTENTION_OPS_GPU_LAUNCH_BUILT_H_
#define LEAN_ATTENTION_OPS_GPU_LAUNCH_BUILT_H_

#include <type_traits>
#include <utility>

#include "ops/decode/problem.h"

namespace lean_attention::gpu {

using BuiltHeadSizes = std::integer_sequence<int, 64, 80, 96, 128, 256>;

// Calls body(std::integral_constant<int, head_size>()); returns whether it is built.
template <typename Body, int... kHeadSizes>
bool WithHeadSize(int head_size, Body body, std::integer_sequence<int, kHeadSizes...>) {
  return ((head_size == kHeadSizes && (body(std::integral_constant<int, kHeadSizes>()), true)) ||
          ...);
}

template <typename Body>
bool WithHeadSize(int head_size, Body body) {
  return WithHeadSize(head_size, body, BuiltHeadSizes());
}

inline bool IsBuiltType(ElementType element_type, ElementType cache_type) {
  return (element_type == ElementType::kFloat16 || element_type == ElementType::kBFloat16) &&
         (cache_type == element_type || cache_type == ElementType::kInt8 ||
          cache_type == ElementType::kFloat8E4M3);
}

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_LAUNCH_BUILT_H_
