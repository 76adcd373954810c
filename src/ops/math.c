/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
#include "ops/math.h"

#include <float.h>
#include <math.h>

/* ---- types ---- */

bool math_is_float(const hlo_graph_t *g, hlo_t x) {
  return torus_dtype_is_float(hlo_dtype(g, x));
}

bool math_is_complex(const hlo_graph_t *g, hlo_t x) {
  return torus_dtype_is_complex(hlo_dtype(g, x));
}

bool math_is_bool(const hlo_graph_t *g, hlo_t x) {
  return hlo_dtype(g, x) == TORUS_DTYPE_BOOL;
}

bool math_is_int(const hlo_graph_t *g, hlo_t x) {
  return torus_dtype_is_integral(hlo_dtype(g, x)) && !math_is_bool(g, x);
}

bool math_is_unsigned(const hlo_graph_t *g, hlo_t x) {
  return torus_dtype_kind(hlo_dtype(g, x)) == TORUS_KIND_UINT;
}

double math_finite_max(torus_dtype_t dtype) {
  switch (dtype) {
  case TORUS_DTYPE_F16: return 65504.0;
  case TORUS_DTYPE_BF16: return 0x1.fep127;
  case TORUS_DTYPE_F64: return DBL_MAX;
  default: return (double)FLT_MAX;
  }
}

hlo_t math_unary(hlo_graph_t *g, math_unary_fn fn, hlo_t x) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  torus_dtype_t wide = op_accumulate_type(dtype);
  hlo_t y = fn(g, hlo_convert(g, x, wide));
  return hlo_dtype(g, y) == wide ? hlo_convert(g, y, dtype) : y;
}

void math_broadcast(hlo_graph_t *g, hlo_t *xs, int count) {
  int64_t dims[TORUS_MAX_RANK];
  int rank = 0;
  for (int i = 0; i < count && rank >= 0; i++) {
    int64_t own[TORUS_MAX_RANK], both[TORUS_MAX_RANK];
    int own_rank = hlo_shape(g, xs[i], own);
    rank = hlo_broadcast_shape(g, rank, dims, own_rank, own, both);
    for (int d = 0; d < rank; d++)
      dims[d] = both[d];
  }
  for (int i = 0; i < count && rank >= 0; i++) {
    if (hlo_rank(g, xs[i]) > 0) xs[i] = hlo_expand(g, xs[i], rank, dims);
  }
}

hlo_t math_sum(hlo_graph_t *g, hlo_t x) {
  return hlo_reduce_all(g, HLO_REDUCE_ADD, x);
}

hlo_t math_size(hlo_graph_t *g, torus_dtype_t dtype, int64_t size) {
  return torus_dtype_is_integral(dtype) ? hlo_soft_int(g, dtype, size)
                                        : hlo_soft(g, dtype, (double)size);
}

hlo_t math_mean(hlo_graph_t *g, hlo_t x) {
  return hlo_divide(g, math_sum(g, x), math_size(g, hlo_dtype(g, x), hlo_numel(g, x)));
}

/* ---- one operand ---- */

hlo_t math_abs(hlo_graph_t *g, hlo_t x) {
  return math_is_unsigned(g, x) ? x : hlo_abs(g, x);
}

/* Rounding an integer is a copy; |fn| refuses bool. */
static hlo_t round_with(hlo_graph_t *g, math_unary_fn fn, hlo_t x) {
  return math_is_int(g, x) ? x : fn(g, x);
}

hlo_t math_ceil(hlo_graph_t *g, hlo_t x) {
  return round_with(g, hlo_ceil, x);
}

hlo_t math_floor(hlo_graph_t *g, hlo_t x) {
  return round_with(g, hlo_floor, x);
}

hlo_t math_round(hlo_graph_t *g, hlo_t x) {
  return round_with(g, hlo_round_nearest_even, x);
}

/* floor |x| with the sign of x, so that -0.5 gives -0. */
static hlo_t trunc_float(hlo_graph_t *g, hlo_t x) {
  return math_copysign(g, hlo_floor(g, hlo_abs(g, x)), x);
}

hlo_t math_trunc(hlo_graph_t *g, hlo_t x) {
  return round_with(g, trunc_float, x);
}

hlo_t math_frac(hlo_graph_t *g, hlo_t x) {
  return hlo_subtract(g, x, trunc_float(g, x));
}

hlo_t math_sign(hlo_graph_t *g, hlo_t x) {
  if (math_is_bool(g, x)) return x;
  if (math_is_complex(g, x)) {
    return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "sign is not defined for complex numbers");
  }
  if (math_is_unsigned(g, x)) {
    return hlo_convert(g, hlo_compare_f(g, HLO_NE, x, 0), hlo_dtype(g, x));
  }
  if (!math_is_float(g, x)) return hlo_sign(g, x);
  /* stablehlo.sign keeps NaN and -0; PyTorch's (0 < x) - (x < 0) gives +0 for both. */
  hlo_t above = hlo_convert(g, hlo_compare_f(g, HLO_GT, x, 0), hlo_dtype(g, x));
  hlo_t below = hlo_convert(g, hlo_compare_f(g, HLO_LT, x, 0), hlo_dtype(g, x));
  return hlo_subtract(g, above, below);
}

hlo_t math_sgn(hlo_graph_t *g, hlo_t x) {
  return math_is_complex(g, x) ? hlo_sign(g, x) : math_sign(g, x);
}

hlo_t math_signbit(hlo_graph_t *g, hlo_t x) {
  static const torus_dtype_t ints[9] = {
      [1] = TORUS_DTYPE_I8, [2] = TORUS_DTYPE_I16, [4] = TORUS_DTYPE_I32, [8] = TORUS_DTYPE_I64};
  torus_dtype_t dtype = hlo_dtype(g, x);
  if (torus_dtype_is_complex(dtype)) {
    return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "signbit is not defined for complex numbers");
  }
  if (torus_dtype_is_float(dtype)) x = hlo_bitcast(g, x, ints[torus_dtype_bytes(dtype)]);
  if (dtype == TORUS_DTYPE_BOOL) return hlo_full_like(g, x, TORUS_DTYPE_BOOL, 0);
  return hlo_compare_f(g, HLO_LT, x, 0);
}

hlo_t math_angle(hlo_graph_t *g, hlo_t x) {
  if (math_is_complex(g, x)) return hlo_atan2(g, hlo_imag(g, x), hlo_real(g, x));
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t negative = hlo_compare_f(g, HLO_LT, x, 0);
  hlo_t angle = hlo_select(g, negative, hlo_const(g, dtype, M_PI), hlo_const(g, dtype, 0));
  return hlo_select(g, hlo_is_nan(g, x), x, angle);
}

hlo_t math_digamma(hlo_graph_t *g, hlo_t x) {
  /* The pole at 0 has a sign in PyTorch: digamma(+0) = -inf, digamma(-0) = +inf. */
  hlo_t pole = hlo_divide(g, hlo_const(g, hlo_dtype(g, x), -1), x);
  return hlo_select(g, hlo_compare_f(g, HLO_EQ, x, 0), pole, hlo_digamma(g, x));
}

hlo_t math_entr(hlo_graph_t *g, hlo_t x) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t y = hlo_negate(g, hlo_multiply(g, x, hlo_log(g, x)));
  y = hlo_select(g, hlo_compare_f(g, HLO_EQ, x, 0), hlo_const(g, dtype, 0), y);
  hlo_t below = hlo_compare_f(g, HLO_LT, x, 0);
  return hlo_select(g, below, hlo_lowest(g, dtype), y);
}

hlo_t math_exp2(hlo_graph_t *g, hlo_t x) {
  if (math_is_complex(g, x)) return hlo_exp(g, hlo_multiply_f(g, x, M_LN2));
  return hlo_power(g, hlo_full_like(g, x, TORUS_DTYPE_INVALID, 2), x);
}

hlo_t math_log2(hlo_graph_t *g, hlo_t x) {
  return hlo_divide(g, hlo_log(g, x), hlo_const(g, hlo_dtype(g, x), M_LN2));
}

hlo_t math_log10(hlo_graph_t *g, hlo_t x) {
  return hlo_divide(g, hlo_log(g, x), hlo_const(g, hlo_dtype(g, x), M_LN10));
}

hlo_t math_reciprocal(hlo_graph_t *g, hlo_t x) {
  return hlo_divide(g, hlo_const(g, hlo_dtype(g, x), 1), x);
}

hlo_t math_relu(hlo_graph_t *g, hlo_t x) {
  return hlo_maximum(g, x, hlo_const(g, hlo_dtype(g, x), 0));
}

hlo_t math_sigmoid(hlo_graph_t *g, hlo_t x) {
  if (!math_is_complex(g, x)) return hlo_logistic(g, x);
  return math_reciprocal(g, hlo_add_f(g, hlo_exp(g, hlo_negate(g, x)), 1));
}

hlo_t math_sinc(hlo_graph_t *g, hlo_t x) {
  hlo_t arc = hlo_multiply_f(g, x, M_PI);
  hlo_t y = hlo_divide(g, hlo_sine(g, arc), arc);
  return hlo_select(g, hlo_compare_f(g, HLO_EQ, x, 0), hlo_const(g, hlo_dtype(g, x), 1), y);
}

hlo_t math_square(hlo_graph_t *g, hlo_t x) {
  return hlo_multiply(g, x, x);
}

/* ---- two operands ---- */

hlo_t math_copysign(hlo_graph_t *g, hlo_t x, hlo_t y) {
  hlo_t magnitude = hlo_abs(g, x);
  return hlo_select(g, math_signbit(g, y), hlo_negate(g, magnitude), magnitude);
}

/* True where x and y have different signs. */
static hlo_t signs_differ(hlo_graph_t *g, hlo_t x, hlo_t y) {
  hlo_t a = hlo_compare_f(g, HLO_LT, x, 0), b = hlo_compare_f(g, HLO_LT, y, 0);
  hlo_t pair[2] = {a, b};
  math_broadcast(g, pair, 2);
  return hlo_xor(g, pair[0], pair[1]);
}

/* True where the truncated division with remainder |rest| has to step down by one to be floored. */
static hlo_t needs_step(hlo_graph_t *g, hlo_t rest, hlo_t divisor) {
  return hlo_and(g, hlo_compare_f(g, HLO_NE, rest, 0), signs_differ(g, rest, divisor));
}

hlo_t math_remainder(hlo_graph_t *g, hlo_t x, hlo_t y) {
  hlo_t rest = hlo_remainder(g, x, y);
  if (math_is_unsigned(g, rest)) return rest;
  return hlo_select(g, needs_step(g, rest, y), hlo_add(g, rest, y), rest);
}

/* Python's floor division of floats: exact where a plain floor(x / y) would be off by rounding. */
static hlo_t div_floor_float(hlo_graph_t *g, hlo_t x, hlo_t y) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t rest = hlo_remainder(g, x, y), plain = hlo_divide(g, x, y);
  hlo_t quotient = hlo_divide(g, hlo_subtract(g, x, rest), y);
  quotient = hlo_select(g, needs_step(g, rest, y), hlo_add_f(g, quotient, -1), quotient);
  hlo_t whole = hlo_floor(g, quotient);
  hlo_t gap = hlo_subtract(g, quotient, whole);
  whole = hlo_select(g, hlo_compare_f(g, HLO_GT, gap, 0.5), hlo_add_f(g, whole, 1), whole);
  hlo_t zero = math_copysign(g, hlo_const(g, dtype, 0), plain);
  whole = hlo_select(g, hlo_compare_f(g, HLO_EQ, quotient, 0), zero, whole);
  return hlo_select(g, hlo_compare_f(g, HLO_EQ, y, 0), plain, whole);
}

hlo_t math_div_floor(hlo_graph_t *g, hlo_t x, hlo_t y) {
  if (math_is_float(g, x)) return div_floor_float(g, x, y);
  hlo_t quotient = hlo_divide(g, x, y);
  if (math_is_unsigned(g, x)) return quotient;
  hlo_t step = needs_step(g, hlo_remainder(g, x, y), y);
  return hlo_select(g, step, hlo_add_f(g, quotient, -1), quotient);
}

static hlo_t skip_nan(hlo_graph_t *g, math_binary_fn fn, hlo_t x, hlo_t y) {
  hlo_t both = fn(g, x, y);
  if (!math_is_float(g, x)) return both;
  hlo_t without_x = hlo_select(g, hlo_is_nan(g, x), y, both);
  return hlo_select(g, hlo_is_nan(g, y), x, without_x);
}

hlo_t math_fmax(hlo_graph_t *g, hlo_t x, hlo_t y) {
  return skip_nan(g, hlo_maximum, x, y);
}

hlo_t math_fmin(hlo_graph_t *g, hlo_t x, hlo_t y) {
  return skip_nan(g, hlo_minimum, x, y);
}

static hlo_t gcd_condition(hlo_graph_t *g, const hlo_t *state,
                           void *context __attribute__((unused))) {
  return hlo_reduce_all(g, HLO_REDUCE_OR, hlo_compare_f(g, HLO_NE, state[1], 0));
}

static void gcd_body(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state,
                     void *context __attribute__((unused))) {
  hlo_t done = hlo_compare_f(g, HLO_EQ, state[1], 0);
  hlo_t divisor = hlo_select(g, done, hlo_const_int(g, hlo_dtype(g, state[1]), 1), state[1]);
  out_state[0] = hlo_select(g, done, state[0], state[1]);
  out_state[1] = hlo_select(g, done, state[1], hlo_remainder(g, state[0], divisor));
}

/* Euclid on all elements at once, until the last one is done. */
hlo_t math_gcd(hlo_graph_t *g, hlo_t x, hlo_t y) {
  hlo_t pair[2] = {math_abs(g, x), math_abs(g, y)}, results[2] = {HLO_NONE, HLO_NONE};
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, hlo_rank(g, x) > 0 ? x : y, dims);
  for (int i = 0; i < 2; i++) {
    if (hlo_rank(g, pair[i]) == 0 && rank > 0) pair[i] = hlo_splat(g, pair[i], rank, dims);
  }
  hlo_while(g, pair, 2, gcd_condition, gcd_body, NULL, results);
  return results[0];
}

hlo_t math_lcm(hlo_graph_t *g, hlo_t x, hlo_t y) {
  hlo_t divisor = math_gcd(g, x, y);
  hlo_t none = hlo_compare_f(g, HLO_EQ, divisor, 0);
  hlo_t safe = hlo_select(g, none, hlo_const_int(g, hlo_dtype(g, x), 1), divisor);
  return math_abs(g, hlo_multiply(g, hlo_divide(g, x, safe), y));
}

hlo_t math_heaviside(hlo_graph_t *g, hlo_t x, hlo_t y) {
  hlo_t step = hlo_convert(g, hlo_compare_f(g, HLO_GT, x, 0), hlo_dtype(g, x));
  return hlo_select(g, hlo_compare_f(g, HLO_EQ, x, 0), y, step);
}

/* Scaled by the larger side, so that squares neither overflow nor vanish. */
hlo_t math_hypot(hlo_graph_t *g, hlo_t x, hlo_t y) {
  hlo_t a = hlo_abs(g, x), b = hlo_abs(g, y);
  hlo_t large = hlo_maximum(g, a, b), small = hlo_minimum(g, a, b);
  hlo_t ratio = hlo_divide(g, small, large);
  hlo_t y1 = hlo_multiply(g, large, hlo_sqrt(g, hlo_add_f(g, math_square(g, ratio), 1)));
  hlo_t flat = hlo_compare(g, HLO_EQ, large, small); /* 0/0 and inf/inf stay out of the formula */
  hlo_t result = hlo_select(g, flat, hlo_multiply_f(g, large, M_SQRT2), y1);
  hlo_t endless = hlo_compare(g, HLO_EQ, math_fmax(g, a, b), hlo_highest(g, hlo_dtype(g, a)));
  return hlo_select(g, endless, hlo_highest(g, hlo_dtype(g, a)), result);
}

/* max + log(1 + base^-|x - y|) with the two infinities of one sign kept out of the difference. */
static hlo_t log_add(hlo_graph_t *g, hlo_t x, hlo_t y, double base_log) {
  hlo_t large = hlo_maximum(g, x, y);
  hlo_t gap = hlo_negate(g, hlo_abs(g, hlo_subtract(g, x, y)));
  hlo_t tail = hlo_log1p(g, hlo_exp(g, hlo_multiply_f(g, gap, base_log)));
  hlo_t sum = hlo_add(g, large, hlo_multiply_f(g, tail, 1.0 / base_log));
  hlo_t same = hlo_compare(g, HLO_EQ, x, y);
  hlo_t endless = hlo_compare(g, HLO_EQ, hlo_abs(g, large), hlo_highest(g, hlo_dtype(g, large)));
  return hlo_select(g, hlo_and(g, same, endless), large, sum);
}

/* Complex numbers are ordered by their real parts. */
static hlo_t log_add_complex(hlo_graph_t *g, hlo_t x, hlo_t y) {
  hlo_t first = hlo_compare(g, HLO_GE, hlo_real(g, x), hlo_real(g, y));
  hlo_t large = hlo_select(g, first, x, y), small = hlo_select(g, first, y, x);
  hlo_t sum = hlo_add(g, large, hlo_log1p(g, hlo_exp(g, hlo_subtract(g, small, large))));
  hlo_t nothing =
      hlo_compare(g, HLO_EQ, hlo_real(g, large), hlo_lowest(g, hlo_dtype(g, hlo_real(g, x))));
  return hlo_select(g, nothing, large, sum);
}

hlo_t math_logaddexp(hlo_graph_t *g, hlo_t x, hlo_t y) {
  return math_is_complex(g, x) ? log_add_complex(g, x, y) : log_add(g, x, y, 1.0);
}

hlo_t math_logaddexp2(hlo_graph_t *g, hlo_t x, hlo_t y) {
  return log_add(g, x, y, M_LN2);
}

hlo_t math_shift_right(hlo_graph_t *g, hlo_t x, hlo_t y) {
  return math_is_unsigned(g, x) ? hlo_shift_right_logical(g, x, y)
                                : hlo_shift_right_arithmetic(g, x, y);
}

/* x * fn(y), 0 where x is 0 unless y is NaN. */
static hlo_t times_log(hlo_graph_t *g, math_unary_fn fn, hlo_t x, hlo_t y) {
  hlo_t product = hlo_multiply(g, x, fn(g, y));
  hlo_t zero = hlo_const(g, hlo_dtype(g, x), 0);
  product = hlo_select(g, hlo_compare_f(g, HLO_EQ, x, 0), zero, product);
  return hlo_select(g, hlo_is_nan(g, y), y, product);
}

hlo_t math_xlogy(hlo_graph_t *g, hlo_t x, hlo_t y) {
  return times_log(g, hlo_log, x, y);
}

hlo_t math_xlog1py(hlo_graph_t *g, hlo_t x, hlo_t y) {
  return times_log(g, hlo_log1p, x, y);
}

/* ---- more ---- */

hlo_t math_power_number(hlo_graph_t *g, hlo_t x, double exponent, hlo_t soft) {
  if (exponent == 0.0) return hlo_full_like(g, x, TORUS_DTYPE_INVALID, 1);
  if (exponent == 1.0) return x;
  if (exponent == 2.0) return math_square(g, x);
  if (exponent == 3.0) return hlo_multiply(g, math_square(g, x), x);
  if (torus_dtype_is_integral(hlo_dtype(g, x))) return hlo_power(g, x, soft);
  if (exponent == 0.5) return hlo_sqrt(g, x);
  if (exponent == -0.5) return hlo_rsqrt(g, x);
  if (exponent == -1.0) return math_reciprocal(g, x);
  if (exponent == -2.0) return math_reciprocal(g, math_square(g, x));
  return hlo_power(g, x, soft);
}

hlo_t math_lerp(hlo_graph_t *g, hlo_t start, hlo_t end, hlo_t weight) {
  hlo_t span = hlo_subtract(g, end, start);
  hlo_t from_start = hlo_add(g, start, hlo_multiply(g, weight, span));
  hlo_t rest = hlo_subtract(g, hlo_const(g, hlo_dtype(g, weight), 1), weight);
  hlo_t from_end = hlo_subtract(g, end, hlo_multiply(g, span, rest));
  hlo_t near_start = hlo_compare_f(g, HLO_LT, hlo_abs(g, weight), 0.5);
  return hlo_select(g, near_start, from_start, from_end);
}
