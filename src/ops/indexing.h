/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* What the operators that take index tensors share: masks as positions, rows written by number. */
#ifndef TORUS_OPS_INDEXING_H_
#define TORUS_OPS_INDEXING_H_

#include "ops/op.h"

/* Argument i, an int32 or int64 tensor, as I64. Other types are errors unless it is empty. */
hlo_t index_argument(torus_call_t *call, hlo_graph_t *g, int i);

/* Type for positions within an array of this length: 32 bits where they suffice. */
torus_dtype_t index_position_dtype(int64_t length);
/* Among the true elements of the rank-1 |mask|, the number of each, from 0. The false elements get
 * some number in range. */
hlo_t index_ranks(hlo_graph_t *g, hlo_t mask);
/* The positions of the true elements of the rank-1 |mask| in ascending order, I64 [size]; the first
 * |size| of them, |fill| behind the last. */
hlo_t index_true_positions(hlo_graph_t *g, hlo_t mask, int64_t size, int64_t fill);
/* Row-major I64 positions within |dims| as one coordinate per dimension. */
void index_unravel(hlo_graph_t *g, hlo_t positions, int rank, const int64_t *dims,
                   hlo_t *out_coordinates);
/* How many elements are true, rank-0 I64. */
hlo_t index_count(hlo_graph_t *g, hlo_t mask);
/* Room for |count| of at most |limit| entries: a power of two, so that few programs serve all. */
int64_t index_room(int64_t count, int64_t limit);

/* x with |updates| combined into the rows number |index| (rank 1) of |dim|; the shape of |updates|
 * is that of x with |dim| as long as |index|. The same signature as hlo_put_along. */
hlo_t index_put_rows(hlo_graph_t *g, hlo_scatter_t how, hlo_t x, int dim, hlo_t index,
                     hlo_t updates);

/* A rank-0 node as rank 1. */
hlo_t index_at_least_1d(hlo_graph_t *g, hlo_t x);

/* Positions (i, j) of a matrix with j - i == offset, as BOOL [rows, columns] broadcast to |dims|,
 * whose dimensions |row_dim| and |column_dim| are meant. |how| compares j - i with |offset|. */
hlo_t index_diagonal_mask(hlo_graph_t *g, hlo_comparison_t how, int rank, const int64_t *dims,
                          int row_dim, int column_dim, int64_t offset);

#endif /* TORUS_OPS_INDEXING_H_ */
