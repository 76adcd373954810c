/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Pointwise operators of one tensor. */
#include <math.h>

#include "ops/math.h"

static void unary_float(torus_call_t *call, hlo_graph_t *g, math_unary_fn fn) {
  torus_dtype_t dtype = op_float_type(call, op_tensor_dtype(call, 0));
  op_return(call, 0, math_unary(g, fn, op_tensor_as(call, 0, dtype)));
}

#define UNARY_FLOAT(name, fn)                                                                      \
  TORUS_OP(name, #name, TORUS_OP_POINTWISE) {                                                      \
    unary_float(call, g, fn);                                                                      \
  }
MATH_FLOAT_LIST(UNARY_FLOAT)
UNARY_FLOAT(angle, math_angle)

#define UNARY_SAME(name, fn)                                                                       \
  TORUS_OP(name, #name, TORUS_OP_POINTWISE) {                                                      \
    op_return(call, 0, math_unary(g, fn, op_tensor(call, 0)));                                     \
  }
MATH_SAME_LIST(UNARY_SAME)

/* ---- tests ---- */

static hlo_t is_infinity(hlo_graph_t *g, hlo_t x, bool positive) {
  if (math_is_complex(g, x)) {
    return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "complex numbers have no ordered infinities");
  }
  if (!math_is_float(g, x)) return hlo_full_like(g, x, TORUS_DTYPE_BOOL, 0);
  torus_dtype_t dtype = hlo_dtype(g, x);
  return hlo_compare(g, HLO_EQ, x, positive ? hlo_highest(g, dtype) : hlo_lowest(g, dtype));
}

static hlo_t is_posinf(hlo_graph_t *g, hlo_t x) {
  return is_infinity(g, x, true);
}

static hlo_t is_neginf(hlo_graph_t *g, hlo_t x) {
  return is_infinity(g, x, false);
}

static hlo_t is_inf(hlo_graph_t *g, hlo_t x) {
  if (math_is_complex(g, x)) {
    return hlo_or(g, is_inf(g, hlo_real(g, x)), is_inf(g, hlo_imag(g, x)));
  }
  return hlo_or(g, is_posinf(g, x), is_neginf(g, x));
}

static hlo_t is_false(hlo_graph_t *g, hlo_t x) {
  return hlo_not(g, hlo_convert(g, x, TORUS_DTYPE_BOOL));
}

#define UNARY_TEST(name, fn)                                                                       \
  TORUS_OP(name, #name, TORUS_OP_POINTWISE) {                                                      \
    op_return(call, 0, fn(g, op_tensor(call, 0)));                                                 \
  }
UNARY_TEST(isnan, hlo_is_nan)
UNARY_TEST(isinf, is_inf)
UNARY_TEST(isposinf, is_posinf)
UNARY_TEST(isneginf, is_neginf)
UNARY_TEST(signbit, math_signbit)
UNARY_TEST(logical_not, is_false)

/* A copy that compilers keep apart from its source: what is computed from it again is not merged
 * with what was computed before, so that recomputing layers saves memory inside one program too. */
TORUS_OP(alias_copy, "alias_copy", TORUS_OP_POINTWISE) {
  op_return(call, 0, hlo_optimization_barrier(g, op_tensor(call, 0)));
}

/* ---- with parameters ---- */

TORUS_OP(round_decimals, "round.decimals", TORUS_OP_POINTWISE) {
  hlo_t x = op_tensor(call, 0);
  if (!math_is_float(g, x)) {
    op_error(call, TORUS_STATUS_UNIMPLEMENTED, "round to decimals needs a floating point tensor");
    return;
  }
  torus_dtype_t dtype = hlo_dtype(g, x), wide = op_accumulate_type(dtype);
  int64_t decimals = op_int(call, 1);
  hlo_t scale = hlo_const(g, wide, pow(10.0, fabs((double)decimals)));
  x = hlo_convert(g, x, wide);
  hlo_t scaled = decimals < 0 ? hlo_divide(g, x, scale) : hlo_multiply(g, x, scale);
  hlo_t whole = hlo_round_nearest_even(g, scaled);
  hlo_t y = decimals < 0 ? hlo_multiply(g, whole, scale) : hlo_divide(g, whole, scale);
  op_return(call, 0, hlo_convert(g, y, dtype));
}

/* The replacement of argument i, or |otherwise|, as a soft number. */
static hlo_t replacement(torus_call_t *call, hlo_graph_t *g, int i, torus_dtype_t dtype,
                         double otherwise) {
  return hlo_soft(g, dtype, op_double_or(call, i, otherwise));
}

static hlo_t replace_non_finite(torus_call_t *call, hlo_graph_t *g, hlo_t x) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  double limit = math_finite_max(dtype);
  hlo_t y = hlo_select(g, hlo_is_nan(g, x), replacement(call, g, 1, dtype, 0), x);
  y = hlo_select(g, is_posinf(g, x), replacement(call, g, 2, dtype, limit), y);
  return hlo_select(g, is_neginf(g, x), replacement(call, g, 3, dtype, -limit), y);
}

TORUS_OP(nan_to_num, "nan_to_num", TORUS_OP_POINTWISE) {
  hlo_t x = op_tensor(call, 0);
  if (math_is_float(g, x)) x = replace_non_finite(call, g, x);
  if (math_is_complex(g, x)) {
    hlo_t real = replace_non_finite(call, g, hlo_real(g, x));
    x = hlo_complex(g, real, replace_non_finite(call, g, hlo_imag(g, x)));
  }
  op_return(call, 0, x);
}

TORUS_OP(logit, "logit", TORUS_OP_POINTWISE) {
  torus_dtype_t dtype = op_float_type(call, op_tensor_dtype(call, 0));
  torus_dtype_t wide = op_accumulate_type(dtype);
  hlo_t x = op_tensor_as(call, 0, wide), one = hlo_const(g, wide, 1);
  if (op_has(call, 1)) {
    double eps = op_double(call, 1);
    x = hlo_maximum(g, x, hlo_soft(g, wide, eps));
    x = hlo_minimum(g, x, hlo_soft(g, wide, 1.0 - eps));
  }
  hlo_t odds = hlo_divide(g, x, hlo_subtract(g, one, x));
  op_return(call, 0, hlo_convert(g, hlo_log(g, odds), dtype));
}

TORUS_OP(polygamma, "polygamma", TORUS_OP_POINTWISE) {
  int64_t order = op_int(call, 0);
  torus_dtype_t dtype = op_float_type(call, op_tensor_dtype(call, 1));
  torus_dtype_t wide = op_accumulate_type(dtype);
  hlo_t x = op_tensor_as(call, 1, wide);
  if (order < 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "polygamma(n, x) does not support negative n.");
    return;
  }
  op_return(call, 0, hlo_convert(g, math_polygamma(g, order, x), dtype));
}

/* ---- frexp ---- */

typedef struct float_layout {
  torus_dtype_t bits; /* integer type of the same size */
  int mantissa;       /* bits of the mantissa */
  int64_t exponent;   /* all ones in the exponent's field */
} float_layout_t;

static float_layout_t layout_of(torus_dtype_t dtype) {
  if (dtype == TORUS_DTYPE_F64) return (float_layout_t){TORUS_DTYPE_I64, 52, 0x7ff};
  return (float_layout_t){TORUS_DTYPE_I32, 23, 0xff};
}

/* Splits normal numbers into a mantissa in [0.5, 1) and an I32 exponent by their bits. */
static void split_normal(hlo_graph_t *g, hlo_t x, hlo_t *out_mantissa, hlo_t *out_exponent) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  float_layout_t layout = layout_of(dtype);
  int64_t bias = layout.exponent / 2, field = layout.exponent << layout.mantissa;
  hlo_t bits = hlo_bitcast(g, x, layout.bits);
  hlo_t width = hlo_const_int(g, layout.bits, layout.mantissa);
  hlo_t raw = hlo_shift_right_logical(g, bits, width);
  raw = hlo_and(g, raw, hlo_const_int(g, layout.bits, layout.exponent));
  hlo_t power = hlo_subtract(g, raw, hlo_const_int(g, layout.bits, bias - 1));
  bits = hlo_and(g, bits, hlo_const_int(g, layout.bits, ~field));
  bits = hlo_or(g, bits, hlo_const_int(g, layout.bits, (bias - 1) << layout.mantissa));
  *out_mantissa = hlo_bitcast(g, bits, dtype);
  *out_exponent = hlo_convert(g, power, TORUS_DTYPE_I32);
}

TORUS_OP(frexp, "frexp.Tensor", TORUS_OP_POINTWISE) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0), wide = op_accumulate_type(dtype);
  if (!torus_dtype_is_float(dtype)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "torch.frexp() only supports floating-point dtypes");
    return;
  }
  hlo_t x = op_tensor_as(call, 0, wide), mantissa, exponent;
  split_normal(g, x, &mantissa, &exponent);
  hlo_t plain = hlo_and(g, hlo_is_finite(g, x), hlo_compare_f(g, HLO_NE, x, 0));
  mantissa = hlo_select(g, plain, mantissa, x);
  op_return(call, 0, hlo_convert(g, mantissa, dtype));
  op_return(call, 1, hlo_select(g, plain, exponent, hlo_const_int(g, TORUS_DTYPE_I32, 0)));
}
