/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* A counting layer over malloc. Each block carries its size in front of it, so that what is in
 * use is known exactly; the counters are atomic and relaxed, for they order nothing. */
#include "torus/memory.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct block_header {
  alignas(max_align_t) size_t size_bytes;
} block_header_t;

static _Atomic int64_t used_bytes;
static _Atomic int64_t peak_bytes;
static _Atomic int64_t allocation_count;
static _Atomic int64_t live_count;
static _Atomic int64_t fail_countdown; /* allocations until the one that fails; 0: none does */

static bool must_fail(void) {
  int64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
  while (left > 0) {
    if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1)) return left == 1;
  }
  return false;
}

static void count_bytes(int64_t change) {
  int64_t now = change + atomic_fetch_add_explicit(&used_bytes, change, memory_order_relaxed);
  int64_t peak = atomic_load_explicit(&peak_bytes, memory_order_relaxed);
  while (now > peak && !atomic_compare_exchange_weak_explicit(
                           &peak_bytes, &peak, now, memory_order_relaxed, memory_order_relaxed)) {
  }
}

static bool is_too_large(size_t size_bytes) {
  return size_bytes > (size_t)PTRDIFF_MAX - sizeof(block_header_t);
}

void *torus_alloc(size_t size_bytes) {
  if (must_fail() || is_too_large(size_bytes)) return NULL;
  block_header_t *header = calloc(1, sizeof *header + size_bytes);
  if (!header) return NULL;
  header->size_bytes = size_bytes;
  count_bytes((int64_t)size_bytes);
  atomic_fetch_add_explicit(&allocation_count, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&live_count, 1, memory_order_relaxed);
  return header + 1;
}

void *torus_realloc(void *block, size_t size_bytes) {
  if (!block) return torus_alloc(size_bytes);
  if (must_fail() || is_too_large(size_bytes)) return NULL;
  block_header_t *old = (block_header_t *)block - 1;
  size_t old_bytes = old->size_bytes;
  block_header_t *header = realloc(old, sizeof *header + size_bytes);
  if (!header) return NULL;
  header->size_bytes = size_bytes;
  count_bytes((int64_t)size_bytes - (int64_t)old_bytes);
  atomic_fetch_add_explicit(&allocation_count, 1, memory_order_relaxed);
  return header + 1;
}

void torus_free(void *block) {
  if (!block) return;
  block_header_t *header = (block_header_t *)block - 1;
  count_bytes(-(int64_t)header->size_bytes);
  atomic_fetch_sub_explicit(&live_count, 1, memory_order_relaxed);
  free(header);
}

char *torus_strdup(const char *text) {
  size_t size_bytes = strlen(text) + 1;
  char *copy = torus_alloc(size_bytes);
  if (copy) memcpy(copy, text, size_bytes);
  return copy;
}

torus_memory_stats_t torus_memory_stats(void) {
  return (torus_memory_stats_t){
      .used_bytes = atomic_load(&used_bytes),
      .peak_bytes = atomic_load(&peak_bytes),
      .allocation_count = atomic_load(&allocation_count),
      .live_count = atomic_load(&live_count),
  };
}

void torus_memory_fail_after(int64_t nth) { atomic_store(&fail_countdown, nth > 0 ? nth : 0); }

torus_status_t torus_try_alloc(size_t size_bytes, void **out_pointer) {
  *out_pointer = torus_alloc(size_bytes);
  if (*out_pointer) return TORUS_OK;
  return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory: %zu bytes asked",
                           size_bytes);
}
