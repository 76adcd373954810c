/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The bounding transform's rules for elements at computed places. */
#include <string.h>

#include "hlo/bound_internal.h"

/* See gather_attrs in gather.c. */
typedef struct places {
  int64_t offset_count, collapsed_count, map_count, vector;
  const int64_t *offset, *collapsed, *map, *sizes;
} places_t;

static places_t places_of(const int64_t *attrs) {
  const int64_t *offset = attrs + 4, *collapsed = offset + attrs[0], *map = collapsed + attrs[1];
  return (places_t){attrs[0], attrs[1],  attrs[2], attrs[3],
                    offset,   collapsed, map,      map + attrs[2]};
}

static bool contains(const int64_t *list, int64_t count, int64_t item) {
  for (int64_t i = 0; i < count; i++) {
    if (list[i] == item) return true;
  }
  return false;
}

/* Gather's result or scatter's updates: |windows| (by operand dimension) and the index dimensions of
 * new node |indices| put together. */
static int assemble(const hlo_binder_t *b, const places_t *p, hlo_t indices, int rank,
                    const int64_t *windows, int64_t *out_dims) {
  int index_at = 0, window_at = 0;
  for (int i = 0; i < rank; i++) {
    if (contains(p->offset, p->offset_count, i)) {
      while (contains(p->collapsed, p->collapsed_count, window_at)) window_at++;
      out_dims[i] = windows[window_at++];
    } else {
      index_at += index_at == p->vector;
      out_dims[i] = hlo_dim(b->to, indices, index_at++);
    }
  }
  return rank;
}

/* Garbage indices are clamped by StableHLO and fetch garbage. */
hlo_t hlo_bind_gather(hlo_binder_t *b, hlo_t old) {
  int64_t attrs[4 + 4 * TORUS_MAX_RANK], dims[TORUS_MAX_RANK];
  const size_t count = hlo_node(b->from, old)->attr_count;
  hlo_t source = hlo_operand(b->from, old, 0);
  hlo_t xs[] = {hlo_mapped(b, old, 0), hlo_mapped(b, old, 1)};
  memcpy(attrs, hlo_attrs(b->from, old), count * sizeof *attrs);
  const places_t p = places_of(attrs);
  int64_t *sizes = attrs + (p.sizes - attrs);
  for (int d = 0; d < hlo_rank(b->from, source); d++) {
    if (hlo_class_of(b, source, d) && sizes[d] == hlo_dim(b->from, source, d)) {
      sizes[d] = hlo_dim(b->to, xs[0], d);
    }
  }
  const int rank = assemble(b, &p, xs[1], hlo_rank(b->from, old), sizes, dims);
  return hlo_append_as(b, old, rank, dims, xs, attrs);
}

/* Indices that no array has, in place of garbage: their updates are dropped. */
static hlo_t drop_garbage(hlo_binder_t *b, hlo_t old, hlo_t indices) {
  const torus_dtype_t dtype = hlo_dtype(b->to, indices);
  hlo_t nowhere = torus_dtype_kind(dtype) == TORUS_KIND_INT ? hlo_const_int(b->to, dtype, -1)
                                                            : hlo_highest(b->to, dtype);
  return hlo_mask_garbage(b, indices, hlo_operand(b->from, old, 1), UINT32_MAX, nowhere);
}

/* The windows that updates have in each dimension of the operand; false where one changes without
 * being all of it. */
static bool update_windows(const hlo_binder_t *b, hlo_t old, const places_t *p, int64_t *out_sizes) {
  hlo_t x = hlo_operand(b->from, old, 0), updates = hlo_operand(b->from, old, 2);
  int at = 0;
  for (int d = 0; d < hlo_rank(b->from, x); d++) {
    out_sizes[d] = 1;
    if (contains(p->collapsed, p->collapsed_count, d)) continue;
    const int own = (int)p->offset[at++];
    const bool whole = hlo_dim(b->from, updates, own) == hlo_dim(b->from, x, d);
    if (!whole && hlo_class_of(b, updates, own)) return false;
    out_sizes[d] = whole ? hlo_dim(b->to, b->map[x], d) : hlo_dim(b->from, updates, own);
  }
  return true;
}

/* A dimension that updates without an index dimension reach is at most a window; the sizes of
 * indices and updates agree because both are brought to the larger. */
static hlo_t fit_indices(hlo_binder_t *b, hlo_t indices, hlo_t updates, const places_t *p) {
  int64_t dims[TORUS_MAX_RANK];
  hlo_shape(b->to, indices, dims);
  int index_at = 0;
  for (int i = 0; i < hlo_rank(b->to, updates); i++) {
    if (contains(p->offset, p->offset_count, i)) continue;
    index_at += index_at == p->vector;
    const int64_t size = hlo_dim(b->to, updates, i);
    if (size > dims[index_at]) dims[index_at] = size;
    index_at++;
  }
  return hlo_fit(b, indices, dims);
}

hlo_t hlo_bind_scatter(hlo_binder_t *b, hlo_t old) {
  const places_t p = places_of(hlo_attrs(b->from, old));
  int64_t windows[TORUS_MAX_RANK], dims[TORUS_MAX_RANK], held[TORUS_MAX_RANK];
  hlo_t xs[] = {hlo_mapped(b, old, 0), hlo_mapped(b, old, 1), hlo_mapped(b, old, 2)};
  if (!update_windows(b, old, &p, windows)) {
    return hlo_refuse(b, old, "of windows of a size that changes");
  }
  xs[1] = drop_garbage(b, old, fit_indices(b, xs[1], xs[2], &p));
  assemble(b, &p, xs[1], hlo_rank(b->to, xs[2]), windows, dims);
  xs[2] = hlo_fit(b, xs[2], dims);
  const int rank = hlo_shape(b->to, xs[0], held);
  return hlo_append_as(b, old, rank, held, xs, NULL);
}
