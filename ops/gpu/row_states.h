// The online softmax of 16 query rows as one warp goes from block to block of keys.

#ifndef LEAN_ATTENTION_OPS_GPU_ROW_STATES_H_
#define LEAN_ATTENTION_OPS_GPU_ROW_STATES_H_

#include "ops/decode/softmax_state.h"
#include "ops/gpu/shared_layout.h"
#if LEAN_ATTENTION_AMD
#include "ops/gpu/primitives/amd.h"
#else
#include "ops/gpu/primitives/nvidia.h"
#endif

namespace lean_attention::gpu {

// What the rows of a lane see, and of what.
template <typename Element>
struct LaneRow {
  int32_t begin;  // of the visible keys; empty where there is no such row
  int32_t end;
  GlobalPtr<const Element> bias;  // indexed by position; null: none
};

// The queries of 16 rows as matrix instructions take them: in registers where there is room,
// otherwise read from shared memory every time.
template <typename Element, typename Cache, int kHeadSize>
class QueryFragments {
  using Fragments = Matrix<Element, Cache, kHeadSize>;
  using Layout = SharedLayout<Cache, kHeadSize>;
  static constexpr bool kInRegisters = kHeadSize <= 128;

 public:
  static constexpr int kSteps = kHeadSize / 16;

  // parts: 2 where the rest of each number, which 16 bits do not hold, is multiplied too.
  LEAN_ATTENTION_DEVICE QueryFragments(SharedPtr<const std::byte> memory, int parts)
      : memory_(memory), parts_(parts) {
    for (int step = 0; kInRegisters && step < kSteps; ++step) held_[step] = LoadPart(0, step);
  }

  LEAN_ATTENTION_DEVICE void AddScores(const typename Fragments::Block& keys,
                                       float (&scores)[Fragments::kValues]) const {
    for (int step = 0; step < kSteps; ++step) {
      const auto queries = kInRegisters ? held_[step] : LoadPart(0, step);
      Fragments::AddScores(queries, keys, step, scores);
    }
    for (int step = 0; parts_ == 2 && step < kSteps; ++step) {
      Fragments::AddScores(LoadPart(1, step), keys, step, scores);
    }
  }

 private:
  LEAN_ATTENTION_DEVICE typename Fragments::Queries LoadPart(int part, int step) const {
    return Fragments::LoadQueries(memory_ + part * Layout::kQueryBytes, Layout::kQueryStride, step);
  }

  SharedPtr<const std::byte> memory_;
  int parts_;
  typename Fragments::Queries held_[kInRegisters ? kSteps : 1];
};

template <typename Element, typename Cache, int kHeadSize>
class RowStates {
  using Fragments = Matrix<Element, Cache, kHeadSize>;
  static constexpr int kSteps = Fragments::kValueSteps;
  static constexpr int kSlots = Fragments::kRowSlots;
  static constexpr int kValues = Fragments::kValues;

 public:
  LEAN_ATTENTION_DEVICE void Reset() {
    for (int slot = 0; slot < kSlots; ++slot) {
      m_[slot] = -INFINITY;
      l_[slot] = 0;
    }
    for (auto& channels : o_) {
      for (float& o : channels) o = 0;
    }
  }

  // Takes in a block of kKeys keys from position `key` on. `scale` is what sums of products are
  // multiplied by. Order: scale, softcap, bias, mask, softmax.
  LEAN_ATTENTION_DEVICE void Add(const QueryFragments<Element, Cache, kHeadSize>& queries,
                                 const LaneRow<Element> (&rows)[kSlots], float scale, float softcap,
                                 const typename Fragments::Block& block, int32_t key) {
    float s[kValues] = {};
    queries.AddScores(block, s);

    float top[kSlots];
    for (int slot = 0; slot < kSlots; ++slot) top[slot] = -INFINITY;
    for (int i = 0; i < kValues; ++i) {
      const LaneRow<Element>& row = rows[Fragments::SlotOf(i)];
      const int32_t position = key + Fragments::KeyOf(i);
      const bool is_visible = position >= row.begin && position < row.end;
      float x = s[i] * scale;
      if (softcap > 0) x = softcap * tanhf(x / softcap);
      if (row.bias != nullptr && is_visible) x += ToFloat(Load(row.bias, position));
      s[i] = is_visible ? x * kLog2E : -INFINITY;
      top[Fragments::SlotOf(i)] = fmaxf(top[Fragments::SlotOf(i)], s[i]);
    }

    float decay[kSlots];
    float reference[kSlots];
    float sum[kSlots] = {};
    for (int slot = 0; slot < kSlots; ++slot) {
      const float m = fmaxf(m_[slot], Fragments::RowMax(top[slot]));
      // Nothing visible so far: any finite reference gives 2^-inf = 0 and never inf - inf.
      reference[slot] = m == -INFINITY ? 0.0f : m;
      decay[slot] = Exp2(m_[slot] - reference[slot]);
      m_[slot] = m;
    }
    for (int i = 0; i < kValues; ++i) {
      s[i] = Exp2(s[i] - reference[Fragments::SlotOf(i)]);
      sum[Fragments::SlotOf(i)] += s[i];
    }
    for (int slot = 0; slot < kSlots; ++slot) {
      l_[slot] = fmaf(l_[slot], decay[slot], Fragments::RowSum(sum[slot]));
    }
    for (auto& channels : o_) {
      for (int i = 0; i < kValues; ++i) channels[i] *= decay[Fragments::SlotOf(i)];
    }
    const auto weights = Fragments::ToWeights(s);
    for (int step = 0; step < kSteps; ++step) {
      Fragments::AddValues(weights, block, step, o_[step]);
    }
  }

  // Writes `rows` rows from `first` on: o [rows, H], m [rows], l [rows].
  LEAN_ATTENTION_DEVICE void Write(SharedPtr<float> state, int first, int rows) const {
    const int channel = Fragments::FirstChannel();
    bool is_written[kSlots];
    SharedPtr<float> o[kSlots];
    for (int slot = 0; slot < kSlots; ++slot) {
      const int row = Fragments::Row(slot) - first;
      is_written[slot] = row >= 0 && row < rows;
      o[slot] = state + (row * kHeadSize + channel);
      if (is_written[slot] && Fragments::SpeaksForRow()) {
        Store(state, rows * kHeadSize + row, m_[slot]);
        Store(state, rows * (kHeadSize + 1) + row, l_[slot]);
      }
    }
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < kValues; ++i) {
        const int slot = Fragments::SlotOf(i);
        const int offset = Fragments::ChannelOffset(step, i);
        if (is_written[slot] && channel + offset < kHeadSize) Store(o[slot], offset, o_[step][i]);
      }
    }
  }

 private:
  float m_[kSlots];
  float l_[kSlots];
  float o_[kSteps][kValues];
};

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_ROW_STATES_H_
