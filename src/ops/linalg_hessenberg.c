/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Balancing, and the reduction of square matrices to Hessenberg form.
 *
 * Both take the steps of LAPACK's gebal and gehrd, so that the iteration that follows finds
 * eigenvalues in the order that LAPACK gives them (Parlett and Reinsch, "Balancing a matrix for
 * calculation of eigenvalues and eigenvectors", Numer. Math. 13, 1969; Golub and Van Loan, "Matrix
 * Computations", 4th edition, sections 7.4.2 and 7.5.7). */
#include "ops/linalg.h"

/* state of the loops: matrix, first and last row of the part that counts, a rank-0 number. Rows
 * below the square part of the matrix take part in what happens to columns. */
enum { MATRIX, LOW, HIGH, FLAG, ALL_STATE };

static hlo_t over_vector(hlo_graph_t *g, hlo_t x, hlo_t like) { return linalg_over(g, x, like, 1); }

/* |low| <= x <= |high|, each [batch], over the shape of x. */
static hlo_t between(hlo_graph_t *g, hlo_t low, hlo_t x, hlo_t high) {
  return hlo_and(g, hlo_compare(g, HLO_GE, x, over_vector(g, low, x)),
                 hlo_compare(g, HLO_LE, x, over_vector(g, high, x)));
}

/* ---- permutations ---- */

/* For each row (place 1) or column, whether it is zero off the diagonal in the part that counts. */
static hlo_t isolated(hlo_graph_t *g, const hlo_t *state, int place) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t x = state[MATRIX], across = linalg_numbers(g, x, 3 - place);
  hlo_t zero = hlo_const_int(g, TORUS_DTYPE_I32, 0);
  hlo_t low = place == 1 ? hlo_full_like(g, state[LOW], TORUS_DTYPE_I32, 0) : state[LOW];
  hlo_t counts = between(g, low, across, state[HIGH]);
  counts = hlo_and(g, counts, hlo_compare(g, HLO_NE, across, linalg_numbers(g, x, place)));
  counts = hlo_and(g, counts, hlo_compare_f(g, HLO_NE, x, 0));
  hlo_t some = hlo_reduce(g, HLO_REDUCE_OR, counts, 1, (const int[]){3 - place}, false);
  hlo_t here = between(g, low, linalg_numbers(g, some, 1), state[HIGH]);
  hlo_t open = hlo_compare(g, HLO_GT, over_vector(g, state[HIGH], here), zero);
  return hlo_and(g, hlo_and(g, here, open), hlo_not(g, some));
}

/* The last isolated row, -1 for none. */
static hlo_t find_row(hlo_graph_t *g, const hlo_t *state) {
  hlo_t found = isolated(g, state, 1);
  hlo_t none = hlo_const_int(g, TORUS_DTYPE_I32, -1);
  hlo_t number = hlo_select(g, found, linalg_numbers(g, found, 1), none);
  return hlo_reduce(g, HLO_REDUCE_MAXIMUM, number, 1, (const int[]){1}, false);
}

/* The first isolated column, INT32_MAX for none. */
static hlo_t find_column(hlo_graph_t *g, const hlo_t *state) {
  hlo_t found = isolated(g, state, 2);
  hlo_t none = hlo_highest(g, TORUS_DTYPE_I32);
  hlo_t number = hlo_select(g, found, linalg_numbers(g, found, 1), none);
  return hlo_reduce(g, HLO_REDUCE_MINIMUM, number, 1, (const int[]){1}, false);
}

static hlo_t has_flag(hlo_graph_t *g, const hlo_t *state, void *context) {
  (void)context;
  return hlo_compare_f(g, HLO_GT, state[FLAG], 0);
}

/* An isolated row goes to the end of the part that counts, an isolated column to its beginning;
 * either leaves it. */
static void permute_step(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  (void)context;
  hlo_t row = find_row(g, state), column = find_column(g, state);
  hlo_t is_row = hlo_compare_f(g, HLO_GE, row, 0);
  hlo_t is_column = hlo_and(g, hlo_compare(g, HLO_LT, state[LOW], state[HIGH]),
                            hlo_compare(g, HLO_LE, column, state[HIGH]));
  is_column = hlo_and(g, is_column, hlo_not(g, is_row));
  hlo_t from = hlo_select(g, is_row, row, hlo_select(g, is_column, column, state[LOW]));
  hlo_t to = hlo_select(g, is_row, state[HIGH], state[LOW]);
  hlo_t x = linalg_exchange(g, state[MATRIX], 1, from, to);
  out_state[MATRIX] = linalg_exchange(g, x, 2, from, to);
  out_state[LOW] = hlo_add(g, state[LOW], hlo_convert(g, is_column, TORUS_DTYPE_I32));
  out_state[HIGH] = hlo_subtract(g, state[HIGH], hlo_convert(g, is_row, TORUS_DTYPE_I32));
  hlo_t moved = hlo_reduce_all(g, HLO_REDUCE_OR, hlo_or(g, is_row, is_column));
  out_state[FLAG] = hlo_convert(g, moved, TORUS_DTYPE_I32);
}

/* ---- scaling ---- */

enum { FACTOR, COLUMN_LENGTH, ROW_LENGTH, FACTOR_STATE };
enum { MOST_SWEEPS = 100 };

static hlo_t grows(hlo_graph_t *g, const hlo_t *state) {
  return hlo_compare(g, HLO_LT, hlo_multiply_f(g, state[COLUMN_LENGTH], 2), state[ROW_LENGTH]);
}

static hlo_t shrinks(hlo_graph_t *g, const hlo_t *state) {
  return hlo_compare(g, HLO_GE, state[COLUMN_LENGTH], hlo_multiply_f(g, state[ROW_LENGTH], 2));
}

static hlo_t is_unequal(hlo_graph_t *g, const hlo_t *state, void *context) {
  (void)context;
  return hlo_reduce_all(g, HLO_REDUCE_OR, hlo_or(g, grows(g, state), shrinks(g, state)));
}

static void double_or_halve(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  (void)context;
  if (hlo_graph_failed(g))
    return;
  torus_dtype_t dtype = hlo_dtype(g, state[FACTOR]);
  hlo_t one = hlo_const(g, dtype, 1), half = hlo_const(g, dtype, 0.5);
  hlo_t by = hlo_select(g, shrinks(g, state), half, one);
  by = hlo_select(g, grows(g, state), hlo_const(g, dtype, 2), by);
  out_state[FACTOR] = hlo_multiply(g, state[FACTOR], by);
  out_state[COLUMN_LENGTH] = hlo_multiply(g, state[COLUMN_LENGTH], by);
  out_state[ROW_LENGTH] = hlo_divide(g, state[ROW_LENGTH], by);
}

/* The part that counts of row (1) or column (2) |k|: its length. */
static hlo_t length_of(hlo_graph_t *g, const hlo_t *state, int place, hlo_t k) {
  hlo_t x = place == 2 ? state[MATRIX] : hlo_swap_dims(g, state[MATRIX], 1, 2);
  hlo_t column = linalg_column(g, x, k);
  hlo_t counts = between(g, state[LOW], linalg_numbers(g, column, 1), state[HIGH]);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  column = hlo_select(g, counts, column, hlo_const(g, hlo_dtype(g, column), 0));
  return hlo_sqrt(g, linalg_square_sum(g, column));
}

/* The power of two that makes row and column k about equally long; 1 where it gains too little. */
static hlo_t balancing_factor(hlo_graph_t *g, const hlo_t *state, hlo_t k) {
  hlo_t column = length_of(g, state, 2, k), row = length_of(g, state, 1, k);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t one = hlo_const(g, hlo_dtype(g, row), 1);
  hlo_t number = hlo_splat(g, k, 1, (const int64_t[]){hlo_dim(g, row, 0)});
  hlo_t active = hlo_and(g, hlo_compare(g, HLO_GE, number, state[LOW]),
                         hlo_compare(g, HLO_LE, number, state[HIGH]));
  active = hlo_and(g, active, hlo_compare_f(g, HLO_GT, hlo_minimum(g, row, column), 0));
  hlo_t lengths[FACTOR_STATE] = {hlo_full_like(g, row, TORUS_DTYPE_INVALID, 1),
                                 hlo_select(g, active, column, one),
                                 hlo_select(g, active, row, one)};
  hlo_t results[FACTOR_STATE];
  hlo_while(g, lengths, FACTOR_STATE, is_unequal, double_or_halve, NULL, results);
  hlo_t before = hlo_add(g, lengths[COLUMN_LENGTH], lengths[ROW_LENGTH]);
  hlo_t after = hlo_add(g, results[COLUMN_LENGTH], results[ROW_LENGTH]);
  hlo_t gains = hlo_compare(g, HLO_LT, after, hlo_multiply_f(g, before, 0.95));
  return hlo_select(g, gains, results[FACTOR], one);
}

/* x with row (1) or column (2) k of each matrix times |factor|. */
static hlo_t scale_one(hlo_graph_t *g, hlo_t x, int place, hlo_t k, hlo_t factor) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t chosen = hlo_compare(g, HLO_EQ, linalg_numbers(g, x, place), k);
  hlo_t by = hlo_select(g, chosen, linalg_over(g, factor, x, 1),
                        hlo_const(g, hlo_dtype(g, factor), 1));
  return linalg_times_real(g, by, x);
}

static void scale_step(hlo_graph_t *g, hlo_t k, const hlo_t *state, hlo_t *out_state,
                       void *context) {
  (void)context;
  hlo_t factor = balancing_factor(g, state, k);
  if (hlo_graph_failed(g))
    return;
  hlo_t inverse = hlo_divide(g, hlo_const(g, hlo_dtype(g, factor), 1), factor);
  hlo_t x = scale_one(g, state[MATRIX], 1, k, inverse);
  out_state[MATRIX] = scale_one(g, x, 2, k, factor);
  hlo_t changed = hlo_reduce_all(g, HLO_REDUCE_OR, hlo_compare_f(g, HLO_NE, factor, 1));
  out_state[FLAG] = hlo_select(g, changed, hlo_const_int(g, TORUS_DTYPE_I32, 1), state[FLAG]);
}

/* The last entry of the state is the number of sweeps that are left. */
static void scale_sweep(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  const int64_t *size = context;
  for (size_t i = 0; i < ALL_STATE; ++i)
    out_state[i] = state[i];
  out_state[FLAG] = hlo_const_int(g, TORUS_DTYPE_I32, 0);
  linalg_for(g, *size, ALL_STATE, scale_step, NULL, out_state);
  out_state[ALL_STATE] = hlo_add_f(g, state[ALL_STATE], -1);
}

static hlo_t is_unbalanced(hlo_graph_t *g, const hlo_t *state, void *context) {
  (void)context;
  return hlo_and(g, has_flag(g, state, NULL), hlo_compare_f(g, HLO_GT, state[ALL_STATE], 0));
}

static hlo_t balance(hlo_graph_t *g, hlo_t x) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t batch = hlo_dim(g, x, 0), size = hlo_dim(g, x, 2);
  hlo_t last = hlo_const_int(g, TORUS_DTYPE_I32, size - 1);
  hlo_t one = hlo_const_int(g, TORUS_DTYPE_I32, 1);
  hlo_t state[ALL_STATE + 1] = {x, hlo_zeros(g, TORUS_DTYPE_I32, 1, &batch),
                                hlo_splat(g, last, 1, &batch), one};
  hlo_t results[ALL_STATE + 1];
  hlo_while(g, state, ALL_STATE, has_flag, permute_step, NULL, results);
  results[FLAG] = one;
  results[ALL_STATE] = hlo_const_int(g, TORUS_DTYPE_I32, MOST_SWEEPS);
  hlo_while(g, results, ALL_STATE + 1, is_unbalanced, scale_sweep, &size, state);
  return state[MATRIX];
}

/* ---- reduction ---- */

/* Column k with |beta| in row k + 1 and nothing below in the square part. */
static hlo_t reduced_column(hlo_graph_t *g, hlo_t x, hlo_t k, hlo_t next, hlo_t beta,
                            int64_t size) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t row = linalg_numbers(g, x, 1), zero = hlo_const(g, hlo_dtype(g, x), 0);
  hlo_t changed = hlo_and(g, hlo_compare(g, HLO_EQ, linalg_numbers(g, x, 2), k),
                          hlo_compare(g, HLO_GE, row, next));
  changed = hlo_and(g, changed, hlo_compare_f(g, HLO_LT, row, (double)size));
  hlo_t value =
      hlo_select(g, hlo_compare(g, HLO_EQ, row, next), linalg_over(g, beta, x, 1), zero);
  return hlo_select(g, changed, value, x);
}

/* A column's part in the square matrix. */
static hlo_t above(hlo_graph_t *g, hlo_t column, int64_t size) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t inside = hlo_compare_f(g, HLO_LT, linalg_numbers(g, column, 1), (double)size);
  return hlo_select(g, inside, column, hlo_const(g, hlo_dtype(g, column), 0));
}

static void reduce_step(hlo_graph_t *g, hlo_t k, const hlo_t *state, hlo_t *out_state,
                        void *context) {
  const int64_t *size = context;
  hlo_t next = hlo_add_f(g, k, 1), column = above(g, linalg_column(g, state[0], k), *size);
  linalg_reflector_t r = linalg_make_reflector(g, column, next);
  hlo_t x = linalg_apply_reflector(g, state[0], r.v, hlo_conj(g, r.tau));
  x = reduced_column(g, x, k, next, r.beta, *size);
  out_state[0] = linalg_apply_reflector_right(g, x, linalg_part(g, r.v, 1, 0, *size), r.tau);
}

hlo_t linalg_hessenberg(hlo_graph_t *g, hlo_t x) {
  x = balance(g, x);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t size = hlo_dim(g, x, 2);
  linalg_for(g, size - 2, 1, reduce_step, &size, &x);
  return x;
}
