/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Compiled programs. Every one is portable: the device is named at each run. */
#include <string.h>

#include "pjrt/internal.h"
#include "torus/memory.h"

/* Programs with no more arguments or results than this run without an allocation for lists. */
#define INLINE_COUNT 32

static torus_status_t executable_new(torus_client_t *client, int device,
                                     torus_executable_t **out_executable) {
  void *block;
  *out_executable = NULL;
  TORUS_TRY(torus_try_alloc(sizeof(torus_executable_t), &block));
  torus_executable_t *executable = block;
  atomic_init(&executable->references, 1);
  executable->device = device;
  executable->client = client;
  *out_executable = executable;
  return TORUS_OK;
}

/* |out_program| must be destroyed with torus_pjrt_executable_destroy. */
static torus_status_t program_of(const torus_executable_t *executable,
                                 PJRT_Executable **out_program) {
  const PJRT_Api *api = executable->client->api;
  TORUS_PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable, args);
  args.loaded_executable = executable->loaded;
  *out_program = NULL;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_LoadedExecutable_GetExecutable(&args)));
  *out_program = args.executable;
  return TORUS_OK;
}

static torus_status_t read_result_count(torus_executable_t *executable) {
  const PJRT_Api *api = executable->client->api;
  PJRT_Executable *program;
  TORUS_TRY(program_of(executable, &program));
  TORUS_PJRT_ARGS(PJRT_Executable_NumOutputs, args);
  args.executable = program;
  torus_status_t status = torus_pjrt_status(api, api->PJRT_Executable_NumOutputs(&args));
  if (!status) executable->result_count = args.num_outputs;
  torus_pjrt_executable_destroy(api, program);
  return status;
}

static torus_status_t encode_options(torus_executable_t *executable, const char *options_text,
                                     torus_strbuf_t *out) {
  torus_client_t *client = executable->client;
  torus_pjrt_build_t build = TORUS_PJRT_BUILD_ONE;
  if (executable->partition) {
    TORUS_TRY(torus_pjrt_partition_build(client, executable->partition, &build));
  }
  return torus_pjrt_options_encode(&build, options_text, atomic_load(&client->refused_options),
                                   out);
}

static torus_status_t compile_once(torus_executable_t *executable, const PJRT_Program *program,
                                   const char *options_text) {
  torus_client_t *client = executable->client;
  torus_strbuf_t options = {0};
  TORUS_PJRT_ARGS(PJRT_Client_Compile, args);
  args.client = client->client;
  args.program = program;
  torus_status_t status = encode_options(executable, options_text, &options);
  args.compile_options = options.data;
  args.compile_options_size = options.size;
  if (!status) status = torus_pjrt_status(client->api, client->api->PJRT_Client_Compile(&args));
  torus_strbuf_deinit(&options);
  executable->loaded = args.executable;
  return status;
}

/* Compilers gain and lose options: one the plugin does not know is left out from then on. */
static torus_status_t compile_program(torus_executable_t *executable, const PJRT_Program *program,
                                      const char *options_text) {
  for (;;) {
    torus_status_t status = compile_once(executable, program, options_text);
    if (!status) return TORUS_OK;
    int refused = torus_pjrt_options_find_refused(options_text, torus_status_message(status));
    if (refused < 0) return status;
    uint32_t bit = UINT32_C(1) << refused;
    uint32_t before = atomic_fetch_or(&executable->client->refused_options, bit);
    if (before & bit) return status;
    torus_status_ignore(status);
  }
}

torus_status_t torus_executable_compile(torus_client_t *client, int device, const char *text,
                                        size_t text_bytes, torus_effort_t effort,
                                        torus_executable_t **out_executable) {
  *out_executable = NULL;
  TORUS_TRY(torus_pjrt_check_device(client, device));
  torus_executable_t *executable;
  TORUS_TRY(executable_new(client, device, &executable));
  PJRT_Program program = torus_pjrt_program(text, text_bytes);
  torus_status_t status =
      compile_program(executable, &program, torus_pjrt_options_text(client->is_cpu, effort));
  if (!status) status = read_result_count(executable);
  if (!status) {
    *out_executable = executable;
    executable = NULL;
  }
  torus_executable_release(executable);
  return torus_status_annotate(status, "compilation");
}

static void unload(torus_executable_t *executable) {
  if (!executable->loaded) return;
  const PJRT_Api *api = executable->client->api;
  TORUS_PJRT_ARGS(PJRT_LoadedExecutable_Destroy, args);
  args.executable = executable->loaded;
  torus_status_ignore(torus_pjrt_status(api, api->PJRT_LoadedExecutable_Destroy(&args)));
  executable->loaded = NULL;
}

/* A program some of whose results lie in no way that has a name is compiled again with those on
 * every device. */
static torus_status_t compile_partitioned(torus_executable_t *executable,
                                          const PJRT_Program *program, const char *options_text) {
  TORUS_TRY(compile_program(executable, program, options_text));
  TORUS_TRY(read_result_count(executable));
  torus_status_t status = torus_pjrt_partition_learn(executable);
  if (torus_status_code(status) != TORUS_STATUS_UNIMPLEMENTED) return status;
  torus_status_ignore(status);
  unload(executable);
  return compile_program(executable, program, options_text);
}

torus_status_t torus_executable_compile_partitioned(torus_client_t *client, const char *text,
                                                    size_t text_bytes, torus_effort_t effort,
                                                    const torus_partitioning_t *partitioning,
                                                    torus_executable_t **out_executable) {
  torus_executable_t *executable;
  TORUS_TRY(executable_new(client, partitioning->mesh->devices[0], &executable));
  *out_executable = NULL;
  PJRT_Program program = torus_pjrt_program(text, text_bytes);
  torus_status_t status = torus_pjrt_partition_new(partitioning, &executable->partition);
  if (!status) {
    status = compile_partitioned(executable, &program,
                                 torus_pjrt_options_text(client->is_cpu, effort));
  }
  if (!status) {
    *out_executable = executable;
    executable = NULL;
  }
  torus_executable_release(executable);
  return torus_status_annotate(status, "compilation for several devices");
}

/* The lists that one run hands to the plugin: in |inline_lists|, or in |block| when they are
 * long. */
typedef struct run_lists {
  PJRT_Buffer **arguments;
  PJRT_Buffer **results;
  void *block;
  PJRT_Buffer *inline_lists[2 * INLINE_COUNT];
} run_lists_t;

static torus_status_t lists_init(run_lists_t *lists, size_t argument_count, size_t result_count) {
  lists->block = NULL;
  lists->arguments = lists->inline_lists;
  lists->results = lists->inline_lists + INLINE_COUNT;
  if (argument_count <= INLINE_COUNT && result_count <= INLINE_COUNT) return TORUS_OK;
  TORUS_TRY(torus_try_alloc((argument_count + result_count) * sizeof(void *), &lists->block));
  lists->arguments = lists->block;
  lists->results = lists->arguments + argument_count;
  return TORUS_OK;
}

static torus_status_t fill_arguments(run_lists_t *lists, torus_buffer_t *const *arguments,
                                     size_t argument_count, int device) {
  for (size_t i = 0; i < argument_count; i++) {
    if (arguments[i]->device != device) {
      return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                               "argument %zu is on device %d, but the program runs on device %d", i,
                               (int)arguments[i]->device, device);
    }
    if (arguments[i]->shards) {
      return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                               "argument %zu lies on several devices, but the program runs on one",
                               i);
    }
    lists->arguments[i] = arguments[i]->buffer;
  }
  return TORUS_OK;
}

/* No completion event is asked for: errors of the run come with the results. */
static torus_status_t execute(torus_executable_t *executable, int device, run_lists_t *lists,
                              size_t argument_count) {
  torus_client_t *client = executable->client;
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  PJRT_Buffer *const *argument_lists[1] = {lists->arguments};
  PJRT_Buffer **result_lists[1] = {lists->results};
  TORUS_PJRT_ARGS(PJRT_LoadedExecutable_Execute, args);
  args.executable = executable->loaded;
  args.options = &options;
  args.argument_lists = argument_lists;
  args.num_devices = 1;
  args.num_args = argument_count;
  args.output_lists = result_lists;
  args.execute_device = client->devices[device];
  return torus_pjrt_status(client->api, client->api->PJRT_LoadedExecutable_Execute(&args));
}

/* The handles of the results exist before the run: afterwards nothing may fail any more, for
 * donated arguments would be gone. */
static torus_status_t make_results(torus_client_t *client, int device, size_t result_count,
                                   torus_buffer_t **out_results) {
  for (size_t i = 0; i < result_count; i++) {
    TORUS_TRY(torus_pjrt_buffer_new(client, device, &out_results[i]));
  }
  return TORUS_OK;
}

static torus_status_t run_with_lists(torus_executable_t *executable, int device,
                                     run_lists_t *lists, torus_buffer_t *const *arguments,
                                     size_t argument_count, torus_buffer_t **out_results) {
  size_t result_count = executable->result_count;
  TORUS_TRY(fill_arguments(lists, arguments, argument_count, device));
  TORUS_TRY(make_results(executable->client, device, result_count, out_results));
  TORUS_TRY(execute(executable, device, lists, argument_count));
  for (size_t i = 0; i < result_count; i++) out_results[i]->buffer = lists->results[i];
  return TORUS_OK;
}

static torus_status_t run_alone(torus_executable_t *executable, int device,
                                torus_buffer_t *const *arguments, size_t argument_count,
                                torus_buffer_t **out_results) {
  run_lists_t lists;
  TORUS_TRY(lists_init(&lists, argument_count, executable->result_count));
  torus_status_t status =
      run_with_lists(executable, device, &lists, arguments, argument_count, out_results);
  torus_free(lists.block);
  return status;
}

torus_status_t torus_executable_run_on(torus_executable_t *executable, int device,
                                       torus_buffer_t *const *arguments, size_t argument_count,
                                       size_t result_count, torus_buffer_t **out_results) {
  for (size_t i = 0; i < result_count; i++) out_results[i] = NULL;
  if (result_count != executable->result_count) {
    return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                             "the program has %zu results, but %zu were asked for",
                             executable->result_count, result_count);
  }
  TORUS_TRY(torus_pjrt_check_device(executable->client, device));
  torus_status_t status =
      executable->partition
          ? torus_pjrt_partition_run(executable, arguments, argument_count, out_results)
          : run_alone(executable, device, arguments, argument_count, out_results);
  if (!status) return TORUS_OK;
  for (size_t i = 0; i < result_count; i++) {
    torus_buffer_release(out_results[i]);
    out_results[i] = NULL;
  }
  return torus_status_annotate(status, "execution");
}

torus_status_t torus_executable_run(torus_executable_t *executable,
                                    torus_buffer_t *const *arguments, size_t argument_count,
                                    size_t result_count, torus_buffer_t **out_results) {
  int device = argument_count ? arguments[0]->device : executable->device;
  return torus_executable_run_on(executable, device, arguments, argument_count, result_count,
                                 out_results);
}

static torus_status_t unimplemented(const torus_client_t *client, const char *action) {
  return torus_status_make(TORUS_STATUS_UNIMPLEMENTED, "PJRT plugin '%s' cannot %s programs",
                           client->plugin_path, action);
}

torus_status_t torus_executable_serialize(torus_executable_t *executable, char **out_bytes,
                                          size_t *out_size) {
  *out_bytes = NULL;
  *out_size = 0;
  const PJRT_Api *api = executable->client->api;
  if (!TORUS_PJRT_HAS(api, PJRT_Executable_Serialize)) {
    return unimplemented(executable->client, "serialize");
  }
  PJRT_Executable *program;
  TORUS_TRY(program_of(executable, &program));
  torus_status_t status = torus_pjrt_executable_serialize(api, program, out_bytes, out_size);
  torus_pjrt_executable_destroy(api, program);
  return torus_status_annotate(status, "serialization");
}

static torus_status_t deserialize(torus_executable_t *executable, const char *bytes, size_t size) {
  torus_client_t *client = executable->client;
  TORUS_PJRT_ARGS(PJRT_Executable_DeserializeAndLoad, args);
  args.client = client->client;
  args.serialized_executable = bytes;
  args.serialized_executable_size = size;
  TORUS_TRY(
      torus_pjrt_status(client->api, client->api->PJRT_Executable_DeserializeAndLoad(&args)));
  executable->loaded = args.loaded_executable;
  return read_result_count(executable);
}

torus_status_t torus_executable_load(torus_client_t *client, const char *bytes, size_t size,
                                     torus_executable_t **out_executable) {
  *out_executable = NULL;
  if (!TORUS_PJRT_HAS(client->api, PJRT_Executable_DeserializeAndLoad)) {
    return unimplemented(client, "load serialized");
  }
  torus_executable_t *executable;
  TORUS_TRY(executable_new(client, 0, &executable));
  torus_status_t status = deserialize(executable, bytes, size);
  if (!status) {
    *out_executable = executable;
    executable = NULL;
  }
  torus_executable_release(executable);
  return torus_status_annotate(status, "loading of a serialized program");
}

torus_status_t torus_executable_load_partitioned(torus_client_t *client, const char *bytes,
                                                 size_t size,
                                                 const torus_partitioning_t *partitioning,
                                                 torus_executable_t **out_executable) {
  *out_executable = NULL;
  if (!TORUS_PJRT_HAS(client->api, PJRT_Executable_DeserializeAndLoad)) {
    return unimplemented(client, "load serialized");
  }
  torus_executable_t *executable;
  TORUS_TRY(executable_new(client, partitioning->mesh->devices[0], &executable));
  torus_status_t status = torus_pjrt_partition_new(partitioning, &executable->partition);
  if (!status) status = deserialize(executable, bytes, size);
  if (!status) status = torus_pjrt_partition_learn(executable);
  if (!status) {
    *out_executable = executable;
    executable = NULL;
  }
  torus_executable_release(executable);
  return torus_status_annotate(status, "loading of a serialized program");
}

torus_status_t torus_executable_optimized(torus_executable_t *executable, char **out_bytes,
                                          size_t *out_size) {
  *out_bytes = NULL;
  *out_size = 0;
  PJRT_Executable *program;
  TORUS_TRY(program_of(executable, &program));
  torus_status_t status = torus_pjrt_executable_optimized(executable->client->api, program,
                                                          out_bytes, out_size);
  torus_pjrt_executable_destroy(executable->client->api, program);
  return status;
}

torus_executable_t *torus_executable_retain(torus_executable_t *executable) {
  if (executable) atomic_fetch_add_explicit(&executable->references, 1, memory_order_relaxed);
  return executable;
}

void torus_executable_release(torus_executable_t *executable) {
  if (!executable) return;
  if (atomic_fetch_sub_explicit(&executable->references, 1, memory_order_acq_rel) != 1) return;
  unload(executable);
  torus_pjrt_partition_destroy(executable->partition);
  torus_free(executable);
}
