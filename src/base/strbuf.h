/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* A growable text. Failures stick: append at will, then look at |failed| once. */
#ifndef TORUS_BASE_STRBUF_H_
#define TORUS_BASE_STRBUF_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "torus/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* {0} is an empty text. |data| ends in a zero byte as soon as it is not NULL. */
typedef struct torus_strbuf {
  char *data;      /* owned */
  size_t size;     /* bytes, without the final zero */
  size_t capacity; /* bytes of the block */
  bool failed;     /* memory ran out since the last reset; the text is cut short */
} torus_strbuf_t;

void torus_strbuf_append(torus_strbuf_t *buf, const char *text);
void torus_strbuf_append_bytes(torus_strbuf_t *buf, const void *bytes, size_t size_bytes);
void torus_strbuf_char(torus_strbuf_t *buf, char c);
void torus_strbuf_int(torus_strbuf_t *buf, int64_t value);
void torus_strbuf_printf(torus_strbuf_t *buf, const char *format, ...) TORUS_PRINTF(2, 3);

/* The text so far, never NULL; valid until the next change. */
const char *torus_strbuf_text(const torus_strbuf_t *buf);

/* RESOURCE_EXHAUSTED when anything was lost. */
TORUS_NODISCARD torus_status_t torus_strbuf_status(const torus_strbuf_t *buf);

/* Empties the text, keeps the block, forgets failures. */
void torus_strbuf_reset(torus_strbuf_t *buf);

/* Hands the text over, to be freed with torus_free, and leaves an empty one; NULL when anything was
 * lost, or there is none. */
TORUS_NODISCARD char *torus_strbuf_take(torus_strbuf_t *buf);

/* Frees the block; the text is empty and usable again. */
void torus_strbuf_deinit(torus_strbuf_t *buf);

#ifdef __cplusplus
}
#endif
#endif /* TORUS_BASE_STRBUF_H_ */
