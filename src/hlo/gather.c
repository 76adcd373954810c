/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Elements at computed places: gather, scatter, and the forms of them that PyTorch knows. */
#include <string.h>

#include "hlo/graph_internal.h"

/* attrs of gather and scatter: the counts of offset, collapsed and map, index_vector_dim, then the
 * three lists; gather adds the slice sizes. */
static size_t gather_attrs(const hlo_gather_dims_t *d, int rank, const int64_t *slice_sizes,
                           int64_t *out_attrs) {
  size_t at = 0;
  out_attrs[at++] = d->offset_count;
  out_attrs[at++] = d->collapsed_count;
  out_attrs[at++] = d->map_count;
  out_attrs[at++] = d->index_vector_dim;
  for (int i = 0; i < d->offset_count; i++) out_attrs[at++] = d->offset[i];
  for (int i = 0; i < d->collapsed_count; i++) out_attrs[at++] = d->collapsed[i];
  for (int i = 0; i < d->map_count; i++) out_attrs[at++] = d->map[i];
  for (int i = 0; slice_sizes && i < rank; i++) out_attrs[at++] = slice_sizes[i];
  return at;
}

enum { GATHER_ATTRS = 4 + 4 * TORUS_MAX_RANK };

/* ---- shapes ---- */

/* Each entry below |limit| and none twice. */
static bool is_subset(int count, const int *dims, int limit, uint64_t *out_mask) {
  *out_mask = 0;
  if (count < 0 || count > limit) return false;
  for (int i = 0; i < count; i++) {
    if (dims[i] < 0 || dims[i] >= limit || *out_mask >> dims[i] & 1) return false;
    *out_mask |= UINT64_C(1) << dims[i];
  }
  return true;
}

static bool are_indices(const hlo_graph_t *g, hlo_t indices, const hlo_gather_dims_t *d) {
  torus_dtype_t dtype = hlo_dtype(g, indices);
  int rank = hlo_rank(g, indices), at = d->index_vector_dim;
  if (!torus_dtype_is_integral(dtype) || dtype == TORUS_DTYPE_BOOL) return false;
  if (at < 0 || at > rank) return false;
  return (at == rank ? 1 : hlo_dims(g, indices)[at]) == d->map_count;
}

/* The shape of gather's result and of scatter's updates: the index dimensions with those of the
 * windows put in at |offset|. The rank, or -1 when the numbers are wrong. */
static int gather_shape(const hlo_graph_t *g, hlo_t x, hlo_t indices, const hlo_gather_dims_t *d,
                        const int64_t *slice_sizes, int64_t *out_dims) {
  int x_rank = hlo_rank(g, x), index_rank = hlo_rank(g, indices);
  int batch = index_rank - (d->index_vector_dim < index_rank);
  uint64_t offsets, collapsed, mapped;
  if (!are_indices(g, indices, d) || batch + d->offset_count > TORUS_MAX_RANK ||
      !is_subset(d->offset_count, d->offset, batch + d->offset_count, &offsets) ||
      !is_subset(d->collapsed_count, d->collapsed, x_rank, &collapsed) ||
      !is_subset(d->map_count, d->map, x_rank, &mapped) ||
      d->offset_count + d->collapsed_count != x_rank) {
    return -1;
  }
  int rank = batch + d->offset_count, index_at = 0, window_at = 0;
  for (int i = 0; i < rank; i++) {
    if (offsets >> i & 1) {
      while (collapsed >> window_at & 1) window_at++;
      out_dims[i] = slice_sizes[window_at++];
    } else {
      index_at += index_at == d->index_vector_dim;
      out_dims[i] = hlo_dims(g, indices)[index_at++];
    }
  }
  return rank;
}

/* ---- gather ---- */

/* 1: fine; 0: a window is larger than the operand, which only an empty dimension may be. */
static int check_windows(const hlo_graph_t *g, hlo_t x, const hlo_gather_dims_t *d,
                         const int64_t *slice_sizes) {
  bool empty = false;
  for (int i = 0; i < hlo_rank(g, x); i++) {
    int64_t extent = hlo_dims(g, x)[i];
    empty |= extent == 0 && slice_sizes[i] == 1;
    if (slice_sizes[i] < 0 || (slice_sizes[i] > extent && extent != 0)) return -1;
  }
  for (int i = 0; i < d->collapsed_count; i++) {
    if (slice_sizes[d->collapsed[i]] > 1) return -1;
  }
  return !empty;
}

hlo_t hlo_gather(hlo_graph_t *g, hlo_t x, hlo_t indices, const hlo_gather_dims_t *dims,
                 const int64_t *slice_sizes) {
  hlo_op_t op = HLO_OP_GATHER;
  if (!hlo_usable(g, op, x) || !hlo_usable(g, op, indices)) return HLO_NONE;
  int64_t shape[TORUS_MAX_RANK], attrs[GATHER_ATTRS];
  int rank = gather_shape(g, x, indices, dims, slice_sizes, shape);
  if (rank < 0 || check_windows(g, x, dims, slice_sizes) < 0) {
    return hlo_fail_types(g, op, "dimension numbers do not fit operand and indices", x, indices);
  }
  torus_dtype_t dtype = hlo_dtype(g, x);
  if (hlo_numel(g, x) == 0 || hlo_product(rank, shape) == 0) {
    return hlo_zeros(g, dtype, rank, shape);
  }
  return hlo_append(g, &(hlo_spec_t){.op = op,
                                     .dtype = dtype,
                                     .rank = rank,
                                     .dims = shape,
                                     .operands = (hlo_t[]){x, indices},
                                     .operand_count = 2,
                                     .attrs = attrs,
                                     .attr_count = gather_attrs(dims, hlo_rank(g, x), slice_sizes,
                                                                attrs)});
}

/* ---- scatter ---- */

/* The window of each operand dimension as the updates have it; inserted dimensions 1. */
static bool update_windows(const hlo_graph_t *g, hlo_t x, hlo_t updates,
                           const hlo_gather_dims_t *d, int64_t *out_sizes) {
  uint64_t inserted;
  int at = 0, rank = hlo_rank(g, x);
  if (!is_subset(d->collapsed_count, d->collapsed, rank, &inserted) ||
      d->offset_count + d->collapsed_count != rank) {
    return false;
  }
  for (int i = 0; i < rank; i++) {
    bool gone = inserted >> i & 1;
    out_sizes[i] = gone ? 1 : hlo_dim(g, updates, d->offset[at++]);
    if (!gone && out_sizes[i] > hlo_dims(g, x)[i]) return false;
  }
  return true;
}

static bool are_updates(const hlo_graph_t *g, hlo_t x, hlo_t indices, hlo_t updates,
                        const hlo_gather_dims_t *d) {
  int64_t windows[TORUS_MAX_RANK], shape[TORUS_MAX_RANK];
  if (hlo_dtype(g, x) != hlo_dtype(g, updates)) return false;
  if (!update_windows(g, x, updates, d, windows)) return false;
  int rank = gather_shape(g, x, indices, d, windows, shape);
  if (rank != hlo_rank(g, updates)) return false;
  return memcmp(shape, hlo_dims(g, updates), (size_t)rank * sizeof *shape) == 0;
}

/* mode: hlo_scatter_t. */
hlo_t hlo_scatter(hlo_graph_t *g, hlo_scatter_t how, hlo_t x, hlo_t indices, hlo_t updates,
                  const hlo_gather_dims_t *dims) {
  hlo_op_t op = HLO_OP_SCATTER;
  if (!hlo_usable_all(g, op, (hlo_t[]){x, indices, updates}, 3)) return HLO_NONE;
  if (!are_updates(g, x, indices, updates, dims)) {
    return hlo_fail_types(g, op, "updates and dimension numbers do not fit", x, updates);
  }
  torus_dtype_t dtype = hlo_dtype(g, x);
  if (torus_dtype_is_complex(dtype) && how >= HLO_SCATTER_MAXIMUM) {
    return hlo_fail_types(g, op, "complex numbers have no order", x, HLO_NONE);
  }
  if (hlo_numel(g, x) == 0 || hlo_numel(g, updates) == 0) return x;
  int64_t attrs[GATHER_ATTRS];
  hlo_t y = hlo_append_like(g, op, dtype, (int)how, x, (hlo_t[]){x, indices, updates}, 3);
  if (y == HLO_NONE || !hlo_set_attrs(g, y, gather_attrs(dims, 0, NULL, attrs), attrs)) {
    return HLO_NONE;
  }
  return y;
}

/* ---- take ---- */

hlo_t hlo_take(hlo_graph_t *g, hlo_t x, int dim, hlo_t indices) {
  hlo_op_t op = HLO_OP_GATHER;
  if (!hlo_usable(g, op, x) || !hlo_usable(g, op, indices)) return HLO_NONE;
  if (hlo_rank(g, x) == 0) x = hlo_reshape(g, x, 1, (int64_t[]){1});
  if (!hlo_usable(g, op, x) || !hlo_check_dim(g, op, x, dim)) return HLO_NONE;
  int64_t sizes[TORUS_MAX_RANK];
  int rank = hlo_shape(g, x, sizes), index_rank = hlo_rank(g, indices);
  sizes[dim] = 1;
  hlo_gather_dims_t dims = {.offset_count = rank - 1,
                            .collapsed_count = 1,
                            .collapsed = {dim},
                            .map_count = 1,
                            .map = {dim},
                            .index_vector_dim = index_rank};
  for (int i = 0; i < rank - 1; i++) dims.offset[i] = i < dim ? i : i + index_rank;
  return hlo_gather(g, x, indices, &dims, sizes);
}

/* ---- along a dimension ---- */

/* |indices| along |dim| and their own places in the other dimensions, side by side in a new last
 * dimension. */
static hlo_t full_places(hlo_graph_t *g, hlo_t indices, int dim) {
  hlo_t parts[TORUS_MAX_RANK];
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, indices, dims);
  torus_dtype_t dtype = hlo_dtype(g, indices);
  for (int i = 0; i < rank; i++) {
    hlo_t part = i == dim ? indices : hlo_iota(g, dtype, rank, dims, i);
    parts[i] = hlo_unsqueeze(g, part, rank);
  }
  return hlo_concatenate(g, parts, (size_t)rank, rank);
}

/* The iota of a narrow type could not count a long dimension. */
static hlo_t wide_indices(hlo_graph_t *g, hlo_t indices) {
  torus_dtype_t dtype = hlo_dtype(g, indices);
  if (torus_dtype_is_integral(dtype) && torus_dtype_bytes(dtype) < 4) dtype = TORUS_DTYPE_I32;
  return hlo_convert(g, indices, dtype);
}

static hlo_gather_dims_t pointwise_dims(int rank) {
  hlo_gather_dims_t dims = {
      .collapsed_count = rank, .map_count = rank, .index_vector_dim = rank};
  for (int i = 0; i < rank; i++) dims.collapsed[i] = dims.map[i] = i;
  return dims;
}

static bool fits_along(hlo_graph_t *g, hlo_op_t op, hlo_t x, int dim, hlo_t indices) {
  if (!hlo_check_dim(g, op, x, dim)) return false;
  bool fits = hlo_rank(g, x) == hlo_rank(g, indices);
  for (int i = 0; fits && i < hlo_rank(g, x); i++) {
    fits = i == dim || hlo_dims(g, indices)[i] <= hlo_dims(g, x)[i];
  }
  if (!fits) hlo_fail_types(g, op, "the indices exceed the operand", x, indices);
  return fits;
}

static hlo_t at_least_1d(hlo_graph_t *g, hlo_t x) {
  return hlo_rank(g, x) == 0 ? hlo_reshape(g, x, 1, (int64_t[]){1}) : x;
}

hlo_t hlo_take_along(hlo_graph_t *g, hlo_t x, int dim, hlo_t indices) {
  hlo_op_t op = HLO_OP_GATHER;
  if (!hlo_usable(g, op, x) || !hlo_usable(g, op, indices)) return HLO_NONE;
  bool scalar = hlo_rank(g, indices) == 0;
  x = at_least_1d(g, x);
  indices = wide_indices(g, at_least_1d(g, indices));
  if (g->error || !fits_along(g, op, x, dim, indices)) return HLO_NONE;
  int rank = hlo_rank(g, x);
  int64_t ones[TORUS_MAX_RANK], shape[TORUS_MAX_RANK];
  for (int i = 0; i < rank; i++) ones[i] = 1;
  hlo_shape(g, indices, shape);
  if (hlo_numel(g, x) == 0 || hlo_numel(g, indices) == 0) {
    return hlo_zeros(g, hlo_dtype(g, x), scalar ? 0 : rank, shape);
  }
  hlo_gather_dims_t dims = pointwise_dims(rank);
  hlo_t y = hlo_gather(g, x, full_places(g, indices, dim), &dims, ones);
  return scalar ? hlo_reshape(g, y, 0, NULL) : y;
}

/* The leading part of |updates| that the indices speak of. */
static hlo_t updates_like(hlo_graph_t *g, hlo_t updates, hlo_t indices) {
  int64_t sizes[TORUS_MAX_RANK], starts[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, indices, sizes);
  if (hlo_rank(g, updates) == 0) return hlo_splat(g, updates, rank, sizes);
  if (hlo_rank(g, updates) != rank) {
    return hlo_fail_types(g, HLO_OP_SCATTER, "as many dimensions are wanted", updates, indices);
  }
  return hlo_slice(g, updates, starts, sizes, NULL);
}

hlo_t hlo_put_along(hlo_graph_t *g, hlo_scatter_t how, hlo_t x, int dim, hlo_t indices,
                    hlo_t updates) {
  hlo_op_t op = HLO_OP_SCATTER;
  if (!hlo_usable_all(g, op, (hlo_t[]){x, indices, updates}, 3)) return HLO_NONE;
  bool scalar = hlo_rank(g, x) == 0;
  x = at_least_1d(g, x);
  indices = wide_indices(g, at_least_1d(g, indices));
  if (g->error || !fits_along(g, op, x, dim, indices)) return HLO_NONE;
  updates = updates_like(g, updates, indices);
  if (hlo_numel(g, x) > 0 && hlo_numel(g, indices) > 0) {
    hlo_gather_dims_t dims = pointwise_dims(hlo_rank(g, x));
    x = hlo_scatter(g, how, x, full_places(g, indices, dim), updates, &dims);
  }
  return scalar ? hlo_reshape(g, x, 0, NULL) : x;
}
