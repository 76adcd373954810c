/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Running a capture again: the storages' contents go in, new ones come out. */
#include <string.h>

#include "engine/capture_internal.h"

/* ---- compiling, on the worker ---- */

static torus_capture_source_t source_of(torus_capture_t *capture, const torus_job_t *job,
                                        size_t input) {
  torus_capture_source_t source = {.kind = TORUS_SOURCE_CONSTANT, .value = capture->inputs[input]};
  if (capture->random != HLO_NONE && capture->random_input == input) {
    source.kind = TORUS_SOURCE_RANDOM;
  }
  const torus_capture_binding_t *read = torus_capture_find_read(capture, input);
  if (read != NULL) {
    source.kind = TORUS_SOURCE_STORAGE;
    source.storage = read->storage;
  }
  source.alias = job->aliases[input];
  return source;
}

torus_status_t torus_capture_keep_sources(torus_capture_t *capture, const torus_job_t *job,
                                          const hlo_encoding_t *encoding) {
  void *block;
  TORUS_TRY(torus_try_alloc((encoding->parameter_count + 1) * sizeof *capture->sources, &block));
  capture->sources = block;
  capture->source_count = encoding->parameter_count;
  for (size_t i = 0; i < encoding->parameter_count; ++i) {
    capture->sources[i] = source_of(capture, job, (size_t)encoding->parameters[i]);
  }
  return TORUS_OK;
}

static torus_status_t keep_program(torus_capture_t *capture, const torus_job_t *job,
                                   const hlo_encoding_t *encoding, const torus_launch_t *launch) {
  const int64_t words = (int64_t)launch->soft_word_count;
  TORUS_TRY(torus_capture_keep_sources(capture, job, encoding));
  if (words == 0) return TORUS_OK;
  if (job->spread != NULL) return torus_spread_numbers(job, launch, &capture->softs);
  return torus_buffer_from_host(capture->engine->client, capture->device, launch->soft_words,
                                TORUS_DTYPE_U32, 1, &words, &capture->softs);
}

static torus_status_t prepare(torus_engine_t *engine, torus_job_t *job, hlo_encoding_t *encoding) {
  torus_launch_t launch;
  TORUS_TRY(hlo_encode(job->window.graph, job->outputs, job->output_count, encoding));
  TORUS_TRY(torus_program_cache_get(engine->cache, job, encoding, &launch));
  bool is_changed;
  torus_status_t status =
      torus_spread_close_loop(job, encoding, launch.executable, &is_changed);
  if (status != TORUS_OK || is_changed) {
    torus_executable_release(launch.executable);
    TORUS_TRY(status);
    TORUS_TRY(torus_program_cache_get(engine->cache, job, encoding, &launch));
  }
  job->capture->executable = launch.executable;
  return keep_program(job->capture, job, encoding, &launch);
}

void torus_capture_prepare(torus_engine_t *engine, torus_job_t *job) {
  hlo_encoding_t encoding = {0};
  job->capture->error = prepare(engine, job, &encoding);
  hlo_encoding_deinit(&encoding);
}

/* ---- running, on the worker ---- */

/* Arguments made for one run. */
typedef struct temporaries {
  torus_buffer_t **buffers;
  size_t count;
} temporaries_t;

static torus_status_t random_argument(torus_job_t *job, torus_buffer_t **out_buffer) {
  const int64_t two = 2;
  return torus_buffer_from_host(job->capture->engine->client, job->device, job->random,
                                TORUS_DTYPE_U64, 1, &two, out_buffer);
}

static torus_status_t argument(torus_job_t *job, const torus_capture_source_t *source,
                               torus_value_t *input, temporaries_t *made,
                               torus_buffer_t **out_buffer) {
  torus_status_t status = TORUS_OK;
  if (source->kind == TORUS_SOURCE_RANDOM) {
    status = random_argument(job, out_buffer);
  } else if (atomic_load(&input->state) == TORUS_VALUE_FAILED) {
    job->has_failed_input = true;
    return torus_status_clone(input->error);
  } else if (input->physical != NULL) {
    status = torus_value_exact_buffer(input, out_buffer);
  } else {
    *out_buffer = input->buffer;
    return TORUS_OK;
  }
  if (status == TORUS_OK) made->buffers[made->count++] = *out_buffer;
  return status;
}

static torus_status_t run_with(torus_job_t *job, temporaries_t *made, torus_buffer_t **arguments,
                               torus_buffer_t **results) {
  const torus_capture_t *capture = job->capture;
  size_t count = capture->source_count;
  for (size_t i = 0; i < count; ++i) {
    TORUS_TRY(argument(job, &capture->sources[i], job->window.inputs[i], made, &arguments[i]));
  }
  if (capture->softs != NULL) arguments[count++] = capture->softs;
  return torus_executable_run_on(capture->executable, job->device, arguments, count,
                                 job->output_count, results);
}

torus_status_t torus_capture_run(torus_engine_t *engine, torus_job_t *job, torus_buffer_t **results) {
  (void)engine;
  const size_t room = job->capture->source_count + 1;
  void *block;
  TORUS_TRY(torus_try_alloc(2 * room * sizeof(torus_buffer_t *), &block));
  temporaries_t made = {(torus_buffer_t **)block + room, 0};
  torus_status_t status = run_with(job, &made, block, results);
  while (made.count > 0) torus_buffer_release(made.buffers[--made.count]);
  torus_free(block);
  return status;
}

/* ---- what goes in ---- */

static bool fits(const torus_capture_source_t *source, const torus_value_t *value) {
  const torus_value_t *type = source->value;
  return atomic_load(&value->state) != TORUS_VALUE_ABSTRACT && value->dtype == type->dtype && value->rank == type->rank &&
         (value->rank == 0 ||
          memcmp(value->dims, type->dims, (size_t)value->rank * sizeof *value->dims) == 0);
}

/* Whether somebody besides the storage, and jobs that will have run by then, holds the value. */
static bool is_shared(const torus_value_t *value) { return torus_value_users(value) != 1; }

/* |value| (NULL: never written) as a value of the captured type that nobody else holds. */
static torus_status_t renewed(torus_device_t *device, const torus_value_t *type,
                              torus_value_t *value, torus_value_t **out_value) {
  hlo_graph_t *g = device->window.graph;
  hlo_t node;
  *out_value = NULL;
  if (value == NULL) {
    node = hlo_zeros(g, type->dtype, type->rank, type->dims);
  } else {
    node = torus_view_bitcast(g, hlo_flatten(g, torus_window_node(device, value)), type->dtype);
    node = hlo_reshape(g, node, type->rank, type->dims);
  }
  TORUS_TRY(hlo_graph_take_error(g));
  return torus_window_value(type->engine, type->device, node, out_value);
}

static torus_status_t renew(torus_device_t *device, const torus_capture_source_t *source) {
  torus_storage_t *storage = source->storage;
  torus_value_t *value;
  TORUS_TRY(torus_storage_fill_abstract(storage, NULL));
  TORUS_TRY(renewed(device, source->value, storage->value, &value));
  torus_storage_set(storage, value);
  torus_value_release(value);
  return TORUS_OK;
}

static torus_status_t check_size(const torus_storage_t *storage, const torus_value_t *type) {
  if (storage->size_bytes == torus_value_size_bytes(type)) return TORUS_OK;
  return torus_status_make(TORUS_STATUS_FAILED_PRECONDITION,
                           "a tensor of a captured graph has changed its size from %zu to %zu bytes; "
                           "capture the graph again",
                           torus_value_size_bytes(type), storage->size_bytes);
}

static torus_status_t renew_sources(torus_capture_t *capture, torus_device_t *device,
                                    bool *out_renewed) {
  *out_renewed = false;
  for (size_t i = 0; i < capture->source_count; ++i) {
    const torus_capture_source_t *source = &capture->sources[i];
    if (source->kind != TORUS_SOURCE_STORAGE) continue;
    TORUS_TRY(check_size(source->storage, source->value));
    const torus_value_t *value = source->storage->value;
    if (value != NULL && fits(source, value) &&
        !(source->alias >= 0 && is_shared(value))) {
      continue;
    }
    TORUS_TRY(renew(device, source));
    *out_renewed = true;
  }
  for (size_t i = 0; i < capture->output_count; ++i) {
    TORUS_TRY(check_size(capture->outputs[i].storage, capture->results[capture->outputs[i].index]));
  }
  return TORUS_OK;
}

/* ---- the job ---- */

/* The argument's value, retained. */
static torus_value_t *take_content(const torus_capture_source_t *source,
                                   torus_capture_content_t *content) {
  if (source->kind != TORUS_SOURCE_STORAGE) return torus_value_retain(source->value);
  if (content == NULL) return torus_value_retain(source->storage->value);
  if (content->storage != NULL) return torus_value_retain(content->storage->value);
  torus_value_t *value = content->value;
  content->value = NULL;
  return value;
}

/* What the storages hold, or, with |contents|, what is there. */
static torus_status_t add_inputs(const torus_capture_t *capture, torus_capture_content_t *contents,
                                 torus_window_t *window) {
  void *block;
  TORUS_TRY(torus_try_alloc((capture->source_count + 1) * sizeof *window->inputs, &block));
  window->inputs = block;
  for (size_t i = 0; i < capture->source_count; ++i) {
    window->inputs[window->input_count++] =
        take_content(&capture->sources[i], contents != NULL ? &contents[i] : NULL);
  }
  return TORUS_OK;
}

static torus_status_t add_results(const torus_capture_t *capture, torus_window_t *window) {
  void *block;
  TORUS_TRY(torus_try_alloc((capture->result_count + 1) * sizeof *window->values, &block));
  window->values = block;
  for (size_t i = 0; i < capture->result_count; ++i) {
    const torus_value_t *type = capture->results[i];
    TORUS_TRY(torus_value_create(capture->engine, capture->device, type->dtype, type->rank,
                                 type->dims, &window->values[i]));
    window->values[i]->wanted =
        torus_sharding_retain(torus_executable_result_sharding(capture->executable, i));
    window->value_count = i + 1;
  }
  return TORUS_OK;
}

static torus_status_t add_checks(const torus_capture_t *capture, torus_window_t *window) {
  if (capture->check_count == 0) return TORUS_OK;
  const size_t bytes = capture->check_count * sizeof *window->checks;
  TORUS_TRY(torus_try_alloc(bytes, (void **)&window->checks));
  memcpy(window->checks, capture->checks, bytes);
  window->check_count = capture->check_count;
  return TORUS_OK;
}

static torus_status_t make_job(torus_capture_t *capture, torus_capture_content_t *contents,
                               torus_job_t **out_job) {
  void *block;
  *out_job = NULL;
  TORUS_TRY(torus_try_alloc(sizeof(torus_job_t), &block));
  torus_job_t *job = block;
  torus_status_t status = add_inputs(capture, contents, &job->window);
  if (status == TORUS_OK) status = add_results(capture, &job->window);
  if (status == TORUS_OK) status = add_checks(capture, &job->window);
  if (status != TORUS_OK) {
    torus_window_deinit(&job->window);
    torus_free(job);
    return status;
  }
  job->device = capture->device;
  job->capture = torus_capture_retain(capture);
  job->output_count = capture->result_count + (capture->check_count > 0);
  torus_window_mark_queued(&job->window);
  *out_job = job;
  return TORUS_OK;
}

static torus_status_t replay(torus_capture_t *capture, uint64_t seed, uint64_t offset) {
  torus_engine_t *engine = capture->engine;
  torus_device_t *device = &engine->devices[capture->device];
  bool renewed;
  torus_job_t *job;
  TORUS_TRY(torus_window_close(engine, capture->device));
  torus_status_t status = renew_sources(capture, device, &renewed);
  if (renewed) {
    torus_status_t closed = torus_window_close(engine, capture->device);
    if (status == TORUS_OK) status = closed;
    else torus_status_ignore(closed);
  }
  TORUS_TRY(status);
  TORUS_TRY(make_job(capture, NULL, &job));
  job->random[0] = seed;
  job->random[1] = offset;
  for (size_t i = 0; i < capture->output_count; ++i) {
    torus_storage_set(capture->outputs[i].storage, job->window.values[capture->outputs[i].index]);
  }
  return torus_engine_enqueue(engine, job);
}

torus_status_t torus_capture_replay(torus_capture_t *capture, uint64_t seed, uint64_t offset) {
  torus_device_t *device = &capture->engine->devices[capture->device];
  pthread_mutex_lock(&device->lock);
  torus_status_t status = TORUS_OK;
  if (device->capture != NULL) {
    status = torus_status_make(TORUS_STATUS_FAILED_PRECONDITION,
                               "a captured graph cannot be run while another is being captured");
  } else if (capture->executable != NULL) {
    status = replay(capture, seed, offset);
  }
  pthread_mutex_unlock(&device->lock);
  return status;
}

/* ---- with contents of the caller's ---- */

torus_status_t torus_capture_refuse_bytes(size_t bytes, const torus_value_t *type) {
  return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                           "an argument of a program has %zu bytes instead of %zu", bytes,
                           torus_value_size_bytes(type));
}

static torus_status_t check_bytes(const torus_value_t *value, const torus_value_t *type) {
  if (value == NULL || torus_value_size_bytes(value) == torus_value_size_bytes(type)) {
    return TORUS_OK;
  }
  return torus_capture_refuse_bytes(torus_value_size_bytes(value), type);
}

static torus_status_t adapt_one(torus_device_t *device, const torus_capture_source_t *source,
                                torus_capture_content_t *content, bool *out_adapted) {
  torus_storage_t *storage = content->storage;
  if (storage != NULL) TORUS_TRY(torus_storage_fill_abstract(storage, NULL));
  torus_value_t *value = storage != NULL ? storage->value : content->value, *other;
  const bool is_shared_loss = source->alias >= 0 && value != NULL && is_shared(value);
  if (value != NULL && fits(source, value) && !is_shared_loss) return TORUS_OK;
  TORUS_TRY(check_bytes(value, source->value));
  TORUS_TRY(renewed(device, source->value, value, &other));
  *out_adapted = true;
  if (storage != NULL) {
    torus_storage_set(storage, other);
    torus_value_release(other);
  } else {
    torus_value_release(value);
    content->value = other;
  }
  return TORUS_OK;
}

/* Brings the contents into the form that the program takes. */
static torus_status_t adapt(torus_capture_t *capture, torus_device_t *device,
                            torus_capture_content_t *contents, bool *out_adapted) {
  *out_adapted = false;
  for (size_t i = 0; i < capture->source_count; ++i) {
    const torus_capture_source_t *source = &capture->sources[i];
    if (source->kind != TORUS_SOURCE_STORAGE) continue;
    TORUS_TRY(adapt_one(device, source, &contents[i], out_adapted));
  }
  return TORUS_OK;
}

static torus_status_t close_if_any(torus_engine_t *engine, int device) {
  const torus_window_t *window = &engine->devices[device].window;
  if (window->value_count == 0 && window->check_count == 0) return TORUS_OK;
  return torus_window_close(engine, device);
}

static torus_status_t apply(torus_capture_t *capture, torus_capture_content_t *contents,
                            uint64_t seed, uint64_t offset, torus_value_t **out_results) {
  torus_engine_t *engine = capture->engine;
  torus_device_t *device = &engine->devices[capture->device];
  bool adapted;
  torus_job_t *job;
  if (device->capture != NULL || torus_engine_is_abstract(engine)) {
    return torus_status_make(TORUS_STATUS_FAILED_PRECONDITION,
                             "a compiled program cannot be run while a graph is being captured");
  }
  TORUS_TRY(close_if_any(engine, capture->device));
  TORUS_TRY(adapt(capture, device, contents, &adapted));
  if (adapted) TORUS_TRY(torus_window_close(engine, capture->device));
  TORUS_TRY(make_job(capture, contents, &job));
  job->random[0] = seed;
  job->random[1] = offset;
  for (size_t i = 0; i < capture->result_count; ++i) {
    out_results[i] = torus_value_retain(job->window.values[i]);
  }
  return torus_engine_enqueue(engine, job);
}

torus_status_t torus_capture_apply(torus_capture_t *capture, torus_capture_content_t *contents,
                                   uint64_t seed, uint64_t offset, torus_value_t **out_results) {
  for (size_t i = 0; i < capture->result_count; ++i) out_results[i] = NULL;
  torus_status_t status = TORUS_OK;
  if (capture->block != NULL) {
    status = torus_capture_join(capture, contents, seed, offset, out_results);
  } else if (capture->executable != NULL) {
    status = apply(capture, contents, seed, offset, out_results);
  }
  for (size_t i = 0; i < capture->source_count; ++i) torus_value_release(contents[i].value);
  if (status == TORUS_OK) return TORUS_OK;
  for (size_t i = 0; i < capture->result_count; ++i) {
    torus_value_release(out_results[i]);
    out_results[i] = NULL;
  }
  return status;
}
