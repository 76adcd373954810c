/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
#include "torus/sharding.h"

#include <string.h>

#include "pjrt/internal.h"
#include "pjrt/sharding.h"
#include "torus/memory.h"

static torus_status_t invalid(const char *what) {
  return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT, "sharding: %s", what);
}

static torus_status_t check_parts(const torus_sharding_layout_t *layout) {
  int64_t pieces = 1;
  if (layout->device_count < 1) return invalid("no devices");
  for (int i = 0; i < layout->rank; i++) {
    if (layout->parts[i] < 1 || layout->parts[i] > layout->device_count) {
      return invalid("a dimension is cut into parts that the devices cannot hold");
    }
    pieces *= layout->parts[i];
    if (pieces > layout->device_count) return invalid("more pieces than devices");
  }
  if (layout->device_count % pieces != 0) return invalid("the pieces do not divide the devices");
  return TORUS_OK;
}

static bool has_twice(const int *list, int count) {
  for (int i = 0; i < count; i++) {
    for (int j = 0; j < i; j++) {
      if (list[i] == list[j]) return true;
    }
  }
  return false;
}

static torus_status_t check_layout(const torus_sharding_layout_t *layout) {
  TORUS_TRY(check_parts(layout));
  if (has_twice(layout->devices, layout->device_count)) return invalid("a device is listed twice");
  if (!layout->placement) return TORUS_OK;
  for (int i = 0; i < layout->device_count; i++) {
    if (layout->placement[i] < 0 || layout->placement[i] >= layout->device_count) {
      return invalid("a piece is placed on a partition that does not exist");
    }
  }
  if (has_twice(layout->placement, layout->device_count)) {
    return invalid("two pieces are placed on one partition");
  }
  return TORUS_OK;
}

torus_status_t torus_sharding_create(const torus_sharding_layout_t *layout,
                                     torus_sharding_t **out_sharding) {
  *out_sharding = NULL;
  TORUS_TRY(check_layout(layout));
  size_t count = (size_t)layout->device_count, rank = (size_t)layout->rank;
  void *block;
  TORUS_TRY(torus_try_alloc(
      sizeof(torus_sharding_t) + rank * sizeof(int64_t) + 2 * count * sizeof(int), &block));
  torus_sharding_t *sharding = block;
  atomic_init(&sharding->references, 1);
  sharding->device_count = layout->device_count;
  sharding->rank = layout->rank;
  sharding->devices = (int *)(sharding->parts + rank);
  sharding->placement = sharding->devices + count;
  if (rank) memcpy(sharding->parts, layout->parts, rank * sizeof(int64_t));
  memcpy(sharding->devices, layout->devices, count * sizeof(int));
  for (int i = 0; i < layout->device_count; i++) {
    sharding->placement[i] = layout->placement ? layout->placement[i] : i;
  }
  *out_sharding = sharding;
  return TORUS_OK;
}

torus_status_t torus_sharding_replicated(const torus_sharding_t *mesh, int rank,
                                         torus_sharding_t **out_sharding) {
  int64_t ones[TORUS_PJRT_MAX_RANK];
  for (int i = 0; i < rank; i++) ones[i] = 1;
  torus_sharding_layout_t layout = torus_sharding_layout(mesh);
  layout.rank = rank;
  layout.parts = ones;
  layout.placement = NULL;
  return torus_sharding_create(&layout, out_sharding);
}

torus_sharding_t *torus_sharding_retain(torus_sharding_t *sharding) {
  if (sharding) atomic_fetch_add_explicit(&sharding->references, 1, memory_order_relaxed);
  return sharding;
}

void torus_sharding_release(torus_sharding_t *sharding) {
  if (!sharding) return;
  if (atomic_fetch_sub_explicit(&sharding->references, 1, memory_order_acq_rel) != 1) return;
  torus_free(sharding);
}

torus_sharding_layout_t torus_sharding_layout(const torus_sharding_t *sharding) {
  return (torus_sharding_layout_t){
      .device_count = sharding->device_count,
      .devices = sharding->devices,
      .rank = sharding->rank,
      .parts = sharding->parts,
      .placement = sharding->placement,
  };
}

bool torus_sharding_is_replicated(const torus_sharding_t *sharding) {
  return torus_pjrt_sharding_pieces(sharding) == 1;
}

bool torus_sharding_shares_mesh(const torus_sharding_t *a, const torus_sharding_t *b) {
  return a->device_count == b->device_count &&
         memcmp(a->devices, b->devices, (size_t)a->device_count * sizeof(int)) == 0;
}

/* Where one piece lies on all devices, their order in the list makes no difference. */
bool torus_sharding_equal(const torus_sharding_t *a, const torus_sharding_t *b) {
  if (a == b) return true;
  if (!a || !b || a->rank != b->rank || !torus_sharding_shares_mesh(a, b)) return false;
  if (memcmp(a->parts, b->parts, (size_t)a->rank * sizeof(int64_t)) != 0) return false;
  if (torus_sharding_is_replicated(a)) return true;
  return memcmp(a->placement, b->placement, (size_t)a->device_count * sizeof(int)) == 0;
}

/* ---- for the files around ---- */

int torus_pjrt_sharding_pieces(const torus_sharding_t *sharding) {
  int64_t pieces = 1;
  for (int i = 0; i < sharding->rank; i++) pieces *= sharding->parts[i];
  return (int)pieces;
}

void torus_pjrt_sharding_extent(const torus_sharding_t *sharding, int piece, const int64_t *dims,
                                int64_t *out_starts, int64_t *out_sizes) {
  int64_t rest = piece;
  for (int i = sharding->rank; i-- > 0;) {
    int64_t parts = sharding->parts[i];
    out_sizes[i] = (dims[i] + parts - 1) / parts;
    out_starts[i] = rest % parts * out_sizes[i];
    rest /= parts;
  }
}

void torus_sharding_append_text(const torus_sharding_t *sharding, torus_strbuf_t *out) {
  int pieces = torus_pjrt_sharding_pieces(sharding);
  if (pieces == 1) {
    torus_strbuf_append(out, "{replicated}");
    return;
  }
  int copies = sharding->device_count / pieces;
  torus_strbuf_append(out, "{devices=[");
  for (int i = 0; i < sharding->rank; i++) {
    if (i) torus_strbuf_char(out, ',');
    torus_strbuf_int(out, sharding->parts[i]);
  }
  if (copies > 1) torus_strbuf_printf(out, ",%d", copies);
  torus_strbuf_char(out, ']');
  for (int i = 0; i < sharding->device_count; i++) {
    if (i) torus_strbuf_char(out, ',');
    torus_strbuf_int(out, sharding->placement[i]);
  }
  torus_strbuf_append(out, copies > 1 ? " last_tile_dim_replicate}" : "}");
}

char *torus_sharding_text(const torus_sharding_t *sharding) {
  torus_strbuf_t text = {0};
  torus_sharding_append_text(sharding, &text);
  return torus_strbuf_take(&text);
}
