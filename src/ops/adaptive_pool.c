/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Adaptive pooling: window i of n over a dimension of size s covers floor(i s / n) up to, but not
 * including, ceil((i + 1) s / n). One dimension at a time: the elements of each window are gathered
 * side by side, those behind its end masked, and reduced. */
#include "ops/spatial.h"

typedef struct adaptive {
  hlo_graph_t *g;
  int dim;
  int64_t size, out, reach; /* reach: the longest window */
  hlo_t start, length;      /* (out) */
} adaptive_t;

static hlo_t times_over(hlo_graph_t *g, hlo_t x, int64_t times, int64_t over, int64_t plus) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t y = hlo_multiply(g, x, hlo_const_int(g, dtype, times));
  y = hlo_add(g, y, hlo_const_int(g, dtype, plus));
  return hlo_divide(g, y, hlo_const_int(g, dtype, over));
}

static int64_t longest_window(int64_t size, int64_t out) {
  int64_t longest = 1;
  for (int64_t i = 0; i < out; i++) {
    int64_t length = ((i + 1) * size + out - 1) / out - i * size / out;
    if (length > longest) longest = length;
  }
  return longest;
}

static adaptive_t adaptive_windows(hlo_graph_t *g, int dim, int64_t size, int64_t out) {
  adaptive_t a = {.g = g, .dim = dim, .size = size, .out = out};
  a.reach = longest_window(size, out);
  hlo_t i = spatial_iota(g, TORUS_DTYPE_I64, out);
  a.start = times_over(g, i, size, out, 0);
  a.length = hlo_subtract(g, times_over(g, i, size, out, size + out - 1), a.start);
  return a;
}

/* x with |dim| as (out, reach); |fill| (rank 0) behind the end of shorter windows. */
static hlo_t gather_windows(const adaptive_t *a, hlo_t x, hlo_t fill) {
  hlo_graph_t *g = a->g;
  if (a->reach * a->out == a->size) return spatial_split(g, x, a->dim, a->out, a->reach);
  const int64_t dims[2] = {a->out, a->reach};
  hlo_t offset = hlo_iota(g, TORUS_DTYPE_I64, 2, dims, 1);
  hlo_t index = hlo_add(g, spatial_along(g, a->start, 2, dims, 0), offset);
  index = hlo_minimum(g, index, hlo_const_int(g, TORUS_DTYPE_I64, a->size - 1));
  hlo_t held = hlo_compare(g, HLO_LT, offset, spatial_along(g, a->length, 2, dims, 0));
  x = hlo_take(g, x, a->dim, index);
  int64_t shape[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, x, shape);
  const int places[2] = {a->dim, a->dim + 1};
  return hlo_select(g, hlo_broadcast_in_dim(g, held, rank, shape, places), x, fill);
}

static hlo_t sum_windows(const adaptive_t *a, hlo_t x) {
  hlo_t parts = gather_windows(a, x, hlo_const(a->g, hlo_dtype(a->g, x), 0));
  return hlo_reduce(a->g, HLO_REDUCE_ADD, parts, 1, (const int[]){a->dim + 1}, false);
}

static hlo_t divide_by_length(const adaptive_t *a, hlo_t x) {
  int64_t shape[TORUS_MAX_RANK] = {0};
  torus_dtype_t dtype = hlo_dtype(a->g, x);
  if (a->reach * a->out == a->size)
    return hlo_divide(a->g, x, hlo_const(a->g, dtype, (double)a->reach));
  int rank = hlo_shape(a->g, x, shape);
  hlo_t length = hlo_convert(a->g, a->length, dtype);
  return hlo_divide(a->g, x, spatial_along(a->g, length, rank, shape, a->dim));
}

static bool adaptive_fits(torus_call_t *call, int i, int spatial) {
  int rank = op_tensor_rank(call, i);
  bool fits = rank == spatial + 1 || rank == spatial + 2;
  for (int k = 1; fits && k <= spatial; k++) fits = op_tensor_dim(call, i, rank - k) > 0;
  if (!fits) op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "unexpected shape of the input");
  return fits;
}

/* The output when it holds no element, else HLO_NONE. */
static hlo_t empty_output(torus_call_t *call, hlo_graph_t *g, int spatial, torus_dtype_t dtype) {
  int64_t dims[TORUS_MAX_RANK] = {0}, n = 1;
  int rank = op_tensor_rank(call, 0);
  for (int i = 0; i < rank; i++) {
    dims[i] = i < rank - spatial ? op_tensor_dim(call, 0, i)
                                 : op_ints_at(call, 1, i - (rank - spatial));
    n *= dims[i];
  }
  return n == 0 ? hlo_zeros(g, dtype, rank, dims) : HLO_NONE;
}

/* ---- average ---- */

static void adaptive_avg(torus_call_t *call, hlo_graph_t *g, int spatial) {
  if (!adaptive_fits(call, 0, spatial)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  hlo_t x = spatial_tensor_wide(call, 0), empty = empty_output(call, g, spatial, dtype);
  int first = op_tensor_rank(call, 0) - spatial;
  for (int k = 0; empty == HLO_NONE && k < spatial; k++) {
    adaptive_t a =
        adaptive_windows(g, first + k, hlo_dim(g, x, first + k), op_ints_at(call, 1, k));
    x = divide_by_length(&a, sum_windows(&a, x));
  }
  op_return(call, 0, hlo_convert(g, empty == HLO_NONE ? x : empty, dtype));
}

/* The windows that cover an input element are themselves adaptive windows, with the sizes
 * exchanged. grad_output 0, self 1. */
static void adaptive_avg_backward(torus_call_t *call, hlo_graph_t *g, int spatial) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  if (!adaptive_fits(call, 1, spatial)) return;
  if (op_tensor_numel(call, 0) == 0 || op_tensor_numel(call, 1) == 0) {
    op_return(call, 0, spatial_zeros_like(g, op_tensor(call, 1), dtype));
    return;
  }
  hlo_t y = spatial_tensor_wide(call, 0);
  int first = op_tensor_rank(call, 1) - spatial;
  for (int k = first; k < first + spatial; k++) {
    int64_t size = op_tensor_dim(call, 1, k), out = op_tensor_dim(call, 0, k);
    adaptive_t there = adaptive_windows(g, k, size, out), back = adaptive_windows(g, k, out, size);
    y = sum_windows(&back, divide_by_length(&there, y));
  }
  op_return(call, 0, hlo_convert(g, y, dtype));
}

#define ADAPTIVE_AVG_OPS(n)                                                                        \
  TORUS_OP(adaptive_avg_pool##n##d, "_adaptive_avg_pool" #n "d", TORUS_OP_KEEP_FORMAT) {           \
    adaptive_avg(call, g, n);                                                                      \
  }                                                                                                \
  TORUS_OP(adaptive_avg_pool##n##d_backward, "_adaptive_avg_pool" #n "d_backward",                 \
           TORUS_OP_KEEP_FORMAT) {                                                                 \
    adaptive_avg_backward(call, g, n);                                                             \
  }

ADAPTIVE_AVG_OPS(2)
ADAPTIVE_AVG_OPS(3)

/* ---- maximum ---- */

/* The chosen entry of each window of the position array x, that stage's selection being |arg|. */
static hlo_t pick(const adaptive_t *a, hlo_t x, hlo_t arg) {
  hlo_t zero = hlo_const_int(a->g, TORUS_DTYPE_I64, 0);
  hlo_t at = hlo_unsqueeze(a->g, arg, a->dim + 1);
  hlo_t windows = gather_windows(a, x, zero);
  return hlo_squeeze(a->g, hlo_take_along(a->g, windows, a->dim + 1, at), a->dim + 1);
}

/* From the last dimension to the first: of equal maxima the first in row-major order then wins. */
static void max_of_windows(hlo_graph_t *g, const adaptive_t *windows, int spatial, hlo_t *x,
                           hlo_t *position) {
  for (int k = spatial - 1; k >= 0; k--) {
    const adaptive_t *a = &windows[k];
    hlo_t arg = HLO_NONE, fill = hlo_lowest(g, hlo_dtype(g, *x));
    hlo_reduce_arg(g, true, gather_windows(a, *x, fill), a->dim + 1, x, &arg);
    *position = pick(a, *position, arg);
  }
}

static void adaptive_max(torus_call_t *call, hlo_graph_t *g, int spatial) {
  if (!adaptive_fits(call, 0, spatial)) return;
  hlo_t x = op_tensor(call, 0), position = HLO_NONE;
  hlo_t empty = empty_output(call, g, spatial, op_tensor_dtype(call, 0));
  int first = op_tensor_rank(call, 0) - spatial;
  if (empty != HLO_NONE) {
    x = empty;
    position = hlo_convert(g, empty, TORUS_DTYPE_I64);
  } else {
    adaptive_t windows[3];
    for (int k = 0; k < spatial; k++)
      windows[k] = adaptive_windows(g, first + k, op_tensor_dim(call, 0, first + k),
                                    op_ints_at(call, 1, k));
    position = spatial_positions(g, x, first);
    max_of_windows(g, windows, spatial, &x, &position);
  }
  op_return(call, 0, x);
  op_return(call, 1, position);
}

TORUS_OP(adaptive_max_pool2d, "adaptive_max_pool2d", TORUS_OP_KEEP_FORMAT) {
  adaptive_max(call, g, 2);
}
TORUS_OP(adaptive_max_pool3d, "adaptive_max_pool3d", TORUS_OP_KEEP_FORMAT) {
  adaptive_max(call, g, 3);
}
