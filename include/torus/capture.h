/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Captures: a stretch of recorded operators as one program that is run again and again.
 *
 * Between begin and end everything recorded on the device goes into one window that is never cut,
 * and nothing runs. A storage that was read stands for its content at each run; a storage that was
 * written and is still alive at the end receives its new content at each run. What came from the
 * host during the capture, and Python numbers, are part of the program. After the end the storages
 * hold again what they held before the beginning; those made meanwhile hold nothing before the
 * first run. */
#ifndef TORUS_CAPTURE_H_
#define TORUS_CAPTURE_H_

#include "torus/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct torus_capture torus_capture_t; /* reference counted */

/* Closes the open window, then begins. |seed| and |offset| are those of the device's generator: random
 * numbers drawn until the end are counted from |offset|. Work recorded by other threads is captured
 * too; waiting for the device fails with FAILED_PRECONDITION until the end. */
TORUS_NODISCARD torus_status_t torus_capture_begin(torus_engine_t *engine, int device, uint64_t seed,
                                                   uint64_t offset);
/* From here on Python's real numbers are arguments of the program, so that captures that differ in
 * them alone share one. */
void torus_capture_expect_change(torus_engine_t *engine, int device);
/* Compiles what was recorded. On failure the capture is dropped as by torus_capture_abort.
 * |out_capture| must be released by the caller. */
TORUS_NODISCARD torus_status_t torus_capture_end(torus_engine_t *engine, int device,
                                                 torus_capture_t **out_capture);
/* Drops what was recorded; does nothing when no capture is going on. */
void torus_capture_abort(torus_engine_t *engine, int device);
bool torus_capture_is_active(torus_engine_t *engine, int device);

/* Queues one run. |seed| and |offset| say where its random numbers begin. */
TORUS_NODISCARD torus_status_t torus_capture_replay(torus_capture_t *capture, uint64_t seed,
                                                    uint64_t offset);
/* How many storages each run reads and writes. */
size_t torus_capture_input_count(const torus_capture_t *capture);
size_t torus_capture_output_count(const torus_capture_t *capture);

/* ---- programs with arguments of their own ---- */

/* Ends recording like torus_capture_end, for runs on other contents than those of the storages that
 * were read. The results are what the |wanted_count| storages in |wanted| hold, then what was written
 * to storages that were there before. A run may use up the contents of the storages in |given|, which
 * are there for the capture only. With |may_join|, what is small gets no program of its own: a run
 * records it again, at once, in the open window, whose content then decides when it is launched. */
TORUS_NODISCARD torus_status_t torus_capture_compile(torus_engine_t *engine, int device,
                                                     torus_storage_t *const *wanted,
                                                     size_t wanted_count,
                                                     torus_storage_t *const *given,
                                                     size_t given_count, bool may_join,
                                                     torus_capture_t **out_capture);
/* Whether runs are recorded in the open window, which is possible while another capture goes on. */
bool torus_capture_is_joined(const torus_capture_t *capture);
/* What stands for a storage that was read: another one of as many bytes, borrowed, or a value, which
 * is taken over (also on failure). */
typedef struct torus_capture_content {
  torus_storage_t *storage;
  torus_value_t *value;
} torus_capture_content_t;
/* Queues one run. |contents| has an entry for each argument; those of arguments that are no storage
 * are not looked at. What does not have the argument's type, or is to be used up and held by others
 * too, is copied first. |out_results| has room for all results; the caller owns them. Device must be
 * locked. */
TORUS_NODISCARD torus_status_t torus_capture_apply(torus_capture_t *capture,
                                                   torus_capture_content_t *contents,
                                                   uint64_t seed, uint64_t offset,
                                                   torus_value_t **out_results);

/* ---- lowering ---- */

/* Ends recording without compiling: |out_text|, freed by the caller with torus_free, is the program as
 * StableHLO. Its results are what the |count| storages in |wanted| hold, then what was written to
 * storages that were there before; each comes once. Conditions that a run would report (an index out
 * of range) are left out. The capture cannot be run. On failure the capture is dropped. */
TORUS_NODISCARD torus_status_t torus_capture_lower(torus_engine_t *engine, int device,
                                                   torus_storage_t *const *wanted, size_t count,
                                                   torus_capture_t **out_capture, char **out_text,
                                                   size_t *out_text_bytes);

/* Before torus_capture_lower: whether products of narrow factors are written with results wider than
 * these, as TPUs compute them. Otherwise they are written as the plugin at hand takes them. */
void torus_capture_set_mixed_products(torus_engine_t *engine, int device, bool mixed);

typedef enum {
  TORUS_SOURCE_STORAGE,      /* the storage's content at the time of the run */
  TORUS_SOURCE_CONSTANT,     /* |value| */
  TORUS_SOURCE_RANDOM,       /* seed and offset of the run: U64[2] */
} torus_capture_source_kind_t;

/* An argument of the program, or a storage that receives a result. Everything is borrowed from the
 * capture. */
typedef struct torus_capture_slot {
  torus_capture_source_kind_t kind; /* of an argument */
  torus_storage_t *storage;  /* that is read, NULL: none; or that receives the result */
  torus_value_t *value;      /* the constant */
  int result;                /* that the argument gives its memory to, -1: none; or that is received */
  torus_dtype_t dtype;
  int rank;
  const int64_t *dims;
} torus_capture_slot_t;

size_t torus_capture_argument_count(const torus_capture_t *capture);
torus_capture_slot_t torus_capture_argument(const torus_capture_t *capture, size_t index);
size_t torus_capture_result_count(const torus_capture_t *capture);
torus_capture_slot_t torus_capture_output(const torus_capture_t *capture, size_t index);

/* ---- loading ---- */

typedef struct torus_program_bytes {
  const char *data;
  size_t size;
  bool is_serialized; /* an executable of this plugin; else StableHLO */
} torus_program_bytes_t;

/* A program from elsewhere, to be run with torus_capture_apply. |arguments| and |results| say what it
 * takes and gives: kinds STORAGE and RANDOM, types, and which result an argument gives its memory to.
 * |out_capture| must be released by the caller. */
TORUS_NODISCARD torus_status_t torus_capture_load(torus_engine_t *engine, int device,
                                                  const torus_program_bytes_t *bytes,
                                                  const torus_capture_slot_t *arguments,
                                                  size_t argument_count,
                                                  const torus_capture_slot_t *results,
                                                  size_t result_count,
                                                  torus_capture_t **out_capture);
/* The executable, for torus_capture_load; freed by the caller with torus_free. */
TORUS_NODISCARD torus_status_t torus_capture_serialize(const torus_capture_t *capture,
                                                       char **out_bytes, size_t *out_size);

torus_capture_t *torus_capture_retain(torus_capture_t *capture);
void torus_capture_release(torus_capture_t *capture); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif  /* TORUS_CAPTURE_H_ */
