/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Arrays on a device. */
#include <string.h>

#include "pjrt/internal.h"
#include "torus/memory.h"

static PJRT_Buffer_Type pjrt_type(torus_dtype_t dtype) {
  switch (dtype) {
#define PJRT_TYPE(name, pjrt, hlo, bytes, kind, torch)                                             \
  case TORUS_DTYPE_##name:                                                                         \
    return PJRT_Buffer_Type_##pjrt;
    TORUS_DTYPE_LIST(PJRT_TYPE)
#undef PJRT_TYPE
  default:
    return PJRT_Buffer_Type_INVALID;
  }
}

static size_t pjrt_type_bytes(PJRT_Buffer_Type type) {
  switch (type) {
#define PJRT_TYPE_BYTES(name, pjrt, hlo, bytes, kind, torch)                                       \
  case PJRT_Buffer_Type_##pjrt:                                                                    \
    return bytes;
    TORUS_DTYPE_LIST(PJRT_TYPE_BYTES)
#undef PJRT_TYPE_BYTES
  default:
    return 0;
  }
}

torus_status_t torus_pjrt_buffer_new(torus_client_t *client, int device,
                                     torus_buffer_t **out_buffer) {
  void *block;
  *out_buffer = NULL;
  TORUS_TRY(torus_try_alloc(sizeof(torus_buffer_t), &block));
  torus_buffer_t *buffer = block;
  atomic_init(&buffer->references, 1);
  buffer->device = device;
  buffer->client = client;
  *out_buffer = buffer;
  return TORUS_OK;
}

torus_status_t torus_pjrt_check_array(torus_dtype_t dtype, int rank, const int64_t *dims) {
  if ((unsigned)dtype >= TORUS_DTYPE_COUNT) {
    return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT, "no element type has the number %d",
                             (int)dtype);
  }
  if (rank < 0 || rank > TORUS_PJRT_MAX_RANK) {
    return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                             "an array of rank %d: the rank must be 0 to %d", rank,
                             TORUS_PJRT_MAX_RANK);
  }
  int64_t bytes = (int64_t)torus_dtype_bytes(dtype);
  for (int i = 0; i < rank; i++) {
    if (dims[i] < 0) {
      return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT, "dimension %d has the size %lld", i,
                               (long long)dims[i]);
    }
    if (__builtin_mul_overflow(bytes, dims[i], &bytes)) {
      return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                               "an array of more than 2^63 bytes cannot exist");
    }
  }
  return TORUS_OK;
}

torus_status_t torus_pjrt_upload(torus_client_t *client, int device, const void *data,
                                 torus_dtype_t dtype, int rank, const int64_t *dims,
                                 PJRT_Buffer **out_buffer) {
  *out_buffer = NULL;
  TORUS_PJRT_ARGS(PJRT_Client_BufferFromHostBuffer, args);
  args.client = client->client;
  args.data = data ? data : &args; /* an array without elements may come without data */
  args.type = pjrt_type(dtype);
  args.dims = dims;
  args.num_dims = (size_t)rank;
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  args.device = client->devices[device];
  TORUS_TRY(torus_pjrt_status(client->api, client->api->PJRT_Client_BufferFromHostBuffer(&args)));
  torus_status_t status = torus_pjrt_event_await(client->api, args.done_with_host_buffer);
  if (status) {
    torus_pjrt_buffer_destroy(client, args.buffer);
  } else {
    *out_buffer = args.buffer;
  }
  return status;
}

torus_status_t torus_buffer_from_host(torus_client_t *client, int device, const void *data,
                                      torus_dtype_t dtype, int rank, const int64_t *dims,
                                      torus_buffer_t **out_buffer) {
  *out_buffer = NULL;
  TORUS_TRY(torus_pjrt_check_device(client, device));
  TORUS_TRY(torus_pjrt_check_array(dtype, rank, dims));
  torus_buffer_t *buffer;
  TORUS_TRY(torus_pjrt_buffer_new(client, device, &buffer));
  torus_status_t status =
      torus_pjrt_upload(client, device, data, dtype, rank, dims, &buffer->buffer);
  if (!status) {
    *out_buffer = buffer;
    buffer = NULL;
  }
  torus_buffer_release(buffer);
  return status;
}

static torus_status_t read_rank(const torus_client_t *client, PJRT_Buffer *buffer,
                                size_t *out_rank, const int64_t **out_dims) {
  TORUS_PJRT_ARGS(PJRT_Buffer_Dimensions, args);
  args.buffer = buffer;
  TORUS_TRY(torus_pjrt_status(client->api, client->api->PJRT_Buffer_Dimensions(&args)));
  *out_rank = args.num_dims;
  *out_dims = args.dims;
  return TORUS_OK;
}

static size_t size_bytes_of(const torus_client_t *client, PJRT_Buffer *buffer) {
  TORUS_PJRT_ARGS(PJRT_Buffer_ElementType, type);
  type.buffer = buffer;
  size_t rank;
  const int64_t *dims;
  torus_status_t status =
      torus_pjrt_status(client->api, client->api->PJRT_Buffer_ElementType(&type));
  if (!status) status = read_rank(client, buffer, &rank, &dims);
  if (status) {
    torus_status_ignore(status);
    return 0;
  }
  size_t size_bytes = pjrt_type_bytes(type.type);
  for (size_t i = 0; i < rank; i++) size_bytes *= (size_t)dims[i];
  return size_bytes;
}

static torus_status_t ready_event(const torus_client_t *client, PJRT_Buffer *buffer,
                                  PJRT_Event **out_event) {
  TORUS_PJRT_ARGS(PJRT_Buffer_ReadyEvent, args);
  args.buffer = buffer;
  *out_event = NULL;
  TORUS_TRY(torus_pjrt_status(client->api, client->api->PJRT_Buffer_ReadyEvent(&args)));
  *out_event = args.event;
  return TORUS_OK;
}

torus_status_t torus_pjrt_await(torus_client_t *client, PJRT_Buffer *buffer) {
  PJRT_Event *event;
  TORUS_TRY(ready_event(client, buffer, &event));
  return torus_pjrt_event_await(client->api, event);
}

/* The pieces are waited for in turn; the first error is told. */
torus_status_t torus_buffer_await(torus_buffer_t *buffer) {
  if (!buffer->shards) return torus_pjrt_await(buffer->client, buffer->buffer);
  for (int i = 0; i < buffer->shards->sharding->device_count; i++) {
    TORUS_TRY(torus_pjrt_await(buffer->client, buffer->shards->parts[i]));
  }
  return TORUS_OK;
}

/* Where the CPU's own memory holds the content, once it is there; NULL for other devices and for
 * arrays with dynamic dimensions. Reading it in place spares small arrays, such as the loss that
 * each step prints, a trip through the plugin's threads of 20 us. */
static torus_status_t host_memory(torus_client_t *client, PJRT_Buffer *buffer, size_t size_bytes,
                                  const void **out_memory) {
  const PJRT_Api *api = client->api;
  *out_memory = NULL;
  if (!client->is_cpu || size_bytes_of(client, buffer) != size_bytes) return TORUS_OK;
  if (!TORUS_PJRT_HAS(api, PJRT_Buffer_OpaqueDeviceMemoryDataPointer)) return TORUS_OK;
  TORUS_TRY(torus_pjrt_await(client, buffer));
  TORUS_PJRT_ARGS(PJRT_Buffer_OpaqueDeviceMemoryDataPointer, args);
  args.buffer = buffer;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_Buffer_OpaqueDeviceMemoryDataPointer(&args)));
  *out_memory = args.device_memory_ptr;
  return TORUS_OK;
}

/* The layout on the host is asked for in so many words: left alone, the plugin would hand out the
 * device's own, which a compiler chooses freely. */
torus_status_t torus_pjrt_download(torus_client_t *client, PJRT_Buffer *buffer, void *data,
                                   size_t size_bytes) {
  const PJRT_Api *api = client->api;
  size_t rank;
  const int64_t *dims;
  TORUS_TRY(read_rank(client, buffer, &rank, &dims));
  if (rank > TORUS_PJRT_MAX_RANK) {
    return torus_status_make(TORUS_STATUS_UNIMPLEMENTED, "an array of rank %zu", rank);
  }
  int64_t minor_to_major[TORUS_PJRT_MAX_RANK];
  for (size_t i = 0; i < rank; i++) minor_to_major[i] = (int64_t)(rank - 1 - i);
  PJRT_Buffer_MemoryLayout layout = {
      .struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
      .type = PJRT_Buffer_MemoryLayout_Type_Tiled,
      .tiled = {.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                .minor_to_major = minor_to_major,
                .minor_to_major_size = rank},
  };
  TORUS_PJRT_ARGS(PJRT_Buffer_ToHostBuffer, args);
  args.src = buffer;
  args.host_layout = &layout;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_Buffer_ToHostBuffer(&args)));
  if (args.dst_size != size_bytes) {
    return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                             "the array has %zu bytes, but the destination has %zu", args.dst_size,
                             size_bytes);
  }
  if (size_bytes == 0) return torus_pjrt_await(client, buffer);
  const void *memory;
  TORUS_TRY(host_memory(client, buffer, size_bytes, &memory));
  if (memory) {
    memcpy(data, memory, size_bytes);
    return TORUS_OK;
  }
  args.dst = data;
  args.event = NULL;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_Buffer_ToHostBuffer(&args)));
  return torus_pjrt_event_await(api, args.event);
}

torus_status_t torus_buffer_to_host(torus_buffer_t *buffer, void *data, size_t size_bytes) {
  torus_status_t status =
      buffer->shards ? torus_pjrt_shards_to_host(buffer, data, size_bytes)
                     : torus_pjrt_download(buffer->client, buffer->buffer, data, size_bytes);
  return torus_status_annotate(status, "copy to the host");
}

/* A buffer of which nothing can be learnt any more (it was donated) holds nobody up. */
bool torus_pjrt_is_ready(torus_client_t *client, PJRT_Buffer *buffer) {
  const PJRT_Api *api = client->api;
  PJRT_Event *event;
  torus_status_t status = ready_event(client, buffer, &event);
  if (status) {
    torus_status_ignore(status);
    return true;
  }
  TORUS_PJRT_ARGS(PJRT_Event_IsReady, args);
  args.event = event;
  status = torus_pjrt_status(api, api->PJRT_Event_IsReady(&args));
  bool is_ready = status || args.is_ready;
  torus_status_ignore(status);
  TORUS_PJRT_ARGS(PJRT_Event_Destroy, destroy);
  destroy.event = event;
  torus_status_ignore(torus_pjrt_status(api, api->PJRT_Event_Destroy(&destroy)));
  return is_ready;
}

bool torus_buffer_is_ready(torus_buffer_t *buffer) {
  if (!buffer->shards) return torus_pjrt_is_ready(buffer->client, buffer->buffer);
  for (int i = 0; i < buffer->shards->sharding->device_count; i++) {
    if (!torus_pjrt_is_ready(buffer->client, buffer->shards->parts[i])) return false;
  }
  return true;
}

torus_status_t torus_pjrt_copy_to(torus_client_t *client, PJRT_Buffer *buffer, int device,
                                  PJRT_Buffer **out_buffer) {
  *out_buffer = NULL;
  if (!TORUS_PJRT_HAS(client->api, PJRT_Buffer_CopyToDevice)) {
    return torus_status_make(TORUS_STATUS_UNIMPLEMENTED,
                             "PJRT plugin '%s' cannot copy from device to device",
                             client->plugin_path);
  }
  TORUS_PJRT_ARGS(PJRT_Buffer_CopyToDevice, args);
  args.buffer = buffer;
  args.dst_device = client->devices[device];
  TORUS_TRY(torus_pjrt_status(client->api, client->api->PJRT_Buffer_CopyToDevice(&args)));
  *out_buffer = args.dst_buffer;
  return TORUS_OK;
}

torus_status_t torus_buffer_copy_to_device(torus_buffer_t *buffer, int device,
                                           torus_buffer_t **out_buffer) {
  *out_buffer = NULL;
  TORUS_TRY(torus_pjrt_check_device(buffer->client, device));
  if (buffer->shards) return torus_buffer_lay_out(buffer, NULL, device, out_buffer);
  torus_buffer_t *copy;
  TORUS_TRY(torus_pjrt_buffer_new(buffer->client, device, &copy));
  torus_status_t status =
      torus_pjrt_copy_to(buffer->client, buffer->buffer, device, &copy->buffer);
  if (!status) {
    *out_buffer = copy;
    copy = NULL;
  }
  torus_buffer_release(copy);
  return status;
}

size_t torus_buffer_size_bytes(const torus_buffer_t *buffer) {
  if (buffer->shards) return torus_pjrt_shards_size_bytes(buffer);
  return size_bytes_of(buffer->client, buffer->buffer);
}

static torus_dtype_t dtype_of(PJRT_Buffer_Type type) {
  switch (type) {
#define PJRT_TYPE_DTYPE(name, pjrt, hlo, bytes, kind, torch)                                       \
  case PJRT_Buffer_Type_##pjrt:                                                                    \
    return TORUS_DTYPE_##name;
    TORUS_DTYPE_LIST(PJRT_TYPE_DTYPE)
#undef PJRT_TYPE_DTYPE
  default:
    return TORUS_DTYPE_COUNT;
  }
}

torus_status_t torus_pjrt_array_of(torus_client_t *client, PJRT_Buffer *buffer,
                                   torus_array_t *out_array) {
  TORUS_PJRT_ARGS(PJRT_Buffer_ElementType, type);
  type.buffer = buffer;
  TORUS_TRY(torus_pjrt_status(client->api, client->api->PJRT_Buffer_ElementType(&type)));
  size_t rank;
  TORUS_TRY(read_rank(client, buffer, &rank, &out_array->dims));
  out_array->dtype = dtype_of(type.type);
  out_array->rank = (int)rank;
  return torus_pjrt_check_array(out_array->dtype, out_array->rank, out_array->dims);
}

torus_buffer_t *torus_buffer_retain(torus_buffer_t *buffer) {
  if (buffer) atomic_fetch_add_explicit(&buffer->references, 1, memory_order_relaxed);
  return buffer;
}

void torus_buffer_release(torus_buffer_t *buffer) {
  if (!buffer) return;
  if (atomic_fetch_sub_explicit(&buffer->references, 1, memory_order_acq_rel) != 1) return;
  torus_pjrt_buffer_destroy(buffer->client, buffer->buffer);
  if (buffer->shards) torus_pjrt_shards_destroy(buffer->client, buffer->shards);
  torus_free(buffer);
}

void torus_pjrt_buffer_destroy(torus_client_t *client, PJRT_Buffer *buffer) {
  if (!buffer) return;
  TORUS_PJRT_ARGS(PJRT_Buffer_Destroy, args);
  args.buffer = buffer;
  torus_status_ignore(torus_pjrt_status(client->api, client->api->PJRT_Buffer_Destroy(&args)));
}
