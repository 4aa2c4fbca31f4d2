// Inputs, outputs and attributes of LeanGroupQueryAttention: those of
// com.microsoft.GroupQueryAttention, in its order, and our own.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_SCHEMA_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_SCHEMA_H_

#include <optional>
#include <string>

#include "ops/decode/schedule.h"
#include "ops/onnxruntime/ort.h"

namespace lean_attention::onnxruntime {

inline constexpr char kDomain[] = "com.leanattention";
inline constexpr char kOpName[] = "LeanGroupQueryAttention";
inline constexpr char kStockDomain[] = "com.microsoft";
inline constexpr char kStockOpName[] = "GroupQueryAttention";

enum Input : size_t {
  kQuery,
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kSeqlensK,
  kTotalSequenceLength,
  kCosCache,
  kSinCache,
  kPositionIds,
  kAttentionBias,
  kHeadSink,
  kKScale,
  kVScale,
  kQNormWeight,
  kKNormWeight,
  kQuerySeqlens,
  kInputCount
};

enum Output : size_t { kAttention, kPresentKey, kPresentValue, kOutputQk, kOutputCount };

inline constexpr const char* kInputNames[kInputCount] = {"query",
                                                         "key",
                                                         "value",
                                                         "past_key",
                                                         "past_value",
                                                         "seqlens_k",
                                                         "total_sequence_length",
                                                         "cos_cache",
                                                         "sin_cache",
                                                         "position_ids",
                                                         "attention_bias",
                                                         "head_sink",
                                                         "k_scale",
                                                         "v_scale",
                                                         "q_norm_weight",
                                                         "k_norm_weight",
                                                         "query_seqlens"};

// What messages call a node.
inline std::string NodeName(const Ort::ConstKernelInfo& info) {
  const std::string name = info.GetNodeName();
  return name.empty() ? kOpName : name;
}

constexpr bool IsRequired(Input input) {
  return input == kQuery || input == kSeqlensK || input == kTotalSequenceLength;
}

// The types of a kernel's tensors.
struct TensorTypes {
  ElementType element;  // float32, float16 or bfloat16
  ElementType cache;    // the same, or int8 or int4
};

constexpr ONNXTensorElementDataType OnnxType(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    case ElementType::kFloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    case ElementType::kBFloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
    case ElementType::kInt8:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
    case ElementType::kFloat8E4M3:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN;
    case ElementType::kInt4:  // two to a byte
      break;
  }
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
}

constexpr ONNXTensorElementDataType InputType(size_t input, const TensorTypes& types) {
  switch (input) {
    case kPastKey:
    case kPastValue:
      return OnnxType(types.cache);
    case kSeqlensK:
    case kTotalSequenceLength:
    case kQuerySeqlens:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    case kPositionIds:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    case kKScale:
    case kVScale:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    default:
      return OnnxType(types.element);
  }
}

constexpr ONNXTensorElementDataType OutputType(size_t output, const TensorTypes& types) {
  return OnnxType(output == kPresentKey || output == kPresentValue ? types.cache : types.element);
}

// A node's attributes; defaults are the stock operator's.
struct Attributes {
  std::string node;  // name, for messages
  int32_t num_heads;
  int32_t kv_num_heads;
  std::optional<float> scale;  // default 1 / sqrt(head_size)
  float softcap = 0;
  int64_t local_window_size = -1;
  bool do_rotary = false;
  bool rotary_interleaved = false;
  bool smooth_softmax = false;
  float q_norm_epsilon = 0;  // where the inputs ask for the norm
  float k_norm_epsilon = 0;
  bool scale_per_channel = false;  // of a quantised cache
  // "auto" and "lean" are empty and kLean; "stock" sets always_stock.
  std::optional<Schedule> schedule;
  bool always_stock = false;
};

// Throws Ort::Exception for values and features that neither we nor the stock operator may run, and
// where the attributes say of the cache what its type does not.
Attributes ReadAttributes(const Ort::ConstKernelInfo& info, const TensorTypes& types);

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_GQA_SCHEMA_H_
