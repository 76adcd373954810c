/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Elements chosen by rank along one dimension, with their places: extremes, medians, modes. */
#include <math.h>

#include "ops/sort.h"

/* A value and its place, both with the reduced dimension kept. */
static void return_element(torus_call_t *call, hlo_graph_t *g, hlo_t value, hlo_t place,
                           const torus_axes_t *axes) {
  op_return(call, 0, axes_finish(g, value, axes));
  op_return(call, 1, axes_finish(g, place, axes));
}

/* Real operand 0 whose dimension to reduce is not empty, or HLO_NONE. */
static hlo_t ordered_operand(torus_call_t *call, hlo_graph_t *g, const torus_axes_t *axes) {
  if (op_failed(call)) return HLO_NONE;
  if (torus_dtype_is_complex(op_tensor_dtype(call, 0))) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "complex numbers have no order");
    return HLO_NONE;
  }
  hlo_t x = op_tensor(call, 0);
  return axes_check_nonempty(call, g, x, axes) ? x : HLO_NONE;
}

/* ---- extremes ---- */

/* The extreme of x and the place of its first occurrence, dimension kept. */
static void find_extreme(hlo_graph_t *g, bool is_max, hlo_t x, const torus_axes_t *axes,
                         hlo_t *out_value, hlo_t *out_place) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  if (axes->count == 0) {
    *out_value = x;
    *out_place = hlo_full_like(g, x, TORUS_DTYPE_I64, 0);
    return;
  }
  if (hlo_numel(g, x) == 0) {
    *out_value = axes_reduce(g, HLO_REDUCE_MAXIMUM, x, axes);
    *out_place = hlo_full_like(g, *out_value, TORUS_DTYPE_I64, 0);
    return;
  }
  int dim = axes->dims[0];
  hlo_reduce_arg(g, is_max, op_ordered(g, x), dim, out_value, out_place);
  *out_value = hlo_unsqueeze(g, hlo_convert(g, *out_value, dtype), dim);
  *out_place = hlo_unsqueeze(g, *out_place, dim);
}

static void emit_extreme(torus_call_t *call, hlo_graph_t *g, bool is_max) {
  torus_axes_t axes = axes_one(call, 1, op_tensor_rank(call, 0), op_bool(call, 2));
  hlo_t x = ordered_operand(call, g, &axes), value, place;
  if (x == HLO_NONE) return;
  find_extreme(g, is_max, x, &axes, &value, &place);
  return_element(call, g, value, place, &axes);
}

TORUS_OP(max_dim, "max.dim", 0) { emit_extreme(call, g, true); }
TORUS_OP(min_dim, "min.dim", 0) { emit_extreme(call, g, false); }

/* Place in the flattened tensor. */
static hlo_t flat_place(hlo_graph_t *g, bool is_max, hlo_t x, bool keep) {
  int64_t ones[TORUS_MAX_RANK];
  int rank = hlo_rank(g, x);
  for (int i = 0; i < rank; ++i) ones[i] = 1;
  hlo_t value, place;
  torus_axes_t axes = axes_range(1, 0, 1);
  find_extreme(g, is_max, hlo_flatten(g, x), &axes, &value, &place);
  return hlo_reshape(g, place, keep ? rank : 0, ones);
}

/* (self, dim, keepdim) */
static void emit_place(torus_call_t *call, hlo_graph_t *g, bool is_max) {
  torus_axes_t axes = axes_optional(call, 1, op_tensor_rank(call, 0), op_bool(call, 2));
  if (op_tensor_dtype(call, 0) == TORUS_DTYPE_BOOL) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "argmax(): does not support bool input");
    return;
  }
  hlo_t x = ordered_operand(call, g, &axes), value, place;
  if (x == HLO_NONE) return;
  if (!op_has(call, 1)) {
    op_return(call, 0, flat_place(g, is_max, x, axes.keep));
    return;
  }
  find_extreme(g, is_max, x, &axes, &value, &place);
  op_return(call, 0, axes_finish(g, place, &axes));
}

TORUS_OP(argmax, "argmax", 0) { emit_place(call, g, true); }
TORUS_OP(argmin, "argmin", 0) { emit_place(call, g, false); }

/* ---- order statistics ---- */

/* The element at |rank_of| (I64, dimension kept with size 1) of the sorted x. */
static void pick(hlo_graph_t *g, hlo_t *values, hlo_t *places, int dim, hlo_t rank_of) {
  *values = hlo_take_along(g, *values, dim, rank_of);
  *places = hlo_take_along(g, *places, dim, rank_of);
}

static void pick_at(hlo_graph_t *g, hlo_t *values, hlo_t *places, int dim, int64_t rank_of) {
  *values = hlo_slice_dim(g, *values, dim, rank_of, 1);
  *places = hlo_slice_dim(g, *places, dim, rank_of, 1);
}

/* Which element of the sorted x, nan at its end, is the median: the lower middle one. With nan
 * about it is the first nan, unless |skip_nan|: then the middle of the others. */
static hlo_t median_rank(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes, bool skip_nan) {
  hlo_t nans = hlo_convert(g, hlo_is_nan(g, x), TORUS_DTYPE_I64);
  hlo_t bad = axes_reduce(g, HLO_REDUCE_ADD, nans, axes);
  hlo_t size = op_count(g, TORUS_DTYPE_I64, axes_numel(g, x, axes));
  hlo_t good = hlo_subtract(g, op_like(g, size, bad), bad);
  hlo_t two = hlo_const_int(g, TORUS_DTYPE_I64, 2);
  hlo_t zero = hlo_const_int(g, TORUS_DTYPE_I64, 0);
  hlo_t middle = hlo_divide(g, hlo_maximum(g, hlo_add_f(g, good, -1), zero), two);
  return skip_nan ? middle : hlo_select(g, hlo_compare(g, HLO_GT, bad, zero), good, middle);
}

static void find_median(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes, bool skip_nan,
                        hlo_t *out_value, hlo_t *out_place) {
  int dim = axes->dims[0];
  sort_with_places(g, x, dim, false, out_value, out_place);
  if (axes->count == 0) return;
  if (torus_dtype_is_float(hlo_dtype(g, x)) && hlo_numel(g, x) > 0) {
    pick(g, out_value, out_place, dim, median_rank(g, x, axes, skip_nan));
  } else {
    pick_at(g, out_value, out_place, dim, (hlo_dim(g, x, dim) - 1) / 2);
  }
}

static void emit_median(torus_call_t *call, hlo_graph_t *g, bool skip_nan) {
  torus_axes_t axes = axes_one(call, 1, op_tensor_rank(call, 0), op_bool(call, 2));
  hlo_t x = ordered_operand(call, g, &axes), value, place;
  if (x == HLO_NONE) return;
  find_median(g, x, &axes, skip_nan, &value, &place);
  return_element(call, g, value, place, &axes);
}

/* The median of nothing: nan, or the lowest integer. */
static hlo_t no_median(hlo_graph_t *g, torus_dtype_t dtype) {
  return torus_dtype_is_float(dtype) ? hlo_const(g, dtype, (double)NAN) : hlo_lowest(g, dtype);
}

static void emit_flat_median(torus_call_t *call, hlo_graph_t *g, bool skip_nan) {
  torus_axes_t none = axes_range(0, 0, 0), axes = axes_range(1, 0, 1);
  hlo_t x = ordered_operand(call, g, &none), value, place;
  if (x == HLO_NONE) return;
  if (hlo_numel(g, x) == 0) {
    op_return(call, 0, no_median(g, hlo_dtype(g, x)));
    return;
  }
  find_median(g, hlo_flatten(g, x), &axes, skip_nan, &value, &place);
  op_return(call, 0, hlo_reshape(g, value, 0, NULL));
}

TORUS_OP(median, "median", 0) { emit_flat_median(call, g, false); }
TORUS_OP(nanmedian, "nanmedian", 0) { emit_flat_median(call, g, true); }
TORUS_OP(median_dim, "median.dim", 0) { emit_median(call, g, false); }
TORUS_OP(nanmedian_dim, "nanmedian.dim", 0) { emit_median(call, g, true); }

/* (self, k, dim, keepdim), k counted from 1 */
TORUS_OP(kthvalue, "kthvalue", 0) {
  torus_axes_t axes = axes_one(call, 2, op_tensor_rank(call, 0), op_bool(call, 3));
  hlo_t x = ordered_operand(call, g, &axes), value, place;
  if (x == HLO_NONE) return;
  int64_t k = op_int(call, 1), size = axes.count == 0 ? 1 : hlo_dim(g, x, axes.dims[0]);
  if (k < 1 || k > size) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "kthvalue(): selected number k out of range for dimension %d", axes.dims[0]);
    return;
  }
  sort_with_places(g, x, axes.dims[0], false, &value, &place);
  if (axes.count > 0) pick_at(g, &value, &place, axes.dims[0], k - 1);
  return_element(call, g, value, place, &axes);
}

/* ---- mode ---- */

/* How many equal elements stand directly before each element of the sorted x. */
static hlo_t run_depth(hlo_graph_t *g, hlo_t sorted, int dim) {
  hlo_t positions = op_positions(g, sorted, dim, TORUS_DTYPE_I64);
  hlo_t zero = hlo_const_int(g, TORUS_DTYPE_I64, 0);
  hlo_t starts = hlo_select(g, sort_run_starts(g, sorted, dim), positions, zero);
  return hlo_subtract(g, positions, hlo_scan(g, HLO_REDUCE_MAXIMUM, starts, dim));
}

/* The most frequent element, the smallest of several, and the place of its last occurrence. */
TORUS_OP(mode, "mode", 0) {
  torus_axes_t axes = axes_one(call, 1, op_tensor_rank(call, 0), op_bool(call, 2));
  hlo_t x = ordered_operand(call, g, &axes), value, place, depth, last;
  if (x == HLO_NONE) return;
  int dim = axes.dims[0];
  sort_with_places(g, x, dim, false, &value, &place);
  if (axes.count > 0 && hlo_numel(g, x) > 0) {
    hlo_reduce_arg(g, true, run_depth(g, value, dim), dim, &depth, &last);
    pick(g, &value, &place, dim, hlo_unsqueeze(g, last, dim));
  } else if (axes.count > 0) {
    pick_at(g, &value, &place, dim, 0);
  }
  return_element(call, g, value, place, &axes);
}
