/* The roofline: how long a plain read of some memory takes. */

#ifndef LEAN_ATTENTION_OPS_C_API_READ_MEMORY_H_
#define LEAN_ATTENTION_OPS_C_API_READ_MEMORY_H_

#include <stdint.h>

#include "ops/c_api/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads every byte of `count` buffers once and says how long that took.
 *
 * buffers, bytes: [count]; a buffer of 0 bytes may be null. threads: 1 to 1024, the calling one
 * included. streams: 1, 2 or 4 places from which each thread reads by turns. seconds: the result;
 * starting and ending the threads is not in it. combined: the exclusive or of all the memory's
 * 8-byte words, counted from each buffer's begin, zeros after its end; may be null.
 *
 * LEAN_ATTENTION_OUT_OF_MEMORY also means that the system starts no more threads. */
LEAN_ATTENTION_EXPORT int32_t lean_attention_read_memory(const void* const* buffers,
                                                         const int64_t* bytes, int64_t count,
                                                         int32_t threads, int32_t streams,
                                                         double* seconds, uint64_t* combined);

#ifdef __cplusplus
}
#endif

#endif /* LEAN_ATTENTION_OPS_C_API_READ_MEMORY_H_ */
