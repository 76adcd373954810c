/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Special functions that StableHLO has no operation for. */
#include <math.h>

#include "ops/math.h"

static hlo_t constant(hlo_graph_t *g, hlo_t x, double value) {
  return hlo_const(g, hlo_dtype(g, x), value);
}

hlo_t math_polynomial(hlo_graph_t *g, hlo_t x, const double *coefficients, size_t count) {
  hlo_t y = hlo_full_like(g, x, TORUS_DTYPE_INVALID, coefficients[0]);
  for (size_t i = 1; i < count; i++)
    y = hlo_add_f(g, hlo_multiply(g, y, x), coefficients[i]);
  return y;
}

/* ---- zeta and polygamma ---- */

/* Terms with a negative base are added one by one until the base is positive. */
enum { ZETA_X, ZETA_BASE, ZETA_SUM, ZETA_STATE };
enum { ZETA_TERMS = 4096 }; /* further ones do not show for the powers that occur */

static hlo_t zeta_is_behind(hlo_graph_t *g, const hlo_t *state,
                            void *context __attribute__((unused))) {
  return hlo_reduce_all(g, HLO_REDUCE_OR, hlo_compare_f(g, HLO_LT, state[ZETA_BASE], 0));
}

static void zeta_add_term(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state,
                          void *context __attribute__((unused))) {
  hlo_t base = state[ZETA_BASE], behind = hlo_compare_f(g, HLO_LT, base, 0);
  hlo_t term = hlo_power(g, base, hlo_negate(g, state[ZETA_X]));
  out_state[ZETA_X] = state[ZETA_X];
  out_state[ZETA_BASE] = hlo_select(g, behind, hlo_add_f(g, base, 1), base);
  hlo_t sum = hlo_add(g, state[ZETA_SUM], term);
  out_state[ZETA_SUM] = hlo_select(g, behind, sum, state[ZETA_SUM]);
}

static hlo_t zeta_positive(hlo_graph_t *g, hlo_t x, hlo_t q) {
  hlo_t nearest = hlo_add_f(g, hlo_subtract(g, q, hlo_floor(g, q)), -ZETA_TERMS),
        results[ZETA_STATE];
  hlo_t far = hlo_compare_f(g, HLO_LT, q, -ZETA_TERMS);
  hlo_t initial[ZETA_STATE] = {[ZETA_X] = x,
                               [ZETA_BASE] = hlo_select(g, far, nearest, q),
                               [ZETA_SUM] = hlo_full_like(g, x, TORUS_DTYPE_INVALID, 0)};
  hlo_while(g, initial, ZETA_STATE, zeta_is_behind, zeta_add_term, NULL, results);
  return hlo_add(g, results[ZETA_SUM], hlo_zeta(g, x, results[ZETA_BASE]));
}

/* x and q of one shape. */
hlo_t math_zeta(hlo_graph_t *g, hlo_t x, hlo_t q) {
  hlo_t y = zeta_positive(g, x, q);
  hlo_t nan = constant(g, x, (double)NAN), endless = hlo_highest(g, hlo_dtype(g, x));
  hlo_t at_most_zero = hlo_compare_f(g, HLO_LE, q, 0);
  hlo_t q_whole = hlo_compare(g, HLO_EQ, q, hlo_floor(g, q));
  hlo_t x_broken = hlo_compare(g, HLO_NE, x, hlo_floor(g, x));
  y = hlo_select(g, hlo_and(g, at_most_zero, x_broken), nan, y);
  y = hlo_select(g, hlo_and(g, at_most_zero, q_whole), endless, y);
  y = hlo_select(g, hlo_compare_f(g, HLO_LT, x, 1), nan, y);
  return hlo_select(g, hlo_compare_f(g, HLO_EQ, x, 1), endless, y);
}

/* The derivative of digamma: reflected for x < 1/2, six steps of the recurrence, then the
 * asymptotic series. */
static hlo_t trigamma(hlo_graph_t *g, hlo_t x) {
  hlo_t left = hlo_compare_f(g, HLO_LT, x, 0.5), one = constant(g, x, 1);
  hlo_t sine = hlo_sine(g, hlo_multiply_f(g, x, M_PI));
  hlo_t mirror = hlo_divide(g, constant(g, x, M_PI * M_PI), math_square(g, sine));
  hlo_t at = hlo_select(g, left, hlo_subtract(g, one, x), x), sum = constant(g, x, 0);
  for (int i = 0; i < 6; i++) {
    sum = hlo_add(g, sum, hlo_divide(g, one, math_square(g, at)));
    at = hlo_add_f(g, at, 1);
  }
  static const double series[] = {1.0 / 42, -1.0 / 30, 1.0 / 6};
  hlo_t square = hlo_divide(g, one, math_square(g, at));
  hlo_t tail = hlo_multiply(g, square, math_polynomial(g, square, series, 3));
  tail = hlo_add(g, tail, hlo_divide(g, constant(g, x, 0.5), at));
  sum = hlo_add(g, sum, hlo_divide(g, hlo_add_f(g, tail, 1), at));
  return hlo_select(g, left, hlo_subtract(g, mirror, sum), sum);
}

hlo_t math_polygamma(hlo_graph_t *g, int64_t order, hlo_t x) {
  if (order == 0) return math_digamma(g, x);
  if (order == 1) return trigamma(g, x);
  hlo_t power = hlo_full_like(g, x, TORUS_DTYPE_INVALID, (double)order + 1);
  double factor = tgamma((double)order + 1) * (order % 2 == 1 ? 1 : -1);
  return hlo_multiply_f(g, math_zeta(g, power, x), factor);
}

/* ---- the error function's relatives ---- */

/* e^(x^2) erfc(x): directly up to 3, beyond by Laplace's continued fraction, of which 40 levels are
 * enough there; erfcx(-x) = 2 e^(x^2) - erfcx(x). */
hlo_t math_erfcx(hlo_graph_t *g, hlo_t x) {
  hlo_t size = hlo_abs(g, x), growth = hlo_exp(g, math_square(g, x)), fraction = size;
  for (int level = 40; level > 0; level--) {
    fraction = hlo_add(g, size, hlo_divide(g, constant(g, x, level / 2.0), fraction));
  }
  hlo_t far = hlo_divide(g, constant(g, x, M_2_SQRTPI / 2), fraction);
  hlo_t near = hlo_multiply(g, growth, hlo_erfc(g, size));
  hlo_t y = hlo_select(g, hlo_compare_f(g, HLO_LT, size, 3), near, far);
  hlo_t mirrored = hlo_subtract(g, hlo_multiply_f(g, growth, 2), y);
  return hlo_select(g, hlo_compare_f(g, HLO_LT, x, 0), mirrored, y);
}

/* Logarithm of the normal distribution function. */
hlo_t math_log_ndtr(hlo_graph_t *g, hlo_t x) {
  hlo_t t = hlo_multiply_f(g, x, M_SQRT1_2);
  hlo_t tail = hlo_log(g, hlo_multiply_f(g, math_erfcx(g, hlo_negate(g, t)), 0.5));
  hlo_t left = hlo_subtract(g, tail, math_square(g, t));
  hlo_t right = hlo_log1p(g, hlo_multiply_f(g, hlo_erfc(g, t), -0.5));
  return hlo_select(g, hlo_compare_f(g, HLO_LT, x, -1), left, right);
}

/* Inverse of the normal distribution function, after Cephes' ndtri.c: one rational approximation
 * around 1/2, two in sqrt(-2 log y) for the tails. */
static const double ndtri_p0[] = {-59.96335010141079, 98.00107541859997, -56.67628574690703,
                                  13.931260938727968, -1.2391658386738125};
static const double ndtri_q0[] = {1.0,
                                  1.9544885833814176,
                                  4.676279128988815,
                                  86.36024213908905,
                                  -225.46268785411937,
                                  200.26021238006066,
                                  -82.03722561683334,
                                  15.90562251262117,
                                  -1.1833162112133};
static const double ndtri_p1[] = {
    4.0554489230596245,  31.525109459989388,   57.16281922464213,
    44.08050738932008,   14.684956192885803,   2.1866330685079025,
    -0.1402560791713545, -0.03504246268278482, -0.0008574567851546854};
static const double ndtri_q1[] = {1.0,
                                  15.779988325646675,
                                  45.39076351288792,
                                  41.3172038254672,
                                  15.04253856929075,
                                  2.504649462083094,
                                  -0.14218292285478779,
                                  -0.03808064076915783,
                                  -0.0009332594808954574};
static const double ndtri_p2[] = {
    3.2377489177694603,     6.915228890689842,      3.9388102529247444,
    1.3330346081580755,     0.20148538954917908,    0.012371663481782003,
    0.00030158155350823543, 2.6580697468673755e-06, 6.239745391849833e-09};
static const double ndtri_q2[] = {1.0,
                                  6.02427039364742,
                                  3.6798356385616087,
                                  1.3770209948908132,
                                  0.21623699359449663,
                                  0.013420400608854318,
                                  0.00032801446468212774,
                                  2.8924786474538068e-06,
                                  6.790194080099813e-09};

static hlo_t fraction(hlo_graph_t *g, hlo_t x, const double *top, size_t top_count,
                      const double *bottom, size_t bottom_count) {
  return hlo_divide(g, math_polynomial(g, x, top, top_count),
                    math_polynomial(g, x, bottom, bottom_count));
}

static hlo_t ndtri_middle(hlo_graph_t *g, hlo_t y) {
  hlo_t x = hlo_add_f(g, y, -0.5), square = math_square(g, x);
  hlo_t curve = hlo_multiply(g, square, fraction(g, square, ndtri_p0, 5, ndtri_q0, 9));
  return hlo_multiply_f(g, hlo_add(g, x, hlo_multiply(g, x, curve)), 2.50662827463100050242);
}

/* For y below e^-2; negative. */
static hlo_t ndtri_tail(hlo_graph_t *g, hlo_t y) {
  hlo_t x = hlo_sqrt(g, hlo_multiply_f(g, hlo_log(g, y), -2));
  hlo_t z = math_reciprocal(g, x);
  hlo_t near = fraction(g, z, ndtri_p1, 9, ndtri_q1, 9),
        far = fraction(g, z, ndtri_p2, 9, ndtri_q2, 9);
  hlo_t curve = hlo_select(g, hlo_compare_f(g, HLO_LT, x, 8), near, far);
  hlo_t straight = hlo_subtract(g, x, hlo_divide(g, hlo_log(g, x), x));
  return hlo_subtract(g, hlo_multiply(g, z, curve), straight);
}

hlo_t math_ndtri(hlo_graph_t *g, hlo_t y) {
  const double edge = 0.13533528323661269189; /* e^-2 */
  torus_dtype_t dtype = hlo_dtype(g, y);
  hlo_t upper = hlo_compare_f(g, HLO_GT, y, 1 - edge);
  hlo_t folded = hlo_select(g, upper, hlo_subtract(g, constant(g, y, 1), y), y);
  hlo_t tail = ndtri_tail(g, folded);
  tail = hlo_select(g, upper, hlo_negate(g, tail), tail);
  hlo_t x = hlo_select(g, hlo_compare_f(g, HLO_GT, folded, edge), ndtri_middle(g, y), tail);
  x = hlo_select(g, hlo_compare_f(g, HLO_EQ, y, 0), hlo_lowest(g, dtype), x);
  x = hlo_select(g, hlo_compare_f(g, HLO_EQ, y, 1), hlo_highest(g, dtype), x);
  hlo_t inside = hlo_and(g, hlo_compare_f(g, HLO_GE, y, 0), hlo_compare_f(g, HLO_LE, y, 1));
  return hlo_select(g, inside, x, constant(g, y, (double)NAN));
}
