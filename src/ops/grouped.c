/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Products of ragged groups (mixtures of experts) with static shapes.
 *
 * The rows of a matrix belong to G consecutive groups that end at offs[0], offs[1], ... Each group
 * is cut into blocks of B rows, its last one padded with zeros, so that every block belongs to one
 * group: with B = ceil(M / G) at most M / B + G blocks hold any M rows, twice the work of a dense
 * product at worst, and B = 1 is the plain gather of one weight per row. */
#include "ops/spatial.h"

typedef struct blocks {
  int64_t rows, groups, block, count; /* M, G, B, T */
  hlo_t ends, starts;                 /* (G) rows of each group */
  hlo_t block_ends, block_starts;     /* (G) blocks of each group */
  hlo_t group;                        /* (T) group of each block, G for unused ones */
  hlo_t row, valid;                   /* (T * B) row that each place holds, and whether it does */
} blocks_t;

static const torus_dtype_t I32 = TORUS_DTYPE_I32;

/* Entry k: how many entries of |ends| are <= positions[k], that is the group it lies in. */
static hlo_t group_of(hlo_graph_t *g, hlo_t positions, hlo_t ends) {
  int64_t dims[2] = {hlo_dim(g, positions, 0), hlo_dim(g, ends, 0)};
  hlo_t at = spatial_along(g, positions, 2, dims, 0);
  hlo_t behind = hlo_compare(g, HLO_LE, spatial_along(g, ends, 2, dims, 1), at);
  return hlo_reduce(g, HLO_REDUCE_ADD, hlo_convert(g, behind, I32), 1, (const int[]){1}, false);
}

/* [0, x0, x1, ...] without the last. */
static hlo_t shifted(hlo_graph_t *g, hlo_t x) { return spatial_pad_dim(g, x, 0, 1, -1); }

static hlo_t take_group(hlo_graph_t *g, hlo_t x, hlo_t group, int64_t groups) {
  return hlo_take(g, x, 0, spatial_clamp_int(g, group, 0, groups - 1));
}

/* The row at every place of every block. */
static void place_rows(hlo_graph_t *g, blocks_t *b) {
  hlo_t place = spatial_iota(g, I32, b->count * b->block);
  hlo_t size = hlo_const_int(g, I32, b->block);
  hlo_t of = hlo_take(g, b->group, 0, hlo_divide(g, place, size));
  hlo_t first = hlo_multiply(g, take_group(g, b->block_starts, of, b->groups), size);
  hlo_t inside = hlo_subtract(g, place, first);
  hlo_t row = hlo_add(g, take_group(g, b->starts, of, b->groups), inside);
  hlo_t used = hlo_compare_f(g, HLO_LT, of, (double)b->groups);
  hlo_t held = hlo_compare(g, HLO_LT, row, take_group(g, b->ends, of, b->groups));
  b->valid = hlo_and(g, used, held);
  b->row = spatial_clamp_int(g, row, 0, b->rows - 1);
}

static blocks_t make_blocks(torus_call_t *call, hlo_graph_t *g, int64_t rows) {
  blocks_t b = {.rows = rows, .groups = op_tensor_dim(call, 2, 0)};
  b.block = (rows + b.groups - 1) / b.groups;
  b.count = b.block == 1 ? rows : rows / b.block + b.groups;
  b.ends = op_tensor_as(call, 2, I32);
  b.starts = shifted(g, b.ends);
  hlo_t sizes = hlo_subtract(g, b.ends, b.starts);
  hlo_t up = hlo_add(g, sizes, hlo_const_int(g, I32, b.block - 1));
  b.block_ends = hlo_scan(g, HLO_REDUCE_ADD,
                          hlo_divide(g, up, hlo_const_int(g, I32, b.block)), 0);
  b.block_starts = shifted(g, b.block_ends);
  b.group = group_of(g, spatial_iota(g, I32, b.count), b.block_ends);
  place_rows(g, &b);
  return b;
}

/* (M, K) -> (T, B, K), zeros at places that hold no row. */
static hlo_t into_blocks(hlo_graph_t *g, const blocks_t *b, hlo_t x) {
  hlo_t rows = hlo_take(g, x, 0, b->row);
  int64_t dims[2] = {b->count * b->block, hlo_dim(g, x, 1)};
  hlo_t zero = hlo_const(g, hlo_dtype(g, x), 0);
  hlo_t kept = hlo_select(g, spatial_along(g, b->valid, 2, dims, 0), rows, zero);
  return spatial_split(g, kept, 0, b->count, b->block);
}

/* (T, B, N) -> (M, N); rows behind the last group are zero. */
static hlo_t out_of_blocks(hlo_graph_t *g, const blocks_t *b, hlo_t y) {
  hlo_t row = spatial_iota(g, I32, b->rows), of = group_of(g, row, b->ends);
  hlo_t first = hlo_multiply(g, take_group(g, b->block_starts, of, b->groups),
                             hlo_const_int(g, I32, b->block));
  hlo_t place = hlo_add(g, first, hlo_subtract(g, row, take_group(g, b->starts, of, b->groups)));
  place = spatial_clamp_int(g, place, 0, b->count * b->block - 1);
  hlo_t rows = hlo_take(g, spatial_join(g, y, 0), 0, place);
  int64_t dims[2] = {b->rows, hlo_dim(g, rows, 1)};
  hlo_t held = hlo_compare_f(g, HLO_LT, of, (double)b->groups);
  return hlo_select(g, spatial_along(g, held, 2, dims, 0), rows,
                    hlo_const(g, hlo_dtype(g, rows), 0));
}

static hlo_t batched(hlo_graph_t *g, hlo_t x, int cx, hlo_t y, int cy) {
  hlo_dot_dims_t dims = {.batch_count = 1, .contract_count = 1};
  dims.lhs_contract[0] = cx;
  dims.rhs_contract[0] = cy;
  return hlo_dot_general(g, x, y, &dims, op_accumulate_type(hlo_dtype(g, x)));
}

/* (M, K) x (G, K, N), groups along M. */
static hlo_t rows_by_groups(torus_call_t *call, hlo_graph_t *g, hlo_t x, hlo_t w) {
  blocks_t b = make_blocks(call, g, hlo_dim(g, x, 0));
  hlo_t y = batched(g, into_blocks(g, &b, x), 2, take_group(g, w, b.group, b.groups), 1);
  return out_of_blocks(g, &b, y);
}

/* (M, K) x (K, N), groups along K -> (G, M, N). */
static hlo_t groups_by_rows(torus_call_t *call, hlo_graph_t *g, hlo_t x, hlo_t w) {
  blocks_t b = make_blocks(call, g, hlo_dim(g, w, 0));
  hlo_t left = into_blocks(g, &b, hlo_swap_dims(g, x, 0, 1));
  hlo_t parts = batched(g, left, 1, into_blocks(g, &b, w), 1);
  return spatial_add_rows(g, parts, 0, b.groups, b.group);
}

static hlo_t grouped(torus_call_t *call, hlo_graph_t *g, hlo_t x, hlo_t w) {
  int rank_x = op_tensor_rank(call, 0), rank_w = op_tensor_rank(call, 1);
  if (rank_x == 3 && rank_w == 3) return batched(g, x, 2, w, 1);
  if (rank_x == 2 && rank_w == 3) return rows_by_groups(call, g, x, w);
  if (rank_x == 2 && rank_w == 2) return groups_by_rows(call, g, x, w);
  /* (G, M, K) x (K, N), groups along N: the transpose of the first case. */
  hlo_t y = rows_by_groups(call, g, hlo_swap_dims(g, w, 0, 1), hlo_swap_dims(g, x, 1, 2));
  return hlo_swap_dims(g, y, 0, 1);
}

/* The shape of a result without products: no rows, no groups or nothing to sum over. */
static hlo_t empty_result(torus_call_t *call, hlo_graph_t *g, torus_dtype_t dtype) {
  int rank_x = op_tensor_rank(call, 0), rank_w = op_tensor_rank(call, 1), rank = 0;
  int64_t dims[3] = {0};
  if (rank_x == 3 && rank_w == 3) dims[rank++] = op_tensor_dim(call, 0, 0);
  if (rank_x == 2 && rank_w == 2) dims[rank++] = op_tensor_dim(call, 2, 0);
  dims[rank++] = op_tensor_dim(call, 0, rank_x - 2);
  dims[rank++] = op_tensor_dim(call, 1, rank_w - 1);
  return hlo_zeros(g, dtype, rank, dims);
}

static bool grouped_fits(torus_call_t *call) {
  int rank_x = op_tensor_rank(call, 0), rank_w = op_tensor_rank(call, 1);
  bool ragged = rank_x == 2 || rank_w == 2;
  bool fits = rank_x >= 2 && rank_x <= 3 && rank_w >= 2 && rank_w <= 3 &&
              op_tensor_dtype(call, 0) == op_tensor_dtype(call, 1) &&
              op_has(call, 2) == ragged && !op_has(call, 3);
  fits = fits && op_tensor_dim(call, 0, rank_x - 1) == op_tensor_dim(call, 1, rank_w - 2);
  if (!fits) op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "unexpected arguments of _grouped_mm");
  return fits;
}

TORUS_OP(grouped_mm, "_grouped_mm", 0) {
  if (!grouped_fits(call)) return;
  torus_dtype_t dtype = op_dtype_or(call, 4, op_tensor_dtype(call, 0));
  bool empty = op_tensor_numel(call, 0) == 0 || op_tensor_numel(call, 1) == 0 ||
               (op_has(call, 2) && op_tensor_numel(call, 2) == 0);
  if (empty) {
    op_return(call, 0, empty_result(call, g, dtype));
    return;
  }
  op_return(call, 0, hlo_convert(g, grouped(call, g, op_tensor(call, 0), op_tensor(call, 1)),
                                 dtype));
}
