#include "ops/onnxruntime/gqa_schema.h"

#include <cctype>
#include <cmath>
#include <limits>

#include "ops/onnxruntime/attribute_reader.h"

namespace lean_attention::onnxruntime {
namespace {

int32_t ReadHeads(const Ort::ConstKernelInfo& info, const std::string& node, const char* name) {
  const std::optional<int64_t> heads = FindAttribute<int64_t>(info, name);
  Require(heads.has_value(), node, ": the attribute ", name,
          " is missing; it must be between 1 and 65536");
  Require(*heads > 0 && *heads <= 65536, node, ": the attribute ", name, " is ", *heads,
          "; it must be between 1 and 65536");
  return static_cast<int32_t>(*heads);
}

bool ReadFlag(const Ort::ConstKernelInfo& info, const char* name) {
  return FindAttribute<int64_t>(info, name).value_or(0) == 1;
}

void ReadSchedule(const Ort::ConstKernelInfo& info, Attributes* attributes) {
  const std::string name = FindAttribute<std::string>(info, "schedule").value_or("auto");
  if (name == "lean") {
    attributes->schedule = Schedule::kLean;
  } else if (name == "fixed_split") {
    attributes->schedule = Schedule::kFixedSplit;
  } else if (name == "direct") {
    attributes->schedule = Schedule::kDirect;
  } else if (name == "stock") {
    attributes->always_stock = true;
  } else {
    Require(name == "auto", attributes->node, ": the attribute schedule is '", name,
            "'; it must be auto, lean, fixed_split, direct or stock");
  }
}

// One of Q or K: its own, or that of both.
float ReadNormEpsilon(const Ort::ConstKernelInfo& info, const std::string& node, const char* name) {
  constexpr const char* kBoth = "qk_norm_epsilon";
  const std::optional<float> own = FindAttribute<float>(info, name);
  const float epsilon = own ? *own : FindAttribute<float>(info, kBoth).value_or(1e-6f);
  Require(std::isfinite(epsilon) && epsilon > 0, node, ": the attribute ", own ? name : kBoth,
          " is ", epsilon, "; it must be positive and finite");
  return epsilon;
}

// What the rewriter leaves stock; a hand-made node gets an error that names the feature.
void RefuseUnsupported(const Ort::ConstKernelInfo& info, const std::string& node) {
  const auto accept_only = [&](const char* name, int64_t accepted) {
    const int64_t found = FindAttribute<int64_t>(info, name).value_or(accepted);
    if (found == accepted) return;
    Fail(ORT_NOT_IMPLEMENTED, node, ": the attribute ", name, " is ", found, ", and ", kOpName,
         " implements ", accepted, " alone; use ", kStockDomain, ".", kStockOpName,
         " for this node");
  };
  accept_only("sliding_window_cache", 0);
  accept_only("qk_output", 0);
  accept_only("causal", 1);
}

// k_quant_type, v_quant_type and kv_cache_bit_width must say what the cache's type says.
void ReadQuantisation(const Ort::ConstKernelInfo& info, ElementType cache, Attributes* attributes) {
  const auto read = [&](const char* name) {
    std::string type = FindAttribute<std::string>(info, name).value_or("NONE");
    for (char& c : type) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    Require(type == "NONE" || type == "PER_TENSOR" || type == "PER_CHANNEL", attributes->node,
            ": the attribute ", name, " is '", type,
            "'; it must be NONE, PER_TENSOR or PER_CHANNEL");
    return type;
  };
  const std::string type = read("k_quant_type");
  const std::string v_type = read("v_quant_type");
  Require(type == v_type, attributes->node, ": the attribute k_quant_type is ", type,
          " and v_quant_type is ", v_type, "; they must be equal");
  const bool quantised = IsQuantised(cache);
  Require((type != "NONE") == quantised, attributes->node, ": the attribute k_quant_type is ", type,
          quantised ? ", but the cache is quantised; it must be PER_TENSOR or PER_CHANNEL"
                    : ", but the cache holds floats; it must be NONE");
  const int64_t bits = FindAttribute<int64_t>(info, "kv_cache_bit_width").value_or(0);
  const int64_t expected = quantised ? BitsOf(cache) : 0;
  Require(bits == expected, attributes->node, ": the attribute kv_cache_bit_width is ", bits,
          "; for a cache of this type it must be ", expected);
  attributes->scale_per_channel = type == "PER_CHANNEL";
}

}  // namespace

Attributes ReadAttributes(const Ort::ConstKernelInfo& info, const TensorTypes& types) {
  Attributes attributes;
  attributes.node = NodeName(info);
  const std::string& node = attributes.node;

  RefuseUnsupported(info, node);
  attributes.num_heads = ReadHeads(info, node, "num_heads");
  attributes.kv_num_heads = ReadHeads(info, node, "kv_num_heads");
  Require(attributes.num_heads % attributes.kv_num_heads == 0, node,
          ": the attribute num_heads is ", attributes.num_heads,
          "; it must be a multiple of kv_num_heads, ", attributes.kv_num_heads);

  const float scale = FindAttribute<float>(info, "scale").value_or(0.0f);
  Require(std::isfinite(scale), node, ": the attribute scale is ", scale, "; it must be finite");
  if (scale != 0.0f) attributes.scale = scale;
  attributes.softcap = FindAttribute<float>(info, "softcap").value_or(0.0f);
  Require(std::isfinite(attributes.softcap) && attributes.softcap >= 0, node,
          ": the attribute softcap is ", attributes.softcap,
          "; it must be positive, or 0 for none");

  const int64_t window = FindAttribute<int64_t>(info, "local_window_size").value_or(-1);
  Require(window == -1 || (window > 0 && window <= std::numeric_limits<int32_t>::max()), node,
          ": the attribute local_window_size is ", window,
          "; it must be -1 (no window) or from 1 to ", std::numeric_limits<int32_t>::max());
  attributes.local_window_size = window;

  attributes.do_rotary = ReadFlag(info, "do_rotary");
  attributes.rotary_interleaved = ReadFlag(info, "rotary_interleaved");
  attributes.smooth_softmax = ReadFlag(info, "smooth_softmax");
  attributes.q_norm_epsilon = ReadNormEpsilon(info, node, "q_norm_epsilon");
  attributes.k_norm_epsilon = ReadNormEpsilon(info, node, "k_norm_epsilon");
  ReadQuantisation(info, types.cache, &attributes);
  ReadSchedule(info, &attributes);
  return attributes;
}

}  // namespace lean_attention::onnxruntime
