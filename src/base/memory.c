/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* A counting layer over malloc. Each block carries its size in front of it, so that what is in
 * use is known exactly; the counters are relaxed, for they order nothing. */
#include "torus/memory.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct block_header {
  alignas(max_align_t) size_t size_bytes;
} block_header_t;

/* Figures of one thread. Counters shared by all threads would travel between their caches at each
 * allocation; a shard is written by its thread alone and read by all. A thread that ends leaves its
 * shard to the next one that starts. */
typedef struct shard {
  _Atomic int64_t used_bytes, allocation_count, live_count;
  int64_t unsettled_bytes;   /* since the last look at the peak */
  struct shard *next;        /* in the list of all shards */
  struct shard *next_free;
} shard_t;

/* The peak is looked at once a thread has moved this many bytes, so it may be short by as many. */
enum { PEAK_STEP = 64 * 1024 };

static pthread_mutex_t shards_lock = PTHREAD_MUTEX_INITIALIZER;
static shard_t *all_shards, *free_shards;
static shard_t first_shard;   /* of threads for which there is no memory: a rough count will do */
static _Atomic int64_t peak_bytes;
static _Atomic int64_t fail_countdown; /* allocations until the one that fails; 0: none does */
static pthread_key_t shard_key;
static pthread_once_t shard_once = PTHREAD_ONCE_INIT;
static _Thread_local shard_t *own_shard;

static void give_back(void *shard) {
  pthread_mutex_lock(&shards_lock);
  ((shard_t *)shard)->next_free = free_shards;
  free_shards = shard;
  pthread_mutex_unlock(&shards_lock);
}

static void make_key(void) { pthread_key_create(&shard_key, give_back); }

static shard_t *take_shard(void) {
  pthread_once(&shard_once, make_key);
  pthread_mutex_lock(&shards_lock);
  shard_t *shard = free_shards;
  if (shard) {
    free_shards = shard->next_free;
  } else if ((shard = calloc(1, sizeof *shard))) {
    shard->next = all_shards;
    all_shards = shard;
  }
  pthread_mutex_unlock(&shards_lock);
  if (!shard) return &first_shard;
  pthread_setspecific(shard_key, shard);
  return own_shard = shard;
}

static shard_t *shard_of_thread(void) { return own_shard ? own_shard : take_shard(); }

/* No other thread writes the counter, so that a plain addition does. */
static void add(_Atomic int64_t *counter, int64_t change) {
  atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + change,
                        memory_order_relaxed);
}

static int64_t sum_used(void) {
  int64_t sum = atomic_load_explicit(&first_shard.used_bytes, memory_order_relaxed);
  pthread_mutex_lock(&shards_lock);
  for (shard_t *s = all_shards; s; s = s->next) {
    sum += atomic_load_explicit(&s->used_bytes, memory_order_relaxed);
  }
  pthread_mutex_unlock(&shards_lock);
  return sum;
}

static void raise_peak(int64_t now) {
  int64_t peak = atomic_load_explicit(&peak_bytes, memory_order_relaxed);
  while (now > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, now)) {
  }
}

static bool must_fail(void) {
  int64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
  while (left > 0) {
    if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1)) return left == 1;
  }
  return false;
}

static void count_bytes(shard_t *shard, int64_t change) {
  add(&shard->used_bytes, change);
  if (change <= 0) return;
  shard->unsettled_bytes += change;
  if (shard->unsettled_bytes < PEAK_STEP) return;
  shard->unsettled_bytes = 0;
  raise_peak(sum_used());
}

static bool is_too_large(size_t size_bytes) {
  return size_bytes > (size_t)PTRDIFF_MAX - sizeof(block_header_t);
}

void *torus_alloc(size_t size_bytes) {
  if (must_fail() || is_too_large(size_bytes)) return NULL;
  block_header_t *header = calloc(1, sizeof *header + size_bytes);
  if (!header) return NULL;
  header->size_bytes = size_bytes;
  shard_t *shard = shard_of_thread();
  count_bytes(shard, (int64_t)size_bytes);
  add(&shard->allocation_count, 1);
  add(&shard->live_count, 1);
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
  shard_t *shard = shard_of_thread();
  count_bytes(shard, (int64_t)size_bytes - (int64_t)old_bytes);
  add(&shard->allocation_count, 1);
  return header + 1;
}

void torus_free(void *block) {
  if (!block) return;
  block_header_t *header = (block_header_t *)block - 1;
  shard_t *shard = shard_of_thread();
  count_bytes(shard, -(int64_t)header->size_bytes);
  add(&shard->live_count, -1);
  free(header);
}

char *torus_strdup(const char *text) {
  size_t size_bytes = strlen(text) + 1;
  char *copy = torus_alloc(size_bytes);
  if (copy) memcpy(copy, text, size_bytes);
  return copy;
}

torus_memory_stats_t torus_memory_stats(void) {
  torus_memory_stats_t stats = {.used_bytes = sum_used()};
  raise_peak(stats.used_bytes);
  stats.peak_bytes = atomic_load(&peak_bytes);
  stats.allocation_count = atomic_load(&first_shard.allocation_count);
  stats.live_count = atomic_load(&first_shard.live_count);
  pthread_mutex_lock(&shards_lock);
  for (const shard_t *s = all_shards; s; s = s->next) {
    stats.allocation_count += atomic_load(&s->allocation_count);
    stats.live_count += atomic_load(&s->live_count);
  }
  pthread_mutex_unlock(&shards_lock);
  return stats;
}

void torus_memory_fail_after(int64_t nth) { atomic_store(&fail_countdown, nth > 0 ? nth : 0); }

torus_status_t torus_try_alloc(size_t size_bytes, void **out_pointer) {
  *out_pointer = torus_alloc(size_bytes);
  if (*out_pointer) return TORUS_OK;
  return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory: %zu bytes asked",
                           size_bytes);
}
