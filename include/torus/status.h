/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Outcome of every fallible call of libtorus. */
#ifndef TORUS_STATUS_H_
#define TORUS_STATUS_H_

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The absl codes, with the numbers PJRT uses for them. */
#define TORUS_STATUS_LIST(X)                                                                       \
  X(OK, 0)                                                                                         \
  X(CANCELLED, 1)                                                                                  \
  X(UNKNOWN, 2)                                                                                    \
  X(INVALID_ARGUMENT, 3)                                                                           \
  X(DEADLINE_EXCEEDED, 4)                                                                          \
  X(NOT_FOUND, 5)                                                                                  \
  X(ALREADY_EXISTS, 6)                                                                             \
  X(PERMISSION_DENIED, 7)                                                                          \
  X(RESOURCE_EXHAUSTED, 8)                                                                         \
  X(FAILED_PRECONDITION, 9)                                                                        \
  X(ABORTED, 10)                                                                                   \
  X(OUT_OF_RANGE, 11)                                                                              \
  X(UNIMPLEMENTED, 12)                                                                             \
  X(INTERNAL, 13)                                                                                  \
  X(UNAVAILABLE, 14)                                                                               \
  X(DATA_LOSS, 15)                                                                                 \
  X(UNAUTHENTICATED, 16)

typedef enum torus_status_code {
#define TORUS_STATUS_ENUM(name, number) TORUS_STATUS_##name = number,
  TORUS_STATUS_LIST(TORUS_STATUS_ENUM)
#undef TORUS_STATUS_ENUM
} torus_status_code_t;

/* NULL is success; anything else is an owned object that exactly one caller frees or passes on. */
typedef struct torus_status *torus_status_t;

#define TORUS_OK ((torus_status_t)0)

#if defined(__GNUC__)
#define TORUS_NODISCARD __attribute__((warn_unused_result))
#define TORUS_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#else
#define TORUS_NODISCARD
#define TORUS_PRINTF(fmt, first)
#endif

/* Makes a status with a formatted message. Never fails: when memory is short a static
 * RESOURCE_EXHAUSTED status is returned instead. */
TORUS_NODISCARD torus_status_t torus_status_make(torus_status_code_t code, const char *format, ...)
    TORUS_PRINTF(2, 3);

/* Puts "prefix: " before the message of |status| and returns it; success stays success. */
TORUS_NODISCARD torus_status_t torus_status_annotate(torus_status_t status, const char *format, ...)
    TORUS_PRINTF(2, 3);

/* A second, separately owned status with the same code and message. */
TORUS_NODISCARD torus_status_t torus_status_clone(torus_status_t status);

torus_status_code_t torus_status_code(torus_status_t status);

/* Lives as long as |status|; "" for success. */
const char *torus_status_message(torus_status_t status);

/* "INVALID_ARGUMENT" and so on. */
const char *torus_status_code_name(torus_status_code_t code);

/* Accepts NULL. */
void torus_status_free(torus_status_t status);

/* Drops a status on purpose, so that dropping one is visible in review. */
void torus_status_ignore(torus_status_t status);

/* Returns the status of |expr| to the caller when it is a failure. */
#define TORUS_TRY(expr)                                                                            \
  do {                                                                                             \
    torus_status_t torus_try_status_ = (expr);                                                     \
    if (torus_try_status_ != TORUS_OK) return torus_try_status_;                                   \
  } while (0)

#ifdef __cplusplus
}
#endif
#endif  /* TORUS_STATUS_H_ */
