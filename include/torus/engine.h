/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The engine: values, storages, views, windows, and the worker that compiles and runs them.
 *
 * A *value* is an immutable array. A *storage* is what a tensor library points to: it holds the
 * current value, and a mutation installs another one. Operators are recorded into the device's open
 * *window*; a closed window becomes a program, compiled once per structure and run in order by one
 * worker thread. Nothing waits except the functions that say so.
 *
 * Recording is bracketed: torus_device_lock, calls and assignments, torus_device_unlock. The
 * unlock applies the mode: debug and strict close the window, fused closes it when it is long. */
#ifndef TORUS_ENGINE_H_
#define TORUS_ENGINE_H_

#include "torus/call.h"
#include "torus/pjrt.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct torus_engine torus_engine_t;
typedef struct torus_value torus_value_t;     /* reference counted */
typedef struct torus_op torus_op_t;

typedef enum torus_mode { TORUS_MODE_DEBUG, TORUS_MODE_STRICT, TORUS_MODE_FUSED } torus_mode_t;

/* ---- engine ---- */

typedef struct torus_engine_options {
  const char *cache_folder;   /* programs on disk; NULL: only in memory */
  int64_t cache_limit_bytes;  /* of the folder; least recently used entries go first */
  int64_t memory_limit_bytes; /* per device, where the plugin knows none; 0: none */
  int64_t program_limit;      /* programs kept loaded; 0: as many as the system has room for */
} torus_engine_options_t;

/* Takes over |client|, also on failure. |out_engine| may be destroyed with torus_engine_destroy; a
 * process whose tensors may outlive everything shuts it down instead and lets it be. */
TORUS_NODISCARD torus_status_t torus_engine_create(torus_client_t *client,
                                                   const torus_engine_options_t *options,
                                                   torus_engine_t **out_engine);
torus_client_t *torus_engine_client(torus_engine_t *engine);
/* Runs what is queued, then ends the worker. Later work fails with FAILED_PRECONDITION. */
void torus_engine_shutdown(torus_engine_t *engine);
/* Shuts down and frees everything, the client included. All values and storages must have been
 * released, and no other thread may use the engine. Accepts NULL. */
void torus_engine_destroy(torus_engine_t *engine);

/* ---- recording ---- */

void torus_device_lock(torus_engine_t *engine, int device);
/* Debug mode waits here and returns the error of the operator just recorded. */
TORUS_NODISCARD torus_status_t torus_device_unlock(torus_engine_t *engine, int device,
                                                   torus_mode_t mode);

/* While held (it nests), the device's window is not cut by its content: what is recorded becomes one
 * program unless somebody waits. The last release closes the window. */
void torus_device_hold(torus_engine_t *engine, int device);
TORUS_NODISCARD torus_status_t torus_device_release(torus_engine_t *engine, int device);

typedef struct torus_result {
  torus_value_t *value;      /* owned by the caller; NULL: undefined tensor */
  int rank;
  int64_t sizes[32], strides[32];
  torus_dtype_t dtype;
} torus_result_t;

/* Where the user's program called an operator: opaque to the engine, named by torus_place_name (see
 * explain.h). All zero: not known. */
typedef struct torus_place {
  const void *code;
  int32_t instruction;
} torus_place_t;

/* What the window's edge asks of an operator; computed once per operator. */
typedef struct torus_op_traits {
  uint64_t hash;   /* of its name */
  bool is_heavy;   /* a product or convolution */
  bool is_precise; /* its float32 products follow torch.set_float32_matmul_precision */
} torus_op_traits_t;

/* torch.get_float32_matmul_precision(): three bfloat16 passes or fewer may stand for float32. */
typedef enum torus_precision {
  TORUS_PRECISION_MEDIUM,
  TORUS_PRECISION_HIGH,
  TORUS_PRECISION_HIGHEST,
} torus_precision_t;

typedef struct torus_request {
  const torus_op_t *op;
  torus_op_traits_t traits;      /* torus_op_traits(op) */
  int device;
  torus_place_t place;
  const torus_arg_t *args;
  int arg_count;
  bool is_inplace;               /* an in-place or out= overload was called */
  torus_dtype_t default_dtype;   /* torch.get_default_dtype() */
  torus_precision_t precision;   /* of an operator that is_precise */
  /* Takes |count| 32-bit random numbers from the call's generator. */
  void (*reserve_random)(void *context, int64_t count, uint64_t *out_seed, uint64_t *out_offset);
  void *random_context;
} torus_request_t;

/* Lowers one operator into the window of the locked device. |out_results| is an array owned by the
 * engine, valid until the next call on the device; the values in it are owned by the caller.
 * UNIMPLEMENTED asks for the CPU fallback. */
TORUS_NODISCARD torus_status_t torus_engine_call(torus_engine_t *engine,
                                                 const torus_request_t *request,
                                                 torus_result_t **out_results,
                                                 int *out_result_count);

/* Writes |value| (same number of elements and sizes as the view, any type) through the view. */
TORUS_NODISCARD torus_status_t torus_view_assign(torus_engine_t *engine, const torus_view_t *view,
                                                 torus_value_t *value, int value_rank,
                                                 const int64_t *value_sizes,
                                                 const int64_t *value_strides);
/* The elements of the view, dense in row-major order; the storage's own value when it is that.
 * |out_value| must be released by the caller. */
TORUS_NODISCARD torus_status_t torus_view_read(torus_engine_t *engine, const torus_view_t *view,
                                               torus_value_t **out_value);

/* ---- values ---- */

torus_value_t *torus_value_retain(torus_value_t *value); /* accepts NULL */
void torus_value_release(torus_value_t *value);          /* accepts NULL */
/* Copies dense row-major host data; |data| may be reused when the call returns. */
TORUS_NODISCARD torus_status_t torus_value_from_host(torus_engine_t *engine, int device,
                                                     const void *data, torus_dtype_t dtype,
                                                     int rank, const int64_t *dims,
                                                     torus_value_t **out_value);
/* Closes the window if the value is still in it, waits, reports failed checks, copies. */
TORUS_NODISCARD torus_status_t torus_value_to_host(torus_value_t *value, void *data,
                                                   size_t size_bytes);
/* The value on another device. Waits for the value. */
TORUS_NODISCARD torus_status_t torus_value_to_device(torus_value_t *value, int device,
                                                     torus_value_t **out_value);
size_t torus_value_size_bytes(const torus_value_t *value);

/* ---- values on several devices ---- */

/* A value may lie on several devices; its own is then the first of its sharding. A window with such
 * an input becomes one program on all those devices, and its results lie as the compiler sees fit;
 * inputs on a single device count as if they were on each. */

/* Copies dense row-major host data, each piece to its devices. */
TORUS_NODISCARD torus_status_t torus_value_from_host_sharded(torus_engine_t *engine,
                                                             const void *data,
                                                             torus_dtype_t dtype, int rank,
                                                             const int64_t *dims,
                                                             torus_sharding_t *sharding,
                                                             torus_value_t **out_value);
/* The same elements laid out as |sharding|, or, where that is NULL, on |device| alone. Waits. */
TORUS_NODISCARD torus_status_t torus_value_lay_out(torus_value_t *value,
                                                   torus_sharding_t *sharding, int device,
                                                   torus_value_t **out_value);
/* Whether any value has been laid on several devices so far. */
bool torus_engine_is_spread(torus_engine_t *engine);
/* How the value lies: NULL on a single device, else to be released by the caller. Waits where only
 * its program will tell. */
TORUS_NODISCARD torus_status_t torus_value_sharding(torus_value_t *value,
                                                    torus_sharding_t **out_sharding);

/* ---- storages ---- */

/* Without content. RESOURCE_EXHAUSTED when the device can never hold it with what is in use.
 * |out_storage| must be released by the caller. */
TORUS_NODISCARD torus_status_t torus_storage_create(torus_engine_t *engine, int device,
                                                    size_t size_bytes,
                                                    torus_storage_t **out_storage);
torus_storage_t *torus_storage_retain(torus_storage_t *storage);
void torus_storage_release(torus_storage_t *storage); /* accepts NULL */
int torus_storage_device(const torus_storage_t *storage);
size_t torus_storage_size_bytes(const torus_storage_t *storage);
/* What is written to |storage| will lie on the devices as what is in |like| does, where it can. */
void torus_storage_lie_like(torus_storage_t *storage, const torus_storage_t *like);
/* The same with a layout of the caller's. Device must be locked. */
void torus_storage_pin(torus_storage_t *storage, torus_sharding_t *sharding);
/* How the content lies, as torus_value_sharding. Device must not be locked. */
TORUS_NODISCARD torus_status_t torus_storage_sharding(torus_storage_t *storage,
                                                      torus_sharding_t **out_sharding);
/* Keeps the leading bytes. */
TORUS_NODISCARD torus_status_t torus_storage_resize(torus_storage_t *storage, size_t size_bytes);
/* Installs |value| (retained) as the whole content; sizes must agree. Device must be locked. */
void torus_storage_set(torus_storage_t *storage, torus_value_t *value);
/* The current value, retained, or NULL when nothing was written yet. Device must be locked. */
torus_value_t *torus_storage_get(torus_storage_t *storage);

/* ---- abstract contents ---- */

/* Between begin and end (they nest) nothing runs, on no device and in no thread: storages take no
 * memory, and what is recorded gives *abstract* contents, which have a type and nothing else. Later,
 * reading or computing with them fails with FAILED_PRECONDITION; writing all of one gives it real
 * content. Begin closes the open windows. */
TORUS_NODISCARD torus_status_t torus_abstract_begin(torus_engine_t *engine);
void torus_abstract_end(torus_engine_t *engine);
bool torus_engine_is_abstract(torus_engine_t *engine);
/* Gives the storage abstract content of as many bytes. Device must be locked. */
TORUS_NODISCARD torus_status_t torus_storage_set_abstract(torus_storage_t *storage,
                                                          torus_dtype_t dtype, int rank,
                                                          const int64_t *dims);
/* The same with the type of what |like| holds, if that has as many bytes. Device must be locked. */
TORUS_NODISCARD torus_status_t torus_storage_set_abstract_like(torus_storage_t *storage,
                                                               const torus_storage_t *like);
/* Programs that read the abstract content take it as |sharding| says, and what is written in its place
 * lies so too. Device must be locked. */
void torus_storage_lay_abstract(torus_storage_t *storage, torus_sharding_t *sharding);
bool torus_storage_is_abstract(torus_storage_t *storage); /* device must be locked */

/* ---- waiting ---- */

/* Closes the window of |device|, waits for everything queued, reports failed checks and errors. */
TORUS_NODISCARD torus_status_t torus_engine_synchronize(torus_engine_t *engine, int device);

/* ---- figures ---- */

typedef struct torus_metrics {
  int64_t compilations, launches, cache_hits, disk_hits, windows, operators;
  int64_t bounded_launches; /* of programs for all sizes under a bound */
  int64_t evictions;        /* programs unloaded to make room for others */
  int64_t bytes_to_device, bytes_to_host, transfers_to_device, transfers_to_host;
  double compile_seconds;
} torus_metrics_t;
void torus_engine_metrics(torus_engine_t *engine, torus_metrics_t *out_metrics);
void torus_engine_reset_metrics(torus_engine_t *engine);

typedef struct torus_device_memory {
  int64_t used_bytes, peak_bytes, limit_bytes;
  int64_t used_count, peak_count;
  int64_t total_allocated_bytes, total_freed_bytes, total_allocated_count, total_freed_count;
} torus_device_memory_t;
void torus_engine_memory(torus_engine_t *engine, int device, torus_device_memory_t *out_memory);
void torus_engine_reset_peak(torus_engine_t *engine, int device);
void torus_engine_reset_totals(torus_engine_t *engine, int device);

/* StableHLO of the program compiled last; freed by the caller with torus_free. NULL: none yet. */
char *torus_engine_last_program(torus_engine_t *engine);
/* The same after the compiler's work, an HloModuleProtoWithConfig; size 0: none yet. |out_bytes| is
 * freed by the caller with torus_free. */
TORUS_NODISCARD torus_status_t torus_engine_last_optimized(torus_engine_t *engine,
                                                           char **out_bytes, size_t *out_size);
void torus_engine_clear_programs(torus_engine_t *engine);
/* A program that is not cached becomes an error instead of a compilation. */
void torus_engine_set_cache_only(torus_engine_t *engine, bool cache_only);

/* ---- operators ---- */

size_t torus_op_count(void);
const torus_op_t *torus_op_at(size_t index);
const torus_op_t *torus_op_find(const char *name);
const char *torus_op_name(const torus_op_t *op);
const char *torus_op_family(const torus_op_t *op); /* "pointwise" */
bool torus_op_is_random(const torus_op_t *op);
torus_op_traits_t torus_op_traits(const torus_op_t *op);

#ifdef __cplusplus
}
#endif
#endif  /* TORUS_ENGINE_H_ */
