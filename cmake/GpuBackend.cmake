# The GPU kernel and its launcher as static libraries: lean_attention_gpu_cuda where nvcc is,
# lean_attention_gpu_rocm where hipcc is; and what calls them, lean_attention_gpu_operators_*.
# LEAN_ATTENTION_GPU_BACKEND says which of them the library has: CUDA, ROCM or NONE.
#
# Their compilers are called by name, not as languages of CMake: one that is there and does not work
# then fails a build that asked for it, and no other. What a compiler says of registers and spills
# stays in a .log beside each object, for tools/gpu_resources.py.

foreach(backend CUDA ROCM)
  set(LEAN_ATTENTION_${backend} AUTO CACHE STRING
    "AUTO: in the library where such a GPU and its compiler are; ON: in any case; OFF")
  set_property(CACHE LEAN_ATTENTION_${backend} PROPERTY STRINGS AUTO ON OFF)
endforeach()
set(LEAN_ATTENTION_CUDA_ARCHITECTURES "" CACHE STRING
  "Compute capabilities, without the dot; none: those of this machine's GPUs, or of data centres")
set(LEAN_ATTENTION_ROCM_ARCHITECTURES "" CACHE STRING "AMD targets; none: likewise")
if(LEAN_ATTENTION_CUDA STREQUAL "ON" AND LEAN_ATTENTION_ROCM STREQUAL "ON")
  message(FATAL_ERROR "One library is for one vendor: LEAN_ATTENTION_CUDA or LEAN_ATTENTION_ROCM, "
    "not both, may be ON")
endif()

# The architectures of this machine's GPUs, as a list, from a program that lists them.
function(find_gpus result pattern)
  set(found)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE said ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0)
    string(REGEX MATCHALL "${pattern}" found "${said}")
    string(REPLACE "." "" found "${found}")
    list(REMOVE_DUPLICATES found)
    list(SORT found COMPARE NATURAL)
  endif()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# Of a list of architectures those that a list of known ones has; names the others.
function(keep_known result known)
  set(kept)
  foreach(architecture IN LISTS ARGN)
    if(architecture IN_LIST known)
      list(APPEND kept ${architecture})
    else()
      message(STATUS "No GPU kernels for ${architecture}: not known to them or to the compiler")
    endif()
  endforeach()
  set(${result} ${kept} PARENT_SCOPE)
endfunction()

# Whether a backend is in the library: LEAN_ATTENTION_GPU_BACKEND is then its name.
set(LEAN_ATTENTION_GPU_BACKEND NONE)
macro(choose_gpu_backend backend)
  if(LEAN_ATTENTION_${backend} STREQUAL "AUTO")
    if(gpus_${backend} AND gpu_compiler_${backend} AND LEAN_ATTENTION_GPU_BACKEND STREQUAL "NONE")
      set(LEAN_ATTENTION_GPU_BACKEND ${backend})
    endif()
  elseif(LEAN_ATTENTION_${backend})
    set(LEAN_ATTENTION_GPU_BACKEND ${backend})
  endif()
endmacro()

# Of each backend: gpu_compiler_*, a command; gpu_version_*, its name; gpu_runtime_*, what its objects
# link.
if(LEAN_ATTENTION_CUDA)
  find_package(CUDAToolkit QUIET)
  find_gpus(gpus_CUDA "[0-9]+\\.[0-9]+" nvidia-smi --query-gpu=compute_cap --format=csv,noheader)
  if(gpus_CUDA AND CUDAToolkit_NVCC_EXECUTABLE)
    # Asynchronous copies begin with 8.0; what nvcc has of later ones, it lists.
    execute_process(COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} --list-gpu-arch
      OUTPUT_VARIABLE said ERROR_QUIET)
    string(REGEX MATCHALL "compute_([89][0-9]|1[0-9][0-9])" known "${said}")
    list(TRANSFORM known REPLACE "compute_" "")
    keep_known(gpus_CUDA "${known}" ${gpus_CUDA})
  endif()
  set(architectures_CUDA ${LEAN_ATTENTION_CUDA_ARCHITECTURES})
  if(NOT architectures_CUDA)
    # Code for 80 runs on 86 and 89 as well.
    set(architectures_CUDA 80 90)
    if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
      list(APPEND architectures_CUDA 100)
    endif()
    if(gpus_CUDA)
      set(architectures_CUDA ${gpus_CUDA})
    endif()
  endif()
  if(CUDAToolkit_NVCC_EXECUTABLE AND TARGET CUDA::cudart_static)
    set(gpu_compiler_CUDA ${CUDAToolkit_NVCC_EXECUTABLE} -x cu -Xptxas=-v
      -Xcompiler=-Wall,-Wextra,-fPIC,-fvisibility=hidden,-fvisibility-inlines-hidden
      $<$<BOOL:${LEAN_ATTENTION_WERROR}>:-Werror=all-warnings>)
    foreach(architecture IN LISTS architectures_CUDA)
      list(APPEND gpu_compiler_CUDA
        -gencode=arch=compute_${architecture},code=sm_${architecture})
    endforeach()
    # For GPUs that are younger than all of these.
    list(GET architectures_CUDA -1 newest)
    list(APPEND gpu_compiler_CUDA -gencode=arch=compute_${newest},code=compute_${newest})
    set(gpu_runtime_CUDA CUDA::cudart_static)
    set(gpu_version_CUDA "nvcc ${CUDAToolkit_VERSION}")
  elseif(NOT LEAN_ATTENTION_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "LEAN_ATTENTION_CUDA is ${LEAN_ATTENTION_CUDA}, but nvcc and "
      "libcudart_static.a were not found: install the CUDA toolkit, or name its folder by "
      "-DCUDAToolkit_ROOT=...")
  endif()
endif()

if(LEAN_ATTENTION_ROCM)
  find_program(LEAN_ATTENTION_HIPCC hipcc HINTS /opt/rocm/bin)
  find_library(LEAN_ATTENTION_AMDHIP64 amdhip64 HINTS /opt/rocm/lib)
  mark_as_advanced(LEAN_ATTENTION_HIPCC LEAN_ATTENTION_AMDHIP64)
  find_gpus(gpus_ROCM "gfx9[0-9a-f]+" rocm_agent_enumerator)
  keep_known(gpus_ROCM "gfx90a;gfx940;gfx941;gfx942" ${gpus_ROCM})
  set(architectures_ROCM ${LEAN_ATTENTION_ROCM_ARCHITECTURES})
  if(NOT architectures_ROCM)
    set(architectures_ROCM gfx90a)
    if(gpus_ROCM)
      set(architectures_ROCM ${gpus_ROCM})
    endif()
  endif()
  if(LEAN_ATTENTION_HIPCC AND LEAN_ATTENTION_AMDHIP64)
    # Where it finds nvcc, hipcc would compile for NVIDIA.
    set(gpu_compiler_ROCM ${CMAKE_COMMAND} -E env HIP_PLATFORM=amd ${LEAN_ATTENTION_HIPCC} -x hip
      -Rpass-analysis=kernel-resource-usage
      -Wall -Wextra -fPIC -fvisibility=hidden -fvisibility-inlines-hidden
      $<$<BOOL:${LEAN_ATTENTION_WERROR}>:-Werror>)
    foreach(architecture IN LISTS architectures_ROCM)
      list(APPEND gpu_compiler_ROCM --offload-arch=${architecture})
    endforeach()
    set(gpu_runtime_ROCM ${LEAN_ATTENTION_AMDHIP64})
    execute_process(COMMAND ${CMAKE_COMMAND} -E env HIP_PLATFORM=amd ${LEAN_ATTENTION_HIPCC}
      --version OUTPUT_VARIABLE said ERROR_QUIET)
    string(REGEX MATCH "clang version [0-9.]+" clang "${said}")
    set(gpu_version_ROCM "hipcc with ${clang}")
  elseif(NOT LEAN_ATTENTION_ROCM STREQUAL "AUTO")
    message(FATAL_ERROR "LEAN_ATTENTION_ROCM is ${LEAN_ATTENTION_ROCM}, but hipcc and "
      "libamdhip64.so were not found: install ROCm, or hipcc, rocm-device-libs and libamdhip64-dev, "
      "or name them by -DLEAN_ATTENTION_HIPCC=... and -DLEAN_ATTENTION_AMDHIP64=...")
  endif()
endif()

# A static library of sources compiled for a backend's devices. Built by default where it is asked
# for, and with the tests.
function(add_gpu_library name backend)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${name})
  file(WRITE ${folder}/compiler.txt "${gpu_version_${backend}}\n")
  file(WRITE ${folder}/architectures.txt "${architectures_${backend}}\n")
  set(objects)
  foreach(source IN LISTS ARGN)
    get_filename_component(source ${source} ABSOLUTE)
    get_filename_component(stem ${source} NAME_WE)
    set(object ${folder}/${stem}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/compile_logged.sh ${folder}/${stem}.log
        ${gpu_compiler_${backend}} -std=c++17 -O3 -I${PROJECT_SOURCE_DIR}
        -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} ${PROJECT_SOURCE_DIR}/cmake/compile_logged.sh
      DEPFILE ${object}.d
      COMMENT "Building ${backend} object ${name}/${stem}.o"
      COMMAND_EXPAND_LISTS VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  add_library(${name} STATIC ${objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} INTERFACE ${gpu_runtime_${backend}})
  if(NOT LEAN_ATTENTION_GPU_BACKEND STREQUAL backend AND NOT LEAN_ATTENTION_TESTS)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

choose_gpu_backend(CUDA)
choose_gpu_backend(ROCM)

# The operators of an execution provider and the C functions, for whatever is linked as the launcher.
function(add_gpu_operators name provider)
  add_library(${name} OBJECT
    ${PROJECT_SOURCE_DIR}/ops/c_api/gpu_api.cc
    ${PROJECT_SOURCE_DIR}/ops/onnxruntime/gpu_operators.cc
    ${PROJECT_SOURCE_DIR}/ops/onnxruntime/gpu_step.cc
    ${PROJECT_SOURCE_DIR}/ops/onnxruntime/gqa_gpu_kernel.cc
    ${PROJECT_SOURCE_DIR}/ops/onnxruntime/stream_workspace.cc)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE LEAN_ATTENTION_GPU_PROVIDER="${provider}")
  target_link_libraries(${name} PUBLIC OnnxRuntime::headers)
endfunction()

set(provider_CUDA CUDAExecutionProvider)
set(provider_ROCM ROCMExecutionProvider)
foreach(backend CUDA ROCM)
  if(gpu_compiler_${backend})
    string(TOLOWER ${backend} lower)
    file(GLOB instances CONFIGURE_DEPENDS ops/gpu/launch/instances/*.cu)
    add_gpu_library(lean_attention_gpu_${lower} ${backend}
      ops/gpu/launch/check.cc ops/gpu/launch/launcher.cu ops/gpu/launch/memory.cc ${instances})
    add_gpu_operators(lean_attention_gpu_operators_${lower} ${provider_${backend}})
    target_link_libraries(lean_attention_gpu_operators_${lower} INTERFACE lean_attention_gpu_${lower})
  endif()
endforeach()

add_library(lean_attention_gpu_operators_none OBJECT
  ops/c_api/no_gpu_api.cc ops/onnxruntime/no_gpu_operators.cc)
target_include_directories(lean_attention_gpu_operators_none PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(lean_attention_gpu_operators_none PUBLIC OnnxRuntime::headers)
message(STATUS "GPU kernels in the library: ${LEAN_ATTENTION_GPU_BACKEND}")
