#include "ops/gpu/launch/instantiate-inl.h"

LEAN_ATTENTION_INSTANTIATE(BFloat16, 80)
