/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Programs on several devices. Computation follows data: where an input of a window lies on several
 * devices, the window's program runs on all of them. */
#include <string.h>

#include "engine/capture_internal.h"

struct torus_spread {
  size_t argument_count, result_count;
  torus_sharding_t *mesh;        /* the first that was found; retained */
  torus_sharding_t **results;    /* retained; NULL: as the compiler likes; in this block */
  torus_sharding_t *arguments[]; /* retained; NULL: on a single device */
};

void torus_spread_destroy(torus_spread_t *spread) {
  if (spread == NULL) return;
  for (size_t i = 0; i < spread->argument_count; ++i) torus_sharding_release(spread->arguments[i]);
  for (size_t i = 0; i < spread->result_count; ++i) torus_sharding_release(spread->results[i]);
  torus_sharding_release(spread->mesh);
  torus_free(spread);
}

void torus_job_release_layouts(torus_job_t *job) {
  for (size_t i = 0; job->layouts != NULL && i < job->window.input_count; ++i) {
    torus_sharding_release(job->layouts[i]);
  }
  torus_free(job->layouts);
  job->layouts = NULL;
}

/* How input |index| is to lie. Values that failed have no buffer, and abstract ones may say it. */
static torus_sharding_t *sharding_of(const torus_job_t *job, size_t index) {
  const torus_value_t *input = job->window.inputs[index];
  if (job->layouts != NULL && job->layouts[index] != NULL) return job->layouts[index];
  if (atomic_load(&input->state) == TORUS_VALUE_ABSTRACT) return input->wanted;
  return input->buffer != NULL ? torus_buffer_sharding(input->buffer) : NULL;
}

bool torus_job_is_spread(const torus_job_t *job) {
  for (size_t i = 0; i < job->window.input_count; ++i) {
    if (sharding_of(job, i) != NULL) return true;
  }
  for (size_t i = 0; i < job->window.value_count; ++i) {
    if (job->window.values[i]->wanted != NULL) return true;
  }
  return false;
}

static torus_status_t take(torus_spread_t *spread, torus_sharding_t *sharding,
                           torus_sharding_t **slot) {
  *slot = torus_sharding_retain(sharding);
  if (sharding == NULL) return TORUS_OK;
  if (spread->mesh == NULL) spread->mesh = torus_sharding_retain(sharding);
  if (torus_sharding_shares_mesh(spread->mesh, sharding)) return TORUS_OK;
  return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                           "tensors that are computed with together lie on different meshes; "
                           "distribute them over the same devices in the same order");
}

static torus_status_t fill(const torus_job_t *job, const hlo_encoding_t *encoding,
                           torus_spread_t *spread) {
  for (size_t i = 0; i < spread->argument_count; ++i) {
    TORUS_TRY(take(spread, sharding_of(job, (size_t)encoding->parameters[i]),
                   &spread->arguments[i]));
  }
  for (size_t i = 0; i < job->window.value_count; ++i) {
    TORUS_TRY(take(spread, job->window.values[i]->wanted, &spread->results[i]));
  }
  return TORUS_OK;
}

torus_status_t torus_job_find_spread(torus_job_t *job, const hlo_encoding_t *encoding) {
  torus_spread_destroy(job->spread);
  job->spread = NULL;
  if (!torus_job_is_spread(job)) return TORUS_OK;
  const size_t arguments = encoding->parameter_count, results = job->output_count;
  void *block;
  TORUS_TRY(torus_try_alloc(
      sizeof(torus_spread_t) + (arguments + results + 1) * sizeof(torus_sharding_t *), &block));
  torus_spread_t *spread = block;
  spread->argument_count = arguments;
  spread->result_count = results;
  spread->results = spread->arguments + arguments;
  torus_status_t status = fill(job, encoding, spread);
  if (status != TORUS_OK || spread->mesh == NULL) {
    torus_spread_destroy(spread);
    return status;
  }
  job->spread = spread;
  return TORUS_OK;
}

static void append_layout(const torus_sharding_t *sharding, torus_strbuf_t *key) {
  torus_strbuf_char(key, sharding != NULL ? '+' : '-');
  if (sharding == NULL) return;
  const torus_sharding_layout_t layout = torus_sharding_layout(sharding);
  torus_strbuf_append_bytes(key, layout.parts, (size_t)layout.rank * sizeof(int64_t));
  if (torus_sharding_is_replicated(sharding)) return;
  torus_strbuf_append_bytes(key, layout.placement, (size_t)layout.device_count * sizeof(int));
}

void torus_spread_append_key(const torus_spread_t *spread, torus_strbuf_t *key) {
  const torus_sharding_layout_t mesh = torus_sharding_layout(spread->mesh);
  torus_strbuf_append(key, "mesh");
  torus_strbuf_append_bytes(key, mesh.devices, (size_t)mesh.device_count * sizeof(int));
  for (size_t i = 0; i < spread->argument_count; ++i) append_layout(spread->arguments[i], key);
  for (size_t i = 0; i < spread->result_count; ++i) append_layout(spread->results[i], key);
}

void torus_spread_settle_aliases(torus_spread_t *spread, int *aliases) {
  for (size_t i = 0; i < spread->argument_count; ++i) {
    if (aliases[i] < 0) continue;
    torus_sharding_t **result = &spread->results[aliases[i]];
    if (spread->arguments[i] == NULL) {
      aliases[i] = -1;
    } else if (*result == NULL) {
      *result = torus_sharding_retain(spread->arguments[i]);
    } else if (!torus_sharding_equal(*result, spread->arguments[i])) {
      aliases[i] = -1;
    }
  }
}

/* ---- captures ---- */

/* The program's parameter that reads what output |output| writes, or |parameter_count|. */
static size_t parameter_of(const torus_job_t *job, const hlo_encoding_t *encoding,
                           const torus_storage_t *storage) {
  for (size_t p = 0; p < encoding->parameter_count; ++p) {
    const torus_capture_binding_t *read =
        torus_capture_find_read(job->capture, (size_t)encoding->parameters[p]);
    if (read != NULL && read->storage == storage) return p;
  }
  return encoding->parameter_count;
}

static bool lie_alike(const torus_sharding_t *argument, const torus_sharding_t *result) {
  if (argument == NULL || result == NULL) {
    const torus_sharding_t *other = argument != NULL ? argument : result;
    return other == NULL || torus_sharding_is_replicated(other);
  }
  return torus_sharding_equal(argument, result);
}

static torus_status_t ask_for(torus_job_t *job, size_t input, size_t result,
                              torus_sharding_t *sharding) {
  if (job->layouts == NULL) {
    TORUS_TRY(torus_try_alloc((job->window.input_count + 1) * sizeof *job->layouts,
                              (void **)&job->layouts));
  }
  torus_value_t *value = job->window.values[result];
  torus_sharding_release(job->layouts[input]);
  torus_sharding_release(value->wanted);
  job->layouts[input] = torus_sharding_retain(sharding);
  value->wanted = torus_sharding_retain(sharding);
  return TORUS_OK;
}

torus_status_t torus_spread_close_loop(torus_job_t *job, const hlo_encoding_t *encoding,
                                       const torus_executable_t *executable, bool *out_changed) {
  const torus_capture_t *capture = job->capture;
  *out_changed = false;
  for (size_t i = 0; job->spread != NULL && i < capture->output_count; ++i) {
    const size_t result = capture->outputs[i].index;
    const size_t p = parameter_of(job, encoding, capture->outputs[i].storage);
    torus_sharding_t *given = torus_executable_result_sharding(executable, result);
    if (p == encoding->parameter_count || given == NULL) continue;
    if (lie_alike(torus_executable_argument_sharding(executable, p), given)) continue;
    TORUS_TRY(ask_for(job, (size_t)encoding->parameters[p], result, given));
    *out_changed = true;
  }
  return TORUS_OK;
}

torus_status_t torus_spread_numbers(const torus_job_t *job, const torus_launch_t *launch,
                                    torus_buffer_t **out_buffer) {
  const int64_t words = (int64_t)launch->soft_word_count;
  torus_sharding_t *everywhere;
  *out_buffer = NULL;
  TORUS_TRY(torus_sharding_replicated(job->spread->mesh, 1, &everywhere));
  torus_status_t status =
      torus_buffer_from_host_sharded(job->capture->engine->client, launch->soft_words,
                                     TORUS_DTYPE_U32, 1, &words, everywhere, out_buffer);
  torus_sharding_release(everywhere);
  return status;
}

/* ---- compiling ---- */

/* What a compilation needs beside the spread. */
typedef struct plan {
  torus_array_t *results;
  char **texts;              /* owned; of the arguments, then of the results */
  const int64_t **parts;     /* likewise, but of the shardings */
  size_t text_count;
  void *block;
} plan_t;

static void plan_deinit(plan_t *plan) {
  for (size_t i = 0; i < plan->text_count; ++i) torus_free(plan->texts[i]);
  torus_free(plan->block);
}

static torus_status_t plan_init(plan_t *plan, const torus_job_t *job) {
  const torus_spread_t *spread = job->spread;
  const size_t results = job->output_count, arguments = spread->argument_count;
  *plan = (plan_t){0};
  TORUS_TRY(torus_try_alloc(results * sizeof(torus_array_t) +
                                2 * (results + arguments + 1) * sizeof(void *),
                            &plan->block));
  plan->results = plan->block;
  plan->texts = (char **)(plan->results + results);
  plan->text_count = arguments + results;
  plan->parts = (const int64_t **)(plan->texts + plan->text_count);
  for (size_t i = 0; i < results; ++i) {
    plan->results[i] = (torus_array_t){hlo_dtype(job->window.graph, job->outputs[i]),
                                       hlo_rank(job->window.graph, job->outputs[i]),
                                       hlo_dims(job->window.graph, job->outputs[i])};
  }
  return TORUS_OK;
}

static torus_status_t write_text(const torus_sharding_t *sharding, plan_t *plan, size_t index) {
  if (sharding == NULL) return TORUS_OK;
  plan->parts[index] = torus_sharding_layout(sharding).parts;
  plan->texts[index] = torus_sharding_text(sharding);
  if (plan->texts[index] != NULL) return TORUS_OK;
  return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory for a program");
}

static torus_status_t write_texts(const torus_job_t *job, plan_t *plan) {
  const torus_spread_t *spread = job->spread;
  for (size_t i = 0; i < spread->argument_count; ++i) {
    TORUS_TRY(write_text(spread->arguments[i], plan, i));
  }
  for (size_t i = 0; i < job->output_count; ++i) {
    TORUS_TRY(write_text(spread->results[i], plan, spread->argument_count + i));
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
      .wanted = job->spread->results,
  };
}

static torus_status_t print_and_compile(torus_engine_t *engine, const torus_job_t *job,
                                        const bool *promoted, const int *aliases, plan_t *plan,
                                        torus_strbuf_t *text,
                                        torus_executable_t **out_executable) {
  const size_t arguments = job->spread->argument_count;
  const hlo_sharding_texts_t texts = {
      (const char *const *)plan->texts, (const char *const *)plan->texts + arguments,
      plan->parts, plan->parts + arguments};
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
  torus_status_t status = plan_init(&plan, job);
  if (status == TORUS_OK) {
    status = print_and_compile(engine, job, promoted, aliases, &plan, text, out_executable);
  }
  plan_deinit(&plan);
  return status;
}

torus_status_t torus_spread_load(torus_engine_t *engine, const torus_job_t *job, const char *bytes,
                                 size_t size, torus_executable_t **out_executable) {
  plan_t plan;
  torus_status_t status = plan_init(&plan, job);
  if (status == TORUS_OK) {
    const torus_partitioning_t partitioning = partitioning_of(job, &plan);
    status = torus_executable_load_partitioned(engine->client, bytes, size, &partitioning,
                                               out_executable);
  }
  plan_deinit(&plan);
  return status;
}
