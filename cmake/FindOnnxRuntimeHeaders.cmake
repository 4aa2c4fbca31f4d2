# ONNX Runtime's C and C++ API headers, as the target OnnxRuntime::headers. In this order:
#
#   1. LEAN_ATTENTION_ORT_INCLUDE_DIR (CMake variable or environment): the folder that holds
#      onnxruntime_cxx_api.h, as in the official release archives' include/
#   2. a system package (Debian 13 and later, recent Ubuntu: libonnxruntime-dev)
#   3. a pinned download: a Python wheel that carries the 1.17 headers, checked against its hash
#
# The library runs on the API version that it is compiled for and on every later one.

set(ORT_HEADERS_WHEEL_VERSION 0.13)
set(ORT_HEADERS_WHEEL_SHA256 3b3e58a4cbbcff20d27815b641aa4de4d698efde3c782306cb4a6a05bcf55c8c)

set(explicit_dir ${LEAN_ATTENTION_ORT_INCLUDE_DIR})
if(NOT explicit_dir)
  set(explicit_dir $ENV{LEAN_ATTENTION_ORT_INCLUDE_DIR})
endif()

if(explicit_dir)
  find_path(ORT_INCLUDE_DIR onnxruntime_cxx_api.h PATHS ${explicit_dir} NO_DEFAULT_PATH
    PATH_SUFFIXES onnxruntime/core/session include)
  if(NOT ORT_INCLUDE_DIR)
    message(FATAL_ERROR "LEAN_ATTENTION_ORT_INCLUDE_DIR is ${explicit_dir}, "
      "which holds no onnxruntime_cxx_api.h")
  endif()
else()
  find_path(ORT_INCLUDE_DIR onnxruntime_cxx_api.h
    PATH_SUFFIXES onnxruntime onnxruntime/core/session onnxruntime/onnxruntime/core/session)
endif()

if(NOT ORT_INCLUDE_DIR)
  set(download ${CMAKE_BINARY_DIR}/onnxruntime_headers)
  message(STATUS "ONNX Runtime: no headers found; downloading them (amd-quark wheel, pinned)")
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  file(WRITE ${download}/requirements.txt "amd-quark==${ORT_HEADERS_WHEEL_VERSION} "
    "--hash=sha256:${ORT_HEADERS_WHEEL_SHA256}\n")
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -m pip download --quiet --no-deps --require-hashes
      --only-binary=:all: --dest ${download} --requirement ${download}/requirements.txt
    RESULT_VARIABLE status ERROR_VARIABLE errors)
  file(GLOB wheel ${download}/amd_quark-*.whl)
  if(NOT status EQUAL 0 OR NOT wheel)
    message(FATAL_ERROR "ONNX Runtime's headers were not found and could not be downloaded: "
      "install libonnxruntime-dev, or unpack a release archive of ONNX Runtime and set "
      "LEAN_ATTENTION_ORT_INCLUDE_DIR to its include folder.\n${errors}")
  endif()
  file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${download}
    PATTERNS quark/onnx/operators/custom_ops/include/*)
  find_path(ORT_INCLUDE_DIR onnxruntime_cxx_api.h NO_DEFAULT_PATH PATHS
    ${download}/quark/onnx/operators/custom_ops/include/onnxruntime-1.17.0/onnxruntime/core/session)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OnnxRuntimeHeaders REQUIRED_VARS ORT_INCLUDE_DIR)

if(OnnxRuntimeHeaders_FOUND AND NOT TARGET OnnxRuntime::headers)
  add_library(OnnxRuntime::headers INTERFACE IMPORTED)
  # System headers: their warnings are not ours.
  set_target_properties(OnnxRuntime::headers PROPERTIES
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${ORT_INCLUDE_DIR})
  target_include_directories(OnnxRuntime::headers SYSTEM INTERFACE ${ORT_INCLUDE_DIR})
endif()
