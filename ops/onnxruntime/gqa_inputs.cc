#include "ops/onnxruntime/gqa_inputs.h"

#include <algorithm>
#include <limits>
#include <string>

namespace lean_attention::onnxruntime {
namespace {

// A dimension that may be broadcast, in words.
std::string OneOr(int64_t size) { return size == 1 ? "1" : Concatenate("1 or ", size); }

}  // namespace

GqaInputs::GqaInputs(OrtKernelContext* context, const Attributes& attributes,
                     const TensorTypes& types)
    : attributes_(attributes), types_(types) {
  const Ort::KernelContext kernel_context(context);
  const size_t count = std::min<size_t>(kernel_context.GetInputCount(), kInputCount);
  for (size_t i = 0; i < count; ++i) {
    const Ort::ConstValue value = kernel_context.GetInput(i);
    if (static_cast<const OrtValue*>(value) == nullptr) continue;
    inputs_[i].present = true;
    inputs_[i].shape = value.GetTensorTypeAndShapeInfo().GetShape();
    inputs_[i].data = value.GetTensorRawData();
  }
  for (Input input : {kQuery, kSeqlensK, kTotalSequenceLength}) {
    Require(Has(input), attributes_.node, ": input ", kInputNames[input],
            " is missing; all calls need it");
  }
  for (const auto& [first, second] :
       {std::pair(kKey, kValue), std::pair(kPastKey, kPastValue), std::pair(kCosCache, kSinCache),
        std::pair(kQNormWeight, kKNormWeight)}) {
    Require(Has(first) == Has(second), attributes_.node, ": input ",
            kInputNames[Has(first) ? second : first], " is missing; ", kInputNames[first], " and ",
            kInputNames[second], " must be given together");
  }
  ReadQueryShape();
  ReadKeyAndValue();
  ReadPastShape();
  shape_.total_sequence_length = ReadTotalLength();
  shape_.present_rows = std::max(shape_.total_sequence_length, shape_.past_rows);
  CheckLengths();
  CheckNorms();
  CheckRotary();
  CheckBias();
  CheckSink();
  CheckScales();
}

void GqaInputs::ReadQueryShape() {
  const Shape& query = inputs_[kQuery].shape;
  RequireShape(query.size() == 3, kQuery, "[batch_size, sequence_length, hidden_size]");
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  RequireShape(query[0] >= 1 && query[0] <= kMost && query[1] >= 1 && query[1] <= kMost, kQuery,
               "at least one sequence of at least one token");
  shape_.packed = !Has(kKey);
  const int64_t heads =
      attributes_.num_heads + (shape_.packed ? int64_t{2} * attributes_.kv_num_heads : 0);
  RequireShape(query[2] > 0 && query[2] % heads == 0, kQuery, "a last dimension of ", heads,
               shape_.packed ? " heads (packed Q, K and V)" : " heads");
  shape_.batch_size = query[0];
  shape_.sequence_length = query[1];
  shape_.head_size = query[2] / heads;
  RequireShape(shape_.head_size <= 4096, kQuery, "a head size of at most 4096, not ",
               shape_.head_size);
  // Elements, of which a byte holds two 4-bit ones.
  shape_.cache_width =
      types_.cache == ElementType::kInt4 ? (shape_.head_size + 1) / 2 : shape_.head_size;
}

void GqaInputs::ReadKeyAndValue() {
  shape_.new_rows = shape_.sequence_length;
  if (shape_.packed) return;
  Shape accepted = {shape_.batch_size, shape_.sequence_length,
                    attributes_.kv_num_heads * shape_.head_size};
  // Layers that share a cache give a key without rows to all but the first of them.
  if (const Shape& key = inputs_[kKey].shape; key.size() == 3 && key[1] == 0) {
    Require(Has(kPastKey), attributes_.node,
            ": input past_key is missing; key has no rows, so all must be there");
    Require(!Has(kQuerySeqlens), attributes_.node,
            ": input key has no rows, and query_seqlens says how many are new; leave one out");
    accepted[1] = shape_.new_rows = 0;
  }
  for (Input input : {kKey, kValue}) {
    RequireShape(inputs_[input].shape == accepted, input, accepted);
  }
}

void GqaInputs::ReadPastShape() {
  shape_.past_rows = 0;
  if (!Has(kPastKey)) return;
  const Shape& past = inputs_[kPastKey].shape;
  RequireShape(past.size() == 4 && past[0] == shape_.batch_size &&
                   past[1] == attributes_.kv_num_heads && past[3] == shape_.cache_width &&
                   past[2] <= std::numeric_limits<int32_t>::max(),
               kPastKey, "[", shape_.batch_size, ", ", attributes_.kv_num_heads, ", rows, ",
               shape_.cache_width, "]");
  RequireShape(inputs_[kPastValue].shape == past, kPastValue, "past_key's, ", past);
  shape_.past_rows = past[2];
}

int64_t GqaInputs::ReadTotalLength() const {
  const Shape& shape = inputs_[kTotalSequenceLength].shape;
  RequireShape(shape.empty() || shape == Shape{1}, kTotalSequenceLength, "[] or [1]");
  const int32_t total = *static_cast<const int32_t*>(inputs_[kTotalSequenceLength].data);
  Require(total >= shape_.sequence_length, attributes_.node, ": input total_sequence_length is ",
          total, "; it must be at least ", shape_.sequence_length, ", the tokens of this call");
  // Otherwise it is only a bound.
  if (Has(kQuerySeqlens)) return total;
  const int64_t grown = shape_.past_rows + shape_.new_rows;
  Require(total <= shape_.past_rows || total == grown, attributes_.node,
          ": input total_sequence_length is ", total, "; it must be at most ", shape_.past_rows,
          ", the rows of past_key, or with the new ones ", grown);
  Require(total == shape_.sequence_length || shape_.sequence_length == 1 || shape_.batch_size == 1,
          attributes_.node, ": input query_seqlens is missing; a batch of ", shape_.batch_size,
          " with ", shape_.sequence_length, " tokens each after a past needs it");
  return total;
}

void GqaInputs::CheckLengths() const {
  const int64_t batch = shape_.batch_size;
  const Shape& shape = inputs_[kSeqlensK].shape;
  RequireShape(shape == Shape{batch} || shape == Shape{batch, 1} || shape == Shape{1, batch},
               kSeqlensK,
               batch == 1 ? "[1] or [1, 1]"
                          : Concatenate("[", batch, "], [", batch, ", 1] or [1, ", batch, "]"));
  if (!Has(kQuerySeqlens)) return;
  RequireShape(inputs_[kQuerySeqlens].shape == Shape{batch}, kQuerySeqlens, "[", batch, "]");
  Require(Has(kPastKey), attributes_.node,
          ": input past_key is missing; query_seqlens needs it and past_value");
}

void GqaInputs::CheckNorms() const {
  if (!Has(kQNormWeight)) return;
  for (Input input : {kQNormWeight, kKNormWeight}) {
    RequireShape(inputs_[input].shape == Shape{shape_.head_size}, input, "[", shape_.head_size,
                 "]");
  }
}

void GqaInputs::CheckRotary() const {
  if (!attributes_.do_rotary) return;
  Require(Has(kCosCache), attributes_.node,
          ": input cos_cache is missing; do_rotary = 1 needs it and sin_cache");
  const Shape& cos = inputs_[kCosCache].shape;
  const int64_t total = shape_.total_sequence_length;
  RequireShape(cos.size() == 2 && cos[0] >= total && cos[1] > 0 && 2 * cos[1] <= shape_.head_size,
               kCosCache, "[at least ", total, " positions, at most ", shape_.head_size / 2, "]");
  RequireShape(inputs_[kSinCache].shape == cos, kSinCache, "cos_cache's, ", cos);
  if (!Has(kPositionIds)) return;
  const Shape accepted = {shape_.batch_size, shape_.sequence_length};
  RequireShape(inputs_[kPositionIds].shape == accepted, kPositionIds, accepted);
}

void GqaInputs::CheckBias() const {
  if (!Has(kAttentionBias)) return;
  const Shape& bias = inputs_[kAttentionBias].shape;
  const int64_t total = shape_.total_sequence_length;
  RequireShape(bias.size() == 4 && (bias[0] == 1 || bias[0] == shape_.batch_size) &&
                   (bias[1] == 1 || bias[1] == attributes_.num_heads) &&
                   bias[2] == shape_.sequence_length && bias[3] == total,
               kAttentionBias, "[", OneOr(shape_.batch_size), ", ", OneOr(attributes_.num_heads),
               ", ", shape_.sequence_length, ", ", total, "]");
}

void GqaInputs::CheckSink() const {
  if (!Has(kHeadSink)) return;
  RequireShape(inputs_[kHeadSink].shape == Shape{attributes_.num_heads}, kHeadSink, "[",
               attributes_.num_heads, "]");
}

void GqaInputs::CheckScales() const {
  if (!IsQuantised(types_.cache)) return;
  const int64_t expected =
      attributes_.scale_per_channel ? attributes_.kv_num_heads * shape_.head_size : 1;
  for (Input input : {kKScale, kVScale}) {
    Require(Has(input), attributes_.node, ": input ", kInputNames[input],
            " is missing; a cache of ", NameOf(types_.cache), " needs it");
    int64_t count = 1;
    for (int64_t dimension : inputs_[input].shape) count *= dimension;
    RequireShape(count == expected, input, expected, expected == 1 ? " element" : " elements");
  }
}

Problem GqaInputs::ProblemOf(const int32_t* lengths, int32_t tile_tokens) const {
  return {static_cast<int32_t>(shape_.batch_size),
          static_cast<int32_t>(shape_.sequence_length),
          attributes_.num_heads,
          attributes_.kv_num_heads,
          static_cast<int32_t>(shape_.head_size),
          shape_.present_rows,
          lengths,
          attributes_.local_window_size,
          types_.cache,
          tile_tokens};
}

}  // namespace lean_attention::onnxruntime
