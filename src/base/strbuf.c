/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
#include "base/strbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "torus/memory.h"

/* Makes room for |extra| bytes and the final zero. */
static bool strbuf_reserve(torus_strbuf_t *buf, size_t extra) {
  if (buf->failed) return false;
  if (extra < buf->capacity - buf->size) return true;
  size_t wanted = buf->size + extra + 1;
  size_t capacity = buf->capacity ? buf->capacity : 128;
  while (capacity < wanted && capacity <= SIZE_MAX / 2) capacity *= 2;
  char *data = wanted > buf->size && capacity >= wanted ? torus_realloc(buf->data, capacity) : NULL;
  if (!data) {
    buf->failed = true;
    return false;
  }
  buf->data = data;
  buf->capacity = capacity;
  return true;
}

void torus_strbuf_append_bytes(torus_strbuf_t *buf, const void *bytes, size_t size_bytes) {
  if (!size_bytes || !strbuf_reserve(buf, size_bytes)) return;
  memcpy(buf->data + buf->size, bytes, size_bytes);
  buf->size += size_bytes;
  buf->data[buf->size] = 0;
}

void torus_strbuf_append(torus_strbuf_t *buf, const char *text) {
  torus_strbuf_append_bytes(buf, text, strlen(text));
}

void torus_strbuf_char(torus_strbuf_t *buf, char c) { torus_strbuf_append_bytes(buf, &c, 1); }

void torus_strbuf_int(torus_strbuf_t *buf, int64_t value) {
  char digits[20];
  char *end = digits + sizeof digits, *at = end;
  /* Unsigned, so that the smallest value has a magnitude. */
  uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  do {
    *--at = (char)('0' + magnitude % 10);
    magnitude /= 10;
  } while (magnitude);
  if (value < 0) *--at = '-';
  torus_strbuf_append_bytes(buf, at, (size_t)(end - at));
}

/* Writes into the room there is; true when that was enough. */
static bool strbuf_try_format(torus_strbuf_t *buf, const char *format, va_list list,
                              size_t *out_length) {
  int length = vsnprintf(buf->data + buf->size, buf->capacity - buf->size, format, list);
  *out_length = length > 0 ? (size_t)length : 0;
  return *out_length < buf->capacity - buf->size;
}

void torus_strbuf_printf(torus_strbuf_t *buf, const char *format, ...) {
  if (!strbuf_reserve(buf, 64)) return;
  va_list list, again;
  va_start(list, format);
  va_copy(again, list);
  size_t length;
  bool fits = strbuf_try_format(buf, format, list, &length);
  if (!fits && strbuf_reserve(buf, length)) fits = strbuf_try_format(buf, format, again, &length);
  va_end(again);
  va_end(list);
  if (fits) buf->size += length;
  buf->data[buf->size] = 0;
}

const char *torus_strbuf_text(const torus_strbuf_t *buf) { return buf->data ? buf->data : ""; }

torus_status_t torus_strbuf_status(const torus_strbuf_t *buf) {
  if (!buf->failed) return TORUS_OK;
  return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED,
                           "out of host memory while building a text of %zu bytes", buf->size);
}

void torus_strbuf_reset(torus_strbuf_t *buf) {
  buf->size = 0;
  buf->failed = false;
  if (buf->data) buf->data[0] = 0;
}

char *torus_strbuf_take(torus_strbuf_t *buf) {
  char *text = buf->failed ? NULL : buf->data;
  if (text == NULL) torus_free(buf->data);
  *buf = (torus_strbuf_t){0};
  return text;
}

void torus_strbuf_deinit(torus_strbuf_t *buf) {
  torus_free(buf->data);
  *buf = (torus_strbuf_t){0};
}
