#include "ops/onnxruntime/gqa_cpu_kernel.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>

#include "ops/decode/policy.h"
#include "ops/onnxruntime/allocation.h"

namespace lean_attention::onnxruntime {
namespace {

// The pool's width is not in the API; shares beyond it wait their turn, which costs little.
Machine ThisMachine() {
  static const unsigned processors = std::thread::hardware_concurrency();
  return {static_cast<int32_t>(processors == 0 ? 1 : processors)};
}

// Writes the zeros that belong there to the output of padding, which the stock operator leaves as
// it was allocated.
void ClearPadding(const Problem& problem, ElementType type, void* output) {
  const auto token_bytes =
      static_cast<size_t>(BytesOf(type, int64_t{problem.num_heads} * problem.head_size));
  for (int32_t b = 0; b < problem.batch_size; ++b) {
    const int32_t queries = LengthsOf(problem, b).queries;
    const size_t first = static_cast<size_t>(b) * static_cast<size_t>(problem.sequence_length) +
                         static_cast<size_t>(queries);
    std::memset(static_cast<char*>(output) + first * token_bytes, 0,
                static_cast<size_t>(problem.sequence_length - queries) * token_bytes);
  }
}

}  // namespace

GqaCpuKernel::GqaCpuKernel(const Ort::ConstKernelInfo& info, const TensorTypes& types)
    : node_(info, types),
      memory_(Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault)) {}

bool GqaCpuKernel::RunsStock(const GqaInputs& inputs) const {
  if (node_.attributes().always_stock || cpu::TargetName() == nullptr) {
    node_.RequireStock("all calls on processors without SSE4.2");
    return true;
  }
  // More tokens are a prompt, which is bound by arithmetic. The stock operator has no q/k norm
  // here, and makes NaN of tokens all of whose keys a bias masks.
  return node_.HasStock() && !inputs.Has(kQNormWeight) && !inputs.Has(kAttentionBias) &&
         inputs.shape().sequence_length > kMaxSplitTokens;
}

void GqaCpuKernel::Decode(OrtKernelContext* context, const cpu::DecodeArgs& args) const {
  const Machine machine = ThisMachine();
  const std::optional<Schedule> wish = node_.attributes().schedule;
  const Decision decision =
      wish ? DecideFor(args.problem, machine, *wish) : Decide(args.problem, machine);
  const cpu::Plan plan = cpu::MakePlan(args, decision);
  const Ort::KernelContext kernel_context(context);
  if (GqaNode::IsExplaining()) {
    node_.Log(kernel_context, Explain(args.problem, machine, decision));
  }
  const OrtMemoryInfo* memory = memory_;
  const Allocation scratch(kernel_context.GetAllocator(*memory), plan.workspace_bytes,
                           cpu::kWorkspaceAlignment);
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

void GqaCpuKernel::Compute(OrtKernelContext* context) const {
  const GqaInputs inputs(context, node_.attributes(), node_.types());
  // Everything is checked before anything is allocated or written, and for the stock operator too:
  // some versions of it crash on what others refuse.
  CpuStep step(inputs);
  const bool runs_stock = RunsStock(inputs);
  GqaOutputs outputs = node_.AllocateOutputs(Ort::KernelContext(context), inputs.shape());
  step.args.output = outputs.attention.GetTensorMutableRawData();
  if (runs_stock) {
    node_.RunStock(context, outputs);
    ClearPadding(step.args.problem, node_.types().element, step.args.output);
    return;
  }
  step.args.present_key = outputs.present_key.GetTensorMutableRawData();
  step.args.present_value = outputs.present_value.GetTensorMutableRawData();
  Decode(context, step.args);
}

}  // namespace lean_attention::onnxruntime
