// A runtime that lacks the API version that the library was built for.

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "ops/onnxruntime/ort.h"

extern "C" OrtStatusPtr ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options,
                                                       const OrtApiBase* base);

namespace {

std::string* last_message = nullptr;

OrtStatus* ORT_API_CALL RecordStatus(OrtErrorCode, const char* message) noexcept {
  *last_message = message;
  return reinterpret_cast<OrtStatus*>(last_message);
}

const OrtApi* ORT_API_CALL OnlyVersion1(uint32_t version) noexcept {
  static OrtApi api;
  std::memset(&api, 0, sizeof(api));
  api.CreateStatus = &RecordStatus;
  return version == 1 ? &api : nullptr;
}

const OrtApi* ORT_API_CALL NoVersion(uint32_t) noexcept { return nullptr; }

const char* ORT_API_CALL OldVersion() noexcept { return "1.2.3"; }

TEST(RegisterCustomOps, ReportsBothVersionsToARuntimeThatIsTooOld) {
  std::string message;
  last_message = &message;
  const OrtApiBase base = {&OnlyVersion1, &OldVersion};
  EXPECT_NE(RegisterCustomOps(nullptr, &base), nullptr);
  EXPECT_NE(message.find("1.2.3"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(ORT_API_VERSION)), std::string::npos) << message;
}

TEST(RegisterCustomOps, DoesNotCrashWhereThereIsNoApiAtAll) {
  const OrtApiBase base = {&NoVersion, &OldVersion};
  EXPECT_EQ(RegisterCustomOps(nullptr, &base), nullptr);
}

}  // namespace
