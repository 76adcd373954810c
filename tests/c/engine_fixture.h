/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* What the tests of the engine share: an engine on the plugin in TORUS_TEST_PLUGIN, tensors as plain
 * records, and operators called by name. */
#ifndef TORUS_TESTS_ENGINE_FIXTURE_H_
#define TORUS_TESTS_ENGINE_FIXTURE_H_

#include <math.h>

#include "test.h"
#include "torus/engine.h"

enum { FIXTURE_MAX_RANK = 8 };

typedef struct tensor {
  torus_storage_t *storage;
  torus_dtype_t dtype;
  int rank;
  int64_t sizes[FIXTURE_MAX_RANK], strides[FIXTURE_MAX_RANK], offset;
} tensor_t;

static inline const char *fixture_plugin(void) {
  const char *path = getenv("TORUS_TEST_PLUGIN");
  return path && path[0] ? path : NULL;
}

static inline torus_status_t fixture_open(int devices, const torus_engine_options_t *options,
                                          torus_engine_t **out_engine) {
  const char *path = fixture_plugin();
  const torus_client_options_t client_options = {path, devices, strstr(path, "cpu") != NULL};
  torus_client_t *client;
  *out_engine = NULL;
  TORUS_TRY(torus_client_create(&client_options, &client));
  return torus_engine_create(client, options, out_engine);
}

static inline int64_t tensor_numel(const tensor_t *t) {
  int64_t n = 1;
  for (int d = 0; d < t->rank; d++) n *= t->sizes[d];
  return n;
}

static inline void tensor_set_shape(tensor_t *t, int rank, const int64_t *sizes) {
  int64_t stride = 1;
  t->rank = rank;
  t->offset = 0;
  for (int d = rank; d-- > 0; stride *= sizes[d]) {
    t->sizes[d] = sizes[d];
    t->strides[d] = stride;
  }
}

static inline torus_view_t tensor_view(const tensor_t *t) {
  return (torus_view_t){.storage = t->storage,
                        .dtype = t->dtype,
                        .rank = t->rank,
                        .sizes = t->sizes,
                        .strides = t->strides,
                        .offset = t->offset};
}

static inline void tensor_free(tensor_t *t) {
  torus_storage_release(t->storage);
  t->storage = NULL;
}

/* A dense tensor without content. */
static inline torus_status_t tensor_empty(torus_engine_t *engine, int device, torus_dtype_t dtype,
                                          int rank, const int64_t *sizes, tensor_t *out_tensor) {
  *out_tensor = (tensor_t){.dtype = dtype};
  tensor_set_shape(out_tensor, rank, sizes);
  const size_t bytes = (size_t)tensor_numel(out_tensor) * torus_dtype_bytes(dtype);
  return torus_storage_create(engine, device, bytes, &out_tensor->storage);
}

static inline torus_status_t tensor_from(torus_engine_t *engine, int device, torus_dtype_t dtype,
                                         int rank, const int64_t *sizes, const void *data,
                                         tensor_t *out_tensor) {
  torus_value_t *value;
  TORUS_TRY(tensor_empty(engine, device, dtype, rank, sizes, out_tensor));
  torus_status_t status = torus_value_from_host(engine, device, data, dtype, rank, sizes, &value);
  if (status) {
    tensor_free(out_tensor);
    return status;
  }
  torus_device_lock(engine, device);
  torus_storage_set(out_tensor->storage, value);
  status = torus_device_unlock(engine, device, TORUS_MODE_FUSED);
  torus_value_release(value);
  return status;
}

/* The elements, dense. */
static inline torus_status_t tensor_read(torus_engine_t *engine, const tensor_t *t, void *data) {
  const torus_view_t view = tensor_view(t);
  const int device = torus_storage_device(t->storage);
  torus_value_t *value = NULL;
  torus_device_lock(engine, device);
  torus_status_t status = torus_view_read(engine, &view, &value);
  torus_status_t unlocked = torus_device_unlock(engine, device, TORUS_MODE_FUSED);
  if (!status) {
    status = unlocked;
  } else {
    torus_status_free(unlocked);
  }
  const size_t bytes = (size_t)tensor_numel(t) * torus_dtype_bytes(t->dtype);
  if (!status) status = torus_value_to_host(value, data, bytes);
  torus_value_release(value);
  return status;
}

/* ---- operators ---- */

static inline torus_arg_t arg_tensor(torus_view_t *view) {
  return (torus_arg_t){.tag = TORUS_ARG_TENSOR, .count = 1, .as.views = view};
}

static inline torus_arg_t arg_double(double value) {
  return (torus_arg_t){.tag = TORUS_ARG_NUMBER,
                       .as.number = {.kind = TORUS_NUMBER_DOUBLE, .re = value}};
}

static inline torus_arg_t arg_int(int64_t value) {
  return (torus_arg_t){.tag = TORUS_ARG_NUMBER, .as.number = {.kind = TORUS_NUMBER_INT, .i = value}};
}

static inline void fixture_random(void *context, int64_t count, uint64_t *out_seed,
                                  uint64_t *out_offset) {
  uint64_t *offset = context;
  *out_seed = 7;
  *out_offset = *offset;
  *offset += (uint64_t)(count + 3) / 4;
}

static uint64_t fixture_random_offset;

/* Takes over the value of |result|. */
static inline torus_status_t fixture_wrap(torus_engine_t *engine, int device,
                                          const torus_result_t *result, tensor_t *out_tensor) {
  torus_status_t status =
      tensor_empty(engine, device, result->dtype, result->rank, result->sizes, out_tensor);
  if (!status) torus_storage_set(out_tensor->storage, result->value);
  torus_value_release(result->value);
  return status;
}

static inline torus_status_t fixture_record(torus_engine_t *engine, int device, const char *name,
                                            const torus_arg_t *args, int arg_count,
                                            tensor_t *out_tensor) {
  const torus_op_t *op = torus_op_find(name);
  const torus_request_t request = {.op = op,
                                   .traits = torus_op_traits(op),
                                   .device = device,
                                   .args = args,
                                   .arg_count = arg_count,
                                   .default_dtype = TORUS_DTYPE_F32,
                                   .reserve_random = fixture_random,
                                   .random_context = &fixture_random_offset};
  torus_result_t *results;
  int count;
  TORUS_TRY(torus_engine_call(engine, &request, &results, &count));
  return fixture_wrap(engine, device, results, out_tensor);
}

/* Calls an operator with one result in its own bracket. */
static inline torus_status_t fixture_call(torus_engine_t *engine, int device, torus_mode_t mode,
                                          const char *name, const torus_arg_t *args, int arg_count,
                                          tensor_t *out_tensor) {
  *out_tensor = (tensor_t){0};
  torus_device_lock(engine, device);
  torus_status_t status = fixture_record(engine, device, name, args, arg_count, out_tensor);
  torus_status_t unlocked = torus_device_unlock(engine, device, mode);
  if (!status) {
    status = unlocked;
  } else {
    torus_status_free(unlocked);
  }
  if (status) tensor_free(out_tensor);
  return status;
}

/* x + number * alpha, "add.Scalar" having become a wrapped number in "add.Tensor". */
static inline torus_status_t tensor_add(torus_engine_t *engine, torus_mode_t mode,
                                        const tensor_t *x, double number, tensor_t *out_tensor) {
  torus_view_t views[2] = {tensor_view(x),
                           {.dtype = TORUS_DTYPE_F64,
                            .is_number = true,
                            .number = {.kind = TORUS_NUMBER_DOUBLE, .re = number}}};
  const torus_arg_t args[3] = {arg_tensor(&views[0]), arg_tensor(&views[1]), arg_int(1)};
  return fixture_call(engine, torus_storage_device(x->storage), mode, "add.Tensor", args, 3,
                      out_tensor);
}

static inline torus_status_t tensor_multiply(torus_engine_t *engine, torus_mode_t mode,
                                             const tensor_t *x, const tensor_t *y,
                                             tensor_t *out_tensor) {
  torus_view_t views[2] = {tensor_view(x), tensor_view(y)};
  const torus_arg_t args[2] = {arg_tensor(&views[0]), arg_tensor(&views[1])};
  return fixture_call(engine, torus_storage_device(x->storage), mode, "mul.Tensor", args, 2,
                      out_tensor);
}

/* Writes |source| through |target|. */
static inline torus_status_t tensor_assign(torus_engine_t *engine, torus_mode_t mode,
                                           const tensor_t *target, const tensor_t *source) {
  const torus_view_t to = tensor_view(target), from = tensor_view(source);
  const int device = torus_storage_device(target->storage);
  torus_value_t *value = NULL;
  int64_t strides[FIXTURE_MAX_RANK], stride = 1;
  for (int d = from.rank; d-- > 0; stride *= from.sizes[d]) strides[d] = stride;
  torus_device_lock(engine, device);
  torus_status_t status = torus_view_read(engine, &from, &value);
  if (!status) status = torus_view_assign(engine, &to, value, from.rank, from.sizes, strides);
  torus_value_release(value);
  torus_status_t unlocked = torus_device_unlock(engine, device, mode);
  if (!status) return unlocked;
  torus_status_free(unlocked);
  return status;
}

static inline torus_metrics_t fixture_metrics(torus_engine_t *engine) {
  torus_metrics_t metrics;
  torus_engine_metrics(engine, &metrics);
  return metrics;
}

static inline int fixture_main(const test_case_t *tests, size_t count, int argc, char **argv) {
  if (!fixture_plugin()) {
    fprintf(stderr, "skipped: TORUS_TEST_PLUGIN does not name a PJRT plugin\n");
    return TEST_SKIPPED;
  }
  return test_run_all(tests, count, argc, argv);
}

#endif /* TORUS_TESTS_ENGINE_FIXTURE_H_ */
