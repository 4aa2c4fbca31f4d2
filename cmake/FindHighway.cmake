# Google Highway's headers, as the target Highway::headers.
#
# Only headers: instruction sets are chosen by ops/cpu/decode_attention.cc, so that the finished
# library depends on nothing but the C++ runtime. A system package is taken where there is one
# (Debian and Ubuntu: libhwy-dev), else the pinned release is fetched.

find_path(HIGHWAY_INCLUDE_DIR hwy/foreach_target.h
  HINTS ${LEAN_ATTENTION_HIGHWAY_INCLUDE_DIR} $ENV{LEAN_ATTENTION_HIGHWAY_INCLUDE_DIR})

if(NOT HIGHWAY_INCLUDE_DIR)
  message(STATUS "Highway: no system package (libhwy-dev); fetching the pinned release")
  include(FetchContent)
  FetchContent_Declare(highway
    URL https://github.com/google/highway/archive/refs/tags/1.0.3.tar.gz
    URL_HASH SHA256=566fc77315878473d9a6bd815f7de78c73734acdcb745c3dde8579560ac5440e
    SOURCE_SUBDIR none) # headers only: its own build is not needed
  FetchContent_MakeAvailable(highway)
  set(HIGHWAY_INCLUDE_DIR ${highway_SOURCE_DIR} CACHE PATH "" FORCE)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Highway REQUIRED_VARS HIGHWAY_INCLUDE_DIR)

if(Highway_FOUND AND NOT TARGET Highway::headers)
  add_library(Highway::headers INTERFACE IMPORTED)
  set_target_properties(Highway::headers PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES ${HIGHWAY_INCLUDE_DIR})
endif()
