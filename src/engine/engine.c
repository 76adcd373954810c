/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
#include "torus/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "engine/engine_internal.h"
#include "torus/log.h"

static torus_status_t device_init(torus_engine_t *engine, int index, int64_t limit_bytes) {
  torus_device_t *d = &engine->devices[index];
  /* Recursive: storing into an out= tensor may resize it while the call is being recorded. */
  pthread_mutexattr_t recursive;
  pthread_mutexattr_init(&recursive);
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&d->lock, &recursive);
  pthread_mutexattr_destroy(&recursive);
  pthread_mutex_init(&d->memory_lock, NULL);
  pthread_mutex_init(&d->writes_lock, NULL);
  int64_t in_use, limit;
  const bool known = torus_client_memory_stats(engine->client, index, &in_use, &limit) && limit > 0;
  d->memory.limit_bytes = known ? limit : limit_bytes;
  return torus_window_init(&d->window, engine, 1);
}

static torus_status_t start(torus_engine_t *engine, const torus_engine_options_t *options) {
  void *devices;
  TORUS_TRY(torus_try_alloc((size_t)engine->device_count * sizeof(torus_device_t), &devices));
  engine->devices = devices;
  for (int i = 0; i < engine->device_count; ++i) {
    TORUS_TRY(device_init(engine, i, options->memory_limit_bytes));
  }
  TORUS_TRY(torus_explain_create(&engine->explain));
  TORUS_TRY(torus_program_cache_create(engine, options, &engine->cache));
  const char *bounded = getenv("TORUS_BOUNDED");
  if (bounded == NULL || strcmp(bounded, "0") != 0) {
    TORUS_TRY(torus_bounds_create(engine, &engine->bounds));
  }
  if (pthread_create(&engine->worker, NULL, torus_worker_main, engine) != 0) {
    return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "cannot start the worker thread");
  }
  engine->has_worker = true;
  pthread_setname_np(engine->worker, "torus-worker");
  return TORUS_OK;
}

torus_status_t torus_engine_create(torus_client_t *client, const torus_engine_options_t *options,
                                   torus_engine_t **out_engine) {
  *out_engine = NULL;
  void *block;
  torus_status_t status = torus_try_alloc(sizeof(torus_engine_t), &block);
  if (status != TORUS_OK) {
    torus_client_destroy(client);
    return status;
  }
  torus_engine_t *engine = block;
  torus_log_configure_from_environment();
  engine->client = client;
  engine->device_count = torus_client_device_count(client);
  pthread_mutex_init(&engine->lock, NULL);
  pthread_cond_init(&engine->work, NULL);
  pthread_cond_init(&engine->done, NULL);
  engine->wake_at = UINT64_MAX;
  status = start(engine, options);
  if (status == TORUS_OK) {
    *out_engine = engine;
  } else {
    torus_engine_destroy(engine);
  }
  return status;
}

torus_client_t *torus_engine_client(torus_engine_t *engine) { return engine->client; }

void torus_engine_shutdown(torus_engine_t *engine) {
  pthread_mutex_lock(&engine->lock);
  const bool is_first = engine->has_worker;
  engine->has_worker = false;
  engine->is_shut_down = true;
  pthread_cond_broadcast(&engine->work);
  pthread_cond_broadcast(&engine->done);
  pthread_mutex_unlock(&engine->lock);
  if (is_first) pthread_join(engine->worker, NULL);
}

static void device_deinit(torus_device_t *d) {
  torus_capture_release(d->capture);
  torus_window_deinit(&d->window);
  torus_free(d->results);
  torus_free(d->call_results);
  torus_buffer_release(d->last_result);
  torus_status_free(d->failure);
}

void torus_engine_destroy(torus_engine_t *engine) {
  if (engine == NULL) return;
  torus_engine_shutdown(engine);
  torus_status_ignore(torus_engine_verify(engine));
  for (int i = 0; engine->devices != NULL && i < engine->device_count; ++i) {
    device_deinit(&engine->devices[i]);
  }
  torus_free(engine->devices);
  while (engine->spare_count > 0) hlo_graph_destroy(engine->spare_graphs[--engine->spare_count]);
  torus_program_cache_destroy(engine->cache);
  torus_explain_destroy(engine->explain);
  torus_bounds_destroy(engine->bounds);
  torus_free(engine->last_program);
  torus_executable_release(engine->last_executable);
  torus_client_destroy(engine->client);
  torus_free(engine);
}

void torus_device_lock(torus_engine_t *engine, int device) {
  pthread_mutex_lock(&engine->devices[device].lock);
}

torus_status_t torus_device_unlock(torus_engine_t *engine, int device, torus_mode_t mode) {
  torus_device_t *d = &engine->devices[device];
  torus_status_t status = TORUS_OK;
  if (d->capture != NULL) mode = TORUS_MODE_FUSED; /* nothing runs before the capture ends */
  else if (torus_engine_is_abstract(engine)) mode = TORUS_MODE_STRICT;
  if (mode != TORUS_MODE_FUSED) {
    d->window.mode = mode;
    status = mode == TORUS_MODE_DEBUG ? torus_window_close_awaited(engine, device)
                                      : torus_window_close(engine, device);
  }
  pthread_mutex_unlock(&d->lock);
  if (mode == TORUS_MODE_DEBUG && status == TORUS_OK) {
    return torus_engine_synchronize(engine, device);
  }
  return status;
}

void torus_device_hold(torus_engine_t *engine, int device) {
  pthread_mutex_lock(&engine->devices[device].lock);
  engine->devices[device].hold_depth += 1;
  pthread_mutex_unlock(&engine->devices[device].lock);
}

torus_status_t torus_device_release(torus_engine_t *engine, int device) {
  torus_device_t *d = &engine->devices[device];
  torus_status_t status = TORUS_OK;
  pthread_mutex_lock(&d->lock);
  d->hold_depth -= 1;
  if (d->hold_depth == 0 && d->capture == NULL) status = torus_window_close(engine, device);
  pthread_mutex_unlock(&d->lock);
  return status;
}

static void wait_for_queue(torus_engine_t *engine) {
  pthread_mutex_lock(&engine->lock);
  const uint64_t ticket = engine->enqueued;
  torus_engine_wait_ticket(engine, ticket);
  pthread_mutex_unlock(&engine->lock);
}

/* Waits until the program enqueued last on the device has ended. Its result may be given away to a
 * later program meanwhile, so a failure here is no news: values carry the errors. */
static void await_last_result(torus_engine_t *engine, int device) {
  pthread_mutex_lock(&engine->lock);
  torus_buffer_t *last = torus_buffer_retain(engine->devices[device].last_result);
  pthread_mutex_unlock(&engine->lock);
  if (last != NULL) torus_status_ignore(torus_buffer_await(last));
  torus_buffer_release(last);
}

static torus_status_t take_failure(torus_engine_t *engine, int device) {
  pthread_mutex_lock(&engine->lock);
  torus_status_t failure = engine->devices[device].failure;
  engine->devices[device].failure = TORUS_OK;
  pthread_mutex_unlock(&engine->lock);
  return failure;
}

void torus_engine_drop_failure(torus_engine_t *engine, int device) {
  torus_status_free(take_failure(engine, device));
}

torus_status_t torus_engine_synchronize(torus_engine_t *engine, int device) {
  torus_device_t *d = &engine->devices[device];
  pthread_mutex_lock(&d->lock);
  torus_status_t status = torus_window_close_awaited(engine, device);
  pthread_mutex_unlock(&d->lock);
  if (status != TORUS_OK) return status;
  wait_for_queue(engine);
  await_last_result(engine, device);
  TORUS_TRY(take_failure(engine, device));
  return torus_engine_verify(engine);
}

void torus_engine_metrics(torus_engine_t *engine, torus_metrics_t *out_metrics) {
  pthread_mutex_lock(&engine->lock);
  *out_metrics = engine->metrics;
  pthread_mutex_unlock(&engine->lock);
}

void torus_engine_reset_metrics(torus_engine_t *engine) {
  pthread_mutex_lock(&engine->lock);
  memset(&engine->metrics, 0, sizeof engine->metrics);
  pthread_mutex_unlock(&engine->lock);
}

void torus_engine_memory(torus_engine_t *engine, int device, torus_device_memory_t *out_memory) {
  torus_device_t *d = &engine->devices[device];
  pthread_mutex_lock(&d->memory_lock);
  *out_memory = d->memory;
  pthread_mutex_unlock(&d->memory_lock);
}

void torus_engine_reset_peak(torus_engine_t *engine, int device) {
  torus_device_t *d = &engine->devices[device];
  pthread_mutex_lock(&d->memory_lock);
  d->memory.peak_bytes = d->memory.used_bytes;
  d->memory.peak_count = d->memory.used_count;
  pthread_mutex_unlock(&d->memory_lock);
}

void torus_engine_reset_totals(torus_engine_t *engine, int device) {
  torus_device_t *d = &engine->devices[device];
  pthread_mutex_lock(&d->memory_lock);
  d->memory.total_allocated_bytes = d->memory.total_freed_bytes = 0;
  d->memory.total_allocated_count = d->memory.total_freed_count = 0;
  pthread_mutex_unlock(&d->memory_lock);
}

torus_status_t torus_engine_last_optimized(torus_engine_t *engine, char **out_bytes,
                                           size_t *out_size) {
  *out_bytes = NULL;
  *out_size = 0;
  pthread_mutex_lock(&engine->lock);
  torus_executable_t *executable = torus_executable_retain(engine->last_executable);
  pthread_mutex_unlock(&engine->lock);
  if (executable == NULL) return TORUS_OK;
  torus_status_t status = torus_executable_optimized(executable, out_bytes, out_size);
  torus_executable_release(executable);
  return status;
}

char *torus_engine_last_program(torus_engine_t *engine) {
  pthread_mutex_lock(&engine->lock);
  char *text = engine->last_program != NULL ? torus_strdup(engine->last_program) : NULL;
  pthread_mutex_unlock(&engine->lock);
  return text;
}

uint64_t torus_engine_compilations(torus_engine_t *engine, uint64_t after,
                                   void (*visit)(void *context, const torus_compilation_t *event),
                                   void *context) {
  return torus_explain_visit(engine->explain, after, visit, context);
}

void torus_engine_clear_programs(torus_engine_t *engine) {
  wait_for_queue(engine);
  torus_program_cache_clear(engine->cache);
  if (engine->bounds != NULL) torus_bounds_clear(engine->bounds);
}

void torus_engine_set_cache_only(torus_engine_t *engine, bool cache_only) {
  atomic_store(&engine->cache_only, cache_only);
}
