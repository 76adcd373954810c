/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Programs that run on several devices at once. */
#include <string.h>

#include "pjrt/internal.h"
#include "torus/memory.h"

typedef struct result_type {
  torus_dtype_t dtype;
  int rank;
  int64_t dims[TORUS_PJRT_MAX_RANK];
} result_type_t;

struct torus_partition {
  torus_sharding_t *mesh;
  bool has_replicas;
  size_t argument_count, result_count;
  torus_sharding_t **arguments; /* NULL entries: replicated; owned, as are the lists below */
  torus_sharding_t **results;   /* no NULL entries once the program is compiled */
  result_type_t *types;         /* of the results */
  char *free_results;           /* '1' where the compiler chooses */
  int *device_ids;              /* as the plugin numbers its devices */
};

static void release_list(torus_sharding_t **list, size_t count) {
  for (size_t i = 0; list && i < count; i++) torus_sharding_release(list[i]);
  torus_free(list);
}

void torus_pjrt_partition_destroy(torus_partition_t *partition) {
  if (!partition) return;
  release_list(partition->arguments, partition->argument_count);
  release_list(partition->results, partition->result_count);
  torus_sharding_release(partition->mesh);
  torus_free(partition->types);
  torus_free(partition->free_results);
  torus_free(partition->device_ids);
  torus_free(partition);
}

static torus_status_t copy_list(torus_sharding_t *const *list, size_t count,
                                torus_sharding_t ***out_list) {
  void *block;
  TORUS_TRY(torus_try_alloc((count + 1) * sizeof(torus_sharding_t *), &block));
  *out_list = block;
  for (size_t i = 0; i < count; i++) (*out_list)[i] = torus_sharding_retain(list[i]);
  return TORUS_OK;
}

static torus_status_t copy_types(const torus_partitioning_t *partitioning,
                                 torus_partition_t *partition) {
  void *block;
  TORUS_TRY(
      torus_try_alloc((partitioning->result_count + 1) * sizeof(result_type_t), &block));
  partition->types = block;
  for (size_t i = 0; i < partitioning->result_count; i++) {
    const torus_array_t *array = &partitioning->results[i];
    TORUS_TRY(torus_pjrt_check_array(array->dtype, array->rank, array->dims));
    partition->types[i].dtype = array->dtype;
    partition->types[i].rank = array->rank;
    for (int d = 0; d < array->rank; d++) partition->types[i].dims[d] = array->dims[d];
  }
  return TORUS_OK;
}

static torus_status_t check_meshes(const torus_partitioning_t *partitioning) {
  for (size_t i = 0; i < partitioning->argument_count; i++) {
    const torus_sharding_t *sharding = partitioning->arguments[i];
    if (!sharding || torus_sharding_shares_mesh(sharding, partitioning->mesh)) continue;
    return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                             "arguments of one program lie on different meshes");
  }
  return TORUS_OK;
}

static torus_status_t fill(torus_partition_t *partition,
                           const torus_partitioning_t *partitioning) {
  void *block;
  partition->mesh = torus_sharding_retain(partitioning->mesh);
  partition->has_replicas = partitioning->has_replicas;
  partition->argument_count = partitioning->argument_count;
  partition->result_count = partitioning->result_count;
  TORUS_TRY(copy_list(partitioning->arguments, partition->argument_count, &partition->arguments));
  TORUS_TRY(copy_list(partitioning->wanted, partition->result_count, &partition->results));
  TORUS_TRY(copy_types(partitioning, partition));
  TORUS_TRY(torus_try_alloc(partition->result_count + 1, &block));
  partition->free_results = block;
  for (size_t i = 0; i < partition->result_count; i++) {
    partition->free_results[i] = partition->results[i] ? '0' : '1';
  }
  return TORUS_OK;
}

torus_status_t torus_pjrt_partition_new(const torus_partitioning_t *partitioning,
                                        torus_partition_t **out_partition) {
  *out_partition = NULL;
  TORUS_TRY(check_meshes(partitioning));
  void *block;
  TORUS_TRY(torus_try_alloc(sizeof(torus_partition_t), &block));
  torus_partition_t *partition = block;
  torus_status_t status = fill(partition, partitioning);
  if (!status) {
    *out_partition = partition;
    partition = NULL;
  }
  torus_pjrt_partition_destroy(partition);
  return status;
}

static torus_status_t device_id(const torus_client_t *client, int device, int *out_id) {
  const PJRT_Api *api = client->api;
  *out_id = device;
  if (!TORUS_PJRT_HAS(api, PJRT_Device_GetDescription) ||
      !TORUS_PJRT_HAS(api, PJRT_DeviceDescription_Id)) {
    return TORUS_OK;
  }
  TORUS_PJRT_ARGS(PJRT_Device_GetDescription, description);
  description.device = client->devices[device];
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_Device_GetDescription(&description)));
  TORUS_PJRT_ARGS(PJRT_DeviceDescription_Id, args);
  args.device_description = description.device_description;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_DeviceDescription_Id(&args)));
  *out_id = args.id;
  return TORUS_OK;
}

torus_status_t torus_pjrt_partition_build(const torus_client_t *client,
                                          torus_partition_t *partition,
                                          torus_pjrt_build_t *out_build) {
  const torus_sharding_t *mesh = partition->mesh;
  if (!partition->device_ids) {
    void *block;
    TORUS_TRY(torus_try_alloc((size_t)mesh->device_count * sizeof(int), &block));
    partition->device_ids = block;
  }
  for (int i = 0; i < mesh->device_count; i++) {
    TORUS_TRY(torus_pjrt_check_device(client, mesh->devices[i]));
    TORUS_TRY(device_id(client, mesh->devices[i], &partition->device_ids[i]));
  }
  *out_build = (torus_pjrt_build_t){
      .replica_count = partition->has_replicas ? mesh->device_count : 1,
      .partition_count = partition->has_replicas ? 1 : mesh->device_count,
      .device_ids = partition->device_ids,
      .free_results = partition->has_replicas ? NULL : partition->free_results,
  };
  return TORUS_OK;
}

/* ---- results ---- */

static torus_status_t read_results(torus_executable_t *executable, const int *ranks,
                                   torus_sharding_t **out_results) {
  torus_partition_t *partition = executable->partition;
  char *bytes;
  size_t size;
  TORUS_TRY(torus_executable_optimized(executable, &bytes, &size));
  torus_status_t status = torus_pjrt_sharding_read_results(
      bytes, size, partition->mesh, partition->result_count, ranks, out_results);
  torus_free(bytes);
  return status;
}

static torus_status_t learn_with(torus_executable_t *executable, int *ranks,
                                 torus_sharding_t **results) {
  torus_partition_t *partition = executable->partition;
  for (size_t i = 0; i < partition->result_count; i++) ranks[i] = partition->types[i].rank;
  TORUS_TRY(read_results(executable, ranks, results));
  for (size_t i = 0; i < partition->result_count; i++) {
    torus_sharding_release(partition->results[i]);
    partition->results[i] = results[i];
  }
  return TORUS_OK;
}

static torus_status_t replicate_rest(torus_partition_t *partition) {
  for (size_t i = 0; i < partition->result_count; i++) {
    if (partition->results[i]) continue;
    TORUS_TRY(torus_sharding_replicated(partition->mesh, partition->types[i].rank,
                                        &partition->results[i]));
  }
  return TORUS_OK;
}

/* Without a choice of the compiler's, every result is known already. */
torus_status_t torus_pjrt_partition_learn(torus_executable_t *executable) {
  torus_partition_t *partition = executable->partition;
  if (!strchr(partition->free_results, '1')) return TORUS_OK;
  void *block;
  size_t room = partition->result_count + 1;
  TORUS_TRY(torus_try_alloc(room * (sizeof(torus_sharding_t *) + sizeof(int)), &block));
  torus_sharding_t **results = block;
  torus_status_t status = learn_with(executable, (int *)(results + room), results);
  torus_free(block);
  if (torus_status_code(status) != TORUS_STATUS_UNIMPLEMENTED) return status;
  memset(partition->free_results, '0', partition->result_count);
  torus_status_t failure = replicate_rest(partition);
  if (!failure) return status;
  torus_status_ignore(status);
  return failure;
}

torus_sharding_t *torus_executable_argument_sharding(const torus_executable_t *executable,
                                                     size_t index) {
  const torus_partition_t *partition = executable->partition;
  return partition && index < partition->argument_count ? partition->arguments[index] : NULL;
}

torus_sharding_t *torus_executable_result_sharding(const torus_executable_t *executable,
                                                   size_t index) {
  const torus_partition_t *partition = executable->partition;
  return partition && index < partition->result_count ? partition->results[index] : NULL;
}

/* ---- running ---- */

/* What one run hands to the plugin: for each partition its list of arguments, then of results. */
typedef struct lists {
  int partition_count;
  size_t argument_count, result_count;
  PJRT_Buffer **arguments;            /* all partitions' after one another */
  PJRT_Buffer **results;              /* likewise */
  PJRT_Buffer *const **argument_rows; /* where each partition's begin */
  PJRT_Buffer ***result_rows;
  torus_buffer_t **made;              /* arguments laid out for this run; NULL entries: none */
  void *block;
} lists_t;

static torus_status_t lists_init(lists_t *lists, int partition_count, size_t argument_count,
                                 size_t result_count) {
  size_t n = (size_t)partition_count;
  *lists = (lists_t){partition_count, argument_count, result_count, NULL, NULL,
                     NULL,            NULL,           NULL,         NULL};
  size_t pointers = n * (argument_count + result_count + 2) + argument_count;
  TORUS_TRY(torus_try_alloc((pointers + 1) * sizeof(void *), &lists->block));
  lists->arguments = lists->block;
  lists->results = lists->arguments + n * argument_count;
  lists->argument_rows = (PJRT_Buffer *const **)(lists->results + n * result_count);
  lists->result_rows = (PJRT_Buffer ***)(lists->argument_rows + n);
  lists->made = (torus_buffer_t **)(lists->result_rows + n);
  for (size_t i = 0; i < n; i++) {
    lists->argument_rows[i] = lists->arguments + i * argument_count;
    lists->result_rows[i] = lists->results + i * result_count;
  }
  return TORUS_OK;
}

static void lists_deinit(lists_t *lists) {
  for (size_t i = 0; lists->made && i < lists->argument_count; i++) {
    torus_buffer_release(lists->made[i]);
  }
  torus_free(lists->block);
}

static bool lies_as(const torus_partition_t *partition, const torus_buffer_t *buffer,
                    const torus_sharding_t *wanted) {
  const torus_sharding_t *own = torus_buffer_sharding(buffer);
  if (!own || !torus_sharding_shares_mesh(own, partition->mesh)) return false;
  return wanted ? torus_sharding_equal(own, wanted) : torus_sharding_is_replicated(own);
}

static torus_status_t rank_of(torus_buffer_t *buffer, int *out_rank) {
  torus_array_t array;
  TORUS_TRY(torus_pjrt_array_of(buffer->client, buffer->buffer, &array));
  *out_rank = array.rank;
  return TORUS_OK;
}

static torus_status_t lay_out(const torus_partition_t *partition, torus_buffer_t *buffer,
                              torus_sharding_t *wanted, torus_buffer_t **out_buffer) {
  if (wanted) return torus_buffer_lay_out(buffer, wanted, 0, out_buffer);
  torus_sharding_t *everywhere;
  int rank = buffer->shards ? buffer->shards->sharding->rank : 0;
  if (!buffer->shards) TORUS_TRY(rank_of(buffer, &rank));
  TORUS_TRY(torus_sharding_replicated(partition->mesh, rank, &everywhere));
  torus_status_t status = torus_buffer_lay_out(buffer, everywhere, 0, out_buffer);
  torus_sharding_release(everywhere);
  return status;
}

static torus_status_t fill_arguments(const torus_partition_t *partition, lists_t *lists,
                                     torus_buffer_t *const *arguments) {
  for (size_t i = 0; i < lists->argument_count; i++) {
    torus_sharding_t *wanted = i < partition->argument_count ? partition->arguments[i] : NULL;
    torus_buffer_t *buffer = arguments[i];
    if (!lies_as(partition, buffer, wanted)) {
      TORUS_TRY(lay_out(partition, buffer, wanted, &lists->made[i]));
      buffer = lists->made[i];
    }
    for (int k = 0; k < lists->partition_count; k++) {
      lists->arguments[(size_t)k * lists->argument_count + i] = buffer->shards->parts[k];
    }
  }
  return TORUS_OK;
}

static torus_status_t make_results(torus_executable_t *executable, torus_buffer_t **out_results) {
  const torus_partition_t *partition = executable->partition;
  for (size_t i = 0; i < partition->result_count; i++) {
    const result_type_t *type = &partition->types[i];
    torus_array_t array = {type->dtype, type->rank, type->dims};
    TORUS_TRY(torus_pjrt_shards_new(executable->client, &array, partition->results[i],
                                    &out_results[i]));
  }
  return TORUS_OK;
}

static torus_status_t execute(torus_executable_t *executable, lists_t *lists) {
  const PJRT_Api *api = executable->client->api;
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  TORUS_PJRT_ARGS(PJRT_LoadedExecutable_Execute, args);
  args.executable = executable->loaded;
  args.options = &options;
  args.argument_lists = lists->argument_rows;
  args.num_devices = (size_t)lists->partition_count;
  args.num_args = lists->argument_count;
  args.output_lists = lists->result_rows;
  return torus_pjrt_status(api, api->PJRT_LoadedExecutable_Execute(&args));
}

static torus_status_t run_with_lists(torus_executable_t *executable, lists_t *lists,
                                     torus_buffer_t *const *arguments,
                                     torus_buffer_t **out_results) {
  TORUS_TRY(fill_arguments(executable->partition, lists, arguments));
  TORUS_TRY(make_results(executable, out_results));
  TORUS_TRY(execute(executable, lists));
  for (size_t i = 0; i < lists->result_count; i++) {
    for (int k = 0; k < lists->partition_count; k++) {
      out_results[i]->shards->parts[k] = lists->results[(size_t)k * lists->result_count + i];
    }
  }
  return TORUS_OK;
}

torus_status_t torus_pjrt_partition_run(torus_executable_t *executable,
                                        torus_buffer_t *const *arguments, size_t argument_count,
                                        torus_buffer_t **out_results) {
  lists_t lists;
  TORUS_TRY(lists_init(&lists, executable->partition->mesh->device_count, argument_count,
                       executable->result_count));
  torus_status_t status = run_with_lists(executable, &lists, arguments, out_results);
  lists_deinit(&lists);
  return status;
}
