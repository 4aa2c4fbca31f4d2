# The GPU kernel and its launcher as static libraries: lean_attention_gpu_cuda where nvcc is,
# lean_attention_gpu_rocm where hipcc is.
#
# Their compilers are called by name, not as languages of CMake: one that is there and does not work
# then fails a build that asked for it, and no other. What a compiler says of registers and spills
# stays in a .log beside each object, for tools/gpu_resources.py.

foreach(backend CUDA ROCM)
  set(LEAN_ATTENTION_${backend} AUTO CACHE STRING
    "AUTO: a target where its compiler is found; ON: in the library; OFF")
  set_property(CACHE LEAN_ATTENTION_${backend} PROPERTY STRINGS AUTO ON OFF)
endforeach()
set(LEAN_ATTENTION_CUDA_ARCHITECTURES 80 90 CACHE STRING "Compute capabilities, without the dot")
set(LEAN_ATTENTION_ROCM_ARCHITECTURES gfx90a CACHE STRING "AMD targets")
if(LEAN_ATTENTION_CUDA STREQUAL "ON" AND LEAN_ATTENTION_ROCM STREQUAL "ON")
  message(FATAL_ERROR "One library is for one vendor: LEAN_ATTENTION_CUDA or LEAN_ATTENTION_ROCM, "
    "not both, may be ON")
endif()

# Of each backend: gpu_compiler_*, a command; gpu_version_*, its name; gpu_runtime_*, what its objects
# link.
if(LEAN_ATTENTION_CUDA)
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_NVCC_EXECUTABLE AND TARGET CUDA::cudart_static)
    set(gpu_compiler_CUDA ${CUDAToolkit_NVCC_EXECUTABLE} -x cu -Xptxas=-v
      -Xcompiler=-Wall,-Wextra,-fPIC,-fvisibility=hidden,-fvisibility-inlines-hidden
      $<$<BOOL:${LEAN_ATTENTION_WERROR}>:-Werror=all-warnings>)
    foreach(architecture IN LISTS LEAN_ATTENTION_CUDA_ARCHITECTURES)
      list(APPEND gpu_compiler_CUDA
        -gencode=arch=compute_${architecture},code=sm_${architecture})
    endforeach()
    # For GPUs that are younger than all of these.
    list(GET LEAN_ATTENTION_CUDA_ARCHITECTURES -1 newest)
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
  if(LEAN_ATTENTION_HIPCC AND LEAN_ATTENTION_AMDHIP64)
    # Where it finds nvcc, hipcc would compile for NVIDIA.
    set(gpu_compiler_ROCM ${CMAKE_COMMAND} -E env HIP_PLATFORM=amd ${LEAN_ATTENTION_HIPCC} -x hip
      -Rpass-analysis=kernel-resource-usage
      -Wall -Wextra -fPIC -fvisibility=hidden -fvisibility-inlines-hidden
      $<$<BOOL:${LEAN_ATTENTION_WERROR}>:-Werror>)
    foreach(architecture IN LISTS LEAN_ATTENTION_ROCM_ARCHITECTURES)
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
  file(WRITE ${folder}/architectures.txt "${LEAN_ATTENTION_${backend}_ARCHITECTURES}\n")
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
  if(LEAN_ATTENTION_${backend} STREQUAL "AUTO" AND NOT LEAN_ATTENTION_TESTS)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

foreach(backend CUDA ROCM)
  if(gpu_compiler_${backend})
    string(TOLOWER lean_attention_gpu_${backend} name)
    file(GLOB instances CONFIGURE_DEPENDS ops/gpu/launch/instances/*.cu)
    add_gpu_library(${name} ${backend}
      ops/gpu/launch/check.cc ops/gpu/launch/launcher.cu ops/gpu/launch/memory.cc ${instances})
  endif()
endforeach()
