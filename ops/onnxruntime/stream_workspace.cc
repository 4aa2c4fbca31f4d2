#include "ops/onnxruntime/stream_workspace.h"

#include <algorithm>

namespace lean_attention::onnxruntime {
namespace {

constexpr size_t kAlignment = 256;
constexpr int64_t kFewestCounters = 256;

}  // namespace

std::shared_ptr<StreamWorkspace> StreamWorkspace::Of(const StreamKey& key) {
  // Never destroyed: a session may outlive the destructors of this library's statics.
  static auto& mutex = *new std::mutex;
  static auto& workspaces = *new std::map<StreamKey, std::weak_ptr<StreamWorkspace>>;
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto it = workspaces.begin(); it != workspaces.end();) {
    it = it->second.expired() ? workspaces.erase(it) : std::next(it);
  }
  std::weak_ptr<StreamWorkspace>& known = workspaces[key];
  std::shared_ptr<StreamWorkspace> workspace = known.lock();
  if (workspace == nullptr) {
    workspace = std::make_shared<StreamWorkspace>(key.stream);
    known = workspace;
  }
  return workspace;
}

gpu::Status StreamWorkspace::Reserve(const gpu::Workspace& needed,
                                     const Ort::KernelContext& context, const OrtMemoryInfo& memory,
                                     gpu::WorkspaceBuffers* buffers) {
  // Twice what there was, so that what growth leaves behind is no more than what is in use.
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto allocate = [&](int64_t bytes) {
    allocations_.emplace_back(context.GetAllocator(memory), static_cast<size_t>(bytes), kAlignment);
    return allocations_.back().get();
  };
  if (needed.state_bytes > state_bytes_) {
    const int64_t bytes = std::max(needed.state_bytes, 2 * state_bytes_);
    buffers_.states = allocate(bytes);
    state_bytes_ = bytes;
  }
  if (needed.counters > counters_) {
    const int64_t counters = std::max({needed.counters, 2 * counters_, kFewestCounters});
    const int64_t bytes = counters * int64_t{sizeof(int32_t)};
    void* zeros = allocate(bytes);
    const gpu::Status status = gpu::ClearRows(zeros, bytes, bytes, 1, stream_);
    if (!status.ok()) return status;
    buffers_.counters = static_cast<int32_t*>(zeros);
    counters_ = counters;
  }
  *buffers = buffers_;
  return {};
}

StreamWorkspace& UsedWorkspaces::On(const StreamKey& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<StreamWorkspace>& workspace = used_[key];
  if (workspace == nullptr) workspace = StreamWorkspace::Of(key);
  return *workspace;
}

}  // namespace lean_attention::onnxruntime
