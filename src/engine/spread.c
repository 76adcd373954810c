/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Programs on several devices. Computation follows data: where an input of a window lies on several
 * devices, the window's program runs on all of them. */
#include <string.h>

#include "engine/engine_internal.h"

struct torus_spread {
  size_t argument_count;
  torus_sharding_t *mesh;        /* the first that was found; retained */
  torus_sharding_t *arguments[]; /* retained; NULL: on a single device */
};

void torus_spread_destroy(torus_spread_t *spread) {
  if (spread == NULL) return;
  for (size_t i = 0; i < spread->argument_count; ++i) torus_sharding_release(spread->arguments[i]);
  torus_sharding_release(spread->mesh);
  torus_free(spread);
}

/* Values that failed have no buffer. */
static torus_sharding_t *sharding_of(const torus_value_t *input) {
  return input->buffer != NULL ? torus_buffer_sharding(input->buffer) : NULL;
}

bool torus_job_is_spread(const torus_job_t *job) {
  for (size_t i = 0; i < job->window.input_count; ++i) {
    if (sharding_of(job->window.inputs[i]) != NULL) return true;
  }
  return false;
}

static torus_status_t add_argument(torus_spread_t *spread, size_t index,
                                   torus_sharding_t *sharding) {
  spread->arguments[index] = torus_sharding_retain(sharding);
  if (sharding == NULL) return TORUS_OK;
  if (spread->mesh == NULL) spread->mesh = torus_sharding_retain(sharding);
  if (torus_sharding_shares_mesh(spread->mesh, sharding)) return TORUS_OK;
  return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                           "tensors that are computed with together lie on different meshes; "
                           "distribute them over the same devices in the same order");
}

static torus_status_t fill(const torus_job_t *job, const hlo_encoding_t *encoding,
                           torus_spread_t *spread) {
  for (size_t i = 0; i < encoding->parameter_count; ++i) {
    const torus_value_t *input = job->window.inputs[encoding->parameters[i]];
    spread->argument_count = i + 1;
    TORUS_TRY(add_argument(spread, i, sharding_of(input)));
  }
  return TORUS_OK;
}

torus_status_t torus_job_find_spread(torus_job_t *job, const hlo_encoding_t *encoding) {
  torus_spread_destroy(job->spread);
  job->spread = NULL;
  if (!torus_job_is_spread(job)) return TORUS_OK;
  void *block;
  TORUS_TRY(torus_try_alloc(
      sizeof(torus_spread_t) + (encoding->parameter_count + 1) * sizeof(torus_sharding_t *),
      &block));
  torus_spread_t *spread = block;
  torus_status_t status = fill(job, encoding, spread);
  if (status != TORUS_OK || spread->mesh == NULL) {
    torus_spread_destroy(spread);
    return status;
  }
  job->spread = spread;
  return TORUS_OK;
}

void torus_spread_append_key(const torus_spread_t *spread, torus_strbuf_t *key) {
  const torus_sharding_layout_t mesh = torus_sharding_layout(spread->mesh);
  torus_strbuf_append(key, "mesh");
  torus_strbuf_append_bytes(key, mesh.devices, (size_t)mesh.device_count * sizeof(int));
  for (size_t i = 0; i < spread->argument_count; ++i) {
    torus_strbuf_char(key, ';');
    if (spread->arguments[i] == NULL) continue;
    const torus_sharding_layout_t layout = torus_sharding_layout(spread->arguments[i]);
    torus_strbuf_append_bytes(key, layout.parts, (size_t)layout.rank * sizeof(int64_t));
    if (torus_sharding_is_replicated(spread->arguments[i])) continue;
    torus_strbuf_append_bytes(key, layout.placement, (size_t)layout.device_count * sizeof(int));
  }
}

void torus_spread_drop_aliases(const torus_spread_t *spread, int *aliases) {
  for (size_t i = 0; i < spread->argument_count; ++i) {
    if (spread->arguments[i] == NULL) aliases[i] = -1;
  }
}

/* ---- compiling ---- */

/* What a compilation needs beside the spread. */
typedef struct plan {
  torus_array_t *results;
  torus_sharding_t **wanted; /* borrowed; the donated argument's, or NULL */
  char **texts;              /* owned; of the arguments, then of the results */
  size_t text_count;
  void *block;
} plan_t;

static void plan_deinit(plan_t *plan) {
  for (size_t i = 0; i < plan->text_count; ++i) torus_free(plan->texts[i]);
  torus_free(plan->block);
}

static torus_status_t plan_init(plan_t *plan, const torus_job_t *job, const int *aliases) {
  const torus_spread_t *spread = job->spread;
  const size_t results = job->output_count, arguments = spread->argument_count;
  *plan = (plan_t){0};
  TORUS_TRY(torus_try_alloc(results * sizeof(torus_array_t) +
                                (2 * results + arguments + 1) * sizeof(void *),
                            &plan->block));
  plan->results = plan->block;
  plan->wanted = (torus_sharding_t **)(plan->results + results);
  plan->texts = (char **)(plan->wanted + results);
  plan->text_count = arguments + results;
  for (size_t i = 0; i < results; ++i) {
    plan->results[i] = (torus_array_t){hlo_dtype(job->window.graph, job->outputs[i]),
                                       hlo_rank(job->window.graph, job->outputs[i]),
                                       hlo_dims(job->window.graph, job->outputs[i])};
  }
  for (size_t i = 0; i < arguments; ++i) {
    if (aliases[i] >= 0) plan->wanted[aliases[i]] = spread->arguments[i];
  }
  return TORUS_OK;
}

static torus_status_t write_text(const torus_sharding_t *sharding, char **out_text) {
  if (sharding == NULL) return TORUS_OK;
  *out_text = torus_sharding_text(sharding);
  if (*out_text != NULL) return TORUS_OK;
  return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory for a program");
}

static torus_status_t write_texts(const torus_job_t *job, plan_t *plan) {
  const torus_spread_t *spread = job->spread;
  for (size_t i = 0; i < spread->argument_count; ++i) {
    TORUS_TRY(write_text(spread->arguments[i], &plan->texts[i]));
  }
  for (size_t i = 0; i < job->output_count; ++i) {
    TORUS_TRY(write_text(plan->wanted[i], &plan->texts[spread->argument_count + i]));
  }
  return TORUS_OK;
}

static torus_partitioning_t partitioning_of(const torus_job_t *job, const plan_t *plan) {
  return (torus_partitioning_t){
      .mesh = job->spread->mesh,
      .argument_count = job->spread->argument_count,
      .arguments = job->spread->arguments,
      .result_count = job->output_count,
      .results = plan->results,
      .wanted = plan->wanted,
  };
}

static torus_status_t print_and_compile(torus_engine_t *engine, const torus_job_t *job,
                                        const bool *promoted, const int *aliases, plan_t *plan,
                                        torus_strbuf_t *text,
                                        torus_executable_t **out_executable) {
  const hlo_sharding_texts_t texts = {
      (const char *const *)plan->texts,
      (const char *const *)plan->texts + job->spread->argument_count};
  const torus_partitioning_t partitioning = partitioning_of(job, plan);
  TORUS_TRY(write_texts(job, plan));
  TORUS_TRY(hlo_print_sharded(job->window.graph, job->outputs, job->output_count, promoted,
                              aliases, &texts, text));
  return torus_executable_compile_partitioned(engine->client, text->data, text->size,
                                              TORUS_EFFORT_DEFAULT, &partitioning, out_executable);
}

torus_status_t torus_spread_compile(torus_engine_t *engine, const torus_job_t *job,
                                    const bool *promoted, const int *aliases, torus_strbuf_t *text,
                                    torus_executable_t **out_executable) {
  plan_t plan;
  torus_status_t status = plan_init(&plan, job, aliases);
  if (status == TORUS_OK) {
    status = print_and_compile(engine, job, promoted, aliases, &plan, text, out_executable);
  }
  plan_deinit(&plan);
  return status;
}

torus_status_t torus_spread_load(torus_engine_t *engine, const torus_job_t *job,
                                 const int *aliases, const char *bytes, size_t size,
                                 torus_executable_t **out_executable) {
  plan_t plan;
  torus_status_t status = plan_init(&plan, job, aliases);
  if (status == TORUS_OK) {
    const torus_partitioning_t partitioning = partitioning_of(job, &plan);
    status = torus_executable_load_partitioned(engine->client, bytes, size, &partitioning,
                                               out_executable);
  }
  plan_deinit(&plan);
  return status;
}
