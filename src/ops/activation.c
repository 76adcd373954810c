/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Activation functions and their derivatives.
 *
 * Half types are computed in float32 and rounded once, as PyTorch does on CPU. The backward
 * operators take the gradient first; the letters are dy for it, x for the input, y for
 * the output. */
#include <math.h>

#include "ops/math.h"

#define GELU_TANH_SCALE 0.79788456080286535588 /* sqrt(2 / pi) */
#define GELU_TANH_CUBE 0.044715

/* ---- operands ---- */

/* Argument i of a floating point (or complex) type in its accumulation type. */
static hlo_t read_float(torus_call_t *call, int i) {
  torus_dtype_t dtype = op_tensor_dtype(call, i);
  if (torus_dtype_is_integral(dtype)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "not implemented for %s",
             torus_dtype_name(dtype));
    return HLO_NONE;
  }
  return op_tensor_as(call, i, op_accumulate_type(dtype));
}

/* Scalar argument i in the type of x. */
static hlo_t number(torus_call_t *call, hlo_graph_t *g, int i, hlo_t x) {
  return op_failed(call) ? HLO_NONE : op_scalar(call, i, hlo_dtype(g, x));
}

static hlo_t constant(hlo_graph_t *g, hlo_t x, double value) {
  return hlo_const(g, hlo_dtype(g, x), value);
}

typedef struct gradient {
  hlo_t dy, x; /* broadcast together */
  torus_dtype_t dtype;
} gradient_t;

static gradient_t read_gradient_of(torus_call_t *call, hlo_graph_t *g, int at, int input) {
  gradient_t in = {HLO_NONE, HLO_NONE, op_result_type(call, (const int[]){at, input}, 2)};
  if (op_failed(call)) return in;
  torus_dtype_t wide = op_accumulate_type(in.dtype);
  hlo_t pair[2] = {op_tensor_as(call, at, wide), op_tensor_as(call, input, wide)};
  math_broadcast(g, pair, 2);
  in.dy = pair[0];
  in.x = pair[1];
  return in;
}

static gradient_t read_gradient(torus_call_t *call, hlo_graph_t *g) {
  return read_gradient_of(call, g, 0, 1);
}

static void return_like(torus_call_t *call, hlo_graph_t *g, int i, hlo_t y) {
  op_return(call, 0, hlo_convert(g, y, op_tensor_dtype(call, i)));
}

static hlo_t clip(hlo_graph_t *g, hlo_t x, hlo_t low, hlo_t high) {
  return hlo_minimum(g, hlo_maximum(g, x, low), high);
}

/* dy where |keep|, else 0. */
static hlo_t gate(hlo_graph_t *g, hlo_t keep, hlo_t dy) {
  return hlo_select(g, keep, dy, constant(g, dy, 0));
}

static hlo_t one_minus(hlo_graph_t *g, hlo_t x) {
  return hlo_subtract(g, constant(g, x, 1), x);
}

/* ---- functions of x alone ---- */

/* Twice the normal distribution function. By erfc, because 1 + erf loses the left tail. */
static hlo_t double_cdf(hlo_graph_t *g, hlo_t x) {
  return hlo_erfc(g, hlo_multiply_f(g, x, -M_SQRT1_2));
}

static hlo_t gelu_erf(hlo_graph_t *g, hlo_t x) {
  return hlo_multiply(g, x, hlo_multiply_f(g, double_cdf(g, x), 0.5));
}

static hlo_t gelu_tanh_inner(hlo_graph_t *g, hlo_t x) {
  hlo_t cube = hlo_multiply(g, math_square(g, x), x);
  hlo_t inner = hlo_add(g, x, hlo_multiply_f(g, cube, GELU_TANH_CUBE));
  return hlo_tanh(g, hlo_multiply_f(g, inner, GELU_TANH_SCALE));
}

static hlo_t gelu_tanh(hlo_graph_t *g, hlo_t x) {
  hlo_t half = hlo_multiply_f(g, x, 0.5);
  return hlo_multiply(g, half, hlo_add_f(g, gelu_tanh_inner(g, x), 1));
}

static hlo_t silu(hlo_graph_t *g, hlo_t x) {
  return hlo_multiply(g, x, math_sigmoid(g, x));
}

/* log(1 + e^x) without overflow. */
static hlo_t softplus(hlo_graph_t *g, hlo_t x) {
  hlo_t tail = hlo_log1p(g, hlo_exp(g, hlo_negate(g, hlo_abs(g, x))));
  return hlo_add(g, math_relu(g, x), tail);
}

static hlo_t mish(hlo_graph_t *g, hlo_t x) {
  return hlo_multiply(g, x, hlo_tanh(g, softplus(g, x)));
}

static hlo_t relu6_shifted(hlo_graph_t *g, hlo_t x) {
  return clip(g, hlo_add_f(g, x, 3), constant(g, x, 0), constant(g, x, 6));
}

static hlo_t hardsigmoid(hlo_graph_t *g, hlo_t x) {
  return hlo_divide(g, relu6_shifted(g, x), constant(g, x, 6));
}

static hlo_t hardswish(hlo_graph_t *g, hlo_t x) {
  return hlo_divide(g, hlo_multiply(g, x, relu6_shifted(g, x)), constant(g, x, 6));
}

#define ACTIVATION(name, fn)                                                                       \
  TORUS_OP(name, #name, TORUS_OP_POINTWISE) {                                                      \
    hlo_t x = read_float(call, 0);                                                                 \
    if (!op_failed(call)) return_like(call, g, 0, fn(g, x));                                       \
  }
ACTIVATION(silu, silu)
ACTIVATION(mish, mish)
ACTIVATION(hardsigmoid, hardsigmoid)
ACTIVATION(hardswish, hardswish)

TORUS_OP(relu, "relu", TORUS_OP_POINTWISE) {
  hlo_t x = op_tensor(call, 0);
  if (math_is_bool(g, x) || math_is_complex(g, x)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "Boolean inputs not supported for relu");
    return;
  }
  op_return(call, 0, math_relu(g, x));
}

/* -1 for a name that is not one of the two approximations. */
static int gelu_kind(torus_call_t *call, int i) {
  const char *name = op_string(call, i);
  if (name != NULL && name[0] == 't') return 1;
  if (name == NULL || name[0] == 'n') return 0;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
           "approximate argument must be either none or tanh.");
  return -1;
}

TORUS_OP(gelu, "gelu", TORUS_OP_POINTWISE) {
  hlo_t x = read_float(call, 0);
  int kind = gelu_kind(call, 1);
  if (!op_failed(call)) return_like(call, g, 0, (kind == 1 ? gelu_tanh : gelu_erf)(g, x));
}

/* ---- functions with numbers ---- */

TORUS_OP(threshold, "threshold", TORUS_OP_POINTWISE) {
  hlo_t x = op_tensor(call, 0);
  hlo_t below = hlo_compare(g, HLO_LE, x, number(call, g, 1, x));
  op_return(call, 0, hlo_select(g, below, number(call, g, 2, x), x));
}

TORUS_OP(elu, "elu", TORUS_OP_POINTWISE) {
  hlo_t x = read_float(call, 0);
  if (op_failed(call)) return;
  hlo_t alpha = number(call, g, 1, x), scale = number(call, g, 2, x);
  hlo_t curve = hlo_expm1(g, hlo_multiply(g, x, number(call, g, 3, x)));
  hlo_t below = hlo_multiply(g, curve, hlo_multiply(g, alpha, scale));
  hlo_t above = hlo_multiply(g, x, scale);
  return_like(call, g, 0, hlo_select(g, hlo_compare_f(g, HLO_LT, x, 0), below, above));
}

TORUS_OP(leaky_relu, "leaky_relu", TORUS_OP_POINTWISE) {
  hlo_t x = read_float(call, 0);
  if (op_failed(call)) return;
  hlo_t below = hlo_multiply(g, x, number(call, g, 1, x));
  return_like(call, g, 0, hlo_select(g, hlo_compare_f(g, HLO_GT, x, 0), x, below));
}

TORUS_OP(hardtanh, "hardtanh", TORUS_OP_POINTWISE) {
  hlo_t x = op_tensor(call, 0);
  if (math_is_bool(g, x)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "Bool inputs not supported for hardtanh");
    return;
  }
  op_return(call, 0, clip(g, x, number(call, g, 1, x), number(call, g, 2, x)));
}

TORUS_OP(softplus, "softplus", TORUS_OP_POINTWISE) {
  hlo_t x = read_float(call, 0);
  if (op_failed(call)) return;
  hlo_t beta = number(call, g, 1, x), scaled = hlo_multiply(g, x, beta);
  hlo_t linear = hlo_compare(g, HLO_GT, scaled, number(call, g, 2, x));
  hlo_t curve = hlo_divide(g, hlo_log1p(g, hlo_exp(g, scaled)), beta);
  return_like(call, g, 0, hlo_select(g, linear, x, curve));
}

/* -lambda <= x <= lambda; false for NaN. */
static hlo_t is_within(hlo_graph_t *g, hlo_t x, hlo_t lambda) {
  return hlo_and(g, hlo_compare(g, HLO_GE, x, hlo_negate(g, lambda)),
                 hlo_compare(g, HLO_LE, x, lambda));
}

TORUS_OP(hardshrink, "hardshrink", TORUS_OP_POINTWISE) {
  hlo_t x = read_float(call, 0);
  if (op_failed(call)) return;
  hlo_t inside = is_within(g, x, number(call, g, 1, x));
  return_like(call, g, 0, hlo_select(g, inside, constant(g, x, 0), x));
}

TORUS_OP(softshrink, "softshrink", TORUS_OP_POINTWISE) {
  hlo_t x = read_float(call, 0);
  if (op_failed(call)) return;
  if (op_double(call, 1) < 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "lambda must be greater or equal to 0");
    return;
  }
  hlo_t lambda = number(call, g, 1, x);
  hlo_t y = hlo_multiply_f(g, x, 0); /* keeps NaN and the sign of zero */
  hlo_t above = hlo_compare(g, HLO_GT, x, lambda);
  hlo_t below = hlo_compare(g, HLO_LT, x, hlo_negate(g, lambda));
  y = hlo_select(g, above, hlo_subtract(g, x, lambda), y);
  return_like(call, g, 0, hlo_select(g, below, hlo_add(g, x, lambda), y));
}

TORUS_OP(prelu, "_prelu_kernel", TORUS_OP_POINTWISE) {
  gradient_t in = read_gradient_of(call, g, 1, 0); /* the weight stands where dy would */
  if (op_failed(call)) return;
  hlo_t above = hlo_compare_f(g, HLO_GT, in.x, 0);
  hlo_t y = hlo_select(g, above, in.x, hlo_multiply(g, in.dy, in.x));
  op_return(call, 0, hlo_convert(g, y, in.dtype));
}

TORUS_OP(log_sigmoid, "log_sigmoid_forward", TORUS_OP_POINTWISE) {
  hlo_t x = read_float(call, 0);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  hlo_t decay = hlo_exp(g, hlo_negate(g, hlo_abs(g, x)));
  hlo_t y = hlo_subtract(g, hlo_minimum(g, x, constant(g, x, 0)), hlo_log1p(g, decay));
  op_return(call, 0, hlo_convert(g, y, dtype));
  op_return(call, 1, hlo_convert(g, decay, dtype));
}

/* ---- gated linear units ---- */

static bool split_halves(torus_call_t *call, hlo_graph_t *g, hlo_t x, int dim, hlo_t *out_halves) {
  int64_t size = hlo_rank(g, x) > 0 ? hlo_dim(g, x, dim) : 1;
  if (hlo_rank(g, x) == 0 || size % 2 != 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "Halving dimension must be even, but dimension %d is size %lld", dim, (long long)size);
    return false;
  }
  out_halves[0] = hlo_slice_dim(g, x, dim, 0, size / 2);
  out_halves[1] = hlo_slice_dim(g, x, dim, size / 2, size / 2);
  return true;
}

TORUS_OP(glu, "glu", 0) {
  hlo_t x = read_float(call, 0), halves[2];
  if (op_failed(call)) return;
  int dim = op_dim(call, 1, hlo_rank(g, x));
  if (op_failed(call) || !split_halves(call, g, x, dim, halves)) return;
  return_like(call, g, 0, hlo_multiply(g, halves[0], math_sigmoid(g, halves[1])));
}

TORUS_OP(glu_backward, "glu_backward", 0) {
  hlo_t dy = read_float(call, 0), x = read_float(call, 1), halves[2];
  if (op_failed(call)) return;
  int dim = op_dim(call, 2, hlo_rank(g, x));
  if (op_failed(call) || !split_halves(call, g, x, dim, halves)) return;
  hlo_t open = math_sigmoid(g, halves[1]), parts[2];
  parts[0] = hlo_multiply(g, open, dy);
  parts[1] = hlo_multiply(g, hlo_multiply(g, one_minus(g, open), parts[0]), halves[0]);
  return_like(call, g, 1, hlo_concatenate(g, parts, 2, dim));
}

/* ---- derivatives ---- */

static hlo_t gelu_erf_slope(hlo_graph_t *g, hlo_t x) {
  hlo_t bell = hlo_exp(g, hlo_multiply_f(g, math_square(g, x), -0.5));
  hlo_t pdf = hlo_multiply_f(g, bell, 0.5 * M_SQRT1_2 * M_2_SQRTPI);
  return hlo_add(g, hlo_multiply_f(g, double_cdf(g, x), 0.5), hlo_multiply(g, x, pdf));
}

static hlo_t gelu_tanh_slope(hlo_graph_t *g, hlo_t x) {
  hlo_t t = gelu_tanh_inner(g, x);
  hlo_t left = hlo_multiply_f(g, hlo_add_f(g, t, 1), 0.5);
  hlo_t inner = hlo_multiply_f(g, math_square(g, x), 3 * GELU_TANH_CUBE);
  inner = hlo_multiply_f(g, hlo_add_f(g, inner, 1), GELU_TANH_SCALE);
  hlo_t right = hlo_multiply(g, one_minus(g, math_square(g, t)), inner);
  return hlo_add(g, left, hlo_multiply(g, hlo_multiply_f(g, x, 0.5), right));
}

static hlo_t silu_slope(hlo_graph_t *g, hlo_t x) {
  hlo_t s = math_sigmoid(g, x);
  hlo_t inner = hlo_add_f(g, hlo_multiply(g, x, one_minus(g, s)), 1);
  return hlo_conj(g, hlo_multiply(g, s, inner));
}

static hlo_t mish_slope(hlo_graph_t *g, hlo_t x) {
  hlo_t t = hlo_tanh(g, softplus(g, x));
  hlo_t inner = hlo_multiply(g, x, math_sigmoid(g, x));
  return hlo_add(g, t, hlo_multiply(g, inner, one_minus(g, math_square(g, t))));
}

/* Of the outputs: y of the forward pass, not x. */
static hlo_t sigmoid_slope(hlo_graph_t *g, hlo_t y) {
  return hlo_conj(g, hlo_multiply(g, one_minus(g, y), y));
}

static hlo_t tanh_slope(hlo_graph_t *g, hlo_t y) {
  return hlo_conj(g, one_minus(g, math_square(g, y)));
}

static void backward(torus_call_t *call, hlo_graph_t *g, math_unary_fn slope) {
  gradient_t in = read_gradient(call, g);
  if (op_failed(call)) return;
  op_return(call, 0, hlo_convert(g, hlo_multiply(g, in.dy, slope(g, in.x)), in.dtype));
}

#define ACTIVATION_BACKWARD(name, slope)                                                           \
  TORUS_OP(name##_backward, #name "_backward", TORUS_OP_POINTWISE) {                               \
    backward(call, g, slope);                                                                      \
  }
ACTIVATION_BACKWARD(silu, silu_slope)
ACTIVATION_BACKWARD(mish, mish_slope)
ACTIVATION_BACKWARD(sigmoid, sigmoid_slope)
ACTIVATION_BACKWARD(tanh, tanh_slope)

TORUS_OP(gelu_backward, "gelu_backward", TORUS_OP_POINTWISE) {
  int kind = gelu_kind(call, 2);
  if (kind >= 0) backward(call, g, kind == 1 ? gelu_tanh_slope : gelu_erf_slope);
}

/* A derivative that the name's block computes as |y| from in.dy and in.x. */
#define GRADIENT(name, flags)                                                                      \
  static hlo_t name##_gradient(torus_call_t *call, hlo_graph_t *g, gradient_t in);                 \
  TORUS_OP(name, #name, flags) {                                                                   \
    gradient_t in = read_gradient(call, g);                                                        \
    if (op_failed(call)) return;                                                                   \
    op_return(call, 0, hlo_convert(g, name##_gradient(call, g, in), in.dtype));                    \
  }                                                                                                \
  static hlo_t name##_gradient(torus_call_t *call __attribute__((unused)), hlo_graph_t *g,         \
                               gradient_t in)

GRADIENT(threshold_backward, TORUS_OP_POINTWISE) {
  hlo_t below = hlo_compare(g, HLO_LE, in.x, number(call, g, 2, in.x));
  return hlo_select(g, below, constant(g, in.dy, 0), in.dy);
}

GRADIENT(leaky_relu_backward, TORUS_OP_POINTWISE) {
  hlo_t below = hlo_multiply(g, in.dy, number(call, g, 2, in.x));
  return hlo_select(g, hlo_compare_f(g, HLO_GT, in.x, 0), in.dy, below);
}

GRADIENT(hardtanh_backward, TORUS_OP_POINTWISE) {
  hlo_t low = hlo_compare(g, HLO_LE, in.x, number(call, g, 2, in.x));
  hlo_t high = hlo_compare(g, HLO_GE, in.x, number(call, g, 3, in.x));
  return hlo_select(g, hlo_or(g, low, high), constant(g, in.dy, 0), in.dy);
}

GRADIENT(hardsigmoid_backward, TORUS_OP_POINTWISE) {
  hlo_t low = hlo_compare_f(g, HLO_GT, in.x, -3), high = hlo_compare_f(g, HLO_LT, in.x, 3);
  return gate(g, hlo_and(g, low, high), hlo_multiply_f(g, in.dy, 1.0 / 6));
}

GRADIENT(hardswish_backward, TORUS_OP_POINTWISE) {
  hlo_t slope = hlo_add_f(g, hlo_divide(g, in.x, constant(g, in.x, 3)), 0.5);
  hlo_t middle = hlo_compare_f(g, HLO_LT, in.x, 3);
  hlo_t y = hlo_select(g, middle, hlo_multiply(g, in.dy, slope), in.dy);
  return hlo_select(g, hlo_compare_f(g, HLO_LE, in.x, -3), constant(g, in.dy, 0), y);
}

GRADIENT(hardshrink_backward, TORUS_OP_POINTWISE) {
  hlo_t inside = is_within(g, in.x, number(call, g, 2, in.x));
  return hlo_select(g, inside, constant(g, in.dy, 0), in.dy);
}

GRADIENT(softshrink_backward, TORUS_OP_POINTWISE) {
  hlo_t inside = is_within(g, in.x, number(call, g, 2, in.x));
  return hlo_select(g, inside, constant(g, in.dy, 0), in.dy);
}

GRADIENT(softplus_backward, TORUS_OP_POINTWISE) {
  hlo_t scaled = hlo_multiply(g, in.x, number(call, g, 2, in.x));
  hlo_t linear = hlo_compare(g, HLO_GT, scaled, number(call, g, 3, in.x));
  return hlo_select(g, linear, in.dy, hlo_multiply(g, in.dy, hlo_logistic(g, scaled)));
}

/* d/dx log sigmoid(x) = sigmoid(-x); the buffer of the forward pass is not needed. */
GRADIENT(log_sigmoid_backward, TORUS_OP_POINTWISE) {
  return hlo_multiply(g, in.dy, hlo_logistic(g, hlo_negate(g, in.x)));
}

GRADIENT(logit_backward, TORUS_OP_POINTWISE) {
  double eps = op_double_or(call, 2, -1);
  hlo_t slope = hlo_multiply(g, in.x, one_minus(g, in.x));
  hlo_t y = hlo_divide(g, in.dy, slope);
  hlo_t low = hlo_soft(g, hlo_dtype(g, in.x), eps < 0 ? 0 : eps);
  hlo_t high = hlo_soft(g, hlo_dtype(g, in.x), eps < 0 ? 1 : 1 - eps);
  hlo_t outside = hlo_or(g, hlo_compare(g, HLO_LT, in.x, low), hlo_compare(g, HLO_GT, in.x, high));
  return hlo_select(g, outside, constant(g, in.x, eps < 0 ? (double)NAN : 0), y);
}

/* ---- derivatives with other argument orders ---- */

TORUS_OP(elu_backward, "elu_backward", TORUS_OP_POINTWISE) {
  gradient_t in = read_gradient_of(call, g, 0, 5);
  if (op_failed(call)) return;
  hlo_t scale = number(call, g, 2, in.x), input_scale = number(call, g, 3, in.x);
  hlo_t low = hlo_multiply(g, number(call, g, 1, in.x), scale);
  bool is_result = op_bool(call, 4);
  if (is_result && op_double(call, 1) < 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "In-place elu backward calculation is triggered with a negative slope");
    return;
  }
  hlo_t curve = is_result ? hlo_add(g, in.x, low)
                          : hlo_multiply(g, hlo_exp(g, hlo_multiply(g, in.x, input_scale)), low);
  hlo_t below = hlo_multiply(g, hlo_multiply(g, in.dy, input_scale), curve);
  hlo_t at_most_zero = hlo_compare_f(g, HLO_LE, in.x, 0);
  hlo_t y = hlo_select(g, at_most_zero, below, hlo_multiply(g, in.dy, scale));
  op_return(call, 0, hlo_convert(g, y, in.dtype));
}

TORUS_OP(prelu_backward, "_prelu_kernel_backward", TORUS_OP_POINTWISE) {
  torus_dtype_t dtype = op_result_type(call, (const int[]){0, 1, 2}, 3);
  if (op_failed(call)) return;
  hlo_t xs[3]; /* dy, x, weight */
  for (int i = 0; i < 3; i++)
    xs[i] = op_tensor_as(call, i, op_accumulate_type(dtype));
  math_broadcast(g, xs, 3);
  hlo_t above = hlo_compare_f(g, HLO_GT, xs[1], 0);
  hlo_t dx = hlo_select(g, above, xs[0], hlo_multiply(g, xs[2], xs[0]));
  hlo_t dw = hlo_select(g, above, constant(g, xs[1], 0), hlo_multiply(g, xs[1], xs[0]));
  op_return(call, 0, hlo_convert(g, dx, dtype));
  op_return(call, 1, hlo_convert(g, dw, dtype));
}

/* ---- randomised leaky ReLU ---- */

static hlo_t rrelu_eval(torus_call_t *call, hlo_graph_t *g, hlo_t x) {
  double slope = (op_double(call, 2) + op_double(call, 3)) / 2;
  hlo_t below = hlo_multiply(g, x, hlo_soft(g, hlo_dtype(g, x), slope));
  return hlo_select(g, hlo_compare_f(g, HLO_GT, x, 0), x, below);
}

/* One slope per element, uniform between the limits; 1 where x is positive. */
static hlo_t rrelu_slopes(torus_call_t *call, hlo_graph_t *g, hlo_t x) {
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, x, dims);
  hlo_t low = number(call, g, 2, x), high = number(call, g, 3, x);
  hlo_t random = op_random_uniform(call, hlo_dtype(g, x), rank, dims);
  hlo_t slope = hlo_add(g, low, hlo_multiply(g, random, hlo_subtract(g, high, low)));
  return hlo_select(g, hlo_compare_f(g, HLO_LE, x, 0), slope, constant(g, x, 1));
}

TORUS_OP(rrelu_with_noise, "rrelu_with_noise", TORUS_OP_POINTWISE | TORUS_OP_RANDOM) {
  hlo_t x = read_float(call, 0);
  if (op_failed(call)) return;
  if (!op_bool(call, 4)) {
    return_like(call, g, 0, rrelu_eval(call, g, x));
    return;
  }
  hlo_t slopes = rrelu_slopes(call, g, x);
  op_write(call, 1, slopes);
  return_like(call, g, 0, hlo_multiply(g, x, slopes));
}
