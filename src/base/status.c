/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* A status is one block: the fields, then the text. Two static ones stand in when memory is out. */
#include "torus/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "torus/memory.h"

struct torus_status {
  torus_status_code_t code;
  const char *message; /* into the same block, or a literal */
};

/* Never freed, so that reporting exhaustion needs no memory. */
static struct torus_status out_of_memory = {TORUS_STATUS_RESOURCE_EXHAUSTED,
                                            "out of host memory"};

/* Makes a status of "|prefix|: |text|"; |prefix| may be NULL. NULL when memory is short. */
static torus_status_t status_build(torus_status_code_t code, const char *prefix,
                                   const char *text) {
  size_t prefix_bytes = prefix ? strlen(prefix) + 2 : 0;
  size_t text_bytes = strlen(text) + 1;
  torus_status_t status = torus_alloc(sizeof *status + prefix_bytes + text_bytes);
  if (!status) return NULL;
  char *message = (char *)(status + 1);
  if (prefix) {
    memcpy(message, prefix, prefix_bytes - 2);
    memcpy(message + prefix_bytes - 2, ": ", 2);
  }
  memcpy(message + prefix_bytes, text, text_bytes);
  status->code = code;
  status->message = message;
  return status;
}

/* Formats into |stack|, or into a block stored in |*out_block| when the text is longer. */
static const char *format_text(char *stack, size_t stack_bytes, const char *format, va_list list,
                               char **out_block) {
  *out_block = NULL;
  va_list again;
  va_copy(again, list);
  int length = vsnprintf(stack, stack_bytes, format, list);
  const char *text = stack;
  if (length < 0) {
    text = format;
  } else if ((size_t)length >= stack_bytes) {
    *out_block = torus_alloc((size_t)length + 1);
    if (*out_block) {
      vsnprintf(*out_block, (size_t)length + 1, format, again);
      text = *out_block;
    }
  }
  va_end(again);
  return text;
}

torus_status_t torus_status_make(torus_status_code_t code, const char *format, ...) {
  if (code == TORUS_STATUS_OK) return TORUS_OK;
  char stack[512];
  char *block;
  va_list list;
  va_start(list, format);
  const char *text = format_text(stack, sizeof stack, format, list, &block);
  va_end(list);
  torus_status_t status = status_build(code, NULL, text);
  torus_free(block);
  return status ? status : &out_of_memory;
}

/* Without memory for the longer text the status itself is kept: its code matters more. */
torus_status_t torus_status_annotate(torus_status_t status, const char *format, ...) {
  if (!status) return TORUS_OK;
  char stack[512];
  char *block;
  va_list list;
  va_start(list, format);
  const char *prefix = format_text(stack, sizeof stack, format, list, &block);
  va_end(list);
  torus_status_t longer = status_build(status->code, prefix, status->message);
  torus_free(block);
  if (!longer) return status;
  torus_status_free(status);
  return longer;
}

torus_status_t torus_status_clone(torus_status_t status) {
  if (!status || status == &out_of_memory) return status;
  torus_status_t copy = status_build(status->code, NULL, status->message);
  return copy ? copy : &out_of_memory;
}

torus_status_code_t torus_status_code(torus_status_t status) {
  return status ? status->code : TORUS_STATUS_OK;
}

const char *torus_status_message(torus_status_t status) { return status ? status->message : ""; }

const char *torus_status_code_name(torus_status_code_t code) {
  switch (code) {
#define TORUS_STATUS_NAME(name, number)                                                            \
  case TORUS_STATUS_##name:                                                                        \
    return #name;
    TORUS_STATUS_LIST(TORUS_STATUS_NAME)
#undef TORUS_STATUS_NAME
  }
  return "UNKNOWN";
}

void torus_status_free(torus_status_t status) {
  if (status != &out_of_memory) torus_free(status);
}

void torus_status_ignore(torus_status_t status) { torus_status_free(status); }
