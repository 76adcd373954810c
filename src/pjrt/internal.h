/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* What the files of src/pjrt/ share. Nothing outside this folder includes it or pjrt_c_api.h. */
#ifndef TORUS_PJRT_INTERNAL_H_
#define TORUS_PJRT_INTERNAL_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"
#include "pjrt/sharding.h"
#include "pjrt_c_api.h"
#include "torus/pjrt.h"
#include "torus/topology.h"

/* An argument structure of |name| with its size set and everything else zero. */
#define TORUS_PJRT_ARGS(name, variable)                                                            \
  name##_Args variable = {.struct_size = name##_Args_STRUCT_SIZE}

/* Whether the plugin has the entry point |name|: its table may be older, hence shorter. */
#define TORUS_PJRT_HAS(api, name)                                                                  \
  ((api)->struct_size >= offsetof(PJRT_Api, name) + sizeof((api)->name) && (api)->name)

/* PyTorch's own limit is 64. */
#define TORUS_PJRT_MAX_RANK 64

struct torus_client {
  const PJRT_Api *api;           /* of the plugin, which is never unloaded */
  PJRT_Client *client;           /* owned */
  PJRT_Device *const *devices;   /* belongs to |client| */
  int device_count;              /* entries of |devices| */
  bool is_cpu;                   /* XLA's CPU plugin, going by the platform's name */
  char *plugin_path;             /* owned, as are the texts below */
  char *platform;                /* "cpu" */
  char *platform_version;        /* free text of the plugin */
  char **device_kinds;           /* |device_count| entries */
  _Atomic uint32_t refused_options; /* compile options the plugin does not know, by position */
};

/* The pieces of an array that lies on several devices. */
typedef struct torus_shards {
  torus_sharding_t *sharding;    /* retained */
  torus_dtype_t dtype;
  int64_t dims[TORUS_PJRT_MAX_RANK]; /* of the whole array */
  PJRT_Buffer *parts[];          /* owned; one for each partition */
} torus_shards_t;

struct torus_buffer {
  _Atomic int32_t references;
  int32_t device;                /* index into the client's devices; of the first partition */
  torus_client_t *client;        /* outlives the buffer */
  PJRT_Buffer *buffer;           /* owned; NULL when there are |shards| */
  torus_shards_t *shards;        /* owned; NULL: on one device */
};

/* What a program that is spread over devices takes and gives. */
typedef struct torus_partition torus_partition_t;

struct torus_executable {
  _Atomic int32_t references;
  int32_t device;                /* where a program without arguments runs */
  torus_client_t *client;        /* outlives the executable */
  PJRT_LoadedExecutable *loaded; /* owned */
  size_t result_count;           /* arrays that @main returns */
  torus_partition_t *partition;  /* owned; NULL: on one device */
};

struct torus_topology {
  const PJRT_Api *api;                /* of the plugin, which is never unloaded */
  PJRT_TopologyDescription *topology; /* owned */
  torus_topology_device_t *devices;   /* owned, with their kinds */
  size_t device_count;
  char *platform_version;             /* owned */
};

/* How a program is laid out over devices. */
typedef struct torus_pjrt_build {
  int replica_count;
  int partition_count;
  bool is_portable; /* no devices of its own: they are named at each run */
  bool use_shardy;
  const int *device_ids;    /* of the partitions, each with its replicas; NULL: in the plugin's
                               order */
  const char *free_results; /* for each result '1' if the compiler may choose its sharding, else
                               '0'; NULL: it chooses none */
} torus_pjrt_build_t;

/* One program on one device, whichever. */
#define TORUS_PJRT_BUILD_ONE                                                                       \
  (torus_pjrt_build_t) { .replica_count = 1, .partition_count = 1, .is_portable = true }

/* plugin.c */

/* The function table of the plugin at |path|, loaded and initialised once a process. */
TORUS_NODISCARD torus_status_t torus_pjrt_plugin_load(const char *path, const PJRT_Api **out_api);

/* Turns |error| into a status with the same code and message, and destroys it. NULL is success. */
TORUS_NODISCARD torus_status_t torus_pjrt_status(const PJRT_Api *api, PJRT_Error *error);

/* Waits for |event|, destroys it, and returns its outcome. NULL is success. */
TORUS_NODISCARD torus_status_t torus_pjrt_event_await(const PJRT_Api *api, PJRT_Event *event);

/* A copy of a text that carries a length and may lack the final zero; to be freed with torus_free. */
TORUS_NODISCARD torus_status_t torus_pjrt_copy_text(const char *text, size_t size_bytes,
                                                    char **out_text);

/* client.c */

/* INVALID_ARGUMENT unless |device| is one of the client's. */
TORUS_NODISCARD torus_status_t torus_pjrt_check_device(const torus_client_t *client, int device);

/* buffer.c */

/* A buffer with one reference and no content yet. */
TORUS_NODISCARD torus_status_t torus_pjrt_buffer_new(torus_client_t *client, int device,
                                                     torus_buffer_t **out_buffer);

/* INVALID_ARGUMENT for what cannot be an array. */
TORUS_NODISCARD torus_status_t torus_pjrt_check_array(torus_dtype_t dtype, int rank,
                                                      const int64_t *dims);
/* Uploads dense row-major data to |device| as an array of its own. */
TORUS_NODISCARD torus_status_t torus_pjrt_upload(torus_client_t *client, int device,
                                                 const void *data, torus_dtype_t dtype, int rank,
                                                 const int64_t *dims, PJRT_Buffer **out_buffer);
/* Downloads, dense and row-major. */
TORUS_NODISCARD torus_status_t torus_pjrt_download(torus_client_t *client, PJRT_Buffer *buffer,
                                                   void *data, size_t size_bytes);
TORUS_NODISCARD torus_status_t torus_pjrt_copy_to(torus_client_t *client, PJRT_Buffer *buffer,
                                                  int device, PJRT_Buffer **out_buffer);
TORUS_NODISCARD torus_status_t torus_pjrt_await(torus_client_t *client, PJRT_Buffer *buffer);
bool torus_pjrt_is_ready(torus_client_t *client, PJRT_Buffer *buffer);
void torus_pjrt_buffer_destroy(torus_client_t *client, PJRT_Buffer *buffer); /* accepts NULL */
/* Element type and dimensions, the latter as long as the buffer lives. */
TORUS_NODISCARD torus_status_t torus_pjrt_array_of(torus_client_t *client, PJRT_Buffer *buffer,
                                                   torus_array_t *out_array);

/* shards.c */

/* A buffer with room for the pieces of |array|, none of which is there yet. */
TORUS_NODISCARD torus_status_t torus_pjrt_shards_new(torus_client_t *client,
                                                     const torus_array_t *array,
                                                     torus_sharding_t *sharding,
                                                     torus_buffer_t **out_buffer);
TORUS_NODISCARD torus_status_t torus_pjrt_shards_to_host(torus_buffer_t *buffer, void *data,
                                                         size_t size_bytes);
size_t torus_pjrt_shards_size_bytes(const torus_buffer_t *buffer);
void torus_pjrt_shards_destroy(torus_client_t *client, torus_shards_t *shards);

/* partition.c */

TORUS_NODISCARD torus_status_t torus_pjrt_partition_new(const torus_partitioning_t *partitioning,
                                                        torus_partition_t **out_partition);
void torus_pjrt_partition_destroy(torus_partition_t *partition); /* accepts NULL */
/* How the program is laid out, for its compilation; borrows from |partition|. */
TORUS_NODISCARD torus_status_t torus_pjrt_partition_build(const torus_client_t *client,
                                                          torus_partition_t *partition,
                                                          torus_pjrt_build_t *out_build);
/* Learns from the compiled program how its results lie. */
TORUS_NODISCARD torus_status_t torus_pjrt_partition_learn(torus_executable_t *executable);
/* Runs on all devices of the partition. */
TORUS_NODISCARD torus_status_t torus_pjrt_partition_run(torus_executable_t *executable,
                                                        torus_buffer_t *const *arguments,
                                                        size_t argument_count,
                                                        torus_buffer_t **out_results);

/* program.c */

/* StableHLO text as PJRT takes it; |text| is borrowed. */
PJRT_Program torus_pjrt_program(const char *text, size_t text_bytes);

void torus_pjrt_executable_destroy(const PJRT_Api *api, PJRT_Executable *executable);

/* |out_bytes| must be freed with torus_free. */
TORUS_NODISCARD torus_status_t torus_pjrt_executable_serialize(const PJRT_Api *api,
                                                               PJRT_Executable *executable,
                                                               char **out_bytes, size_t *out_size);

/* The program after the compiler's work; |out_bytes| must be freed with torus_free. UNIMPLEMENTED
 * where the plugin does not show it. */
TORUS_NODISCARD torus_status_t torus_pjrt_executable_optimized(const PJRT_Api *api,
                                                               PJRT_Executable *executable,
                                                               char **out_bytes, size_t *out_size);

/* options.c */

/* The compile options of |effort| as "name=value;" pairs. */
const char *torus_pjrt_options_text(bool is_cpu, torus_effort_t effort);

/* Appends them to |out| as a CompileOptionsProto, without those of the bit set |refused|. */
TORUS_NODISCARD torus_status_t torus_pjrt_options_encode(const torus_pjrt_build_t *build,
                                                         const char *text, uint32_t refused,
                                                         torus_strbuf_t *out);

/* INVALID_ARGUMENT unless |text| has the form that is encoded. */
TORUS_NODISCARD torus_status_t torus_pjrt_options_check(const char *text);

/* The position in |text| of the option that |message| says the plugin does not know, or -1. */
int torus_pjrt_options_find_refused(const char *text, const char *message);

#endif /* TORUS_PJRT_INTERNAL_H_ */
