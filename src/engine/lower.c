/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* A capture as text: for export, and for compilers of devices that are not here. */
#include "engine/capture_internal.h"

static torus_status_t arguments_of(const torus_job_t *job, const hlo_encoding_t *encoding,
                                   int **out_aliases) {
  void *block;
  TORUS_TRY(torus_try_alloc((encoding->parameter_count + 1) * sizeof(int), &block));
  *out_aliases = block;
  for (size_t p = 0; p < encoding->parameter_count; ++p) {
    (*out_aliases)[p] = job->aliases[encoding->parameters[p]];
  }
  return TORUS_OK;
}

static torus_status_t print_encoded(torus_job_t *job, const hlo_encoding_t *encoding,
                                    torus_strbuf_t *text) {
  int *aliases = NULL;
  TORUS_TRY(arguments_of(job, encoding, &aliases));
  torus_status_t status =
      hlo_print(job->window.graph, job->outputs, job->output_count, NULL, aliases, text);
  torus_free(aliases);
  return status;
}

static torus_status_t print(torus_capture_t *capture, torus_job_t *job, torus_strbuf_t *text) {
  hlo_encoding_t encoding = {0};
  torus_status_t status =
      hlo_encode(job->window.graph, job->outputs, job->output_count, &encoding);
  if (status == TORUS_OK) status = torus_capture_keep_sources(capture, job, &encoding);
  if (status == TORUS_OK) status = print_encoded(job, &encoding, text);
  hlo_encoding_deinit(&encoding);
  return status;
}

static torus_status_t lower(torus_engine_t *engine, int device,
                            const torus_capture_wanted_t *wanted, torus_capture_t **out_capture,
                            torus_strbuf_t *text) {
  torus_job_t *job;
  engine->devices[device].window.check_count = 0;
  TORUS_TRY(torus_capture_close(engine, device, wanted, out_capture, &job));
  if (job == NULL) {
    return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                             "there is nothing to lower: no result depends on an operator");
  }
  torus_status_t status = print(*out_capture, job, text);
  torus_job_destroy(job);
  return status;
}

torus_status_t torus_capture_lower(torus_engine_t *engine, int device,
                                   torus_storage_t *const *storages, size_t count,
                                   torus_capture_t **out_capture, char **out_text,
                                   size_t *out_text_bytes) {
  const torus_capture_wanted_t wanted = {storages, count};
  torus_strbuf_t text = {0};
  *out_capture = NULL;
  *out_text = NULL;
  *out_text_bytes = 0;
  torus_device_lock(engine, device);
  torus_status_t status = lower(engine, device, &wanted, out_capture, &text);
  pthread_mutex_unlock(&engine->devices[device].lock);
  if (status == TORUS_OK) {
    *out_text = text.data;
    *out_text_bytes = text.size;
    return TORUS_OK;
  }
  torus_strbuf_deinit(&text);
  torus_capture_release(*out_capture);
  *out_capture = NULL;
  return status;
}

void torus_capture_set_mixed_products(torus_engine_t *engine, int device, bool mixed) {
  torus_device_lock(engine, device);
  hlo_graph_set_mixed_products(engine->devices[device].window.graph, mixed);
  pthread_mutex_unlock(&engine->devices[device].lock);
}

/* ---- what the program takes and gives ---- */

size_t torus_capture_argument_count(const torus_capture_t *capture) { return capture->source_count; }

torus_capture_slot_t torus_capture_argument(const torus_capture_t *capture, size_t index) {
  const torus_capture_source_t *source = &capture->sources[index];
  return (torus_capture_slot_t){.kind = source->kind,
                                .storage = source->storage,
                                .value = source->value,
                                .result = source->alias,
                                .dtype = source->value->dtype,
                                .rank = source->value->rank,
                                .dims = source->value->dims};
}

size_t torus_capture_result_count(const torus_capture_t *capture) { return capture->result_count; }

torus_capture_slot_t torus_capture_output(const torus_capture_t *capture, size_t index) {
  const torus_capture_binding_t *output = &capture->outputs[index];
  const torus_value_t *type = capture->results[output->index];
  return (torus_capture_slot_t){.storage = output->storage,
                                .result = (int)output->index,
                                .dtype = type->dtype,
                                .rank = type->rank,
                                .dims = type->dims};
}
