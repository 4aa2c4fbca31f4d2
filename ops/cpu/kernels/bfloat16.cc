#define LEAN_ATTENTION_CACHE_TYPE BFloat16
#include "ops/cpu/kernels/instantiate-inl.h"
