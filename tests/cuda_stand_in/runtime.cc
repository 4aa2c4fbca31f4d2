// What ONNX Runtime's CUDA execution provider needs of libcudart, on a machine without a GPU.
//
// Device memory is memory that this process cannot touch through the addresses it gets: every
// access but a copy of this runtime is a segmentation fault, as it would be an error on a GPU. Work
// is done when it is enqueued. Kernels do nothing and are counted. While a graph is captured, what
// the real runtime refuses then fails.

#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {

// One allocation: its address for the program, and where its bytes can be reached.
struct Allocation {
  size_t size;
  char* bytes;
};

std::mutex& Mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

std::map<char*, Allocation>& Allocations() {
  static auto& allocations = *new std::map<char*, Allocation>;
  return allocations;
}

struct Stream {
  bool is_capturing = false;
};

std::atomic<int> captures{0};  // that are under way
std::atomic<int> graphs{0};    // that were captured
std::atomic<int> kernels{0};   // that were launched

cudaError_t Refused() { return captures > 0 ? cudaErrorStreamCaptureUnsupported : cudaSuccess; }

// Where an address of device memory can be reached; others as they are.
char* Reach(const void* address) {
  char* place = static_cast<char*>(const_cast<void*>(address));
  const std::lock_guard<std::mutex> lock(Mutex());
  auto it = Allocations().upper_bound(place);
  if (it == Allocations().begin()) return place;
  --it;
  return place < it->first + it->second.size ? it->second.bytes + (place - it->first) : place;
}

cudaError_t Launched() {
  ++kernels;
  return cudaSuccess;
}

}  // namespace

extern "C" {

int stand_in_graphs() { return graphs; }
int stand_in_kernels() { return kernels; }

// Memory.

cudaError_t cudaMalloc(void** pointer, size_t size) {
  if (Refused() != cudaSuccess) return Refused();
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t whole = (size + page) / page * page;
  const int file = memfd_create("device memory", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(whole)) != 0) {
    return cudaErrorMemoryAllocation;
  }
  void* address = mmap(nullptr, whole, PROT_NONE, MAP_SHARED, file, 0);
  void* bytes = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (address == MAP_FAILED || bytes == MAP_FAILED) return cudaErrorMemoryAllocation;
  std::memset(bytes, 0xFF, size);  // nobody may count on zeros
  const std::lock_guard<std::mutex> lock(Mutex());
  Allocations()[static_cast<char*>(address)] = {whole, static_cast<char*>(bytes)};
  *pointer = address;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  if (Refused() != cudaSuccess) return Refused();
  if (pointer == nullptr) return cudaSuccess;
  const std::lock_guard<std::mutex> lock(Mutex());
  const auto it = Allocations().find(static_cast<char*>(pointer));
  if (it == Allocations().end()) return cudaErrorInvalidValue;
  munmap(it->first, it->second.size);
  munmap(it->second.bytes, it->second.size);
  Allocations().erase(it);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t size, cudaMemPool_t, cudaStream_t) {
  return cudaMalloc(pointer, size);
}
cudaError_t cudaMallocHost(void** pointer, size_t size) {
  *pointer = std::malloc(size);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned) {
  return cudaMallocHost(pointer, size);
}
cudaError_t cudaFreeHost(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{2} << 30;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  attributes->type = Reach(pointer) != pointer ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->devicePointer = const_cast<void*>(pointer);
  return cudaSuccess;
}

// Copies.

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t) {
  std::memmove(Reach(to), Reach(from), size);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  if (Refused() != cudaSuccess) return Refused();
  return cudaMemcpyAsync(to, from, size, kind, nullptr);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t) {
  if (width > to_pitch || width > from_pitch) return cudaErrorInvalidPitchValue;
  for (size_t row = 0; row < height; ++row) {
    std::memmove(Reach(to) + row * to_pitch, Reach(from) + row * from_pitch, width);
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t) {
  std::memset(Reach(to), value, size);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t size) {
  return cudaMemsetAsync(to, value, size, nullptr);
}

// The device.

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaDeviceSynchronize() { return Refused(); }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "no device");
  properties->totalGlobalMem = size_t{2} << 30;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->sharedMemPerMultiprocessor = 228 << 10;
  properties->regsPerBlock = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxGridSize[0] = 2147483647;
  properties->major = 9;
  properties->multiProcessorCount = 132;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? 132 : 0;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) { return "an error of the stand-in"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the stand-in"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }

// Streams, events and graphs.

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new Stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete reinterpret_cast<Stream*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return Refused(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new char);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<char*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return Refused(); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
  function(data);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
  reinterpret_cast<Stream*>(stream)->is_capturing = true;
  ++captures;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const bool is_capturing = stream != nullptr && reinterpret_cast<Stream*>(stream)->is_capturing;
  *status = is_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  reinterpret_cast<Stream*>(stream)->is_capturing = false;
  --captures;
  ++graphs;
  *graph = reinterpret_cast<cudaGraph_t>(new char);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t, unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(new char);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<char*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete reinterpret_cast<char*>(exec);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }

// Kernels.

cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return Launched();
}
cudaError_t __cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return Launched();
}
cudaError_t cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return Launched();
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  return Launched();
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}

}  // extern "C"
