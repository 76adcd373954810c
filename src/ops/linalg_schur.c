/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The Schur form by the implicitly shifted QR iteration: Francis' double shift for real matrices,
 * Wilkinson's single one for complex ones (Golub and Van Loan, "Matrix Computations", 4th edition,
 * section 7.5). Shifts, deflation and the start of a sweep are chosen as LAPACK's lahqr does, which
 * also gives the eigenvalues its order.
 *
 * Each matrix of a stack has an active part of its own, rows |split| to |end|; in each round it
 * either loses what has converged at its end or is swept once. A sweep chases a bulge down with
 * reflectors of three rows, the third one empty for complex matrices. All matrices take the step at
 * the same row at the same time, those whose active part it does not belong to do nothing. The
 * basis, if it is wanted, stands in rows below the matrix, whose columns it shares. */
#include "ops/linalg.h"

enum { EXCEPTIONAL = 10 }; /* rounds without deflation before other shifts are tried */

typedef struct schur_loop {
  bool real;
  int64_t size, most_rounds;
  double epsilon, least;
} schur_loop_t;

/* state: round, matrix, last row of the active part, rounds since it shrank. */
enum { ROUND, MATRIX, END, STALLED, ALL_STATE };

/* The diagonal, below[k] = h(k + 1, k) and above[k] = h(k, k + 1); zeros past the matrix. */
typedef struct bands {
  hlo_t diagonal, below, above;
} bands_t;

static hlo_t up(hlo_graph_t *g, hlo_t x) { return linalg_shift(g, x, 1, -1); } /* x[k + 1] */
static hlo_t down(hlo_graph_t *g, hlo_t x) { return linalg_shift(g, x, 1, 1); } /* x[k - 1] */

static hlo_t i32(hlo_graph_t *g, int64_t value) { return hlo_const_int(g, TORUS_DTYPE_I32, value); }

static hlo_t times(hlo_graph_t *g, hlo_t a, hlo_t b) { return hlo_multiply(g, a, b); }

static hlo_t sum3(hlo_graph_t *g, hlo_t a, hlo_t b, hlo_t c) {
  return hlo_add(g, hlo_add(g, a, b), c);
}

/* a / b, and a where b, which is real, is zero. */
static hlo_t ratio(hlo_graph_t *g, hlo_t a, hlo_t b) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t one = hlo_const(g, hlo_dtype(g, b), 1);
  b = hlo_select(g, hlo_compare_f(g, HLO_EQ, b, 0), one, b);
  if (!torus_dtype_is_complex(hlo_dtype(g, a)))
    return hlo_divide(g, a, b);
  return hlo_complex(g, hlo_divide(g, hlo_real(g, a), b), hlo_divide(g, hlo_imag(g, a), b));
}

static bands_t read_bands(hlo_graph_t *g, hlo_t x) {
  bands_t b = {linalg_diagonal(g, x), linalg_diagonal(g, linalg_shift(g, x, 1, -1)),
               linalg_diagonal(g, linalg_shift(g, x, 2, -1))};
  return b;
}

/* Number |index| of each vector. */
static hlo_t pick(hlo_graph_t *g, hlo_t x, hlo_t index) { return linalg_pick(g, x, 1, index); }

/* ---- deflation ---- */

/* Whether h(k, k - 1) may be set to zero: small beside its neighbours, and so is what that does to
 * the eigenvalues (Ahues and Tisseur, LAPACK Working Note 122, 1997). */
static hlo_t is_negligible(hlo_graph_t *g, const bands_t *b, const schur_loop_t *loop) {
  hlo_t here = linalg_size(g, b->diagonal), before = down(g, here);
  hlo_t below = linalg_size(g, b->below);
  hlo_t left = down(g, below), above = down(g, linalg_size(g, b->above));
  hlo_t around = hlo_add(g, before, here);
  around = hlo_select(g, hlo_compare_f(g, HLO_EQ, around, 0), hlo_add(g, down(g, left), below),
                      around);
  hlo_t close = hlo_compare(g, HLO_LE, left, hlo_multiply_f(g, around, loop->epsilon));
  hlo_t gap = linalg_size(g, hlo_subtract(g, down(g, b->diagonal), b->diagonal));
  hlo_t greater = hlo_maximum(g, left, above), lesser = hlo_minimum(g, left, above);
  hlo_t wide = hlo_maximum(g, here, gap), narrow = hlo_minimum(g, here, gap);
  hlo_t sum = hlo_add(g, wide, greater);
  hlo_t moved = times(g, lesser, ratio(g, greater, sum));
  hlo_t limit = hlo_multiply_f(g, times(g, narrow, ratio(g, wide, sum)), loop->epsilon);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t least = hlo_const(g, hlo_dtype(g, limit), loop->least);
  hlo_t harmless = hlo_compare(g, HLO_LE, moved, hlo_maximum(g, limit, least));
  return hlo_or(g, hlo_and(g, close, harmless), hlo_compare(g, HLO_LE, left, least));
}

/* First row of the active part that ends with row |end|. */
static hlo_t find_split(hlo_graph_t *g, const bands_t *b, hlo_t end, const schur_loop_t *loop) {
  hlo_t found = is_negligible(g, b, loop);
  hlo_t number = linalg_numbers(g, found, 1);
  hlo_t inside = hlo_compare(g, HLO_LE, number, linalg_over(g, end, number, 1));
  number = hlo_select(g, hlo_and(g, found, inside), number, i32(g, 0));
  return hlo_reduce(g, HLO_REDUCE_MAXIMUM, number, 1, (const int[]){1}, false);
}

/* x with zero left of the diagonal in row |split|. */
static hlo_t cut(hlo_graph_t *g, hlo_t x, hlo_t split) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t row = linalg_numbers(g, x, 1), column = linalg_numbers(g, x, 2);
  hlo_t here = hlo_and(g, hlo_compare(g, HLO_EQ, row, linalg_over(g, split, x, 1)),
                       hlo_compare(g, HLO_EQ, hlo_add_f(g, column, 1), row));
  return hlo_select(g, here, hlo_const(g, hlo_dtype(g, x), 0), x);
}

/* ---- shifts ---- */

/* [[a, b], [c, d]], whose eigenvalues are the shifts. */
typedef struct corner {
  hlo_t a, b, c, d;
} corner_t;

/* Where the active part ends, where it begins, and which of the shifts this round takes. */
typedef struct active {
  hlo_t split, end;
  hlo_t from_end, from_start; /* BOOL: exceptional shifts */
} active_t;

static active_t make_active(hlo_graph_t *g, hlo_t split, hlo_t end, hlo_t stalled) {
  hlo_t often = hlo_remainder(g, stalled, i32(g, EXCEPTIONAL));
  hlo_t rarely = hlo_remainder(g, stalled, i32(g, 2 * EXCEPTIONAL));
  hlo_t from_end = hlo_compare_f(g, HLO_EQ, rarely, 0);
  hlo_t either = hlo_compare_f(g, HLO_EQ, often, 0);
  return (active_t){split, end, from_end, hlo_and(g, either, hlo_not(g, from_end))};
}

/* The sizes of |count| elements below the diagonal, from |first| on. */
static hlo_t sizes_below(hlo_graph_t *g, const bands_t *b, hlo_t first, int count) {
  hlo_t sum = linalg_size(g, pick(g, b->below, first));
  if (count == 2)
    sum = hlo_add(g, sum, linalg_size(g, pick(g, b->below, hlo_add_f(g, first, 1))));
  return sum;
}

/* Exceptional shifts: the size of some elements below the diagonal, beside a diagonal element. */
static void exceptional(hlo_graph_t *g, const bands_t *b, const active_t *part, int count,
                        hlo_t *out_size, hlo_t *out_base) {
  hlo_t at_end = sizes_below(g, b, hlo_add_f(g, part->end, -count), count);
  hlo_t at_start = sizes_below(g, b, part->split, count);
  *out_size = hlo_select(g, part->from_end, at_end, at_start);
  *out_base = hlo_select(g, part->from_end, pick(g, b->diagonal, part->end),
                         pick(g, b->diagonal, part->split));
}

static corner_t last_corner(hlo_graph_t *g, const bands_t *b, hlo_t end) {
  hlo_t before = hlo_add_f(g, end, -1);
  return (corner_t){pick(g, b->diagonal, before), pick(g, b->above, before),
                    pick(g, b->below, before), pick(g, b->diagonal, end)};
}

static corner_t choose_corner(hlo_graph_t *g, const bands_t *b, const active_t *part) {
  hlo_t size, base, odd = hlo_or(g, part->from_end, part->from_start);
  corner_t c = last_corner(g, b, part->end);
  exceptional(g, b, part, 2, &size, &base);
  hlo_t moved = hlo_add(g, hlo_multiply_f(g, size, 0.75), base);
  return (corner_t){hlo_select(g, odd, moved, c.a),
                    hlo_select(g, odd, hlo_multiply_f(g, size, -0.4375), c.b),
                    hlo_select(g, odd, size, c.c), hlo_select(g, odd, moved, c.d)};
}

/* The two shifts are |out_real| + and - i |out_imag|: conjugates, or twice the real eigenvalue that
 * is closer to d. */
static void double_shift(hlo_graph_t *g, corner_t c, hlo_t *out_real, hlo_t *out_imag) {
  hlo_t scale = hlo_add(g, hlo_add(g, hlo_abs(g, c.a), hlo_abs(g, c.b)),
                        hlo_add(g, hlo_abs(g, c.c), hlo_abs(g, c.d)));
  hlo_t a = ratio(g, c.a, scale), d = ratio(g, c.d, scale);
  hlo_t middle = hlo_multiply_f(g, hlo_add(g, a, d), 0.5);
  hlo_t product = times(g, hlo_subtract(g, a, middle), hlo_subtract(g, d, middle));
  product = hlo_subtract(g, product, times(g, ratio(g, c.b, scale), ratio(g, c.c, scale)));
  hlo_t root = hlo_sqrt(g, hlo_abs(g, product));
  if (hlo_graph_failed(g))
    return;
  hlo_t first = hlo_add(g, middle, root), second = hlo_subtract(g, middle, root);
  hlo_t nearer = hlo_compare(g, HLO_LE, hlo_abs(g, hlo_subtract(g, first, d)),
                             hlo_abs(g, hlo_subtract(g, second, d)));
  hlo_t real = hlo_select(g, nearer, first, second);
  hlo_t conjugates = hlo_compare_f(g, HLO_GE, product, 0);
  hlo_t zero = hlo_const(g, hlo_dtype(g, root), 0);
  *out_real = times(g, scale, hlo_select(g, conjugates, middle, real));
  *out_imag = times(g, scale, hlo_select(g, conjugates, root, zero));
}

/* The eigenvalue of the last corner that is closer to d. */
static hlo_t single_shift(hlo_graph_t *g, const bands_t *b, const active_t *part) {
  hlo_t size, base, odd = hlo_or(g, part->from_end, part->from_start);
  corner_t c = last_corner(g, b, part->end);
  hlo_t u = times(g, hlo_sqrt(g, c.b), hlo_sqrt(g, c.c));
  hlo_t x = hlo_multiply_f(g, hlo_subtract(g, c.a, c.d), 0.5);
  hlo_t scale = hlo_maximum(g, linalg_size(g, u), linalg_size(g, x));
  hlo_t xs = ratio(g, x, scale), us = ratio(g, u, scale);
  hlo_t y = hlo_sqrt(g, hlo_add(g, times(g, xs, xs), times(g, us, us)));
  hlo_t agree = hlo_add(g, times(g, hlo_real(g, xs), hlo_real(g, y)),
                        times(g, hlo_imag(g, xs), hlo_imag(g, y)));
  y = hlo_select(g, hlo_compare_f(g, HLO_LT, agree, 0), hlo_negate(g, y), y);
  hlo_t below = hlo_add(g, xs, y);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t none = hlo_compare_f(g, HLO_EQ, below, 0);
  below = hlo_select(g, none, hlo_const(g, hlo_dtype(g, below), 1), below);
  hlo_t shift = hlo_subtract(g, c.d, times(g, u, hlo_divide(g, us, below)));
  exceptional(g, b, part, 1, &size, &base);
  hlo_t moved = hlo_convert(g, hlo_multiply_f(g, size, 0.75), hlo_dtype(g, base));
  return hlo_select(g, odd, hlo_add(g, moved, base), shift);
}

/* ---- the start of a sweep ---- */

/* For each row, the first column of the product of shifted matrices that begin there. */
static void double_start(hlo_graph_t *g, const bands_t *b, const active_t *part, hlo_t *out_v) {
  hlo_t real = HLO_NONE, imag = HLO_NONE;
  double_shift(g, choose_corner(g, b, part), &real, &imag);
  real = linalg_over(g, real, b->diagonal, 1);
  imag = linalg_over(g, imag, b->diagonal, 1);
  hlo_t here = hlo_subtract(g, b->diagonal, real), next = up(g, b->diagonal);
  hlo_t scale = sum3(g, hlo_abs(g, here), hlo_abs(g, imag), hlo_abs(g, b->below));
  hlo_t below = ratio(g, b->below, scale);
  out_v[0] = sum3(g, times(g, below, b->above), times(g, here, ratio(g, here, scale)),
                  times(g, imag, ratio(g, imag, scale)));
  out_v[1] = times(g, below, hlo_add(g, here, hlo_subtract(g, next, real)));
  out_v[2] = times(g, below, up(g, b->below));
}

static void single_start(hlo_graph_t *g, const bands_t *b, const active_t *part, hlo_t *out_v) {
  hlo_t shift = linalg_over(g, single_shift(g, b, part), b->diagonal, 1);
  out_v[0] = hlo_subtract(g, b->diagonal, shift);
  out_v[1] = b->below;
  out_v[2] = hlo_full_like(g, b->diagonal, TORUS_DTYPE_INVALID, 0);
}

/* Whether a sweep may start at each row because what it leaves in the row before is negligible. */
static hlo_t may_start(hlo_graph_t *g, const bands_t *b, const hlo_t *v, double epsilon) {
  hlo_t size = linalg_size(g, b->diagonal);
  hlo_t left = times(g, linalg_size(g, down(g, b->below)),
                     hlo_add(g, linalg_size(g, v[1]), linalg_size(g, v[2])));
  hlo_t around = times(g, linalg_size(g, v[0]), sum3(g, down(g, size), size, up(g, size)));
  return hlo_compare(g, HLO_LE, left, hlo_multiply_f(g, around, epsilon));
}

/* The row where the sweep starts, [batch], and the vector that its first reflector takes to one
 * element, [batch, 3]. */
static hlo_t find_start(hlo_graph_t *g, const bands_t *b, const active_t *part,
                        const schur_loop_t *loop, hlo_t *out_v) {
  hlo_t v[3], parts[3];
  (loop->real ? double_start : single_start)(g, b, part, v);
  hlo_t scale = sum3(g, linalg_size(g, v[0]), linalg_size(g, v[1]), linalg_size(g, v[2]));
  for (int i = 0; i < 3; ++i)
    v[i] = ratio(g, v[i], scale);
  hlo_t number = linalg_numbers(g, b->diagonal, 1), split = linalg_over(g, part->split, number, 1);
  hlo_t good = hlo_and(g, may_start(g, b, v, loop->epsilon), hlo_compare(g, HLO_GT, number, split));
  hlo_t last = linalg_over(g, hlo_add_f(g, part->end, loop->real ? -2 : -1), number, 1);
  good = hlo_and(g, hlo_or(g, good, hlo_compare(g, HLO_EQ, number, split)),
                 hlo_compare(g, HLO_LE, number, last));
  hlo_t start = hlo_reduce(g, HLO_REDUCE_MAXIMUM, hlo_select(g, good, number, i32(g, 0)), 1,
                           (const int[]){1}, false);
  for (int i = 0; i < 3; ++i)
    parts[i] = hlo_unsqueeze(g, pick(g, v[i], start), 1);
  *out_v = hlo_concatenate(g, parts, 3, 1);
  return start;
}

/* ---- the sweep ---- */

/* state: row, row behind the last, matrix, start and end of each matrix's sweep, its first vector.
 */
enum { ROW, STOP, SWEPT, FIRST, LAST, VECTOR, SWEEP_STATE };

static hlo_t is_before_stop(hlo_graph_t *g, const hlo_t *state, void *context) {
  (void)context;
  return hlo_compare(g, HLO_LT, state[ROW], state[STOP]);
}

/* Three rows (place 1) or columns (2) from |k| on. */
static hlo_t three(hlo_graph_t *g, hlo_t x, int place, hlo_t k) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t starts[3] = {i32(g, 0), i32(g, 0), i32(g, 0)};
  int64_t sizes[3] = {hlo_dim(g, x, 0), hlo_dim(g, x, 1), hlo_dim(g, x, 2)};
  starts[place] = k;
  sizes[place] = 3;
  return hlo_dynamic_slice(g, x, starts, sizes);
}

static hlo_t put_three(hlo_graph_t *g, hlo_t x, hlo_t part, int place, hlo_t k) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t starts[3] = {i32(g, 0), i32(g, 0), i32(g, 0)};
  starts[place] = k;
  return hlo_dynamic_update_slice(g, x, part, starts);
}

/* Where the sweep of each matrix is at row k: at its start, or anywhere. */
typedef struct place {
  hlo_t k, starts, goes; /* rank 0; BOOL [batch] */
} place_t;

static place_t find_place(hlo_graph_t *g, const hlo_t *state) {
  hlo_t k = hlo_splat(g, state[ROW], 1, (const int64_t[]){hlo_dim(g, state[FIRST], 0)});
  hlo_t behind = hlo_compare(g, HLO_GE, k, state[FIRST]);
  return (place_t){state[ROW], hlo_compare(g, HLO_EQ, k, state[FIRST]),
                   hlo_and(g, behind, hlo_compare(g, HLO_LT, k, state[LAST]))};
}

/* Rows k, k + 1, k + 2 reflected. In column k - 1 the bulge becomes one element; at the start of a
 * sweep the two elements that appear below it are negligible. */
static hlo_t reflect_rows(hlo_graph_t *g, hlo_t rows, const linalg_reflector_t *r,
                          const place_t *at) {
  hlo_t reflected = linalg_apply_reflector(g, rows, r->v, hlo_conj(g, r->tau));
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t is_left = hlo_compare(g, HLO_EQ, hlo_add_f(g, linalg_numbers(g, rows, 2), 1), at->k);
  hlo_t changed = hlo_and(g, is_left, linalg_over(g, at->goes, rows, 1));
  hlo_t top = hlo_compare_f(g, HLO_EQ, linalg_numbers(g, rows, 1), 0);
  hlo_t kept = hlo_select(g, linalg_over(g, at->starts, rows, 1), reflected,
                          linalg_over(g, r->beta, rows, 1));
  hlo_t left = hlo_select(g, top, kept, hlo_const(g, hlo_dtype(g, rows), 0));
  return hlo_select(g, changed, left, reflected);
}

static linalg_reflector_t bulge_reflector(hlo_graph_t *g, const hlo_t *state, hlo_t rows,
                                          const place_t *at) {
  linalg_reflector_t r = {HLO_NONE, HLO_NONE, HLO_NONE};
  hlo_t left = hlo_maximum(g, hlo_add_f(g, at->k, -1), i32(g, 0));
  hlo_t bulge = linalg_column(g, rows, left);
  if (hlo_graph_failed(g))
    return r;
  hlo_t vector = hlo_select(g, linalg_over(g, at->starts, bulge, 1), state[VECTOR], bulge);
  r = linalg_make_reflector(g, vector, i32(g, 0));
  if (!hlo_graph_failed(g))
    r.tau = hlo_select(g, at->goes, r.tau, hlo_const(g, hlo_dtype(g, r.tau), 0));
  return r;
}

static void sweep_step(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  (void)context;
  if (hlo_graph_failed(g))
    return;
  for (size_t i = 0; i < SWEEP_STATE; ++i)
    out_state[i] = state[i];
  place_t at = find_place(g, state);
  hlo_t rows = three(g, state[SWEPT], 1, at.k);
  linalg_reflector_t r = bulge_reflector(g, state, rows, &at);
  hlo_t x = put_three(g, state[SWEPT], reflect_rows(g, rows, &r, &at), 1, at.k);
  hlo_t columns = linalg_apply_reflector_right(g, three(g, x, 2, at.k), r.v, r.tau);
  out_state[SWEPT] = put_three(g, x, columns, 2, at.k);
  out_state[ROW] = hlo_add_f(g, state[ROW], 1);
}

/* x after one sweep of each matrix unless it is |done|. */
static hlo_t sweep(hlo_graph_t *g, hlo_t x, const bands_t *b, const active_t *part, hlo_t done,
                   const schur_loop_t *loop) {
  hlo_t state[SWEEP_STATE], results[SWEEP_STATE];
  hlo_t start = find_start(g, b, part, loop, &state[VECTOR]);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  state[FIRST] = hlo_select(g, done, i32(g, loop->size), start);
  state[LAST] = hlo_select(g, done, i32(g, -1), part->end);
  state[ROW] = hlo_reduce_all(g, HLO_REDUCE_MINIMUM, state[FIRST]);
  state[STOP] = hlo_reduce_all(g, HLO_REDUCE_MAXIMUM, state[LAST]);
  state[SWEPT] = x;
  hlo_while(g, state, SWEEP_STATE, is_before_stop, sweep_step, NULL, results);
  return results[SWEPT];
}

/* ---- the iteration ---- */

static hlo_t is_unfinished(hlo_graph_t *g, const hlo_t *state, void *context) {
  const schur_loop_t *loop = context;
  hlo_t some = hlo_reduce_all(g, HLO_REDUCE_OR, hlo_compare_f(g, HLO_GE, state[END], 0));
  return hlo_and(g, some, hlo_compare_f(g, HLO_LT, state[ROUND], (double)loop->most_rounds));
}

static void schur_round(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  const schur_loop_t *loop = context;
  bands_t b = read_bands(g, state[MATRIX]);
  hlo_t end = state[END], split = find_split(g, &b, end, loop);
  hlo_t stalled = hlo_add_f(g, state[STALLED], 1);
  hlo_t done = hlo_compare(g, HLO_GE, split, hlo_add_f(g, end, loop->real ? -1 : 0));
  active_t part = make_active(g, split, end, stalled);
  out_state[MATRIX] = sweep(g, cut(g, state[MATRIX], split), &b, &part, done, loop);
  out_state[END] = hlo_select(g, done, hlo_add_f(g, split, -1), end);
  out_state[STALLED] = hlo_select(g, done, i32(g, 0), stalled);
  out_state[ROUND] = hlo_add_f(g, state[ROUND], 1);
}

static schur_loop_t make_loop(torus_dtype_t dtype, int64_t size) {
  bool wide = torus_dtype_real(dtype) == TORUS_DTYPE_F64;
  double epsilon = linalg_epsilon(dtype), least = wide ? 0x1p-1022 : 0x1p-126;
  return (schur_loop_t){!torus_dtype_is_complex(dtype), size, 30 * size * (size < 10 ? 10 : size),
                        epsilon, least * (double)size / epsilon};
}

enum { ROOM = 2 }; /* rows and columns for the last reflectors, which have three */

static hlo_t with_room(hlo_graph_t *g, hlo_t x, int64_t rows) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  const int64_t low[3] = {0}, high[3] = {0, rows, ROOM};
  return hlo_pad(g, x, hlo_const(g, hlo_dtype(g, x), 0), low, high, NULL);
}

/* The Hessenberg form with room, and the basis below it. */
static hlo_t start_matrix(hlo_graph_t *g, hlo_t x, bool vectors) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t batch = hlo_dim(g, x, 0), size = hlo_dim(g, x, 1);
  hlo_t parts[2] = {x, linalg_identity(g, hlo_dtype(g, x), batch, size, size)};
  x = linalg_hessenberg(g, vectors ? hlo_concatenate(g, parts, 2, 1) : x);
  parts[0] = with_room(g, linalg_part(g, x, 1, 0, size), ROOM);
  if (!vectors)
    return parts[0];
  parts[1] = with_room(g, linalg_part(g, x, 1, size, size), 0);
  return hlo_concatenate(g, parts, 2, 1);
}

linalg_schur_t linalg_schur(hlo_graph_t *g, hlo_t x, bool vectors) {
  linalg_schur_t result = {HLO_NONE, HLO_NONE, HLO_NONE};
  hlo_t state[ALL_STATE], results[ALL_STATE], start = start_matrix(g, x, vectors);
  if (hlo_graph_failed(g))
    return result;
  int64_t batch = hlo_dim(g, x, 0), size = hlo_dim(g, x, 1);
  schur_loop_t loop = make_loop(hlo_dtype(g, x), size);
  state[ROUND] = i32(g, 0);
  state[MATRIX] = start;
  state[END] = hlo_splat(g, i32(g, size - 1), 1, &batch);
  state[STALLED] = hlo_zeros(g, TORUS_DTYPE_I32, 1, &batch);
  hlo_while(g, state, ALL_STATE, is_unfinished, schur_round, &loop, results);
  x = linalg_part(g, results[MATRIX], 2, 0, size);
  result.t = linalg_part(g, x, 1, 0, size);
  if (vectors)
    result.z = linalg_part(g, x, 1, size + ROOM, size);
  hlo_t open = hlo_compare_f(g, HLO_GE, results[END], 0);
  result.failed = hlo_reduce_all(g, HLO_REDUCE_OR, open);
  return result;
}
