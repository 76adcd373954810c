/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Jacobi rotations in parallel, and the symmetric eigenvalue problem by them. */
#include "ops/axes.h"
#include "ops/linalg.h"

/* ---- rotations ---- */

/* Golub and Van Loan, "Matrix Computations", 4th edition, section 8.5.2: the smaller of the two
 * angles. A complex product is made real first, by the phase. */
linalg_rotation_t linalg_rotation(hlo_graph_t *g, hlo_t a, hlo_t b, hlo_t x, hlo_t active) {
  linalg_rotation_t r = {HLO_NONE, HLO_NONE, HLO_NONE, HLO_NONE};
  if (hlo_graph_failed(g))
    return r;
  torus_dtype_t dtype = hlo_dtype(g, x), real = torus_dtype_real(dtype);
  hlo_t one = hlo_const(g, real, 1), size = hlo_abs(g, x);
  active = hlo_and(g, active, hlo_compare_f(g, HLO_GT, size, 0));
  size = hlo_select(g, active, size, one);
  hlo_t unit = linalg_times_real(g, hlo_divide(g, one, size), hlo_conj(g, x));
  if (real == dtype)
    unit = hlo_sign(g, x);
  r.phase = hlo_select(g, active, unit, hlo_const(g, dtype, 1));
  hlo_t ratio = hlo_divide(g, hlo_subtract(g, b, a), hlo_multiply_f(g, size, 2));
  hlo_t root = hlo_sqrt(g, hlo_add_f(g, hlo_multiply(g, ratio, ratio), 1));
  hlo_t tangent = hlo_divide(g, one, hlo_add(g, hlo_abs(g, ratio), root));
  hlo_t negative = hlo_compare_f(g, HLO_LT, ratio, 0);
  tangent = hlo_select(g, negative, hlo_negate(g, tangent), tangent);
  r.tangent = hlo_select(g, active, tangent, hlo_const(g, real, 0));
  root = hlo_sqrt(g, hlo_add_f(g, hlo_multiply(g, r.tangent, r.tangent), 1));
  r.cosine = hlo_divide(g, one, root);
  r.sine = hlo_multiply(g, r.tangent, r.cosine);
  return r;
}

void linalg_rotate(hlo_graph_t *g, const linalg_rotation_t *rotation, int place, hlo_t *left,
                   hlo_t *right) {
  if (hlo_graph_failed(g))
    return;
  hlo_t phase = place == 1 ? hlo_conj(g, rotation->phase) : rotation->phase;
  hlo_t cosine = linalg_over(g, rotation->cosine, *left, place);
  hlo_t sine = linalg_over(g, rotation->sine, *left, place);
  hlo_t x = *left, y = hlo_multiply(g, linalg_over(g, phase, *right, place), *right);
  *left = hlo_subtract(g, linalg_times_real(g, cosine, x), linalg_times_real(g, sine, y));
  *right = hlo_add(g, linalg_times_real(g, sine, x), linalg_times_real(g, cosine, y));
}

/* ---- pairings ---- */

void linalg_next_round(hlo_graph_t *g, int place, hlo_t *left, hlo_t *right) {
  if (hlo_graph_failed(g))
    return;
  int64_t half = hlo_dim(g, *left, place);
  if (half == 1)
    return;
  hlo_t lefts[3] = {linalg_part(g, *left, place, 0, 1), linalg_part(g, *right, place, 0, 1)};
  hlo_t rights[2] = {linalg_part(g, *right, place, 1, half - 1),
                     linalg_part(g, *left, place, half - 1, 1)};
  if (half > 2)
    lefts[2] = linalg_part(g, *left, place, 1, half - 2);
  *left = hlo_concatenate(g, lefts, half > 2 ? 3 : 2, place);
  *right = hlo_concatenate(g, rights, 2, place);
}

void linalg_halves(hlo_graph_t *g, hlo_t x, int place, hlo_t *out_left, hlo_t *out_right) {
  *out_left = *out_right = HLO_NONE;
  if (hlo_graph_failed(g))
    return;
  int64_t size = hlo_dim(g, x, place), half = (size + 1) / 2;
  int64_t low[TORUS_MAX_RANK] = {0}, high[TORUS_MAX_RANK] = {0};
  high[place] = 2 * half - size;
  x = hlo_pad(g, x, hlo_const(g, hlo_dtype(g, x), 0), low, high, NULL);
  *out_left = linalg_part(g, x, place, 0, half);
  *out_right = linalg_part(g, x, place, half, half);
}

hlo_t linalg_join(hlo_graph_t *g, hlo_t left, hlo_t right, int place, int64_t size) {
  hlo_t joined = hlo_concatenate(g, (const hlo_t[]){left, right}, 2, place);
  return linalg_part(g, joined, place, 0, size);
}

hlo_t linalg_sort(hlo_graph_t *g, hlo_t values, bool descending, hlo_t *out_order) {
  *out_order = HLO_NONE;
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t sorted[2], xs[2] = {values, linalg_numbers(g, values, 1)};
  hlo_sort(g, xs, 2, 1, descending, true, sorted);
  *out_order = sorted[1];
  return sorted[0];
}

/* ---- symmetric eigenvalues ---- */

/* The matrix in quarters, and the vectors in halves of columns. */
enum {
  TOP_LEFT,
  TOP_RIGHT,
  BOTTOM_LEFT,
  BOTTOM_RIGHT,
  QUARTERS,
  LEFT = QUARTERS,
  RIGHT,
  ALL_PARTS
};

typedef struct eigen_loop {
  size_t parts; /* QUARTERS or ALL_PARTS */
  int64_t rounds;
  double epsilon;
} eigen_loop_t;

enum { MOST_SWEEPS = 30 };

static hlo_t squared_norm(hlo_graph_t *g, hlo_t x) {
  return hlo_reduce(g, HLO_REDUCE_ADD, linalg_square_sum(g, x), 1, (const int[]){1}, false);
}

static hlo_t without_diagonal(hlo_graph_t *g, hlo_t x) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t batch = hlo_dim(g, x, 0), half = hlo_dim(g, x, 1);
  return linalg_set_diagonal(g, x,
                             hlo_zeros(g, hlo_dtype(g, x), 2, (const int64_t[]){batch, half}));
}

/* Whether the elements off the diagonal still matter for some matrix. */
static hlo_t is_unfinished(hlo_graph_t *g, const hlo_t *state, void *context) {
  const eigen_loop_t *loop = context;
  const hlo_t *w = state + 1;
  hlo_t off = hlo_add(g, squared_norm(g, w[TOP_RIGHT]), squared_norm(g, w[BOTTOM_LEFT]));
  off = hlo_add(g, off, squared_norm(g, without_diagonal(g, w[TOP_LEFT])));
  off = hlo_add(g, off, squared_norm(g, without_diagonal(g, w[BOTTOM_RIGHT])));
  hlo_t on = hlo_add(g, linalg_square_sum(g, linalg_diagonal(g, w[TOP_LEFT])),
                     linalg_square_sum(g, linalg_diagonal(g, w[BOTTOM_RIGHT])));
  hlo_t limit = hlo_multiply_f(g, on, loop->epsilon * loop->epsilon);
  hlo_t some = hlo_reduce_all(g, HLO_REDUCE_OR, hlo_compare(g, HLO_GT, off, limit));
  return hlo_and(g, some, hlo_compare_f(g, HLO_LT, state[0], MOST_SWEEPS));
}

static void eigen_round(hlo_graph_t *g, hlo_t k, const hlo_t *state, hlo_t *w, void *context) {
  (void)k;
  const eigen_loop_t *loop = context;
  if (hlo_graph_failed(g))
    return;
  torus_dtype_t dtype = hlo_dtype(g, state[0]);
  hlo_t a = hlo_real(g, linalg_diagonal(g, state[TOP_LEFT]));
  hlo_t b = hlo_real(g, linalg_diagonal(g, state[BOTTOM_RIGHT]));
  hlo_t x = linalg_diagonal(g, state[TOP_RIGHT]), yes = hlo_const(g, TORUS_DTYPE_BOOL, 1);
  linalg_rotation_t r = linalg_rotation(g, a, b, x, yes);
  linalg_rotate(g, &r, 1, &w[TOP_LEFT], &w[BOTTOM_LEFT]);
  linalg_rotate(g, &r, 1, &w[TOP_RIGHT], &w[BOTTOM_RIGHT]);
  linalg_rotate(g, &r, 2, &w[TOP_LEFT], &w[TOP_RIGHT]);
  linalg_rotate(g, &r, 2, &w[BOTTOM_LEFT], &w[BOTTOM_RIGHT]);
  /* What is known exactly is not left to rounding. */
  hlo_t shift = hlo_multiply(g, r.tangent, hlo_abs(g, x));
  w[TOP_LEFT] =
      linalg_set_diagonal(g, w[TOP_LEFT], hlo_convert(g, hlo_subtract(g, a, shift), dtype));
  w[BOTTOM_RIGHT] =
      linalg_set_diagonal(g, w[BOTTOM_RIGHT], hlo_convert(g, hlo_add(g, b, shift), dtype));
  w[TOP_RIGHT] = without_diagonal(g, w[TOP_RIGHT]);
  w[BOTTOM_LEFT] = without_diagonal(g, w[BOTTOM_LEFT]);
  linalg_next_round(g, 1, &w[TOP_LEFT], &w[BOTTOM_LEFT]);
  linalg_next_round(g, 1, &w[TOP_RIGHT], &w[BOTTOM_RIGHT]);
  linalg_next_round(g, 2, &w[TOP_LEFT], &w[TOP_RIGHT]);
  linalg_next_round(g, 2, &w[BOTTOM_LEFT], &w[BOTTOM_RIGHT]);
  if (loop->parts == QUARTERS)
    return;
  linalg_rotate(g, &r, 2, &w[LEFT], &w[RIGHT]);
  linalg_next_round(g, 2, &w[LEFT], &w[RIGHT]);
}

static void eigen_sweep(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  const eigen_loop_t *loop = context;
  out_state[0] = hlo_add_f(g, state[0], 1);
  for (size_t i = 1; i <= loop->parts; ++i)
    out_state[i] = state[i];
  linalg_for(g, loop->rounds, loop->parts, eigen_round, context, out_state + 1);
}

static void split_quarters(hlo_graph_t *g, hlo_t x, hlo_t *out_w) {
  hlo_t top, bottom;
  linalg_halves(g, x, 1, &top, &bottom);
  linalg_halves(g, top, 2, &out_w[TOP_LEFT], &out_w[TOP_RIGHT]);
  linalg_halves(g, bottom, 2, &out_w[BOTTOM_LEFT], &out_w[BOTTOM_RIGHT]);
}

/* Eigenvalues, ascending, and vectors (HLO_NONE when not wanted) of Hermitian matrices. */
static hlo_t eigen(hlo_graph_t *g, hlo_t x, bool vectors, hlo_t *out_vectors) {
  *out_vectors = HLO_NONE;
  if (hlo_graph_failed(g))
    return HLO_NONE;
  torus_dtype_t dtype = hlo_dtype(g, x);
  int64_t batch = hlo_dim(g, x, 0), size = hlo_dim(g, x, 1);
  hlo_t scale = linalg_scale(g, x), order, state[1 + ALL_PARTS], results[1 + ALL_PARTS];
  hlo_t inverse = hlo_divide(g, hlo_const(g, torus_dtype_real(dtype), 1), scale);
  eigen_loop_t loop = {vectors ? ALL_PARTS : QUARTERS, (size + 1) / 2 * 2 - 1,
                       linalg_epsilon(dtype)};
  state[0] = hlo_const_int(g, TORUS_DTYPE_I32, 0);
  split_quarters(g, linalg_times_real(g, linalg_over(g, inverse, x, 1), x), state + 1);
  hlo_t ones = linalg_identity(g, dtype, batch, size, size);
  if (vectors)
    linalg_halves(g, ones, 2, &state[1 + LEFT], &state[1 + RIGHT]);
  hlo_while(g, state, 1 + loop.parts, is_unfinished, eigen_sweep, &loop, results);
  hlo_t values = linalg_join(g, linalg_diagonal(g, results[1 + TOP_LEFT]),
                             linalg_diagonal(g, results[1 + BOTTOM_RIGHT]), 1, size);
  values = linalg_sort(g, hlo_real(g, values), false, &order);
  if (vectors) {
    hlo_t joined = linalg_join(g, results[1 + LEFT], results[1 + RIGHT], 2, size);
    *out_vectors = linalg_take(g, joined, 2, order);
  }
  return hlo_multiply(g, values, linalg_over(g, scale, values, 1));
}

/* The half that is not read, and imaginary parts on the diagonal, are as if they did not exist. */
static hlo_t hermitian_part(hlo_graph_t *g, hlo_t x, bool upper) {
  hlo_t strict = linalg_triangle(g, x, upper, upper ? 1 : -1);
  hlo_t whole = hlo_add(g, strict, linalg_adjoint(g, strict));
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t diagonal = hlo_convert(g, hlo_real(g, linalg_diagonal(g, x)), hlo_dtype(g, x));
  return linalg_set_diagonal(g, whole, diagonal);
}

TORUS_OP(linalg_eigh, "_linalg_eigh", 0) {
  hlo_t x = op_tensor(call, 0), vectors;
  int64_t dims[TORUS_MAX_RANK];
  if (!linalg_require_matrix(call, g, x, true))
    return;
  const char *half = op_string(call, 1);
  bool wanted = op_bool(call, 2);
  int leading = hlo_shape(g, x, dims) - 2;
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t none = op_nothing(g, dtype);
  if (hlo_numel(g, x) == 0) {
    op_return(call, 0, hlo_zeros(g, torus_dtype_real(dtype), leading + 1, dims));
    op_return(call, 1, wanted ? x : none);
    return;
  }
  x = hermitian_part(g, linalg_stack(g, x, 2), half && (half[0] == 'U' || half[0] == 'u'));
  op_check(call, linalg_any_not_finite(g, x), TORUS_STATUS_INVALID_ARGUMENT,
           "linalg.eigh: The algorithm failed to converge because the input matrix contained "
           "non-finite values.");
  hlo_t values = eigen(g, x, wanted, &vectors);
  op_return(call, 0, linalg_unstack(g, values, leading, dims));
  op_return(call, 1, wanted ? linalg_unstack(g, vectors, leading, dims) : none);
}
