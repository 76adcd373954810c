/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Regularised incomplete gamma functions, after S. L. Moshier's Cephes Mathematical Library
 * (igam.c): the power series where x is small against a, the continued fraction elsewhere.
 *
 * They are computed in double precision for every type: the common factor x^a e^-x / Gamma(a) is
 * the exponential of a small difference of large numbers. */
#include <float.h>
#include <math.h>

#include "ops/math.h"

static hlo_t constant(hlo_graph_t *g, double value) {
  return hlo_const(g, TORUS_DTYPE_F64, value);
}

static hlo_t like(hlo_graph_t *g, hlo_t x, double value) {
  return hlo_full_like(g, x, TORUS_DTYPE_INVALID, value);
}

/* x^a e^-x / Gamma(a). */
static hlo_t common_factor(hlo_graph_t *g, hlo_t a, hlo_t x) {
  hlo_t power = hlo_subtract(g, hlo_multiply(g, a, hlo_log(g, x)), x);
  return hlo_exp(g, hlo_subtract(g, power, hlo_lgamma(g, a)));
}

/* ---- loops ---- */

enum { MOST_STEPS = 2000 };

/* State 0 is the number of steps made, state 1 the BOOL array of elements that go on. */
static hlo_t goes_on(hlo_graph_t *g, const hlo_t *state, void *context __attribute__((unused))) {
  hlo_t any = hlo_reduce_all(g, HLO_REDUCE_OR, state[1]);
  return hlo_and(g, any, hlo_compare_f(g, HLO_LT, state[0], MOST_STEPS));
}

/* True where |change| still shows in |sum|. */
static hlo_t shows(hlo_graph_t *g, hlo_t change, hlo_t sum) {
  hlo_t limit = hlo_multiply_f(g, hlo_abs(g, sum), DBL_EPSILON / 2);
  return hlo_compare(g, HLO_GT, hlo_abs(g, change), limit);
}

enum { SERIES_X = 2, SERIES_R, SERIES_TERM, SERIES_SUM, SERIES_STATE };

static void series_step(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state,
                        void *context __attribute__((unused))) {
  hlo_t r = hlo_add_f(g, state[SERIES_R], 1);
  hlo_t term = hlo_multiply(g, state[SERIES_TERM], hlo_divide(g, state[SERIES_X], r));
  hlo_t sum = hlo_add(g, state[SERIES_SUM], term);
  out_state[0] = hlo_add_f(g, state[0], 1);
  out_state[1] = hlo_and(g, state[1], shows(g, term, sum));
  out_state[SERIES_X] = state[SERIES_X];
  out_state[SERIES_R] = r;
  out_state[SERIES_TERM] = term;
  out_state[SERIES_SUM] = hlo_select(g, state[1], sum, state[SERIES_SUM]);
}

/* The lower function P(a, x) where |used|. */
static hlo_t by_series(hlo_graph_t *g, hlo_t a, hlo_t x, hlo_t used) {
  hlo_t initial[SERIES_STATE] = {constant(g, 0), used, x, a, like(g, x, 1), like(g, x, 1)};
  hlo_t results[SERIES_STATE];
  hlo_while(g, initial, SERIES_STATE, goes_on, series_step, NULL, results);
  return hlo_divide(g, hlo_multiply(g, results[SERIES_SUM], common_factor(g, a, x)), a);
}

/* Numerators and denominators of two successive convergents, the value of the last. */
enum { PART_C = 2, PART_Y, PART_Z, PART_P1, PART_P2, PART_Q1, PART_Q2, PART_VALUE, PART_STATE };

/* Keeps numerators and denominators from overflowing: only their ratio counts. */
static void rescale(hlo_graph_t *g, hlo_t *state) {
  hlo_t big = hlo_compare_f(g, HLO_GT, hlo_abs(g, state[PART_P1]), 0x1p52);
  for (int i = PART_P1; i <= PART_Q2; i++) {
    state[i] = hlo_select(g, big, hlo_multiply_f(g, state[i], 0x1p-52), state[i]);
  }
}

static void fraction_step(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state,
                          void *context __attribute__((unused))) {
  hlo_t c = hlo_add_f(g, state[PART_C], 1), y = hlo_add_f(g, state[PART_Y], 1);
  hlo_t z = hlo_add_f(g, state[PART_Z], 2), yc = hlo_multiply(g, y, c);
  hlo_t p =
      hlo_subtract(g, hlo_multiply(g, state[PART_P1], z), hlo_multiply(g, state[PART_P2], yc));
  hlo_t q =
      hlo_subtract(g, hlo_multiply(g, state[PART_Q1], z), hlo_multiply(g, state[PART_Q2], yc));
  hlo_t usable = hlo_compare_f(g, HLO_NE, q, 0);
  hlo_t value = hlo_select(g, usable, hlo_divide(g, p, q), state[PART_VALUE]);
  hlo_t moves = shows(g, hlo_subtract(g, value, state[PART_VALUE]), value);
  out_state[0] = hlo_add_f(g, state[0], 1);
  out_state[1] = hlo_and(g, state[1], hlo_or(g, hlo_not(g, usable), moves));
  out_state[PART_C] = c;
  out_state[PART_Y] = y;
  out_state[PART_Z] = z;
  out_state[PART_P2] = state[PART_P1];
  out_state[PART_P1] = p;
  out_state[PART_Q2] = state[PART_Q1];
  out_state[PART_Q1] = q;
  out_state[PART_VALUE] = hlo_select(g, state[1], value, state[PART_VALUE]);
  rescale(g, out_state);
}

/* The upper function Q(a, x) where |used|. */
static hlo_t by_fraction(hlo_graph_t *g, hlo_t a, hlo_t x, hlo_t used) {
  hlo_t y = hlo_subtract(g, constant(g, 1), a), z = hlo_add_f(g, hlo_add(g, x, y), 1);
  hlo_t p1 = hlo_add_f(g, x, 1), q1 = hlo_multiply(g, z, x);
  hlo_t initial[PART_STATE] = {
      constant(g, 0), used, like(g, x, 0), y, z, p1, like(g, x, 1), q1, x, hlo_divide(g, p1, q1)};
  hlo_t results[PART_STATE];
  hlo_while(g, initial, PART_STATE, goes_on, fraction_step, NULL, results);
  return hlo_multiply(g, results[PART_VALUE], common_factor(g, a, x));
}

/* ---- operators ---- */

static hlo_t choose(hlo_graph_t *g, hlo_t condition, double value, hlo_t otherwise) {
  return hlo_select(g, condition, constant(g, value), otherwise);
}

static hlo_t incomplete_gamma(hlo_graph_t *g, hlo_t a, hlo_t x, bool is_upper) {
  hlo_t small = hlo_or(g, hlo_compare_f(g, HLO_LE, x, 1), hlo_compare(g, HLO_LT, x, a));
  hlo_t lower = by_series(g, a, x, small), upper = by_fraction(g, a, x, hlo_not(g, small));
  hlo_t one = constant(g, 1);
  hlo_t y = is_upper ? hlo_select(g, small, hlo_subtract(g, one, lower), upper)
                     : hlo_select(g, small, lower, hlo_subtract(g, one, upper));
  hlo_t x_endless = hlo_compare_f(g, HLO_EQ, x, INFINITY);
  hlo_t a_endless = hlo_compare_f(g, HLO_EQ, a, INFINITY);
  y = choose(g, x_endless, is_upper ? 0 : 1, y);
  y = choose(g, a_endless, is_upper ? 1 : 0, y);
  y = choose(g, hlo_and(g, x_endless, a_endless), (double)NAN, y);
  hlo_t x_zero = hlo_compare_f(g, HLO_EQ, x, 0), a_zero = hlo_compare_f(g, HLO_EQ, a, 0);
  y = choose(g, x_zero, is_upper ? 1 : 0, y);
  y = choose(g, a_zero, is_upper ? 0 : 1, y);
  hlo_t wrong = hlo_or(g, hlo_compare_f(g, HLO_LT, x, 0), hlo_compare_f(g, HLO_LT, a, 0));
  wrong = hlo_or(g, wrong, hlo_and(g, x_zero, a_zero));
  wrong = hlo_or(g, wrong, hlo_or(g, hlo_is_nan(g, x), hlo_is_nan(g, a)));
  return choose(g, wrong, (double)NAN, y);
}

static void return_gamma(torus_call_t *call, hlo_graph_t *g, bool is_upper) {
  torus_dtype_t dtype = op_result_type(call, (const int[]){0, 1}, 2);
  if (op_failed(call)) return;
  if (!torus_dtype_is_float(dtype)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "igamma of %s", torus_dtype_name(dtype));
    return;
  }
  hlo_t a, x;
  int64_t dims[TORUS_MAX_RANK];
  op_binary_operands(call, 0, 1, TORUS_DTYPE_F64, &a, &x);
  int rank = hlo_shape(g, hlo_rank(g, a) > 0 ? a : x, dims);
  a = hlo_rank(g, a) < rank ? hlo_splat(g, a, rank, dims) : a;
  x = hlo_rank(g, x) < rank ? hlo_splat(g, x, rank, dims) : x;
  op_return(call, 0, hlo_convert(g, incomplete_gamma(g, a, x, is_upper), dtype));
}

TORUS_OP(igamma, "igamma", TORUS_OP_POINTWISE) {
  return_gamma(call, g, false);
}
TORUS_OP(igammac, "igammac", TORUS_OP_POINTWISE) {
  return_gamma(call, g, true);
}
