/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The exponential of a matrix by scaling and squaring of a Pade approximant (Higham, "The scaling
 * and squaring method for the matrix exponential revisited", SIAM J. Matrix Anal. Appl. 26, 2005):
 * of degree 13 in double precision and 7 in single precision, the largest degrees he lists for
 * each. */
#include "ops/linalg.h"

typedef struct pade {
  double theta; /* largest 1-norm for which the approximant is exact to rounding */
  double coefficients[14];
} pade_t;

static const pade_t pade_single = {3.925724783138660,
                                   {17297280, 8648640, 1995840, 277200, 25200, 1512, 56, 1}};
static const pade_t pade_double = {5.371920351148152,
                                   {64764752532480000, 32382376266240000, 7771770303897600,
                                    1187353796428800, 129060195264000, 10559470521600, 670442572800,
                                    33522128640, 1323241920, 40840800, 960960, 16380, 182, 1}};

static hlo_t times(hlo_graph_t *g, hlo_t x, double factor) {
  return hlo_graph_failed(g) ? HLO_NONE : hlo_multiply_f(g, x, factor);
}

/* c[0] I + c[2] x2 + c[4] x4 + c[6] x6: the even half or, from c + 1, the odd half divided by x. */
static hlo_t half_sum(hlo_graph_t *g, const double *c, const hlo_t *powers, hlo_t ones) {
  hlo_t sum = times(g, ones, c[0]);
  for (int i = 1; i <= 3; ++i)
    sum = hlo_add(g, sum, times(g, powers[i - 1], c[2 * i]));
  return sum;
}

/* With the terms from x8 on, which have the factor x6. */
static hlo_t whole_sum(hlo_graph_t *g, const double *c, const hlo_t *powers, hlo_t ones,
                       bool is_long) {
  hlo_t low = half_sum(g, c, powers, ones);
  if (!is_long)
    return low;
  hlo_t high = times(g, powers[0], c[8]);
  for (int i = 1; i < 3; ++i)
    high = hlo_add(g, high, times(g, powers[i], c[8 + 2 * i]));
  return hlo_add(g, low, hlo_matmul(g, powers[2], high));
}

/* The approximant of stacks with a small norm. */
static hlo_t approximate(hlo_graph_t *g, hlo_t x, const pade_t *pade) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  bool is_long = pade == &pade_double;
  int64_t size = hlo_dim(g, x, 1);
  hlo_t ones = linalg_identity(g, hlo_dtype(g, x), hlo_dim(g, x, 0), size, size);
  hlo_t x2 = hlo_matmul(g, x, x), x4 = hlo_matmul(g, x2, x2);
  hlo_t powers[3] = {x2, x4, hlo_matmul(g, x4, x2)}, factors, pivots;
  hlo_t even = whole_sum(g, pade->coefficients, powers, ones, is_long);
  hlo_t odd = hlo_matmul(g, x, whole_sum(g, pade->coefficients + 1, powers, ones, is_long));
  linalg_lu(g, hlo_subtract(g, even, odd), true, &factors, &pivots);
  hlo_t order = linalg_pivot_order(g, pivots, size);
  return linalg_lu_apply(g, factors, order, hlo_add(g, even, odd), false);
}

/* How often to halve each matrix, I32 [batch]: its 1-norm comes below theta. */
static hlo_t count_halvings(hlo_graph_t *g, hlo_t x, double theta) {
  hlo_t sums = hlo_reduce(g, HLO_REDUCE_ADD, hlo_abs(g, x), 1, (const int[]){1}, false);
  hlo_t norm = hlo_reduce(g, HLO_REDUCE_MAXIMUM, sums, 1, (const int[]){1}, false);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  torus_dtype_t dtype = hlo_dtype(g, norm);
  double most = dtype == TORUS_DTYPE_F64 ? 1000 : 120;
  hlo_t count = hlo_log(g, hlo_multiply_f(g, norm, 1 / theta));
  count = hlo_ceil(g, hlo_multiply_f(g, count, 1.4426950408889634));
  count = hlo_maximum(g, count, hlo_const(g, dtype, 0));
  count = hlo_minimum(g, count, hlo_const(g, dtype, most));
  hlo_t usable = hlo_is_finite(g, norm);
  return hlo_convert(g, hlo_select(g, usable, count, hlo_const(g, dtype, 0)), TORUS_DTYPE_I32);
}

/* 2^-count, exactly. */
static hlo_t power_of_half(hlo_graph_t *g, hlo_t count, torus_dtype_t dtype) {
  bool wide = dtype == TORUS_DTYPE_F64;
  torus_dtype_t bits = wide ? TORUS_DTYPE_I64 : TORUS_DTYPE_I32;
  hlo_t bias = hlo_const_int(g, bits, wide ? 1023 : 127);
  hlo_t exponent = hlo_subtract(g, bias, hlo_convert(g, count, bits));
  exponent = hlo_shift_left(g, exponent, hlo_const_int(g, bits, wide ? 52 : 23));
  return hlo_bitcast(g, exponent, dtype);
}

enum { STEP, COUNT, MATRIX, STATE_SIZE };

static hlo_t is_more_to_square(hlo_graph_t *g, const hlo_t *state, void *context) {
  (void)context;
  hlo_t most = hlo_reduce_all(g, HLO_REDUCE_MAXIMUM, state[COUNT]);
  return hlo_compare(g, HLO_LT, state[STEP], most);
}

static void square(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  (void)context;
  hlo_t x = state[MATRIX];
  hlo_t wanted = hlo_compare(g, HLO_LT, state[STEP], state[COUNT]);
  out_state[STEP] = hlo_add_f(g, state[STEP], 1);
  out_state[COUNT] = state[COUNT];
  out_state[MATRIX] = hlo_select(g, linalg_over(g, wanted, x, 1), hlo_matmul(g, x, x), x);
}

static hlo_t exponential(hlo_graph_t *g, hlo_t x) {
  if (hlo_graph_failed(g) || hlo_numel(g, x) == 0)
    return x;
  torus_dtype_t real = torus_dtype_real(hlo_dtype(g, x));
  const pade_t *pade = real == TORUS_DTYPE_F64 ? &pade_double : &pade_single;
  hlo_t state[STATE_SIZE], results[STATE_SIZE];
  state[STEP] = hlo_const_int(g, TORUS_DTYPE_I32, 0);
  state[COUNT] = count_halvings(g, x, pade->theta);
  hlo_t scale = linalg_over(g, power_of_half(g, state[COUNT], real), x, 1);
  state[MATRIX] = approximate(g, linalg_times_real(g, scale, x), pade);
  hlo_while(g, state, STATE_SIZE, is_more_to_square, square, NULL, results);
  return results[MATRIX];
}

TORUS_OP(linalg_matrix_exp, "linalg_matrix_exp", 0) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  hlo_t x = op_tensor_as(call, 0, op_accumulate_type(dtype));
  int64_t dims[TORUS_MAX_RANK];
  if (!linalg_require_matrix(call, g, x, true))
    return;
  int leading = hlo_shape(g, x, dims) - 2;
  x = exponential(g, linalg_stack(g, x, 2));
  op_return(call, 0, hlo_convert(g, linalg_unstack(g, x, leading, dims), dtype));
}
