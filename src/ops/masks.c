/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Masks and the positions they select: nonzero, masked_select, masked_scatter. */
#include "ops/indexing.h"

/* ---- positions ---- */

torus_dtype_t index_position_dtype(int64_t length) {
  return length < INT32_MAX ? TORUS_DTYPE_I32 : TORUS_DTYPE_I64;
}

hlo_t index_ranks(hlo_graph_t *g, hlo_t mask) {
  torus_dtype_t dtype = index_position_dtype(hlo_numel(g, mask));
  hlo_t counts = hlo_scan(g, HLO_REDUCE_ADD, hlo_convert(g, mask, dtype), 0);
  return hlo_maximum(g, hlo_add_f(g, counts, -1), hlo_const_int(g, dtype, 0));
}

/* Sorting the positions with the false ones moved behind all beats scattering them by their ranks
 * on every platform: scatters run one element at a time. */
hlo_t index_true_positions(hlo_graph_t *g, hlo_t mask, int64_t size, int64_t fill) {
  int64_t length = hlo_numel(g, mask);
  hlo_t unused = hlo_soft_int(g, TORUS_DTYPE_I64, fill);
  if (hlo_graph_failed(g) || length == 0 || size == 0)
    return hlo_splat(g, unused, 1, &size);
  torus_dtype_t dtype = index_position_dtype(length);
  hlo_t behind = hlo_soft_int(g, dtype, length), sorted;
  hlo_t keys = hlo_select(g, mask, hlo_iota(g, dtype, 1, &length, 0), behind);
  hlo_sort(g, &keys, 1, 0, false, false, &sorted);
  if (size <= length)
    sorted = hlo_slice_dim(g, sorted, 0, 0, size);
  else
    sorted = hlo_pad(g, sorted, behind, (int64_t[]){0}, (int64_t[]){size - length}, NULL);
  hlo_t is_true = hlo_compare(g, HLO_LT, sorted, behind);
  return hlo_select(g, is_true, hlo_convert(g, sorted, TORUS_DTYPE_I64), unused);
}

hlo_t index_count(hlo_graph_t *g, hlo_t mask) {
  return hlo_reduce_all(g, HLO_REDUCE_ADD, hlo_convert(g, mask, TORUS_DTYPE_I64));
}

int64_t index_room(int64_t count, int64_t limit) {
  int64_t room = 1;
  while (room < count)
    room *= 2;
  return room < limit ? room : limit;
}

void index_unravel(hlo_graph_t *g, hlo_t positions, int rank, const int64_t *dims,
                   hlo_t *out_coordinates) {
  for (int d = rank - 1; d >= 0; --d) {
    hlo_t size = hlo_soft_int(g, TORUS_DTYPE_I64, dims[d]);
    out_coordinates[d] = d == 0 ? positions : hlo_remainder(g, positions, size);
    if (d > 0)
      positions = hlo_divide(g, positions, size);
  }
}

/* ---- nonzero and masks ---- */

static hlo_t flat_truth(torus_call_t *call, hlo_graph_t *g, int i) {
  return hlo_flatten(g, op_tensor_as(call, i, TORUS_DTYPE_BOOL));
}

/* [n] positions -> [n, rank] coordinates. */
static hlo_t coordinate_rows(hlo_graph_t *g, hlo_t positions, int rank, const int64_t *dims) {
  hlo_t columns[TORUS_MAX_RANK];
  index_unravel(g, positions, rank, dims, columns);
  for (int d = 0; d < rank; ++d)
    columns[d] = hlo_unsqueeze(g, columns[d], 1);
  return hlo_concatenate(g, columns, (size_t)rank, 1);
}

static int argument_dims(const torus_call_t *call, int i, int64_t *out_dims) {
  int rank = op_tensor_rank(call, i);
  for (int d = 0; d < rank; ++d)
    out_dims[d] = op_tensor_dim(call, i, d);
  return rank;
}

TORUS_OP(nonzero, "nonzero", 0) {
  int64_t dims[TORUS_MAX_RANK], length = op_tensor_numel(call, 0);
  int rank = argument_dims(call, 0, dims);
  int64_t count = length > 0 ? op_read_int(call, index_count(g, flat_truth(call, g, 0))) : 0;
  if (op_failed(call))
    return;
  g = op_graph(call);
  if (rank == 0 || count == 0) {
    op_return(call, 0, hlo_zeros(g, TORUS_DTYPE_I64, 2, (int64_t[]){count, rank}));
    return;
  }
  hlo_t positions = index_true_positions(g, flat_truth(call, g, 0), index_room(count, length), 0);
  op_return_prefix(call, 0, coordinate_rows(g, positions, rank, dims), count);
}

TORUS_OP(nonzero_static, "nonzero_static", 0) {
  int64_t dims[TORUS_MAX_RANK], size = op_int(call, 1);
  int rank = argument_dims(call, 0, dims);
  if (size < 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "nonzero_static: size must not be negative");
    return;
  }
  if (rank == 0 || size == 0) {
    op_return(call, 0, hlo_zeros(g, TORUS_DTYPE_I64, 2, (int64_t[]){size, rank}));
    return;
  }
  hlo_t fill = hlo_soft_int(g, TORUS_DTYPE_I64, op_int(call, 2));
  if (op_tensor_numel(call, 0) == 0) {
    op_return(call, 0, hlo_splat(g, fill, 2, (int64_t[]){size, rank}));
    return;
  }
  hlo_t positions = index_true_positions(g, flat_truth(call, g, 0), size, -1);
  hlo_t rows = coordinate_rows(g, positions, rank, dims);
  hlo_t unused = hlo_compare_f(g, HLO_LT, hlo_unsqueeze(g, positions, 1), 0);
  unused = hlo_expand(g, unused, 2, (int64_t[]){size, rank});
  op_return(call, 0, hlo_select(g, unused, fill, rows));
}

/* Arguments i and j broadcast together, flat; j as a mask. */
static void masked_operands(torus_call_t *call, hlo_graph_t *g, hlo_t *out_x, hlo_t *out_mask) {
  int64_t a[TORUS_MAX_RANK], b[TORUS_MAX_RANK], joint[TORUS_MAX_RANK];
  int rank_a = argument_dims(call, 0, a), rank_b = argument_dims(call, 1, b);
  int rank = hlo_broadcast_shape(g, rank_a, a, rank_b, b, joint);
  if (rank < 0)
    return;
  *out_x = hlo_expand(g, op_tensor(call, 0), rank, joint);
  *out_mask = hlo_expand(g, op_tensor_as(call, 1, TORUS_DTYPE_BOOL), rank, joint);
}

static bool require_mask(torus_call_t *call, int i) {
  if (op_tensor_dtype(call, i) == TORUS_DTYPE_BOOL)
    return true;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "expected BoolTensor for mask");
  return false;
}

TORUS_OP(masked_select, "masked_select", 0) {
  hlo_t x = HLO_NONE, mask = HLO_NONE;
  if (!require_mask(call, 1))
    return;
  masked_operands(call, g, &x, &mask);
  if (hlo_graph_failed(g))
    return;
  int64_t length = hlo_numel(g, mask), none = 0;
  int64_t count = length > 0 ? op_read_int(call, index_count(g, mask)) : 0;
  if (op_failed(call))
    return;
  g = op_graph(call);
  if (count == 0) {
    op_return(call, 0, hlo_zeros(g, op_tensor_dtype(call, 0), 1, &none));
    return;
  }
  masked_operands(call, g, &x, &mask);
  hlo_t positions = index_true_positions(g, hlo_flatten(g, mask), index_room(count, length), 0);
  op_return_prefix(call, 0, hlo_take(g, hlo_flatten(g, x), 0, positions), count);
}

TORUS_OP(masked_scatter, "masked_scatter", 0) {
  hlo_t x = HLO_NONE, mask = HLO_NONE;
  if (!require_mask(call, 1))
    return;
  if (op_tensor_dtype(call, 0) != op_tensor_dtype(call, 2)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "masked_scatter: expected self and source to have same dtypes");
    return;
  }
  masked_operands(call, g, &x, &mask);
  if (hlo_graph_failed(g))
    return;
  int64_t dims[TORUS_MAX_RANK], available = op_tensor_numel(call, 2);
  int rank = hlo_shape(g, x, dims);
  hlo_t missing =
      hlo_compare(g, HLO_GT, index_count(g, mask), hlo_soft_int(g, TORUS_DTYPE_I64, available));
  op_check(call, missing, TORUS_STATUS_INVALID_ARGUMENT,
           "Number of elements of source < number of ones in mask");
  if (available > 0 && hlo_numel(g, x) > 0) {
    hlo_t ranks = index_ranks(g, hlo_flatten(g, mask));
    hlo_t values = hlo_take(g, hlo_flatten(g, op_tensor(call, 2)), 0, ranks);
    x = hlo_select(g, mask, hlo_reshape(g, values, rank, dims), x);
  }
  op_return(call, 0, x);
}
