// The kernel for caches of type LEAN_ATTENTION_CACHE_TYPE, such as Float32, on every instruction
// set: foreach_target.h includes this file once per target under that target's flags.

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kernels/instantiate-inl.h"
#include <hwy/foreach_target.h>  // Must come before highway.h
#include <hwy/highway.h>

#include "ops/cpu/share-inl.h"

#define LEAN_ATTENTION_JOIN_(a, b) a##b
#define LEAN_ATTENTION_JOIN(a, b) LEAN_ATTENTION_JOIN_(a, b)
#define LEAN_ATTENTION_RUN_SHARE \
  RunShareOf<ElementType::LEAN_ATTENTION_JOIN(k, LEAN_ATTENTION_CACHE_TYPE)>

#if HWY_ONCE
namespace lean_attention::cpu {

const RunShareOfTargets LEAN_ATTENTION_JOIN(kRunShare, LEAN_ATTENTION_CACHE_TYPE) = {
#if HWY_TARGETS & HWY_AVX3
    &N_AVX3::LEAN_ATTENTION_RUN_SHARE,
#else
    nullptr,
#endif
#if HWY_TARGETS & HWY_AVX2
    &N_AVX2::LEAN_ATTENTION_RUN_SHARE,
#else
    nullptr,
#endif
#if HWY_TARGETS & HWY_SSE4
    &N_SSE4::LEAN_ATTENTION_RUN_SHARE,
#else
    nullptr,
#endif
#if HWY_STATIC_TARGET != HWY_SCALAR && HWY_STATIC_TARGET != HWY_SSE4
    &HWY_STATIC_DISPATCH(LEAN_ATTENTION_RUN_SHARE),
#else
    nullptr,
#endif
};

}  // namespace lean_attention::cpu
#endif  // HWY_ONCE
