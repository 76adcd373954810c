/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Contents with a type and nothing else: models that are too large to exist here. */
#include "engine/engine_internal.h"

torus_status_t torus_abstract_refuse(void) {
  return torus_status_make(
      TORUS_STATUS_FAILED_PRECONDITION,
      "this tensor is abstract: it has a shape and a dtype but no content, because it was made under "
      "torch_tpu.aot.abstract() or by a function that was only lowered. It cannot be read or computed "
      "with outside of them; make it anew, or copy real data into all of it first");
}

bool torus_engine_is_abstract(torus_engine_t *engine) {
  return atomic_load(&engine->abstract_depth) > 0;
}

/* ---- windows ---- */

void torus_window_abstract(torus_window_t *window) {
  for (size_t i = 0; i < window->value_count; ++i) {
    window->values[i]->node = HLO_NONE;
    atomic_store(&window->values[i]->state, TORUS_VALUE_ABSTRACT);
  }
  torus_window_forget(window);
}

static torus_status_t close_windows(torus_engine_t *engine) {
  torus_status_t status = TORUS_OK;
  for (int i = 0; i < engine->device_count && status == TORUS_OK; ++i) {
    torus_device_lock(engine, i);
    status = torus_window_close(engine, i);
    pthread_mutex_unlock(&engine->devices[i].lock);
  }
  return status;
}

torus_status_t torus_abstract_begin(torus_engine_t *engine) {
  if (!torus_engine_is_abstract(engine)) TORUS_TRY(close_windows(engine));
  atomic_fetch_add(&engine->abstract_depth, 1);
  return TORUS_OK;
}

void torus_abstract_end(torus_engine_t *engine) {
  const bool is_last = atomic_load(&engine->abstract_depth) == 1;
  for (int i = 0; is_last && i < engine->device_count; ++i) {
    torus_device_t *device = &engine->devices[i];
    torus_device_lock(engine, i);
    if (device->capture == NULL) torus_window_abstract(&device->window);
    pthread_mutex_unlock(&device->lock);
  }
  atomic_fetch_sub(&engine->abstract_depth, 1);
}

/* ---- storages ---- */

torus_status_t torus_storage_set_abstract(torus_storage_t *storage, torus_dtype_t dtype, int rank,
                                          const int64_t *dims) {
  size_t bytes = torus_dtype_bytes(dtype);
  for (int d = 0; d < rank; ++d) bytes *= (size_t)dims[d];
  if (bytes != storage->size_bytes) {
    return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                             "a storage of %zu bytes cannot have content of %zu bytes",
                             storage->size_bytes, bytes);
  }
  torus_value_t *value;
  TORUS_TRY(torus_value_create_abstract(storage->engine, storage->device, dtype, rank, dims, &value));
  torus_storage_set(storage, value);
  torus_value_release(value);
  return TORUS_OK;
}

torus_status_t torus_storage_set_abstract_like(torus_storage_t *storage,
                                               const torus_storage_t *like) {
  const torus_value_t *type = like->value;
  if (type == NULL || torus_value_size_bytes(type) != storage->size_bytes) return TORUS_OK;
  return torus_storage_set_abstract(storage, type->dtype, type->rank, type->dims);
}

void torus_storage_lay_abstract(torus_storage_t *storage, torus_sharding_t *sharding) {
  torus_value_t *value = storage->value;
  if (value == NULL) return;
  torus_sharding_release(value->wanted);
  value->wanted = torus_sharding_retain(sharding);
  torus_storage_pin(storage, sharding);
}

bool torus_storage_is_abstract(torus_storage_t *storage) {
  const torus_value_t *value = storage->value;
  if (value == NULL) return storage->is_abstract;
  return atomic_load(&value->state) == TORUS_VALUE_ABSTRACT;
}

/* The view's own sizes where it is the whole storage in order, else a row of its elements, or bytes
 * where those do not come out even. */
static torus_status_t fill(torus_storage_t *storage, const torus_view_t *view) {
  const torus_dtype_t dtype = view != NULL ? view->dtype : TORUS_DTYPE_U8;
  const size_t item = torus_dtype_bytes(dtype);
  const int64_t count = (int64_t)(storage->size_bytes / item);
  if (storage->size_bytes % item != 0) return fill(storage, NULL);
  const bool is_dense = view != NULL && torus_view_is_dense(view, count);
  return torus_value_create_abstract(storage->engine, storage->device, dtype,
                                     is_dense ? view->rank : 1, is_dense ? view->sizes : &count,
                                     &storage->value);
}

torus_status_t torus_storage_fill_abstract(torus_storage_t *storage, const torus_view_t *view) {
  if (!storage->is_abstract || storage->value != NULL) return TORUS_OK;
  const uint64_t capturing = atomic_load(&storage->engine->devices[storage->device].capturing);
  if (capturing != 0 && storage->born_in == capturing) return TORUS_OK;
  return fill(storage, view);
}

void torus_storage_leave_abstract(torus_storage_t *storage, const torus_value_t *value) {
  if (value == NULL || atomic_load(&value->state) == TORUS_VALUE_ABSTRACT) return;
  if (torus_engine_is_abstract(storage->engine)) return;
  storage->is_abstract = false;
  torus_storage_account(storage);
}
