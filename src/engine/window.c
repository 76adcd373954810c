/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
#include <string.h>

#include "engine/engine_internal.h"
#include "torus/log.h"

torus_status_t torus_grow(void *array, size_t count, size_t *capacity, size_t element_bytes) {
  void **slot = array;
  if (count < *capacity) return TORUS_OK;
  const size_t wanted = *capacity == 0 ? 32 : *capacity * 2;
  void *bigger = torus_realloc(*slot, wanted * element_bytes);
  if (bigger == NULL) {
    return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory for a window");
  }
  *slot = bigger;
  *capacity = wanted;
  return TORUS_OK;
}

static torus_status_t take_graph(torus_engine_t *engine, hlo_graph_t **out_graph) {
  pthread_mutex_lock(&engine->lock);
  *out_graph = engine->spare_count > 0 ? engine->spare_graphs[--engine->spare_count] : NULL;
  pthread_mutex_unlock(&engine->lock);
  if (*out_graph == NULL) TORUS_TRY(hlo_graph_create(out_graph));
  bool is_cpu = strcmp(torus_client_platform(engine->client), "cpu") == 0;
  hlo_graph_set_mixed_products(*out_graph, !is_cpu);
  return TORUS_OK;
}

torus_status_t torus_window_init(torus_window_t *window, torus_engine_t *engine, uint64_t serial) {
  memset(window, 0, sizeof *window);
  window->serial = serial;
  window->mode = TORUS_MODE_FUSED;
  return take_graph(engine, &window->graph);
}

static void release_values(torus_value_t **values, size_t count) {
  for (size_t i = 0; i < count; ++i) torus_value_release(values[i]);
  torus_free(values);
}

void torus_window_deinit(torus_window_t *window) {
  release_values(window->inputs, window->input_count);
  release_values(window->values, window->value_count);
  torus_free(window->checks);
  hlo_graph_destroy(window->graph);
  memset(window, 0, sizeof *window);
}

static bool has_content(const torus_value_t *value) {
  return atomic_load(&value->state) != TORUS_VALUE_ABSTRACT ||
         torus_engine_is_abstract(value->engine);
}

hlo_t torus_window_add_input(torus_window_t *window, torus_value_t *value) {
  if (!has_content(value)) return hlo_fail_with(window->graph, torus_abstract_refuse());
  torus_status_t status = torus_grow(&window->inputs, window->input_count,
                                     &window->input_capacity, sizeof(torus_value_t *));
  if (status != TORUS_OK) {
    torus_status_ignore(status);
    return hlo_fail(window->graph, TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
  }
  hlo_t node = hlo_parameter(window->graph, (int)window->input_count, value->dtype, value->rank,
                             value->dims);
  if (node == HLO_NONE) return HLO_NONE;
  window->inputs[window->input_count++] = torus_value_retain(value);
  return node;
}

hlo_t torus_window_node(torus_device_t *device, torus_value_t *value) {
  if (atomic_load(&value->state) == TORUS_VALUE_OPEN) return value->node;
  if (value->parameter_window == device->window.serial) return value->parameter;
  const hlo_t node = torus_window_add_input(&device->window, value);
  if (node == HLO_NONE) return HLO_NONE;
  value->parameter = node;
  value->parameter_window = device->window.serial;
  return node;
}

torus_status_t torus_window_value(torus_engine_t *engine, int device, hlo_t node,
                                  torus_value_t **out_value) {
  torus_window_t *window = &engine->devices[device].window;
  *out_value = NULL;
  TORUS_TRY(torus_grow(&window->values, window->value_count, &window->value_capacity,
                       sizeof(torus_value_t *)));
  torus_value_t *value;
  TORUS_TRY(torus_value_create(engine, device, hlo_dtype(window->graph, node),
                               hlo_rank(window->graph, node), hlo_dims(window->graph, node),
                               &value));
  value->node = node;
  window->values[window->value_count++] = torus_value_retain(value);
  *out_value = value;
  return TORUS_OK;
}

torus_status_t torus_window_add_check(torus_device_t *device, const torus_check_t *check) {
  torus_window_t *window = &device->window;
  TORUS_TRY(torus_grow(&window->checks, window->check_count, &window->check_capacity,
                       sizeof(torus_check_t)));
  window->checks[window->check_count++] = *check;
  return TORUS_OK;
}

void torus_window_drop_dead(torus_window_t *window) {
  size_t kept = 0;
  for (size_t i = 0; i < window->value_count; ++i) {
    torus_value_t *value = window->values[i];
    if (atomic_load(&value->refs) == 1) {
      torus_value_release(value);
    } else {
      window->values[kept++] = value;
    }
  }
  window->value_count = kept;
}

/* Whether only this window can still see an input when its turn comes: windows before it in the queue
 * are gone by then. Counting them in would make the program depend on how far the worker is. */
static bool is_last_user(const torus_value_t *value) { return torus_value_users(value) == 1; }

static void mark_queued(torus_value_t **values, size_t count) {
  for (size_t i = 0; i < count; ++i) atomic_fetch_add(&values[i]->refs, TORUS_VALUE_QUEUED_ONCE);
}

void torus_window_mark_queued(torus_window_t *window) {
  mark_queued(window->inputs, window->input_count);
  mark_queued(window->values, window->value_count);
}

static void release_queued(torus_value_t **values, size_t *count) {
  while (*count > 0) torus_value_release_queued(values[--*count]);
}

void torus_window_release_queued(torus_window_t *window) {
  release_queued(window->inputs, &window->input_count);
  release_queued(window->values, &window->value_count);
}

static torus_status_t make_job(torus_engine_t *engine, int device, torus_job_t **out_job) {
  torus_window_t *window = &engine->devices[device].window;
  const size_t outputs = window->value_count + 1;
  const size_t bytes =
      sizeof(torus_job_t) + outputs * sizeof(hlo_t) + (window->input_count + 1) * sizeof(bool);
  void *block;
  TORUS_TRY(torus_try_alloc(bytes, &block));
  torus_job_t *job = block;
  job->device = device;
  job->outputs = (hlo_t *)(job + 1);
  job->donatable = (bool *)(job->outputs + outputs);
  for (size_t i = 0; i < window->value_count; ++i) job->outputs[i] = window->values[i]->node;
  job->output_count = window->value_count;
  for (size_t i = 0; i < window->input_count; ++i) {
    job->donatable[i] = is_last_user(window->inputs[i]);
  }
  *out_job = job;
  return TORUS_OK;
}

/* The check vector becomes the last output. */
static torus_status_t add_check_output(torus_window_t *window, torus_job_t *job) {
  if (window->check_count == 0) return TORUS_OK;
  hlo_t checks = torus_checks_node(window->graph, window->checks, window->check_count);
  TORUS_TRY(hlo_graph_take_error(window->graph));
  job->outputs[job->output_count++] = checks;
  return TORUS_OK;
}

static void log_window(const torus_job_t *job) {
  static const char *const modes[] = {"debug", "strict", "fused"};
  const torus_window_t *window = &job->window;
  torus_strbuf_t text = {0};
  torus_place_t first, last;
  torus_strbuf_printf(&text, "%llu on tpu:%d, %s: ", (unsigned long long)window->serial, job->device,
                      modes[window->mode]);
  torus_operators_text(window->graph, &text);
  torus_strbuf_printf(&text, "; %zu nodes, %zu inputs, %zu results",
                      hlo_graph_node_count(window->graph), window->input_count, window->value_count);
  torus_operators_places(window->graph, &first, &last);
  torus_place_append(&text, ", at ", last, "");
  torus_log(TORUS_LOG_WINDOW, "%s", torus_strbuf_text(&text));
  torus_strbuf_deinit(&text);
}

/* Everything that may fail for want of memory comes before the window is given away: it then stays
 * open with all it holds, and closing it can be tried again. */
torus_status_t torus_window_take(torus_engine_t *engine, int device, torus_job_t **out_job) {
  torus_device_t *d = &engine->devices[device];
  *out_job = NULL;
  torus_job_t *job;
  TORUS_TRY(make_job(engine, device, &job));
  torus_window_t next;
  torus_status_t status = add_check_output(&d->window, job);
  if (status == TORUS_OK) status = torus_window_init(&next, engine, d->window.serial + 1);
  if (status != TORUS_OK) {
    torus_free(job);
    return status;
  }
  next.rolling = next.start = d->window.rolling;
  torus_window_mark_queued(&d->window);
  job->window = d->window;
  d->window = next;
  *out_job = job;
  return TORUS_OK;
}

static torus_status_t dispatch(torus_engine_t *engine, int device, bool is_awaited) {
  torus_job_t *job;
  TORUS_TRY(torus_window_take(engine, device, &job));
  job->is_awaited = is_awaited;
  if (torus_log_is_on(TORUS_LOG_WINDOW)) log_window(job);
  return torus_engine_enqueue(engine, job);
}

void torus_window_forget(torus_window_t *window) {
  hlo_graph_t *graph = window->graph;
  const uint64_t serial = window->serial + 1, rolling = window->rolling;
  window->graph = NULL;
  torus_window_deinit(window);
  hlo_graph_clear(graph);
  window->graph = graph;
  window->serial = serial;
  window->rolling = window->start = rolling;
  window->mode = TORUS_MODE_FUSED;
}

static torus_status_t close_window(torus_engine_t *engine, int device, bool is_awaited) {
  torus_window_t *window = &engine->devices[device].window;
  if (engine->devices[device].capture != NULL) return torus_capture_refuse_wait();
  torus_status_ignore(hlo_graph_take_error(window->graph));
  if (torus_engine_is_abstract(engine)) {
    torus_window_abstract(window);
    return TORUS_OK;
  }
  torus_window_drop_dead(window);
  if (window->value_count > 0 || window->check_count > 0) {
    return dispatch(engine, device, is_awaited);
  }
  torus_window_forget(window);
  return TORUS_OK;
}

torus_status_t torus_window_close(torus_engine_t *engine, int device) {
  return close_window(engine, device, false);
}

torus_status_t torus_window_close_awaited(torus_engine_t *engine, int device) {
  return close_window(engine, device, true);
}
