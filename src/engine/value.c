/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
#include <string.h>

#include "engine/engine_internal.h"

static size_t elements(int rank, const int64_t *dims) {
  size_t n = 1;
  for (int i = 0; i < rank; ++i) n *= (size_t)dims[i];
  return n;
}

torus_status_t torus_value_create(torus_engine_t *engine, int device, torus_dtype_t dtype, int rank,
                                  const int64_t *dims, torus_value_t **out_value) {
  *out_value = NULL;
  void *block;
  TORUS_TRY(torus_try_alloc(sizeof(torus_value_t) + (size_t)rank * sizeof(int64_t), &block));
  torus_value_t *value = block;
  atomic_init(&value->refs, 1);
  atomic_init(&value->state, TORUS_VALUE_OPEN);
  atomic_init(&value->queued, 0);
  value->engine = engine;
  value->device = device;
  value->dtype = dtype;
  value->rank = rank;
  value->node = HLO_NONE;
  if (rank > 0) memcpy(value->dims, dims, (size_t)rank * sizeof(int64_t));
  *out_value = value;
  return TORUS_OK;
}

torus_value_t *torus_value_retain(torus_value_t *value) {
  if (value != NULL) atomic_fetch_add_explicit(&value->refs, 1, memory_order_relaxed);
  return value;
}

void torus_value_release(torus_value_t *value) {
  if (value == NULL) return;
  if (atomic_fetch_sub_explicit(&value->refs, 1, memory_order_acq_rel) != 1) return;
  torus_buffer_release(value->buffer);
  torus_status_free(value->error);
  torus_free(value);
}

int64_t torus_value_numel(const torus_value_t *value) {
  return (int64_t)elements(value->rank, value->dims);
}

size_t torus_value_size_bytes(const torus_value_t *value) {
  return elements(value->rank, value->dims) * torus_dtype_bytes(value->dtype);
}

torus_status_t torus_value_from_host(torus_engine_t *engine, int device, const void *data,
                                     torus_dtype_t dtype, int rank, const int64_t *dims,
                                     torus_value_t **out_value) {
  TORUS_TRY(torus_value_create(engine, device, dtype, rank, dims, out_value));
  torus_value_t *value = *out_value;
  torus_status_t status =
      torus_buffer_from_host(engine->client, device, data, dtype, rank, dims, &value->buffer);
  if (status != TORUS_OK) {
    torus_value_release(value);
    *out_value = NULL;
    return torus_status_annotate(status, "copy to device tpu:%d", device);
  }
  atomic_store(&value->state, TORUS_VALUE_READY);
  pthread_mutex_lock(&engine->lock);
  engine->metrics.transfers_to_device += 1;
  engine->metrics.bytes_to_device += (int64_t)torus_value_size_bytes(value);
  pthread_mutex_unlock(&engine->lock);
  return TORUS_OK;
}

/* The window is closed under the device lock, so the caller must not hold it. */
static torus_status_t close_if_open(torus_value_t *value) {
  if (atomic_load(&value->state) != TORUS_VALUE_OPEN) return TORUS_OK;
  torus_device_t *device = &value->engine->devices[value->device];
  pthread_mutex_lock(&device->lock);
  torus_status_t status = TORUS_OK;
  if (atomic_load(&value->state) == TORUS_VALUE_OPEN) {
    status = torus_window_close(value->engine, value->device);
  }
  pthread_mutex_unlock(&device->lock);
  return status;
}

torus_status_t torus_value_wait(torus_value_t *value) {
  TORUS_TRY(close_if_open(value));
  torus_engine_t *engine = value->engine;
  pthread_mutex_lock(&engine->lock);
  if (atomic_load(&value->state) == TORUS_VALUE_QUEUED) {
    torus_engine_wait_ticket(engine, value->ticket);
  }
  pthread_mutex_unlock(&engine->lock);
  if (atomic_load(&value->state) != TORUS_VALUE_FAILED) return TORUS_OK;
  torus_engine_drop_failure(engine, value->device);
  return torus_status_clone(value->error);
}

torus_status_t torus_value_to_host(torus_value_t *value, void *data, size_t size_bytes) {
  TORUS_TRY(torus_value_wait(value));
  TORUS_TRY(torus_engine_verify(value->engine));
  TORUS_TRY(torus_buffer_to_host(value->buffer, data, size_bytes));
  torus_engine_t *engine = value->engine;
  pthread_mutex_lock(&engine->lock);
  engine->metrics.transfers_to_host += 1;
  engine->metrics.bytes_to_host += (int64_t)size_bytes;
  pthread_mutex_unlock(&engine->lock);
  return TORUS_OK;
}

torus_status_t torus_value_to_device(torus_value_t *value, int device, torus_value_t **out_value) {
  *out_value = NULL;
  TORUS_TRY(torus_value_wait(value));
  torus_value_t *copy;
  TORUS_TRY(torus_value_create(value->engine, device, value->dtype, value->rank, value->dims, &copy));
  torus_status_t status = torus_buffer_copy_to_device(value->buffer, device, &copy->buffer);
  if (status != TORUS_OK) {
    torus_value_release(copy);
    return torus_status_annotate(status, "copy from tpu:%d to tpu:%d", value->device, device);
  }
  atomic_store(&copy->state, TORUS_VALUE_READY);
  *out_value = copy;
  return TORUS_OK;
}
