#include "ops/cpu/read_memory.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace lean_attention::cpu {
namespace {

// What a thread takes at a time: long enough for the prefetchers, short enough that threads end
// together.
constexpr int64_t kMostChunkBytes = 1 << 20;
constexpr int64_t kLeastChunkBytes = 4 << 10;
constexpr int64_t kLineBytes = 64;

// Vectors of the compiler, of a size that every machine has: no loop of them is bound by anything
// but memory.
typedef uint64_t Vector __attribute__((vector_size(16)));
constexpr int kLineVectors = kLineBytes / sizeof(Vector);

Vector Load(const char* from) {
  Vector loaded;
  std::memcpy(&loaded, from, sizeof(loaded));
  return loaded;
}

// The exclusive or of all bytes of [from, from + bytes), as 16 bytes and zeros after the end. A
// result that needs every byte is one that the compiler cannot skip loads for.
template <int kStreams>
Vector Combine(const char* from, int64_t bytes) {
  // Enough sums not to wait for one another, few enough for the registers.
  constexpr int kSums = 8 / kStreams;
  Vector sums[kStreams][kSums] = {};
  constexpr int kStepVectors = kSums > kLineVectors ? kSums : kLineVectors;
  constexpr int64_t kStepBytes = kStepVectors * sizeof(Vector);
  const int64_t part = bytes / (kStreams * kStepBytes) * kStepBytes;
  for (int64_t i = 0; i < part; i += kStepBytes) {
    for (int s = 0; s < kStreams; ++s) {
      const char* step = from + s * part + i;
      for (int v = 0; v < kStepVectors; ++v) sums[s][v % kSums] ^= Load(step + v * sizeof(Vector));
    }
  }
  Vector all = {};
  for (const auto& stream : sums) {
    for (const Vector& sum : stream) all ^= sum;
  }
  for (int64_t i = kStreams * part; i < bytes; i += sizeof(Vector)) {
    Vector last = {};
    std::memcpy(&last, from + i, std::min<int64_t>(sizeof(Vector), bytes - i));
    all ^= last;
  }
  return all;
}

using CombineFunction = Vector (*)(const char*, int64_t);

CombineFunction CombineWith(int32_t streams) {
  if (streams == 1) return &Combine<1>;
  return streams == 2 ? &Combine<2> : &Combine<4>;
}

std::vector<Memory> CutIntoChunks(const std::vector<Memory>& buffers, int32_t threads) {
  int64_t total = 0;
  for (const Memory& buffer : buffers) total += buffer.bytes;
  const int64_t share = total / (int64_t{8} * threads) / kLineBytes * kLineBytes;
  const int64_t size = std::clamp(share, kLeastChunkBytes, kMostChunkBytes);
  std::vector<Memory> chunks;
  for (const Memory& buffer : buffers) {
    for (int64_t at = 0; at < buffer.bytes; at += size) {
      chunks.push_back(
          {static_cast<const char*>(buffer.data) + at, std::min(size, buffer.bytes - at)});
    }
  }
  return chunks;
}

// The threads of one read, which start together and take chunks as they become free.
class Reading {
 public:
  Reading(std::vector<Memory> chunks, int32_t streams)
      : chunks_(std::move(chunks)), combine_(CombineWith(streams)) {}
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  ~Reading() {
    started_.store(true);
    for (std::thread& helper : helpers_) helper.join();
  }

  void AddHelpers(int32_t count) {
    helpers_.reserve(count);
    for (int32_t i = 0; i < count; ++i) {
      helpers_.emplace_back([this] {
        ready_.fetch_add(1);
        while (!started_.load()) std::this_thread::yield();
        TakeChunks();
        done_.fetch_add(1);
      });
    }
    while (ready_.load() < count) std::this_thread::yield();
  }

  ReadResult Run() {
    const auto begin = std::chrono::steady_clock::now();
    started_.store(true);
    TakeChunks();
    while (done_.load() < helpers_.size()) std::this_thread::yield();
    const auto end = std::chrono::steady_clock::now();
    return {std::chrono::duration<double>(end - begin).count(), combined_.load()};
  }

 private:
  void TakeChunks() {
    Vector all = {};
    for (size_t i = next_.fetch_add(1); i < chunks_.size(); i = next_.fetch_add(1)) {
      all ^= combine_(static_cast<const char*>(chunks_[i].data), chunks_[i].bytes);
    }
    combined_.fetch_xor(all[0] ^ all[1]);
  }

  const std::vector<Memory> chunks_;
  const CombineFunction combine_;
  std::vector<std::thread> helpers_;
  std::atomic<bool> started_{false};
  std::atomic<int32_t> ready_{0};
  std::atomic<size_t> next_{0};
  std::atomic<size_t> done_{0};
  std::atomic<uint64_t> combined_{0};
};

}  // namespace

ReadResult ReadMemory(const std::vector<Memory>& buffers, int32_t threads, int32_t streams) {
  Reading reading(CutIntoChunks(buffers, threads), streams);
  reading.AddHelpers(threads - 1);
  return reading.Run();
}

}  // namespace lean_attention::cpu
