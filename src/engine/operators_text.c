/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The operators of a window in words, and the lines that called them. */
#include <stdatomic.h>
#include <string.h>

#include "engine/explain.h"

/* ---- places ---- */

static _Atomic(torus_place_namer_t) place_namer;

void torus_set_place_namer(torus_place_namer_t namer) { atomic_store(&place_namer, namer); }

const char *torus_place_name(torus_place_t place, int *out_line) {
  const torus_place_namer_t namer = atomic_load(&place_namer);
  *out_line = 0;
  return namer != NULL && place.code != NULL ? namer(place, out_line) : NULL;
}

void torus_place_append(torus_strbuf_t *text, const char *before, torus_place_t place,
                        const char *after) {
  int line;
  const char *file = torus_place_name(place, &line);
  if (file != NULL) torus_strbuf_printf(text, "%s%s:%d%s", before, file, line, after);
}

torus_status_t torus_status_with_places(torus_status_t status, torus_place_t first,
                                        torus_place_t last) {
  int first_line, last_line;
  const char *first_file = torus_place_name(first, &first_line);
  const char *last_file = torus_place_name(last, &last_line);
  if (status == TORUS_OK || first_file == NULL) return status;
  torus_strbuf_t text = {0};
  torus_strbuf_printf(&text, "%s (recorded at %s:%d", torus_status_message(status), first_file,
                      first_line);
  if (last_file != NULL && (first_line != last_line || strcmp(first_file, last_file) != 0)) {
    torus_strbuf_printf(&text, " to %s:%d", last_file, last_line);
  }
  torus_strbuf_char(&text, ')');
  if (!text.failed) {
    torus_status_t longer = torus_status_make(torus_status_code(status), "%s", text.data);
    torus_status_free(status);
    status = longer;
  }
  torus_strbuf_deinit(&text);
  return status;
}

/* ---- operators ---- */

enum { SHOWN = 4 };

/* An operator that fell back to the CPU, or had nothing to do, has a mark and no nodes. */
static bool is_empty(const hlo_graph_t *graph, const hlo_mark_t *marks, size_t count, size_t i) {
  const size_t end = i + 1 < count ? (size_t)marks[i + 1].first : hlo_graph_node_count(graph);
  return (size_t)marks[i].first == end;
}

size_t torus_operators_text(const hlo_graph_t *graph, torus_strbuf_t *text) {
  size_t count, real = 0;
  const hlo_mark_t *marks = hlo_graph_marks(graph, &count);
  for (size_t i = 0; i < count; ++i) {
    if (is_empty(graph, marks, count, i) || real++ >= SHOWN) continue;
    if (real > 1) torus_strbuf_append(text, ", ");
    /* "add" for "add.Tensor". */
    torus_strbuf_append_bytes(text, marks[i].name, strcspn(marks[i].name, "."));
  }
  if (real > SHOWN) torus_strbuf_printf(text, ", ... %zu operators", real);
  if (real == 0) torus_strbuf_append(text, "copy");
  return real;
}

void torus_operators_places(const hlo_graph_t *graph, torus_place_t *out_first,
                            torus_place_t *out_last) {
  size_t count;
  const hlo_mark_t *marks = hlo_graph_marks(graph, &count);
  *out_first = *out_last = (torus_place_t){0};
  for (size_t i = 0; i < count; ++i) {
    if (marks[i].code == NULL) continue;
    *out_last = (torus_place_t){marks[i].code, marks[i].instruction};
    if (out_first->code == NULL) *out_first = *out_last;
  }
}
