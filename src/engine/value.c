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
  value->engine = engine;
  value->device = device;
  value->dtype = dtype;
  value->rank = rank;
  value->node = HLO_NONE;
  if (rank > 0) memcpy(value->dims, dims, (size_t)rank * sizeof(int64_t));
  *out_value = value;
  return TORUS_OK;
}

torus_status_t torus_value_create_abstract(torus_engine_t *engine, int device, torus_dtype_t dtype,
                                           int rank, const int64_t *dims,
                                           torus_value_t **out_value) {
  TORUS_TRY(torus_value_create(engine, device, dtype, rank, dims, out_value));
  atomic_store(&(*out_value)->state, TORUS_VALUE_ABSTRACT);
  return TORUS_OK;
}

torus_value_t *torus_value_retain(torus_value_t *value) {
  if (value != NULL) atomic_fetch_add_explicit(&value->refs, 1, memory_order_relaxed);
  return value;
}

static void give_up(torus_value_t *value, unsigned long long references) {
  const unsigned long long before =
      atomic_fetch_sub_explicit(&value->refs, references, memory_order_acq_rel);
  if (before != references) return;
  torus_buffer_release(value->buffer);
  torus_status_free(value->error);
  torus_sharding_release(value->wanted);
  torus_free(value->physical);
  torus_free(value);
}

void torus_value_release(torus_value_t *value) {
  if (value != NULL) give_up(value, 1);
}

void torus_value_release_queued(torus_value_t *value) {
  give_up(value, TORUS_VALUE_QUEUED_ONCE + 1);
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
    status = torus_window_close_awaited(value->engine, value->device);
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
  if (atomic_load(&value->state) == TORUS_VALUE_ABSTRACT) return torus_abstract_refuse();
  if (atomic_load(&value->state) != TORUS_VALUE_FAILED) return TORUS_OK;
  torus_engine_drop_failure(engine, value->device);
  return torus_status_clone(value->error);
}

/* ---- dimensions held ---- */

torus_status_t torus_value_set_physical(torus_value_t *value, const int64_t *dims) {
  const size_t bytes = (size_t)value->rank * sizeof *dims;
  if (bytes == 0 || memcmp(value->dims, dims, bytes) == 0) return TORUS_OK;
  TORUS_TRY(torus_try_alloc(bytes, (void **)&value->physical));
  memcpy(value->physical, dims, bytes);
  return TORUS_OK;
}

const int64_t *torus_value_held_dims(const torus_value_t *value) {
  return value->physical != NULL ? value->physical : value->dims;
}

/* Copies between an array |held| in larger dimensions and a dense one. */
static void copy_rows(char *held, const int64_t *held_dims, char *dense, const int64_t *dims,
                      int rank, size_t item_bytes, bool to_dense) {
  if (rank <= 1) {
    const size_t bytes = (rank == 1 ? (size_t)dims[0] : 1) * item_bytes;
    memcpy(to_dense ? dense : held, to_dense ? held : dense, bytes);
    return;
  }
  const size_t held_step = elements(rank - 1, held_dims + 1) * item_bytes;
  const size_t step = elements(rank - 1, dims + 1) * item_bytes;
  for (int64_t i = 0; i < dims[0]; ++i) {
    copy_rows(held + (size_t)i * held_step, held_dims + 1, dense + (size_t)i * step, dims + 1,
              rank - 1, item_bytes, to_dense);
  }
}

static size_t held_bytes(const torus_value_t *value) {
  return elements(value->rank, torus_value_held_dims(value)) * torus_dtype_bytes(value->dtype);
}

/* What the buffer holds, cut to what counts. */
static torus_status_t download(torus_value_t *value, void *data, size_t size_bytes) {
  if (value->physical == NULL) return torus_buffer_to_host(value->buffer, data, size_bytes);
  if (size_bytes != torus_value_size_bytes(value)) {
    return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT, "%zu bytes are wanted of an array of %zu bytes",
                             size_bytes, torus_value_size_bytes(value));
  }
  void *held;
  TORUS_TRY(torus_try_alloc(held_bytes(value), &held));
  torus_status_t status = torus_buffer_to_host(value->buffer, held, held_bytes(value));
  if (status == TORUS_OK) {
    copy_rows(held, value->physical, data, value->dims, value->rank,
              torus_dtype_bytes(value->dtype), true);
  }
  torus_free(held);
  return status;
}

static void count_transfers(torus_engine_t *engine, size_t to_host, size_t to_device) {
  pthread_mutex_lock(&engine->lock);
  engine->metrics.transfers_to_host += to_host > 0;
  engine->metrics.bytes_to_host += (int64_t)to_host;
  engine->metrics.transfers_to_device += to_device > 0;
  engine->metrics.bytes_to_device += (int64_t)to_device;
  pthread_mutex_unlock(&engine->lock);
}

static torus_status_t upload_padded(torus_value_t *held, char *dense, char *padded) {
  copy_rows(padded, held->physical, dense, held->dims, held->rank, torus_dtype_bytes(held->dtype),
            false);
  return torus_buffer_from_host(held->engine->client, held->device, padded, held->dtype, held->rank,
                                held->physical, &held->buffer);
}

torus_status_t torus_value_fill_padded(torus_value_t *held, torus_value_t *exact) {
  const size_t dense_bytes = torus_value_size_bytes(exact), padded_bytes = held_bytes(held);
  void *dense;
  TORUS_TRY(torus_try_alloc(dense_bytes + padded_bytes, &dense));
  torus_status_t status = torus_buffer_to_host(exact->buffer, dense, dense_bytes);
  if (status == TORUS_OK) status = upload_padded(held, dense, (char *)dense + dense_bytes);
  torus_free(dense);
  if (status == TORUS_OK) {
    atomic_store(&held->state, TORUS_VALUE_READY);
    count_transfers(held->engine, dense_bytes, padded_bytes);
  }
  return status;
}

torus_status_t torus_value_exact_buffer(torus_value_t *value, torus_buffer_t **out_buffer) {
  const size_t bytes = torus_value_size_bytes(value);
  void *dense;
  *out_buffer = NULL;
  TORUS_TRY(torus_try_alloc(bytes, &dense));
  torus_status_t status = download(value, dense, bytes);
  if (status == TORUS_OK) {
    status = torus_buffer_from_host(value->engine->client, value->device, dense, value->dtype,
                                    value->rank, value->dims, out_buffer);
  }
  torus_free(dense);
  if (status == TORUS_OK) count_transfers(value->engine, bytes, bytes);
  return status;
}

/* ---- to the host and to other devices ---- */

torus_status_t torus_value_to_host(torus_value_t *value, void *data, size_t size_bytes) {
  TORUS_TRY(torus_value_wait(value));
  TORUS_TRY(torus_engine_verify(value->engine));
  TORUS_TRY(download(value, data, size_bytes));
  torus_engine_t *engine = value->engine;
  pthread_mutex_lock(&engine->lock);
  engine->metrics.transfers_to_host += 1;
  engine->metrics.bytes_to_host += (int64_t)size_bytes;
  pthread_mutex_unlock(&engine->lock);
  return TORUS_OK;
}

torus_status_t torus_value_to_device(torus_value_t *value, int device, torus_value_t **out_value) {
  *out_value = NULL;
  if (torus_engine_is_abstract(value->engine)) {
    return torus_value_create_abstract(value->engine, device, value->dtype, value->rank, value->dims,
                                       out_value);
  }
  TORUS_TRY(torus_value_wait(value));
  torus_value_t *copy;
  TORUS_TRY(torus_value_create(value->engine, device, value->dtype, value->rank, value->dims, &copy));
  torus_status_t status = torus_value_set_physical(copy, torus_value_held_dims(value));
  if (status == TORUS_OK) {
    status = torus_buffer_copy_to_device(value->buffer, device, &copy->buffer);
  }
  if (status != TORUS_OK) {
    torus_value_release(copy);
    return torus_status_annotate(status, "copy from tpu:%d to tpu:%d", value->device, device);
  }
  atomic_store(&copy->state, TORUS_VALUE_READY);
  *out_value = copy;
  return TORUS_OK;
}

/* ---- on several devices ---- */

/* Programs that use the sharding's devices together may fill them all: the first of them, to which
 * everything is charged, has the room of all. */
static void note_spread(torus_engine_t *engine, const torus_sharding_t *sharding) {
  const torus_sharding_layout_t layout = torus_sharding_layout(sharding);
  atomic_store(&engine->is_spread, true);
  if (layout.device_count < 2) return;
  torus_device_t *home = &engine->devices[layout.devices[0]];
  const int64_t one = engine->devices[layout.devices[1]].memory.limit_bytes;
  pthread_mutex_lock(&home->memory_lock);
  if (home->memory.limit_bytes < one * layout.device_count) {
    home->memory.limit_bytes = one * layout.device_count;
  }
  pthread_mutex_unlock(&home->memory_lock);
}

torus_status_t torus_value_from_host_sharded(torus_engine_t *engine, const void *data,
                                             torus_dtype_t dtype, int rank, const int64_t *dims,
                                             torus_sharding_t *sharding,
                                             torus_value_t **out_value) {
  const int device = torus_sharding_layout(sharding).devices[0];
  torus_value_t *value;
  *out_value = NULL;
  if (device < 0 || device >= engine->device_count) {
    return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT, "there is no device tpu:%d", device);
  }
  TORUS_TRY(torus_value_create(engine, device, dtype, rank, dims, &value));
  torus_status_t status = torus_buffer_from_host_sharded(engine->client, data, dtype, rank, dims,
                                                         sharding, &value->buffer);
  if (status != TORUS_OK) {
    torus_value_release(value);
    return torus_status_annotate(status, "copy to several devices");
  }
  note_spread(engine, sharding);
  value->wanted = torus_sharding_retain(sharding);
  atomic_store(&value->state, TORUS_VALUE_READY);
  count_transfers(engine, 0, torus_value_size_bytes(value));
  *out_value = value;
  return TORUS_OK;
}

torus_status_t torus_value_lay_out(torus_value_t *value, torus_sharding_t *sharding, int device,
                                   torus_value_t **out_value) {
  *out_value = NULL;
  TORUS_TRY(torus_value_wait(value));
  torus_buffer_t *exact = torus_buffer_retain(value->buffer);
  if (value->physical != NULL) {
    torus_buffer_release(exact);
    TORUS_TRY(torus_value_exact_buffer(value, &exact));
  }
  torus_value_t *copy = NULL;
  const int home = sharding != NULL ? torus_sharding_layout(sharding).devices[0] : device;
  torus_status_t status =
      torus_value_create(value->engine, home, value->dtype, value->rank, value->dims, &copy);
  if (status == TORUS_OK) {
    status = torus_buffer_lay_out(exact, sharding, device, &copy->buffer);
    atomic_store(&copy->state, TORUS_VALUE_READY);
  }
  torus_buffer_release(exact);
  if (status == TORUS_OK) {
    if (sharding != NULL) note_spread(value->engine, sharding);
    copy->wanted = torus_sharding_retain(sharding);
    *out_value = copy;
    copy = NULL;
  }
  torus_value_release(copy);
  return status;
}

bool torus_engine_is_spread(torus_engine_t *engine) { return atomic_load(&engine->is_spread); }

torus_status_t torus_value_sharding(torus_value_t *value, torus_sharding_t **out_sharding) {
  const int state = atomic_load(&value->state);
  *out_sharding = NULL;
  if (!torus_engine_is_spread(value->engine)) return TORUS_OK;
  if (value->wanted != NULL && state != TORUS_VALUE_FAILED) {
    *out_sharding = torus_sharding_retain(value->wanted);
    return TORUS_OK;
  }
  TORUS_TRY(torus_value_wait(value));
  *out_sharding = torus_sharding_retain(torus_buffer_sharding(value->buffer));
  return TORUS_OK;
}
