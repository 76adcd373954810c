/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Conditions that only the running program can see: out-of-range indices and the like. All checks of
 * a window share one I64[2] result: 1 + the number of the first that failed, and the culprit. It is
 * read at the next wait, so that checking costs no wait of its own. */
#include <stdio.h>
#include <string.h>

#include "engine/engine_internal.h"

/* Pending results that may pile up before the worker looks at the oldest itself. */
enum { MOST_PENDING = 256 };

static hlo_t pair(hlo_graph_t *g, hlo_t number, hlo_t culprit) {
  const int64_t one = 1;
  const hlo_t parts[2] = {hlo_reshape(g, number, 1, &one), hlo_reshape(g, culprit, 1, &one)};
  return hlo_concatenate(g, parts, 2, 0);
}

hlo_t torus_checks_node(hlo_graph_t *g, const torus_check_t *checks, size_t count) {
  const hlo_t zero = hlo_const_int(g, TORUS_DTYPE_I64, 0);
  hlo_t number = zero, culprit = zero;
  for (size_t i = count; i-- > 0;) {
    const hlo_t own = hlo_const_int(g, TORUS_DTYPE_I64, (int64_t)i + 1);
    number = hlo_select(g, checks[i].failed, own, number);
    if (checks[i].culprit != HLO_NONE) {
      culprit = hlo_select(g, checks[i].failed, checks[i].culprit, culprit);
    }
  }
  return pair(g, number, culprit);
}

void torus_engine_defer_error(torus_engine_t *engine, torus_status_t status) {
  pthread_mutex_lock(&engine->lock);
  if (engine->deferred_error == TORUS_OK) {
    engine->deferred_error = status;
    status = TORUS_OK;
  }
  pthread_mutex_unlock(&engine->lock);
  torus_status_free(status);
}

void torus_engine_add_pending(torus_engine_t *engine, torus_pending_check_t *pending) {
  pthread_mutex_lock(&engine->lock);
  pending->next = NULL;
  if (engine->last_check != NULL) {
    engine->last_check->next = pending;
  } else {
    engine->first_check = pending;
  }
  engine->last_check = pending;
  const bool too_many = ++engine->pending_checks > MOST_PENDING;
  pthread_mutex_unlock(&engine->lock);
  if (!too_many) return;
  torus_engine_defer_error(engine, torus_engine_verify(engine));
}

static torus_status_t describe(const torus_check_t *check, int64_t culprit) {
  char text[256];
  /* Formats are literals of the lowerings that take these three numbers in this order. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  snprintf(text, sizeof text, check->format, (long long)culprit, check->dim, (long long)check->size);
#pragma GCC diagnostic pop
  torus_status_t status = torus_status_make(check->code, "%s (in aten::%s)", text, check->op_name);
  return torus_status_with_places(status, check->place, check->place);
}

static torus_status_t verify_one(torus_pending_check_t *pending) {
  int64_t result[2] = {0, 0};
  TORUS_TRY(torus_buffer_to_host(pending->buffer, result, sizeof result));
  if (result[0] == 0) return TORUS_OK;
  return describe(&pending->checks[result[0] - 1], result[1]);
}

torus_status_t torus_engine_verify(torus_engine_t *engine) {
  pthread_mutex_lock(&engine->lock);
  torus_pending_check_t *pending = engine->first_check;
  engine->first_check = engine->last_check = NULL;
  engine->pending_checks = 0;
  torus_status_t status = engine->deferred_error;
  engine->deferred_error = TORUS_OK;
  pthread_mutex_unlock(&engine->lock);
  while (pending != NULL) {
    torus_pending_check_t *next = pending->next;
    torus_status_t one = status == TORUS_OK ? verify_one(pending) : TORUS_OK;
    if (one != TORUS_OK) status = one;
    torus_buffer_release(pending->buffer);
    torus_free(pending->checks);
    torus_free(pending);
    pending = next;
  }
  return status;
}
