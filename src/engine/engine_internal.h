/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* What the files of the engine share. Locks: device.lock guards the device's window and the value
 * pointers of its storages; engine.lock guards the queue, the states of values, the programs' run
 * figures and the pending checks. device.lock may be held when engine.lock is taken, never the
 * other way round. */
#ifndef TORUS_ENGINE_INTERNAL_H_
#define TORUS_ENGINE_INTERNAL_H_

#include <pthread.h>
#include <stdatomic.h>

#include "hlo/encode.h"
#include "hlo/graph.h"
#include "torus/engine.h"
#include "torus/memory.h"

typedef enum {
  TORUS_VALUE_OPEN,    /* a node of the device's open window */
  TORUS_VALUE_QUEUED,  /* result of a window that has not run yet */
  TORUS_VALUE_READY,   /* has a buffer (whose content may still be in flight inside the plugin) */
  TORUS_VALUE_FAILED,
} torus_value_state_t;

struct torus_value {
  atomic_int refs;
  atomic_int state;          /* torus_value_state_t */
  atomic_int queued;         /* of |refs|, those held by closed windows that have not run */
  torus_engine_t *engine;
  int device;
  torus_dtype_t dtype;
  int rank;
  uint64_t ticket;           /* QUEUED: of its job */
  hlo_t node;                /* OPEN: its node */
  hlo_t parameter;           /* its node as an input of window |parameter_window| */
  uint64_t parameter_window;
  torus_buffer_t *buffer;    /* READY */
  torus_status_t error;      /* FAILED */
  int64_t dims[];
};

struct torus_storage {
  atomic_int refs;
  torus_engine_t *engine;
  int device;
  size_t size_bytes;
  torus_value_t *value;      /* NULL: never written */
};

/* A condition whose failure is reported at the next wait. */
typedef struct torus_check {
  hlo_t failed;              /* rank-0 BOOL */
  hlo_t culprit;             /* rank-0 I64: the offending index, or HLO_NONE */
  torus_status_code_t code;
  const char *format;        /* of a message; %lld the culprit, %d |dim|, %lld |size| */
  const char *op_name;
  int64_t size;
  int dim;
} torus_check_t;

typedef struct torus_window {
  hlo_graph_t *graph;
  uint64_t serial;
  torus_value_t **inputs;    /* by parameter number; retained */
  size_t input_count, input_capacity;
  torus_value_t **values;    /* OPEN values; retained */
  size_t value_count, value_capacity;
  torus_check_t *checks;
  size_t check_count, check_capacity;
  size_t op_count;
  size_t heavy_count;        /* products and convolutions among them */
  uint64_t rolling;          /* content hash of the last operators, across windows */
  uint64_t start;            /* the rolling hash at which the window began */
} torus_window_t;

/* A closed window on its way to the worker. */
typedef struct torus_job {
  struct torus_job *next;
  int device;
  torus_window_t window;     /* |values| now are exactly the live results, in output order */
  hlo_t *outputs;            /* nodes of values, then the check vector if any */
  size_t output_count;
  bool *donatable;           /* per window input: nobody else can see it any more */
  bool has_failed_input;     /* its error was reported with the program that failed first */
} torus_job_t;

typedef struct torus_pending_check {
  struct torus_pending_check *next;
  torus_buffer_t *buffer;    /* I64[2]: 1 + number of the failed check, culprit */
  torus_check_t *checks;
  size_t check_count;
} torus_pending_check_t;

/* What a soft number was when its place in the stream of operators came by last. */
typedef struct torus_soft_memory {
  uint64_t place;            /* hash of the operators before, the operator, and the number's rank */
  int64_t bits;
  bool changes;
} torus_soft_memory_t;

enum { TORUS_SOFT_MEMORIES = 4096 };

typedef struct torus_device {
  pthread_mutex_t lock;
  torus_window_t window;
  torus_result_t *results;   /* of the last call */
  size_t result_capacity;
  struct torus_call_result *call_results; /* scratch of the call being lowered */
  int call_result_capacity;
  torus_soft_memory_t soft_memory[TORUS_SOFT_MEMORIES]; /* direct-mapped by place */
  torus_buffer_t *last_result; /* smallest of the last program run here; under engine.lock */
  torus_status_t failure;      /* of a program, not told to anybody yet; under engine.lock */
  pthread_mutex_t memory_lock;
  torus_device_memory_t memory;
} torus_device_t;

typedef struct torus_program_cache torus_program_cache_t;

struct torus_engine {
  torus_client_t *client;
  torus_device_t *devices;
  int device_count;
  pthread_mutex_t lock;
  pthread_cond_t work;       /* a job came, or shutdown */
  pthread_cond_t done;       /* |finished| has reached |wake_at| */
  pthread_t worker;
  bool has_worker;           /* started and not joined */
  bool worker_waits;         /* the worker sleeps on |work| */
  uint64_t wake_at;          /* least ticket that a thread on |done| waits for */
  bool is_shut_down;
  torus_job_t *first, *last;
  size_t queued;             /* jobs not finished */
  atomic_int waiting_jobs;   /* jobs the worker has not taken yet */
  uint64_t enqueued, finished;
  torus_pending_check_t *first_check, *last_check;
  size_t pending_checks;
  torus_status_t deferred_error; /* of a check that the worker had to look at */
  hlo_graph_t *spare_graphs[8];
  int spare_count;
  torus_program_cache_t *cache;  /* used by the worker only */
  atomic_bool cache_only;
  torus_metrics_t metrics;   /* under |lock| */
  char *last_program;        /* under |lock| */
};

/* ---- value.c ---- */
torus_status_t torus_value_create(torus_engine_t *engine, int device, torus_dtype_t dtype, int rank,
                                  const int64_t *dims, torus_value_t **out_value);
int64_t torus_value_numel(const torus_value_t *value);
/* Waits until the value is READY or FAILED; closes its window first. Returns its error. */
torus_status_t torus_value_wait(torus_value_t *value);

/* ---- window.c ---- */
torus_status_t torus_window_init(torus_window_t *window, torus_engine_t *engine, uint64_t serial);
/* The node of |value| in the open window of its device, added as a parameter when it comes from
 * outside. HLO_NONE with an error in the graph on failure. */
hlo_t torus_window_node(torus_device_t *device, torus_value_t *value);
/* A new OPEN value for |node|. */
torus_status_t torus_window_value(torus_engine_t *engine, int device, hlo_t node,
                                  torus_value_t **out_value);
torus_status_t torus_window_add_check(torus_device_t *device, const torus_check_t *check);
/* Hands the open window to the worker and opens the next. Device must be locked. On
 * RESOURCE_EXHAUSTED the window stays open as it was. */
torus_status_t torus_window_close(torus_engine_t *engine, int device);
/* Adds |by| to |queued| of all inputs and values. */
void torus_window_count_queued(torus_window_t *window, int by);
void torus_window_deinit(torus_window_t *window);

/* ---- view.c ---- */
/* Elements of a strided view of |base| (the storage's value in any shape) as a node of the view's
 * sizes. */
hlo_t torus_view_gather(hlo_graph_t *g, hlo_t base, const torus_view_t *view);
/* |base| (HLO_NONE: never written, |count| elements of the view's type) with |update| written
 * through the view. */
hlo_t torus_view_scatter(hlo_graph_t *g, hlo_t base, int64_t count, const torus_view_t *view,
                         hlo_t update);
/* Flat content |x| seen as elements of |dtype|. */
hlo_t torus_view_bitcast(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype);
/* The node of a view (of a storage on |device|, or a number) in the open window, conj and neg bits
 * applied. */
hlo_t torus_view_node(torus_device_t *device, const torus_view_t *view);

/* ---- worker.c ---- */
void *torus_worker_main(void *engine);
torus_status_t torus_engine_enqueue(torus_engine_t *engine, torus_job_t *job);
void torus_job_destroy(torus_job_t *job);
/* Waits until |ticket| jobs have ended. Waking at each job would cost more than the job. With
 * engine.lock held. */
void torus_engine_wait_ticket(torus_engine_t *engine, uint64_t ticket);

/* ---- check.c ---- */
/* The check vector of a window with checks; HLO_NONE with an error in the graph on failure. */
hlo_t torus_checks_node(hlo_graph_t *g, const torus_check_t *checks, size_t count);
/* Looks at all pending checks; the first failure is returned and all are dropped. */
torus_status_t torus_engine_verify(torus_engine_t *engine);
/* Keeps |status|, which it takes over, for the next look. */
void torus_engine_defer_error(torus_engine_t *engine, torus_status_t status);
void torus_engine_add_pending(torus_engine_t *engine, torus_pending_check_t *pending);

/* ---- engine.c ---- */
/* The error of a failed program was told through one of its values: synchronizing does not tell it
 * again. */
void torus_engine_drop_failure(torus_engine_t *engine, int device);

/* ---- cache.c ---- */
torus_status_t torus_program_cache_create(torus_engine_t *engine, const char *folder,
                                          int64_t limit_bytes, torus_program_cache_t **out_cache);
typedef struct torus_launch {
  torus_executable_t *executable; /* owned by the caller */
  uint32_t *soft_words;           /* owned by the cache until the next look-up */
  size_t soft_word_count;
} torus_launch_t;
/* The program for a job's graph, compiled if need be. */
torus_status_t torus_program_cache_get(torus_program_cache_t *cache, torus_job_t *job,
                                       hlo_encoding_t *encoding, torus_launch_t *out_launch);
void torus_program_cache_clear(torus_program_cache_t *cache);
void torus_program_cache_destroy(torus_program_cache_t *cache); /* accepts NULL */

/* ---- disk.c ---- */
typedef struct torus_disk_cache torus_disk_cache_t;
torus_status_t torus_disk_cache_create(const char *folder, int64_t limit_bytes, const char *identity,
                                       torus_disk_cache_t **out_disk);
/* Bytes stored under |key|, or size 0 when there is no good entry. Freed with torus_free. */
void torus_disk_cache_read(torus_disk_cache_t *disk, const char *key, size_t key_bytes,
                           char **out_bytes, size_t *out_size);
void torus_disk_cache_write(torus_disk_cache_t *disk, const char *key, size_t key_bytes,
                            const char *bytes, size_t size);
void torus_disk_cache_destroy(torus_disk_cache_t *disk);

#endif  /* TORUS_ENGINE_INTERNAL_H_ */
