#include "ops/onnxruntime/gqa_kernel.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/decode/policy.h"

namespace lean_attention::onnxruntime {
namespace {

template <typename Body>
OrtStatusPtr AsStatus(Body body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Ort::Exception& error) {
    return Ort::GetApi().CreateStatus(error.GetOrtErrorCode(), error.what());
  } catch (const std::exception& error) {
    return Ort::GetApi().CreateStatus(ORT_RUNTIME_EXCEPTION, error.what());
  }
}

// Memory of the session's allocator, aligned for the workspace.
class Scratch {
 public:
  // Takes over the allocator: ONNX Runtime hands out a new handle at each call, and a handle that
  // is not released keeps the session's whole arena alive.
  Scratch(OrtAllocator* allocator, size_t bytes) : allocator_(allocator, &Release) {
    constexpr size_t kAlignment = cpu::kWorkspaceAlignment;
    memory_ = allocator->Alloc(allocator, bytes + kAlignment);
    if (memory_ == nullptr) Fail(ORT_FAIL, kOpName, ": no memory for ", bytes, " bytes of scratch");
    const auto address = reinterpret_cast<uintptr_t>(memory_);
    aligned_ = reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { allocator_->Free(allocator_.get(), memory_); }

  void* get() const { return aligned_; }

 private:
  static void Release(OrtAllocator* allocator) { Ort::GetApi().ReleaseAllocator(allocator); }

  std::unique_ptr<OrtAllocator, void (*)(OrtAllocator*)> allocator_;
  void* memory_;
  void* aligned_;
};

// Whether each decision is logged.
bool Explaining() {
  static const bool explaining = [] {
    const char* value = std::getenv("LEAN_ATTENTION_EXPLAIN");
    return value != nullptr && std::string(value) == "1";
  }();
  return explaining;
}

// The pool's width is not in the API; shares beyond it wait their turn, which costs little.
Machine ThisMachine() {
  static const unsigned processors = std::thread::hardware_concurrency();
  return {static_cast<int32_t>(processors == 0 ? 1 : processors)};
}

}  // namespace

GqaKernel::GqaKernel(const Ort::ConstKernelInfo& info, const TensorTypes& types)
    : attributes_(ReadAttributes(info, types)),
      types_(types),
      cpu_memory_(Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault)) {
  try {
    stock_.emplace(info, types);
  } catch (const Ort::Exception& error) {
    // Only some calls need it.
    why_no_stock_ = error.what();
    std::replace(why_no_stock_.begin(), why_no_stock_.end(), '\n', ' ');
  }
  const auto connected = [&](Output output) {
    return info.GetOutputCount() > output && !info.GetOutputName(output).empty();
  };
  Require(connected(kPresentKey) && connected(kPresentValue), attributes_.node,
          ": outputs present_key and present_value must be connected");
  if (connected(kOutputQk)) {
    Fail(ORT_NOT_IMPLEMENTED, attributes_.node, ": ", kOpName,
         " does not implement the output output_qk; use ", kStockDomain, ".", kStockOpName);
  }
}

bool GqaKernel::RunsStock(const GqaInputs& inputs, const std::vector<int32_t>& lengths) const {
  const bool must = attributes_.always_stock || inputs.Has(kQNormWeight) ||
                    inputs.Has(kKNormWeight) || inputs.Has(kQuerySeqlens) ||
                    !inputs.IsStep(lengths) || cpu::TargetName() == nullptr;
  if (must && !stock_) {
    Fail(ORT_NOT_IMPLEMENTED, attributes_.node, ": ", kOpName, " leaves to ", kStockDomain, ".",
         kStockOpName,
         " calls with query_seqlens, q_norm_weight, k_norm_weight or schedule = stock, batches of "
         "several tokens after a past, and prompts with padding or position_ids, but this ONNX "
         "Runtime has none for ",
         NameOf(types_.element), " with ", NameOf(types_.cache), " caches: ", why_no_stock_);
  }
  // More tokens are a prompt, which is bound by arithmetic.
  return must || (stock_ && inputs.shape().sequence_length > kMaxSplitTokens);
}

void GqaKernel::Decode(OrtKernelContext* context, const cpu::DecodeArgs& args) const {
  const Machine machine = ThisMachine();
  const Decision decision = attributes_.schedule
                                ? DecideFor(args.problem, machine, *attributes_.schedule)
                                : Decide(args.problem, machine);
  const cpu::Plan plan = cpu::MakePlan(args, decision);
  const Ort::KernelContext kernel_context(context);
  if (Explaining()) {
    // A warning, so that it shows at the level that sessions log at unless told otherwise.
    const std::string line = attributes_.node + ": " + Explain(args.problem, machine, decision);
    kernel_context.GetLogger().LogMessage(ORT_LOGGING_LEVEL_WARNING, ORT_FILE, __LINE__, __func__,
                                          line.c_str());
  }
  const OrtMemoryInfo* memory = cpu_memory_;
  const Scratch scratch(kernel_context.GetAllocator(*memory), plan.workspace_bytes);
  cpu::PrepareWorkspace(plan, scratch.get());

  const auto shares = static_cast<size_t>(plan.cut.shares());
  if (shares == 1) {
    cpu::RunShare(args, plan, scratch.get(), 0);
    return;
  }
  struct Call {
    const cpu::DecodeArgs& args;
    const cpu::Plan& plan;
    void* workspace;
  } call{args, plan, scratch.get()};
  // One batch per share: threads take shares as they become free.
  kernel_context.ParallelFor(
      [](void* data, size_t share) {
        const Call& call = *static_cast<const Call*>(data);
        cpu::RunShare(call.args, call.plan, call.workspace, static_cast<int64_t>(share));
      },
      shares, shares, &call);
}

void GqaKernel::Compute(OrtKernelContext* context) const {
  const GqaInputs inputs(context, attributes_, types_);
  const Ort::KernelContext kernel_context(context);
  std::vector<int32_t> lengths;
  // Everything is checked before anything is allocated or written, and for the stock operator too:
  // some versions of it crash on what others refuse.
  cpu::DecodeArgs args = inputs.DecodeStep(&lengths);
  const bool runs_stock = RunsStock(inputs, lengths);

  const CallShape& shape = inputs.shape();
  const auto output = [&](size_t index, const Shape& dimensions) {
    return kernel_context.GetOutput(index, dimensions);
  };
  Ort::UnownedValue attention = output(kAttention, shape.OutputShape(attributes_));
  Ort::UnownedValue present_key = output(kPresentKey, shape.PresentShape(attributes_));
  Ort::UnownedValue present_value = output(kPresentValue, shape.PresentShape(attributes_));
  if (runs_stock) {
    stock_->Invoke(context, attention, present_key, present_value);
    return;
  }
  args.output = attention.GetTensorMutableRawData();
  args.present_key = present_key.GetTensorMutableRawData();
  args.present_value = present_value.GetTensorMutableRawData();
  Decode(context, args);
}

OrtStatusPtr GqaKernel::ComputeV2(OrtKernelContext* context) const noexcept {
  return AsStatus([&] { Compute(context); });
}

OrtStatusPtr GqaOp::CreateKernelV2(const OrtApi& /*api*/, const OrtKernelInfo* info,
                                   void** kernel) const noexcept {
  return AsStatus([&] { *kernel = new GqaKernel(Ort::ConstKernelInfo(info), types_); });
}

OrtCustomOpInputOutputCharacteristic GqaOp::GetInputCharacteristic(size_t index) const {
  return IsRequired(static_cast<Input>(index)) ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
}

OrtCustomOpInputOutputCharacteristic GqaOp::GetOutputCharacteristic(size_t index) const {
  return index == kAttention ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
}

}  // namespace lean_attention::onnxruntime
