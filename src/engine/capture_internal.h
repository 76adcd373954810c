/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* What recording a capture and running it share. */
#ifndef TORUS_CAPTURE_INTERNAL_H_
#define TORUS_CAPTURE_INTERNAL_H_

#include "engine/engine_internal.h"

/* A storage that was written; the storage is not retained, for what dies before the end needs no
 * result. */
typedef struct torus_capture_write {
  torus_storage_t *storage;  /* NULL: freed meanwhile */
  torus_value_t *before;     /* retained; what it held, NULL: nothing */
} torus_capture_write_t;

typedef struct torus_capture_binding {
  torus_storage_t *storage;  /* retained */
  size_t index;              /* of a window's input, or of a result */
} torus_capture_binding_t;

/* What was recorded, to be recorded again at once. */
typedef struct torus_block torus_block_t;

/* One argument of the program. */
typedef struct torus_capture_source {
  torus_capture_source_kind_t kind;
  torus_storage_t *storage;  /* borrowed from the reads */
  torus_value_t *value;      /* borrowed from the inputs: the constant, or the type */
  int alias;                 /* the result that it is given to; -1: none */
} torus_capture_source_t;

struct torus_capture {
  atomic_int refs;
  torus_engine_t *engine;
  int device;
  uint64_t number;           /* of this capture in the process; never 0 */
  torus_status_t error;      /* while recording: reported at the end. Later: the program's */

  /* While recording; under device.lock, the writes under device.writes_lock as well. */
  torus_capture_write_t *writes;
  size_t write_count, write_capacity;
  uint64_t seed, offset;     /* at the beginning */
  hlo_t random;              /* U64[2]: seed and offset of a run; HLO_NONE: none asked for */
  size_t random_input;

  /* From the end on constant. */
  torus_capture_binding_t *reads;   /* index: of the window's input */
  size_t read_count, read_capacity;
  torus_capture_binding_t *outputs; /* index: of the result */
  size_t output_count;
  torus_value_t **inputs;    /* of the window: constants, and types without buffer */
  size_t input_count;
  torus_value_t **results;   /* types of the program's results; retained */
  size_t result_count;
  torus_check_t *checks;
  size_t check_count;
  torus_capture_source_t *sources;
  size_t source_count;
  torus_executable_t *executable; /* NULL: nothing to run, or |block| */
  torus_block_t *block;      /* joins the open window at each run; NULL: does not */
  torus_buffer_t *softs;     /* numbers that the program takes as an argument; NULL: none */
};

/* Which storages receive results, in this order; those that were there before the capture follow. */
typedef struct torus_capture_wanted {
  torus_storage_t *const *storages;
  size_t count;
} torus_capture_wanted_t;

/* Ends recording. |wanted| NULL: every storage that was written and is alive is an output.
 * |out_capture| must be released by the caller; |out_job|, NULL when nothing is to be computed, is
 * handed to the worker or destroyed. Device must be locked. */
torus_status_t torus_capture_close(torus_engine_t *engine, int device,
                                   const torus_capture_wanted_t *wanted,
                                   torus_capture_t **out_capture, torus_job_t **out_job);
torus_status_t torus_capture_no_memory(void);
/* The read behind a window's input, NULL when it is none. */
const torus_capture_binding_t *torus_capture_find_read(const torus_capture_t *capture, size_t input);
/* Fills the capture's arguments from the encoded window. */
torus_status_t torus_capture_keep_sources(torus_capture_t *capture, const torus_job_t *job,
                                          const hlo_encoding_t *encoding);
/* The error of content that has other than |type|'s bytes. */
torus_status_t torus_capture_refuse_bytes(size_t bytes, const torus_value_t *type);

/* ---- join.c ---- */
/* Whether the captured window is one that joins others rather than being a program. */
bool torus_job_may_join(const torus_job_t *job);
/* The captured window becomes the capture's block. */
torus_status_t torus_capture_keep_block(torus_capture_t *capture, const torus_job_t *job);
/* Records the block in the open window, as torus_capture_apply runs a program. */
torus_status_t torus_capture_join(const torus_capture_t *capture,
                                  const torus_capture_content_t *contents, uint64_t seed,
                                  uint64_t offset, torus_value_t **out_results);
void torus_block_destroy(torus_block_t *block); /* accepts NULL */

#endif  /* TORUS_CAPTURE_INTERNAL_H_ */
