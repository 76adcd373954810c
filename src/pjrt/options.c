/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Compile options, written as the protocol buffer message that PJRT expects. The few fields used
 * do not justify a protocol buffer library:
 *
 *   CompileOptionsProto {
 *     executable_build_options = 3 {
 *       num_replicas = 4
 *       num_partitions = 5
 *       use_spmd_partitioning = 6: true
 *       allow_spmd_sharding_propagation_to_output = 12: true
 *       use_shardy_partitioner = 19
 *     }
 *     compile_portable_executable = 4: true
 *     env_option_overrides = 7: map from text to { string_field = 1, bool_field = 2, int_field = 3
 *                                                  or double_field = 4 }
 *   }
 *
 * A portable executable has no device of its own: one compilation serves every device. A
 * partitioned one cannot be portable. Results without a sharding get the one that suits the
 * compiler; otherwise each device would be sent all of them. */
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

static bool is_text(const char *value, size_t value_bytes, const char *text) {
  return value_bytes == strlen(text) && memcmp(value, text, value_bytes) == 0;
}

/* The type of an option follows from how its value is written. */
static void put_value(writer_t *writer, const char *value, size_t value_bytes) {
  char *end;
  bool is_true = is_text(value, value_bytes, "true");
  if (is_true || is_text(value, value_bytes, "false")) {
    put_number(writer, 2, is_true);
    return;
  }
  long long number = strtoll(value, &end, 10);
  if (value_bytes && end == value + value_bytes) {
    put_number(writer, 3, (uint64_t)number);
    return;
  }
  double real = strtod(value, &end);
  if (value_bytes && end == value + value_bytes) {
    put_varint(writer, 4 << 3 | 1);
    put_bytes(writer, &real, sizeof real); /* little-endian on every platform of a plugin */
    return;
  }
  put_block(writer, 1, value, value_bytes);
}

#define MAX_OVERRIDE_BYTES 200

static void put_override(writer_t *writer, const char *name, size_t name_bytes, const char *value,
                         size_t value_bytes) {
  char inner_bytes[MAX_OVERRIDE_BYTES + 16], entry_bytes[MAX_OVERRIDE_BYTES + 32];
  writer_t inner = {inner_bytes, 0, sizeof inner_bytes};
  writer_t entry = {entry_bytes, 0, sizeof entry_bytes};
  put_value(&inner, value, value_bytes);
  put_block(&entry, 1, name, name_bytes);
  put_block(&entry, 2, inner.bytes, inner.size);
  put_block(writer, 7, entry.bytes, entry.size);
}

static void put_build(writer_t *writer, const torus_pjrt_build_t *build) {
  char bytes[32];
  writer_t inner = {bytes, 0, sizeof bytes};
  put_number(&inner, 4, (uint64_t)build->replica_count);
  put_number(&inner, 5, (uint64_t)build->partition_count);
  if (build->partition_count > 1) {
    put_number(&inner, 6, true);
    put_number(&inner, 12, true);
  }
  if (build->use_shardy) put_number(&inner, 19, true);
  put_block(writer, 3, inner.bytes, inner.size);
}

void torus_pjrt_options_encode(const torus_pjrt_build_t *build, const char *text, uint32_t refused,
                               char *out_bytes, size_t *out_size) {
  writer_t writer = {out_bytes, 0, TORUS_PJRT_MAX_OPTIONS_BYTES};
  put_build(&writer, build);
  if (build->is_portable) put_number(&writer, 4, true);
  for (unsigned position = 0; *text; position++) {
    size_t name_bytes = strcspn(text, "=");
    const char *value = text + name_bytes + 1;
    size_t value_bytes = strcspn(value, ";");
    bool is_refused = position < 32 && refused >> position & 1;
    if (!is_refused) put_override(&writer, text, name_bytes, value, value_bytes);
    text = value + value_bytes + 1;
  }
  *out_size = writer.size;
}

torus_status_t torus_pjrt_options_check(const char *text) {
  size_t room = TORUS_PJRT_MAX_OPTIONS_BYTES - 64;
  for (const char *pair = text; *pair;) {
    size_t name_bytes = strcspn(pair, "=;"), pair_bytes = strcspn(pair, ";");
    if (name_bytes == 0 || pair[name_bytes] != '=' || pair[pair_bytes] != ';') {
      return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                               "compiler option '%.*s' is not name=value;", (int)pair_bytes, pair);
    }
    if (pair_bytes > MAX_OVERRIDE_BYTES || pair_bytes + 32 > room) {
      return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT, "compiler options are too long");
    }
    room -= pair_bytes + 32;
    pair += pair_bytes + 1;
  }
  return TORUS_OK;
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
