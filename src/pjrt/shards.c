/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Arrays that lie on several devices. */
#include <string.h>

#include "pjrt/internal.h"
#include "torus/memory.h"

torus_status_t torus_pjrt_shards_new(torus_client_t *client, const torus_array_t *array,
                                     torus_sharding_t *sharding, torus_buffer_t **out_buffer) {
  torus_buffer_t *buffer;
  *out_buffer = NULL;
  TORUS_TRY(torus_pjrt_buffer_new(client, sharding->devices[0], &buffer));
  void *block;
  torus_status_t status = torus_try_alloc(
      sizeof(torus_shards_t) + (size_t)sharding->device_count * sizeof(PJRT_Buffer *), &block);
  if (status) {
    torus_buffer_release(buffer);
    return status;
  }
  buffer->shards = block;
  buffer->shards->sharding = torus_sharding_retain(sharding);
  buffer->shards->dtype = array->dtype;
  for (int i = 0; i < array->rank; i++) buffer->shards->dims[i] = array->dims[i];
  *out_buffer = buffer;
  return TORUS_OK;
}

void torus_pjrt_shards_destroy(torus_client_t *client, torus_shards_t *shards) {
  for (int i = 0; i < shards->sharding->device_count; i++) {
    torus_pjrt_buffer_destroy(client, shards->parts[i]);
  }
  torus_sharding_release(shards->sharding);
  torus_free(shards);
}

torus_sharding_t *torus_buffer_sharding(const torus_buffer_t *buffer) {
  return buffer->shards ? buffer->shards->sharding : NULL;
}

static size_t element_count(int rank, const int64_t *dims) {
  size_t count = 1;
  for (int i = 0; i < rank; i++) count *= (size_t)dims[i];
  return count;
}

size_t torus_pjrt_shards_size_bytes(const torus_buffer_t *buffer) {
  const torus_shards_t *shards = buffer->shards;
  return element_count(shards->sharding->rank, shards->dims) * torus_dtype_bytes(shards->dtype);
}

/* ---- cutting ---- */

typedef struct cut {
  int rank;
  size_t item_bytes;
  const int64_t *dims; /* of the whole array */
  int64_t starts[TORUS_PJRT_MAX_RANK], sizes[TORUS_PJRT_MAX_RANK]; /* of the piece */
} cut_t;

static cut_t cut_of(const torus_sharding_t *sharding, torus_dtype_t dtype, const int64_t *dims,
                    int piece) {
  cut_t cut = {.rank = sharding->rank, .item_bytes = torus_dtype_bytes(dtype), .dims = dims};
  torus_pjrt_sharding_extent(sharding, piece, dims, cut.starts, cut.sizes);
  return cut;
}

static size_t piece_bytes(const cut_t *cut) {
  return element_count(cut->rank, cut->sizes) * cut->item_bytes;
}

/* Whether the piece is all of the array in the dimensions from |dim| on. A piece that is as large may
 * lie beyond it: of one row cut in two, the second piece is nothing but filling. */
static bool is_whole(const cut_t *cut, int dim) {
  for (int i = dim; i < cut->rank; i++) {
    if (cut->starts[i] != 0 || cut->sizes[i] != cut->dims[i]) return false;
  }
  return true;
}

/* Copies between the array and a piece, from dimension |dim| on; what lies beyond the array is left
 * as it is. */
static void copy_piece(const cut_t *cut, int dim, char *array, char *piece, bool to_array) {
  if (dim == cut->rank) {
    memcpy(to_array ? array : piece, to_array ? piece : array, cut->item_bytes);
    return;
  }
  size_t array_step = element_count(cut->rank - dim - 1, cut->dims + dim + 1) * cut->item_bytes;
  size_t piece_step = element_count(cut->rank - dim - 1, cut->sizes + dim + 1) * cut->item_bytes;
  int64_t left = cut->dims[dim] - cut->starts[dim];
  int64_t count = left < cut->sizes[dim] ? left : cut->sizes[dim];
  if (count <= 0) return;
  array += (size_t)cut->starts[dim] * array_step;
  if (is_whole(cut, dim + 1)) {
    size_t bytes = (size_t)count * array_step;
    memcpy(to_array ? array : piece, to_array ? piece : array, bytes);
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    copy_piece(cut, dim + 1, array, piece, to_array);
    array += array_step;
    piece += piece_step;
  }
}

/* ---- from the host ---- */

/* Uploads one piece to each of its devices. |scratch| holds a piece. */
static torus_status_t upload_piece(torus_buffer_t *buffer, const char *data, int piece,
                                   char *scratch) {
  torus_shards_t *shards = buffer->shards;
  const torus_sharding_t *sharding = shards->sharding;
  cut_t cut = cut_of(sharding, shards->dtype, shards->dims, piece);
  int copies = sharding->device_count / torus_pjrt_sharding_pieces(sharding);
  const char *from = data;
  if (!is_whole(&cut, 0)) {
    memset(scratch, 0, piece_bytes(&cut));
    copy_piece(&cut, 0, (char *)data, scratch, false); /* only read */
    from = scratch;
  }
  for (int i = 0; i < copies; i++) {
    int partition = sharding->placement[piece * copies + i];
    TORUS_TRY(torus_pjrt_upload(buffer->client, sharding->devices[partition], from, shards->dtype,
                                cut.rank, cut.sizes, &shards->parts[partition]));
  }
  return TORUS_OK;
}

static torus_status_t upload_pieces(torus_buffer_t *buffer, const char *data) {
  const torus_sharding_t *sharding = buffer->shards->sharding;
  cut_t cut = cut_of(sharding, buffer->shards->dtype, buffer->shards->dims, 0);
  void *scratch;
  TORUS_TRY(torus_try_alloc(piece_bytes(&cut) + 1, &scratch));
  torus_status_t status = TORUS_OK;
  int pieces = torus_pjrt_sharding_pieces(sharding);
  for (int i = 0; i < pieces && !status; i++) status = upload_piece(buffer, data, i, scratch);
  torus_free(scratch);
  return status;
}

static torus_status_t check_sharding(torus_client_t *client, const torus_sharding_t *sharding,
                                     int rank) {
  if (sharding->rank != rank) {
    return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                             "an array of rank %d cannot lie as one of rank %d", rank,
                             sharding->rank);
  }
  for (int i = 0; i < sharding->device_count; i++) {
    TORUS_TRY(torus_pjrt_check_device(client, sharding->devices[i]));
  }
  return TORUS_OK;
}

torus_status_t torus_buffer_from_host_sharded(torus_client_t *client, const void *data,
                                              torus_dtype_t dtype, int rank, const int64_t *dims,
                                              torus_sharding_t *sharding,
                                              torus_buffer_t **out_buffer) {
  *out_buffer = NULL;
  TORUS_TRY(torus_pjrt_check_array(dtype, rank, dims));
  TORUS_TRY(check_sharding(client, sharding, rank));
  torus_array_t array = {dtype, rank, dims};
  torus_buffer_t *buffer;
  TORUS_TRY(torus_pjrt_shards_new(client, &array, sharding, &buffer));
  torus_status_t status = upload_pieces(buffer, data);
  if (!status) {
    *out_buffer = buffer;
    buffer = NULL;
  }
  torus_buffer_release(buffer);
  return status;
}

/* ---- to the host ---- */

static torus_status_t download_piece(torus_buffer_t *buffer, int piece, char *data,
                                     char *scratch) {
  torus_shards_t *shards = buffer->shards;
  const torus_sharding_t *sharding = shards->sharding;
  cut_t cut = cut_of(sharding, shards->dtype, shards->dims, piece);
  int copies = sharding->device_count / torus_pjrt_sharding_pieces(sharding);
  PJRT_Buffer *part = shards->parts[sharding->placement[piece * copies]];
  if (is_whole(&cut, 0)) return torus_pjrt_download(buffer->client, part, data, piece_bytes(&cut));
  TORUS_TRY(torus_pjrt_download(buffer->client, part, scratch, piece_bytes(&cut)));
  copy_piece(&cut, 0, data, scratch, true);
  return TORUS_OK;
}

torus_status_t torus_pjrt_shards_to_host(torus_buffer_t *buffer, void *data, size_t size_bytes) {
  const torus_sharding_t *sharding = buffer->shards->sharding;
  size_t own_bytes = torus_pjrt_shards_size_bytes(buffer);
  if (own_bytes != size_bytes) {
    return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                             "the array has %zu bytes, but the destination has %zu", own_bytes,
                             size_bytes);
  }
  cut_t cut = cut_of(sharding, buffer->shards->dtype, buffer->shards->dims, 0);
  void *scratch;
  TORUS_TRY(torus_try_alloc(piece_bytes(&cut) + 1, &scratch));
  torus_status_t status = TORUS_OK;
  int pieces = torus_pjrt_sharding_pieces(sharding);
  for (int i = 0; i < pieces && !status; i++) status = download_piece(buffer, i, data, scratch);
  torus_free(scratch);
  return status;
}

/* ---- between layouts ---- */

static torus_status_t array_of(torus_buffer_t *buffer, torus_array_t *out_array) {
  if (!buffer->shards) return torus_pjrt_array_of(buffer->client, buffer->buffer, out_array);
  *out_array = (torus_array_t){buffer->shards->dtype, buffer->shards->sharding->rank,
                               buffer->shards->dims};
  return TORUS_OK;
}

/* Plugins refuse to copy to the device where the array is. */
static torus_status_t duplicate(torus_buffer_t *buffer, const torus_shards_t *shards,
                                PJRT_Buffer **out_copy) {
  size_t size_bytes = torus_buffer_size_bytes(buffer);
  void *data;
  TORUS_TRY(torus_try_alloc(size_bytes + 1, &data));
  torus_status_t status = torus_buffer_to_host(buffer, data, size_bytes);
  if (!status) {
    status = torus_pjrt_upload(buffer->client, buffer->device, data, shards->dtype,
                               shards->sharding->rank, shards->dims, out_copy);
  }
  torus_free(data);
  return status;
}

/* A whole array goes to each device by itself. */
static torus_status_t replicate(torus_buffer_t *buffer, torus_buffer_t *target) {
  torus_shards_t *shards = target->shards;
  for (int i = 0; i < shards->sharding->device_count; i++) {
    int device = shards->sharding->devices[i];
    if (device == buffer->device) {
      TORUS_TRY(duplicate(buffer, shards, &shards->parts[i]));
    } else {
      TORUS_TRY(torus_pjrt_copy_to(buffer->client, buffer->buffer, device, &shards->parts[i]));
    }
  }
  return TORUS_OK;
}

static torus_status_t through_host(torus_buffer_t *buffer, const torus_array_t *array,
                                   torus_sharding_t *sharding, int device,
                                   torus_buffer_t **out_buffer) {
  size_t size_bytes = torus_buffer_size_bytes(buffer);
  void *data;
  TORUS_TRY(torus_try_alloc(size_bytes + 1, &data));
  torus_status_t status = torus_buffer_to_host(buffer, data, size_bytes);
  if (!status && sharding) {
    status = torus_buffer_from_host_sharded(buffer->client, data, array->dtype, array->rank,
                                            array->dims, sharding, out_buffer);
  } else if (!status) {
    status = torus_buffer_from_host(buffer->client, device, data, array->dtype, array->rank,
                                    array->dims, out_buffer);
  }
  torus_free(data);
  return status;
}

torus_status_t torus_buffer_lay_out(torus_buffer_t *buffer, torus_sharding_t *sharding, int device,
                                    torus_buffer_t **out_buffer) {
  torus_array_t array;
  *out_buffer = NULL;
  if (!sharding && !buffer->shards) return torus_buffer_copy_to_device(buffer, device, out_buffer);
  TORUS_TRY(array_of(buffer, &array));
  if (sharding) TORUS_TRY(check_sharding(buffer->client, sharding, array.rank));
  if (!sharding || buffer->shards || !torus_sharding_is_replicated(sharding)) {
    return through_host(buffer, &array, sharding, device, out_buffer);
  }
  torus_buffer_t *target;
  TORUS_TRY(torus_pjrt_shards_new(buffer->client, &array, sharding, &target));
  torus_status_t status = replicate(buffer, target);
  if (!status) {
    *out_buffer = target;
    target = NULL;
  }
  torus_buffer_release(target);
  return status;
}
