/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* A counting layer over malloc, with a cache of small blocks. Each block carries its size in front
 * of it, so that what is in use is known exactly; the counters are relaxed, for they order nothing. */
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
/* Small blocks are made by the thread that records and freed by the one that runs programs, which
 * is the pattern malloc's own caches are worst at. Each thread keeps a stack of free blocks for each
 * size class and trades half of it with the common stack when it is full or empty. */
enum { CLASS_BYTES = 64, CLASS_COUNT = 8, MOST_CACHED = 64 };

/* The sanitizers must see each block come and go. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CACHES_BLOCKS = 0 };
#else
enum { CACHES_BLOCKS = 1 };
#endif

typedef struct free_block {
  struct free_block *next;
} free_block_t;

typedef struct stack {
  free_block_t *top;
  int count;
} block_stack_t;

typedef struct shard {
  block_stack_t free_blocks[CLASS_COUNT];
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
static _Thread_local shard_t *own_shard __attribute__((tls_model("initial-exec")));
static pthread_mutex_t common_lock = PTHREAD_MUTEX_INITIALIZER;
static block_stack_t common_blocks[CLASS_COUNT];   /* under common_lock */

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

/* ---- small blocks ---- */

static void push(block_stack_t *stack, free_block_t *block) {
  block->next = stack->top;
  stack->top = block;
  stack->count += 1;
}

static free_block_t *pop(block_stack_t *stack) {
  free_block_t *block = stack->top;
  if (!block) return NULL;
  stack->top = block->next;
  stack->count -= 1;
  return block;
}

static void move_blocks(block_stack_t *from, block_stack_t *to, int count) {
  pthread_mutex_lock(&common_lock);
  for (free_block_t *block; count > 0 && (block = pop(from)); count--) push(to, block);
  pthread_mutex_unlock(&common_lock);
}

/* The class of a block of |bytes| in all, or CLASS_COUNT for one that is not small. */
static size_t class_of(size_t bytes) {
  const size_t class = (bytes - 1) / CLASS_BYTES;
  return CACHES_BLOCKS && class < CLASS_COUNT ? class : CLASS_COUNT;
}

static void *take_block(shard_t *shard, size_t bytes) {
  const size_t class = class_of(bytes);
  if (class == CLASS_COUNT || shard == &first_shard) return calloc(1, bytes);
  block_stack_t *own = &shard->free_blocks[class];
  if (!own->top) move_blocks(&common_blocks[class], own, MOST_CACHED / 2);
  void *block = pop(own);
  if (!block) return calloc(1, (class + 1) * CLASS_BYTES);
  memset(block, 0, bytes);
  return block;
}

static void put_block(shard_t *shard, void *block, size_t bytes) {
  const size_t class = class_of(bytes);
  if (class == CLASS_COUNT || shard == &first_shard) {
    free(block);
    return;
  }
  block_stack_t *own = &shard->free_blocks[class];
  push(own, block);
  if (own->count > MOST_CACHED) move_blocks(own, &common_blocks[class], MOST_CACHED / 2);
}

/* A block that is or becomes small is exchanged, for only large ones are malloc's as they are. */
static void *resize_block(shard_t *shard, void *block, size_t old_bytes, size_t bytes) {
  const bool is_large = class_of(old_bytes) == CLASS_COUNT && class_of(bytes) == CLASS_COUNT;
  if (is_large) return realloc(block, bytes);
  if (class_of(old_bytes) == class_of(bytes) && class_of(bytes) != CLASS_COUNT) return block;
  void *other = take_block(shard, bytes);
  if (!other) return NULL;
  memcpy(other, block, old_bytes < bytes ? old_bytes : bytes);
  put_block(shard, block, old_bytes);
  return other;
}

static bool is_too_large(size_t size_bytes) {
  return size_bytes > (size_t)PTRDIFF_MAX - sizeof(block_header_t);
}

void *torus_alloc(size_t size_bytes) {
  if (must_fail() || is_too_large(size_bytes)) return NULL;
  shard_t *shard = shard_of_thread();
  block_header_t *header = take_block(shard, sizeof *header + size_bytes);
  if (!header) return NULL;
  header->size_bytes = size_bytes;
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
  shard_t *shard = shard_of_thread();
  block_header_t *header = resize_block(shard, old, sizeof *old + old_bytes,
                                        sizeof *old + size_bytes);
  if (!header) return NULL;
  header->size_bytes = size_bytes;
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
  put_block(shard, header, sizeof *header + header->size_bytes);
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
