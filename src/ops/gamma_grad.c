/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The derivative of a gamma-distributed number by its shape parameter, the number's place in the
 * distribution held fixed: -(dP/da) / (dP/dx), P the regularised lower incomplete gamma function
 * (Figurnov, Mohamed, Mnih, "Implicit reparameterization gradients", NeurIPS 2018). */
#include <float.h>

#include "ops/math.h"

/* Parameters above this take an expansion instead of a series, whose length grows with x. */
static const double kLargest = 8;
enum { MOST_TERMS = 400 };

/* The derivative is -x sum t(n) (log x - digamma(a + n + 1)) with t(0) = 1 / a and
 * t(n) = t(n - 1) x / (a + n); digamma(a + n + 1) = digamma(a + n) + 1 / (a + n). In double
 * precision: the terms cancel in the upper tail. */
enum { N, OPEN, A, X, TERM, SLOPE, SUM, STATE_COUNT };

static hlo_t goes_on(hlo_graph_t *g, const hlo_t *state, void *context __attribute__((unused))) {
  hlo_t any = hlo_reduce_all(g, HLO_REDUCE_OR, state[OPEN]);
  return hlo_and(g, any, hlo_compare_f(g, HLO_LT, state[N], MOST_TERMS));
}

/* SLOPE is log x - digamma(a + n), A is a + n. */
static void series_step(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state,
                        void *context __attribute__((unused))) {
  hlo_t slope = hlo_subtract(g, state[SLOPE], math_reciprocal(g, state[A]));
  hlo_t part = hlo_multiply(g, state[TERM], slope);
  hlo_t limit = hlo_multiply_f(g, hlo_abs(g, state[SUM]), DBL_EPSILON);
  hlo_t shows = hlo_or(g, hlo_compare(g, HLO_GT, hlo_abs(g, part), limit),
                       hlo_compare(g, HLO_LT, state[A], state[X]));
  out_state[N] = hlo_add_f(g, state[N], 1);
  out_state[OPEN] = hlo_and(g, state[OPEN], shows);
  out_state[A] = hlo_add_f(g, state[A], 1);
  out_state[X] = state[X];
  out_state[TERM] = hlo_divide(g, hlo_multiply(g, state[TERM], state[X]), out_state[A]);
  out_state[SLOPE] = slope;
  out_state[SUM] = hlo_add(g, state[SUM], part);
}

static hlo_t by_series(hlo_graph_t *g, hlo_t a, hlo_t x, hlo_t used) {
  hlo_t slope = hlo_subtract(g, hlo_log(g, x), math_digamma(g, a)), results[STATE_COUNT];
  hlo_t zero = hlo_full_like(g, x, TORUS_DTYPE_INVALID, 0);
  const hlo_t state[STATE_COUNT] = {
      hlo_const(g, TORUS_DTYPE_F64, 0), used, a, x, math_reciprocal(g, a), slope, zero};
  hlo_while(g, state, STATE_COUNT, goes_on, series_step, NULL, results);
  return hlo_negate(g, hlo_multiply(g, x, results[SUM]));
}

/* Rice's saddle point expansion, as PyTorch has it; near x = a, where it is 0 / 0, a polynomial. */
static hlo_t far_expansion(hlo_graph_t *g, hlo_t a, hlo_t x) {
  hlo_t scale = hlo_sqrt(g, hlo_multiply_f(g, a, 8)), gap = hlo_subtract(g, a, x);
  hlo_t ratio = hlo_log(g, hlo_divide(g, x, a));
  hlo_t depth = hlo_negate(g, hlo_add(g, gap, hlo_multiply(g, a, ratio)));
  hlo_t cube = hlo_divide(g, hlo_rsqrt(g, depth), depth);
  hlo_t below = hlo_compare(g, HLO_LT, x, a), term = hlo_divide(g, scale, gap);
  term = hlo_add(g, term, hlo_select(g, below, hlo_negate(g, cube), cube));
  hlo_t tail = hlo_sqrt(g, hlo_multiply_f(g, math_reciprocal(g, a), 2));
  tail = hlo_divide(g, hlo_multiply(g, tail, hlo_add(g, a, x)), math_square(g, gap));
  hlo_t value = hlo_subtract(g, hlo_multiply(g, ratio, term), tail);
  value = hlo_divide(g, hlo_multiply(g, x, value), scale);
  hlo_t small = math_reciprocal(g, hlo_multiply_f(g, a, 24));
  hlo_t stirling = hlo_multiply(g, hlo_multiply_f(g, small, 2), hlo_add_f(g, small, 1));
  return hlo_negate(g, hlo_multiply(g, hlo_add_f(g, stirling, 1), value));
}

static hlo_t near_expansion(hlo_graph_t *g, hlo_t a, hlo_t x) {
  hlo_t square = math_square(g, a);
  hlo_t first = hlo_add_f(g, hlo_multiply_f(g, a, 12), 1);
  first = hlo_add_f(g, hlo_multiply(g, hlo_multiply_f(g, a, 24), first), 1);
  hlo_t second = hlo_add_f(g, hlo_multiply_f(g, x, -120), 53);
  second = hlo_multiply(g, hlo_multiply_f(g, x, 6), second);
  second = hlo_add(g, second, hlo_multiply_f(g, square, 1440));
  hlo_t third = hlo_divide(g, hlo_multiply_f(g, math_square(g, x), 65), a);
  hlo_t fourth = hlo_multiply(g, a, hlo_add_f(g, hlo_multiply_f(g, x, 3600), 107));
  second = hlo_add(g, hlo_subtract(g, second, third), fourth);
  hlo_t below = hlo_multiply_f(g, math_square(g, square), 1244160);
  return hlo_divide(g, hlo_multiply(g, first, second), below);
}

static hlo_t by_expansion(hlo_graph_t *g, hlo_t a, hlo_t x) {
  hlo_t near = hlo_and(g, hlo_compare(g, HLO_LE, hlo_multiply_f(g, a, 0.9), x),
                       hlo_compare(g, HLO_LE, x, hlo_multiply_f(g, a, 1.1)));
  return hlo_select(g, near, near_expansion(g, a, x), far_expansion(g, a, x));
}

/* (self, output): the parameter, and the number drawn with it. */
TORUS_OP(standard_gamma_grad, "_standard_gamma_grad", 0) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  hlo_t a = op_tensor_as(call, 0, TORUS_DTYPE_F64), x = op_tensor_as(call, 1, TORUS_DTYPE_F64);
  if (op_failed(call) || hlo_graph_failed(g)) return;
  if (hlo_numel(g, a) == 0) {
    op_return(call, 0, hlo_convert(g, a, dtype));
    return;
  }
  hlo_t is_large = hlo_compare_f(g, HLO_GT, a, kLargest), one = hlo_const(g, TORUS_DTYPE_F64, 1);
  hlo_t small_a = hlo_select(g, is_large, one, a), small_x = hlo_select(g, is_large, one, x);
  hlo_t dx = by_series(g, small_a, small_x, hlo_not(g, is_large));
  dx = hlo_select(g, is_large, by_expansion(g, a, x), dx);
  dx = hlo_select(g, hlo_is_nan(g, dx), hlo_const(g, TORUS_DTYPE_F64, 0), dx);
  op_return(call, 0, hlo_convert(g, dx, dtype));
}
