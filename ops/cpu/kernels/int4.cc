#define LEAN_ATTENTION_CACHE_TYPE Int4
#include "ops/cpu/kernels/instantiate-inl.h"
