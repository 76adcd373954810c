/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Reads how a compiled program's results lie on the devices. Of the protocol buffer messages
 *
 *   HloModuleProtoWithConfig { hlo_module = 1 }
 *   HloModuleProto { spmd_output_sharding = 12 }
 *   OpSharding {
 *     type = 1: REPLICATED 0, MAXIMAL 1, TUPLE 2, OTHER 3
 *     tile_assignment_dimensions = 3
 *     tile_assignment_devices = 4
 *     tuple_shardings = 5
 *     replicate_on_last_tile_dim = 6
 *     last_tile_dims = 8: types, REPLICATED 0
 *     iota_reshape_dims = 9, iota_transpose_perm = 10
 *   }
 *
 * only these fields are looked at. */
#include <string.h>

#include "pjrt/internal.h"
#include "pjrt/sharding.h"
#include "torus/memory.h"

enum { TYPE_REPLICATED = 0, TYPE_TUPLE = 2, TYPE_OTHER = 3, MOST_DIMS = TORUS_PJRT_MAX_RANK + 4 };

typedef struct reader {
  const uint8_t *at, *end;
} reader_t;

typedef struct field {
  unsigned number;
  uint64_t value; /* of a number */
  reader_t bytes; /* of a text or message; empty for a number */
} field_t;

static bool read_varint(reader_t *reader, uint64_t *out_value) {
  *out_value = 0;
  for (unsigned shift = 0; reader->at < reader->end && shift < 64; shift += 7) {
    uint8_t byte = *reader->at++;
    *out_value |= (uint64_t)(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

/* False at the end, and where the bytes are no message: what is missing then is noticed later. */
static bool read_field(reader_t *reader, field_t *out_field) {
  uint64_t key, size = 0;
  *out_field = (field_t){0};
  if (!read_varint(reader, &key)) return false;
  out_field->number = (unsigned)(key >> 3);
  switch (key & 7) {
  case 0:
    return read_varint(reader, &out_field->value);
  case 1:
    size = 8;
    break;
  case 2:
    if (!read_varint(reader, &size)) return false;
    break;
  case 5:
    size = 4;
    break;
  default:
    return false;
  }
  if (size > (uint64_t)(reader->end - reader->at)) return false;
  out_field->bytes = (reader_t){reader->at, reader->at + size};
  reader->at += size;
  return true;
}

/* The last field of that number; repeated messages do not occur where this is used. */
static bool find_message(reader_t reader, unsigned number, reader_t *out_message) {
  field_t field;
  bool is_found = false;
  while (read_field(&reader, &field)) {
    if (field.number != number || !field.bytes.at) continue;
    *out_message = field.bytes;
    is_found = true;
  }
  return is_found;
}

typedef struct numbers {
  int64_t values[MOST_DIMS];
  int count;
  bool is_too_long;
} numbers_t;

static void add_number(numbers_t *numbers, uint64_t value) {
  if (numbers->count == MOST_DIMS) {
    numbers->is_too_long = true;
  } else {
    numbers->values[numbers->count++] = (int64_t)value;
  }
}

/* A repeated number comes packed or one by one. */
static void add_numbers(numbers_t *numbers, const field_t *field) {
  reader_t packed = field->bytes;
  uint64_t value;
  if (!packed.at) {
    add_number(numbers, field->value);
    return;
  }
  while (packed.at < packed.end && read_varint(&packed, &value)) add_number(numbers, value);
}

typedef struct op_sharding {
  uint64_t type;
  numbers_t tiles, last_types, iota_dims, iota_order;
  bool replicates_last;
  int *devices; /* |device_capacity| */
  int device_count, device_capacity;
} op_sharding_t;

static void add_devices(op_sharding_t *sharding, const field_t *field) {
  reader_t packed = field->bytes;
  uint64_t value = field->value;
  while (!packed.at || (packed.at < packed.end && read_varint(&packed, &value))) {
    if (sharding->device_count < sharding->device_capacity) {
      sharding->devices[sharding->device_count] = (int)value;
    }
    sharding->device_count++;
    if (!packed.at) return;
  }
}

static void read_op_sharding(reader_t reader, op_sharding_t *out) {
  field_t field;
  while (read_field(&reader, &field)) {
    if (field.number == 1) out->type = field.value;
    if (field.number == 3) add_numbers(&out->tiles, &field);
    if (field.number == 4) add_devices(out, &field);
    if (field.number == 6) out->replicates_last = field.value != 0;
    if (field.number == 8) add_numbers(&out->last_types, &field);
    if (field.number == 9) add_numbers(&out->iota_dims, &field);
    if (field.number == 10) add_numbers(&out->iota_order, &field);
  }
}

static torus_status_t not_expressible(void) {
  return torus_status_make(TORUS_STATUS_UNIMPLEMENTED,
                           "a result lies on the devices in a way that has no name here");
}

/* The numbers 0, 1, ... in |dims|, read in another order of the axes. */
static void expand_iota(const numbers_t *dims, const numbers_t *order, int count, int *out) {
  int64_t place[MOST_DIMS] = {0};
  for (int i = 0; i < count; i++) {
    int64_t number = 0;
    for (int d = 0; d < dims->count; d++) {
      int64_t along = 0;
      for (int k = 0; k < order->count; k++) {
        if (order->values[k] == d) along = place[k];
      }
      number = number * dims->values[d] + along;
    }
    out[i] = (int)number;
    for (int k = order->count; k-- > 0;) {
      if (++place[k] < dims->values[order->values[k]]) break;
      place[k] = 0;
    }
  }
}

static bool is_permutation(const numbers_t *dims, const numbers_t *order, int count) {
  int64_t product = 1;
  uint64_t seen = 0;
  for (int i = 0; i < dims->count; i++) {
    if (dims->values[i] < 1 || dims->values[i] > count) return false;
    product *= dims->values[i];
  }
  for (int i = 0; i < order->count; i++) {
    if (order->values[i] < 0 || order->values[i] >= dims->count) return false;
    seen |= UINT64_C(1) << order->values[i];
  }
  return dims->count < 64 && product == count && order->count == dims->count &&
         seen == (UINT64_C(1) << dims->count) - 1;
}

/* How many dimensions of the tiles only say how often pieces are repeated. */
static int repeating_dims(const op_sharding_t *sharding) {
  for (int i = 0; i < sharding->last_types.count; i++) {
    if (sharding->last_types.values[i] != TYPE_REPLICATED) return -1;
  }
  return sharding->replicates_last ? 1 : sharding->last_types.count;
}

static torus_status_t place_devices(op_sharding_t *sharding, int device_count) {
  if (sharding->device_count == 0) {
    if (!is_permutation(&sharding->iota_dims, &sharding->iota_order, device_count)) {
      return not_expressible();
    }
    expand_iota(&sharding->iota_dims, &sharding->iota_order, device_count, sharding->devices);
    return TORUS_OK;
  }
  return sharding->device_count == device_count ? TORUS_OK : not_expressible();
}

static torus_status_t from_tiles(op_sharding_t *sharding, const torus_sharding_t *mesh, int rank,
                                 torus_sharding_t **out_sharding) {
  int repeating = repeating_dims(sharding);
  bool is_long = sharding->tiles.is_too_long || sharding->iota_dims.is_too_long ||
                 sharding->iota_order.is_too_long;
  if (is_long || repeating < 0 || sharding->tiles.count != rank + repeating) {
    return not_expressible();
  }
  TORUS_TRY(place_devices(sharding, mesh->device_count));
  torus_sharding_layout_t layout = torus_sharding_layout(mesh);
  layout.rank = rank;
  layout.parts = sharding->tiles.values;
  layout.placement = sharding->devices;
  return torus_sharding_create(&layout, out_sharding);
}

static torus_status_t read_one(reader_t bytes, const torus_sharding_t *mesh, int rank,
                               torus_sharding_t **out_sharding) {
  void *block;
  *out_sharding = NULL;
  TORUS_TRY(torus_try_alloc((size_t)mesh->device_count * sizeof(int), &block));
  op_sharding_t sharding = {.devices = block, .device_capacity = mesh->device_count};
  read_op_sharding(bytes, &sharding);
  torus_status_t status;
  if (sharding.type == TYPE_REPLICATED) {
    status = torus_sharding_replicated(mesh, rank, out_sharding);
  } else if (sharding.type == TYPE_OTHER) {
    status = from_tiles(&sharding, mesh, rank, out_sharding);
  } else {
    status = not_expressible();
  }
  torus_free(block);
  return status;
}

/* A program with several results has a tuple of shardings, one with a single result may have a
 * tuple of one. */
static torus_status_t read_all(reader_t bytes, const torus_sharding_t *mesh, size_t count,
                               const int *ranks, torus_sharding_t **out_shardings) {
  reader_t reader = bytes;
  field_t field;
  size_t found = 0;
  bool is_tuple = false;
  while (read_field(&reader, &field)) {
    if (field.number == 1) is_tuple = field.value == TYPE_TUPLE;
    if (field.number != 5 || !field.bytes.at) continue;
    if (found == count) return not_expressible();
    TORUS_TRY(read_one(field.bytes, mesh, ranks[found], &out_shardings[found]));
    found++;
  }
  if (is_tuple || count != 1) return found == count ? TORUS_OK : not_expressible();
  return read_one(bytes, mesh, ranks[0], &out_shardings[0]);
}

torus_status_t torus_pjrt_sharding_read_results(const char *bytes, size_t size,
                                                const torus_sharding_t *mesh, size_t count,
                                                const int *ranks,
                                                torus_sharding_t **out_shardings) {
  for (size_t i = 0; i < count; i++) out_shardings[i] = NULL;
  if (count == 0) return TORUS_OK;
  reader_t whole = {(const uint8_t *)bytes, (const uint8_t *)bytes + size}, module, sharding;
  if (!find_message(whole, 1, &module) || !find_message(module, 12, &sharding)) {
    return not_expressible();
  }
  torus_status_t status = read_all(sharding, mesh, count, ranks, out_shardings);
  if (!status) return TORUS_OK;
  for (size_t i = 0; i < count; i++) {
    torus_sharding_release(out_shardings[i]);
    out_shardings[i] = NULL;
  }
  return status;
}
