/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* LDL factors of symmetric and Hermitian matrices with the diagonal pivoting of Bunch and Kaufman
 * ("Some stable methods for calculating inertia and solving symmetric linear systems", Math. Comp.
 * 31, 1977; Golub and Van Loan, "Matrix Computations", 4th edition, section 4.4), and systems
 * solved by them. The format is that of LAPACK's sytrf and hetrf for the lower triangle. */
#include "ops/linalg.h"

static hlo_t zero_of(hlo_graph_t *g, hlo_t x) {
  return hlo_graph_failed(g) ? HLO_NONE : hlo_const(g, hlo_dtype(g, x), 0);
}

static hlo_t one_of(hlo_graph_t *g, hlo_t x) {
  return hlo_graph_failed(g) ? HLO_NONE : hlo_const(g, hlo_dtype(g, x), 1);
}

static hlo_t times(hlo_graph_t *g, hlo_t a, hlo_t b) { return hlo_multiply(g, a, b); }

/* The adjoint's elements where |hermitian|, the transpose's otherwise. */
static hlo_t mirrored(hlo_graph_t *g, hlo_t x, bool hermitian) {
  return hermitian ? hlo_conj(g, x) : x;
}

/* ---- the choice of pivots ---- */

/* What step k does to each matrix, [batch]. Of a block of size 2 the second step does nothing. */
typedef struct ldl_step {
  hlo_t k, here;       /* rank 0, and for each matrix */
  hlo_t single, block; /* BOOL: blocks of size 1 and 2 */
  hlo_t place, pivot;  /* rows and columns to exchange, I32 */
  hlo_t last;          /* last row of the block; of the matrix where nothing is to do */
  hlo_t empty;         /* BOOL: nothing but zeros in column k */
} ldl_step_t;

/* The largest size in each of the vectors |x| where |counts|, and where it is. */
static hlo_t largest(hlo_graph_t *g, hlo_t x, hlo_t counts, hlo_t *out_place) {
  hlo_t value, place, size = linalg_size(g, x);
  *out_place = HLO_NONE;
  if (hlo_graph_failed(g))
    return HLO_NONE;
  size = hlo_select(g, counts, size, zero_of(g, size));
  hlo_reduce_arg(g, true, size, 1, &value, &place);
  *out_place = hlo_convert(g, place, TORUS_DTYPE_I32);
  return value;
}

/* (1 + sqrt 17) / 8, which bounds the growth of the elements. */
static const double kBalance = 0.6403882032022076;

/* Whether the diagonal element of row k is large enough beside column k and row |at|, where the
 * largest element of that column stands; or, if not, the one of row |at|. */
static void compare_pivots(hlo_graph_t *g, hlo_t x, ldl_step_t *s, hlo_t column, hlo_t below,
                           hlo_t at, hlo_t *out_stays, hlo_t *out_moves) {
  hlo_t number = linalg_numbers(g, column, 1), row = linalg_pick(g, x, 1, at), unused;
  hlo_t own = linalg_size(g, linalg_pick(g, column, 1, s->here));
  hlo_t counts = hlo_and(g, hlo_compare(g, HLO_GE, number, s->k),
                         hlo_compare(g, HLO_NE, number, linalg_over(g, at, number, 1)));
  hlo_t beside = largest(g, row, counts, &unused), its = linalg_size(g, linalg_pick(g, row, 1, at));
  hlo_t bound = hlo_multiply_f(g, below, kBalance);
  hlo_t grown = times(g, bound, hlo_divide(g, below, beside));
  hlo_t stays = hlo_or(g, hlo_compare(g, HLO_GE, own, bound), hlo_compare(g, HLO_GE, own, grown));
  s->empty = hlo_compare_f(g, HLO_EQ, hlo_maximum(g, own, below), 0);
  *out_stays = hlo_or(g, stays, s->empty);
  *out_moves = hlo_compare(g, HLO_GE, its, hlo_multiply_f(g, beside, kBalance));
}

/* x is stored whole. |busy|: the step belongs to a block that began before. */
static ldl_step_t choose_pivot(hlo_graph_t *g, hlo_t x, hlo_t k, hlo_t busy) {
  ldl_step_t s = {.k = k};
  hlo_t column = linalg_column(g, x, k), at, stays, moves;
  if (hlo_graph_failed(g))
    return s;
  s.here = hlo_splat(g, k, 1, (const int64_t[]){hlo_dim(g, x, 0)});
  hlo_t below = largest(g, column, hlo_compare(g, HLO_GT, linalg_numbers(g, column, 1), k), &at);
  compare_pivots(g, x, &s, column, below, at, &stays, &moves);
  if (hlo_graph_failed(g))
    return s;
  hlo_t single = hlo_or(g, stays, moves), free = hlo_not(g, busy);
  s.single = hlo_and(g, single, free);
  s.block = hlo_and(g, hlo_not(g, single), free);
  s.pivot = hlo_select(g, hlo_or(g, stays, busy), s.here, at);
  hlo_t last = hlo_add(g, s.here, hlo_convert(g, s.block, TORUS_DTYPE_I32));
  s.place = hlo_select(g, busy, s.here, last);
  s.last = hlo_select(g, busy, hlo_const_int(g, TORUS_DTYPE_I32, hlo_dim(g, x, 1)), last);
  return s;
}

/* Rows and columns exchanged in the part from k on; what is finished keeps its order. */
static hlo_t exchange_both(hlo_graph_t *g, hlo_t x, const ldl_step_t *s) {
  hlo_t moved = linalg_exchange(g, linalg_exchange(g, x, 1, s->place, s->pivot), 2, s->place,
                                s->pivot);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t open = hlo_and(g, hlo_compare(g, HLO_GE, linalg_numbers(g, x, 1), s->k),
                       hlo_compare(g, HLO_GE, linalg_numbers(g, x, 2), s->k));
  return hlo_select(g, open, moved, x);
}

/* ---- elimination ---- */

static hlo_t guarded(hlo_graph_t *g, hlo_t valid, hlo_t x) {
  return hlo_graph_failed(g) ? HLO_NONE : hlo_select(g, valid, x, one_of(g, x));
}

static hlo_t divide_columns(hlo_graph_t *g, hlo_t x, hlo_t divisor) {
  return hlo_divide(g, x, linalg_over(g, divisor, x, 1));
}

/* Columns k and k + 1 over the block [[a, mirrored b], [b, d]]. All is divided by b first, which
 * is the largest of it. */
static void over_block(hlo_graph_t *g, const ldl_step_t *s, hlo_t first, hlo_t second,
                       bool hermitian, hlo_t *out_left, hlo_t *out_right) {
  hlo_t next = hlo_add_f(g, s->here, 1);
  hlo_t a = linalg_pick(g, first, 1, s->here), b = linalg_pick(g, first, 1, next);
  b = guarded(g, s->block, b);
  hlo_t up = mirrored(g, b, hermitian), d = linalg_pick(g, second, 1, next);
  a = hlo_divide(g, a, up);
  d = hlo_divide(g, d, b);
  hlo_t determinant = guarded(g, s->block, hlo_add_f(g, times(g, a, d), -1));
  hlo_t left = hlo_subtract(g, times(g, linalg_over(g, d, first, 1), first), second);
  hlo_t right = hlo_subtract(g, times(g, linalg_over(g, a, second, 1), second), first);
  *out_left = divide_columns(g, left, times(g, up, determinant));
  *out_right = divide_columns(g, right, times(g, b, determinant));
}

/* Columns k and k + 1 of L; the second one is zero for a pivot of size 1. */
static void factor_columns(hlo_graph_t *g, const ldl_step_t *s, hlo_t first, hlo_t second,
                           bool hermitian, hlo_t *out_left, hlo_t *out_right) {
  hlo_t pivot = linalg_pick(g, first, 1, s->here);
  pivot = guarded(g, hlo_and(g, s->single, hlo_not(g, s->empty)), pivot);
  over_block(g, s, first, second, hermitian, out_left, out_right);
  if (hlo_graph_failed(g))
    return;
  hlo_t is_block = linalg_over(g, s->block, first, 1);
  *out_left = hlo_select(g, is_block, *out_left, divide_columns(g, first, pivot));
  *out_right = hlo_select(g, is_block, *out_right, zero_of(g, first));
}

static hlo_t outer(hlo_graph_t *g, hlo_t like, hlo_t column, hlo_t row) {
  return times(g, linalg_over(g, column, like, 1), linalg_over(g, row, like, 2));
}

/* The columns of L, and what they leave of the matrix behind them. */
static hlo_t eliminate(hlo_graph_t *g, hlo_t x, const ldl_step_t *s, bool hermitian) {
  hlo_t next = hlo_add_f(g, s->k, 1), left, right;
  hlo_t first = linalg_column(g, x, s->k), second = linalg_column(g, x, next);
  factor_columns(g, s, first, second, hermitian, &left, &right);
  hlo_t rest = hlo_subtract(g, x, outer(g, x, left, mirrored(g, first, hermitian)));
  rest = hlo_subtract(g, rest, outer(g, x, right, mirrored(g, second, hermitian)));
  if (hlo_graph_failed(g))
    return HLO_NONE;
  if (hermitian)
    rest = linalg_set_diagonal(
        g, rest, hlo_convert(g, hlo_real(g, linalg_diagonal(g, rest)), hlo_dtype(g, rest)));
  hlo_t row = linalg_numbers(g, x, 1), column = linalg_numbers(g, x, 2);
  hlo_t last = linalg_over(g, s->last, x, 1), below = hlo_compare(g, HLO_GT, row, last);
  hlo_t behind = hlo_and(g, below, hlo_compare(g, HLO_GT, column, last));
  hlo_t is_first = hlo_and(g, below, hlo_compare(g, HLO_EQ, column, s->k));
  hlo_t is_second = hlo_and(g, below, hlo_compare(g, HLO_EQ, column, next));
  is_second = hlo_and(g, is_second, linalg_over(g, s->block, x, 1));
  x = hlo_select(g, behind, rest, x);
  x = hlo_select(g, is_first, linalg_over(g, left, x, 1), x);
  return hlo_select(g, is_second, linalg_over(g, right, x, 1), x);
}

/* LAPACK's numbers: from 1, and twice the negative for a block of size 2. */
static hlo_t write_pivots(hlo_graph_t *g, hlo_t pivots, const ldl_step_t *s) {
  hlo_t number = linalg_numbers(g, pivots, 1), written = hlo_add_f(g, s->pivot, 1);
  hlo_t here = hlo_compare(g, HLO_EQ, number, s->k);
  hlo_t next = hlo_compare(g, HLO_EQ, number, hlo_add_f(g, s->k, 1));
  hlo_t single = hlo_and(g, here, linalg_over(g, s->single, pivots, 1));
  hlo_t block = hlo_and(g, hlo_or(g, here, next), linalg_over(g, s->block, pivots, 1));
  pivots = hlo_select(g, single, linalg_over(g, written, pivots, 1), pivots);
  return hlo_select(g, block, linalg_over(g, hlo_negate(g, written), pivots, 1), pivots);
}

/* state: matrix, pivots, the first step without a pivot, counted from 1, and whether the step
 * belongs to a block that began before. */
enum { MATRIX, PIVOTS, INFO, BUSY, ALL_STATE };

static void factor_step(hlo_graph_t *g, hlo_t k, const hlo_t *state, hlo_t *out_state,
                        void *context) {
  const bool *hermitian = context;
  ldl_step_t s = choose_pivot(g, state[MATRIX], k, state[BUSY]);
  if (hlo_graph_failed(g))
    return;
  out_state[MATRIX] = eliminate(g, exchange_both(g, state[MATRIX], &s), &s, *hermitian);
  out_state[PIVOTS] = write_pivots(g, state[PIVOTS], &s);
  hlo_t fails = hlo_and(g, hlo_and(g, s.empty, s.single), hlo_compare_f(g, HLO_EQ, state[INFO], 0));
  out_state[INFO] = hlo_select(g, fails, hlo_add_f(g, s.here, 1), state[INFO]);
  out_state[BUSY] = s.block;
}

/* The half that is read, whole. */
static hlo_t from_lower(hlo_graph_t *g, hlo_t x, bool hermitian) {
  hlo_t strict = linalg_triangle(g, x, false, -1);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t whole = hlo_add(g, strict, mirrored(g, hlo_swap_dims(g, strict, 1, 2), hermitian));
  hlo_t diagonal = linalg_diagonal(g, x);
  if (hermitian)
    diagonal = hlo_convert(g, hlo_real(g, diagonal), hlo_dtype(g, x));
  return linalg_set_diagonal(g, whole, diagonal);
}

/* |state| receives the factors, the pivots and the info. */
static void factor(hlo_graph_t *g, hlo_t x, bool hermitian, hlo_t *state) {
  if (hlo_graph_failed(g))
    return;
  int64_t dims[2] = {hlo_dim(g, x, 0), hlo_dim(g, x, 1)};
  state[MATRIX] = from_lower(g, x, hermitian);
  state[PIVOTS] = hlo_zeros(g, TORUS_DTYPE_I32, 2, dims);
  state[INFO] = hlo_zeros(g, TORUS_DTYPE_I32, 1, dims);
  state[BUSY] = hlo_zeros(g, TORUS_DTYPE_BOOL, 1, dims);
  if (hlo_numel(g, x) > 0)
    linalg_for(g, dims[1], ALL_STATE, factor_step, &hermitian, state);
  state[MATRIX] = linalg_triangle(g, state[MATRIX], false, 0);
}

static bool is_hermitian(const torus_call_t *call, int arg, torus_dtype_t dtype) {
  return op_bool(call, arg) && torus_dtype_is_complex(dtype);
}

TORUS_OP(linalg_ldl_factor_ex, "linalg_ldl_factor_ex", 0) {
  hlo_t x = op_tensor(call, 0), state[ALL_STATE];
  int64_t dims[TORUS_MAX_RANK];
  if (!linalg_require_matrix(call, g, x, true))
    return;
  int leading = hlo_shape(g, x, dims) - 2;
  factor(g, linalg_stack(g, x, 2), is_hermitian(call, 1, hlo_dtype(g, x)), state);
  if (linalg_failed(call, g))
    return;
  if (op_bool(call, 2))
    op_check(call, hlo_reduce_all(g, HLO_REDUCE_OR, hlo_compare_f(g, HLO_NE, state[INFO], 0)),
             TORUS_STATUS_INVALID_ARGUMENT,
             "torch.linalg.ldl_factor_ex: The factorization could not be completed because the "
             "input matrix is singular.");
  op_return(call, 0, linalg_unstack(g, state[MATRIX], leading, dims));
  op_return(call, 1, linalg_unstack(g, state[PIVOTS], leading, dims));
  op_return(call, 2, linalg_unstack(g, state[INFO], leading, dims));
}

/* ---- systems ---- */

/* The rows of a stack of factors: where blocks of size 2 begin, [batch, rows], and the pivots. */
typedef struct ldl_factors {
  hlo_t x, begins, ends, pivots;
  bool hermitian;
} ldl_factors_t;

/* Negative pivots come in pairs. */
static ldl_factors_t read_factors(hlo_graph_t *g, hlo_t x, hlo_t pivots, bool hermitian) {
  hlo_t paired = hlo_convert(g, hlo_compare_f(g, HLO_LT, pivots, 0), TORUS_DTYPE_I32);
  hlo_t count = hlo_scan(g, HLO_REDUCE_ADD, paired, 1), one = one_of(g, paired);
  hlo_t odd = hlo_compare_f(g, HLO_EQ, hlo_and(g, count, one), 1);
  hlo_t is_paired = hlo_compare_f(g, HLO_LT, pivots, 0);
  return (ldl_factors_t){x, hlo_and(g, is_paired, odd), hlo_and(g, is_paired, hlo_not(g, odd)),
                         pivots, hermitian};
}

typedef struct solve_loop {
  int64_t size;
  bool hermitian, forward;
} solve_loop_t;

/* state: right sides, factors, pivots, where blocks begin and end. */
enum { SIDES, FACTORS, ROW_PIVOTS, BEGINS, ENDS, SOLVE_STATE };

static hlo_t entry(hlo_graph_t *g, hlo_t x, hlo_t here) { return linalg_pick(g, x, 1, here); }

/* Column k of L below its block, on the other rows 0. */
static hlo_t strict_column(hlo_graph_t *g, const hlo_t *state, hlo_t k, hlo_t last) {
  hlo_t column = linalg_column(g, state[FACTORS], k), number = linalg_numbers(g, column, 1);
  hlo_t below = hlo_compare(g, HLO_GT, number, linalg_over(g, last, number, 1));
  return hlo_select(g, below, column, zero_of(g, column));
}

/* The exchange that belongs to row k: that of a block stands with its first row. */
static hlo_t exchange_sides(hlo_graph_t *g, const hlo_t *state, hlo_t x, hlo_t here, hlo_t last) {
  hlo_t pivot = entry(g, state[ROW_PIVOTS], here), number = hlo_add_f(g, hlo_abs(g, pivot), -1);
  hlo_t ends = hlo_compare_f(g, HLO_NE, entry(g, state[ENDS], here), 0);
  return linalg_exchange(g, x, 1, last, hlo_select(g, ends, last, number));
}

/* L y = b from the first row on, or adjoint(L) y = b from the last one on. */
static void solve_step(hlo_graph_t *g, hlo_t step, const hlo_t *state, hlo_t *out_state,
                       void *context) {
  const solve_loop_t *loop = context;
  if (hlo_graph_failed(g))
    return;
  hlo_t b = state[SIDES], final = hlo_const_int(g, TORUS_DTYPE_I32, loop->size - 1);
  hlo_t k = loop->forward ? step : hlo_subtract(g, final, step);
  hlo_t here = hlo_splat(g, k, 1, (const int64_t[]){hlo_dim(g, b, 0)});
  hlo_t last = hlo_add(g, here, entry(g, state[BEGINS], here));
  hlo_t column = strict_column(g, state, k, last);
  if (loop->forward) {
    b = exchange_sides(g, state, b, here, last);
    hlo_t row = linalg_pick(g, b, 1, here);
    out_state[SIDES] = hlo_subtract(g, b, outer(g, b, column, row));
    return;
  }
  hlo_t products = times(g, linalg_over(g, mirrored(g, column, loop->hermitian), b, 1), b);
  hlo_t sum = hlo_reduce(g, HLO_REDUCE_ADD, products, 1, (const int[]){1}, false);
  hlo_t changed = hlo_compare(g, HLO_EQ, linalg_numbers(g, b, 1), k);
  b = hlo_select(g, changed, hlo_subtract(g, b, linalg_over(g, sum, b, 2)), b);
  out_state[SIDES] = exchange_sides(g, state, b, here, last);
}

static hlo_t solve_triangle(hlo_graph_t *g, const ldl_factors_t *f, hlo_t b, bool forward) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  solve_loop_t loop = {hlo_dim(g, b, 1), f->hermitian, forward};
  hlo_t state[SOLVE_STATE] = {b, f->x, f->pivots, hlo_convert(g, f->begins, TORUS_DTYPE_I32),
                              hlo_convert(g, f->ends, TORUS_DTYPE_I32)};
  linalg_for(g, loop.size, SOLVE_STATE, solve_step, &loop, state);
  return state[SIDES];
}

/* D y = b: for row k of a block [[a, mirrored c], [c, d]], by Cramer's rule over c. */
static hlo_t solve_diagonal(hlo_graph_t *g, const ldl_factors_t *f, hlo_t b) {
  hlo_t a = linalg_diagonal(g, f->x), d = linalg_shift(g, a, 1, -1);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  if (f->hermitian)
    a = hlo_convert(g, hlo_real(g, a), hlo_dtype(g, a));
  hlo_t c = guarded(g, f->begins, linalg_diagonal(g, linalg_shift(g, f->x, 1, -1)));
  hlo_t up = mirrored(g, c, f->hermitian), next = linalg_shift(g, b, 1, -1);
  hlo_t left = hlo_divide(g, a, up), right = hlo_divide(g, d, c);
  hlo_t determinant = guarded(g, f->begins, hlo_add_f(g, times(g, left, right), -1));
  hlo_t own_b = divide_columns(g, b, up), next_b = divide_columns(g, next, c);
  hlo_t first = hlo_subtract(g, times(g, linalg_over(g, right, b, 1), own_b), next_b);
  hlo_t second = hlo_subtract(g, times(g, linalg_over(g, left, b, 1), next_b), own_b);
  first = divide_columns(g, first, determinant);
  second = linalg_shift(g, divide_columns(g, second, determinant), 1, 1);
  hlo_t single = hlo_not(g, hlo_or(g, f->begins, f->ends));
  hlo_t y = divide_columns(g, b, guarded(g, single, a));
  y = hlo_select(g, linalg_over(g, f->begins, b, 1), first, y);
  return hlo_select(g, linalg_over(g, f->ends, b, 1), second, y);
}

static bool read_system(torus_call_t *call, hlo_graph_t *g, hlo_t x, hlo_t pivots, hlo_t b) {
  if (!linalg_require_matrix(call, g, x, true) || !linalg_require_matrix(call, g, b, false))
    return false;
  int rank = hlo_rank(g, x);
  bool fits = hlo_rank(g, pivots) == rank - 1 && hlo_dtype(g, x) == hlo_dtype(g, b) &&
              hlo_dim(g, x, rank - 1) == hlo_dim(g, b, hlo_rank(g, b) - 2) &&
              torus_dtype_is_integral(hlo_dtype(g, pivots));
  for (int d = 0; fits && d < rank - 1; ++d)
    fits = hlo_dim(g, pivots, d) == hlo_dim(g, x, d);
  if (!fits)
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "linalg.ldl_solve: Incompatible shapes");
  return fits;
}

TORUS_OP(linalg_ldl_solve, "linalg_ldl_solve", 0) {
  hlo_t x = op_tensor(call, 0), pivots = op_tensor(call, 1), b = op_tensor(call, 2);
  if (linalg_failed(call, g) || !read_system(call, g, x, pivots, b))
    return;
  int64_t dims[TORUS_MAX_RANK];
  bool hermitian = is_hermitian(call, 3, hlo_dtype(g, x));
  hlo_t sides = b;
  pivots = hlo_unsqueeze(g, hlo_convert(g, pivots, TORUS_DTYPE_I32), hlo_rank(g, pivots));
  if (!linalg_broadcast_batches(call, g, &x, &b) ||
      !linalg_broadcast_batches(call, g, &pivots, &sides))
    return;
  int leading = hlo_shape(g, b, dims) - 2;
  if (hlo_numel(g, b) == 0) {
    op_return(call, 0, b);
    return;
  }
  ldl_factors_t f = read_factors(g, linalg_stack(g, x, 2),
                                 hlo_squeeze(g, linalg_stack(g, pivots, 2), 2), hermitian);
  b = solve_triangle(g, &f, linalg_stack(g, b, 2), true);
  b = solve_triangle(g, &f, solve_diagonal(g, &f, b), false);
  op_return(call, 0, linalg_unstack(g, b, leading, dims));
}
