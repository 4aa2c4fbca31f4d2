// The entry point that SessionOptions.register_custom_ops_library looks for.

#include <memory>
#include <string>

#include "ops/onnxruntime/gqa_schema.h"
#include "ops/onnxruntime/operators.h"
#include "ops/onnxruntime/ort.h"

namespace lean_attention::onnxruntime {
namespace {

// The domain and its operators serve every session of the process. They are never destroyed: a
// session may outlive the destructors of this library's statics.
const Ort::CustomOpDomain& Domain() {
  static const Ort::CustomOpDomain& domain = []() -> const Ort::CustomOpDomain& {
    auto domain = std::make_unique<Ort::CustomOpDomain>(kDomain);
    AddCpuOperators(domain.get());
    AddGpuOperators(domain.get());
    return *domain.release();
  }();
  return domain;
}

// A status from a table that any runtime has: version 1 holds CreateStatus.
OrtStatusPtr TooOld(const OrtApiBase* base) {
  const OrtApi* oldest = base->GetApi(1);
  if (oldest == nullptr) return nullptr;
  const std::string message =
      "liblean_attention.so was built against version " + std::to_string(ORT_API_VERSION) +
      " of the ONNX Runtime API, which ONNX Runtime " + base->GetVersionString() +
      " does not have; update ONNX Runtime to 1." + std::to_string(ORT_API_VERSION) +
      " or later, or build the library against older headers";
  return oldest->CreateStatus(ORT_INVALID_ARGUMENT, message.c_str());
}

}  // namespace
}  // namespace lean_attention::onnxruntime

extern "C" __attribute__((visibility("default"))) OrtStatusPtr ORT_API_CALL
RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace lean_attention::onnxruntime;
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) return TooOld(base);
  Ort::InitApi(api);
  try {
    return api->AddCustomOpDomain(options, Domain());
  } catch (const Ort::Exception& error) {
    return api->CreateStatus(error.GetOrtErrorCode(), error.what());
  } catch (const std::exception& error) {
    return api->CreateStatus(ORT_RUNTIME_EXCEPTION, error.what());
  }
}
