/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Householder QR and products of reflectors, with the conventions of LAPACK's geqrf, orgqr and
 * ormqr: reflector i is I - tau[i] v adjoint(v), v being 0 above row i, 1 in it, and stored below
 * it. */
#include "ops/axes.h"
#include "ops/linalg.h"

static int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* ---- reflectors ---- */

/* The masks of the caller have v zero outside its rows. */
hlo_t linalg_apply_reflector(hlo_graph_t *g, hlo_t x, hlo_t v, hlo_t factor) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t spread = linalg_over(g, v, x, 1);
  hlo_t products = hlo_multiply(g, hlo_conj(g, spread), x);
  hlo_t projected = hlo_reduce(g, HLO_REDUCE_ADD, products, 1, (const int[]){1}, false);
  hlo_t scaled = hlo_multiply(g, linalg_over(g, factor, v, 1), v);
  return hlo_subtract(
      g, x, hlo_multiply(g, linalg_over(g, scaled, x, 1), linalg_over(g, projected, x, 2)));
}

hlo_t linalg_apply_reflector_right(hlo_graph_t *g, hlo_t x, hlo_t v, hlo_t factor) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t spread = linalg_over(g, v, x, 2);
  hlo_t projected =
      hlo_reduce(g, HLO_REDUCE_ADD, hlo_multiply(g, x, spread), 1, (const int[]){2}, false);
  hlo_t scaled = hlo_multiply(g, linalg_over(g, factor, projected, 1), projected);
  return hlo_subtract(g, x, hlo_multiply(g, linalg_over(g, scaled, x, 1), hlo_conj(g, spread)));
}

/* Length of the real vectors |x|, [batch, rows] to [batch], without overflow. */
static hlo_t safe_length(hlo_graph_t *g, hlo_t x) {
  hlo_t size = hlo_reduce(g, HLO_REDUCE_MAXIMUM, x, 1, (const int[]){1}, false);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t scale =
      hlo_select(g, hlo_compare_f(g, HLO_GT, size, 0), size, hlo_const(g, hlo_dtype(g, size), 1));
  hlo_t part = hlo_divide(g, x, linalg_over(g, scale, x, 1));
  hlo_t sum = linalg_square_sum(g, part);
  return hlo_multiply(g, scale, hlo_sqrt(g, sum));
}

static hlo_t masked(hlo_graph_t *g, hlo_t keep, hlo_t x) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  return hlo_select(g, keep, x, hlo_const(g, hlo_dtype(g, x), 0));
}

/* Entry |k| of every vector: [batch]. */
static hlo_t entry(hlo_graph_t *g, hlo_t x, hlo_t k) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t batch = hlo_dim(g, x, 0);
  hlo_t zero = hlo_const_int(g, TORUS_DTYPE_I32, 0);
  hlo_t one = hlo_dynamic_slice(g, x, (const hlo_t[]){zero, k}, (const int64_t[]){batch, 1});
  return hlo_reshape(g, one, 1, &batch);
}

/* LAPACK's larfg. */
linalg_reflector_t linalg_make_reflector(hlo_graph_t *g, hlo_t column, hlo_t k) {
  linalg_reflector_t r = {HLO_NONE, HLO_NONE, HLO_NONE};
  if (hlo_graph_failed(g))
    return r;
  torus_dtype_t dtype = hlo_dtype(g, column), real = torus_dtype_real(dtype);
  hlo_t row = linalg_numbers(g, column, 1);
  hlo_t tail = hlo_compare(g, HLO_GT, row, k), is_k = hlo_compare(g, HLO_EQ, row, k);
  hlo_t alpha = entry(g, column, k), sizes = hlo_abs(g, column);
  hlo_t below =
      hlo_reduce(g, HLO_REDUCE_MAXIMUM, masked(g, tail, sizes), 1, (const int[]){1}, false);
  hlo_t length = safe_length(g, masked(g, hlo_or(g, tail, is_k), sizes));
  hlo_t alpha_real = hlo_real(g, alpha);
  hlo_t negative = hlo_compare_f(g, HLO_LT, alpha_real, 0);
  hlo_t beta = hlo_select(g, negative, length, hlo_negate(g, length));
  hlo_t is_done = hlo_compare_f(g, HLO_EQ, below, 0);
  if (real != dtype)
    is_done = hlo_and(g, is_done, hlo_compare_f(g, HLO_EQ, hlo_imag(g, alpha), 0));
  hlo_t divisor = hlo_select(g, is_done, hlo_const(g, real, 1), beta);
  hlo_t difference = hlo_subtract(g, hlo_convert(g, beta, dtype), alpha);
  r.tau = masked(g, hlo_not(g, is_done),
                 linalg_times_real(g, hlo_divide(g, hlo_const(g, real, 1), divisor), difference));
  hlo_t pivot = hlo_select(g, is_done, hlo_const(g, dtype, 1), hlo_negate(g, difference));
  r.v = masked(g, tail, hlo_divide(g, column, linalg_over(g, pivot, column, 1)));
  r.v = hlo_select(g, is_k, hlo_const(g, dtype, 1), r.v);
  r.beta = hlo_select(g, is_done, alpha, hlo_convert(g, beta, dtype));
  return r;
}

/* state: matrix, tau. */
static void factor_step(hlo_graph_t *g, hlo_t k, const hlo_t *state, hlo_t *out_state,
                        void *context) {
  (void)context;
  hlo_t x = state[0], column = linalg_column(g, x, k);
  linalg_reflector_t r = linalg_make_reflector(g, column, k);
  if (hlo_graph_failed(g))
    return;
  hlo_t row = linalg_numbers(g, column, 1);
  hlo_t stored = hlo_select(g, hlo_compare(g, HLO_GT, row, k), r.v, column);
  stored = hlo_select(g, hlo_compare(g, HLO_EQ, row, k), linalg_over(g, r.beta, column, 1), stored);
  hlo_t number = linalg_numbers(g, x, 2);
  hlo_t reflected = linalg_apply_reflector(g, x, r.v, hlo_conj(g, r.tau));
  x = hlo_select(g, hlo_compare(g, HLO_GT, number, k), reflected, x);
  out_state[0] = hlo_select(g, hlo_compare(g, HLO_EQ, number, k), linalg_over(g, stored, x, 1), x);
  hlo_t here = hlo_compare(g, HLO_EQ, linalg_numbers(g, state[1], 1), k);
  out_state[1] = hlo_select(g, here, linalg_over(g, r.tau, state[1], 1), state[1]);
}

void linalg_geqrf(hlo_graph_t *g, hlo_t x, hlo_t *out_packed, hlo_t *out_tau) {
  *out_packed = *out_tau = HLO_NONE;
  if (hlo_graph_failed(g))
    return;
  int64_t batch = hlo_dim(g, x, 0), size = smaller(hlo_dim(g, x, 1), hlo_dim(g, x, 2));
  hlo_t state[2] = {x, hlo_zeros(g, hlo_dtype(g, x), 2, (const int64_t[]){batch, size})};
  if (batch > 0)
    linalg_for(g, size, 2, factor_step, NULL, state);
  *out_packed = state[0];
  *out_tau = state[1];
}

typedef struct reflections {
  int64_t count;
  bool adjoint; /* first reflector first, each with the conjugate of its factor */
} reflections_t;

/* state: product, packed, tau. */
static void reflect_step(hlo_graph_t *g, hlo_t step, const hlo_t *state, hlo_t *out_state,
                         void *context) {
  const reflections_t *how = context;
  if (hlo_graph_failed(g))
    return;
  hlo_t last = hlo_const_int(g, TORUS_DTYPE_I32, how->count - 1);
  hlo_t k = how->adjoint ? step : hlo_subtract(g, last, step);
  hlo_t column = linalg_column(g, state[1], k), row = linalg_numbers(g, column, 1);
  hlo_t v = masked(g, hlo_compare(g, HLO_GT, row, k), column);
  v = hlo_select(g, hlo_compare(g, HLO_EQ, row, k), hlo_const(g, hlo_dtype(g, v), 1), v);
  hlo_t tau = entry(g, state[2], k);
  out_state[0] = linalg_apply_reflector(g, state[0], v, how->adjoint ? hlo_conj(g, tau) : tau);
}

hlo_t linalg_reflect(hlo_graph_t *g, hlo_t packed, hlo_t tau, hlo_t x, bool adjoint) {
  if (hlo_graph_failed(g) || hlo_numel(g, x) == 0)
    return x;
  reflections_t how = {hlo_dim(g, tau, 1), adjoint};
  hlo_t state[3] = {x, packed, tau};
  linalg_for(g, how.count, 3, reflect_step, &how, state);
  return state[0];
}

hlo_t linalg_form_q(hlo_graph_t *g, hlo_t packed, hlo_t tau, int64_t columns) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t ones = linalg_identity(g, hlo_dtype(g, packed), hlo_dim(g, packed, 0),
                               hlo_dim(g, packed, 1), columns);
  return linalg_reflect(g, packed, tau, ones, false);
}

/* ---- operators ---- */

typedef struct qr_operand {
  hlo_t stack;
  int leading;
  int64_t dims[TORUS_MAX_RANK];
  int64_t rows, columns;
} qr_operand_t;

static bool read_operand(torus_call_t *call, hlo_graph_t *g, int arg, qr_operand_t *out_operand) {
  hlo_t x = op_tensor(call, arg);
  if (!linalg_require_matrix(call, g, x, false))
    return false;
  qr_operand_t *o = out_operand;
  o->leading = hlo_shape(g, x, o->dims) - 2;
  o->rows = o->dims[o->leading];
  o->columns = o->dims[o->leading + 1];
  o->stack = linalg_stack(g, x, 2);
  return true;
}

static void give(torus_call_t *call, hlo_graph_t *g, int k, const qr_operand_t *o, hlo_t x) {
  op_return(call, k, linalg_unstack(g, x, o->leading, o->dims));
}

TORUS_OP(geqrf, "geqrf", 0) {
  qr_operand_t a;
  hlo_t packed, tau;
  if (!read_operand(call, g, 0, &a))
    return;
  linalg_geqrf(g, a.stack, &packed, &tau);
  give(call, g, 0, &a, packed);
  give(call, g, 1, &a, tau);
}

TORUS_OP(linalg_qr, "linalg_qr", 0) {
  qr_operand_t a;
  hlo_t packed, tau;
  const char *mode = op_string(call, 1);
  if (!read_operand(call, g, 0, &a))
    return;
  if (mode == NULL || (mode[0] != 'r' && mode[0] != 'c')) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "qr: unrecognized mode");
    return;
  }
  bool complete = mode[0] == 'c', with_q = complete || mode[1] == 'e';
  int64_t size = complete ? a.rows : smaller(a.rows, a.columns);
  linalg_geqrf(g, a.stack, &packed, &tau);
  if (with_q)
    give(call, g, 0, &a, linalg_form_q(g, packed, tau, size));
  else
    op_return(call, 0, op_nothing(g, hlo_dtype(g, a.stack)));
  give(call, g, 1, &a, linalg_triangle(g, linalg_part(g, packed, 1, 0, size), true, 0));
}

/* The factors of the reflectors of |a|, or a failure. */
static hlo_t read_tau(torus_call_t *call, hlo_graph_t *g, int arg, const qr_operand_t *a) {
  hlo_t tau = op_tensor(call, arg);
  if (linalg_failed(call, g))
    return HLO_NONE;
  int rank = hlo_rank(g, tau);
  bool fits = rank == a->leading + 1 && hlo_dtype(g, tau) == hlo_dtype(g, a->stack);
  for (int d = 0; fits && d < a->leading; ++d)
    fits = hlo_dim(g, tau, d) == a->dims[d];
  if (fits && hlo_dim(g, tau, rank - 1) <= a->columns)
    return linalg_stack(g, tau, 1);
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "tau does not fit the reflectors");
  return HLO_NONE;
}

TORUS_OP(linalg_householder_product, "linalg_householder_product", 0) {
  qr_operand_t a;
  if (!read_operand(call, g, 0, &a))
    return;
  hlo_t tau = read_tau(call, g, 1, &a);
  if (linalg_failed(call, g))
    return;
  if (a.rows < a.columns) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "fewer rows than columns");
    return;
  }
  give(call, g, 0, &a, linalg_form_q(g, a.stack, tau, a.columns));
}

/* C Q is the adjoint of adjoint(Q) adjoint(C). */
TORUS_OP(ormqr, "ormqr", 0) {
  qr_operand_t a, c;
  bool left = op_bool(call, 3), transpose = op_bool(call, 4);
  if (!read_operand(call, g, 0, &a))
    return;
  hlo_t tau = read_tau(call, g, 1, &a);
  if (linalg_failed(call, g) || !read_operand(call, g, 2, &c))
    return;
  bool fits = c.leading == a.leading && (left ? c.rows : c.columns) == a.rows &&
              hlo_dtype(g, a.stack) == hlo_dtype(g, c.stack);
  for (int d = 0; fits && d < a.leading; ++d)
    fits = a.dims[d] == c.dims[d];
  if (!fits) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "other does not fit the reflectors");
    return;
  }
  hlo_t x = left ? c.stack : linalg_adjoint(g, c.stack);
  x = linalg_reflect(g, a.stack, tau, x, left == transpose);
  give(call, g, 0, &c, left ? x : linalg_adjoint(g, x));
}
