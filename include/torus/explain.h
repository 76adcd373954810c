/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Why programs are compiled.
 *
 * Every program that is compiled or loaded from disk leaves an event that tells what it is and how
 * it differs from the nearest program known before. The last TORUS_COMPILATIONS_KEPT events are
 * kept. Their making costs microseconds per compilation and nothing per operator. */
#ifndef TORUS_EXPLAIN_H_
#define TORUS_EXPLAIN_H_

#include "torus/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TORUS_COMPILATIONS_KEPT = 1024 };

/* X(enum name, spelling) */
#define TORUS_TRIGGER_LIST(X)                                                                      \
  X(FIRST, "first")           /* nothing alike is known */                                         \
  X(NUMBER, "number")         /* a number that was built in has changed */                         \
  X(SIZE, "size")             /* the same operators on other sizes */                              \
  X(TYPE, "type")             /* the same operators on other element types */                      \
  X(RESULTS, "results")       /* the same operators, but other results are still wanted */         \
  X(DONATION, "donation")     /* the same program, but other inputs may be overwritten */          \
  X(DETAIL, "detail")         /* an argument that is built in: a dimension, a step, a mode */      \
  X(STRUCTURE, "structure")   /* the same operators make other operations */                       \
  X(OPERATORS, "operators")   /* begins like a known program and goes on differently */            \
  X(AGAIN, "again")           /* was known, but the programs were cleared */                       \
  X(OTHER, "other")

typedef enum torus_trigger {
#define TORUS_TRIGGER_ENUM(name, spelling) TORUS_TRIGGER_##name,
  TORUS_TRIGGER_LIST(TORUS_TRIGGER_ENUM)
#undef TORUS_TRIGGER_ENUM
} torus_trigger_t;

typedef struct torus_compilation {
  uint64_t serial;          /* 1, 2, ... since the engine was made */
  torus_trigger_t trigger;
  const char *reason;       /* "dimension 0 of addmm's input: 4 -> 7 (...)" */
  const char *operators;    /* "addmm, relu, addmm, ... 22 operators" */
  const char *error;        /* "" unless it could not be compiled */
  double seconds;           /* of compiling or loading */
  bool from_disk;
  torus_mode_t mode;
  int device;
  int64_t operator_count, node_count, text_bytes; /* text_bytes 0: loaded, nothing was printed */
  torus_place_t first, last; /* where the window's first and last operators were called */
} torus_compilation_t;

const char *torus_trigger_name(torus_trigger_t trigger);

/* Calls |visit| for each event kept whose serial is above |after|, oldest first; the event and its
 * texts live for the call, which must not use the engine. Returns the newest serial, 0 for none. */
uint64_t torus_engine_compilations(torus_engine_t *engine, uint64_t after,
                                   void (*visit)(void *context, const torus_compilation_t *event),
                                   void *context);

/* How places are named: returns the file (which lives for ever) and its line, or NULL when the place
 * is not known. May be called from any thread, under locks. Process-wide; NULL: none. */
typedef const char *(*torus_place_namer_t)(torus_place_t place, int *out_line);
void torus_set_place_namer(torus_place_namer_t namer);
/* NULL when the place is not known. */
const char *torus_place_name(torus_place_t place, int *out_line);

#ifdef __cplusplus
}
#endif
#endif  /* TORUS_EXPLAIN_H_ */
