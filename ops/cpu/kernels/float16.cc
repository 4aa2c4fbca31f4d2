#define LEAN_ATTENTION_CACHE_TYPE Float16
#include "ops/cpu/kernels/instantiate-inl.h"
