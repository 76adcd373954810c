/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Closed windows are run one at a time, in order: by the worker, which compiles what is new, or by a
 * thread that waits for them, when nothing but known programs stands between. */
#include <string.h>

#include "engine/engine_internal.h"

/* Windows that Python may be ahead of the worker. */
enum { MOST_QUEUED = 1024 };

void torus_job_destroy(torus_job_t *job) {
  if (job == NULL) return;
  torus_job_release_layouts(job);
  torus_window_release_queued(&job->window);
  torus_window_deinit(&job->window);
  torus_capture_release(job->capture);
  torus_free(job->aliases);
  torus_spread_destroy(job->spread);
  torus_free(job);
}

static void fail_values(torus_window_t *window, torus_status_t status) {
  for (size_t i = 0; i < window->value_count; ++i) {
    window->values[i]->error = torus_status_clone(status);
    atomic_store(&window->values[i]->state, TORUS_VALUE_FAILED);
  }
}

/* With engine.lock held. */
static void wake_worker(torus_engine_t *engine) {
  if (engine->worker_waits) pthread_cond_signal(&engine->work);
}

torus_status_t torus_engine_enqueue(torus_engine_t *engine, torus_job_t *job) {
  pthread_mutex_lock(&engine->lock);
  if (engine->queued >= MOST_QUEUED) {
    torus_engine_wait_ticket(engine, engine->enqueued - MOST_QUEUED / 2);
  }
  torus_status_t status = TORUS_OK;
  if (engine->is_shut_down) {
    status = torus_status_make(TORUS_STATUS_FAILED_PRECONDITION, "the TPU engine was shut down");
  } else {
    job->next = NULL;
    *(engine->last != NULL ? &engine->last->next : &engine->first) = job;
    engine->last = job;
    engine->queued += 1;
    engine->enqueued += 1;
    atomic_fetch_add(&engine->waiting_jobs, 1);
    for (size_t i = 0; i < job->window.value_count; ++i) {
      job->window.values[i]->ticket = engine->enqueued;
      atomic_store(&job->window.values[i]->state, TORUS_VALUE_QUEUED);
    }
    engine->metrics.windows += 1;
    engine->metrics.operators += (int64_t)job->window.op_count;
    const bool is_next = engine->first == job && !engine->is_running;
    if (!(job->is_awaited && is_next)) wake_worker(engine);
  }
  pthread_mutex_unlock(&engine->lock);
  if (status != TORUS_OK) {
    fail_values(&job->window, status);
    torus_job_destroy(job);
  }
  return status;
}

/* Looks for work a few microseconds before sleeping: Python records the next operator in less time
 * than waking a thread takes. */
enum { LOOKS_BEFORE_SLEEP = 256 };

static void look_for_work(torus_engine_t *engine) {
  for (int i = 0; i < LOOKS_BEFORE_SLEEP && atomic_load(&engine->waiting_jobs) == 0; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

/* The first job, to be run by the caller; NULL when there is none. With engine.lock held. */
static torus_job_t *take_job(torus_engine_t *engine) {
  torus_job_t *job = engine->first;
  if (job == NULL) return NULL;
  engine->first = job->next;
  if (engine->first == NULL) engine->last = NULL;
  engine->is_running = true;
  atomic_fetch_sub(&engine->waiting_jobs, 1);
  return job;
}

/* It was not run, and is the first again. With engine.lock held. */
static void put_back(torus_engine_t *engine, torus_job_t *job) {
  job->next = engine->first;
  engine->first = job;
  if (engine->last == NULL) engine->last = job;
  engine->is_running = false;
  atomic_fetch_add(&engine->waiting_jobs, 1);
}

/* NULL when the engine was shut down and nothing is left. */
static torus_job_t *next_job(torus_engine_t *engine) {
  look_for_work(engine);
  pthread_mutex_lock(&engine->lock);
  while (engine->is_running || (engine->first == NULL && !engine->is_shut_down)) {
    engine->worker_waits = true;
    pthread_cond_wait(&engine->work, &engine->lock);
  }
  engine->worker_waits = false;
  torus_job_t *job = take_job(engine);
  pthread_mutex_unlock(&engine->lock);
  return job;
}

/* The buffers of the program's arguments; a failed input fails the whole window. */
static torus_status_t collect_arguments(torus_job_t *job, const hlo_encoding_t *encoding,
                                        torus_buffer_t **arguments) {
  for (size_t i = 0; i < encoding->parameter_count; ++i) {
    torus_value_t *input = job->window.inputs[encoding->parameters[i]];
    if (atomic_load(&input->state) == TORUS_VALUE_FAILED) {
      job->has_failed_input = true;
      return torus_status_clone(input->error);
    }
    arguments[i] = input->buffer;
  }
  return TORUS_OK;
}

static torus_status_t launch(torus_engine_t *engine, torus_job_t *job,
                             const hlo_encoding_t *encoding, const torus_launch_t *program,
                             torus_buffer_t **arguments, torus_buffer_t **results) {
  TORUS_TRY(collect_arguments(job, encoding, arguments));
  size_t count = encoding->parameter_count;
  torus_buffer_t *softs = NULL;
  if (program->soft_word_count > 0) {
    const int64_t words = (int64_t)program->soft_word_count;
    TORUS_TRY(torus_buffer_from_host(engine->client, job->device, program->soft_words,
                                     TORUS_DTYPE_U32, 1, &words, &softs));
    arguments[count++] = softs;
  }
  torus_status_t status = torus_executable_run_on(program->executable, job->device, arguments,
                                                  count, job->output_count, results);
  torus_buffer_release(softs);
  return status;
}

static torus_status_t run_encoded(torus_engine_t *engine, torus_job_t *job,
                                  const hlo_encoding_t *encoding, const torus_launch_t *program,
                                  torus_buffer_t **results) {
  void *arguments;
  TORUS_TRY(torus_try_alloc((encoding->parameter_count + 1) * sizeof(torus_buffer_t *), &arguments));
  torus_status_t status = launch(engine, job, encoding, program, arguments, results);
  torus_free(arguments);
  return status;
}

static torus_status_t encode(torus_job_t *job, hlo_encoding_t *encoding) {
  hlo_encoding_deinit(encoding);
  return hlo_encode(job->window.graph, job->outputs, job->output_count, encoding);
}

static bool has_padded_input(const torus_window_t *window) {
  for (size_t i = 0; i < window->input_count; ++i) {
    if (window->inputs[i]->physical != NULL) return true;
  }
  return false;
}

/* The results' values learn in which dimensions they will be held. */
static torus_status_t set_physical(torus_job_t *job) {
  for (size_t i = 0; i < job->window.value_count; ++i) {
    TORUS_TRY(torus_value_set_physical(job->window.values[i],
                                       hlo_dims(job->window.graph, job->outputs[i])));
  }
  return TORUS_OK;
}

/* The exact sizes come first: a program that is there for them needs no look at what changes. */
static torus_status_t find_exact(torus_engine_t *engine, torus_job_t *job,
                                 hlo_encoding_t *encoding, torus_launch_t *out_program) {
  TORUS_TRY(encode(job, encoding));
  return torus_program_cache_find(engine->cache, job, encoding, out_program);
}

static torus_status_t rewrite(torus_engine_t *engine, torus_job_t *job, bool has_padded,
                              hlo_encoding_t *encoding) {
  bool rewritten;
  TORUS_TRY(torus_bounds_apply(engine->bounds, job, has_padded, &rewritten));
  if (!rewritten) return TORUS_OK;
  TORUS_TRY(set_physical(job));
  return encode(job, encoding);
}

static torus_status_t prepare(torus_engine_t *engine, torus_job_t *job, hlo_encoding_t *encoding,
                              torus_launch_t *out_program) {
  const bool has_padded = has_padded_input(&job->window);
  *out_program = (torus_launch_t){0};
  if (!has_padded) TORUS_TRY(find_exact(engine, job, encoding, out_program));
  if (out_program->executable != NULL) return TORUS_OK;
  const bool may_rewrite = has_padded || !torus_job_is_spread(job);
  if (engine->bounds != NULL && may_rewrite) TORUS_TRY(rewrite(engine, job, has_padded, encoding));
  return torus_program_cache_get(engine->cache, job, encoding, out_program);
}

static torus_status_t run_job(torus_engine_t *engine, torus_job_t *job, torus_buffer_t **results) {
  if (job->capture != NULL) return torus_capture_run(engine, job, results);
  hlo_encoding_t encoding = {0};
  torus_explain_unsay(engine->explain);
  torus_launch_t program;
  torus_status_t status = prepare(engine, job, &encoding, &program);
  if (status == TORUS_OK) status = run_encoded(engine, job, &encoding, &program, results);
  torus_executable_release(program.executable);
  hlo_encoding_deinit(&encoding);
  return status;
}

static void queue_checks(torus_engine_t *engine, torus_job_t *job, torus_buffer_t *buffer) {
  torus_pending_check_t *pending = torus_alloc(sizeof *pending);
  if (pending == NULL) {
    torus_buffer_release(buffer);
    torus_engine_defer_error(engine, torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED,
                                                       "out of host memory for index checks"));
    return;
  }
  pending->buffer = buffer;
  pending->checks = job->window.checks;
  pending->check_count = job->window.check_count;
  job->window.checks = NULL;
  torus_engine_add_pending(engine, pending);
}

/* The result that waiting for the device looks at: the smallest, for it is kept alive by that. */
static torus_buffer_t *smallest_result(const torus_job_t *job, torus_buffer_t **results) {
  const torus_window_t *window = &job->window;
  if (job->output_count > window->value_count) return results[window->value_count];
  size_t best = 0;
  for (size_t i = 1; i < window->value_count; ++i) {
    const size_t bytes = torus_value_size_bytes(window->values[i]);
    if (bytes < torus_value_size_bytes(window->values[best])) best = i;
  }
  return results[best];
}

static void remember_last(torus_engine_t *engine, torus_job_t *job, torus_buffer_t *buffer) {
  pthread_mutex_lock(&engine->lock);
  torus_buffer_t **last = &engine->devices[job->device].last_result;
  torus_buffer_t *old = *last;
  *last = torus_buffer_retain(buffer);
  pthread_mutex_unlock(&engine->lock);
  torus_buffer_release(old);
}

static void publish_results(torus_engine_t *engine, torus_job_t *job, torus_buffer_t **results) {
  torus_window_t *window = &job->window;
  remember_last(engine, job, smallest_result(job, results));
  if (job->output_count > window->value_count) {
    queue_checks(engine, job, results[window->value_count]);
  }
  pthread_mutex_lock(&engine->lock);
  for (size_t i = 0; i < window->value_count; ++i) {
    window->values[i]->buffer = results[i];
    atomic_store(&window->values[i]->state, TORUS_VALUE_READY);
  }
  engine->metrics.launches += 1;
  engine->metrics.bounded_launches += job->is_bounded;
  pthread_mutex_unlock(&engine->lock);
}

/* Takes over |status|. */
static void publish_failure(torus_engine_t *engine, torus_job_t *job, torus_status_t status) {
  torus_status_t *failure = &engine->devices[job->device].failure;
  pthread_mutex_lock(&engine->lock);
  fail_values(&job->window, status);
  if (*failure == TORUS_OK && !job->has_failed_input) {
    *failure = status;
    status = TORUS_OK;
  }
  pthread_mutex_unlock(&engine->lock);
  torus_status_free(status);
}

/* Says where the operators of a failed program were called. */
static torus_status_t place_failure(const torus_job_t *job, torus_status_t status) {
  torus_place_t first, last;
  if (job->has_failed_input || job->window.graph == NULL) return status;
  torus_operators_places(job->window.graph, &first, &last);
  return torus_status_with_places(status, first, last);
}

static void recycle(torus_engine_t *engine, torus_job_t *job) {
  hlo_graph_t *graph = job->window.graph;
  job->window.graph = NULL;
  torus_job_destroy(job);
  if (graph != NULL) hlo_graph_clear(graph);
  pthread_mutex_lock(&engine->lock);
  if (graph != NULL && engine->spare_count < 8) {
    engine->spare_graphs[engine->spare_count++] = graph;
    graph = NULL;
  }
  engine->is_running = false;
  if (engine->first != NULL || engine->is_shut_down) wake_worker(engine);
  engine->queued -= 1;
  engine->finished += 1;
  if (engine->finished >= engine->wake_at) {
    engine->wake_at = UINT64_MAX; /* those that wait for more say so again */
    pthread_cond_broadcast(&engine->done);
  }
  pthread_mutex_unlock(&engine->lock);
  hlo_graph_destroy(graph);
}

static void publish(torus_engine_t *engine, torus_job_t *job, torus_status_t status,
                    torus_buffer_t **results) {
  if (status == TORUS_OK) {
    publish_results(engine, job, results);
  } else {
    publish_failure(engine, job, place_failure(job, status));
  }
}

static void run_and_publish(torus_engine_t *engine, torus_job_t *job) {
  torus_buffer_t **results = torus_alloc((job->output_count + 1) * sizeof *results);
  torus_status_t status =
      results != NULL ? run_job(engine, job, results)
                      : torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
  publish(engine, job, status, results);
  torus_free(results);
}

/* ---- threads that wait ---- */

/* Runs a window whose program is in memory; false, with nothing done, when it is not. */
static bool run_known_window(torus_engine_t *engine, torus_job_t *job, torus_buffer_t **results) {
  hlo_encoding_t encoding = {0};
  torus_launch_t program = {0};
  if (has_padded_input(&job->window) || torus_job_is_spread(job)) return false;
  torus_status_t status = encode(job, &encoding);
  if (status == TORUS_OK) {
    status = torus_program_cache_peek(engine->cache, job, &encoding, &program);
  }
  const bool is_known = status == TORUS_OK && program.executable != NULL;
  torus_status_ignore(is_known ? TORUS_OK : status);
  if (is_known) {
    status = run_encoded(engine, job, &encoding, &program, results);
    publish(engine, job, status, results);
  }
  torus_executable_release(program.executable);
  hlo_encoding_deinit(&encoding);
  return is_known;
}

static bool run_known(torus_engine_t *engine, torus_job_t *job) {
  torus_buffer_t **results = torus_alloc((job->output_count + 1) * sizeof *results);
  bool is_run = false;
  if (results != NULL && job->capture != NULL && job->window.graph == NULL) {
    publish(engine, job, torus_capture_run(engine, job, results), results);
    is_run = true;
  } else if (results != NULL && job->capture == NULL) {
    is_run = run_known_window(engine, job, results);
  }
  torus_free(results);
  return is_run;
}

/* Small programs run on the thread that launches them: it needs a stack such as the worker has. */
enum { LEAST_STACK_BYTES = 1 << 20 };

static bool has_roomy_stack(void) {
  static _Thread_local int roomy; /* 0: not known yet */
  pthread_attr_t attributes;
  size_t bytes = 0;
  if (roomy == 0) {
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
      pthread_attr_getstacksize(&attributes, &bytes);
      pthread_attr_destroy(&attributes);
    }
    roomy = bytes >= LEAST_STACK_BYTES ? 1 : -1;
  }
  return roomy > 0;
}

/* Runs the first job here if its program is there: to hand it to the worker and wait would take two
 * switches of thread, several times as long as a small program. With engine.lock held, which is
 * given up meanwhile. */
static bool help(torus_engine_t *engine) {
  if (engine->is_running || engine->first == NULL || engine->first->needs_worker) return false;
  if (!has_roomy_stack()) return false;
  torus_job_t *job = take_job(engine);
  pthread_mutex_unlock(&engine->lock);
  const bool is_run = run_known(engine, job);
  if (is_run) recycle(engine, job);
  pthread_mutex_lock(&engine->lock);
  if (is_run) return true;
  job->needs_worker = true;
  put_back(engine, job);
  return false;
}

void torus_engine_wait_ticket(torus_engine_t *engine, uint64_t ticket) {
  while (engine->finished < ticket && !(engine->is_shut_down && engine->queued == 0)) {
    if (help(engine)) continue;
    if (!engine->is_running) wake_worker(engine);
    if (ticket < engine->wake_at) engine->wake_at = ticket;
    pthread_cond_wait(&engine->done, &engine->lock);
  }
}

/* ---- the worker ---- */

void *torus_worker_main(void *argument) {
  torus_engine_t *engine = argument;
  for (torus_job_t *job = next_job(engine); job != NULL; job = next_job(engine)) {
    if (job->capture != NULL && job->window.graph != NULL) {
      torus_capture_prepare(engine, job);
    } else {
      run_and_publish(engine, job);
    }
    recycle(engine, job);
  }
  return NULL;
}
