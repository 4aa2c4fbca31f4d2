#define LEAN_ATTENTION_CACHE_TYPE Float32
#include "ops/cpu/kernels/instantiate-inl.h"
