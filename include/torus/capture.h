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

torus_capture_t *torus_capture_retain(torus_capture_t *capture);
void torus_capture_release(torus_capture_t *capture); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif  /* TORUS_CAPTURE_H_ */
