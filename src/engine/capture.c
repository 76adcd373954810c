/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Recording a capture: which storages are read and written, and what they held before. */
#include <string.h>

#include "engine/capture_internal.h"

torus_status_t torus_capture_no_memory(void) {
  return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory for a capture");
}

torus_status_t torus_capture_refuse_wait(void) {
  return torus_status_make(
      TORUS_STATUS_FAILED_PRECONDITION,
      "this waits for the device, which is not possible while a graph is captured: nothing runs "
      "before the capture ends. Reading values on the host (item(), cpu(), print, if tensor:), "
      "results whose size depends on values (nonzero, masks as indices), operators that run on the "
      "CPU and synchronize() belong before or after torch.tpu.graph()");
}

torus_status_t torus_capture_refuse_resize(const torus_storage_t *storage) {
  const uint64_t capturing = atomic_load(&storage->engine->devices[storage->device].capturing);
  if (capturing == 0 || storage->born_in == capturing) return TORUS_OK;
  return torus_status_make(TORUS_STATUS_FAILED_PRECONDITION,
                           "a tensor made before the capture of a graph changes its size in it; "
                           "give it its size before torch.tpu.graph()");
}

torus_capture_t *torus_capture_retain(torus_capture_t *capture) {
  atomic_fetch_add_explicit(&capture->refs, 1, memory_order_relaxed);
  return capture;
}

static void release_bindings(torus_capture_binding_t *bindings, size_t count) {
  for (size_t i = 0; i < count; ++i) torus_storage_release(bindings[i].storage);
  torus_free(bindings);
}

static void release_values(torus_value_t **values, size_t count) {
  for (size_t i = 0; i < count; ++i) torus_value_release(values[i]);
  torus_free(values);
}

void torus_capture_release(torus_capture_t *capture) {
  if (capture == NULL) return;
  if (atomic_fetch_sub_explicit(&capture->refs, 1, memory_order_acq_rel) != 1) return;
  release_bindings(capture->reads, capture->read_count);
  release_bindings(capture->outputs, capture->output_count);
  release_values(capture->inputs, capture->input_count);
  release_values(capture->results, capture->result_count);
  for (size_t i = 0; i < capture->write_count; ++i) {
    torus_value_release(capture->writes[i].before);
  }
  torus_free(capture->writes);
  torus_free(capture->checks);
  torus_free(capture->sources);
  torus_executable_release(capture->executable);
  torus_buffer_release(capture->softs);
  torus_block_destroy(capture->block);
  torus_status_free(capture->error);
  torus_free(capture);
}

size_t torus_capture_input_count(const torus_capture_t *capture) { return capture->read_count; }

size_t torus_capture_output_count(const torus_capture_t *capture) { return capture->output_count; }

/* ---- begin ---- */

static torus_status_t begin(torus_engine_t *engine, int device, torus_capture_t *capture) {
  static atomic_ullong numbers;
  torus_device_t *d = &engine->devices[device];
  if (d->capture != NULL) {
    return torus_status_make(TORUS_STATUS_FAILED_PRECONDITION,
                             "a graph is being captured on tpu:%d already", device);
  }
  TORUS_TRY(torus_window_close(engine, device));
  capture->number = atomic_fetch_add(&numbers, 1) + 1;
  d->capture = capture;
  atomic_store(&d->capturing, capture->number);
  return TORUS_OK;
}

torus_status_t torus_capture_begin(torus_engine_t *engine, int device, uint64_t seed,
                                   uint64_t offset) {
  torus_capture_t *capture = torus_alloc(sizeof *capture);
  if (capture == NULL) return torus_capture_no_memory();
  atomic_init(&capture->refs, 1);
  capture->engine = engine;
  capture->device = device;
  capture->seed = seed;
  capture->offset = offset;
  capture->random = HLO_NONE;
  torus_device_lock(engine, device);
  torus_status_t status = begin(engine, device, capture);
  pthread_mutex_unlock(&engine->devices[device].lock);
  if (status != TORUS_OK) torus_capture_release(capture);
  return status;
}

void torus_capture_expect_change(torus_engine_t *engine, int device) {
  torus_device_lock(engine, device);
  engine->devices[device].numbers_change = true;
  pthread_mutex_unlock(&engine->devices[device].lock);
}

bool torus_capture_is_active(torus_engine_t *engine, int device) {
  return atomic_load(&engine->devices[device].capturing) != 0;
}

/* ---- reads ---- */

/* Values are shared between storages, so that each storage has an input of its own: at a later run
 * they may hold different ones. */
static hlo_t add_read(torus_device_t *device, torus_storage_t *storage) {
  torus_capture_t *capture = device->capture;
  torus_window_t *window = &device->window;
  torus_status_t status = torus_grow(&capture->reads, capture->read_count, &capture->read_capacity,
                                     sizeof *capture->reads);
  if (status != TORUS_OK) {
    torus_status_ignore(status);
    return hlo_fail(window->graph, TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
  }
  const size_t index = window->input_count;
  const hlo_t node = torus_window_add_input(window, storage->value);
  if (node == HLO_NONE) return HLO_NONE;
  capture->reads[capture->read_count++] =
      (torus_capture_binding_t){torus_storage_retain(storage), index};
  storage->parameter = node;
  storage->parameter_window = window->serial;
  return node;
}

hlo_t torus_capture_read(torus_device_t *device, torus_storage_t *storage) {
  if (atomic_load(&storage->value->state) == TORUS_VALUE_OPEN) return storage->value->node;
  if (storage->parameter_window == device->window.serial) return storage->parameter;
  return add_read(device, storage);
}

/* A storage of |size_bytes| bytes seen through |view|: the view's own sizes where it is all of it, so
 * that what is copied there later has the same type. */
static torus_status_t make_zeros(torus_engine_t *engine, const torus_view_t *view, size_t size_bytes,
                                 torus_value_t **out_value) {
  const int device = view->storage->device;
  const size_t item = torus_dtype_bytes(view->dtype);
  const int64_t flat = (int64_t)(size_bytes / item);
  const bool is_dense = torus_view_is_dense(view, flat);
  const int rank = is_dense ? view->rank : 1;
  const int64_t *dims = is_dense ? view->sizes : &flat;
  void *zeros;
  if (torus_engine_is_abstract(engine)) {
    return torus_value_create_abstract(engine, device, view->dtype, rank, dims, out_value);
  }
  TORUS_TRY(torus_try_alloc(size_bytes, &zeros));
  torus_status_t status =
      torus_value_from_host(engine, device, zeros, view->dtype, rank, dims, out_value);
  torus_free(zeros);
  return status;
}

/* ---- writes ---- */

/* The list of writes has a lock of its own: a storage may be freed by the worker, for which others
 * wait with the device's lock held. */
static torus_status_t add_write(torus_device_t *device, torus_storage_t *storage) {
  torus_capture_t *capture = device->capture;
  pthread_mutex_lock(&device->writes_lock);
  torus_status_t status = torus_grow(&capture->writes, capture->write_count,
                                     &capture->write_capacity, sizeof *capture->writes);
  if (status == TORUS_OK) {
    capture->writes[capture->write_count++] =
        (torus_capture_write_t){storage, torus_value_retain(storage->value)};
    atomic_store(&storage->capture_slot, capture->write_count);
  }
  pthread_mutex_unlock(&device->writes_lock);
  return status;
}

static bool note_write(torus_device_t *device, torus_storage_t *storage) {
  if (atomic_load(&storage->capture_slot) != 0) return true;
  torus_status_t status = add_write(device, storage);
  if (status == TORUS_OK) return true;
  torus_status_free(device->capture->error);
  device->capture->error = status;
  return false;
}

/* Abstract content is taken away at the end, as what was written is: the storage had none. */
torus_status_t torus_capture_fill(torus_device_t *device, const torus_view_t *view) {
  torus_storage_t *storage = view->storage;
  const bool is_whole = storage->size_bytes % torus_dtype_bytes(view->dtype) == 0;
  if (storage->born_in == device->capture->number || !is_whole || storage->size_bytes == 0) {
    return TORUS_OK;
  }
  if (torus_engine_is_abstract(storage->engine) && !note_write(device, storage)) return TORUS_OK;
  return make_zeros(storage->engine, view, storage->size_bytes, &storage->value);
}

torus_value_t *torus_capture_write(torus_device_t *device, torus_storage_t *storage,
                                   torus_value_t *value) {
  torus_value_t *open;
  if (!note_write(device, storage)) return torus_value_retain(storage->value);
  if (value == NULL || atomic_load(&value->state) == TORUS_VALUE_OPEN) {
    return torus_value_retain(value);
  }
  /* From the host: the same at every run, whatever is written to the storage in between. */
  const hlo_t node = torus_window_node(device, value);
  torus_status_t status = hlo_graph_take_error(device->window.graph);
  if (status == TORUS_OK) {
    status = torus_window_value(storage->engine, storage->device, node, &open);
  }
  if (status == TORUS_OK) return open;
  torus_status_free(device->capture->error);
  device->capture->error = status;
  return NULL;
}

void torus_capture_forget(torus_storage_t *storage) {
  torus_device_t *device = &storage->engine->devices[storage->device];
  torus_value_t *before = NULL;
  pthread_mutex_lock(&device->writes_lock);
  const size_t slot = atomic_load(&storage->capture_slot);
  if (slot != 0) { /* so that the capture is going on: its end sets the slots to 0 */
    torus_capture_write_t *write = &device->capture->writes[slot - 1];
    before = write->before;
    *write = (torus_capture_write_t){NULL, NULL};
  }
  pthread_mutex_unlock(&device->writes_lock);
  torus_value_release(before);
}

/* ---- random numbers ---- */

static hlo_t random_input(torus_device_t *device) {
  torus_capture_t *capture = device->capture;
  const int64_t two = 2;
  torus_value_t *type;
  if (capture->random != HLO_NONE) return capture->random;
  torus_status_t status =
      torus_value_create(capture->engine, capture->device, TORUS_DTYPE_U64, 1, &two, &type);
  if (status != TORUS_OK) {
    torus_status_ignore(status);
    return hlo_fail(device->window.graph, TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
  }
  capture->random_input = device->window.input_count;
  capture->random = torus_window_add_input(&device->window, type);
  torus_value_release(type);
  return capture->random;
}

void torus_capture_random(torus_device_t *device, uint64_t seed, uint64_t offset, hlo_t *out_seed,
                          hlo_t *out_offset) {
  hlo_graph_t *g = device->window.graph;
  *out_seed = *out_offset = HLO_NONE;
  if (seed != device->capture->seed || offset < device->capture->offset) {
    hlo_fail(g, TORUS_STATUS_FAILED_PRECONDITION,
             "the generator was seeded during the capture of a graph; seed it before");
    return;
  }
  const hlo_t random = random_input(device);
  if (random == HLO_NONE) return;
  const int64_t drawn = (int64_t)(offset - device->capture->offset);
  *out_seed = hlo_index_dim(g, random, 0, 0);
  *out_offset = hlo_add(g, hlo_index_dim(g, random, 0, 1),
                        hlo_const_int(g, TORUS_DTYPE_U64, drawn));
}

/* ---- end ---- */

/* The storage of a write, retained, unless its last reference is just going away. */
static torus_storage_t *take_storage(const torus_capture_write_t *write) {
  torus_storage_t *storage = write->storage;
  if (storage == NULL) return NULL;
  int refs = atomic_load(&storage->refs);
  while (refs > 0) {
    if (atomic_compare_exchange_weak(&storage->refs, &refs, refs + 1)) return storage;
  }
  return NULL;
}

/* Retains the storages that are alive; they become the capture's outputs. */
static torus_status_t collect_outputs(torus_device_t *device, torus_capture_t *capture) {
  capture->outputs = torus_alloc((capture->write_count + 1) * sizeof *capture->outputs);
  if (capture->outputs == NULL) return torus_capture_no_memory();
  pthread_mutex_lock(&device->writes_lock);
  for (size_t i = 0; i < capture->write_count; ++i) {
    torus_storage_t *storage = take_storage(&capture->writes[i]);
    if (storage != NULL) capture->outputs[capture->output_count++].storage = storage;
  }
  pthread_mutex_unlock(&device->writes_lock);
  return TORUS_OK;
}

static bool same_type(const torus_value_t *a, const torus_value_t *b) {
  return a->dtype == b->dtype && a->rank == b->rank &&
         (a->rank == 0 || memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0);
}

/* The elements of |value| as a value of |type|, which has as many bytes. */
static torus_status_t as_type(torus_device_t *device, torus_value_t *value,
                              const torus_value_t *type, torus_value_t **out_value) {
  hlo_graph_t *g = device->window.graph;
  hlo_t node = hlo_flatten(g, torus_window_node(device, value));
  node = hlo_reshape(g, torus_view_bitcast(g, node, type->dtype), type->rank, type->dims);
  TORUS_TRY(hlo_graph_take_error(g));
  return torus_window_value(value->engine, value->device, node, out_value);
}

/* What a storage holds after a run is what the next run reads: of one type, or each run would have to
 * convert it. */
static torus_status_t match_types(torus_device_t *device, torus_capture_t *capture) {
  for (size_t i = 0; i < capture->read_count; ++i) {
    torus_storage_t *storage = capture->reads[i].storage;
    torus_value_t *type = device->window.inputs[capture->reads[i].index], *matched;
    if (storage->value == NULL || same_type(storage->value, type)) continue;
    if (torus_value_size_bytes(storage->value) != torus_value_size_bytes(type)) continue;
    TORUS_TRY(as_type(device, storage->value, type, &matched));
    torus_value_release(storage->value);
    storage->value = matched;
  }
  return TORUS_OK;
}

/* The storages in |wanted|, then those that were there before the capture and were written. */
static torus_status_t take_wanted(torus_capture_t *capture, const torus_capture_wanted_t *wanted) {
  const size_t room = wanted->count + capture->write_count + 1;
  torus_capture_binding_t *all = torus_alloc(room * sizeof *all);
  if (all == NULL) return torus_capture_no_memory();
  for (size_t i = 0; i < wanted->count; ++i) {
    all[i].storage = torus_storage_retain(wanted->storages[i]);
  }
  size_t count = wanted->count;
  for (size_t i = 0; i < capture->output_count; ++i) {
    torus_storage_t *storage = capture->outputs[i].storage;
    if (storage->born_in != capture->number) {
      all[count++].storage = storage;
    } else {
      torus_storage_release(storage);
    }
  }
  torus_free(capture->outputs);
  capture->outputs = all;
  capture->output_count = count;
  return TORUS_OK;
}

static bool is_result(const torus_value_t *value) {
  return value != NULL && atomic_load(&value->state) == TORUS_VALUE_OPEN;
}

/* Outputs that hold nothing of the window are none. */
static void drop_empty_outputs(torus_capture_t *capture) {
  size_t kept = 0;
  for (size_t i = 0; i < capture->output_count; ++i) {
    torus_storage_t *storage = capture->outputs[i].storage;
    if (is_result(storage->value)) {
      capture->outputs[kept++].storage = storage;
    } else {
      torus_storage_release(storage);
    }
  }
  capture->output_count = kept;
}

/* The window keeps the outputs' values, each once and in the outputs' order, as its results. */
static torus_status_t number_outputs(torus_capture_t *capture, torus_window_t *window) {
  torus_value_t **results = torus_alloc((capture->output_count + 1) * sizeof(torus_value_t *));
  if (results == NULL) return torus_capture_no_memory();
  for (size_t i = 0; i < window->value_count; ++i) window->values[i]->ticket = UINT64_MAX;
  size_t count = 0;
  for (size_t i = 0; i < capture->output_count; ++i) {
    torus_value_t *value = capture->outputs[i].storage->value;
    if (value->ticket == UINT64_MAX) {
      value->ticket = count;
      results[count++] = torus_value_retain(value);
    }
    capture->outputs[i].index = (size_t)value->ticket;
  }
  release_values(window->values, window->value_count);
  window->values = results;
  window->value_count = count;
  window->value_capacity = capture->output_count + 1;
  return TORUS_OK;
}

/* All storages hold again what they held. */
static void restore(torus_device_t *device, torus_capture_t *capture) {
  pthread_mutex_lock(&device->writes_lock);
  for (size_t i = 0; i < capture->write_count; ++i) {
    torus_storage_t *storage = capture->writes[i].storage;
    if (storage == NULL) continue;
    torus_value_t *now = storage->value;
    storage->value = capture->writes[i].before;
    atomic_store(&storage->capture_slot, 0);
    torus_value_release(now);
  }
  torus_free(capture->writes);
  capture->writes = NULL;
  capture->write_count = 0;
  pthread_mutex_unlock(&device->writes_lock);
}

static bool is_overwritten(const torus_storage_t *storage) {
  return atomic_load(&storage->capture_slot) != 0 && is_result(storage->value);
}

static void alias_overwritten(const torus_capture_t *capture, const torus_window_t *window,
                              int *aliases, bool *taken) {
  for (size_t i = 0; i < capture->read_count; ++i) {
    const torus_capture_binding_t *read = &capture->reads[i];
    const torus_value_t *result = read->storage->value;
    if (!is_overwritten(read->storage) || taken[result->ticket]) continue;
    if (!same_type(result, window->inputs[read->index])) continue;
    taken[result->ticket] = true;
    aliases[read->index] = (int)result->ticket;
  }
}

static void alias_given(const torus_capture_t *capture, const torus_window_t *window, int *aliases,
                        bool *taken) {
  for (size_t i = 0; i < capture->read_count; ++i) {
    const size_t input = capture->reads[i].index;
    if (!capture->reads[i].storage->is_given || aliases[input] >= 0) continue;
    for (size_t k = 0; k < window->value_count && aliases[input] < 0; ++k) {
      if (taken[k] || !same_type(window->values[k], window->inputs[input])) continue;
      taken[k] = true;
      aliases[input] = (int)k;
    }
  }
}

/* What each run may use up: the inputs whose storages it writes, for what is written there, and those
 * that were given to it, for any result of their type. */
static torus_status_t find_aliases(torus_capture_t *capture, const torus_window_t *window,
                                   int **out_aliases) {
  *out_aliases = torus_alloc((window->input_count + 1) * sizeof **out_aliases);
  bool *taken = torus_alloc(window->value_count + 1);
  if (*out_aliases == NULL || taken == NULL) {
    torus_free(taken);
    return torus_capture_no_memory();
  }
  for (size_t i = 0; i < window->input_count; ++i) (*out_aliases)[i] = -1;
  alias_overwritten(capture, window, *out_aliases, taken);
  alias_given(capture, window, *out_aliases, taken);
  torus_free(taken);
  return TORUS_OK;
}

static torus_status_t copy_array(const void *from, size_t bytes, void **out_copy) {
  TORUS_TRY(torus_try_alloc(bytes, out_copy));
  if (bytes > 0) memcpy(*out_copy, from, bytes);
  return TORUS_OK;
}

/* The window's values serve as types of the results; its checks are copied for each run. */
static torus_status_t keep_results(torus_capture_t *capture, const torus_window_t *window) {
  void *copy;
  TORUS_TRY(copy_array(window->values, window->value_count * sizeof *window->values, &copy));
  capture->results = copy;
  capture->result_count = window->value_count;
  for (size_t i = 0; i < window->value_count; ++i) torus_value_retain(window->values[i]);
  TORUS_TRY(copy_array(window->checks, window->check_count * sizeof *window->checks, &copy));
  capture->checks = copy;
  capture->check_count = window->check_count;
  return TORUS_OK;
}

const torus_capture_binding_t *torus_capture_find_read(const torus_capture_t *capture,
                                                       size_t input) {
  for (size_t lo = 0, hi = capture->read_count; lo < hi;) { /* reads are in order of inputs */
    const size_t middle = (lo + hi) / 2;
    if (capture->reads[middle].index == input) return &capture->reads[middle];
    if (capture->reads[middle].index < input) lo = middle + 1;
    else hi = middle;
  }
  return NULL;
}

/* Constants are kept; of what storages held only the type, or the first content would never go. */
static torus_status_t keep_inputs(torus_capture_t *capture, const torus_window_t *window) {
  capture->inputs = torus_alloc((window->input_count + 1) * sizeof *capture->inputs);
  if (capture->inputs == NULL) return torus_capture_no_memory();
  for (size_t i = 0; i < window->input_count; ++i) {
    torus_value_t *value = window->inputs[i];
    if (torus_capture_find_read(capture, i) != NULL) {
      TORUS_TRY(torus_value_create(capture->engine, capture->device, value->dtype, value->rank,
                                   value->dims, &capture->inputs[i]));
    } else {
      capture->inputs[i] = torus_value_retain(value);
    }
    capture->input_count = i + 1;
  }
  return TORUS_OK;
}

/* What the program will compute, in terms of the window: its results and their order. */
static torus_status_t settle_outputs(torus_device_t *device, torus_capture_t *capture,
                                     const torus_capture_wanted_t *wanted) {
  TORUS_TRY(match_types(device, capture));
  torus_window_drop_dead(&device->window);
  TORUS_TRY(collect_outputs(device, capture));
  if (wanted != NULL) TORUS_TRY(take_wanted(capture, wanted));
  drop_empty_outputs(capture);
  return number_outputs(capture, &device->window);
}

/* The window as a job to compile, NULL when nothing is left of it. The storages still hold their new
 * values, by which dead ones are told from live ones. */
static torus_status_t finish(torus_engine_t *engine, torus_capture_t *capture,
                             const torus_capture_wanted_t *wanted, torus_job_t **out_job) {
  torus_device_t *device = &engine->devices[capture->device];
  torus_window_t *window = &device->window;
  int *aliases = NULL;
  *out_job = NULL;
  torus_status_t dropped = capture->error;
  capture->error = TORUS_OK;
  TORUS_TRY(dropped);
  torus_status_ignore(hlo_graph_take_error(window->graph));
  TORUS_TRY(settle_outputs(device, capture, wanted));
  if (window->value_count == 0 && window->check_count == 0) return TORUS_OK;
  TORUS_TRY(keep_results(capture, window));
  TORUS_TRY(keep_inputs(capture, window));
  torus_status_t status = find_aliases(capture, window, &aliases);
  if (status == TORUS_OK) status = torus_window_take(engine, capture->device, out_job);
  if (status != TORUS_OK) {
    torus_free(aliases);
    return status;
  }
  (*out_job)->aliases = aliases;
  (*out_job)->capture = torus_capture_retain(capture);
  return TORUS_OK;
}

/* Ends recording; the window is open for other work. */
static torus_capture_t *leave(torus_device_t *device) {
  torus_capture_t *capture = device->capture;
  restore(device, capture);
  device->numbers_change = false;
  device->capture = NULL;
  atomic_store(&device->capturing, 0);
  torus_window_forget(&device->window);
  return capture;
}

static torus_status_t await_program(torus_engine_t *engine, torus_capture_t *capture) {
  pthread_mutex_lock(&engine->lock);
  torus_engine_wait_ticket(engine, engine->enqueued);
  pthread_mutex_unlock(&engine->lock);
  return torus_status_clone(capture->error);
}

torus_status_t torus_capture_close(torus_engine_t *engine, int device,
                                   const torus_capture_wanted_t *wanted,
                                   torus_capture_t **out_capture, torus_job_t **out_job) {
  torus_device_t *d = &engine->devices[device];
  *out_job = NULL;
  *out_capture = NULL;
  if (d->capture == NULL) {
    return torus_status_make(TORUS_STATUS_FAILED_PRECONDITION, "no graph is being captured on tpu:%d",
                             device);
  }
  torus_status_t status = finish(engine, d->capture, wanted, out_job);
  *out_capture = leave(d);
  if (status == TORUS_OK) return TORUS_OK;
  torus_capture_release(*out_capture);
  *out_capture = NULL;
  return status;
}

static torus_status_t end(torus_engine_t *engine, int device, const torus_capture_wanted_t *wanted,
                          bool may_join, torus_capture_t **out_capture, bool *out_has_program) {
  torus_job_t *job;
  TORUS_TRY(torus_capture_close(engine, device, wanted, out_capture, &job));
  *out_has_program = job != NULL;
  if (job == NULL) return TORUS_OK;
  if (!may_join || !torus_job_may_join(job)) return torus_engine_enqueue(engine, job);
  *out_has_program = false;
  torus_status_t status = torus_capture_keep_block(*out_capture, job);
  torus_job_destroy(job);
  return status;
}

static torus_status_t compile(torus_engine_t *engine, int device,
                              const torus_capture_wanted_t *wanted, bool may_join,
                              torus_capture_t **out_capture) {
  torus_capture_t *capture = NULL;
  bool has_program = false;
  *out_capture = NULL;
  torus_device_lock(engine, device);
  torus_status_t status = end(engine, device, wanted, may_join, &capture, &has_program);
  pthread_mutex_unlock(&engine->devices[device].lock);
  if (status == TORUS_OK && has_program) status = await_program(engine, capture);
  if (status == TORUS_OK) {
    *out_capture = capture;
  } else {
    torus_capture_release(capture);
  }
  return status;
}

torus_status_t torus_capture_end(torus_engine_t *engine, int device, torus_capture_t **out_capture) {
  return compile(engine, device, NULL, false, out_capture);
}

torus_status_t torus_capture_compile(torus_engine_t *engine, int device,
                                     torus_storage_t *const *wanted, size_t wanted_count,
                                     torus_storage_t *const *given, size_t given_count,
                                     bool may_join, torus_capture_t **out_capture) {
  const torus_capture_wanted_t results = {wanted, wanted_count};
  for (size_t i = 0; i < given_count; ++i) given[i]->is_given = true;
  return compile(engine, device, &results, may_join, out_capture);
}

void torus_capture_abort(torus_engine_t *engine, int device) {
  torus_device_t *d = &engine->devices[device];
  pthread_mutex_lock(&d->lock);
  torus_capture_t *capture = d->capture != NULL ? leave(d) : NULL;
  pthread_mutex_unlock(&d->lock);
  torus_capture_release(capture);
}
