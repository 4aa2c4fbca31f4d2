// Device memory in which the blocks of a launch meet, one for each stream of a device.
//
// Launches on a stream run one after the other, so all nodes share it. It is kept while a node that
// has used it lives, and what has been handed out stays valid as long: launches may still be on
// their way, and a captured graph runs again with the same addresses.

#ifndef LEAN_ATTENTION_OPS_ONNXRUNTIME_STREAM_WORKSPACE_H_
#define LEAN_ATTENTION_OPS_ONNXRUNTIME_STREAM_WORKSPACE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "ops/gpu/launch/launcher.h"
#include "ops/onnxruntime/allocation.h"
#include "ops/onnxruntime/ort.h"

namespace lean_attention::onnxruntime {

// The default stream is that of a device.
struct StreamKey {
  int device;
  void* stream;

  bool operator<(const StreamKey& other) const {
    return std::tie(device, stream) < std::tie(other.device, other.stream);
  }
};

class StreamWorkspace {
 public:
  static std::shared_ptr<StreamWorkspace> Of(const StreamKey& key);

  explicit StreamWorkspace(void* stream) : stream_(stream) {}

  // At least as much as is needed; counters are zeroed on the stream when they are first had.
  gpu::Status Reserve(const gpu::Workspace& needed, const Ort::KernelContext& context,
                      const OrtMemoryInfo& memory, gpu::WorkspaceBuffers* buffers);

 private:
  void* const stream_;
  std::mutex mutex_;
  std::deque<Allocation> allocations_;
  int64_t state_bytes_ = 0;
  int64_t counters_ = 0;
  gpu::WorkspaceBuffers buffers_ = {};
};

// The workspaces that a node has used.
class UsedWorkspaces {
 public:
  StreamWorkspace& On(const StreamKey& key);

 private:
  std::mutex mutex_;
  std::map<StreamKey, std::shared_ptr<StreamWorkspace>> used_;
};

}  // namespace lean_attention::onnxruntime

#endif  // LEAN_ATTENTION_OPS_ONNXRUNTIME_STREAM_WORKSPACE_H_
