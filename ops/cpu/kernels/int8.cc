#define LEAN_ATTENTION_CACHE_TYPE Int8
#include "ops/cpu/kernels/instantiate-inl.h"
