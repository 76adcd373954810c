/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
#include "ops/spatial.h"

hlo_t spatial_iota(hlo_graph_t *g, torus_dtype_t dtype, int64_t n) {
  return hlo_iota(g, dtype, 1, &n, 0);
}

hlo_t spatial_along(hlo_graph_t *g, hlo_t vector, int rank, const int64_t *dims, int dim) {
  return hlo_broadcast_in_dim(g, vector, rank, dims, &dim);
}

hlo_t spatial_scale(hlo_graph_t *g, hlo_t x, hlo_t vector, int dim) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, x, dims);
  return hlo_multiply(g, x, spatial_along(g, vector, rank, dims, dim));
}

hlo_t spatial_split(hlo_graph_t *g, hlo_t x, int dim, int64_t a, int64_t b) {
  int64_t dims[TORUS_MAX_RANK + 1] = {0};
  int rank = hlo_shape(g, x, dims);
  for (int i = rank; i > dim + 1; i--) dims[i] = dims[i - 1];
  dims[dim] = a;
  dims[dim + 1] = b;
  return hlo_reshape(g, x, rank + 1, dims);
}

hlo_t spatial_join(hlo_graph_t *g, hlo_t x, int dim) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, x, dims);
  if (rank < 2) return x;
  dims[dim] *= dims[dim + 1];
  for (int i = dim + 1; i + 1 < rank; i++) dims[i] = dims[i + 1];
  return hlo_reshape(g, x, rank - 1, dims);
}

hlo_t spatial_planes(hlo_graph_t *g, hlo_t x, int dim) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, x, dims);
  int64_t flat[2] = {1, 1};
  for (int i = 0; i < rank; i++) flat[i >= dim] *= dims[i];
  return hlo_reshape(g, x, 2, flat);
}

hlo_t spatial_add_rows(hlo_graph_t *g, hlo_t updates, int dim, int64_t size, hlo_t indices) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, updates, dims);
  dims[dim] = size;
  hlo_gather_dims_t how = {.collapsed_count = 1, .collapsed = {dim}, .map_count = 1, .map = {dim}};
  for (int i = 0; i < rank; i++)
    if (i != dim) how.offset[how.offset_count++] = i;
  how.index_vector_dim = 1;
  hlo_t zeros = hlo_zeros(g, hlo_dtype(g, updates), rank, dims);
  return hlo_scatter(g, HLO_SCATTER_ADD, zeros, indices, updates, &how);
}

hlo_t spatial_pad_dim(hlo_graph_t *g, hlo_t x, int dim, int64_t low, int64_t high) {
  int64_t lows[TORUS_MAX_RANK] = {0}, highs[TORUS_MAX_RANK] = {0};
  if (low == 0 && high == 0) return x;
  lows[dim] = low;
  highs[dim] = high;
  return hlo_pad(g, x, hlo_const(g, hlo_dtype(g, x), 0), lows, highs, NULL);
}

hlo_t spatial_move_dim(hlo_graph_t *g, hlo_t x, int dim, int to) {
  int order[TORUS_MAX_RANK] = {0}, rank = hlo_rank(g, x), n = 0;
  for (int i = 0; i < rank; i++) {
    if (n == to) order[n++] = dim;
    if (i != dim) order[n++] = i;
  }
  if (n < rank) order[n] = dim;
  return hlo_transpose(g, x, order);
}

hlo_t spatial_zeros_like(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype) {
  return hlo_full_like(g, x, dtype, 0);
}

hlo_t spatial_clamp_int(hlo_graph_t *g, hlo_t x, int64_t low, int64_t high) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  x = hlo_maximum(g, x, hlo_const_int(g, dtype, low));
  return hlo_minimum(g, x, hlo_const_int(g, dtype, high));
}

hlo_t spatial_tensor_wide(torus_call_t *call, int i) {
  return op_tensor_as(call, i, op_accumulate_type(op_tensor_dtype(call, i)));
}

hlo_t spatial_positions(hlo_graph_t *g, hlo_t x, int first) {
  int64_t dims[TORUS_MAX_RANK] = {0}, n = 1;
  int rank = hlo_shape(g, x, dims), places[TORUS_MAX_RANK] = {0};
  for (int i = first; i < rank; i++) {
    n *= dims[i];
    places[i - first] = i;
  }
  hlo_t plane = hlo_reshape(g, spatial_iota(g, TORUS_DTYPE_I64, n), rank - first, dims + first);
  return hlo_broadcast_in_dim(g, plane, rank, dims, places);
}
