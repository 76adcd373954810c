/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* One line per event, for whoever asks: TORUS_LOG=compile,window,fallback (or all).
 *
 * Lines go to standard error, or to the end of the file TORUS_LOG_FILE, each with one write, so that
 * lines of threads and processes do not mix. Nothing is formatted while a category is off. */
#ifndef TORUS_LOG_H_
#define TORUS_LOG_H_

#include <stdbool.h>

#include "torus/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(enum name, spelling, ANSI colour) */
#define TORUS_LOG_LIST(X)                                                                          \
  X(COMPILE, "compile", 36)   /* a program was compiled or loaded from disk, and why */            \
  X(WINDOW, "window", 32)     /* a window was closed */                                            \
  X(FALLBACK, "fallback", 33) /* an operator ran on the CPU */                                     \
  X(LINES, "lines", 0)        /* no lines of its own: has the Python line of each operator kept */

typedef enum torus_log_category {
#define TORUS_LOG_ENUM(name, spelling, colour) TORUS_LOG_##name,
  TORUS_LOG_LIST(TORUS_LOG_ENUM)
#undef TORUS_LOG_ENUM
  TORUS_LOG_COUNT
} torus_log_category_t;

bool torus_log_is_on(torus_log_category_t category);

/* Writes "[torus SECONDS category] message" when the category is on. Seconds since the log was set
 * up, by a monotonic clock. A line is cut at 2 KiB. */
void torus_log(torus_log_category_t category, const char *format, ...) TORUS_PRINTF(2, 3);

/* Switches exactly the named categories on (NULL or "": none). An unknown name is said on standard
 * error and passed over. |path| NULL or "": standard error; a file that cannot be opened likewise. */
void torus_log_configure(const char *categories, const char *path);

/* torus_log_configure with TORUS_LOG and TORUS_LOG_FILE, unless the log was configured before. */
void torus_log_configure_from_environment(void);

#ifdef __cplusplus
}
#endif
#endif  /* TORUS_LOG_H_ */
