/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The derivative of a beta-distributed number by its first parameter, over 1 - x, from which the
 * gradient of Dirichlet samples is made.
 *
 * Four approximations for as many regions, those of PyTorch, so that the numbers are the same
 * (Jankowiak and Obermeyer, "Pathwise derivatives beyond the reparameterization trick", ICML 2018,
 * appendix): Taylor series near 0 and near 1, a saddle point expansion for large parameters, and a
 * rational correction of a simple formula for the rest. In double precision throughout. */
#include "ops/math.h"

/* Number x and parameters alpha, beta and their sum, F64 of one shape. */
typedef struct beta_draw {
  hlo_t x, alpha, beta, total;
} beta_draw_t;

static hlo_t times(hlo_graph_t *g, hlo_t a, hlo_t b) { return hlo_multiply(g, a, b); }

static hlo_t scaled(hlo_graph_t *g, hlo_t x, double factor) {
  return hlo_multiply_f(g, x, factor);
}

static hlo_t one_minus(hlo_graph_t *g, hlo_t x) { return hlo_add_f(g, hlo_negate(g, x), 1); }

static hlo_t full(hlo_graph_t *g, hlo_t like, double value) {
  return hlo_full_like(g, like, TORUS_DTYPE_F64, value);
}

/* ---- near 0 and near 1 ---- */

/* By alpha, x close to 0. */
static hlo_t by_alpha_near_zero(hlo_graph_t *g, const beta_draw_t *d) {
  hlo_t factor = hlo_subtract(g, math_digamma(g, d->alpha), math_digamma(g, d->total));
  factor = hlo_subtract(g, factor, hlo_log(g, d->x));
  hlo_t weight = full(g, d->x, 1), sum = full(g, d->x, 0);
  for (int i = 0; i <= 10; ++i) {
    if (i > 0) {
      hlo_t next = hlo_add_f(g, hlo_negate(g, d->beta), i);
      weight = times(g, weight, scaled(g, times(g, next, d->x), 1.0 / i));
    }
    hlo_t inverse = math_reciprocal(g, hlo_add_f(g, d->alpha, i));
    sum = hlo_add(g, sum, times(g, times(g, weight, inverse), hlo_add(g, factor, inverse)));
  }
  hlo_t power = hlo_power(g, one_minus(g, d->x), hlo_negate(g, d->beta));
  return times(g, times(g, d->x, power), sum);
}

/* By beta, x close to 0. */
static hlo_t by_beta_near_zero(hlo_graph_t *g, const beta_draw_t *d) {
  hlo_t factor = hlo_subtract(g, math_digamma(g, d->total), math_digamma(g, d->beta));
  hlo_t weight = full(g, d->x, 1), product = full(g, d->x, 1), slope = full(g, d->x, 0);
  hlo_t sum = hlo_divide(g, factor, d->alpha);
  for (int i = 1; i <= 8; ++i) {
    hlo_t next = hlo_add_f(g, d->beta, -i);
    weight = scaled(g, times(g, weight, d->x), -1.0 / i);
    slope = hlo_add(g, times(g, slope, next), product);
    product = times(g, product, next);
    hlo_t term = hlo_add(g, slope, times(g, factor, product));
    sum = hlo_add(g, sum, times(g, hlo_divide(g, weight, hlo_add_f(g, d->alpha, i)), term));
  }
  hlo_t power = hlo_power(g, one_minus(g, d->x), one_minus(g, d->beta));
  return hlo_negate(g, times(g, power, sum));
}

/* ---- large parameters ---- */

/* At the mean, where the expansion is 0 / 0. */
static hlo_t at_the_mean(hlo_graph_t *g, const beta_draw_t *d) {
  hlo_t x = d->x, a = d->alpha, b = d->beta, y = one_minus(g, x);
  hlo_t sum = times(g, scaled(g, y, 8), hlo_add_f(g, scaled(g, b, 135), -11));
  hlo_t part = times(g, scaled(g, b, 1620), y);
  part = hlo_add(g, hlo_add_f(g, part, 453), scaled(g, x, -455));
  sum = hlo_add(g, times(g, part, b), times(g, a, sum));
  part = hlo_add_f(g, hlo_add(g, scaled(g, b, 540), scaled(g, x, -270)), 177);
  hlo_t square = math_square(g, b), cube = times(g, square, b);
  sum = hlo_add(g, times(g, part, square), times(g, a, sum));
  part = times(g, hlo_add_f(g, scaled(g, b, 540), 320), x);
  sum = hlo_add(g, times(g, hlo_add_f(g, part, 43), cube), times(g, a, sum));
  sum = hlo_add(g, scaled(g, times(g, x, math_square(g, square)), 47), times(g, a, sum));
  hlo_t above = times(g, hlo_add_f(g, scaled(g, a, 12), 1), hlo_add_f(g, scaled(g, b, 12), 1));
  above = hlo_divide(g, above, math_square(g, d->total));
  hlo_t below = times(g, scaled(g, times(g, math_square(g, a), a), 12960), square);
  below = times(g, below, hlo_add_f(g, scaled(g, d->total, 12), 1));
  return hlo_divide(g, times(g, hlo_divide(g, above, y), sum), below);
}

/* 1 + 1 / 12 x + 1 / 288 x^2: what Stirling's formula lacks. */
static hlo_t stirling(hlo_graph_t *g, hlo_t x) {
  hlo_t part = math_reciprocal(g, scaled(g, x, 12));
  return hlo_add_f(g, hlo_add(g, part, scaled(g, math_square(g, part), 0.5)), 1);
}

static hlo_t saddle_point(hlo_graph_t *g, const beta_draw_t *d, hlo_t mean) {
  hlo_t x = d->x, a = d->alpha, b = d->beta, total = d->total, less = hlo_add_f(g, x, -1);
  hlo_t gap = hlo_add(g, times(g, a, less), times(g, b, x));
  hlo_t upper = hlo_add(g, scaled(g, math_square(g, a), 2), times(g, a, b));
  upper = hlo_subtract(g, times(g, upper, less), times(g, x, math_square(g, b)));
  hlo_t lower = hlo_sqrt(g, scaled(g, hlo_divide(g, a, b), 2));
  lower = times(g, lower, times(g, total, hlo_sqrt(g, total)));
  hlo_t sum = hlo_divide(g, upper, times(g, lower, math_square(g, gap)));
  hlo_t log_a = hlo_log(g, hlo_divide(g, a, times(g, total, x)));
  hlo_t log_b = hlo_log(g, hlo_divide(g, b, times(g, total, one_minus(g, x))));
  hlo_t spread = hlo_divide(g, times(g, a, b), total);
  hlo_t third = hlo_divide(g, hlo_sqrt(g, scaled(g, spread, 8)), gap);
  hlo_t depth = hlo_add(g, times(g, b, log_b), times(g, a, log_a));
  hlo_t fourth = hlo_divide(g, hlo_rsqrt(g, depth), depth);
  hlo_t below = hlo_compare(g, HLO_LT, x, mean);
  third = hlo_add(g, third, hlo_select(g, below, fourth, hlo_negate(g, fourth)));
  sum = hlo_add(g, sum, times(g, scaled(g, log_a, 0.5), third));
  hlo_t factor = hlo_divide(g, x, hlo_sqrt(g, scaled(g, spread, 2)));
  hlo_t rest = times(g, stirling(g, a), hlo_divide(g, stirling(g, b), stirling(g, total)));
  return hlo_negate(g, times(g, times(g, rest, factor), sum));
}

static hlo_t large_parameters(hlo_graph_t *g, const beta_draw_t *d) {
  hlo_t mean = hlo_divide(g, d->alpha, d->total);
  hlo_t spread = hlo_divide(g, times(g, d->alpha, d->beta), hlo_add_f(g, d->total, 1));
  spread = scaled(g, hlo_divide(g, hlo_sqrt(g, spread), d->total), 0.1);
  hlo_t away = hlo_abs(g, hlo_subtract(g, d->x, mean));
  hlo_t near = hlo_compare(g, HLO_LE, away, spread);
  return hlo_select(g, near, at_the_mean(g, d), saddle_point(g, d, mean));
}

/* ---- the rest ---- */

/* Coefficients of the powers of log x, of log alpha / x and of the logarithm of total x / alpha,
 * in this order, above and below the line. */
static const double kAbove[3][3][4] = {
    {{1.003668233, -0.01061107488, -0.0657888334, 0.01201642863},
     {0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033},
     {-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013}},
    {{0.221950385, -0.3187676331, 0.01799915743, 0.01074823814},
     {-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057},
     {0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05}},
    {{-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565},
     {0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181},
     {0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05}}};
static const double kBelow[3][3][4] = {
    {{1, -0.02924021934, -0.04438342661, 0.007285809825},
     {0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521},
     {-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149}},
    {{0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273},
     {0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956},
     {-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05}},
    {{0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05},
     {0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05},
     {-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06}}};

static hlo_t polynomial(hlo_graph_t *g, const double *coefficients, int count, hlo_t x) {
  hlo_t sum = full(g, x, coefficients[count - 1]);
  for (int i = count - 2; i >= 0; --i)
    sum = hlo_add_f(g, times(g, sum, x), coefficients[i]);
  return sum;
}

static hlo_t polynomial3(hlo_graph_t *g, const double c[3][3][4], hlo_t u, hlo_t a, hlo_t b) {
  hlo_t sum = HLO_NONE;
  for (int i = 2; i >= 0; --i) {
    hlo_t row = polynomial(g, c[i][2], 4, b);
    for (int j = 1; j >= 0; --j)
      row = hlo_add(g, times(g, row, a), polynomial(g, c[i][j], 4, b));
    sum = i == 2 ? row : hlo_add(g, times(g, sum, u), row);
  }
  return sum;
}

static hlo_t corrected(hlo_graph_t *g, const beta_draw_t *d) {
  hlo_t u = hlo_log(g, d->x), a = hlo_subtract(g, hlo_log(g, d->alpha), u);
  hlo_t b = hlo_subtract(g, hlo_log(g, d->total), a);
  hlo_t ratio = hlo_divide(g, polynomial3(g, kAbove, u, a, b), polynomial3(g, kBelow, u, a, b));
  hlo_t gap = hlo_subtract(g, math_digamma(g, d->total), math_digamma(g, d->alpha));
  return times(g, ratio, hlo_divide(g, times(g, d->x, gap), d->beta));
}

/* ---- the operator ---- */

static hlo_t without_nan(hlo_graph_t *g, hlo_t x) {
  return hlo_select(g, hlo_is_nan(g, x), full(g, x, 0), x);
}

static hlo_t beta_gradient(hlo_graph_t *g, const beta_draw_t *d) {
  hlo_t y = one_minus(g, d->x), edge = times(g, times(g, d->total, d->x), y);
  const beta_draw_t other = {y, d->beta, d->alpha, d->total};
  hlo_t is_low =
      hlo_and(g, hlo_compare_f(g, HLO_LE, d->x, 0.5), hlo_compare_f(g, HLO_LT, edge, 2.5));
  hlo_t is_high =
      hlo_and(g, hlo_compare_f(g, HLO_GE, d->x, 0.5), hlo_compare_f(g, HLO_LT, edge, 0.75));
  hlo_t is_large = hlo_compare_f(g, HLO_GT, hlo_minimum(g, d->alpha, d->beta), 6);
  hlo_t high = hlo_negate(g, without_nan(g, by_beta_near_zero(g, &other)));
  hlo_t result = hlo_select(g, is_large, large_parameters(g, d), corrected(g, d));
  result = hlo_select(g, is_high, high, result);
  return hlo_select(g, is_low, without_nan(g, by_alpha_near_zero(g, d)), result);
}

/* (x, alpha, total) */
TORUS_OP(dirichlet_grad, "_dirichlet_grad", 0) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  hlo_t xs[3];
  for (int i = 0; i < 3; ++i)
    xs[i] = op_tensor_as(call, i, TORUS_DTYPE_F64);
  math_broadcast(g, xs, 3);
  if (op_failed(call) || hlo_graph_failed(g)) return;
  const beta_draw_t draw = {xs[0], xs[1], hlo_subtract(g, xs[2], xs[1]), xs[2]};
  op_return(call, 0, hlo_convert(g, beta_gradient(g, &draw), dtype));
}
