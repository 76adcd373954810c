/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Singular values by one-sided Jacobi rotations of the transposed triangular factor.
 *
 * x = Q R, and the columns of adjoint(R) are rotated until they are orthogonal: adjoint(R) J = V S,
 * so that x = (Q J) S adjoint(V). Small singular values keep their relative accuracy (Drmac and
 * Veselic, "New fast and accurate Jacobi SVD algorithm I", SIAM J. Matrix Anal. Appl. 29, 2008). A
 * second QR scales the columns of V S to length one; it is sure to give an orthogonal V when S has
 * zeros. */
#include "ops/axes.h"
#include "ops/linalg.h"

/* state: number of the sweep, largest cosine between two columns met in it, the columns in halves,
 * the rotations so far in halves. */
enum { COLUMNS_LEFT, COLUMNS_RIGHT, TURNS_LEFT, TURNS_RIGHT, PARTS };
enum { SWEEP, WORST, FIRST_PART, ALL_STATE = FIRST_PART + PARTS };

typedef struct sweep_loop {
  size_t parts; /* without the rotations: TURNS_LEFT */
  int64_t rounds;
  double tolerance, tiny;
} sweep_loop_t;

enum { MOST_SWEEPS = 30 };

/* |x| over the lengths of its two columns; 0 for columns too short to be squared. */
static hlo_t cosine_between(hlo_graph_t *g, hlo_t a, hlo_t b, hlo_t x, double tiny) {
  hlo_t usable = hlo_and(g, hlo_compare_f(g, HLO_GT, a, tiny), hlo_compare_f(g, HLO_GT, b, tiny));
  hlo_t lengths = hlo_multiply(g, hlo_sqrt(g, a), hlo_sqrt(g, b));
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t cosine = hlo_divide(g, hlo_abs(g, x), lengths);
  return hlo_select(g, usable, cosine, hlo_const(g, hlo_dtype(g, cosine), 0));
}

/* state without the sweep number. */
static void svd_round(hlo_graph_t *g, hlo_t k, const hlo_t *state, hlo_t *out_state,
                      void *context) {
  (void)k;
  const sweep_loop_t *loop = context;
  hlo_t *part = out_state + 1, left = state[1 + COLUMNS_LEFT], right = state[1 + COLUMNS_RIGHT];
  hlo_t a = linalg_square_sum(g, left), b = linalg_square_sum(g, right);
  hlo_t x = hlo_reduce(g, HLO_REDUCE_ADD, hlo_multiply(g, hlo_conj(g, left), right), 1,
                       (const int[]){1}, false);
  hlo_t cosine = cosine_between(g, a, b, x, loop->tiny);
  hlo_t active = hlo_compare_f(g, HLO_GT, cosine, loop->tolerance);
  linalg_rotation_t r = linalg_rotation(g, a, b, x, active);
  out_state[0] = hlo_maximum(g, state[0], hlo_reduce_all(g, HLO_REDUCE_MAXIMUM, cosine));
  for (size_t i = 0; i < loop->parts; i += 2) {
    linalg_rotate(g, &r, 2, &part[i], &part[i + 1]);
    linalg_next_round(g, 2, &part[i], &part[i + 1]);
  }
}

static void svd_sweep(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  const sweep_loop_t *loop = context;
  if (hlo_graph_failed(g))
    return;
  out_state[SWEEP] = hlo_add_f(g, state[SWEEP], 1);
  out_state[WORST] = hlo_const(g, hlo_dtype(g, state[WORST]), 0);
  for (size_t i = 0; i < loop->parts; ++i)
    out_state[FIRST_PART + i] = state[FIRST_PART + i];
  linalg_for(g, loop->rounds, 1 + loop->parts, svd_round, context, out_state + WORST);
}

static hlo_t is_unfinished(hlo_graph_t *g, const hlo_t *state, void *context) {
  const sweep_loop_t *loop = context;
  hlo_t more = hlo_compare_f(g, HLO_LT, state[SWEEP], MOST_SWEEPS);
  return hlo_and(g, more, hlo_compare_f(g, HLO_GT, state[WORST], loop->tolerance));
}

/* A few roundings of an inner product. */
static double sweep_tolerance(torus_dtype_t dtype, int64_t size) {
  double root = 4;
  while (root * root < (double)size)
    root *= 2;
  return root * linalg_epsilon(dtype);
}

/* Rotates the columns of x (square) until they are orthogonal. |out_turns|: the rotations, or
 * HLO_NONE. */
static hlo_t orthogonalize(hlo_graph_t *g, hlo_t x, bool with_turns, hlo_t *out_turns) {
  *out_turns = HLO_NONE;
  if (hlo_graph_failed(g))
    return HLO_NONE;
  torus_dtype_t dtype = hlo_dtype(g, x), real = torus_dtype_real(dtype);
  int64_t batch = hlo_dim(g, x, 0), size = hlo_dim(g, x, 2);
  sweep_loop_t loop = {with_turns ? PARTS : TURNS_LEFT, (size + 1) / 2 * 2 - 1,
                       sweep_tolerance(dtype, size), real == TORUS_DTYPE_F64 ? 0x1p-960 : 0x1p-100};
  hlo_t state[ALL_STATE], results[ALL_STATE];
  state[SWEEP] = hlo_const_int(g, TORUS_DTYPE_I32, 0);
  state[WORST] = hlo_const(g, real, 1);
  linalg_halves(g, x, 2, &state[FIRST_PART + COLUMNS_LEFT], &state[FIRST_PART + COLUMNS_RIGHT]);
  linalg_halves(g, linalg_identity(g, dtype, batch, size, size), 2, &state[FIRST_PART + TURNS_LEFT],
                &state[FIRST_PART + TURNS_RIGHT]);
  hlo_while(g, state, FIRST_PART + loop.parts, is_unfinished, svd_sweep, &loop, results);
  const hlo_t *part = results + FIRST_PART;
  if (with_turns)
    *out_turns = linalg_join(g, part[TURNS_LEFT], part[TURNS_RIGHT], 2, size);
  return linalg_join(g, part[COLUMNS_LEFT], part[COLUMNS_RIGHT], 2, size);
}

/* The columns of x, orthogonal and longest first, at length one. */
static hlo_t unit_columns(hlo_graph_t *g, hlo_t x) {
  hlo_t packed, tau;
  linalg_geqrf(g, x, &packed, &tau);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t lengths = hlo_real(g, linalg_diagonal(g, packed));
  hlo_t negative = hlo_compare_f(g, HLO_LT, lengths, 0);
  torus_dtype_t real = hlo_dtype(g, lengths);
  hlo_t signs = hlo_select(g, negative, hlo_const(g, real, -1), hlo_const(g, real, 1));
  hlo_t q = linalg_form_q(g, packed, tau, hlo_dim(g, x, 2));
  return linalg_times_real(g, linalg_over(g, signs, q, 2), q);
}

/* Q J, with the further columns of Q when |full|. */
static hlo_t left_vectors(hlo_graph_t *g, hlo_t packed, hlo_t tau, hlo_t turns, bool full) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t rows = hlo_dim(g, packed, 1), size = hlo_dim(g, turns, 2);
  int64_t low[3] = {0}, high[3] = {0, rows - size, full ? rows - size : 0};
  turns = hlo_pad(g, turns, hlo_const(g, hlo_dtype(g, turns), 0), low, high, NULL);
  if (full && rows > size) {
    hlo_t ones = linalg_identity(g, hlo_dtype(g, turns), hlo_dim(g, turns, 0), rows, rows);
    hlo_t own = hlo_compare_f(g, HLO_LT, linalg_numbers(g, turns, 2), (double)size);
    turns = hlo_select(g, own, turns, ones);
  }
  return linalg_reflect(g, packed, tau, turns, false);
}

/* At least as many rows as columns. */
static linalg_svd_t svd_tall(hlo_graph_t *g, hlo_t x, bool vectors, bool full) {
  linalg_svd_t result = {HLO_NONE, HLO_NONE, HLO_NONE};
  hlo_t packed, tau, turns, order, scale = linalg_scale(g, x);
  if (hlo_graph_failed(g))
    return result;
  hlo_t one = hlo_const(g, hlo_dtype(g, scale), 1);
  hlo_t inverse = linalg_over(g, hlo_divide(g, one, scale), x, 1);
  linalg_geqrf(g, linalg_times_real(g, inverse, x), &packed, &tau);
  if (hlo_graph_failed(g))
    return result;
  hlo_t r = linalg_triangle(g, linalg_part(g, packed, 1, 0, hlo_dim(g, x, 2)), true, 0);
  hlo_t columns = orthogonalize(g, linalg_adjoint(g, r), vectors, &turns);
  hlo_t lengths = hlo_sqrt(g, linalg_square_sum(g, columns));
  lengths = linalg_sort(g, lengths, true, &order);
  result.s = hlo_multiply(g, lengths, linalg_over(g, scale, lengths, 1));
  if (!vectors)
    return result;
  result.v = unit_columns(g, linalg_take(g, columns, 2, order));
  result.u = left_vectors(g, packed, tau, linalg_take(g, turns, 2, order), full);
  return result;
}

linalg_svd_t linalg_svd(hlo_graph_t *g, hlo_t x, bool vectors, bool full) {
  if (hlo_graph_failed(g))
    return (linalg_svd_t){HLO_NONE, HLO_NONE, HLO_NONE};
  if (hlo_dim(g, x, 1) >= hlo_dim(g, x, 2))
    return svd_tall(g, x, vectors, full);
  linalg_svd_t other = svd_tall(g, linalg_adjoint(g, x), vectors, full);
  return (linalg_svd_t){other.v, other.s, other.u};
}

/* ---- operators ---- */

/* No singular values; the vectors are any bases. */
static linalg_svd_t svd_of_nothing(hlo_graph_t *g, hlo_t x, bool full) {
  int64_t batch = hlo_dim(g, x, 0), rows = hlo_dim(g, x, 1), columns = hlo_dim(g, x, 2);
  int64_t size = rows < columns ? rows : columns;
  torus_dtype_t dtype = hlo_dtype(g, x);
  return (linalg_svd_t){linalg_identity(g, dtype, batch, rows, full ? rows : size),
                        hlo_zeros(g, torus_dtype_real(dtype), 2, (const int64_t[]){batch, size}),
                        linalg_identity(g, dtype, batch, columns, full ? columns : size)};
}

TORUS_OP(linalg_svd, "_linalg_svd", 0) {
  hlo_t x = op_tensor(call, 0);
  int64_t dims[TORUS_MAX_RANK];
  if (!linalg_require_matrix(call, g, x, false))
    return;
  bool full = op_bool(call, 1), vectors = op_bool(call, 2);
  int leading = hlo_shape(g, x, dims) - 2;
  torus_dtype_t dtype = hlo_dtype(g, x);
  x = linalg_stack(g, x, 2);
  linalg_svd_t svd;
  if (hlo_numel(g, x) == 0) {
    svd = svd_of_nothing(g, x, full);
  } else {
    op_check(call, linalg_any_not_finite(g, x), TORUS_STATUS_INVALID_ARGUMENT,
             "linalg.svd: The algorithm failed to converge because the input matrix contained "
             "non-finite values.");
    svd = linalg_svd(g, x, vectors, full);
  }
  hlo_t none = op_nothing(g, dtype);
  op_return(call, 0, vectors ? linalg_unstack(g, svd.u, leading, dims) : none);
  op_return(call, 1, linalg_unstack(g, svd.s, leading, dims));
  op_return(call, 2, vectors ? linalg_unstack(g, linalg_adjoint(g, svd.v), leading, dims) : none);
}
