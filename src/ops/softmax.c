/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Softmax, its logarithm, its masked forms, and their gradients. */
#include <math.h>

#include "ops/axes.h"

/* exp(x - max), at most 1, in x's type. */
static hlo_t shifted(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes) {
  return hlo_subtract(g, x, op_like(g, axes_reduce(g, HLO_REDUCE_MAXIMUM, x, axes), x));
}

static hlo_t softmax(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes) {
  hlo_t powers = hlo_exp(g, shifted(g, x, axes));
  return hlo_divide(g, powers, op_like(g, axes_reduce(g, HLO_REDUCE_ADD, powers, axes), x));
}

static hlo_t log_softmax(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes) {
  hlo_t low = shifted(g, x, axes);
  hlo_t sum = axes_reduce(g, HLO_REDUCE_ADD, hlo_exp(g, low), axes);
  return hlo_subtract(g, low, op_like(g, hlo_log(g, sum), x));
}

/* grad_input = (grad - sum(grad * output)) * output */
static hlo_t softmax_gradient(hlo_graph_t *g, hlo_t grad, hlo_t output, const torus_axes_t *axes) {
  hlo_t sum = axes_reduce(g, HLO_REDUCE_ADD, hlo_multiply(g, grad, output), axes);
  return hlo_multiply(g, hlo_subtract(g, grad, op_like(g, sum, output)), output);
}

/* grad_input = grad - exp(output) * sum(grad) */
static hlo_t log_softmax_gradient(hlo_graph_t *g, hlo_t grad, hlo_t output,
                                  const torus_axes_t *axes) {
  hlo_t sum = axes_reduce(g, HLO_REDUCE_ADD, grad, axes);
  return hlo_subtract(g, grad, hlo_multiply(g, hlo_exp(g, output), op_like(g, sum, output)));
}

static bool require_float(torus_call_t *call, torus_dtype_t dtype) {
  if (torus_dtype_is_float(dtype)) return true;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "softmax is not implemented for '%s'",
           torus_dtype_name(dtype));
  return false;
}

typedef hlo_t (*softmax_fn)(hlo_graph_t *, hlo_t, const torus_axes_t *);
typedef hlo_t (*softmax_gradient_fn)(hlo_graph_t *, hlo_t, hlo_t, const torus_axes_t *);

/* (self, dim, half_to_float) */
static void emit_softmax(torus_call_t *call, hlo_graph_t *g, softmax_fn apply) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  torus_axes_t axes = axes_one(call, 1, op_tensor_rank(call, 0), true);
  hlo_t x = op_tensor_wide(call, 0);
  if (op_failed(call) || !require_float(call, dtype)) return;
  if (op_bool(call, 2)) dtype = TORUS_DTYPE_F32;
  op_return(call, 0, hlo_convert(g, apply(g, x, &axes), dtype));
}

/* (grad_output, output, dim, input_dtype) */
static void emit_gradient(torus_call_t *call, hlo_graph_t *g, softmax_gradient_fn apply) {
  torus_dtype_t dtype = op_dtype_or(call, 3, op_tensor_dtype(call, 0));
  torus_axes_t axes = axes_one(call, 2, op_tensor_rank(call, 0), true);
  torus_dtype_t wide = op_accumulate_type(op_tensor_dtype(call, 1));
  hlo_t grad = op_tensor_as(call, 0, wide), output = op_tensor_as(call, 1, wide);
  if (op_failed(call)) return;
  op_return(call, 0, hlo_convert(g, apply(g, grad, output, &axes), dtype));
}

TORUS_OP(_softmax, "_softmax", TORUS_OP_POINTWISE) { emit_softmax(call, g, softmax); }

TORUS_OP(_log_softmax, "_log_softmax", TORUS_OP_POINTWISE) { emit_softmax(call, g, log_softmax); }

TORUS_OP(_softmax_backward_data, "_softmax_backward_data", TORUS_OP_POINTWISE) {
  emit_gradient(call, g, softmax_gradient);
}

TORUS_OP(_log_softmax_backward_data, "_log_softmax_backward_data", TORUS_OP_POINTWISE) {
  emit_gradient(call, g, log_softmax_gradient);
}

/* Rows that are -inf throughout give 0, not nan: attention whose keys are all masked. */
TORUS_OP(_safe_softmax, "_safe_softmax", TORUS_OP_POINTWISE) {
  torus_dtype_t dtype = op_dtype_or(call, 2, op_tensor_dtype(call, 0));
  torus_axes_t axes = axes_one(call, 1, op_tensor_rank(call, 0), true);
  hlo_t x = op_widen(g, op_tensor_as(call, 0, dtype));
  if (op_failed(call) || !require_float(call, dtype)) return;
  hlo_t masked = axes_reduce(g, HLO_REDUCE_AND, hlo_compare_f(g, HLO_EQ, x, -INFINITY), &axes);
  hlo_t zero = hlo_const(g, hlo_dtype(g, x), 0);
  hlo_t y = hlo_select(g, op_like(g, masked, x), zero, softmax(g, x, &axes));
  op_return(call, 0, hlo_convert(g, y, dtype));
}

/* ---- masked softmax: true in the mask hides an element ---- */

/* The mask in the shape of x (B, H, L, L). Type 0 is (L, L), type 1 is (B, L), 2 is x's shape. */
static hlo_t attention_mask(torus_call_t *call, hlo_graph_t *g, hlo_t x, int64_t type) {
  hlo_t mask = op_tensor_as(call, 1, TORUS_DTYPE_BOOL);
  if (mask == HLO_NONE || x == HLO_NONE || hlo_same_shape(g, mask, x)) return mask;
  if (type == 1 && hlo_rank(g, mask) == 2 && hlo_rank(g, x) == 4) {
    int64_t dims[4] = {hlo_dim(g, mask, 0), 1, 1, hlo_dim(g, mask, 1)};
    mask = hlo_reshape(g, mask, 4, dims);
  }
  return op_like(g, mask, x);
}

/* Wrapped dim argument, the last one by default. */
static torus_axes_t last_or(torus_call_t *call, int arg, int rank) {
  torus_axes_t axes = {.rank = rank, .count = rank == 0 ? 0 : 1, .keep = true};
  axes.dims[0] = rank == 0 ? 0 : op_wrap_dim(call, op_int_or(call, arg, -1), rank);
  return axes;
}

TORUS_OP(_masked_softmax, "_masked_softmax", 0) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  torus_axes_t axes = last_or(call, 2, op_tensor_rank(call, 0));
  hlo_t x = op_tensor_wide(call, 0);
  if (op_failed(call) || !require_float(call, dtype)) return;
  hlo_t mask = attention_mask(call, g, x, op_int_or(call, 3, 2));
  hlo_t lowest = hlo_lowest(g, hlo_dtype(g, x));
  op_return(call, 0, hlo_convert(g, softmax(g, hlo_select(g, mask, lowest, x), &axes), dtype));
}

TORUS_OP(_masked_softmax_backward, "_masked_softmax_backward", 0) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  torus_axes_t axes = last_or(call, 3, op_tensor_rank(call, 0));
  hlo_t grad = op_tensor_wide(call, 0), output = op_tensor_wide(call, 1);
  hlo_t mask = op_tensor_as(call, 2, TORUS_DTYPE_BOOL);
  if (op_failed(call)) return;
  hlo_t zero = hlo_const(g, hlo_dtype(g, grad), 0);
  mask = op_like(g, mask, grad);
  /* A hidden element has output 0; a row hidden throughout has nan, which must not spread. */
  output = hlo_select(g, mask, zero, output);
  op_return(call, 0, hlo_convert(g, softmax_gradient(g, grad, output, &axes), dtype));
}
