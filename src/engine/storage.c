/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
#include <stdio.h>

#include "engine/engine_internal.h"

static void count_allocation(torus_device_t *device, size_t bytes) {
  torus_device_memory_t *m = &device->memory;
  m->used_bytes += (int64_t)bytes;
  m->used_count += 1;
  m->total_allocated_bytes += (int64_t)bytes;
  m->total_allocated_count += 1;
  if (m->used_bytes > m->peak_bytes) m->peak_bytes = m->used_bytes;
  if (m->used_count > m->peak_count) m->peak_count = m->used_count;
}

static void count_free(torus_device_t *device, size_t bytes) {
  torus_device_memory_t *m = &device->memory;
  m->used_bytes -= (int64_t)bytes;
  m->used_count -= 1;
  m->total_freed_bytes += (int64_t)bytes;
  m->total_freed_count += 1;
}

static void describe_bytes(int64_t bytes, char *text, size_t size) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double amount = (double)bytes;
  int unit = 0;
  while (amount >= 1024 && unit < 5) {
    amount /= 1024;
    unit += 1;
  }
  snprintf(text, size, unit == 0 ? "%.0f %s" : "%.2f %s", amount, units[unit]);
}

static torus_status_t out_of_memory(int device, size_t asked, const torus_device_memory_t *m) {
  char ask[32], used[32], limit[32], spare[32];
  describe_bytes((int64_t)asked, ask, sizeof ask);
  describe_bytes(m->used_bytes, used, sizeof used);
  describe_bytes(m->limit_bytes, limit, sizeof limit);
  describe_bytes(m->limit_bytes - m->used_bytes, spare, sizeof spare);
  return torus_status_make(
      TORUS_STATUS_RESOURCE_EXHAUSTED,
      "TPU out of memory. Tried to allocate %s on tpu:%d, which has %s in all, of which %s are in "
      "use by %lld tensors and %s are free. Free tensors, or use smaller batches or types.",
      ask, device, limit, used, (long long)m->used_count, spare);
}

static torus_status_t reserve(torus_engine_t *engine, int device, size_t bytes) {
  torus_device_t *d = &engine->devices[device];
  pthread_mutex_lock(&d->memory_lock);
  torus_status_t status = TORUS_OK;
  const int64_t limit = d->memory.limit_bytes;
  if (limit > 0 && (bytes > (size_t)limit || d->memory.used_bytes > limit - (int64_t)bytes)) {
    status = out_of_memory(device, bytes, &d->memory);
  } else {
    count_allocation(d, bytes);
  }
  pthread_mutex_unlock(&d->memory_lock);
  return status;
}

void torus_storage_account(torus_storage_t *storage) {
  torus_device_t *d = &storage->engine->devices[storage->device];
  pthread_mutex_lock(&d->memory_lock);
  count_allocation(d, storage->size_bytes);
  pthread_mutex_unlock(&d->memory_lock);
}

static void unreserve(torus_engine_t *engine, int device, size_t bytes) {
  torus_device_t *d = &engine->devices[device];
  pthread_mutex_lock(&d->memory_lock);
  count_free(d, bytes);
  pthread_mutex_unlock(&d->memory_lock);
}

torus_status_t torus_storage_create(torus_engine_t *engine, int device, size_t size_bytes,
                                    torus_storage_t **out_storage) {
  *out_storage = NULL;
  const bool is_abstract = torus_engine_is_abstract(engine);
  if (!is_abstract) TORUS_TRY(reserve(engine, device, size_bytes));
  torus_storage_t *storage = torus_alloc(sizeof *storage);
  if (storage == NULL) {
    if (!is_abstract) unreserve(engine, device, size_bytes);
    return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
  }
  atomic_init(&storage->refs, 1);
  storage->engine = engine;
  storage->device = device;
  storage->size_bytes = size_bytes;
  storage->is_abstract = is_abstract;
  storage->born_in = atomic_load(&engine->devices[device].capturing);
  *out_storage = storage;
  return TORUS_OK;
}

torus_storage_t *torus_storage_retain(torus_storage_t *storage) {
  atomic_fetch_add_explicit(&storage->refs, 1, memory_order_relaxed);
  return storage;
}

void torus_storage_release(torus_storage_t *storage) {
  if (storage == NULL) return;
  if (atomic_fetch_sub_explicit(&storage->refs, 1, memory_order_acq_rel) != 1) return;
  if (atomic_load(&storage->capture_slot) != 0) torus_capture_forget(storage);
  if (!storage->is_abstract) unreserve(storage->engine, storage->device, storage->size_bytes);
  torus_value_release(storage->value);
  torus_sharding_release(storage->pinned);
  torus_free(storage);
}

int torus_storage_device(const torus_storage_t *storage) { return storage->device; }

size_t torus_storage_size_bytes(const torus_storage_t *storage) { return storage->size_bytes; }

static bool can_lie(const torus_value_t *value, const torus_sharding_t *sharding) {
  return torus_sharding_layout(sharding).rank == value->rank;
}

/* What replaces a content that lies on several devices lies as that did: a result by asking the
 * compiler for it, what comes from the host or another tensor by being laid out. Takes over
 * |value| and returns what to hold instead. */
static torus_value_t *lie_as_pinned(torus_storage_t *storage, torus_value_t *value) {
  torus_value_t *laid;
  const int state = atomic_load(&value->state);
  if (!can_lie(value, storage->pinned)) return value;
  if (state == TORUS_VALUE_OPEN && value->wanted == NULL) {
    value->wanted = torus_sharding_retain(storage->pinned);
  }
  const bool is_elsewhere = state == TORUS_VALUE_READY && value->buffer != NULL &&
                            torus_buffer_sharding(value->buffer) == NULL;
  if (!is_elsewhere) return value;
  torus_status_t status = torus_value_lay_out(value, storage->pinned, 0, &laid);
  if (status != TORUS_OK) { /* where it is, it can be used as well */
    torus_status_ignore(status);
    return value;
  }
  torus_value_release(value);
  return laid;
}

void torus_storage_lie_like(torus_storage_t *storage, const torus_storage_t *like) {
  if (storage->pinned == NULL) storage->pinned = torus_sharding_retain(like->pinned);
}

void torus_storage_pin(torus_storage_t *storage, torus_sharding_t *sharding) {
  torus_sharding_release(storage->pinned);
  storage->pinned = torus_sharding_retain(sharding);
}

torus_status_t torus_storage_sharding(torus_storage_t *storage, torus_sharding_t **out_sharding) {
  torus_device_t *device = &storage->engine->devices[storage->device];
  *out_sharding = NULL;
  if (!torus_engine_is_spread(storage->engine)) return TORUS_OK;
  pthread_mutex_lock(&device->lock);
  torus_value_t *value = torus_value_retain(storage->value);
  pthread_mutex_unlock(&device->lock);
  if (value == NULL) return TORUS_OK;
  torus_status_t status = torus_value_sharding(value, out_sharding);
  torus_value_release(value);
  return status;
}

void torus_storage_set(torus_storage_t *storage, torus_value_t *value) {
  torus_device_t *device = &storage->engine->devices[storage->device];
  torus_value_t *next = device->capture != NULL ? torus_capture_write(device, storage, value)
                                                : torus_value_retain(value);
  torus_value_t *old = storage->value;
  if (storage->is_abstract) torus_storage_leave_abstract(storage, next);
  if (next != NULL && storage->pinned != NULL) next = lie_as_pinned(storage, next);
  if (next != NULL && storage->pinned == NULL) {
    storage->pinned = torus_sharding_retain(next->wanted);
  }
  storage->value = next;
  torus_value_release(old);
}

/* The content of a storage in a capture is whatever it is at each run: a node, not a value. */
static torus_value_t *captured_content(torus_device_t *device, torus_storage_t *storage) {
  torus_value_t *value;
  const hlo_t node = torus_capture_read(device, storage);
  if (node == HLO_NONE) return torus_value_retain(storage->value);
  torus_status_t status = torus_window_value(storage->engine, storage->device, node, &value);
  if (status == TORUS_OK) return value;
  torus_status_ignore(status);
  return torus_value_retain(storage->value);
}

torus_value_t *torus_storage_get(torus_storage_t *storage) {
  torus_device_t *device = &storage->engine->devices[storage->device];
  torus_status_ignore(torus_storage_fill_abstract(storage, NULL));
  torus_value_t *value = storage->value;
  const bool is_outside = value != NULL && atomic_load(&value->state) != TORUS_VALUE_OPEN;
  if (device->capture != NULL && is_outside) return captured_content(device, storage);
  return torus_value_retain(value);
}

hlo_t torus_storage_node(torus_device_t *device, torus_storage_t *storage) {
  if (device->capture != NULL) return torus_capture_read(device, storage);
  return torus_window_node(device, storage->value);
}

/* The leading |size_bytes| of the flat bytes of |x|, zero-filled where it grows. */
static hlo_t resized(hlo_graph_t *g, hlo_t x, size_t size_bytes) {
  hlo_t bytes = torus_view_bitcast(g, hlo_flatten(g, x), TORUS_DTYPE_U8);
  const int64_t low = 0, high = (int64_t)size_bytes - hlo_numel(g, bytes);
  return hlo_pad(g, bytes, hlo_const(g, TORUS_DTYPE_U8, 0), &low, &high, NULL);
}

static torus_status_t resize_value(torus_storage_t *storage, size_t size_bytes) {
  torus_device_t *device = &storage->engine->devices[storage->device];
  hlo_graph_t *g = device->window.graph;
  hlo_t node = resized(g, torus_storage_node(device, storage), size_bytes);
  TORUS_TRY(hlo_graph_take_error(g));
  torus_value_t *value;
  TORUS_TRY(torus_window_value(storage->engine, storage->device, node, &value));
  torus_storage_set(storage, value);
  torus_value_release(value);
  return TORUS_OK;
}

torus_status_t torus_storage_resize(torus_storage_t *storage, size_t size_bytes) {
  if (size_bytes == storage->size_bytes) return TORUS_OK;
  TORUS_TRY(torus_capture_refuse_resize(storage));
  if (!storage->is_abstract) TORUS_TRY(reserve(storage->engine, storage->device, size_bytes));
  torus_status_t status = TORUS_OK;
  torus_device_lock(storage->engine, storage->device);
  if (storage->value != NULL && (size_bytes == 0 || storage->size_bytes == 0)) {
    torus_storage_set(storage, NULL);
  } else if (storage->value != NULL) {
    status = resize_value(storage, size_bytes);
  }
  const size_t given_up = status == TORUS_OK ? storage->size_bytes : size_bytes;
  if (status == TORUS_OK) storage->size_bytes = size_bytes;
  pthread_mutex_unlock(&storage->engine->devices[storage->device].lock);
  if (!storage->is_abstract) unreserve(storage->engine, storage->device, given_up);
  return status;
}
