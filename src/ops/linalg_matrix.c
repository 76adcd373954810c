/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Stacks of matrices: the steps that factorisations share. */
#include <string.h>

#include "ops/linalg.h"

/* ---- operands ---- */

bool linalg_failed(const torus_call_t *call, const hlo_graph_t *g) {
  return op_failed(call) || hlo_graph_failed(g);
}

static bool is_solvable_dtype(torus_dtype_t dtype) {
  return dtype == TORUS_DTYPE_F32 || dtype == TORUS_DTYPE_F64 || torus_dtype_is_complex(dtype);
}

bool linalg_require_matrix(torus_call_t *call, hlo_graph_t *g, hlo_t x, bool square) {
  if (linalg_failed(call, g))
    return false;
  int rank = hlo_rank(g, x);
  bool valid = rank >= 2 && is_solvable_dtype(hlo_dtype(g, x)) &&
               (!square || hlo_dim(g, x, rank - 1) == hlo_dim(g, x, rank - 2));
  if (!valid)
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "expected batches of %smatrices of a float or complex type", square ? "square " : "");
  return valid;
}

bool linalg_broadcast_batches(torus_call_t *call, hlo_graph_t *g, hlo_t *a, hlo_t *b) {
  int64_t dims_a[TORUS_MAX_RANK], dims_b[TORUS_MAX_RANK], joint[TORUS_MAX_RANK];
  if (linalg_failed(call, g))
    return false;
  int rank_a = hlo_shape(g, *a, dims_a), rank_b = hlo_shape(g, *b, dims_b);
  int batch = hlo_broadcast_shape(g, rank_a - 2, dims_a, rank_b - 2, dims_b, joint);
  if (batch < 0)
    return false;
  for (int d = 0; d < 2; ++d)
    joint[batch + d] = dims_a[rank_a - 2 + d];
  *a = hlo_expand(g, *a, batch + 2, joint);
  for (int d = 0; d < 2; ++d)
    joint[batch + d] = dims_b[rank_b - 2 + d];
  *b = hlo_expand(g, *b, batch + 2, joint);
  return !hlo_graph_failed(g);
}

double linalg_epsilon(torus_dtype_t dtype) {
  return torus_dtype_real(dtype) == TORUS_DTYPE_F64 ? 0x1p-52 : 0x1p-23;
}

/* ---- stacks ---- */

hlo_t linalg_stack(hlo_graph_t *g, hlo_t x, int own) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t dims[TORUS_MAX_RANK], stacked[TORUS_MAX_RANK] = {1};
  int leading = hlo_shape(g, x, dims) - own;
  for (int d = 0; d < leading; ++d)
    stacked[0] *= dims[d];
  for (int d = 0; d < own; ++d)
    stacked[1 + d] = dims[leading + d];
  return hlo_reshape(g, x, 1 + own, stacked);
}

hlo_t linalg_unstack(hlo_graph_t *g, hlo_t x, int rank, const int64_t *dims) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t own[TORUS_MAX_RANK], full[TORUS_MAX_RANK];
  int own_rank = hlo_shape(g, x, own) - 1;
  for (int d = 0; d < rank; ++d)
    full[d] = dims[d];
  for (int d = 0; d < own_rank; ++d)
    full[rank + d] = own[1 + d];
  return hlo_reshape(g, x, rank + own_rank, full);
}

hlo_t linalg_over(hlo_graph_t *g, hlo_t x, hlo_t like, int place) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, like, dims);
  return hlo_broadcast_in_dim(g, x, rank, dims, (const int[]){0, place});
}

hlo_t linalg_numbers(hlo_graph_t *g, hlo_t like, int place) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, like, dims);
  return hlo_iota(g, TORUS_DTYPE_I32, rank, dims, place);
}

static hlo_t on_diagonal(hlo_graph_t *g, hlo_t like) {
  return hlo_compare(g, HLO_EQ, linalg_numbers(g, like, 1), linalg_numbers(g, like, 2));
}

hlo_t linalg_identity(hlo_graph_t *g, torus_dtype_t dtype, int64_t batch, int64_t rows,
                      int64_t columns) {
  hlo_t shape = hlo_zeros(g, dtype, 3, (const int64_t[]){batch, rows, columns});
  return hlo_convert(g, on_diagonal(g, shape), dtype);
}

hlo_t linalg_diagonal(hlo_graph_t *g, hlo_t x) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t rows = hlo_dim(g, x, 1), columns = hlo_dim(g, x, 2);
  int64_t size = rows < columns ? rows : columns;
  x = linalg_part(g, linalg_part(g, x, 1, 0, size), 2, 0, size);
  hlo_t kept = hlo_select(g, on_diagonal(g, x), x, hlo_const(g, hlo_dtype(g, x), 0));
  return hlo_reduce(g, HLO_REDUCE_ADD, kept, 1, (const int[]){1}, false);
}

hlo_t linalg_set_diagonal(hlo_graph_t *g, hlo_t x, hlo_t diagonal) {
  return hlo_select(g, on_diagonal(g, x), linalg_over(g, diagonal, x, 1), x);
}

hlo_t linalg_column(hlo_graph_t *g, hlo_t x, hlo_t k) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t batch = hlo_dim(g, x, 0), rows = hlo_dim(g, x, 1);
  hlo_t zero = hlo_const_int(g, TORUS_DTYPE_I32, 0);
  hlo_t column =
      hlo_dynamic_slice(g, x, (const hlo_t[]){zero, zero, k}, (const int64_t[]){batch, rows, 1});
  return hlo_reshape(g, column, 2, (const int64_t[]){batch, rows});
}

hlo_t linalg_part(hlo_graph_t *g, hlo_t x, int place, int64_t start, int64_t size) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t low[TORUS_MAX_RANK] = {0}, high[TORUS_MAX_RANK] = {0};
  low[place] = -start;
  high[place] = start + size - hlo_dim(g, x, place);
  if (low[place] == 0 && high[place] == 0)
    return x;
  return hlo_pad(g, x, hlo_const(g, hlo_dtype(g, x), 0), low, high, NULL);
}

hlo_t linalg_shift(hlo_graph_t *g, hlo_t x, int place, int64_t count) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t low[TORUS_MAX_RANK] = {0}, high[TORUS_MAX_RANK] = {0};
  low[place] = count;
  high[place] = -count;
  return hlo_pad(g, x, hlo_const(g, hlo_dtype(g, x), 0), low, high, NULL);
}

hlo_t linalg_take(hlo_graph_t *g, hlo_t x, int place, hlo_t order) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, x, dims);
  dims[place] = hlo_dim(g, order, 1);
  order = hlo_broadcast_in_dim(g, order, rank, dims, (const int[]){0, place});
  return hlo_take_along(g, x, place, order);
}

/* True in the slice |index|, I32 [batch], along |place| of x. */
static hlo_t is_at(hlo_graph_t *g, hlo_t x, int place, hlo_t index) {
  return hlo_compare(g, HLO_EQ, linalg_numbers(g, x, place), linalg_over(g, index, x, place));
}

hlo_t linalg_pick(hlo_graph_t *g, hlo_t x, int place, hlo_t index) {
  hlo_t chosen = is_at(g, x, place, index);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t kept = hlo_select(g, chosen, x, hlo_const(g, hlo_dtype(g, x), 0));
  return hlo_reduce(g, HLO_REDUCE_ADD, kept, 1, &place, false);
}

/* x with the slice |index| along |place| replaced. */
static hlo_t put_slice(hlo_graph_t *g, hlo_t x, int place, hlo_t index, hlo_t slice) {
  hlo_t chosen = is_at(g, x, place, index);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  return hlo_select(g, chosen, hlo_broadcast_back(g, slice, x, 1, &place), x);
}

hlo_t linalg_exchange(hlo_graph_t *g, hlo_t x, int place, hlo_t a, hlo_t b) {
  hlo_t at_a = linalg_pick(g, x, place, a), at_b = linalg_pick(g, x, place, b);
  return put_slice(g, put_slice(g, x, place, a, at_b), place, b, at_a);
}

/* ---- any number of leading dimensions ---- */

hlo_t linalg_adjoint(hlo_graph_t *g, hlo_t x) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int rank = hlo_rank(g, x);
  return hlo_conj(g, hlo_swap_dims(g, x, rank - 2, rank - 1));
}

hlo_t linalg_triangle(hlo_graph_t *g, hlo_t x, bool upper, int64_t offset) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  int rank = hlo_rank(g, x);
  hlo_t row = linalg_numbers(g, x, rank - 2), column = linalg_numbers(g, x, rank - 1);
  hlo_t least = hlo_add_f(g, row, (double)offset);
  hlo_t kept = hlo_compare(g, upper ? HLO_GE : HLO_LE, column, least);
  return hlo_select(g, kept, x, hlo_const(g, hlo_dtype(g, x), 0));
}

hlo_t linalg_solve_triangle(hlo_graph_t *g, hlo_t a, hlo_t b, bool left, bool lower, bool unit,
                            bool transpose) {
  if (hlo_graph_failed(g) || hlo_numel(g, b) == 0)
    return b;
  return hlo_triangular_solve(g, a, b, left, lower, unit, transpose);
}

/* ---- numbers ---- */

static hlo_t largest_magnitude(hlo_graph_t *g, hlo_t x) {
  hlo_t size = hlo_abs(g, hlo_real(g, x));
  if (torus_dtype_is_complex(hlo_dtype(g, x)))
    size = hlo_maximum(g, size, hlo_abs(g, hlo_imag(g, x)));
  return hlo_reduce(g, HLO_REDUCE_MAXIMUM, size, 2, (const int[]){1, 2}, false);
}

/* A float without its mantissa is the power of two below it. */
hlo_t linalg_scale(hlo_graph_t *g, hlo_t x) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t size = largest_magnitude(g, x);
  torus_dtype_t dtype = hlo_dtype(g, size);
  bool wide = dtype == TORUS_DTYPE_F64;
  torus_dtype_t bits = wide ? TORUS_DTYPE_I64 : TORUS_DTYPE_I32;
  hlo_t exponent = hlo_const_int(g, bits, wide ? INT64_C(0x7ff0000000000000) : 0x7f800000);
  hlo_t power = hlo_bitcast(g, hlo_and(g, hlo_bitcast(g, size, bits), exponent), dtype);
  hlo_t usable = hlo_and(g, hlo_compare_f(g, HLO_GT, power, 0), hlo_is_finite(g, power));
  return hlo_select(g, usable, power, hlo_const(g, dtype, 1));
}

hlo_t linalg_size(hlo_graph_t *g, hlo_t x) {
  hlo_t size = hlo_abs(g, hlo_real(g, x));
  if (hlo_graph_failed(g) || !torus_dtype_is_complex(hlo_dtype(g, x)))
    return size;
  return hlo_add(g, size, hlo_abs(g, hlo_imag(g, x)));
}

hlo_t linalg_square_sum(hlo_graph_t *g, hlo_t x) {
  hlo_t real = hlo_real(g, x), square = hlo_multiply(g, real, real);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  if (torus_dtype_is_complex(hlo_dtype(g, x))) {
    hlo_t imag = hlo_imag(g, x);
    square = hlo_add(g, square, hlo_multiply(g, imag, imag));
  }
  return hlo_reduce(g, HLO_REDUCE_ADD, square, 1, (const int[]){1}, false);
}

hlo_t linalg_times_real(hlo_graph_t *g, hlo_t real, hlo_t x) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  if (!torus_dtype_is_complex(hlo_dtype(g, x)))
    return hlo_multiply(g, real, x);
  return hlo_complex(g, hlo_multiply(g, real, hlo_real(g, x)),
                     hlo_multiply(g, real, hlo_imag(g, x)));
}

hlo_t linalg_any_not_finite(hlo_graph_t *g, hlo_t x) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t fine = hlo_is_finite(g, hlo_real(g, x));
  if (torus_dtype_is_complex(hlo_dtype(g, x)))
    fine = hlo_and(g, fine, hlo_is_finite(g, hlo_imag(g, x)));
  return hlo_reduce_all(g, HLO_REDUCE_OR, hlo_not(g, fine));
}

/* ---- loops ---- */

typedef struct counted_loop {
  int64_t count;
  size_t state_count;
  linalg_step_fn step;
  void *context;
} counted_loop_t;

static hlo_t is_below_count(hlo_graph_t *g, const hlo_t *state, void *context) {
  const counted_loop_t *loop = context;
  return hlo_compare(g, HLO_LT, state[0], hlo_const_int(g, TORUS_DTYPE_I32, loop->count));
}

static void counted_step(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  const counted_loop_t *loop = context;
  memcpy(out_state + 1, state + 1, loop->state_count * sizeof *state);
  loop->step(g, state[0], state + 1, out_state + 1, loop->context);
  out_state[0] = hlo_add_f(g, state[0], 1);
}

void linalg_for(hlo_graph_t *g, int64_t count, size_t state_count, linalg_step_fn step,
                void *context, hlo_t *state) {
  if (count <= 0 || hlo_graph_failed(g))
    return;
  counted_loop_t loop = {count, state_count, step, context};
  hlo_t all[LINALG_MAX_STATE + 1], results[LINALG_MAX_STATE + 1];
  all[0] = hlo_const_int(g, TORUS_DTYPE_I32, 0);
  memcpy(all + 1, state, state_count * sizeof *state);
  hlo_while(g, all, state_count + 1, is_below_count, counted_step, &loop, results);
  memcpy(state, results + 1, state_count * sizeof *state);
}
