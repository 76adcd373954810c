/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* LU factors with row exchanges, and what is computed from them: systems, inverses, determinants.
 *
 * Right-looking elimination, one column a step (Golub and Van Loan, "Matrix Computations", 4th
 * edition, algorithm 3.4.1). Rows are picked by masks, so each step is a few passes over the stack
 * that the compiler fuses, without gathers. */
#include "ops/linalg.h"

static int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* ---- factorisation ---- */

/* The row below |k| with the largest entry in column k: I32 [batch]. */
static hlo_t find_pivot(hlo_graph_t *g, hlo_t column, hlo_t k) {
  hlo_t value, index, size = linalg_size(g, column);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t below = hlo_compare(g, HLO_GE, linalg_numbers(g, column, 1), k);
  size = hlo_select(g, below, size, hlo_const(g, hlo_dtype(g, size), -1));
  hlo_reduce_arg(g, true, size, 1, &value, &index);
  return hlo_convert(g, index, TORUS_DTYPE_I32);
}

/* Exchanges row |k| with row |pivot| of each matrix; |out_row| is the new row k, [batch, columns].
 */
static hlo_t exchange_rows(hlo_graph_t *g, hlo_t x, hlo_t k, hlo_t pivot, hlo_t *out_row) {
  *out_row = HLO_NONE;
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t batch = hlo_dim(g, x, 0), columns = hlo_dim(g, x, 2);
  hlo_t number = linalg_numbers(g, x, 1), zero = hlo_const_int(g, TORUS_DTYPE_I32, 0);
  hlo_t is_pivot = hlo_compare(g, HLO_EQ, number, linalg_over(g, pivot, x, 1));
  hlo_t picked = hlo_select(g, is_pivot, x, hlo_const(g, hlo_dtype(g, x), 0));
  *out_row = hlo_reduce(g, HLO_REDUCE_ADD, picked, 1, (const int[]){1}, false);
  hlo_t old =
      hlo_dynamic_slice(g, x, (const hlo_t[]){zero, k, zero}, (const int64_t[]){batch, 1, columns});
  old = hlo_reshape(g, old, 2, (const int64_t[]){batch, columns});
  x = hlo_select(g, is_pivot, linalg_over(g, old, x, 2), x);
  return hlo_select(g, hlo_compare(g, HLO_EQ, number, k), linalg_over(g, *out_row, x, 2), x);
}

/* Column k over its pivot, below the diagonal; unchanged where the pivot is zero. */
static hlo_t multipliers(hlo_graph_t *g, hlo_t column, hlo_t k) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t zero = hlo_const_int(g, TORUS_DTYPE_I32, 0);
  hlo_t pivot = hlo_dynamic_slice(g, column, (const hlo_t[]){zero, k},
                                  (const int64_t[]){hlo_dim(g, column, 0), 1});
  int64_t dims[2] = {hlo_dim(g, column, 0), hlo_dim(g, column, 1)};
  pivot = hlo_broadcast_in_dim(g, pivot, 2, dims, (const int[]){0, 1});
  hlo_t usable = hlo_compare_f(g, HLO_NE, pivot, 0);
  return hlo_select(g, usable, hlo_divide(g, column, pivot), column);
}

/* Subtracts multiples of row k from the rows below and keeps the factors in column k. The masks
 * hold NaN and infinity away from the finished part. */
static hlo_t eliminate(hlo_graph_t *g, hlo_t x, hlo_t k, hlo_t row) {
  hlo_t factor = linalg_over(g, multipliers(g, linalg_column(g, x, k), k), x, 1);
  hlo_t column_number = linalg_numbers(g, x, 2);
  hlo_t below = hlo_compare(g, HLO_GT, linalg_numbers(g, x, 1), k);
  hlo_t right = hlo_compare(g, HLO_GT, column_number, k);
  hlo_t reduced = hlo_subtract(g, x, hlo_multiply(g, factor, linalg_over(g, row, x, 2)));
  hlo_t is_column = hlo_compare(g, HLO_EQ, column_number, k);
  hlo_t stored = hlo_select(g, hlo_and(g, below, is_column), factor, x);
  return hlo_select(g, hlo_and(g, below, right), reduced, stored);
}

static void eliminate_step(hlo_graph_t *g, hlo_t k, const hlo_t *state, hlo_t *out_state,
                           void *context) {
  const bool *pivots_rows = context;
  if (hlo_graph_failed(g))
    return;
  hlo_t x = state[0], row, pivot = hlo_splat(g, k, 1, (const int64_t[]){hlo_dim(g, x, 0)});
  if (*pivots_rows)
    pivot = find_pivot(g, linalg_column(g, x, k), k);
  x = exchange_rows(g, x, k, pivot, &row);
  out_state[0] = eliminate(g, x, k, row);
  hlo_t here = hlo_compare(g, HLO_EQ, linalg_numbers(g, state[1], 1), k);
  hlo_t written = linalg_over(g, hlo_add_f(g, pivot, 1), state[1], 1);
  out_state[1] = hlo_select(g, here, written, state[1]);
}

void linalg_lu(hlo_graph_t *g, hlo_t x, bool pivot, hlo_t *out_factors, hlo_t *out_pivots) {
  *out_factors = *out_pivots = HLO_NONE;
  if (hlo_graph_failed(g))
    return;
  int64_t batch = hlo_dim(g, x, 0), size = smaller(hlo_dim(g, x, 1), hlo_dim(g, x, 2));
  hlo_t state[2] = {x, hlo_zeros(g, TORUS_DTYPE_I32, 2, (const int64_t[]){batch, size})};
  if (batch > 0)
    linalg_for(g, size, 2, eliminate_step, &pivot, state);
  *out_factors = state[0];
  *out_pivots = state[1];
}

static void exchange_step(hlo_graph_t *g, hlo_t k, const hlo_t *state, hlo_t *out_state,
                          void *context) {
  (void)context;
  if (hlo_graph_failed(g))
    return;
  hlo_t zero = hlo_const_int(g, TORUS_DTYPE_I32, 0), row;
  int64_t batch = hlo_dim(g, state[1], 0);
  hlo_t pivot =
      hlo_dynamic_slice(g, state[1], (const hlo_t[]){zero, k}, (const int64_t[]){batch, 1});
  pivot = hlo_add_f(g, hlo_reshape(g, pivot, 1, &batch), -1);
  out_state[0] = exchange_rows(g, state[0], k, pivot, &row);
}

hlo_t linalg_pivot_order(hlo_graph_t *g, hlo_t pivots, int64_t rows) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t batch = hlo_dim(g, pivots, 0), dims[3] = {batch, rows, 1};
  hlo_t state[2] = {hlo_iota(g, TORUS_DTYPE_I32, 3, dims, 1), pivots};
  if (batch > 0)
    linalg_for(g, hlo_dim(g, pivots, 1), 2, exchange_step, NULL, state);
  return hlo_reshape(g, state[0], 2, dims);
}

/* The first zero on the diagonal of U, counted from 1; 0 where there is none. */
static hlo_t singular_at(hlo_graph_t *g, hlo_t factors) {
  hlo_t diagonal = linalg_diagonal(g, factors);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t number = hlo_add_f(g, linalg_numbers(g, diagonal, 1), 1);
  hlo_t none = hlo_highest(g, TORUS_DTYPE_I32);
  number = hlo_select(g, hlo_compare_f(g, HLO_EQ, diagonal, 0), number, none);
  hlo_t first = hlo_reduce(g, HLO_REDUCE_MINIMUM, number, 1, (const int[]){1}, false);
  return hlo_select(g, hlo_compare(g, HLO_EQ, first, none), hlo_const(g, TORUS_DTYPE_I32, 0),
                    first);
}

static void check_nonsingular(torus_call_t *call, hlo_graph_t *g, hlo_t info) {
  op_check(call, hlo_reduce_all(g, HLO_REDUCE_OR, hlo_compare_f(g, HLO_NE, info, 0)),
           TORUS_STATUS_INVALID_ARGUMENT,
           "linalg: a diagonal element of U is zero, the matrix is singular");
}

/* ---- the factors as results ---- */

/* A matrix argument as a stack, with what it takes to give results its leading dimensions. */
typedef struct lu_operand {
  hlo_t stack;
  int leading;
  int64_t dims[TORUS_MAX_RANK];
  int64_t rows, columns;
} lu_operand_t;

static bool read_operand(torus_call_t *call, hlo_graph_t *g, int arg, bool square,
                         lu_operand_t *out_operand) {
  hlo_t x = op_tensor(call, arg);
  if (!linalg_require_matrix(call, g, x, square))
    return false;
  lu_operand_t *o = out_operand;
  o->leading = hlo_shape(g, x, o->dims) - 2;
  o->rows = o->dims[o->leading];
  o->columns = o->dims[o->leading + 1];
  o->stack = linalg_stack(g, x, 2);
  return true;
}

static void give(torus_call_t *call, hlo_graph_t *g, int k, const lu_operand_t *o, hlo_t x) {
  op_return(call, k, linalg_unstack(g, x, o->leading, o->dims));
}

static void give_nothing(torus_call_t *call, hlo_graph_t *g, int k, torus_dtype_t dtype) {
  op_return(call, k, hlo_zeros(g, dtype, 1, (const int64_t[]){0}));
}

TORUS_OP(linalg_lu_factor_ex, "linalg_lu_factor_ex", 0) {
  lu_operand_t a;
  hlo_t factors, pivots;
  if (!read_operand(call, g, 0, false, &a))
    return;
  linalg_lu(g, a.stack, op_bool(call, 1), &factors, &pivots);
  hlo_t info = singular_at(g, factors);
  if (op_bool(call, 2))
    check_nonsingular(call, g, info);
  give(call, g, 0, &a, factors);
  give(call, g, 1, &a, pivots);
  give(call, g, 2, &a, info);
}

/* P with x = P L U: column i has its one in row order[i]. */
static hlo_t permutation_matrix(hlo_graph_t *g, hlo_t order, torus_dtype_t dtype) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t batch = hlo_dim(g, order, 0), rows = hlo_dim(g, order, 1);
  hlo_t row = hlo_iota(g, TORUS_DTYPE_I32, 3, (const int64_t[]){batch, rows, rows}, 1);
  return hlo_convert(g, hlo_compare(g, HLO_EQ, row, linalg_over(g, order, row, 2)), dtype);
}

static hlo_t lower_factor(hlo_graph_t *g, hlo_t factors, int64_t size) {
  hlo_t lower = linalg_triangle(g, linalg_part(g, factors, 2, 0, size), false, -1);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t ones =
      linalg_identity(g, hlo_dtype(g, lower), hlo_dim(g, lower, 0), hlo_dim(g, lower, 1), size);
  return hlo_add(g, lower, ones);
}

static void give_triangles(torus_call_t *call, hlo_graph_t *g, const lu_operand_t *a,
                           hlo_t factors) {
  int64_t size = smaller(a->rows, a->columns);
  give(call, g, 1, a, lower_factor(g, factors, size));
  give(call, g, 2, a, linalg_triangle(g, linalg_part(g, factors, 1, 0, size), true, 0));
}

TORUS_OP(linalg_lu, "linalg_lu", 0) {
  lu_operand_t a;
  hlo_t factors, pivots;
  if (!read_operand(call, g, 0, false, &a))
    return;
  torus_dtype_t dtype = hlo_dtype(g, a.stack);
  linalg_lu(g, a.stack, op_bool(call, 1), &factors, &pivots);
  hlo_t order = linalg_pivot_order(g, pivots, a.rows);
  if (op_bool(call, 1))
    give(call, g, 0, &a, permutation_matrix(g, order, dtype));
  else
    give_nothing(call, g, 0, dtype);
  give_triangles(call, g, &a, factors);
}

/* The pivots argument as a stack of vectors that fits |a|. */
static hlo_t read_pivots(torus_call_t *call, hlo_graph_t *g, int arg, const lu_operand_t *a) {
  hlo_t pivots = op_tensor(call, arg);
  if (linalg_failed(call, g))
    return HLO_NONE;
  int rank = hlo_rank(g, pivots);
  bool fits = rank == a->leading + 1 && hlo_dtype(g, pivots) == TORUS_DTYPE_I32;
  for (int d = 0; fits && d < a->leading; ++d)
    fits = hlo_dim(g, pivots, d) == a->dims[d];
  fits = fits && hlo_dim(g, pivots, rank - 1) == smaller(a->rows, a->columns);
  if (!fits) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "the pivots do not fit the LU factors");
    return HLO_NONE;
  }
  return linalg_stack(g, pivots, 1);
}

TORUS_OP(lu_unpack, "lu_unpack", 0) {
  lu_operand_t a;
  if (!read_operand(call, g, 0, false, &a))
    return;
  torus_dtype_t dtype = hlo_dtype(g, a.stack);
  if (op_bool(call, 3)) {
    hlo_t order = linalg_pivot_order(g, read_pivots(call, g, 1, &a), a.rows);
    give(call, g, 0, &a, permutation_matrix(g, order, dtype));
  } else {
    give_nothing(call, g, 0, dtype);
  }
  if (op_bool(call, 2)) {
    give_triangles(call, g, &a, a.stack);
    return;
  }
  for (int k = 1; k < 3; ++k)
    give_nothing(call, g, k, dtype);
}

/* ---- systems ---- */

static hlo_t inverse_order(hlo_graph_t *g, hlo_t order) {
  hlo_t sorted[2], xs[2] = {order, HLO_NONE};
  xs[1] = linalg_numbers(g, order, 1);
  hlo_sort(g, xs, 2, 1, false, true, sorted);
  return sorted[1];
}

hlo_t linalg_lu_apply(hlo_graph_t *g, hlo_t factors, hlo_t order, hlo_t b, bool adjoint) {
  if (hlo_graph_failed(g) || hlo_numel(g, b) == 0)
    return b;
  if (!adjoint) {
    b = linalg_solve_triangle(g, factors, linalg_take(g, b, 1, order), true, true, true, false);
    return linalg_solve_triangle(g, factors, b, true, false, false, false);
  }
  hlo_t flipped = linalg_adjoint(g, factors);
  b = linalg_solve_triangle(g, flipped, b, true, true, false, false);
  b = linalg_solve_triangle(g, flipped, b, true, false, true, false);
  return linalg_take(g, b, 1, inverse_order(g, order));
}

/* b is a stack; x A = b is the adjoint of adjoint(A) adjoint(x) = adjoint(b). */
static hlo_t apply_side(hlo_graph_t *g, hlo_t factors, hlo_t order, hlo_t b, bool left,
                        bool adjoint) {
  if (left)
    return linalg_lu_apply(g, factors, order, b, adjoint);
  b = linalg_adjoint(g, b);
  return linalg_adjoint(g, linalg_lu_apply(g, factors, order, b, !adjoint));
}

/* Factors and order broadcast with b, which has any number of leading dimensions. */
static hlo_t solve_batches(torus_call_t *call, hlo_graph_t *g, const lu_operand_t *a, hlo_t factors,
                           hlo_t pivots, hlo_t b, bool left, bool adjoint) {
  hlo_t order = linalg_pivot_order(g, pivots, a->rows), b_too = b;
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t dims[TORUS_MAX_RANK];
  factors = linalg_unstack(g, factors, a->leading, a->dims);
  order = linalg_unstack(g, hlo_unsqueeze(g, order, 2), a->leading, a->dims);
  if (!linalg_broadcast_batches(call, g, &factors, &b))
    return HLO_NONE;
  if (!linalg_broadcast_batches(call, g, &order, &b_too))
    return HLO_NONE;
  int leading = hlo_shape(g, b, dims) - 2;
  order = hlo_squeeze(g, linalg_stack(g, order, 2), 2);
  hlo_t x = apply_side(g, linalg_stack(g, factors, 2), order, linalg_stack(g, b, 2), left, adjoint);
  return linalg_unstack(g, x, leading, dims);
}

static bool fits_side(torus_call_t *call, hlo_graph_t *g, const lu_operand_t *a, hlo_t b,
                      bool left) {
  int rank = hlo_rank(g, b);
  bool fits =
      hlo_dim(g, b, rank - (left ? 2 : 1)) == a->rows && hlo_dtype(g, b) == hlo_dtype(g, a->stack);
  if (!fits)
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "linalg.solve: Incompatible shapes");
  return fits;
}

TORUS_OP(linalg_lu_solve, "linalg_lu_solve", 0) {
  lu_operand_t a;
  bool left = op_bool(call, 3);
  if (!read_operand(call, g, 0, true, &a))
    return;
  hlo_t pivots = read_pivots(call, g, 1, &a), b = op_tensor(call, 2);
  if (!linalg_require_matrix(call, g, b, false) || !fits_side(call, g, &a, b, left))
    return;
  op_return(call, 0, solve_batches(call, g, &a, a.stack, pivots, b, left, op_bool(call, 4)));
}

typedef struct solution {
  lu_operand_t a;
  hlo_t factors, pivots, info;
} solution_t;

/* Factors argument 0, or its transpose. */
static bool factor_argument(torus_call_t *call, hlo_graph_t *g, bool transposed,
                            solution_t *out_s) {
  if (!read_operand(call, g, 0, true, &out_s->a))
    return false;
  hlo_t x = transposed ? hlo_swap_dims(g, out_s->a.stack, 1, 2) : out_s->a.stack;
  linalg_lu(g, x, true, &out_s->factors, &out_s->pivots);
  out_s->info = singular_at(g, out_s->factors);
  return !hlo_graph_failed(g);
}

/* Whether B is a batch of vectors, one for each matrix. */
static bool is_vector_side(const hlo_graph_t *g, const lu_operand_t *a, hlo_t b) {
  int rank = hlo_rank(g, b);
  if (rank == 1)
    return true;
  if (rank != a->leading + 1 || hlo_dim(g, b, rank - 1) != a->rows)
    return false;
  for (int d = 0; d < a->leading; ++d)
    if (hlo_dim(g, b, d) != a->dims[d])
      return false;
  return true;
}

TORUS_OP(linalg_solve_ex, "_linalg_solve_ex", 0) {
  solution_t s;
  bool left = op_bool(call, 2);
  if (!factor_argument(call, g, false, &s))
    return;
  hlo_t b = op_tensor(call, 1);
  if (linalg_failed(call, g))
    return;
  bool vector = is_vector_side(g, &s.a, b);
  if (vector)
    b = hlo_unsqueeze(g, b, hlo_rank(g, b));
  if (vector && !left) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "Vector broadcasting is not supported for X A = b");
    return;
  }
  if (!linalg_require_matrix(call, g, b, false) || !fits_side(call, g, &s.a, b, left))
    return;
  b = solve_batches(call, g, &s.a, s.factors, s.pivots, b, left, false);
  if (linalg_failed(call, g))
    return;
  if (op_bool(call, 3))
    check_nonsingular(call, g, s.info);
  op_return(call, 0, vector ? hlo_squeeze(g, b, hlo_rank(g, b) - 1) : b);
  give(call, g, 1, &s.a, s.factors);
  give(call, g, 2, &s.a, s.pivots);
  give(call, g, 3, &s.a, s.info);
}

TORUS_OP(linalg_inv_ex, "linalg_inv_ex", 0) {
  solution_t s;
  if (!factor_argument(call, g, false, &s))
    return;
  if (op_bool(call, 1))
    check_nonsingular(call, g, s.info);
  hlo_t ones =
      linalg_identity(g, hlo_dtype(g, s.a.stack), hlo_dim(g, s.a.stack, 0), s.a.rows, s.a.rows);
  hlo_t order = linalg_pivot_order(g, s.pivots, s.a.rows);
  give(call, g, 0, &s.a, linalg_lu_apply(g, s.factors, order, ones, false));
  give(call, g, 1, &s.a, s.info);
}

/* ---- determinants ---- */

/* -1 for each exchange: [batch], of the real type. */
static hlo_t exchange_sign(hlo_graph_t *g, hlo_t pivots, torus_dtype_t dtype) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t moved = hlo_compare(g, HLO_NE, pivots, hlo_add_f(g, linalg_numbers(g, pivots, 1), 1));
  hlo_t odd = hlo_reduce(g, HLO_REDUCE_XOR, moved, 1, (const int[]){1}, false);
  return hlo_select(g, odd, hlo_const(g, dtype, -1), hlo_const(g, dtype, 1));
}

/* For determinants PyTorch factors the transpose of a row-major real matrix, and the backward
 * formulas rely on that; those of systems take the factors of the matrix itself. */
static bool factors_transpose(const torus_call_t *call, int arg) {
  return op_is_contiguous(call, arg) && !torus_dtype_is_complex(op_tensor_dtype(call, arg));
}

TORUS_OP(linalg_det, "_linalg_det", 0) {
  solution_t s;
  if (!factor_argument(call, g, factors_transpose(call, 0), &s))
    return;
  hlo_t diagonal = linalg_diagonal(g, s.factors);
  hlo_t product = hlo_reduce(g, HLO_REDUCE_MULTIPLY, diagonal, 1, (const int[]){1}, false);
  hlo_t sign = exchange_sign(g, s.pivots, torus_dtype_real(hlo_dtype(g, s.a.stack)));
  give(call, g, 0, &s.a, linalg_times_real(g, sign, product));
  give(call, g, 1, &s.a, s.factors);
  give(call, g, 2, &s.a, s.pivots);
}

/* x over its magnitude, 0 for 0. */
static hlo_t unit_number(hlo_graph_t *g, hlo_t x) {
  hlo_t size = hlo_abs(g, x);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  if (!torus_dtype_is_complex(hlo_dtype(g, x)))
    return hlo_sign(g, x);
  hlo_t zero = hlo_const(g, hlo_dtype(g, x), 0);
  hlo_t scaled = hlo_divide(g, x, hlo_convert(g, size, hlo_dtype(g, x)));
  return hlo_select(g, hlo_compare_f(g, HLO_EQ, size, 0), zero, scaled);
}

TORUS_OP(linalg_slogdet, "_linalg_slogdet", 0) {
  solution_t s;
  if (!factor_argument(call, g, factors_transpose(call, 0), &s))
    return;
  hlo_t diagonal = linalg_diagonal(g, s.factors);
  hlo_t sign = exchange_sign(g, s.pivots, torus_dtype_real(hlo_dtype(g, s.a.stack)));
  hlo_t units =
      hlo_reduce(g, HLO_REDUCE_MULTIPLY, unit_number(g, diagonal), 1, (const int[]){1}, false);
  hlo_t logarithms = hlo_log(g, hlo_abs(g, diagonal));
  give(call, g, 0, &s.a, linalg_times_real(g, sign, units));
  give(call, g, 1, &s.a, hlo_reduce(g, HLO_REDUCE_ADD, logarithms, 1, (const int[]){1}, false));
  give(call, g, 2, &s.a, s.factors);
  give(call, g, 3, &s.a, s.pivots);
}
