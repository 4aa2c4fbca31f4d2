// Prints a block's shared memory for each head size that is built, caches of 16 and of 8 bits, and
// a few numbers of query rows per KV head: lines of "head_size bits rows bytes", for a batch of
// one. For tools/gpu_resources.py.

#include <cstdio>

#include "ops/gpu/launch/built.h"
#include "ops/gpu/launch/launcher.h"
#include "ops/gpu/shared_layout.h"

int main() {
  using namespace lean_attention;
  using namespace lean_attention::gpu;
  for (int head_size = 1; head_size <= 1024; ++head_size) {
    if (!WithHeadSize(head_size, [](auto) {})) continue;
    for (const ElementType cache : {ElementType::kFloat16, ElementType::kInt8}) {
      for (const int rows : {4, kRows}) {
        const Problem problem = {1, 1, rows, 1, head_size, 1, nullptr, 0, cache, kKeys};
        std::printf("%d %d %d %lld\n", head_size, BitsOf(cache), rows,
                    static_cast<long long>(SharedBytes(problem)));
      }
    }
  }
}
