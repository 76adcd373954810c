/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Running reductions along one dimension, and the trace. */
#include <math.h>

#include "ops/axes.h"

/* ---- sums and products ---- */

/* (self, dim, dtype) */
static void emit_scan(torus_call_t *call, hlo_graph_t *g, hlo_reduction_t how) {
  int rank = op_tensor_rank(call, 0), dim = op_dim(call, 1, rank);
  torus_dtype_t own = op_tensor_dtype(call, 0);
  torus_dtype_t dtype = op_dtype_or(call, 2, torus_dtype_is_integral(own) ? TORUS_DTYPE_I64 : own);
  hlo_t x = op_widen(g, op_tensor_as(call, 0, dtype));
  if (op_failed(call)) return;
  if (rank > 0 && hlo_numel(g, x) > 0) x = hlo_scan(g, how, x, dim);
  op_return(call, 0, hlo_convert(g, x, dtype));
}

TORUS_OP(cumsum, "cumsum", 0) { emit_scan(call, g, HLO_REDUCE_ADD); }
TORUS_OP(cumprod, "cumprod", 0) { emit_scan(call, g, HLO_REDUCE_MULTIPLY); }

/* ---- extremes with their places ---- */

/* The place of a running extreme is the latest one that equals it; once it is nan, the latest nan.
 * So places are the running maximum of the positions that reach the extreme. */
static hlo_t running_places(hlo_graph_t *g, hlo_t x, hlo_t values, int dim) {
  hlo_t reaches = hlo_or(g, hlo_compare(g, HLO_EQ, x, values), hlo_is_nan(g, x));
  hlo_t positions = op_positions(g, x, dim, TORUS_DTYPE_I64);
  hlo_t places = hlo_select(g, reaches, positions, hlo_const_int(g, TORUS_DTYPE_I64, 0));
  return hlo_scan(g, HLO_REDUCE_MAXIMUM, places, dim);
}

/* (self, values, indices, dim), the results written into arguments 1 and 2 */
static void emit_running_extreme(torus_call_t *call, hlo_graph_t *g, hlo_reduction_t how) {
  int rank = op_tensor_rank(call, 0), dim = op_dim(call, 3, rank);
  hlo_t x = op_ordered(g, op_tensor(call, 0));
  if (op_failed(call) || hlo_numel(g, x) == 0) return;
  if (rank == 0) {
    op_write(call, 1, x);
    op_write(call, 2, hlo_const_int(g, TORUS_DTYPE_I64, 0));
    return;
  }
  hlo_t values = hlo_scan(g, how, x, dim);
  op_write(call, 1, values);
  op_write(call, 2, running_places(g, x, values, dim));
}

TORUS_OP(_cummax_helper, "_cummax_helper", 0) {
  emit_running_extreme(call, g, HLO_REDUCE_MAXIMUM);
}
TORUS_OP(_cummin_helper, "_cummin_helper", 0) {
  emit_running_extreme(call, g, HLO_REDUCE_MINIMUM);
}

/* ---- logcumsumexp ---- */

/* log(exp(x) + exp(y)); where the larger one is infinite or nan it is the answer. */
static hlo_t log_add(hlo_graph_t *g, hlo_t x, hlo_t y) {
  hlo_t larger = hlo_maximum(g, x, y);
  hlo_t apart = hlo_negate(g, hlo_abs(g, hlo_subtract(g, x, y)));
  hlo_t sum = hlo_add(g, larger, hlo_log1p(g, hlo_exp(g, apart)));
  return hlo_select(g, hlo_is_finite(g, larger), sum, larger);
}

/* The same for complex numbers, the one with the larger real part in front. A real part of -inf is
 * nothing to add, whatever the imaginary part. */
static hlo_t log_add_complex(hlo_graph_t *g, hlo_t x, hlo_t y) {
  hlo_t swap = hlo_compare(g, HLO_LT, hlo_real(g, x), hlo_real(g, y));
  hlo_t larger = hlo_select(g, swap, y, x), smaller = hlo_select(g, swap, x, y);
  hlo_t sum = hlo_log1p(g, hlo_exp(g, hlo_subtract(g, smaller, larger)));
  hlo_t nothing = hlo_compare_f(g, HLO_EQ, hlo_real(g, smaller), -INFINITY);
  return hlo_select(g, nothing, larger, hlo_add(g, larger, sum));
}

/* One after the other, as on CPU: the imaginary part, defined up to multiples of 2 pi, would come
 * out differently in another order. x has three dimensions and is scanned along the second. */
enum { STEP, RUNNING, TERMS, SUMS, STATE_COUNT };

static hlo_t has_terms(hlo_graph_t *g, const hlo_t *state, void *context) {
  return hlo_compare(g, HLO_LT, state[STEP], hlo_const_int(g, TORUS_DTYPE_I64, *(int64_t *)context));
}

static void add_term(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state,
                     void *context __attribute__((unused))) {
  const int64_t sizes[3] = {hlo_dim(g, state[TERMS], 0), 1, hlo_dim(g, state[TERMS], 2)};
  hlo_t zero = hlo_const_int(g, TORUS_DTYPE_I64, 0);
  const hlo_t starts[3] = {zero, state[STEP], zero};
  hlo_t term = hlo_dynamic_slice(g, state[TERMS], starts, sizes);
  out_state[STEP] = hlo_add_f(g, state[STEP], 1);
  out_state[RUNNING] = log_add_complex(g, term, state[RUNNING]);
  out_state[TERMS] = state[TERMS];
  out_state[SUMS] = hlo_dynamic_update_slice(g, state[SUMS], out_state[RUNNING], starts);
}

static hlo_t complex_scan(hlo_graph_t *g, hlo_t x, int dim) {
  int64_t dims[TORUS_MAX_RANK], folded[3] = {1, 1, 1};
  int rank = hlo_shape(g, x, dims);
  for (int d = 0; d < rank; d++)
    folded[d < dim ? 0 : d == dim ? 1 : 2] *= dims[d];
  hlo_t terms = hlo_reshape(g, x, 3, folded), results[STATE_COUNT];
  hlo_t first = hlo_slice_dim(g, terms, 1, 0, 1);
  hlo_t step = hlo_const_int(g, TORUS_DTYPE_I64, 1);
  const hlo_t state[STATE_COUNT] = {step, first, terms, terms};
  hlo_while(g, state, STATE_COUNT, has_terms, add_term, &folded[1], results);
  return hlo_reshape(g, results[SUMS], rank, dims);
}

/* x moved |distance| places up along |dim|, -inf moving in. */
static hlo_t moved(hlo_graph_t *g, hlo_t x, int dim, int64_t distance) {
  int64_t low[TORUS_MAX_RANK] = {0}, high[TORUS_MAX_RANK] = {0};
  low[dim] = distance;
  high[dim] = -distance;
  return hlo_pad(g, x, hlo_lowest(g, hlo_dtype(g, x)), low, high, NULL);
}

/* Hillis and Steele's scan: after the step with distance d, entry i covers the 2d entries up to i.
 */
TORUS_OP(logcumsumexp, "logcumsumexp", 0) {
  int rank = op_tensor_rank(call, 0), dim = op_dim(call, 1, rank);
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  bool is_complex = torus_dtype_is_complex(dtype);
  if (!is_complex && !torus_dtype_is_float(dtype)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "logcumsumexp is not implemented for '%s'",
             torus_dtype_name(dtype));
    return;
  }
  hlo_t x = op_tensor_wide(call, 0);
  if (op_failed(call)) return;
  int64_t size = rank == 0 || hlo_numel(g, x) == 0 ? 1 : hlo_dim(g, x, dim);
  if (is_complex && size > 1) x = complex_scan(g, x, dim);
  for (int64_t distance = 1; distance < size && !is_complex; distance *= 2) {
    x = log_add(g, x, moved(g, x, dim, distance));
  }
  op_return(call, 0, hlo_convert(g, x, dtype));
}

/* ---- trace ---- */

/* The diagonal of an m x n matrix is every (n + 1)-th element of its rows laid end to end. */
TORUS_OP(trace, "trace", 0) {
  if (op_tensor_rank(call, 0) != 2) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "trace: expected a matrix");
    return;
  }
  int64_t rows = op_tensor_dim(call, 0, 0), columns = op_tensor_dim(call, 0, 1);
  torus_dtype_t own = op_tensor_dtype(call, 0);
  torus_dtype_t dtype = torus_dtype_is_integral(own) ? TORUS_DTYPE_I64 : own;
  hlo_t x = hlo_flatten(g, op_widen(g, op_tensor_as(call, 0, dtype)));
  int64_t start = 0, size = rows < columns ? rows : columns, step = columns + 1;
  hlo_t diagonal = hlo_slice(g, x, &start, &size, &step);
  op_return(call, 0, hlo_convert(g, hlo_reduce_all(g, HLO_REDUCE_ADD, diagonal), dtype));
}
