/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Threads with names. Locks and conditions are pthread's own. */
#ifndef TORUS_BASE_THREAD_H_
#define TORUS_BASE_THREAD_H_

#include <pthread.h>

#include "torus/status.h"

typedef void *(*torus_thread_main_t)(void *context);

/* Starts |main| under |name| (shown by debuggers; cut at 15 bytes), with all signals blocked so
 * that they reach the program's own threads. Joined with pthread_join. */
TORUS_NODISCARD torus_status_t torus_thread_start(const char *name, torus_thread_main_t main,
                                                  void *context, pthread_t *out_thread);

#endif /* TORUS_BASE_THREAD_H_ */
