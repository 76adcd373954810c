/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Plugins, clients, devices, buffers and executables. The only header through which the rest of
 * libtorus reaches PJRT; no PJRT_* name appears in it. */
#ifndef TORUS_PJRT_H_
#define TORUS_PJRT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "torus/dtype.h"
#include "torus/sharding.h"
#include "torus/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct torus_client torus_client_t;          /* a loaded plugin with its devices */
typedef struct torus_buffer torus_buffer_t;          /* an array on a device; reference counted */
typedef struct torus_executable torus_executable_t;  /* a compiled program; reference counted */

/* ---- client ---- */

typedef struct torus_client_options {
  const char *plugin_path;   /* absolute path of a PJRT plugin */
  int cpu_device_count;      /* virtual devices of the CPU plugin; 0 leaves the plugin's default.
                                Passed only when the plugin path is a CPU plugin (is_cpu). */
  bool is_cpu;
} torus_client_options_t;

/* Loads the plugin, checks its API version, initialises it and creates a client. Errors name the
 * path and the remedy: NOT_FOUND (no such file), INVALID_ARGUMENT (not a PJRT plugin),
 * FAILED_PRECONDITION (major version differs), or what the plugin reports.
 * |out_client| must be released with torus_client_destroy. */
TORUS_NODISCARD torus_status_t torus_client_create(const torus_client_options_t *options,
                                                   torus_client_t **out_client);
/* Buffers and executables of the client must be gone. Accepts NULL. */
void torus_client_destroy(torus_client_t *client);

int torus_client_device_count(const torus_client_t *client);
const char *torus_client_platform(const torus_client_t *client);          /* "cpu", "tpu" */
const char *torus_client_platform_version(const torus_client_t *client);
const char *torus_client_plugin_path(const torus_client_t *client);
const char *torus_client_device_kind(const torus_client_t *client, int device);  /* "cpu", "TPU v6e" */
/* Major and minor version of the plugin's PJRT API. */
void torus_client_api_version(const torus_client_t *client, int *out_major, int *out_minor);
/* Memory figures of the plugin's allocator; false where the plugin keeps none. */
bool torus_client_memory_stats(const torus_client_t *client, int device, int64_t *out_in_use,
                               int64_t *out_limit);

/* ---- buffer ---- */

/* Copies dense row-major host data to |device|; |data| may be reused when the call returns.
 * |out_buffer| holds one reference owned by the caller. */
TORUS_NODISCARD torus_status_t torus_buffer_from_host(torus_client_t *client, int device,
                                                      const void *data, torus_dtype_t dtype,
                                                      int rank, const int64_t *dims,
                                                      torus_buffer_t **out_buffer);
/* Waits for the buffer and copies it, dense row-major, to |data| of exactly |size_bytes|. */
TORUS_NODISCARD torus_status_t torus_buffer_to_host(torus_buffer_t *buffer, void *data,
                                                    size_t size_bytes);
/* Waits until the program that makes the buffer has ended; returns its error. */
TORUS_NODISCARD torus_status_t torus_buffer_await(torus_buffer_t *buffer);
/* True when the content is there (or an error is), without waiting. */
bool torus_buffer_is_ready(torus_buffer_t *buffer);
/* A copy on another device of the same client. Asynchronous. */
TORUS_NODISCARD torus_status_t torus_buffer_copy_to_device(torus_buffer_t *buffer, int device,
                                                           torus_buffer_t **out_buffer);
size_t torus_buffer_size_bytes(const torus_buffer_t *buffer);
torus_buffer_t *torus_buffer_retain(torus_buffer_t *buffer);  /* accepts NULL */
void torus_buffer_release(torus_buffer_t *buffer);            /* accepts NULL */

/* ---- buffers on several devices ---- */

/* Such a buffer stands for the whole array: its bytes, waiting for it and copies of it are those of
 * the array, wherever its pieces lie. Its device is the first of its sharding. */

/* Copies dense row-major host data, each piece to its devices. */
TORUS_NODISCARD torus_status_t torus_buffer_from_host_sharded(torus_client_t *client,
                                                              const void *data,
                                                              torus_dtype_t dtype, int rank,
                                                              const int64_t *dims,
                                                              torus_sharding_t *sharding,
                                                              torus_buffer_t **out_buffer);
/* The same array laid out as |sharding|, or, where that is NULL, on |device| alone. Pieces that must
 * be cut anew go through the host. */
TORUS_NODISCARD torus_status_t torus_buffer_lay_out(torus_buffer_t *buffer,
                                                    torus_sharding_t *sharding, int device,
                                                    torus_buffer_t **out_buffer);
/* NULL for a buffer on one device; lives as long as the buffer. */
torus_sharding_t *torus_buffer_sharding(const torus_buffer_t *buffer);

/* ---- executable ---- */

/* How much the compiler may spend. */
typedef enum torus_effort {
  TORUS_EFFORT_DEFAULT,
  TORUS_EFFORT_FAST, /* little optimisation, for programs seen once */
} torus_effort_t;

/* Compiles StableHLO text whose @main takes and returns arrays. |device| is where it will run.
 * |out_executable| holds one reference owned by the caller. */
TORUS_NODISCARD torus_status_t torus_executable_compile(torus_client_t *client, int device,
                                                        const char *text, size_t text_bytes,
                                                        torus_effort_t effort,
                                                        torus_executable_t **out_executable);
/* The compile options as bytes: part of a program's identity in the disk cache. Lives for ever. */
const char *torus_executable_options_fingerprint(const torus_client_t *client, torus_effort_t effort);

/* Runs the program once. |arguments| are borrowed; those donated by the program are used up and
 * must not be read again. |out_results| receives |result_count| references owned by the caller;
 * on failure all are NULL. Returns when the work is enqueued. Thread safe. */
TORUS_NODISCARD torus_status_t torus_executable_run(torus_executable_t *executable,
                                                    torus_buffer_t *const *arguments,
                                                    size_t argument_count, size_t result_count,
                                                    torus_buffer_t **out_results);
/* The same on a device named in so many words; torus_executable_run takes the device of the first
 * argument, or, without arguments, the one named to torus_executable_compile (0 after a load). One
 * executable serves every device of its client. */
TORUS_NODISCARD torus_status_t torus_executable_run_on(torus_executable_t *executable, int device,
                                                       torus_buffer_t *const *arguments,
                                                       size_t argument_count, size_t result_count,
                                                       torus_buffer_t **out_results);
/* Bytes from which torus_executable_load makes the program again on the same plugin version and
 * options. |out_bytes| must be freed with torus_free. UNIMPLEMENTED where the plugin cannot. */
TORUS_NODISCARD torus_status_t torus_executable_serialize(torus_executable_t *executable,
                                                          char **out_bytes, size_t *out_size);
TORUS_NODISCARD torus_status_t torus_executable_load(torus_client_t *client, const char *bytes,
                                                     size_t size, torus_executable_t **out_executable);

/* ---- programs on several devices ---- */

typedef struct torus_array {
  torus_dtype_t dtype;
  int rank;
  const int64_t *dims;
} torus_array_t;

/* How a program is spread over the devices of |mesh|: the compiler works out who computes what and
 * puts the exchange of data in. */
typedef struct torus_partitioning {
  torus_sharding_t *mesh;             /* any sharding over the devices */
  size_t argument_count;
  torus_sharding_t *const *arguments; /* NULL entries: all of it on every device */
  size_t result_count;
  const torus_array_t *results;       /* whole arrays */
  torus_sharding_t *const *wanted;    /* of the results; NULL entries: the compiler chooses */
  bool has_replicas;                  /* the program is that of each device, for the piece that it
                                         holds; all shardings are given */
} torus_partitioning_t;

/* The text carries the same shardings as mhlo.sharding attributes, see torus_sharding_text. Runs of
 * the executable are one launch on all devices. Arguments that lie otherwise are laid out anew at
 * each run. */
TORUS_NODISCARD torus_status_t torus_executable_compile_partitioned(
    torus_client_t *client, const char *text, size_t text_bytes, torus_effort_t effort,
    const torus_partitioning_t *partitioning, torus_executable_t **out_executable);
TORUS_NODISCARD torus_status_t torus_executable_load_partitioned(
    torus_client_t *client, const char *bytes, size_t size,
    const torus_partitioning_t *partitioning, torus_executable_t **out_executable);
/* How argument or result |index| of a partitioned executable lies; NULL: the executable is not
 * partitioned, or, for an argument, all of it is on every device. */
torus_sharding_t *torus_executable_argument_sharding(const torus_executable_t *executable,
                                                     size_t index);
torus_sharding_t *torus_executable_result_sharding(const torus_executable_t *executable,
                                                   size_t index);
/* Of the mhlo.sharding attribute; freed by the caller with torus_free. NULL when memory is short. */
char *torus_sharding_text(const torus_sharding_t *sharding);
/* The program after the compiler's work, an HloModuleProtoWithConfig; |out_bytes| must be freed with
 * torus_free. UNIMPLEMENTED where the plugin does not show it. */
TORUS_NODISCARD torus_status_t torus_executable_optimized(torus_executable_t *executable,
                                                          char **out_bytes, size_t *out_size);

torus_executable_t *torus_executable_retain(torus_executable_t *executable);
void torus_executable_release(torus_executable_t *executable);  /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif  /* TORUS_PJRT_H_ */
