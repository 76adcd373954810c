/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Inside of torus/explain.h: what the program cache tells, and what is made of it. */
#ifndef TORUS_ENGINE_EXPLAIN_H_
#define TORUS_ENGINE_EXPLAIN_H_

#include "base/strbuf.h"
#include "hlo/encode.h"
#include "torus/explain.h"

typedef struct torus_explain torus_explain_t;

/* A program that the cache did not have. Everything is borrowed. */
typedef struct torus_new_program {
  hlo_graph_t *graph;            /* with marks, as encoded */
  const hlo_t *outputs;
  size_t output_count;
  const hlo_encoding_t *encoding;
  const int *aliases;            /* per parameter, the result it is donated to, or -1 */
  const bool *known_promoted;    /* of the newest variant with this structure; NULL: none */
  const int64_t *known_softs;
  torus_status_t status;         /* of compiling */
  double seconds;
  size_t text_bytes;
  bool from_disk;
  torus_mode_t mode;
  int device;
} torus_new_program_t;

torus_status_t torus_explain_create(torus_explain_t **out_explain);
void torus_explain_destroy(torus_explain_t *explain); /* accepts NULL */

/* Says why the next program will be compiled, to a caller who knows better than a comparison with
 * the programs before. Of several calls the last one counts. Worker only. */
void torus_explain_say(torus_explain_t *explain, torus_trigger_t trigger, const char *format, ...)
    TORUS_PRINTF(3, 4);
/* Takes back what was said: no program was needed. Worker only. */
void torus_explain_unsay(torus_explain_t *explain);

/* Records the event and logs it. Loss of memory loses the event, never the program. */
void torus_explain_add(torus_explain_t *explain, const torus_new_program_t *program);

/* As torus_engine_compilations. |visit| NULL: only the newest serial is wanted. */
uint64_t torus_explain_visit(torus_explain_t *explain, uint64_t after,
                             void (*visit)(void *context, const torus_compilation_t *event),
                             void *context);

/* ---- the graph in words ---- */

/* "addmm, relu, addmm, ... 22 operators"; returns how many there are. */
size_t torus_operators_text(const hlo_graph_t *graph, torus_strbuf_t *text);
/* Where the first and the last operator were called. */
void torus_operators_places(const hlo_graph_t *graph, torus_place_t *out_first,
                            torus_place_t *out_last);
/* Appends |before| "train.py:12" |after|, or nothing when the place is not known. */
void torus_place_append(torus_strbuf_t *text, const char *before, torus_place_t place,
                        const char *after);
/* |status|, taken over, with " (recorded at train.py:12)" or "... 12 to train.py:14)" behind. */
torus_status_t torus_status_with_places(torus_status_t status, torus_place_t first,
                                        torus_place_t last);

#endif  /* TORUS_ENGINE_EXPLAIN_H_ */
