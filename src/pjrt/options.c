/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Compile options, written as the protocol buffer message that PJRT expects. The few fields used
 * do not justify a protocol buffer library:
 *
 *   CompileOptionsProto {
 *     executable_build_options = 3 { num_replicas = 4: 1; num_partitions = 5: 1 }
 *     compile_portable_executable = 4: true
 *     env_option_overrides = 7: map from text to { bool_field = 2 or int_field = 3 }
 *   }
 *
 * A portable executable has no device of its own: one compilation serves every device. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt/internal.h"

/* The CPU compiler is asked for the numbers that PyTorch gives on the CPU: min and max that pass
 * NaN on, no reordering of sums, no intermediate results wider than their type. */
#define CPU_EXACT                                                                                  \
  "xla_cpu_enable_fast_min_max=false;"                                                             \
  "xla_cpu_enable_fast_math=false;"                                                                \
  "xla_allow_excess_precision=false;"

/* The MLIR fusion emitters take half of the time of a small program; without them the numbers stay
 * the same bit by bit. Lower levels of LLVM's optimiser would save more, but they contract and
 * reorder differently, so that a program would change its results when it is compiled again. */
#define CPU_FAST "xla_cpu_use_fusion_emitters=false;"

const char *torus_pjrt_options_text(bool is_cpu, torus_effort_t effort) {
  if (!is_cpu) return "";
  return effort == TORUS_EFFORT_FAST ? CPU_EXACT CPU_FAST : CPU_EXACT;
}

const char *torus_executable_options_fingerprint(const torus_client_t *client,
                                                 torus_effort_t effort) {
  return torus_pjrt_options_text(client->is_cpu, effort);
}

typedef struct writer {
  char *bytes;
  size_t size;
  size_t capacity; /* enough for the fixed texts above */
} writer_t;

static void put_bytes(writer_t *writer, const void *bytes, size_t size_bytes) {
  assert(size_bytes <= writer->capacity - writer->size);
  memcpy(writer->bytes + writer->size, bytes, size_bytes);
  writer->size += size_bytes;
}

static void put_varint(writer_t *writer, uint64_t value) {
  for (; value >= 0x80; value >>= 7) put_bytes(writer, &(char){(char)(value | 0x80)}, 1);
  put_bytes(writer, &(char){(char)value}, 1);
}

static void put_number(writer_t *writer, unsigned field, uint64_t value) {
  put_varint(writer, field << 3);
  put_varint(writer, value);
}

static void put_block(writer_t *writer, unsigned field, const void *bytes, size_t size_bytes) {
  put_varint(writer, field << 3 | 2);
  put_varint(writer, size_bytes);
  put_bytes(writer, bytes, size_bytes);
}

/* |value| is "true", "false" or a decimal number. */
static void put_override(writer_t *writer, const char *name, size_t name_bytes,
                         const char *value) {
  char value_bytes[16], entry_bytes[128];
  writer_t inner = {value_bytes, 0, sizeof value_bytes};
  writer_t entry = {entry_bytes, 0, sizeof entry_bytes};
  if (value[0] == 't' || value[0] == 'f') {
    put_number(&inner, 2, value[0] == 't');
  } else {
    put_number(&inner, 3, (uint64_t)strtoll(value, NULL, 10));
  }
  put_block(&entry, 1, name, name_bytes);
  put_block(&entry, 2, inner.bytes, inner.size);
  put_block(writer, 7, entry.bytes, entry.size);
}

void torus_pjrt_options_encode(const char *text, uint32_t refused, char *out_bytes,
                               size_t *out_size) {
  char build_bytes[16];
  writer_t build = {build_bytes, 0, sizeof build_bytes};
  writer_t writer = {out_bytes, 0, TORUS_PJRT_MAX_OPTIONS_BYTES};
  put_number(&build, 4, 1);
  put_number(&build, 5, 1);
  put_block(&writer, 3, build.bytes, build.size);
  put_number(&writer, 4, true);
  for (unsigned position = 0; *text; position++) {
    size_t name_bytes = strcspn(text, "=");
    const char *value = text + name_bytes + 1;
    if (!(refused >> position & 1)) put_override(&writer, text, name_bytes, value);
    text = value + strcspn(value, ";") + 1;
  }
  *out_size = writer.size;
}

int torus_pjrt_options_find_refused(const char *text, const char *message) {
  const char phrase[] = "No such compile option: '";
  const char *name = strstr(message, phrase);
  if (!name) return -1;
  name += sizeof phrase - 1;
  for (int position = 0; *text; position++) {
    size_t name_bytes = strcspn(text, "=");
    if (strncmp(text, name, name_bytes) == 0 && name[name_bytes] == '\'') return position;
    text += strcspn(text, ";") + 1;
  }
  return -1;
}
