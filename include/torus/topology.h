/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Compiling ahead of time: for devices that are described, not there. The program that comes out
 * can be looked at and kept; only a client on such devices can load it. */
#ifndef TORUS_TOPOLOGY_H_
#define TORUS_TOPOLOGY_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "torus/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct torus_topology torus_topology_t; /* devices and how they are joined */
typedef struct torus_binary torus_binary_t;     /* a program compiled for a topology */

/* ---- topology ---- */

typedef struct torus_topology_device {
  int id;                     /* position in a program's device assignment */
  int process_index;          /* the host that drives it */
  const char *kind;           /* "TPU v6 lite"; lives as long as the topology */
  int64_t coords[4];          /* place of the chip; |coord_count| of them are known */
  int coord_count;
  int64_t core_on_chip;       /* 0 where chips have one core */
  int64_t memory_limit_bytes; /* what programs may use of its memory; 0: not told */
} torus_topology_device_t;

/* Loads the plugin at |plugin_path|, an absolute path, and asks it for the topology of that name:
 * "v6e:2x2" and the like for libtpu. A plugin stays loaded for the rest of the process.
 * UNIMPLEMENTED where the plugin cannot, else what the plugin reports.
 * |out_topology| must be released with torus_topology_destroy. */
TORUS_NODISCARD torus_status_t torus_topology_create(const char *plugin_path, const char *name,
                                                     torus_topology_t **out_topology);
/* Binaries of the topology must be gone. Accepts NULL. */
void torus_topology_destroy(torus_topology_t *topology);

size_t torus_topology_device_count(const torus_topology_t *topology);
/* |index| is below the device count. */
const torus_topology_device_t *torus_topology_device(const torus_topology_t *topology,
                                                     size_t index);
const char *torus_topology_platform_version(const torus_topology_t *topology);

/* ---- binary ---- */

typedef struct torus_binary_options {
  int replica_count;     /* copies of the program, each on its own data; at least 1 */
  int partition_count;   /* devices that share one copy; at least 1 */
  bool use_shardy;       /* shardings are written as sdy.sharding, not mhlo.sharding */
  const char *overrides; /* compiler options as "name=value;" pairs; "": none */
  const char *free_results; /* for each result '1' where the compiler chooses how it lies on the
                               partitions, else '0'; NULL: where the text says nothing, each
                               partition has all of it */
} torus_binary_options_t;

/* Compiles StableHLO text. What the compiler refuses is an error with its message.
 * |out_binary| must be released with torus_binary_destroy. */
TORUS_NODISCARD torus_status_t torus_binary_compile(torus_topology_t *topology, const char *text,
                                                    size_t text_bytes,
                                                    const torus_binary_options_t *options,
                                                    torus_binary_t **out_binary);
void torus_binary_destroy(torus_binary_t *binary); /* accepts NULL */

/* Bytes on each device. */
typedef struct torus_binary_memory {
  int64_t argument_bytes;
  int64_t output_bytes;
  int64_t alias_bytes;     /* of the outputs, those that lie in arguments */
  int64_t temporary_bytes;
  int64_t code_bytes;
  int64_t peak_bytes;      /* -1 where the plugin does not tell */
} torus_binary_memory_t;

/* UNIMPLEMENTED where the plugin keeps no figures; so are the next three. */
TORUS_NODISCARD torus_status_t torus_binary_memory(const torus_binary_t *binary,
                                                   torus_binary_memory_t *out_memory);
/* Calls |visit| for each figure of the compiler's cost model: "flops", "bytes accessed", ... */
TORUS_NODISCARD torus_status_t torus_binary_costs(const torus_binary_t *binary,
                                                  void (*visit)(void *context, const char *name,
                                                                size_t name_bytes, double value),
                                                  void *context);
/* What a client on such devices loads. |out_bytes| must be freed with torus_free. */
TORUS_NODISCARD torus_status_t torus_binary_serialize(const torus_binary_t *binary,
                                                      char **out_bytes, size_t *out_size);
/* The program after the compiler's work, an HloModuleProtoWithConfig. |out_bytes| must be freed
 * with torus_free. */
TORUS_NODISCARD torus_status_t torus_binary_optimized(const torus_binary_t *binary,
                                                      char **out_bytes, size_t *out_size);

#ifdef __cplusplus
}
#endif
#endif  /* TORUS_TOPOLOGY_H_ */
