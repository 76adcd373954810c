/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
#include "ops/axes.h"

#include <math.h>

torus_axes_t axes_range(int rank, int first, int count) {
  torus_axes_t axes = {.rank = rank, .count = count, .keep = true};
  for (int i = 0; i < count; ++i) axes.dims[i] = first + i;
  return axes;
}

torus_axes_t axes_all(int rank, bool keep) {
  torus_axes_t axes = axes_range(rank, 0, rank);
  axes.keep = keep;
  return axes;
}

torus_axes_t axes_except(int rank, int dim) {
  torus_axes_t axes = {.rank = rank, .keep = true};
  for (int i = 0; i < rank; ++i) {
    if (i != dim) axes.dims[axes.count++] = i;
  }
  return axes;
}

torus_axes_t axes_list(torus_call_t *call, int arg, int rank, bool keep) {
  torus_axes_t axes = {.rank = rank, .keep = keep};
  axes.count = op_dims(call, arg, rank, axes.dims);
  /* A 0-dim tensor accepts dim 0, and has nothing to reduce. */
  if (rank == 0 || axes.count < 0) axes.count = 0;
  return axes;
}

torus_axes_t axes_one(torus_call_t *call, int arg, int rank, bool keep) {
  torus_axes_t axes = {.rank = rank, .keep = keep};
  int dim = op_dim(call, arg, rank);
  if (op_failed(call)) return axes;
  axes.dims[0] = dim;
  axes.count = rank == 0 ? 0 : 1;
  return axes;
}

torus_axes_t axes_optional(torus_call_t *call, int arg, int rank, bool keep) {
  return op_has(call, arg) ? axes_one(call, arg, rank, keep) : axes_all(rank, keep);
}

int64_t axes_numel(const hlo_graph_t *g, hlo_t x, const torus_axes_t *axes) {
  int64_t numel = 1;
  if (x == HLO_NONE) return 0;
  for (int i = 0; i < axes->count; ++i) numel *= hlo_dim(g, x, axes->dims[i]);
  return numel;
}

bool axes_check_nonempty(torus_call_t *call, const hlo_graph_t *g, hlo_t x,
                         const torus_axes_t *axes) {
  if (x == HLO_NONE) return false;
  for (int i = 0; i < axes->count; ++i) {
    if (hlo_dim(g, x, axes->dims[i]) != 0) continue;
    op_error(call, TORUS_STATUS_OUT_OF_RANGE,
             "Expected reduction dim %d to have non-zero size.", axes->dims[i]);
    return false;
  }
  return true;
}

hlo_t axes_reduce(hlo_graph_t *g, hlo_reduction_t how, hlo_t x, const torus_axes_t *axes) {
  return hlo_reduce(g, how, x, axes->count, axes->dims, true);
}

hlo_t axes_reduce_finish(hlo_graph_t *g, hlo_reduction_t how, hlo_t x, const torus_axes_t *axes) {
  return hlo_reduce(g, how, x, axes->count, axes->dims, axes->keep);
}

hlo_t axes_finish(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes) {
  if (axes->keep || x == HLO_NONE) return x;
  bool reduced[TORUS_MAX_RANK] = {false};
  for (int i = 0; i < axes->count; ++i) reduced[axes->dims[i]] = true;
  int64_t dims[TORUS_MAX_RANK];
  int rank = 0;
  for (int i = 0; i < axes->rank; ++i) {
    if (!reduced[i]) dims[rank++] = hlo_dim(g, x, i);
  }
  return hlo_reshape(g, x, rank, dims);
}

hlo_t axes_mean(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes) {
  hlo_t sum = axes_reduce(g, HLO_REDUCE_ADD, x, axes);
  return hlo_divide(g, sum, op_count(g, hlo_dtype(g, x), axes_numel(g, x, axes)));
}

hlo_t axes_variance(hlo_graph_t *g, hlo_t x, hlo_t mean, const torus_axes_t *axes) {
  hlo_t centred = hlo_subtract(g, x, op_like(g, mean, x));
  return axes_mean(g, hlo_multiply(g, centred, centred), axes);
}

/* ---- norms ---- */

static hlo_t norm_power(hlo_graph_t *g, hlo_t x, double p, const torus_axes_t *axes) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t powers = hlo_power(g, x, hlo_soft(g, dtype, p));
  hlo_t sum = axes_reduce_finish(g, HLO_REDUCE_ADD, powers, axes);
  return hlo_power(g, sum, hlo_soft(g, dtype, 1 / p));
}

static hlo_t norm_two(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes) {
  return hlo_sqrt(g, axes_reduce_finish(g, HLO_REDUCE_ADD, hlo_multiply(g, x, x), axes));
}

static hlo_t norm_zero(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes) {
  hlo_t ones = hlo_convert(g, hlo_compare_f(g, HLO_NE, x, 0), hlo_dtype(g, x));
  return axes_reduce_finish(g, HLO_REDUCE_ADD, ones, axes);
}

hlo_t axes_norm(hlo_graph_t *g, hlo_t x, double p, const torus_axes_t *axes) {
  if (p == 2) return norm_two(g, x, axes);
  x = hlo_abs(g, x);
  if (p == 0) return norm_zero(g, x, axes);
  if (p == 1) return axes_reduce_finish(g, HLO_REDUCE_ADD, x, axes);
  if (isinf(p)) {
    return axes_reduce_finish(g, p > 0 ? HLO_REDUCE_MAXIMUM : HLO_REDUCE_MINIMUM, x, axes);
  }
  return norm_power(g, x, p, axes);
}

/* ---- other steps ---- */

hlo_t op_count(hlo_graph_t *g, torus_dtype_t dtype, int64_t count) {
  return torus_dtype_is_integral(dtype) ? hlo_soft_int(g, dtype, count)
                                        : hlo_soft(g, dtype, (double)count);
}

hlo_t op_like(hlo_graph_t *g, hlo_t x, hlo_t like) {
  if (x == HLO_NONE || like == HLO_NONE) return HLO_NONE;
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, like, dims);
  return hlo_expand(g, x, rank, dims);
}

hlo_t op_widen(hlo_graph_t *g, hlo_t x) {
  return x == HLO_NONE ? x : hlo_convert(g, x, op_accumulate_type(hlo_dtype(g, x)));
}

hlo_t op_tensor_wide(torus_call_t *call, int i) {
  return op_tensor_as(call, i, op_accumulate_type(op_tensor_dtype(call, i)));
}

hlo_t op_positions(hlo_graph_t *g, hlo_t x, int dim, torus_dtype_t dtype) {
  if (x == HLO_NONE) return HLO_NONE;
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, x, dims);
  return hlo_iota(g, dtype, rank, dims, dim);
}

hlo_t op_nothing(hlo_graph_t *g, torus_dtype_t dtype) {
  return hlo_zeros(g, dtype, 1, (const int64_t[]){0});
}

hlo_t op_ordered(hlo_graph_t *g, hlo_t x) {
  if (x == HLO_NONE || hlo_dtype(g, x) != TORUS_DTYPE_BOOL) return x;
  return hlo_convert(g, x, TORUS_DTYPE_U8);
}
