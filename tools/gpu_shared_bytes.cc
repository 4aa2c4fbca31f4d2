// Prints a block's shared memory for each head size that is built, and for a few numbers of query
// rows per KV head: lines of "head_size rows bytes", for a batch of one. For
// tools/gpu_resources.py.

#include <cstdio>

#include "ops/gpu/launch/built.h"
#include "ops/gpu/launch/launcher.h"
#include "ops/gpu/shared_layout.h"

int main() {
  using lean_attention::gpu::kRows;
  using lean_attention::gpu::SharedBytes;
  for (int head_size = 1; head_size <= 1024; ++head_size) {
    if (!lean_attention::gpu::WithHeadSize(head_size, [](auto) {})) continue;
    for (const int rows : {4, kRows}) {
      std::printf("%d %d %lld\n", head_size, rows,
                  static_cast<long long>(SharedBytes(head_size, rows, 1)));
    }
  }
}
