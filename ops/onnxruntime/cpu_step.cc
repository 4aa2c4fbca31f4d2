#include "ops/onnxruntime/cpu_step.h"

#include <algorithm>

namespace lean_attention::onnxruntime {
namespace {

std::vector<int32_t> Copied(const GqaInputs& inputs, Input input) {
  const auto* data = static_cast<const int32_t*>(inputs[input].data);
  return {data, data + inputs.shape().batch_size};
}

// Every sequence's keys and query tokens, within the buffers that there are.
void CheckLengths(const GqaInputs& inputs, const std::vector<int32_t>& seqlens_k) {
  const CallShape& shape = inputs.shape();
  // A past that is not the present buffer itself holds no row past its own end. A first prompt has
  // none; of it the rows on the right may be padding.
  const bool is_first = shape.is_first_prompt();
  const int64_t least = is_first ? 1 : shape.sequence_length;
  const int64_t most = is_first ? shape.sequence_length
                                : std::min(shape.present_rows, shape.past_rows + shape.new_rows);
  for (size_t b = 0; b < seqlens_k.size(); ++b) {
    const int64_t keys = int64_t{seqlens_k[b]} + 1;
    Require(keys >= least && keys <= most, inputs.attributes().node, ": input seqlens_k[", b,
            "] is ", seqlens_k[b], "; it must be between ", least - 1, " and ", most - 1,
            ", since ", is_first ? 0 : shape.past_rows, " rows of past, ", shape.new_rows,
            " new ones and ", shape.present_rows, " of present_key are there for ",
            shape.sequence_length, " query tokens");
  }
}

void CheckQueryLengths(const GqaInputs& inputs, const std::vector<int32_t>& seqlens_k,
                       const std::vector<int32_t>& query_seqlens) {
  const CallShape& shape = inputs.shape();
  const std::string& node = inputs.attributes().node;
  for (size_t b = 0; b < seqlens_k.size(); ++b) {
    const int64_t keys = int64_t{seqlens_k[b]} + 1;
    Require(keys >= 1 && keys <= shape.total_sequence_length, node, ": input seqlens_k[", b,
            "] is ", seqlens_k[b], "; it must be between 0 and ", shape.total_sequence_length - 1,
            ", since total_sequence_length is ", shape.total_sequence_length);
    const int64_t most = std::min(shape.sequence_length, keys);
    Require(query_seqlens[b] >= 0 && query_seqlens[b] <= most, node, ": input query_seqlens[", b,
            "] is ", query_seqlens[b], "; it must be between 0 and ", most, ", the tokens and ",
            keys, " keys that there are");
    const int64_t past = keys - query_seqlens[b];
    Require(past <= shape.past_rows && past + shape.sequence_length <= shape.present_rows, node,
            ": inputs seqlens_k[", b, "] and query_seqlens[", b, "] leave ", past,
            " rows of past; ", shape.past_rows, " are there, and with all ", shape.sequence_length,
            " tokens of the call they must fit the ", shape.present_rows, " of present_key");
  }
}

// Whether a row of the rotary tables is there for every position; returns positions that the rows
// of the cache do not say themselves.
std::vector<int64_t> ReadPositions(const GqaInputs& inputs, const Problem& problem) {
  const CallShape& shape = inputs.shape();
  if (!inputs.attributes().do_rotary) return {};
  const int64_t rows = inputs[kCosCache].shape[0];
  if (!inputs.Has(kPositionIds)) {
    for (int32_t b = 0; b < problem.batch_size; ++b) {
      const int64_t keys = LengthsOf(problem, b).keys;
      inputs.RequireShape(keys <= rows, kCosCache, "a row for each of the ", keys, " positions");
    }
    return {};
  }
  const auto* ids = static_cast<const int64_t*>(inputs[kPositionIds].data);
  std::vector<int64_t> positions(ids, ids + shape.batch_size * shape.sequence_length);
  for (int32_t b = 0; b < problem.batch_size; ++b) {
    for (int32_t s = 0; s < LengthsOf(problem, b).queries; ++s) {
      int64_t& position = positions[b * shape.sequence_length + s];
      // Of a first prompt's the operator knows the first alone.
      if (shape.is_first_prompt() && !inputs.Has(kQuerySeqlens)) position = ids[0] + s;
      Require(position >= 0 && position < rows, inputs.attributes().node,
              ": input position_ids holds ", position, "; it must be between 0 and ", rows - 1,
              ", since cos_cache has ", rows, " rows");
    }
  }
  return positions;
}

void CheckBiasCovers(const GqaInputs& inputs, int32_t longest) {
  const int64_t total = inputs.shape().total_sequence_length;
  Require(!inputs.Has(kAttentionBias) || longest < total, inputs.attributes().node,
          ": input seqlens_k holds ", longest, "; it must be at most ", total - 1,
          ", since attention_bias covers total_sequence_length = ", total, " keys");
}

}  // namespace

CpuStep::CpuStep(const GqaInputs& inputs) : seqlens_k(Copied(inputs, kSeqlensK)), args() {
  if (inputs.Has(kQuerySeqlens)) {
    query_seqlens = Copied(inputs, kQuerySeqlens);
    CheckQueryLengths(inputs, seqlens_k, query_seqlens);
  } else {
    CheckLengths(inputs, seqlens_k);
  }
  CheckBiasCovers(inputs, *std::max_element(seqlens_k.begin(), seqlens_k.end()));
  inputs.Describe(&args);
  const auto head_size = static_cast<int32_t>(inputs.shape().head_size);
  args.problem =
      inputs.ProblemOf(seqlens_k.data(), cpu::TileTokens(head_size, inputs.types().cache));
  args.problem.query_seqlens = query_seqlens.empty() ? nullptr : query_seqlens.data();
  position_ids = ReadPositions(inputs, args.problem);
  args.position_ids = position_ids.empty() ? nullptr : position_ids.data();
  args.past_key = inputs[kPastKey].data;
  args.past_value = inputs[kPastValue].data;
  args.past_rows = inputs.shape().past_rows;
}

}  // namespace lean_attention::onnxruntime
