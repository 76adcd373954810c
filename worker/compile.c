/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The program torus-compile: compiles for topologies, in a process of its own. A TPU compiler is a
 * large library that takes over its process, and some programs make it abort; whoever asks for a
 * compilation should survive both.
 *
 *   torus-compile PLUGIN
 *
 * Requests come on standard input: lines "key value", then an empty line. Each is answered on
 * standard output by fields and the word "end":
 *
 *   name number-of-bytes
 *   the bytes
 *
 * "status" is the first field. What the plugin prints goes to standard error.
 *
 *   request    topology NAME                 required; alone it asks for a description
 *              text FILE                     StableHLO text
 *              replicas N, partitions N      default 1
 * *              shardy 1 *                      the text has sdy.sharding
 *              free 011... *                   results whose sharding the compiler chooses
 *              option name=value             for the compiler, repeatable
 *              serialized FILE, optimized FILE   where to write what comes out
 */
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "torus/memory.h"
#include "torus/topology.h"

typedef struct request {
  char topology[256];
  char text[4096], serialized[4096], optimized[4096]; /* paths; empty: none */
  char overrides[1024];                               /* "name=value;" pairs */
  char free_results[1 << 16];                         /* '0' and '1' */
  int replicas, partitions;
  bool use_shardy;
} request_t;

typedef struct worker {
  const char *plugin;
  FILE *answers;
  torus_topology_t *topology; /* the one asked for last, or NULL */
  char topology_name[256];
} worker_t;

/* ---- answers ---- */

static void put_bytes(FILE *file, const char *name, const char *bytes, size_t size) {
  fprintf(file, "%s %zu\n", name, size);
  fwrite(bytes, 1, size, file);
  fputc('\n', file);
}

static void put_text(FILE *file, const char *name, const char *text) {
  put_bytes(file, name, text, strlen(text));
}

static void put_int(FILE *file, const char *name, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%" PRId64, value);
  put_text(file, name, text);
}

static void put_real(FILE *file, const char *name, double value) {
  char text[32];
  snprintf(text, sizeof text, "%.17g", value);
  put_text(file, name, text);
}

static void put_cost(void *context, const char *name, size_t name_bytes, double value) {
  char text[320];
  int shown = (int)(name_bytes < 256 ? name_bytes : 256);
  int size = snprintf(text, sizeof text, "%.17g %.*s", value, shown, name);
  put_bytes(context, "cost", text, (size_t)size);
}

/* ---- requests ---- */

static bool copy(char *target, size_t capacity, const char *value) {
  size_t size = strlen(value);
  if (size >= capacity) return false;
  memcpy(target, value, size + 1);
  return true;
}

static bool add_option(request_t *request, const char *value) {
  size_t used = strlen(request->overrides), room = sizeof request->overrides - used;
  int size = snprintf(request->overrides + used, room, "%s;", value);
  return size > 0 && (size_t)size < room;
}

static bool set_count(int *out_count, const char *value) {
  char *end;
  long count = strtol(value, &end, 10);
  *out_count = count > 0 && count < 1 << 24 && *end == 0 ? (int)count : 0;
  return *out_count != 0;
}

static bool set_field(request_t *request, const char *key, const char *value) {
  if (!strcmp(key, "topology")) return copy(request->topology, sizeof request->topology, value);
  if (!strcmp(key, "text")) return copy(request->text, sizeof request->text, value);
  if (!strcmp(key, "serialized")) {
    return copy(request->serialized, sizeof request->serialized, value);
  }
  if (!strcmp(key, "optimized")) return copy(request->optimized, sizeof request->optimized, value);
  if (!strcmp(key, "option")) return add_option(request, value);
  if (!strcmp(key, "replicas")) return set_count(&request->replicas, value);
  if (!strcmp(key, "partitions")) return set_count(&request->partitions, value);
  if (!strcmp(key, "free")) {
    return copy(request->free_results, sizeof request->free_results, value);
  }
  if (!strcmp(key, "shardy")) request->use_shardy = value[0] == '1';
  return !strcmp(key, "shardy");
}

/* False at the end of the input. All lines of a request are read even if one is wrong. */
static bool read_request(request_t *request, torus_status_t *out_status) {
  char line[sizeof request->free_results + 32];
  memset(request, 0, sizeof *request);
  request->replicas = request->partitions = 1;
  *out_status = TORUS_OK;
  while (fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    if (line[0] == 0) return true;
    char *value = strchr(line, ' ');
    if (value) *value++ = 0;
    if (value && set_field(request, line, value)) continue;
    torus_status_ignore(*out_status);
    *out_status = torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                                    "request field '%s' is not known or has a wrong value", line);
  }
  torus_status_free(*out_status);
  return false;
}

/* ---- files ---- */

static torus_status_t file_error(const char *action, const char *path) {
  return torus_status_make(TORUS_STATUS_UNAVAILABLE, "cannot %s '%s': %m", action, path);
}

static torus_status_t read_open_file(FILE *file, const char *path, char **out_bytes,
                                     size_t *out_size) {
  if (fseek(file, 0, SEEK_END) != 0) return file_error("read", path);
  long size = ftell(file);
  if (size < 0) return file_error("read", path);
  rewind(file);
  void *block;
  TORUS_TRY(torus_try_alloc((size_t)size + 1, &block));
  *out_bytes = block;
  *out_size = fread(block, 1, (size_t)size, file);
  return *out_size == (size_t)size ? TORUS_OK : file_error("read", path);
}

/* |out_bytes| must be freed with torus_free, on failure too. */
static torus_status_t read_file(const char *path, char **out_bytes, size_t *out_size) {
  *out_bytes = NULL;
  *out_size = 0;
  FILE *file = fopen(path, "rb");
  if (!file) return file_error("open", path);
  torus_status_t status = read_open_file(file, path, out_bytes, out_size);
  fclose(file);
  return status;
}

static torus_status_t write_file(const char *path, const char *bytes, size_t size) {
  FILE *file = fopen(path, "wb");
  if (!file) return file_error("create", path);
  bool is_written = fwrite(bytes, 1, size, file) == size;
  if (fclose(file) != 0 || !is_written) return file_error("write", path);
  return TORUS_OK;
}

typedef torus_status_t (*extract_t)(const torus_binary_t *binary, char **out_bytes,
                                    size_t *out_size);

/* What the plugin does not give is left out: the file is not made. */
static torus_status_t save(const torus_binary_t *binary, extract_t extract, const char *path) {
  char *bytes;
  size_t size;
  if (path[0] == 0) return TORUS_OK;
  torus_status_t status = extract(binary, &bytes, &size);
  if (torus_status_code(status) == TORUS_STATUS_UNIMPLEMENTED) {
    torus_status_ignore(status);
    return TORUS_OK;
  }
  TORUS_TRY(status);
  status = write_file(path, bytes, size);
  torus_free(bytes);
  return status;
}

/* ---- the work ---- */

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static torus_status_t open_topology(worker_t *worker, const char *name) {
  if (worker->topology && !strcmp(worker->topology_name, name)) return TORUS_OK;
  torus_topology_t *topology;
  TORUS_TRY(torus_topology_create(worker->plugin, name, &topology));
  torus_topology_destroy(worker->topology);
  worker->topology = topology;
  copy(worker->topology_name, sizeof worker->topology_name, name);
  return TORUS_OK;
}

static void put_device(FILE *file, const torus_topology_device_t *device) {
  char text[160];
  int size = snprintf(text, sizeof text, "%d %d %" PRId64, device->id, device->process_index,
                      device->core_on_chip);
  for (int i = 0; i < device->coord_count; i++) {
    size += snprintf(text + size, sizeof text - (size_t)size, " %" PRId64, device->coords[i]);
  }
  put_bytes(file, "device", text, (size_t)size);
}

static void describe(FILE *file, const torus_topology_t *topology) {
  size_t count = torus_topology_device_count(topology);
  put_text(file, "platform_version", torus_topology_platform_version(topology));
  if (count > 0) {
    put_text(file, "device_kind", torus_topology_device(topology, 0)->kind);
    put_int(file, "memory_limit", torus_topology_device(topology, 0)->memory_limit_bytes);
  }
  for (size_t i = 0; i < count; i++) put_device(file, torus_topology_device(topology, i));
}

static void put_memory(FILE *file, const torus_binary_t *binary) {
  torus_binary_memory_t memory;
  torus_status_t status = torus_binary_memory(binary, &memory);
  bool is_known = !status;
  torus_status_ignore(status);
  if (!is_known) return;
  put_int(file, "argument_bytes", memory.argument_bytes);
  put_int(file, "output_bytes", memory.output_bytes);
  put_int(file, "alias_bytes", memory.alias_bytes);
  put_int(file, "temporary_bytes", memory.temporary_bytes);
  put_int(file, "code_bytes", memory.code_bytes);
  if (memory.peak_bytes >= 0) put_int(file, "peak_bytes", memory.peak_bytes);
}

static torus_status_t compile_text(worker_t *worker, const request_t *request, const char *text,
                                   size_t size, torus_binary_t **out_binary) {
  torus_binary_options_t options = {
      .replica_count = request->replicas,
      .partition_count = request->partitions,
      .use_shardy = request->use_shardy,
      .overrides = request->overrides,
      .free_results = request->free_results,
  };
  return torus_binary_compile(worker->topology, text, size, &options, out_binary);
}

static torus_status_t compile(worker_t *worker, const request_t *request,
                              torus_binary_t **out_binary, double *out_seconds) {
  char *text;
  size_t size;
  torus_status_t status = read_file(request->text, &text, &size);
  double start = now();
  if (!status) status = compile_text(worker, request, text, size, out_binary);
  *out_seconds = now() - start;
  torus_free(text);
  if (!status) status = save(*out_binary, torus_binary_serialize, request->serialized);
  if (!status) status = save(*out_binary, torus_binary_optimized, request->optimized);
  return status;
}

static void put_status(FILE *file, torus_status_t status) {
  put_text(file, "status", torus_status_code_name(torus_status_code(status)));
  if (status) put_text(file, "message", torus_status_message(status));
}

static void answer(worker_t *worker, const request_t *request, torus_status_t status) {
  torus_binary_t *binary = NULL;
  double seconds = 0;
  if (!status) status = open_topology(worker, request->topology);
  if (!status && request->text[0]) status = compile(worker, request, &binary, &seconds);
  put_status(worker->answers, status);
  if (!status && !binary) describe(worker->answers, worker->topology);
  if (!status && binary) {
    put_real(worker->answers, "seconds", seconds);
    put_memory(worker->answers, binary);
    torus_status_ignore(torus_binary_costs(binary, put_cost, worker->answers));
  }
  torus_status_free(status);
  torus_binary_destroy(binary);
  fprintf(worker->answers, "end\n");
  fflush(worker->answers);
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: torus-compile PLUGIN   (requests on standard input)\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* a compilation may take minutes: nobody waits for it then */
  worker_t worker = {.plugin = argv[1], .answers = fdopen(dup(STDOUT_FILENO), "wb")};
  if (!worker.answers || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return 1;
  request_t request;
  torus_status_t status;
  while (read_request(&request, &status)) answer(&worker, &request, status);
  /* The plugin's exit handlers may wait for threads of its own: there is nothing left to save. */
  fflush(worker.answers);
  _exit(0);
}
