/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Cholesky factors, triangular systems, cross products. */
#include "ops/linalg.h"
#include "ops/indexing.h"

/* ---- Cholesky ---- */

/* The order of the first leading minor that is not positive definite: where the diagonal is NaN. */
static hlo_t failed_minor(hlo_graph_t *g, hlo_t factor) {
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, factor, dims);
  hlo_t diagonal = index_diagonal_mask(g, HLO_EQ, rank, dims, rank - 2, rank - 1, 0);
  hlo_t part = hlo_real(g, factor);
  hlo_t bad = hlo_and(g, diagonal, hlo_not(g, hlo_is_finite(g, part)));
  hlo_t number = hlo_add_f(g, hlo_iota(g, TORUS_DTYPE_I32, rank, dims, rank - 2), 1);
  number = hlo_select(g, bad, number, hlo_highest(g, TORUS_DTYPE_I32));
  hlo_t first = hlo_reduce(g, HLO_REDUCE_MINIMUM, number, 2, (int[]){rank - 2, rank - 1}, false);
  hlo_t none = hlo_compare(g, HLO_EQ, first, hlo_highest(g, TORUS_DTYPE_I32));
  return hlo_select(g, none, hlo_const_int(g, TORUS_DTYPE_I32, 0), first);
}

/* The factor of argument 0 with zeros in its other half, and where it failed (0: nowhere). */
static bool cholesky(torus_call_t *call, hlo_graph_t *g, bool upper, hlo_t *out_factor,
                     hlo_t *out_info) {
  hlo_t x = op_tensor(call, 0);
  int64_t dims[TORUS_MAX_RANK];
  if (!linalg_require_matrix(call, g, x, true))
    return false;
  int rank = hlo_shape(g, x, dims);
  *out_factor = x;
  *out_info = hlo_zeros(g, TORUS_DTYPE_I32, rank - 2, dims);
  if (hlo_numel(g, x) == 0)
    return true;
  hlo_t lower =
      linalg_triangle(g, hlo_cholesky(g, upper ? linalg_adjoint(g, x) : x, true), false, 0);
  *out_info = failed_minor(g, lower);
  *out_factor = upper ? linalg_adjoint(g, lower) : lower;
  return true;
}

static void check_positive(torus_call_t *call, hlo_graph_t *g, hlo_t info) {
  op_check(call, hlo_reduce_all(g, HLO_REDUCE_OR, hlo_compare_f(g, HLO_NE, info, 0)),
           TORUS_STATUS_INVALID_ARGUMENT,
           "cholesky: The factorization could not be completed because the input is not "
           "positive-definite");
}

TORUS_OP(linalg_cholesky_ex, "linalg_cholesky_ex", 0) {
  hlo_t factor, info;
  if (!cholesky(call, g, op_bool(call, 1), &factor, &info))
    return;
  if (op_bool(call, 2))
    check_positive(call, g, info);
  op_return(call, 0, factor);
  op_return(call, 1, info);
}

TORUS_OP(cholesky, "cholesky", 0) {
  hlo_t factor, info;
  if (!cholesky(call, g, op_bool(call, 1), &factor, &info))
    return;
  check_positive(call, g, info);
  op_return(call, 0, factor);
}

/* ---- triangular systems ---- */

/* Both operands as matrices that fit: A x = b, or x A = b when |left| is false. */
static bool read_system(torus_call_t *call, hlo_graph_t *g, int a_arg, int b_arg, bool left,
                        hlo_t *out_a, hlo_t *out_b) {
  *out_a = op_tensor(call, a_arg);
  *out_b = op_tensor(call, b_arg);
  if (!linalg_require_matrix(call, g, *out_a, true) ||
      !linalg_require_matrix(call, g, *out_b, false))
    return false;
  int64_t size = hlo_dim(g, *out_a, hlo_rank(g, *out_a) - 1);
  if (size != hlo_dim(g, *out_b, hlo_rank(g, *out_b) - (left ? 2 : 1)) ||
      hlo_dtype(g, *out_a) != hlo_dtype(g, *out_b)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "Incompatible matrices");
    return false;
  }
  return linalg_broadcast_batches(call, g, out_a, out_b);
}

TORUS_OP(linalg_solve_triangular, "linalg_solve_triangular", 0) {
  hlo_t a, b;
  bool left = op_bool(call, 3);
  if (read_system(call, g, 0, 1, left, &a, &b))
    op_return(call, 0,
              linalg_solve_triangle(g, a, b, left, !op_bool(call, 2), op_bool(call, 4), false));
}

TORUS_OP(triangular_solve, "triangular_solve", 0) {
  hlo_t a, b;
  if (!read_system(call, g, 1, 0, true, &a, &b))
    return;
  op_return(
      call, 0,
      linalg_solve_triangle(g, a, b, true, !op_bool(call, 2), op_bool(call, 4), op_bool(call, 3)));
  op_return(call, 1, a);
}

/* x with factor * adjoint(factor) * x == b; the factor is the lower one, or the upper's adjoint. */
static hlo_t solve_by_factor(hlo_graph_t *g, hlo_t factor, hlo_t b, bool upper) {
  hlo_t lower = upper ? linalg_adjoint(g, factor) : factor,
        other = upper ? factor : linalg_adjoint(g, factor);
  b = linalg_solve_triangle(g, lower, b, true, true, false, false);
  return linalg_solve_triangle(g, other, b, true, false, false, false);
}

TORUS_OP(cholesky_solve, "_cholesky_solve_helper", 0) {
  hlo_t a, b;
  if (read_system(call, g, 1, 0, true, &a, &b))
    op_return(call, 0, solve_by_factor(g, a, b, op_bool(call, 2)));
}

TORUS_OP(cholesky_inverse, "cholesky_inverse", 0) {
  hlo_t factor = op_tensor(call, 0);
  if (!linalg_require_matrix(call, g, factor, true))
    return;
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, factor, dims);
  hlo_t diagonal = index_diagonal_mask(g, HLO_EQ, rank, dims, rank - 2, rank - 1, 0);
  hlo_t identity = hlo_convert(g, diagonal, hlo_dtype(g, factor));
  op_return(call, 0, solve_by_factor(g, factor, identity, op_bool(call, 1)));
}

/* ---- cross product ---- */

/* x rotated by |shift| along a dimension of size 3. */
static hlo_t rotate3(hlo_graph_t *g, hlo_t x, int dim, int shift) {
  hlo_t parts[2] = {hlo_slice_dim(g, x, dim, shift, 3 - shift), hlo_slice_dim(g, x, dim, 0, shift)};
  return hlo_concatenate(g, parts, 2, dim);
}

TORUS_OP(linalg_cross, "linalg_cross", 0) {
  hlo_t x, y;
  int rank = op_tensor_rank(call, 0);
  if (rank != op_tensor_rank(call, 1) || rank == 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "linalg.cross: inputs must have the same number of dimensions.");
    return;
  }
  int dim = op_dim(call, 2, rank);
  if (op_failed(call))
    return;
  if (op_tensor_dim(call, 0, dim) != 3 || op_tensor_dim(call, 1, dim) != 3) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "linalg.cross: inputs dimension %d must have length 3.", dim);
    return;
  }
  op_binary_operands(call, 0, 1, TORUS_DTYPE_INVALID, &x, &y);
  hlo_t left = hlo_multiply(g, rotate3(g, x, dim, 1), rotate3(g, y, dim, 2));
  hlo_t right = hlo_multiply(g, rotate3(g, x, dim, 2), rotate3(g, y, dim, 1));
  op_return(call, 0, hlo_subtract(g, left, right));
}
