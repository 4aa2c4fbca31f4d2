#include "ops/onnxruntime/stock_op.h"

#include <string>
#include <utility>
#include <vector>

#include "ops/onnxruntime/attribute_reader.h"

namespace lean_attention::onnxruntime {
namespace {

// Copies those attributes that the node has: an older stock operator refuses names it never knew.
class AttributeCopier {
 public:
  explicit AttributeCopier(const Ort::ConstKernelInfo& info) : info_(info) {}

  void Ints(std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (const auto value = FindAttribute<int64_t>(info_, name)) {
        copies_.emplace_back(name, &*value, 1, ORT_OP_ATTR_INT);
      }
    }
  }

  void Floats(std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (const auto value = FindAttribute<float>(info_, name)) {
        copies_.emplace_back(name, &*value, 1, ORT_OP_ATTR_FLOAT);
      }
    }
  }

  void Strings(std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (const auto value = FindAttribute<std::string>(info_, name)) {
        copies_.emplace_back(name, value->c_str(), static_cast<int>(value->size()),
                             ORT_OP_ATTR_STRING);
      }
    }
  }

  const std::vector<Ort::OpAttr>& copies() const { return copies_; }

 private:
  const Ort::ConstKernelInfo& info_;
  std::vector<Ort::OpAttr> copies_;
};

// An older stock operator has fewer inputs than ours: absent trailing ones are not passed on.
size_t CountInputs(const Ort::ConstKernelInfo& info) {
  size_t count = info.GetInputCount();
  while (count > 0 && info.GetInputName(count - 1).empty()) --count;
  return count;
}

}  // namespace

StockOp::StockOp(const Ort::ConstKernelInfo& info, const TensorTypes& types)
    : input_count_(CountInputs(info)) {
  AttributeCopier attributes(info);
  attributes.Ints({"num_heads", "kv_num_heads", "local_window_size", "do_rotary",
                   "rotary_interleaved", "smooth_softmax"});
  attributes.Floats({"scale", "softcap", "qk_norm_epsilon", "q_norm_epsilon", "k_norm_epsilon"});
  // Only the versions that know quantised caches know the name of their type.
  const bool quantised = IsQuantised(types.cache);
  if (quantised) {
    attributes.Ints({"kv_cache_bit_width"});
    attributes.Strings({"k_quant_type", "v_quant_type"});
  }
  const char* constraints[] = {"T", "M", "T_CACHE", "T_KV_SCALE"};
  const ONNXTensorElementDataType constraint_types[] = {
      OnnxType(types.element), ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, OnnxType(types.cache),
      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT};
  const auto create = [&](size_t count) {
    return Ort::Op::Create(info, kStockOpName, kStockDomain, 1, constraints, constraint_types,
                           count, attributes.copies().data(), attributes.copies().size(),
                           input_count_, 3);
  };
  // Versions before quantised caches refuse the last two constraints. Of the later ones a provider
  // may have a kernel for each type of cache, of which only these tell.
  try {
    op_ = create(4);
  } catch (const Ort::Exception&) {
    if (quantised) throw;
    op_ = create(2);
  }
}

void StockOp::Invoke(OrtKernelContext* context, OrtValue* output, OrtValue* present_key,
                     OrtValue* present_value) const {
  const OrtApi& api = Ort::GetApi();
  const OrtValue* inputs[kInputCount] = {};
  for (size_t i = 0; i < input_count_; ++i) {
    Ort::ThrowOnError(api.KernelContext_GetInput(context, i, &inputs[i]));
  }
  OrtValue* outputs[] = {output, present_key, present_value};
  op_.Invoke(context, inputs, input_count_, outputs, 3);
}

}  // namespace lean_attention::onnxruntime
