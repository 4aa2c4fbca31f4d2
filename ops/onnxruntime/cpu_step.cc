#include "ops/onnxruntime/cpu_step.h"

#include <algorithm>

namespace lean_attention::onnxruntime {
namespace {

std::vector<int32_t> ReadLengths(const GqaInputs& inputs) {
  const CallShape& shape = inputs.shape();
  const auto* data = static_cast<const int32_t*>(inputs[kSeqlensK].data);
  std::vector<int32_t> lengths(data, data + shape.batch_size);
  // A past that is not the present buffer itself holds no row past its own end. Of a prompt the
  // rows on the right may be padding.
  const int64_t most = std::min(shape.present_rows, shape.past_rows + shape.sequence_length);
  for (size_t b = 0; b < lengths.size(); ++b) {
    const int64_t length = int64_t{lengths[b]} + 1;
    Require(length >= 1 && length <= most, inputs.attributes().node, ": input seqlens_k[", b,
            "] is ", lengths[b], "; it must be between 0 and ", most - 1, ", since ",
            shape.past_rows, " rows of past and ", shape.present_rows, " of present key are there");
  }
  return lengths;
}

void CheckPositions(const GqaInputs& inputs, int32_t longest) {
  if (!inputs.attributes().do_rotary) return;
  const CallShape& shape = inputs.shape();
  const int64_t rows = inputs[kCosCache].shape[0];
  if (!inputs.Has(kPositionIds)) {
    // A prompt's padding is rotated as well.
    const int64_t positions = std::max<int64_t>(shape.sequence_length, longest + int64_t{1});
    inputs.RequireShape(positions <= rows, kCosCache, "a row for each of the ", positions,
                        " positions");
    return;
  }
  const auto* position_ids = static_cast<const int64_t*>(inputs[kPositionIds].data);
  for (int64_t i = 0; i < shape.batch_size * shape.sequence_length; ++i) {
    Require(position_ids[i] >= 0 && position_ids[i] < rows, inputs.attributes().node,
            ": input position_ids holds ", position_ids[i], "; cos_cache has ", rows, " positions");
  }
}

void CheckBiasCovers(const GqaInputs& inputs, int32_t longest) {
  const int64_t total = inputs.shape().total_sequence_length;
  Require(!inputs.Has(kAttentionBias) || longest < total, inputs.attributes().node,
          ": input seqlens_k holds ", longest,
          ", but attention_bias covers only total_sequence_length = ", total, " keys");
}

}  // namespace

CpuStep::CpuStep(const GqaInputs& inputs) : lengths(ReadLengths(inputs)), args() {
  const int32_t longest = *std::max_element(lengths.begin(), lengths.end());
  CheckPositions(inputs, longest);
  CheckBiasCovers(inputs, longest);
  const auto head_size = static_cast<int32_t>(inputs.shape().head_size);
  inputs.Describe(&args);
  args.problem = inputs.ProblemOf(lengths.data(), cpu::TileTokens(head_size, inputs.types().cache));
  args.past_key = inputs[kPastKey].data;
  args.past_value = inputs[kPastValue].data;
  args.past_rows = inputs.shape().past_rows;
}

bool CpuStep::IsWhole(const GqaInputs& inputs) const {
  const CallShape& shape = inputs.shape();
  const int64_t tokens = shape.sequence_length;
  if (tokens == 1) return true;
  if (shape.total_sequence_length == tokens) {
    // A first prompt. Of its position_ids the stock operator reads the first alone.
    return !inputs.Has(kPositionIds) &&
           std::all_of(lengths.begin(), lengths.end(),
                       [&](int32_t last) { return last == tokens - 1; });
  }
  return shape.batch_size == 1 && lengths[0] >= tokens - 1;
}

}  // namespace lean_attention::onnxruntime
