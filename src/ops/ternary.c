/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Choosing, clamping, interpolating and filling. */
#include "ops/math.h"

/* |count| tensors from argument |first| on, in the accumulation type of |dtype|, broadcast
 * together. */
static void read_tensors(torus_call_t *call, hlo_graph_t *g, torus_dtype_t dtype, int first,
                         int count, hlo_t *out_xs) {
  for (int i = 0; i < count; i++) {
    out_xs[i] =
        op_failed(call) ? HLO_NONE : op_tensor_as(call, first + i, op_accumulate_type(dtype));
  }
  if (!op_failed(call)) math_broadcast(g, out_xs, count);
}

/* Argument i as a mask: bool, or the older uint8. */
static hlo_t read_mask(torus_call_t *call, int i, bool allow_bytes) {
  torus_dtype_t dtype = op_tensor_dtype(call, i);
  if (dtype != TORUS_DTYPE_BOOL && !(allow_bytes && dtype == TORUS_DTYPE_U8)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "the mask must be a bool tensor, not %s",
             torus_dtype_name(dtype));
    return HLO_NONE;
  }
  return op_tensor_as(call, i, TORUS_DTYPE_BOOL);
}

/* ---- choosing ---- */

TORUS_OP(where, "where.self", TORUS_OP_POINTWISE) {
  torus_dtype_t dtype = op_result_type(call, (const int[]){1, 2}, 2);
  hlo_t xs[3] = {read_mask(call, 0, true), HLO_NONE, HLO_NONE};
  if (op_failed(call)) return;
  xs[1] = op_tensor_as(call, 1, dtype);
  xs[2] = op_tensor_as(call, 2, dtype);
  math_broadcast(g, xs, 3);
  op_return(call, 0, hlo_select(g, xs[0], xs[1], xs[2]));
}

static void masked_fill(torus_call_t *call, hlo_graph_t *g, hlo_t value) {
  hlo_t xs[2] = {op_tensor(call, 0), read_mask(call, 1, false)};
  if (op_failed(call)) return;
  math_broadcast(g, xs, 2);
  op_return(call, 0, hlo_select(g, xs[1], value, xs[0]));
}

TORUS_OP(masked_fill_scalar, "masked_fill.Scalar", TORUS_OP_POINTWISE) {
  masked_fill(call, g, op_scalar(call, 2, op_tensor_dtype(call, 0)));
}

static bool is_single(torus_call_t *call, int i) {
  if (op_tensor_rank(call, i) == 0) return true;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
           "only a 0-dimensional value tensor is supported, but got one with %d dimensions",
           op_tensor_rank(call, i));
  return false;
}

TORUS_OP(masked_fill_tensor, "masked_fill.Tensor", TORUS_OP_POINTWISE) {
  if (is_single(call, 2)) masked_fill(call, g, op_tensor_as(call, 2, op_tensor_dtype(call, 0)));
}

/* ---- filling ---- */

/* The old contents are not read, so the shape comes from the argument, not from a node. */
static hlo_t fill_shape(torus_call_t *call, hlo_graph_t *g, hlo_t value) {
  int64_t dims[TORUS_MAX_RANK];
  int rank = op_tensor_rank(call, 0);
  for (int d = 0; d < rank; d++)
    dims[d] = op_tensor_dim(call, 0, d);
  return hlo_splat(g, value, rank, dims);
}

TORUS_OP(fill_scalar, "fill.Scalar", TORUS_OP_POINTWISE) {
  op_return(call, 0, fill_shape(call, g, op_scalar(call, 1, op_tensor_dtype(call, 0))));
}

TORUS_OP(fill_tensor, "fill.Tensor", TORUS_OP_POINTWISE) {
  if (!is_single(call, 1)) return;
  op_return(call, 0, fill_shape(call, g, op_tensor_as(call, 1, op_tensor_dtype(call, 0))));
}

TORUS_OP(zero, "zero", TORUS_OP_POINTWISE) {
  op_return(call, 0, fill_shape(call, g, hlo_const(g, op_tensor_dtype(call, 0), 0)));
}

/* ---- clamping ---- */

static torus_dtype_t clamp_type(torus_call_t *call) {
  int args[3] = {0}, count = 1;
  for (int i = 1; i <= 2; i++) {
    if (op_has(call, i)) args[count++] = i;
  }
  if (count == 1) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "At least one of 'min' or 'max' must not be None");
    return TORUS_DTYPE_INVALID;
  }
  return op_result_type(call, args, count);
}

/* min(max(x, low), high): high wins where the limits cross, NaN wins everywhere. */
static void clamp_between(torus_call_t *call, hlo_graph_t *g, bool are_scalars) {
  torus_dtype_t dtype = clamp_type(call);
  if (op_failed(call)) return;
  hlo_t x = op_tensor_as(call, 0, dtype);
  for (int i = 1; i <= 2; i++) {
    if (!op_has(call, i)) continue;
    hlo_t pair[2] = {x, are_scalars ? op_scalar(call, i, dtype) : op_tensor_as(call, i, dtype)};
    math_broadcast(g, pair, 2);
    x = (i == 1 ? hlo_maximum : hlo_minimum)(g, pair[0], pair[1]);
  }
  op_return(call, 0, x);
}

static void clamp_one(torus_call_t *call, hlo_graph_t *g, math_binary_fn fn, bool is_scalar) {
  torus_dtype_t dtype = op_result_type(call, (const int[]){0, 1}, 2);
  if (op_failed(call)) return;
  hlo_t pair[2] = {op_tensor_as(call, 0, dtype),
                   is_scalar ? op_scalar(call, 1, dtype) : op_tensor_as(call, 1, dtype)};
  math_broadcast(g, pair, 2);
  op_return(call, 0, fn(g, pair[0], pair[1]));
}

TORUS_OP(clamp, "clamp", TORUS_OP_POINTWISE) {
  clamp_between(call, g, true);
}
TORUS_OP(clamp_tensor, "clamp.Tensor", TORUS_OP_POINTWISE) {
  clamp_between(call, g, false);
}
TORUS_OP(clamp_min, "clamp_min", TORUS_OP_POINTWISE) {
  clamp_one(call, g, hlo_maximum, true);
}
TORUS_OP(clamp_max, "clamp_max", TORUS_OP_POINTWISE) {
  clamp_one(call, g, hlo_minimum, true);
}
TORUS_OP(clamp_min_tensor, "clamp_min.Tensor", TORUS_OP_POINTWISE) {
  clamp_one(call, g, hlo_maximum, false);
}
TORUS_OP(clamp_max_tensor, "clamp_max.Tensor", TORUS_OP_POINTWISE) {
  clamp_one(call, g, hlo_minimum, false);
}

/* ---- interpolating ---- */

static bool is_lerp_type(torus_call_t *call, torus_dtype_t dtype) {
  if (op_tensor_dtype(call, 1) == dtype && !torus_dtype_is_integral(dtype)) return true;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "lerp of %s and %s", torus_dtype_name(dtype),
           torus_dtype_name(op_tensor_dtype(call, 1)));
  return false;
}

TORUS_OP(lerp_scalar, "lerp.Scalar", TORUS_OP_POINTWISE) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  hlo_t xs[2];
  if (!is_lerp_type(call, dtype)) return;
  read_tensors(call, g, dtype, 0, 2, xs);
  hlo_t weight = op_scalar(call, 2, op_accumulate_type(dtype));
  op_return(call, 0, hlo_convert(g, math_lerp(g, xs[0], xs[1], weight), dtype));
}

TORUS_OP(lerp_tensor, "lerp.Tensor", TORUS_OP_POINTWISE) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  hlo_t xs[3];
  if (!is_lerp_type(call, dtype)) return;
  read_tensors(call, g, dtype, 0, 3, xs);
  op_return(call, 0, hlo_convert(g, math_lerp(g, xs[0], xs[1], xs[2]), dtype));
}

/* self + value * tensor1 (times or over) tensor2. */
static void add_combined(torus_call_t *call, hlo_graph_t *g, math_binary_fn combine) {
  torus_dtype_t dtype = op_result_type(call, (const int[]){0, 1, 2}, 3);
  hlo_t xs[3];
  read_tensors(call, g, dtype, 0, 3, xs);
  hlo_t term = xs[1];
  if (op_failed(call)) return;
  if (!op_scalar_is(call, 3, 1)) {
    term = hlo_multiply(g, op_scalar(call, 3, op_accumulate_type(dtype)), term);
  }
  op_return(call, 0, hlo_convert(g, hlo_add(g, xs[0], combine(g, term, xs[2])), dtype));
}

static bool is_addable(torus_call_t *call, bool divides) {
  torus_dtype_t dtype = op_result_type(call, (const int[]){0, 1, 2}, 3);
  bool fits = divides ? !torus_dtype_is_integral(op_tensor_dtype(call, 1)) ||
                            !torus_dtype_is_integral(op_tensor_dtype(call, 2))
                      : dtype != TORUS_DTYPE_BOOL;
  if (!fits) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "not defined for %s", torus_dtype_name(dtype));
  }
  return fits;
}

TORUS_OP(addcmul, "addcmul", TORUS_OP_POINTWISE) {
  if (is_addable(call, false)) add_combined(call, g, hlo_multiply);
}

TORUS_OP(addcdiv, "addcdiv", TORUS_OP_POINTWISE) {
  if (is_addable(call, true)) add_combined(call, g, hlo_divide);
}
