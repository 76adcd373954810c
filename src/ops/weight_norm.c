/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Norms of the slices of a parameter: weight norm and renorm. */
#include "ops/axes.h"

/* ---- weight norm ---- */

/* All dimensions but the first or the last one, which |dim_arg| names. */
static torus_axes_t slice_axes(torus_call_t *call, int dim_arg) {
  int rank = op_tensor_rank(call, 0);
  int64_t dim = op_int(call, dim_arg);
  if (rank == 0 || (dim != 0 && dim != rank - 1)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "fused kernels can only be applied for first or "
             "last dim");
    dim = 0;
  }
  return axes_except(rank, (int)dim);
}

/* (v, g, dim) -> (g * v / |v|, |v|) */
TORUS_OP(_weight_norm_interface, "_weight_norm_interface", 0) {
  torus_axes_t axes = slice_axes(call, 2);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 0), wide = op_accumulate_type(dtype);
  hlo_t v = op_tensor_as(call, 0, wide), length = op_tensor_as(call, 1, wide);
  hlo_t norms = axes_norm(g, v, 2, &axes);
  hlo_t scale = hlo_divide(g, op_like(g, length, norms), norms);
  op_return(call, 0, hlo_convert(g, hlo_multiply(g, v, op_like(g, scale, v)), dtype));
  op_return(call, 1, norms);
}

/* (grad_w, saved_v, saved_g, saved_norms, dim) -> (grad_v, grad_g):
 * grad_g = sum(grad_w * v) / |v|, grad_v = g / |v| * (grad_w - v * sum(grad_w * v) / |v|^2). */
TORUS_OP(_weight_norm_interface_backward, "_weight_norm_interface_backward", 0) {
  torus_axes_t axes = slice_axes(call, 4);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 1), wide = op_accumulate_type(dtype);
  hlo_t grad = op_tensor_as(call, 0, wide), v = op_tensor_as(call, 1, wide);
  hlo_t norms = op_tensor_as(call, 3, wide);
  hlo_t along = axes_reduce(g, HLO_REDUCE_ADD, hlo_multiply(g, grad, v), &axes);
  hlo_t scale = hlo_divide(g, op_like(g, op_tensor_as(call, 2, wide), norms), norms);
  hlo_t share = hlo_divide(g, along, hlo_multiply(g, norms, norms));
  hlo_t across = hlo_subtract(g, grad, hlo_multiply(g, v, op_like(g, share, v)));
  op_return(call, 0, hlo_convert(g, hlo_multiply(g, across, op_like(g, scale, v)), dtype));
  op_return(call, 1, hlo_convert(g, hlo_divide(g, along, norms), op_tensor_dtype(call, 2)));
}

/* ---- renorm ---- */

/* (self, p, dim, maxnorm): slices along dim whose norm exceeds maxnorm are scaled down to it. */
TORUS_OP(renorm, "renorm", TORUS_OP_POINTWISE) {
  int rank = op_tensor_rank(call, 0);
  double p = op_double(call, 1), limit = op_double(call, 3);
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  if (rank < 2 || p <= 0 || limit < 0 || torus_dtype_is_integral(dtype)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "renorm: needs floats of 2 or more dimensions, p > 0 and maxnorm >= 0");
    return;
  }
  torus_axes_t axes = axes_except(rank, op_dim(call, 2, rank));
  hlo_t x = op_tensor_wide(call, 0);
  if (op_failed(call)) return;
  hlo_t size = torus_dtype_is_complex(dtype) ? hlo_abs(g, x) : x;
  hlo_t norms = axes_norm(g, size, p, &axes);
  torus_dtype_t real = hlo_dtype(g, norms);
  hlo_t maximum = hlo_soft(g, real, limit);
  /* The small number is PyTorch's: it keeps the result at or below the limit. */
  hlo_t shrink = hlo_divide(g, maximum, hlo_add_f(g, norms, 1e-7));
  hlo_t is_long = hlo_compare(g, HLO_GT, norms, maximum);
  hlo_t scale = hlo_select(g, is_long, shrink, hlo_const(g, real, 1));
  scale = op_like(g, hlo_convert(g, scale, hlo_dtype(g, x)), x);
  op_return(call, 0, hlo_convert(g, hlo_multiply(g, x, scale), dtype));
}
