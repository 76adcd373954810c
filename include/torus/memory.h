/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The one allocator of libtorus: counted, and able to fail on demand for tests. */
#ifndef TORUS_MEMORY_H_
#define TORUS_MEMORY_H_

#include <stddef.h>
#include <stdint.h>

#include "torus/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct torus_memory_stats {
  int64_t used_bytes;        /* asked for and not yet freed */
  int64_t peak_bytes;        /* highest used_bytes so far, to within 64 KiB a thread */
  int64_t allocation_count;  /* calls that handed out memory, ever */
  int64_t live_count;        /* blocks not yet freed */
} torus_memory_stats_t;

/* Zeroed memory, or NULL when none is left. |size_bytes| 0 gives a unique non-NULL block. */
void *torus_alloc(size_t size_bytes);

/* Grows or shrinks a block of torus_alloc (NULL: a new one); new bytes are not zeroed.
 * On failure NULL, and |block| stays valid. */
void *torus_realloc(void *block, size_t size_bytes);

/* Accepts NULL. */
void torus_free(void *block);

/* A copy of the C string |text|, or NULL. */
char *torus_strdup(const char *text);

torus_memory_stats_t torus_memory_stats(void);

/* Test hook: the |nth| allocation from now fails once (1 = the next); 0 turns it off. */
void torus_memory_fail_after(int64_t nth);

/* Allocates into |out_pointer| or returns RESOURCE_EXHAUSTED. */
TORUS_NODISCARD torus_status_t torus_try_alloc(size_t size_bytes, void **out_pointer);

#ifdef __cplusplus
}
#endif
#endif  /* TORUS_MEMORY_H_ */
