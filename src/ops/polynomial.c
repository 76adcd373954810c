/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Orthogonal polynomials of torch.special, by their three-term recurrences: with p[0] = 1,
 *
 *     p[k + 1] = (slope(k) x + offset(k)) p[k] - factor(k) p[k - 1].
 *
 * Degrees differ from element to element, so all go as far as the highest one and keep
 * their own. */
#include "ops/math.h"

/* One step of a recurrence: p[k + 1] from |last| = p[k], |before| = p[k - 1] and rank-0 |k|. */
typedef hlo_t (*next_fn)(hlo_graph_t *g, hlo_t x, hlo_t k, hlo_t last, hlo_t before);

typedef struct family {
  double slope, offset; /* p[1] = slope x + offset */
  next_fn next;
  bool is_shifted; /* in 2 x - 1 instead of x */
} family_t;

static hlo_t linear(hlo_graph_t *g, hlo_t x, double slope, double offset) {
  return hlo_add_f(g, hlo_multiply_f(g, x, slope), offset);
}

static hlo_t next_chebyshev(hlo_graph_t *g, hlo_t x, hlo_t k __attribute__((unused)), hlo_t last,
                            hlo_t before) {
  return hlo_subtract(g, hlo_multiply(g, linear(g, x, 2, 0), last), before);
}

static hlo_t next_hermite_h(hlo_graph_t *g, hlo_t x, hlo_t k, hlo_t last, hlo_t before) {
  hlo_t gone = hlo_multiply(g, linear(g, k, 2, 0), before);
  return hlo_subtract(g, hlo_multiply(g, linear(g, x, 2, 0), last), gone);
}

static hlo_t next_hermite_he(hlo_graph_t *g, hlo_t x, hlo_t k, hlo_t last, hlo_t before) {
  return hlo_subtract(g, hlo_multiply(g, x, last), hlo_multiply(g, k, before));
}

static hlo_t next_laguerre(hlo_graph_t *g, hlo_t x, hlo_t k, hlo_t last, hlo_t before) {
  hlo_t factor = hlo_subtract(g, linear(g, k, 2, 1), x);
  hlo_t sum = hlo_subtract(g, hlo_multiply(g, factor, last), hlo_multiply(g, k, before));
  return hlo_divide(g, sum, hlo_add_f(g, k, 1));
}

static hlo_t next_legendre(hlo_graph_t *g, hlo_t x, hlo_t k, hlo_t last, hlo_t before) {
  hlo_t factor = hlo_multiply(g, linear(g, k, 2, 1), x);
  hlo_t sum = hlo_subtract(g, hlo_multiply(g, factor, last), hlo_multiply(g, k, before));
  return hlo_divide(g, sum, hlo_add_f(g, k, 1));
}

/* ---- the loop ---- */

enum { AT_K, AT_HIGHEST, AT_X, AT_DEGREE, AT_BEFORE, AT_LAST, STATE };

static hlo_t has_more(hlo_graph_t *g, const hlo_t *state, void *context __attribute__((unused))) {
  return hlo_compare(g, HLO_LT, state[AT_K], state[AT_HIGHEST]);
}

static void advance(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  const family_t *family = context;
  hlo_t next = family->next(g, state[AT_X], state[AT_K], state[AT_LAST], state[AT_BEFORE]);
  hlo_t goes_on = hlo_compare(g, HLO_LT, state[AT_K], state[AT_DEGREE]);
  for (int i = 0; i < STATE; i++)
    out_state[i] = state[i];
  out_state[AT_K] = hlo_add_f(g, state[AT_K], 1);
  out_state[AT_BEFORE] = hlo_select(g, goes_on, state[AT_LAST], state[AT_BEFORE]);
  out_state[AT_LAST] = hlo_select(g, goes_on, next, state[AT_LAST]);
}

/* x and |degree| of one shape and type. */
static hlo_t evaluate(hlo_graph_t *g, family_t family, hlo_t x, hlo_t degree) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t zero = hlo_const(g, dtype, 0), one = hlo_full_like(g, x, dtype, 1), results[STATE];
  if (family.is_shifted) x = linear(g, x, 2, -1);
  hlo_t initial[STATE] = {[AT_K] = hlo_const(g, dtype, 1),
                          [AT_HIGHEST] = hlo_reduce_all(g, HLO_REDUCE_MAXIMUM, degree),
                          [AT_X] = x,
                          [AT_DEGREE] = degree,
                          [AT_BEFORE] = one,
                          [AT_LAST] = linear(g, x, family.slope, family.offset)};
  hlo_while(g, initial, STATE, has_more, advance, &family, results);
  hlo_t y = hlo_select(g, hlo_compare_f(g, HLO_EQ, degree, 0), one, results[AT_LAST]);
  return hlo_select(g, hlo_compare_f(g, HLO_LT, degree, 0), zero, y);
}

/* ---- operators ---- */

static void polynomial(torus_call_t *call, hlo_graph_t *g, family_t family, bool x_is_scalar,
                       bool n_is_scalar) {
  torus_dtype_t dtype = op_result_type(call, (const int[]){0, 1}, 2);
  if (op_failed(call)) return;
  dtype = op_float_type(call, dtype);
  torus_dtype_t wide = op_accumulate_type(dtype);
  int64_t dims[TORUS_MAX_RANK];
  hlo_t xs[2] = {x_is_scalar ? op_scalar(call, 0, wide) : op_tensor_as(call, 0, wide),
                 n_is_scalar ? op_scalar(call, 1, wide) : op_tensor_as(call, 1, wide)};
  math_broadcast(g, xs, 2);
  int rank = hlo_shape(g, hlo_rank(g, xs[0]) > 0 ? xs[0] : xs[1], dims);
  for (int i = 0; i < 2; i++) {
    if (hlo_rank(g, xs[i]) < rank) xs[i] = hlo_splat(g, xs[i], rank, dims);
  }
  hlo_t degree = math_trunc(g, xs[1]);
  op_return(call, 0, hlo_convert(g, evaluate(g, family, xs[0], degree), dtype));
}

#define POLYNOMIAL(name, slope, offset, next, is_shifted)                                          \
  TORUS_OP(name, "special_" #name, TORUS_OP_POINTWISE) {                                           \
    polynomial(call, g, (family_t){slope, offset, next, is_shifted}, false, false);                \
  }                                                                                                \
  TORUS_OP(name##_x, "special_" #name ".x_scalar", TORUS_OP_POINTWISE) {                           \
    polynomial(call, g, (family_t){slope, offset, next, is_shifted}, true, false);                 \
  }                                                                                                \
  TORUS_OP(name##_n, "special_" #name ".n_scalar", TORUS_OP_POINTWISE) {                           \
    polynomial(call, g, (family_t){slope, offset, next, is_shifted}, false, true);                 \
  }
POLYNOMIAL(chebyshev_polynomial_t, 1, 0, next_chebyshev, false)
POLYNOMIAL(chebyshev_polynomial_u, 2, 0, next_chebyshev, false)
POLYNOMIAL(chebyshev_polynomial_v, 2, -1, next_chebyshev, false)
POLYNOMIAL(chebyshev_polynomial_w, 2, 1, next_chebyshev, false)
POLYNOMIAL(shifted_chebyshev_polynomial_t, 1, 0, next_chebyshev, true)
POLYNOMIAL(shifted_chebyshev_polynomial_u, 2, 0, next_chebyshev, true)
POLYNOMIAL(shifted_chebyshev_polynomial_v, 2, -1, next_chebyshev, true)
POLYNOMIAL(shifted_chebyshev_polynomial_w, 2, 1, next_chebyshev, true)
POLYNOMIAL(hermite_polynomial_h, 2, 0, next_hermite_h, false)
POLYNOMIAL(hermite_polynomial_he, 1, 0, next_hermite_he, false)
POLYNOMIAL(laguerre_polynomial_l, -1, 1, next_laguerre, false)
POLYNOMIAL(legendre_polynomial_p, 1, 0, next_legendre, false)
