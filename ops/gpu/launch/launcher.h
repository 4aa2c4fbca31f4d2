// Runs the GPU kernel: raw device pointers, sizes and a stream. Plain C++, for callers that know
// neither CUDA nor HIP.
//
//   device    QueryDevice(&device)                       once per device
//   Check(decode, device)                                before anything else
//   machine   QueryMachine(decode, &machine)
//   decision  DecideGpu(decode.problem, decode.max_length, machine, decode.schedule)
//   workspace WorkspaceOf(decode.problem, decode.max_length, decision)
//   Launch(decode, decision, buffers, stream)
//
// Nothing waits for the device, allocates on it or reads its memory from the host, so all of it may
// happen while a graph is captured. A captured launch stays right for other lengths up to
// max_length. Everything is about the calling thread's current device.

#ifndef LEAN_ATTENTION_OPS_GPU_LAUNCH_LAUNCHER_H_
#define LEAN_ATTENTION_OPS_GPU_LAUNCH_LAUNCHER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "ops/decode/policy.h"
#include "ops/decode/problem.h"
#include "ops/decode/schedule.h"

namespace lean_attention::gpu {

enum class StatusCode {
  kOk,
  kInvalidArgument,  // no device could run it
  kUnsupported,      // this build or this device cannot
  kDeviceError       // the runtime refused; its words are in the message
};

struct Status {
  StatusCode code = StatusCode::kOk;
  std::string message;  // one line: what was found, and what would be right

  bool ok() const { return code == StatusCode::kOk; }
};

// One decode step. Tensors are row-major in device memory, of `element_type` unless said otherwise,
// aligned to their elements, the caches to 16 bytes. What the step writes (caches and output) may
// overlap no other tensor. A null pointer stands for an input that is not there. B, S, N, K, H, C,
// T as in ops/decode/problem.h.
struct GpuDecode {
  Problem problem;           // its pointers are not read: the next ones are
  ElementType element_type;  // float16 or bfloat16; problem.cache_type: the same, int8, float8e4m3

  const int32_t* seqlens_k;      // [B], T_b - 1; in the kernel bounded to max_length
  const int32_t* query_seqlens;  // [B], Q_b, likewise; null: min(S, T_b) for all
  int64_t max_length;            // what the host knows of the lengths: none is above, S <= it <= C

  std::optional<Schedule> schedule;  // none: the policy chooses

  const void* query;     // [B, S, N, H], query_stride elements from token to token
  const void* key;       // [B, S, K, H], kv_stride elements from token to token; null, and value:
                         // the cache holds the step's rows already, as of layers that share one
  const void* value;     // as key
  int64_t query_stride;  // N * H, or (N + 2K) * H when packed
  int64_t kv_stride;

  void* key_cache;  // [B, K, C, H]: past and present in one buffer
  void* value_cache;

  // Of quantised caches: a cached number stands for number * scale.
  const float* k_scale;  // [K, H], or [1]
  const float* v_scale;  // likewise
  bool scale_per_channel;

  const void* q_norm_weight;  // [H], of the RMS norm of each head; null: none
  const void* k_norm_weight;
  float q_norm_epsilon;
  float k_norm_epsilon;

  const void* cos_cache;  // [rotary_rows, rotary_half]; null: no rotary
  const void* sin_cache;
  int64_t rotary_rows;
  int32_t rotary_half;          // rotated pairs per head, 2 * rotary_half <= H
  bool rotary_interleaved;      // pairs (2i, 2i + 1) instead of (i, i + rotary_half)
  const int64_t* position_ids;  // [B, S]; null: the token's position

  const void* attention_bias;  // [B or 1, N or 1, S, T]; null: none
  int64_t bias_batch_stride;   // elements; 0 where the dimension is broadcast
  int64_t bias_head_stride;
  int64_t bias_row_stride;  // T >= max_length

  const void* head_sink;  // [N]; null: none
  bool smooth_softmax;    // without head_sink: a sink of 0 for every head

  float scale;    // applied to the scores, in float32
  float softcap;  // 0: none; cap * tanh(score / cap)

  void* output;  // [B, S, N, H]
};

// "CUDA" or "ROCm"; of tests, "emulator".
const char* BackendName();

struct Device {
  int32_t multiprocessors;
  int64_t shared_bytes;  // that a block may have
};

Status QueryDevice(Device* device);

// Whether the step can run: refuses what the host can see to be wrong. Pure.
Status Check(const GpuDecode& decode, const Device& device);

// How many blocks of the step's kernel run at a time. The step has passed Check.
Status QueryMachine(const GpuDecode& decode, GpuMachine* machine);

// Shared memory of a block, in bytes. Pure; 0 for a head size that is not built.
int64_t SharedBytes(const Problem& problem);

// What a launch needs of device memory beside its tensors. Pure.
struct Workspace {
  int64_t state_bytes;  // of any content
  int64_t counters;     // int32 each; zero before the first launch, and again after every one
};
Workspace WorkspaceOf(const Problem& problem, int64_t max_length, const GpuDecision& decision);

// At least what WorkspaceOf says; launches that may run at the same time need their own.
struct WorkspaceBuffers {
  void* states;
  int32_t* counters;
};

// Whether the buffers are there, where the decision needs them. Pure.
Status CheckBuffers(const GpuDecode& decode, const GpuDecision& decision,
                    const WorkspaceBuffers& buffers);

// Enqueues the step, one kernel, on a cudaStream_t or hipStream_t (null: the default stream). The
// step has passed Check; what CheckBuffers refuses, this refuses.
Status Launch(const GpuDecode& decode, const GpuDecision& decision, const WorkspaceBuffers& buffers,
              void* stream);

// Enqueues copies of `rows` rows of `bytes` bytes each, which begin `to_stride` and `from_stride`
// bytes apart.
Status CopyRows(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t bytes,
                int64_t rows, void* stream);

// Likewise zeros.
Status ClearRows(void* to, int64_t stride, int64_t bytes, int64_t rows, void* stream);

}  // namespace lean_attention::gpu

#endif  // LEAN_ATTENTION_OPS_GPU_LAUNCH_LAUNCHER_H_
