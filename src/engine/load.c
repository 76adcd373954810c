/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Programs that come as text or as a serialized executable, in the form of a capture. */
#include "engine/capture_internal.h"

static torus_status_t type_of(torus_capture_t *capture, const torus_capture_slot_t *slot,
                              torus_value_t **out_type) {
  return torus_value_create(capture->engine, capture->device, slot->dtype, slot->rank, slot->dims,
                            out_type);
}

static torus_status_t add_arguments(torus_capture_t *capture, const torus_capture_slot_t *slots,
                                    size_t count) {
  void *block;
  TORUS_TRY(torus_try_alloc((count + 1) * sizeof *capture->inputs, &block));
  capture->inputs = block;
  TORUS_TRY(torus_try_alloc((count + 1) * sizeof *capture->sources, &block));
  capture->sources = block;
  for (size_t i = 0; i < count; ++i) {
    TORUS_TRY(type_of(capture, &slots[i], &capture->inputs[i]));
    capture->input_count = i + 1;
    capture->sources[i] = (torus_capture_source_t){
        .kind = slots[i].kind, .value = capture->inputs[i], .alias = slots[i].result};
    capture->source_count = i + 1;
  }
  return TORUS_OK;
}

static torus_status_t add_results(torus_capture_t *capture, const torus_capture_slot_t *slots,
                                  size_t count) {
  void *block;
  TORUS_TRY(torus_try_alloc((count + 1) * sizeof *capture->results, &block));
  capture->results = block;
  for (size_t i = 0; i < count; ++i) {
    TORUS_TRY(type_of(capture, &slots[i], &capture->results[i]));
    capture->result_count = i + 1;
  }
  return TORUS_OK;
}

static void count_compilation(torus_engine_t *engine) {
  pthread_mutex_lock(&engine->lock);
  engine->metrics.compilations += 1;
  pthread_mutex_unlock(&engine->lock);
}

static torus_status_t get_executable(torus_capture_t *capture, const torus_program_bytes_t *bytes) {
  torus_client_t *client = capture->engine->client;
  if (bytes->is_serialized) {
    return torus_executable_load(client, bytes->data, bytes->size, &capture->executable);
  }
  count_compilation(capture->engine);
  return torus_executable_compile(client, capture->device, bytes->data, bytes->size,
                                  TORUS_EFFORT_DEFAULT, &capture->executable);
}

torus_status_t torus_capture_load(torus_engine_t *engine, int device,
                                  const torus_program_bytes_t *bytes,
                                  const torus_capture_slot_t *arguments, size_t argument_count,
                                  const torus_capture_slot_t *results, size_t result_count,
                                  torus_capture_t **out_capture) {
  void *block;
  *out_capture = NULL;
  TORUS_TRY(torus_try_alloc(sizeof(torus_capture_t), &block));
  torus_capture_t *capture = block;
  atomic_init(&capture->refs, 1);
  capture->engine = engine;
  capture->device = device;
  capture->random = HLO_NONE;
  torus_status_t status = add_arguments(capture, arguments, argument_count);
  if (status == TORUS_OK) status = add_results(capture, results, result_count);
  if (status == TORUS_OK) status = get_executable(capture, bytes);
  if (status == TORUS_OK) {
    *out_capture = capture;
  } else {
    torus_capture_release(capture);
  }
  return status;
}

torus_status_t torus_capture_serialize(const torus_capture_t *capture, char **out_bytes,
                                       size_t *out_size) {
  *out_bytes = NULL;
  *out_size = 0;
  if (capture->executable == NULL) {
    return torus_status_make(TORUS_STATUS_FAILED_PRECONDITION, "this capture was not compiled");
  }
  return torus_executable_serialize(capture->executable, out_bytes, out_size);
}
