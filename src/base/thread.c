/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/thread.h"

#include <signal.h>
#include <string.h>

torus_status_t torus_thread_start(const char *name, torus_thread_main_t main, void *context,
                                  pthread_t *out_thread) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(out_thread, NULL, main, context);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error) {
    return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "cannot start thread '%s': %s", name,
                             strerror(error));
  }
  char shown[16] = {0};
  strncpy(shown, name, sizeof shown - 1);
  pthread_setname_np(*out_thread, shown);
  return TORUS_OK;
}
