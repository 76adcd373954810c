/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Fused cells of LSTM and GRU: PyTorch calls them for every step on accelerator devices. The
 * workspace that forward leaves for backward holds the activated gates side by side. */
#include "ops/spatial.h"

static const torus_dtype_t NO_DTYPE = TORUS_DTYPE_INVALID;

/* One of |count| equal parts of the last dimension. */
static hlo_t gate(hlo_graph_t *g, hlo_t x, int64_t count, int64_t k) {
  int last = hlo_rank(g, x) - 1;
  int64_t width = last < 0 ? 0 : hlo_dim(g, x, last) / count;
  return hlo_slice_dim(g, x, last, k * width, width);
}

/* Gates with their bias, which may be absent. */
static hlo_t gates(torus_call_t *call, hlo_graph_t *g, int i, int bias) {
  hlo_t x = spatial_tensor_wide(call, i);
  if (!op_has(call, bias)) return x;
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, x, dims);
  return hlo_add(g, x, hlo_expand(g, op_tensor_as(call, bias, hlo_dtype(g, x)), rank, dims));
}

static hlo_t one_minus(hlo_graph_t *g, hlo_t x) {
  return hlo_subtract(g, hlo_const(g, hlo_dtype(g, x), 1), x);
}

/* y (1 - y), the derivative of the logistic function at its value y. */
static hlo_t logistic_slope(hlo_graph_t *g, hlo_t y) {
  return hlo_multiply(g, y, one_minus(g, y));
}

/* 1 - y^2, that of tanh. */
static hlo_t tanh_slope(hlo_graph_t *g, hlo_t y) { return one_minus(g, hlo_multiply(g, y, y)); }

static hlo_t multiply3(hlo_graph_t *g, hlo_t x, hlo_t y, hlo_t z) {
  return hlo_multiply(g, hlo_multiply(g, x, y), z);
}

static void return_as(torus_call_t *call, hlo_graph_t *g, int k, hlo_t x, torus_dtype_t dtype) {
  op_return(call, k, hlo_convert(g, x, dtype));
}

/* The gradient of a bias that was added to every row. */
static void return_bias(torus_call_t *call, hlo_graph_t *g, int k, hlo_t x, bool has_bias,
                        torus_dtype_t dtype) {
  if (!has_bias) {
    op_return_none(call, k);
    return;
  }
  return_as(call, g, k, hlo_reduce(g, HLO_REDUCE_ADD, x, 1, (const int[]){0}, false), dtype);
}

/* ---- LSTM: gates i, f, g, o ---- */

TORUS_OP(lstm_cell, "_thnn_fused_lstm_cell", 0) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  hlo_t x = hlo_add(g, gates(call, g, 0, 3), gates(call, g, 1, 4));
  hlo_t in = hlo_logistic(g, gate(g, x, 4, 0)), forget = hlo_logistic(g, gate(g, x, 4, 1));
  hlo_t cell = hlo_tanh(g, gate(g, x, 4, 2)), out = hlo_logistic(g, gate(g, x, 4, 3));
  hlo_t kept = hlo_multiply(g, forget, spatial_tensor_wide(call, 2));
  hlo_t cy = hlo_add(g, kept, hlo_multiply(g, in, cell));
  return_as(call, g, 0, hlo_multiply(g, out, hlo_tanh(g, cy)), dtype);
  return_as(call, g, 1, cy, dtype);
  const hlo_t parts[] = {in, forget, cell, out};
  return_as(call, g, 2, hlo_concatenate(g, parts, 4, hlo_rank(g, x) - 1), dtype);
}

static hlo_t gradient_or_zero(torus_call_t *call, hlo_graph_t *g, int i, hlo_t like) {
  return op_has(call, i) ? spatial_tensor_wide(call, i) : spatial_zeros_like(g, like, NO_DTYPE);
}

TORUS_OP(lstm_cell_backward, "_thnn_fused_lstm_cell_backward_impl", 0) {
  if (!op_has(call, 0) && !op_has(call, 1)) {
    for (int k = 0; k < 3; k++) op_return_none(call, k);
    return;
  }
  torus_dtype_t dtype = op_tensor_dtype(call, 4);
  hlo_t cx = spatial_tensor_wide(call, 2), work = spatial_tensor_wide(call, 4);
  hlo_t in = gate(g, work, 4, 0), forget = gate(g, work, 4, 1), cell = gate(g, work, 4, 2);
  hlo_t out = gate(g, work, 4, 3), bent = hlo_tanh(g, spatial_tensor_wide(call, 3));
  hlo_t gh = gradient_or_zero(call, g, 0, cx), gc = gradient_or_zero(call, g, 1, cx);
  gc = hlo_add(g, gc, multiply3(g, gh, out, tanh_slope(g, bent)));
  const hlo_t parts[] = {
      multiply3(g, gc, cell, logistic_slope(g, in)),
      multiply3(g, gc, cx, logistic_slope(g, forget)),
      multiply3(g, gc, in, tanh_slope(g, cell)),
      multiply3(g, gh, bent, logistic_slope(g, out)),
  };
  hlo_t all = hlo_concatenate(g, parts, 4, hlo_rank(g, work) - 1);
  return_as(call, g, 0, all, dtype);
  return_as(call, g, 1, hlo_multiply(g, gc, forget), dtype);
  return_bias(call, g, 2, all, op_bool(call, 5), dtype);
}

/* ---- GRU: gates r, z, n ---- */

TORUS_OP(gru_cell, "_thnn_fused_gru_cell", 0) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  hlo_t x = gates(call, g, 0, 3), h = gates(call, g, 1, 4), hx = spatial_tensor_wide(call, 2);
  hlo_t reset = hlo_logistic(g, hlo_add(g, gate(g, x, 3, 0), gate(g, h, 3, 0)));
  hlo_t keep = hlo_logistic(g, hlo_add(g, gate(g, x, 3, 1), gate(g, h, 3, 1)));
  hlo_t hidden = gate(g, h, 3, 2);
  hlo_t fresh = hlo_tanh(g, hlo_add(g, gate(g, x, 3, 2), hlo_multiply(g, reset, hidden)));
  hlo_t hy = hlo_add(g, fresh, hlo_multiply(g, keep, hlo_subtract(g, hx, fresh)));
  return_as(call, g, 0, hy, dtype);
  const hlo_t parts[] = {reset, keep, fresh, hx, hidden};
  return_as(call, g, 1, hlo_concatenate(g, parts, 5, hlo_rank(g, hx) - 1), dtype);
}

static hlo_t concat3(hlo_graph_t *g, hlo_t x, hlo_t y, hlo_t z) {
  const hlo_t parts[] = {x, y, z};
  return hlo_concatenate(g, parts, 3, hlo_rank(g, x) - 1);
}

TORUS_OP(gru_cell_backward, "_thnn_fused_gru_cell_backward", 0) {
  torus_dtype_t dtype = op_tensor_dtype(call, 1);
  hlo_t gy = spatial_tensor_wide(call, 0), work = spatial_tensor_wide(call, 1);
  hlo_t reset = gate(g, work, 5, 0), keep = gate(g, work, 5, 1), fresh = gate(g, work, 5, 2);
  hlo_t hx = gate(g, work, 5, 3), hidden = gate(g, work, 5, 4);
  hlo_t g_keep = multiply3(g, gy, hlo_subtract(g, hx, fresh), logistic_slope(g, keep));
  hlo_t g_new = multiply3(g, gy, one_minus(g, keep), tanh_slope(g, fresh));
  hlo_t g_reset = multiply3(g, g_new, hidden, logistic_slope(g, reset));
  hlo_t g_input = concat3(g, g_reset, g_keep, g_new);
  hlo_t g_hidden = concat3(g, g_reset, g_keep, hlo_multiply(g, g_new, reset));
  return_as(call, g, 0, g_input, dtype);
  return_as(call, g, 1, g_hidden, dtype);
  return_as(call, g, 2, hlo_multiply(g, gy, keep), dtype);
  return_bias(call, g, 3, g_input, op_bool(call, 2), dtype);
  return_bias(call, g, 4, g_hidden, op_bool(call, 2), dtype);
}
