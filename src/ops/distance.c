/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Distances between rows: cdist and pdist with their derivatives. */
#include <math.h>
#include <string.h>

#include "ops/indexing.h"

/* ---- the p-norm of differences ---- */

/* Over the last dimension of |difference|, which disappears. p: 0 counts, infinity is the maximum.
 */
static hlo_t norm_last(hlo_graph_t *g, hlo_t difference, double p) {
  torus_dtype_t dtype = hlo_dtype(g, difference);
  int last = hlo_rank(g, difference) - 1;
  hlo_t size = hlo_abs(g, difference);
  if (isinf(p)) /* from 0 rather than -inf, for rows without elements */
    return hlo_maximum(g, hlo_reduce(g, HLO_REDUCE_MAXIMUM, size, 1, &last, false),
                       hlo_const(g, dtype, 0));
  if (p == 0)
    size = hlo_convert(g, hlo_compare_f(g, HLO_NE, size, 0), dtype);
  if (p == 2)
    size = hlo_multiply(g, size, size);
  bool is_general = p != 0 && p != 1 && p != 2;
  if (is_general)
    size = hlo_power(g, size, hlo_soft(g, dtype, p));
  hlo_t sum = hlo_reduce(g, HLO_REDUCE_ADD, size, 1, &last, false);
  if (p == 2)
    return hlo_sqrt(g, sum);
  return is_general ? hlo_power(g, sum, hlo_soft(g, dtype, 1 / p)) : sum;
}

/* Derivative of the norm by each element of |difference| times |grad|; norm and grad are already
 * stretched to the shape of |difference|. 0 where the norm has no derivative. */
static hlo_t norm_gradient(hlo_graph_t *g, hlo_t difference, hlo_t norm, hlo_t grad, double p) {
  torus_dtype_t dtype = hlo_dtype(g, difference);
  hlo_t zero = hlo_const(g, dtype, 0), sign = hlo_sign(g, difference);
  hlo_t size = hlo_abs(g, difference), flat = hlo_compare_f(g, HLO_EQ, norm, 0), slope;
  if (p == 0)
    return hlo_full_like(g, difference, TORUS_DTYPE_INVALID, 0);
  if (p == 1)
    return hlo_multiply(g, grad, sign);
  if (isinf(p))
    return hlo_select(g, hlo_compare(g, HLO_EQ, size, norm), hlo_multiply(g, grad, sign), zero);
  if (p == 2) {
    slope = hlo_divide(g, difference, norm);
  } else {
    if (p < 2)
      flat = hlo_or(g, flat, hlo_compare_f(g, HLO_EQ, size, 0));
    slope = hlo_power(g, hlo_divide(g, size, norm), hlo_soft(g, dtype, p - 1));
    slope = hlo_multiply(g, slope, sign);
  }
  return hlo_select(g, flat, zero, hlo_multiply(g, grad, slope));
}

/* x with a dimension of |size| equal copies put in at |place|. */
static hlo_t stretch(hlo_graph_t *g, hlo_t x, int place, int64_t size) {
  int64_t dims[TORUS_MAX_RANK];
  x = hlo_unsqueeze(g, x, place);
  int rank = hlo_shape(g, x, dims);
  dims[place] = size;
  return hlo_expand(g, x, rank, dims);
}

static bool failed(const torus_call_t *call, const hlo_graph_t *g) {
  return op_failed(call) || hlo_graph_failed(g);
}

static bool require_float(torus_call_t *call, int i) {
  torus_dtype_t dtype = op_tensor_dtype(call, i);
  if (dtype == TORUS_DTYPE_F32 || dtype == TORUS_DTYPE_F64)
    return true;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "distances need floating point tensors");
  return false;
}

/* ---- cdist ---- */

/* [batch..., rows, m] with the leading dimensions of |batch_dims|. */
static hlo_t expand_rows(hlo_graph_t *g, hlo_t x, int batch, const int64_t *batch_dims) {
  int64_t own[TORUS_MAX_RANK], dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, x, own);
  memcpy(dims, batch_dims, (size_t)batch * sizeof *dims);
  dims[batch] = own[rank - 2];
  dims[batch + 1] = own[rank - 1];
  return hlo_expand(g, x, batch + 2, dims);
}

/* x1 - x2 for all pairs: [batch..., rows of x1, rows of x2, m]. Returns the rank of the batch. */
static int pair_differences(torus_call_t *call, hlo_graph_t *g, int i, hlo_t *out_difference) {
  hlo_t x = op_tensor(call, i), y = op_tensor(call, i + 1);
  int64_t a[TORUS_MAX_RANK], b[TORUS_MAX_RANK], joint[TORUS_MAX_RANK];
  if (failed(call, g))
    return -1;
  int rank_a = hlo_shape(g, x, a), rank_b = hlo_shape(g, y, b);
  if (rank_a < 2 || rank_b < 2 || a[rank_a - 1] != b[rank_b - 1]) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "cdist: X1 and X2 must have the same number of columns.");
    return -1;
  }
  int batch = hlo_broadcast_shape(g, rank_a - 2, a, rank_b - 2, b, joint);
  if (batch < 0)
    return -1;
  x = stretch(g, expand_rows(g, x, batch, joint), batch + 1, b[rank_b - 2]);
  y = stretch(g, expand_rows(g, y, batch, joint), batch, a[rank_a - 2]);
  *out_difference = hlo_subtract(g, x, y);
  return hlo_graph_failed(g) ? -1 : batch;
}

TORUS_OP(cdist_forward, "_cdist_forward", 0) {
  hlo_t difference = HLO_NONE;
  if (!require_float(call, 0) || pair_differences(call, g, 0, &difference) < 0)
    return;
  op_return(call, 0, norm_last(g, difference, op_double(call, 2)));
}

TORUS_OP(cdist_backward, "_cdist_backward", 0) {
  hlo_t difference = HLO_NONE;
  if (!require_float(call, 1))
    return;
  int batch = pair_differences(call, g, 1, &difference);
  if (batch < 0)
    return;
  int columns = batch + 1, last = batch + 2;
  int64_t width = hlo_dim(g, difference, last);
  hlo_t grad = stretch(g, op_tensor(call, 0), last, width);
  hlo_t norm = stretch(g, op_tensor(call, 4), last, width);
  hlo_t each = norm_gradient(g, difference, norm, grad, op_double(call, 3));
  op_return(call, 0, hlo_reduce(g, HLO_REDUCE_ADD, each, 1, &columns, false));
}

/* ---- pdist ---- */

/* Row numbers (i, j), i < j, of the n (n - 1) / 2 pairs of |rows| rows. */
static int64_t pair_rows(hlo_graph_t *g, int64_t rows, hlo_t *out_i, hlo_t *out_j) {
  int64_t dims[2] = {rows, rows}, count = rows * (rows - 1) / 2;
  hlo_t mask = hlo_flatten(g, index_diagonal_mask(g, HLO_GT, 2, dims, 0, 1, 0));
  hlo_t flat = index_true_positions(g, mask, count, 0),
        width = hlo_soft_int(g, TORUS_DTYPE_I64, rows);
  *out_i = hlo_divide(g, flat, width);
  *out_j = hlo_remainder(g, flat, width);
  return count;
}

static hlo_t pair_difference(hlo_graph_t *g, hlo_t x, hlo_t i, hlo_t j) {
  return hlo_subtract(g, hlo_take(g, x, 0, i), hlo_take(g, x, 0, j));
}

TORUS_OP(pdist_forward, "_pdist_forward", 0) {
  hlo_t x = op_tensor(call, 0), i, j;
  int64_t rows = op_tensor_rank(call, 0) == 2 ? op_tensor_dim(call, 0, 0) : 0, none = 0;
  if (!require_float(call, 0) || failed(call, g))
    return;
  if (rows <= 1) {
    op_return(call, 0, hlo_zeros(g, hlo_dtype(g, x), 1, &none));
    return;
  }
  int64_t count = pair_rows(g, rows, &i, &j);
  op_return(call, 0,
            op_tensor_dim(call, 0, 1) == 0
                ? hlo_zeros(g, hlo_dtype(g, x), 1, &count)
                : norm_last(g, pair_difference(g, x, i, j), op_double(call, 1)));
}

TORUS_OP(pdist_backward, "_pdist_backward", 0) {
  hlo_t x = op_tensor(call, 1), i, j, zeros = hlo_full_like(g, x, TORUS_DTYPE_INVALID, 0);
  if (!require_float(call, 1) || failed(call, g))
    return;
  if (op_tensor_rank(call, 1) != 2 || op_tensor_dim(call, 1, 0) <= 1 || hlo_numel(g, x) == 0) {
    op_return(call, 0, zeros);
    return;
  }
  pair_rows(g, op_tensor_dim(call, 1, 0), &i, &j);
  int64_t width = op_tensor_dim(call, 1, 1);
  hlo_t grad = stretch(g, op_tensor(call, 0), 1, width),
        norm = stretch(g, op_tensor(call, 3), 1, width);
  hlo_t each = norm_gradient(g, pair_difference(g, x, i, j), norm, grad, op_double(call, 2));
  hlo_t sum = index_put_rows(g, HLO_SCATTER_ADD, zeros, 0, i, each);
  op_return(call, 0, index_put_rows(g, HLO_SCATTER_ADD, sum, 0, j, hlo_negate(g, each)));
}
