/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Losses of an input and a target of one shape, and their derivatives. */
#include "ops/loss.h"

#include "ops/math.h"

/* ---- shared with the losses by class ---- */

void loss_return(torus_call_t *call, hlo_graph_t *g, hlo_t loss, int64_t reduction,
                 torus_dtype_t dtype) {
  if (reduction == LOSS_MEAN) loss = math_mean(g, loss);
  if (reduction == LOSS_SUM) loss = math_sum(g, loss);
  op_return(call, 0, hlo_convert(g, loss, dtype));
}

hlo_t loss_share(hlo_graph_t *g, hlo_t dy, int64_t reduction, int64_t count) {
  if (reduction != LOSS_MEAN) return dy;
  return hlo_divide(g, dy, math_size(g, hlo_dtype(g, dy), count));
}

/* ---- operands ---- */

typedef struct pair {
  hlo_t x, target;
  torus_dtype_t dtype;
} pair_t;

static pair_t read_pair(torus_call_t *call, int i) {
  pair_t p = {HLO_NONE, HLO_NONE, op_result_type(call, (const int[]){i, i + 1}, 2)};
  if (op_failed(call)) return p;
  op_binary_operands(call, i, i + 1, op_accumulate_type(p.dtype), &p.x, &p.target);
  return p;
}

static hlo_t constant(hlo_graph_t *g, hlo_t x, double value) {
  return hlo_const(g, hlo_dtype(g, x), value);
}

/* A user's number in argument i. */
static hlo_t number(torus_call_t *call, hlo_graph_t *g, int i, hlo_t x) {
  return op_failed(call) ? HLO_NONE : hlo_soft(g, hlo_dtype(g, x), op_double(call, i));
}

/* The incoming gradient, divided among the elements of |x| when the loss was their mean. */
static hlo_t read_share(torus_call_t *call, hlo_graph_t *g, hlo_t x, int64_t reduction) {
  if (op_failed(call)) return HLO_NONE;
  hlo_t pair[2] = {op_tensor_as(call, 0, hlo_dtype(g, x)), x};
  math_broadcast(g, pair, 2);
  return loss_share(g, pair[0], reduction, hlo_numel(g, x));
}

/* slope * dy, as result 0. */
static void return_gradient(torus_call_t *call, hlo_graph_t *g, hlo_t slope, int64_t reduction,
                            torus_dtype_t dtype) {
  hlo_t dy = read_share(call, g, slope, reduction);
  op_return(call, 0, hlo_convert(g, hlo_multiply(g, slope, dy), dtype));
}

/* slope inside (-limit, limit), else |edge| with the sign of x. */
static hlo_t clamp_slope(hlo_graph_t *g, hlo_t x, hlo_t limit, hlo_t slope, hlo_t edge) {
  hlo_t low = hlo_compare(g, HLO_LE, x, hlo_negate(g, limit));
  hlo_t high = hlo_compare(g, HLO_GE, x, limit);
  slope = hlo_select(g, high, edge, slope);
  return hlo_select(g, low, hlo_negate(g, edge), slope);
}

/* ---- squared and absolute errors ---- */

TORUS_OP(mse_loss, "mse_loss", TORUS_OP_POINTWISE) {
  pair_t p = read_pair(call, 0);
  if (op_failed(call)) return;
  loss_return(call, g, math_square(g, hlo_subtract(g, p.x, p.target)), op_int(call, 2), p.dtype);
}

TORUS_OP(mse_loss_backward, "mse_loss_backward", TORUS_OP_POINTWISE) {
  pair_t p = read_pair(call, 1);
  if (op_failed(call)) return;
  hlo_t slope = hlo_multiply_f(g, hlo_subtract(g, p.x, p.target), 2);
  return_gradient(call, g, slope, op_int(call, 3), p.dtype);
}

TORUS_OP(smooth_l1_loss, "smooth_l1_loss", TORUS_OP_POINTWISE) {
  pair_t p = read_pair(call, 0);
  if (op_failed(call)) return;
  hlo_t beta = number(call, g, 3, p.x), z = hlo_abs(g, hlo_subtract(g, p.x, p.target));
  hlo_t curve = hlo_divide(g, hlo_multiply_f(g, math_square(g, z), 0.5), beta);
  hlo_t line = hlo_subtract(g, z, hlo_multiply_f(g, beta, 0.5));
  hlo_t loss = hlo_select(g, hlo_compare(g, HLO_LT, z, beta), curve, line);
  loss_return(call, g, loss, op_int(call, 2), p.dtype);
}

TORUS_OP(smooth_l1_loss_backward, "smooth_l1_loss_backward", TORUS_OP_POINTWISE) {
  pair_t p = read_pair(call, 1);
  if (op_failed(call)) return;
  hlo_t beta = number(call, g, 4, p.x), x = hlo_subtract(g, p.x, p.target);
  hlo_t slope = clamp_slope(g, x, beta, hlo_divide(g, x, beta), constant(g, x, 1));
  return_gradient(call, g, slope, op_int(call, 3), p.dtype);
}

TORUS_OP(huber_loss, "huber_loss", TORUS_OP_POINTWISE) {
  pair_t p = read_pair(call, 0);
  if (op_failed(call)) return;
  hlo_t delta = number(call, g, 3, p.x), z = hlo_abs(g, hlo_subtract(g, p.x, p.target));
  hlo_t curve = hlo_multiply_f(g, math_square(g, z), 0.5);
  hlo_t line = hlo_multiply(g, delta, hlo_subtract(g, z, hlo_multiply_f(g, delta, 0.5)));
  hlo_t loss = hlo_select(g, hlo_compare(g, HLO_LE, z, delta), curve, line);
  loss_return(call, g, loss, op_int(call, 2), p.dtype);
}

TORUS_OP(huber_loss_backward, "huber_loss_backward", TORUS_OP_POINTWISE) {
  pair_t p = read_pair(call, 1);
  if (op_failed(call)) return;
  hlo_t delta = number(call, g, 4, p.x), x = hlo_subtract(g, p.x, p.target);
  return_gradient(call, g, clamp_slope(g, x, delta, x, delta), op_int(call, 3), p.dtype);
}

/* ---- cross entropy of probabilities ---- */

/* The optional weight in argument i times |x|. */
static hlo_t weighted(torus_call_t *call, hlo_graph_t *g, int i, hlo_t x) {
  if (op_failed(call) || !op_has(call, i)) return x;
  hlo_t pair[2] = {x, op_tensor_as(call, i, hlo_dtype(g, x))};
  math_broadcast(g, pair, 2);
  return hlo_multiply(g, pair[0], pair[1]);
}

static void check_probability(torus_call_t *call, hlo_graph_t *g, hlo_t x) {
  hlo_t inside = hlo_and(g, hlo_compare_f(g, HLO_GE, x, 0), hlo_compare_f(g, HLO_LE, x, 1));
  hlo_t failed = hlo_reduce_all(g, HLO_REDUCE_OR, hlo_not(g, inside));
  op_check(call, failed, TORUS_STATUS_INVALID_ARGUMENT,
           "all elements of input should be between 0 and 1");
}

/* Logarithms are held above -100, which keeps the loss finite (as documented for BCELoss). */
static hlo_t bounded(hlo_graph_t *g, hlo_t x) {
  return hlo_maximum(g, x, constant(g, x, -100));
}

TORUS_OP(binary_cross_entropy, "binary_cross_entropy", TORUS_OP_POINTWISE) {
  pair_t p = read_pair(call, 0);
  if (op_failed(call)) return;
  check_probability(call, g, p.x);
  hlo_t off = bounded(g, hlo_log1p(g, hlo_negate(g, p.x))), on = bounded(g, hlo_log(g, p.x));
  hlo_t loss = hlo_subtract(g, hlo_multiply(g, hlo_add_f(g, p.target, -1), off),
                            hlo_multiply(g, p.target, on));
  loss_return(call, g, weighted(call, g, 2, loss), op_int(call, 3), p.dtype);
}

TORUS_OP(binary_cross_entropy_backward, "binary_cross_entropy_backward", TORUS_OP_POINTWISE) {
  pair_t p = read_pair(call, 1);
  if (op_failed(call)) return;
  hlo_t spread = hlo_multiply(g, hlo_subtract(g, constant(g, p.x, 1), p.x), p.x);
  spread = hlo_maximum(g, spread, constant(g, p.x, 1e-12));
  hlo_t slope = hlo_divide(g, hlo_subtract(g, p.x, p.target), spread);
  return_gradient(call, g, weighted(call, g, 3, slope), op_int(call, 4), p.dtype);
}

/* (1 - t) x + w log(1 + e^-x) with w = 1 + (pos_weight - 1) t, arranged not to overflow. */
TORUS_OP(bce_with_logits, "binary_cross_entropy_with_logits", TORUS_OP_POINTWISE) {
  pair_t p = read_pair(call, 0);
  if (op_failed(call)) return;
  hlo_t tail = hlo_log1p(g, hlo_exp(g, hlo_negate(g, hlo_abs(g, p.x))));
  tail = hlo_add(g, tail, math_relu(g, hlo_negate(g, p.x)));
  if (op_has(call, 3)) {
    hlo_t pair[2] = {op_tensor_as(call, 3, hlo_dtype(g, p.x)), p.target};
    math_broadcast(g, pair, 2);
    hlo_t weight = hlo_multiply(g, hlo_add_f(g, pair[0], -1), pair[1]);
    tail = hlo_multiply(g, tail, hlo_add_f(g, weight, 1));
  }
  hlo_t rest = hlo_subtract(g, constant(g, p.x, 1), p.target);
  hlo_t loss = hlo_add(g, hlo_multiply(g, rest, p.x), tail);
  loss_return(call, g, weighted(call, g, 2, loss), op_int(call, 4), p.dtype);
}

/* ---- soft margin ---- */

TORUS_OP(soft_margin_loss, "soft_margin_loss", TORUS_OP_POINTWISE) {
  pair_t p = read_pair(call, 0);
  if (op_failed(call)) return;
  hlo_t z = hlo_negate(g, hlo_multiply(g, p.target, p.x));
  loss_return(call, g, hlo_log1p(g, hlo_exp(g, z)), op_int(call, 2), p.dtype);
}

TORUS_OP(soft_margin_loss_backward, "soft_margin_loss_backward", TORUS_OP_POINTWISE) {
  pair_t p = read_pair(call, 1);
  if (op_failed(call)) return;
  hlo_t z = hlo_negate(g, hlo_multiply(g, p.target, p.x));
  hlo_t slope = hlo_multiply(g, hlo_negate(g, p.target), hlo_logistic(g, z));
  return_gradient(call, g, slope, op_int(call, 3), p.dtype);
}
