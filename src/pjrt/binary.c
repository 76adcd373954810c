/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Programs compiled for a topology. */
#include <string.h>

#include "pjrt/internal.h"
#include "torus/memory.h"
#include "torus/topology.h"

struct torus_binary {
  torus_topology_t *topology;  /* outlives the binary */
  PJRT_Executable *executable; /* owned */
};

static torus_status_t compile(torus_binary_t *binary, const PJRT_Program *program,
                              const torus_binary_options_t *options) {
  const PJRT_Api *api = binary->topology->api;
  torus_strbuf_t encoded = {0};
  torus_pjrt_build_t build = {
      .replica_count = options->replica_count,
      .partition_count = options->partition_count,
      .use_shardy = options->use_shardy,
      .free_results = options->free_results,
  };
  TORUS_PJRT_ARGS(PJRT_Compile, args);
  args.topology = binary->topology->topology;
  args.program = program;
  torus_status_t status = torus_pjrt_options_check(options->overrides);
  if (!status) status = torus_pjrt_options_encode(&build, options->overrides, 0, &encoded);
  args.compile_options = encoded.data;
  args.compile_options_size = encoded.size;
  if (!status) status = torus_pjrt_status(api, api->PJRT_Compile(&args));
  torus_strbuf_deinit(&encoded);
  binary->executable = args.executable;
  return status;
}

static torus_status_t check_counts(const torus_topology_t *topology,
                                   const torus_binary_options_t *options) {
  int64_t wanted = (int64_t)options->replica_count * options->partition_count;
  if (options->replica_count > 0 && options->partition_count > 0 &&
      wanted <= (int64_t)topology->device_count) {
    return TORUS_OK;
  }
  return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                           "%d replicas of %d partitions do not fit on %zu devices",
                           options->replica_count, options->partition_count,
                           topology->device_count);
}

torus_status_t torus_binary_compile(torus_topology_t *topology, const char *text,
                                    size_t text_bytes, const torus_binary_options_t *options,
                                    torus_binary_t **out_binary) {
  *out_binary = NULL;
  TORUS_TRY(check_counts(topology, options));
  void *block;
  TORUS_TRY(torus_try_alloc(sizeof(torus_binary_t), &block));
  torus_binary_t *binary = block;
  binary->topology = topology;
  PJRT_Program program = torus_pjrt_program(text, text_bytes);
  torus_status_t status = compile(binary, &program, options);
  if (!status) {
    *out_binary = binary;
    binary = NULL;
  }
  torus_binary_destroy(binary);
  return status;
}

void torus_binary_destroy(torus_binary_t *binary) {
  if (!binary) return;
  if (binary->executable) torus_pjrt_executable_destroy(binary->topology->api, binary->executable);
  torus_free(binary);
}

static torus_status_t unimplemented(const char *what) {
  return torus_status_make(TORUS_STATUS_UNIMPLEMENTED, "the plugin gives no %s", what);
}

torus_status_t torus_binary_memory(const torus_binary_t *binary,
                                   torus_binary_memory_t *out_memory) {
  const PJRT_Api *api = binary->topology->api;
  *out_memory = (torus_binary_memory_t){0};
  if (!TORUS_PJRT_HAS(api, PJRT_Executable_GetCompiledMemoryStats)) {
    return unimplemented("memory figures");
  }
  TORUS_PJRT_ARGS(PJRT_Executable_GetCompiledMemoryStats, args);
  args.executable = binary->executable;
  args.peak_memory_in_bytes = -1;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_Executable_GetCompiledMemoryStats(&args)));
  *out_memory = (torus_binary_memory_t){
      .argument_bytes = args.argument_size_in_bytes,
      .output_bytes = args.output_size_in_bytes,
      .alias_bytes = args.alias_size_in_bytes,
      .temporary_bytes = args.temp_size_in_bytes,
      .code_bytes = args.generated_code_size_in_bytes,
      .peak_bytes = args.peak_memory_in_bytes,
  };
  return TORUS_OK;
}

torus_status_t torus_binary_costs(const torus_binary_t *binary,
                                  void (*visit)(void *context, const char *name, size_t name_bytes,
                                                double value),
                                  void *context) {
  const PJRT_Api *api = binary->topology->api;
  if (!TORUS_PJRT_HAS(api, PJRT_Executable_GetCostAnalysis)) return unimplemented("cost figures");
  TORUS_PJRT_ARGS(PJRT_Executable_GetCostAnalysis, args);
  args.executable = binary->executable;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_Executable_GetCostAnalysis(&args)));
  for (size_t i = 0; i < args.num_properties; i++) {
    const PJRT_NamedValue *property = &args.properties[i];
    if (property->type == PJRT_NamedValue_kFloat) {
      visit(context, property->name, property->name_size, (double)property->float_value);
    } else if (property->type == PJRT_NamedValue_kInt64) {
      visit(context, property->name, property->name_size, (double)property->int64_value);
    }
  }
  return TORUS_OK;
}

torus_status_t torus_binary_serialize(const torus_binary_t *binary, char **out_bytes,
                                      size_t *out_size) {
  *out_bytes = NULL;
  *out_size = 0;
  const PJRT_Api *api = binary->topology->api;
  if (!TORUS_PJRT_HAS(api, PJRT_Executable_Serialize)) return unimplemented("serialized form");
  return torus_pjrt_executable_serialize(api, binary->executable, out_bytes, out_size);
}

torus_status_t torus_binary_optimized(const torus_binary_t *binary, char **out_bytes,
                                      size_t *out_size) {
  return torus_pjrt_executable_optimized(binary->topology->api, binary->executable, out_bytes,
                                         out_size);
}
