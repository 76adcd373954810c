/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* What the files of the engine share. Locks: device.lock guards the device's window and the value
 * pointers of its storages; engine.lock guards the queue, the states of values, the programs' run
 * figures and the pending checks. device.lock may be held when engine.lock is taken, never the
 * other way round. */
#ifndef TORUS_ENGINE_INTERNAL_H_
#define TORUS_ENGINE_INTERNAL_H_

#include <pthread.h>
#include <stdatomic.h>

#include "engine/explain.h"
#include "hlo/encode.h"
#include "hlo/graph.h"
#include "torus/capture.h"
#include "torus/engine.h"
#include "torus/memory.h"

typedef enum {
  TORUS_VALUE_OPEN,    /* a node of the device's open window */
  TORUS_VALUE_QUEUED,  /* result of a window that has not run yet */
  TORUS_VALUE_READY,   /* has a buffer (whose content may still be in flight inside the plugin) */
  TORUS_VALUE_FAILED,
  TORUS_VALUE_ABSTRACT, /* a type and no content; stays so for ever */
} torus_value_state_t;

struct torus_value {
  /* References; in the upper half, those of them that closed windows hold which have not run. One
   * word, so that a window that ends gives up both at once. */
  atomic_ullong refs;
  atomic_int state;          /* torus_value_state_t */
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
  torus_sharding_t *wanted;  /* how it lies, or is to lie, on several devices; NULL: as the compiler
                              * likes */
  int64_t *physical;         /* dimensions in which the buffer holds |dims|; NULL: exactly those */
  int64_t dims[];
};

struct torus_storage {
  atomic_int refs;
  torus_engine_t *engine;
  int device;
  size_t size_bytes;
  bool is_given;             /* the capture going on may use up its content at each run */
  bool is_abstract;          /* made while nothing ran: takes no memory until it gets content */
  torus_value_t *value;      /* NULL: never written */
  torus_sharding_t *pinned;  /* how its content stays on several devices; NULL: any way */
  uint64_t born_in;          /* number of the capture during which it was made; 0: none */
  hlo_t parameter;           /* its input node in a capture's window |parameter_window| */
  uint64_t parameter_window;
  atomic_size_t capture_slot; /* 1 + its place among the writes of the capture going on; 0: none */
};

/* A condition whose failure is reported at the next wait. */
typedef struct torus_check {
  hlo_t failed;              /* rank-0 BOOL */
  hlo_t culprit;             /* rank-0 I64: the offending index, or HLO_NONE */
  torus_status_code_t code;
  const char *format;        /* of a message; %lld the culprit, %d |dim|, %lld |size| */
  const char *op_name;
  torus_place_t place;       /* where the operator was called */
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
  torus_mode_t mode;         /* in which it was closed */
  uint64_t rolling;          /* content hash of the last operators, across windows */
  uint64_t start;            /* the rolling hash at which the window began */
  size_t turn;               /* operators until |rolling| first was |start| again; 0: not yet */
} torus_window_t;

typedef struct torus_spread torus_spread_t; /* how a program lies on several devices */

/* A closed window on its way to the worker; or, with |capture|, a captured one to be compiled
 * (graph present) or run again (graph NULL: |window| has only inputs, values and checks). */
typedef struct torus_job {
  struct torus_job *next;
  int device;
  torus_window_t window;     /* |values| now are exactly the live results, in output order */
  hlo_t *outputs;            /* nodes of values, then the check vector if any */
  size_t output_count;
  bool *donatable;           /* per window input: nobody else can see it any more */
  int *aliases;              /* per window input the result that it is given to, -1: none; owned.
                              * NULL: |donatable| decides */
  bool has_failed_input;     /* its error was reported with the program that failed first */
  bool is_bounded;           /* its program serves all sizes under a bound */
  bool is_awaited;           /* who closed it waits for it next */
  bool needs_worker;         /* its program is not in memory */
  torus_capture_t *capture;  /* retained */
  uint64_t random[2];        /* of a run of a capture: seed, offset */
  torus_sharding_t **layouts; /* per window input, NULL entries: as it lies; NULL: none; owned */
  torus_spread_t *spread;    /* owned; NULL: the program runs on |device| alone */
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
  torus_capture_t *capture;    /* being recorded into |window|, owned; NULL: none */
  atomic_ullong capturing;     /* number of that capture, readable without the lock; 0: none */
  bool numbers_change;         /* Python numbers of the capture going on are arguments */
  int hold_depth;              /* above 0: the window is not cut by its content */
  pthread_mutex_t writes_lock; /* of the capture's writes; nothing else is locked under it */
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
typedef struct torus_bounds torus_bounds_t;

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
  bool is_running;           /* a job is being run, by the worker or by a thread that waits */
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
  torus_program_cache_t *cache;  /* used by who runs a job */
  torus_bounds_t *bounds;        /* likewise; NULL: each size has its own program */
  torus_explain_t *explain;
  atomic_bool cache_only;
  atomic_int abstract_depth; /* above 0: nothing that is recorded will run */
  atomic_bool is_spread;     /* some value has been laid on several devices */
  torus_metrics_t metrics;   /* under |lock| */
  char *last_program;        /* under |lock| */
  torus_executable_t *last_executable; /* likewise */
};

/* ---- value.c ---- */
#define TORUS_VALUE_QUEUED_ONCE (1ULL << 32)
/* References by others than closed windows, which are gone when a later window has its turn. */
static inline uint32_t torus_value_users(const torus_value_t *value) {
  const unsigned long long refs = atomic_load(&value->refs);
  return (uint32_t)refs - (uint32_t)(refs >> 32);
}
/* A closed window's reference is given up. */
void torus_value_release_queued(torus_value_t *value);
torus_status_t torus_value_create(torus_engine_t *engine, int device, torus_dtype_t dtype, int rank,
                                  const int64_t *dims, torus_value_t **out_value);
torus_status_t torus_value_create_abstract(torus_engine_t *engine, int device, torus_dtype_t dtype,
                                           int rank, const int64_t *dims,
                                           torus_value_t **out_value);
int64_t torus_value_numel(const torus_value_t *value);
/* Waits until the value is READY or FAILED; closes its window first. Returns its error. */
torus_status_t torus_value_wait(torus_value_t *value);

/* Takes note of the dimensions in which the value will be held, unless they are its own. */
torus_status_t torus_value_set_physical(torus_value_t *value, const int64_t *dims);
const int64_t *torus_value_held_dims(const torus_value_t *value);
/* The same elements in a new READY value that holds them in |value|'s other dimensions; goes through
 * the host. |held| was made with torus_value_set_physical and has no buffer yet. */
torus_status_t torus_value_fill_padded(torus_value_t *held, torus_value_t *exact);
/* The same elements in a buffer of the value's own dimensions; goes through the host. |out_buffer|
 * must be released by the caller. */
torus_status_t torus_value_exact_buffer(torus_value_t *value, torus_buffer_t **out_buffer);

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
/* The same when the caller waits for it next. */
torus_status_t torus_window_close_awaited(torus_engine_t *engine, int device);
/* The open window as a job that is not enqueued yet; the next window is open. Dead values are to be
 * dropped first. On failure the window stays open as it was. */
torus_status_t torus_window_take(torus_engine_t *engine, int device, torus_job_t **out_job);
/* A value that only the window refers to is dead: it needs no result. */
void torus_window_drop_dead(torus_window_t *window);
/* Empties the open window: nothing that was recorded is wanted any more. */
void torus_window_forget(torus_window_t *window);
/* A new input of the type of |value|, which the window retains. */
hlo_t torus_window_add_input(torus_window_t *window, torus_value_t *value);
/* Makes room for one more element in a growing array. */
torus_status_t torus_grow(void *array, size_t count, size_t *capacity, size_t element_bytes);
/* The references to inputs and values now are those of a closed window. */
void torus_window_mark_queued(torus_window_t *window);
/* Gives those up; window_deinit is still to be called. */
void torus_window_release_queued(torus_window_t *window);
void torus_window_deinit(torus_window_t *window);

/* ---- edge.c ---- */
/* What is recorded at once: an operator, or those of a block. */
typedef struct torus_stretch {
  uint64_t hash;             /* of its content */
  size_t op_count;
  size_t heavy_count;        /* products and convolutions among the operators */
} torus_stretch_t;
/* |stretch| comes next: closes the window first where the content of the stream says so. Device must
 * be locked. */
torus_status_t torus_window_expect(torus_engine_t *engine, int device,
                                   const torus_stretch_t *stretch);

/* ---- abstract.c ---- */
/* Makes the OPEN values of the window abstract and empties it. Device must be locked. */
void torus_window_abstract(torus_window_t *window);
/* An abstract storage without content gets some of the type of |view|, or bytes for NULL, unless it
 * was made in the capture going on. */
torus_status_t torus_storage_fill_abstract(torus_storage_t *storage, const torus_view_t *view);
/* |storage| is about to hold |value|: from the first real content on it counts as memory. */
void torus_storage_leave_abstract(torus_storage_t *storage, const torus_value_t *value);
/* The error of reading or computing with what has no content. */
torus_status_t torus_abstract_refuse(void);

/* ---- storage.c ---- */
/* Counts |bytes| as used, whatever the limit is. */
void torus_storage_account(torus_storage_t *storage);
/* The node of the storage's content, which is not NULL, in the open window. */
hlo_t torus_storage_node(torus_device_t *device, torus_storage_t *storage);

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
/* Whether the view is |count| elements in row-major order without offset. */
bool torus_view_is_dense(const torus_view_t *view, int64_t count);
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

/* ---- capture.c ---- */
/* What a capture does where the window reads and writes storages; device locked, capture going on. */
hlo_t torus_capture_read(torus_device_t *device, torus_storage_t *storage);
/* |value|, or an OPEN stand-in for it, retained: what the storage is to hold. NULL when memory is
 * short, which the end of the capture reports. */
torus_value_t *torus_capture_write(torus_device_t *device, torus_storage_t *storage,
                                   torus_value_t *value);
/* Gives a storage without content some before it is read through |view|: what is written there
 * later, outside, must be seen by the program. */
torus_status_t torus_capture_fill(torus_device_t *device, const torus_view_t *view);
/* The storage is about to be freed. */
void torus_capture_forget(torus_storage_t *storage);
/* Seed and offset of random numbers as nodes that each run sets anew. */
void torus_capture_random(torus_device_t *device, uint64_t seed, uint64_t offset, hlo_t *out_seed,
                          hlo_t *out_offset);
/* An error where a storage that a capture may have to restore would change its size. */
torus_status_t torus_capture_refuse_resize(const torus_storage_t *storage);
/* The error of what cannot be done before the capture has ended. */
torus_status_t torus_capture_refuse_wait(void);

/* ---- replay.c ---- */
/* On the worker: compiles a captured window into its capture, which keeps the outcome. */
void torus_capture_prepare(torus_engine_t *engine, torus_job_t *job);
torus_status_t torus_capture_run(torus_engine_t *engine, torus_job_t *job, torus_buffer_t **results);

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

/* ---- room.c ---- */
typedef struct torus_room {
  size_t most_mappings;      /* that the system gives the process */
  size_t most_programs;      /* asked for; 0: as many as there are mappings for */
  size_t mappings;           /* at the last look */
  size_t next_look;          /* number of programs at which the mappings are counted again */
} torus_room_t;
void torus_room_init(torus_room_t *room, size_t most_programs);
/* Whether some of the |programs| loaded should go before the next is loaded. */
bool torus_room_is_scarce(torus_room_t *room, size_t programs);
/* Counts the mappings before the next program. */
void torus_room_look_again(torus_room_t *room);
/* Fails when the next program could not be loaded. */
torus_status_t torus_room_check(const torus_room_t *room);

/* ---- cache.c ---- */
torus_status_t torus_program_cache_create(torus_engine_t *engine,
                                          const torus_engine_options_t *options,
                                          torus_program_cache_t **out_cache);
typedef struct torus_launch {
  torus_executable_t *executable; /* owned by the caller */
  uint32_t *soft_words;           /* owned by the cache until the next look-up */
  size_t soft_word_count;
} torus_launch_t;
/* The program for a job's graph, compiled if need be. */
torus_status_t torus_program_cache_get(torus_program_cache_t *cache, torus_job_t *job,
                                       hlo_encoding_t *encoding, torus_launch_t *out_launch);
/* The same when the structure is known with these sizes; no executable otherwise. */
torus_status_t torus_program_cache_find(torus_program_cache_t *cache, torus_job_t *job,
                                        hlo_encoding_t *encoding, torus_launch_t *out_launch);
/* The same, and only when nothing has to be compiled or loaded for it. */
torus_status_t torus_program_cache_peek(torus_program_cache_t *cache, torus_job_t *job,
                                        hlo_encoding_t *encoding, torus_launch_t *out_launch);
void torus_program_cache_clear(torus_program_cache_t *cache);
void torus_program_cache_destroy(torus_program_cache_t *cache); /* accepts NULL */

/* ---- spread.c ---- */
/* Whether inputs lie on several devices, so that the job's program will. On the worker. */
bool torus_job_is_spread(const torus_job_t *job);
/* Learns from the inputs how the program for |encoding| has to lie: sets |job->spread|, NULL where
 * no input lies on several devices. INVALID_ARGUMENT where they lie on different meshes. */
torus_status_t torus_job_find_spread(torus_job_t *job, const hlo_encoding_t *encoding);
/* What makes a program another one. */
void torus_spread_append_key(const torus_spread_t *spread, torus_strbuf_t *key);
/* An input may be given to a result only where both lie alike; one that is on a single device does
 * not say how its result should lie. A result without a layout takes that of its input. */
void torus_spread_settle_aliases(torus_spread_t *spread, int *aliases);
/* Where results of a captured program go back to its arguments but lie otherwise, the job asks for
 * arguments that lie as the results do. |out_changed| tells whether it has to be compiled again. */
torus_status_t torus_spread_close_loop(torus_job_t *job, const hlo_encoding_t *encoding,
                                       const torus_executable_t *executable, bool *out_changed);
void torus_job_release_layouts(torus_job_t *job);
/* The numbers of a captured program on all its devices. |out_buffer| must be released by the
 * caller. */
torus_status_t torus_spread_numbers(const torus_job_t *job, const torus_launch_t *launch,
                                    torus_buffer_t **out_buffer);
/* Prints the job's program into |text| and compiles it. */
torus_status_t torus_spread_compile(torus_engine_t *engine, const torus_job_t *job,
                                    const bool *promoted, const int *aliases, torus_strbuf_t *text,
                                    torus_executable_t **out_executable);
torus_status_t torus_spread_load(torus_engine_t *engine, const torus_job_t *job, const char *bytes,
                                 size_t size, torus_executable_t **out_executable);
void torus_spread_destroy(torus_spread_t *spread); /* accepts NULL */

/* ---- bounds.c ---- */
torus_status_t torus_bounds_create(torus_engine_t *engine, torus_bounds_t **out_bounds);
/* Where sizes of the job's structure are seen to change, its graph becomes one for all sizes under a
 * bound; otherwise, where inputs are held in larger dimensions, one that cuts them. |out_rewritten|
 * tells whether graph and outputs are others now. */
torus_status_t torus_bounds_apply(torus_bounds_t *bounds, torus_job_t *job, bool has_padded,
                                  bool *out_rewritten);
void torus_bounds_clear(torus_bounds_t *bounds);
void torus_bounds_destroy(torus_bounds_t *bounds); /* accepts NULL */

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
