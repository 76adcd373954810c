/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Compile options, written as the protocol buffer message that PJRT expects. The few fields used
 * do not justify a protocol buffer library:
 *
 *   CompileOptionsProto {
 *     executable_build_options = 3 {
 *       num_replicas = 4
 *       num_partitions = 5
 *       use_spmd_partitioning = 6: true
 *       device_assignment = 9
 *       allow_spmd_sharding_propagation_to_output = 12: one for each result
 *       use_shardy_partitioner = 19
 *     }
 *     compile_portable_executable = 4: true
 *     env_option_overrides = 7: map from text to { string_field = 1, bool_field = 2, int_field = 3
 *                                                  or double_field = 4 }
 *   }
 *
 * A portable executable has no device of its own: one compilation serves every device. A
 * partitioned one cannot be portable. */
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

static void put_varint(torus_strbuf_t *out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) torus_strbuf_char(out, (char)(value | 0x80));
  torus_strbuf_char(out, (char)value);
}

static void put_number(torus_strbuf_t *out, unsigned field, uint64_t value) {
  put_varint(out, field << 3);
  put_varint(out, value);
}

static void put_block(torus_strbuf_t *out, unsigned field, const void *bytes, size_t size_bytes) {
  put_varint(out, field << 3 | 2);
  put_varint(out, size_bytes);
  torus_strbuf_append_bytes(out, bytes, size_bytes);
}

/* A message inside of another one; |inner| is used up. */
static void put_message(torus_strbuf_t *out, unsigned field, torus_strbuf_t *inner) {
  put_block(out, field, inner->data, inner->size);
  if (inner->failed) out->failed = true;
  torus_strbuf_deinit(inner);
}

static bool is_text(const char *value, size_t value_bytes, const char *text) {
  return value_bytes == strlen(text) && memcmp(value, text, value_bytes) == 0;
}

/* The type of an option follows from how its value is written. */
static void put_value(torus_strbuf_t *out, const char *value, size_t value_bytes) {
  char *end;
  bool is_true = is_text(value, value_bytes, "true");
  if (is_true || is_text(value, value_bytes, "false")) {
    put_number(out, 2, is_true);
    return;
  }
  long long number = strtoll(value, &end, 10);
  if (value_bytes && end == value + value_bytes) {
    put_number(out, 3, (uint64_t)number);
    return;
  }
  double real = strtod(value, &end);
  if (value_bytes && end == value + value_bytes) {
    put_varint(out, 4 << 3 | 1);
    torus_strbuf_append_bytes(out, &real, sizeof real); /* plugins are little-endian */
    return;
  }
  put_block(out, 1, value, value_bytes);
}

static void put_override(torus_strbuf_t *out, const char *name, size_t name_bytes,
                         const char *value, size_t value_bytes) {
  torus_strbuf_t inner = {0}, entry = {0};
  put_value(&inner, value, value_bytes);
  put_block(&entry, 1, name, name_bytes);
  put_message(&entry, 2, &inner);
  put_message(out, 7, &entry);
}

/* DeviceAssignmentProto { replica_count = 1, computation_count = 2,
 *                        computation_devices = 3 { replica_device_ids = 1 } } */
static void put_devices(torus_strbuf_t *out, const torus_pjrt_build_t *build) {
  torus_strbuf_t assignment = {0};
  put_number(&assignment, 1, (uint64_t)build->replica_count);
  put_number(&assignment, 2, (uint64_t)build->partition_count);
  for (int i = 0; i < build->partition_count; i++) {
    torus_strbuf_t device = {0};
    for (int k = 0; k < build->replica_count; k++) {
      put_number(&device, 1, (uint64_t)build->device_ids[i * build->replica_count + k]);
    }
    put_message(&assignment, 3, &device);
  }
  put_message(out, 9, &assignment);
}

static void put_build(torus_strbuf_t *out, const torus_pjrt_build_t *build) {
  torus_strbuf_t inner = {0};
  put_number(&inner, 4, (uint64_t)build->replica_count);
  put_number(&inner, 5, (uint64_t)build->partition_count);
  if (build->partition_count > 1) put_number(&inner, 6, true);
  if (build->device_ids) put_devices(&inner, build);
  for (const char *flag = build->free_results; flag && *flag; flag++) {
    put_number(&inner, 12, *flag == '1');
  }
  if (build->use_shardy) put_number(&inner, 19, true);
  put_message(out, 3, &inner);
}

torus_status_t torus_pjrt_options_encode(const torus_pjrt_build_t *build, const char *text,
                                         uint32_t refused, torus_strbuf_t *out) {
  put_build(out, build);
  if (build->is_portable) put_number(out, 4, true);
  for (unsigned position = 0; *text; position++) {
    size_t name_bytes = strcspn(text, "=");
    const char *value = text + name_bytes + 1;
    size_t value_bytes = strcspn(value, ";");
    bool is_refused = position < 32 && refused >> position & 1;
    if (!is_refused) put_override(out, text, name_bytes, value, value_bytes);
    text = value + value_bytes + 1;
  }
  return torus_strbuf_status(out);
}

torus_status_t torus_pjrt_options_check(const char *text) {
  for (const char *pair = text; *pair;) {
    size_t name_bytes = strcspn(pair, "=;"), pair_bytes = strcspn(pair, ";");
    if (name_bytes == 0 || pair[name_bytes] != '=' || pair[pair_bytes] != ';') {
      return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                               "compiler option '%.*s' is not name=value;", (int)pair_bytes, pair);
    }
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
