/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Rows of different lengths: between values one after the other and a padded tensor; and between the
 * two ways in which a sparse matrix names its rows. */
#include "ops/axes.h"
#include "ops/indexing.h"
#include "ops/math.h"
#include "ops/sort.h"

/* The row whose stretch of |offsets| (rank 1) holds each of 0 .. size - 1; beyond the last offset
 * the number of rows. */
static hlo_t row_of_each(hlo_graph_t *g, hlo_t offsets, int64_t size) {
  int64_t rows = hlo_dim(g, offsets, 0) - 1;
  hlo_t place = hlo_iota(g, TORUS_DTYPE_I64, 1, &size, 0);
  if (rows == 0 || size == 0) return place;
  return sort_search(g, hlo_slice_dim(g, offsets, 0, 1, rows), place, true);
}

/* Argument |i|, element 0 of its list, when it is the only one. */
static hlo_t only_offsets(torus_call_t *call, int i) {
  if (op_list_size(call, i) != 1) {
    op_fallback(call, "more than one ragged dimension");
    return HLO_NONE;
  }
  return hlo_convert(op_graph(call), op_list_tensor(call, i, 0), TORUS_DTYPE_I64);
}

/* (values [L, ...], offsets, max_lengths, padding_value) -> [B, max, ...]: each place of the padded
 * tensor looks its value up. */
TORUS_OP(jagged_to_padded, "_jagged_to_padded_dense_forward", 0) {
  int64_t dims[TORUS_MAX_RANK];
  hlo_t offsets = only_offsets(call, 1), x = op_tensor(call, 0);
  if (op_failed(call) || hlo_graph_failed(g)) return;
  int rank = hlo_shape(g, x, dims);
  int64_t shape[TORUS_MAX_RANK] = {hlo_dim(g, offsets, 0) - 1, op_ints_at(call, 2, 0)};
  for (int d = 1; d < rank; d++)
    shape[d + 1] = dims[d];
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t fill = op_scalar(call, 3, dtype);
  if (dims[0] == 0 || shape[0] * shape[1] == 0) {
    op_return(call, 0, hlo_splat(g, fill, rank + 1, shape));
    return;
  }
  hlo_t start = hlo_slice_dim(g, offsets, 0, 0, shape[0]);
  hlo_t end = hlo_slice_dim(g, offsets, 0, 1, shape[0]);
  hlo_t place = hlo_iota(g, TORUS_DTYPE_I64, 2, shape, 1);
  place = hlo_add(g, place, hlo_broadcast_in_dim(g, start, 2, shape, (const int[]){0}));
  hlo_t inside = hlo_compare(g, HLO_LT, place,
                             hlo_broadcast_in_dim(g, end, 2, shape, (const int[]){0}));
  hlo_t last = math_size(g, TORUS_DTYPE_I64, dims[0] - 1);
  hlo_t y = hlo_take(g, x, 0, hlo_minimum(g, place, last));
  inside = hlo_broadcast_in_dim(g, inside, rank + 1, shape, (const int[]){0, 1});
  op_return(call, 0, hlo_select(g, inside, y, fill));
}

/* (dense [B, max, ...], offsets, total_L) -> [L, ...]. Values that a row is too short for are 0. */
TORUS_OP(padded_to_jagged, "_padded_dense_to_jagged_forward", 0) {
  int64_t dims[TORUS_MAX_RANK], size;
  hlo_t offsets = only_offsets(call, 1);
  if (op_failed(call)) return;
  int64_t rows = op_tensor_dim(call, 0, 0), most = op_tensor_dim(call, 0, 1);
  if (op_has(call, 2)) {
    size = op_int(call, 2);
  } else {
    size = op_read_int(call, hlo_index_dim(g, offsets, 0, rows));
    g = op_graph(call); /* the read ended the window */
    offsets = only_offsets(call, 1);
  }
  hlo_t x = op_tensor(call, 0);
  if (op_failed(call) || hlo_graph_failed(g)) return;
  int rank = hlo_shape(g, x, dims);
  int64_t flat[TORUS_MAX_RANK] = {rows * most};
  for (int d = 2; d < rank; d++)
    flat[d - 1] = dims[d];
  if (rows * most == 0 || size == 0) {
    flat[0] = size;
    op_return(call, 0, hlo_zeros(g, hlo_dtype(g, x), rank - 1, flat));
    return;
  }
  hlo_t row = hlo_minimum(g, row_of_each(g, offsets, size),
                          math_size(g, TORUS_DTYPE_I64, rows - 1));
  hlo_t place = hlo_subtract(g, hlo_iota(g, TORUS_DTYPE_I64, 1, &size, 0),
                             hlo_take(g, offsets, 0, row));
  hlo_t width = math_size(g, TORUS_DTYPE_I64, most);
  hlo_t inside = hlo_compare(g, HLO_LT, place, width);
  place = hlo_minimum(g, place, math_size(g, TORUS_DTYPE_I64, most - 1));
  place = hlo_add(g, place, hlo_multiply(g, row, width));
  hlo_t y = hlo_take(g, hlo_reshape(g, x, rank - 1, flat), 0, place);
  flat[0] = size;
  inside = hlo_broadcast_in_dim(g, inside, rank - 1, flat, (const int[]){0});
  op_return(call, 0, hlo_select(g, inside, y, hlo_const(g, hlo_dtype(g, x), 0)));
}

/* ---- rows of sparse matrices ---- */

/* (row indices in order, number of rows, out_int32) -> rows + 1 offsets */
TORUS_OP(coo_to_csr, "_convert_indices_from_coo_to_csr", 0) {
  int64_t rows = op_int(call, 1), size = rows + 1;
  hlo_t x = op_tensor_as(call, 0, TORUS_DTYPE_I64);
  torus_dtype_t dtype = op_bool(call, 2) ? TORUS_DTYPE_I32 : TORUS_DTYPE_I64;
  if (op_failed(call) || hlo_graph_failed(g)) return;
  hlo_t row = hlo_iota(g, TORUS_DTYPE_I64, 1, &size, 0);
  hlo_t offsets = hlo_numel(g, x) == 0 ? hlo_zeros(g, dtype, 1, &size)
                                       : sort_search(g, x, row, false);
  op_return(call, 0, hlo_convert(g, offsets, dtype));
}

/* (offsets, plain indices, out_int32, transpose) -> two rows of indices */
TORUS_OP(csr_to_coo, "_convert_indices_from_csr_to_coo", 0) {
  if (op_tensor_rank(call, 0) != 1) {
    op_fallback(call, "batches of compressed matrices");
    return;
  }
  hlo_t offsets = op_tensor_as(call, 0, TORUS_DTYPE_I64), plain = op_tensor(call, 1);
  torus_dtype_t dtype = op_bool(call, 2) ? TORUS_DTYPE_I32 : TORUS_DTYPE_I64;
  int64_t size = op_tensor_dim(call, 1, 0);
  hlo_t rows = hlo_unsqueeze(g, hlo_convert(g, row_of_each(g, offsets, size), dtype), 0);
  plain = hlo_unsqueeze(g, hlo_convert(g, plain, dtype), 0);
  bool transposed = op_bool(call, 3);
  op_return(call, 0, hlo_concatenate(g, (hlo_t[]){transposed ? plain : rows,
                                                  transposed ? rows : plain}, 2, 0));
}
