/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Unique elements or slices. Their number is read from the device; the results are the leading
 * part of arrays as long as the operand. */
#include "ops/sort.h"

/* One call: how to see the operand as rows, and what is asked for. */
typedef struct unique {
  int dim;    /* rows lie along it; -1: rows are the single elements */
  bool sorts; /* else only neighbours are compared */
  bool inverse, counts;
  bool is_pair; /* the operator has no third result for the counts */
} unique_t;

/* Rows in the order in which they are compared; all have n entries along dimension 0. */
typedef struct unique_rows {
  hlo_t rows;   /* n x m, or n for single elements */
  hlo_t places; /* I64: where the row stands in the operand; HLO_NONE: in place */
  hlo_t starts; /* BOOL: differs from the row before it */
  int64_t size; /* n */
} unique_rows_t;

/* ---- rows ---- */

/* |dim| in front, the others in their order behind it. */
static void front_permutation(int rank, int dim, int *out_permutation) {
  out_permutation[0] = dim;
  for (int i = 0, k = 1; i < rank; ++i) {
    if (i != dim) out_permutation[k++] = i;
  }
}

static hlo_t operand_rows(torus_call_t *call, hlo_graph_t *g, const unique_t *u) {
  hlo_t x = op_ordered(g, op_tensor(call, 0));
  if (x == HLO_NONE || u->dim < 0 || hlo_rank(g, x) < 2) return hlo_flatten(g, x);
  int permutation[TORUS_MAX_RANK];
  front_permutation(hlo_rank(g, x), u->dim, permutation);
  int64_t size = hlo_dim(g, x, u->dim);
  int64_t dims[2] = {size, hlo_numel(g, x) / size};
  return hlo_reshape(g, hlo_transpose(g, x, permutation), 2, dims);
}

/* State of the row sort: column, rows, order so far. */
enum { STATE_COLUMN, STATE_ROWS, STATE_ORDER, STATE_COUNT };

static hlo_t has_column(hlo_graph_t *g, const hlo_t *state, void *context) {
  (void)context;
  return hlo_compare_f(g, HLO_GE, state[STATE_COLUMN], 0);
}

/* Stable sort of the order so far by one column. */
static void sort_by_column(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  (void)context;
  hlo_t rows = state[STATE_ROWS];
  int64_t size = hlo_dim(g, rows, 0);
  hlo_t starts[2] = {hlo_const_int(g, TORUS_DTYPE_I64, 0), state[STATE_COLUMN]};
  hlo_t column = hlo_dynamic_slice(g, rows, starts, (const int64_t[]){size, 1});
  column = hlo_take(g, hlo_reshape(g, column, 1, &size), 0, state[STATE_ORDER]);
  hlo_t sorted[2], xs[2] = {column, state[STATE_ORDER]};
  hlo_sort(g, xs, 2, 0, false, true, sorted);
  out_state[STATE_COLUMN] = hlo_add_f(g, state[STATE_COLUMN], -1);
  out_state[STATE_ROWS] = rows;
  out_state[STATE_ORDER] = sorted[1];
}

/* The lexicographic order of the rows: sorted by the last column first (radix order). */
static hlo_t row_order(hlo_graph_t *g, hlo_t rows) {
  int64_t size = hlo_dim(g, rows, 0), columns = hlo_dim(g, rows, 1);
  hlo_t state[STATE_COUNT] = {
      hlo_const_int(g, TORUS_DTYPE_I64, columns - 1),
      rows,
      hlo_iota(g, TORUS_DTYPE_I64, 1, &size, 0),
  };
  hlo_t results[STATE_COUNT];
  hlo_while(g, state, STATE_COUNT, has_column, sort_by_column, NULL, results);
  return results[STATE_ORDER];
}

static hlo_t row_starts(hlo_graph_t *g, hlo_t rows) {
  hlo_t starts = sort_run_starts(g, rows, 0);
  if (hlo_rank(g, rows) == 1) return starts;
  return hlo_reduce(g, HLO_REDUCE_OR, starts, 1, (const int[]){1}, false);
}

static unique_rows_t compared_rows(torus_call_t *call, hlo_graph_t *g, const unique_t *u) {
  unique_rows_t r = {.rows = operand_rows(call, g, u), .places = HLO_NONE, .starts = HLO_NONE};
  if (r.rows == HLO_NONE) return r;
  r.size = hlo_dim(g, r.rows, 0);
  if (u->sorts && hlo_rank(g, r.rows) == 1) {
    sort_with_places(g, r.rows, 0, false, &r.rows, &r.places);
  } else if (u->sorts) {
    r.places = row_order(g, r.rows);
    r.rows = hlo_take(g, r.rows, 0, r.places);
  }
  r.starts = row_starts(g, r.rows);
  return r;
}

/* ---- results ---- */

static hlo_t count_starts(hlo_graph_t *g, hlo_t starts) {
  return hlo_reduce_all(g, HLO_REDUCE_ADD, hlo_convert(g, starts, TORUS_DTYPE_I64));
}

/* For every row the number of its group. */
static hlo_t row_groups(hlo_graph_t *g, hlo_t starts) {
  hlo_t ones = hlo_convert(g, starts, TORUS_DTYPE_I64);
  return hlo_add_f(g, hlo_scan(g, HLO_REDUCE_ADD, ones, 0), -1);
}

/* The first row of every group, packed to the front. */
static hlo_t group_rows(hlo_graph_t *g, const unique_rows_t *r, hlo_t groups) {
  hlo_t dropped = hlo_const_int(g, TORUS_DTYPE_I64, r->size);
  hlo_t targets = hlo_select(g, r->starts, groups, dropped);
  hlo_t positions = op_positions(g, groups, 0, TORUS_DTYPE_I64);
  hlo_t zeros = hlo_zeros(g, TORUS_DTYPE_I64, 1, &r->size);
  hlo_t firsts = hlo_put_along(g, HLO_SCATTER_SET, zeros, 0, targets, positions);
  return hlo_take(g, r->rows, 0, firsts);
}

/* |size| packed rows in the operand's shape and type, rows along dimension u->dim again. */
static void return_values(torus_call_t *call, hlo_graph_t *g, const unique_t *u, hlo_t rows,
                          int64_t size) {
  int rank = op_tensor_rank(call, 0), front[TORUS_MAX_RANK], back[TORUS_MAX_RANK];
  rows = hlo_convert(g, rows, op_tensor_dtype(call, 0));
  if (u->dim < 0 || rank < 2) {
    op_return_prefix(call, 0, rows, size);
    return;
  }
  front_permutation(rank, u->dim, front);
  int64_t dims[TORUS_MAX_RANK] = {op_tensor_dim(call, 0, u->dim)};
  for (int i = 1; i < rank; ++i) dims[i] = op_tensor_dim(call, 0, front[i]);
  for (int i = 0; i < rank; ++i) back[front[i]] = i;
  rows = hlo_reshape(g, rows, rank, dims);
  if (u->dim == 0) {
    op_return_prefix(call, 0, rows, size);
  } else {
    op_return(call, 0, hlo_transpose(g, hlo_slice_dim(g, rows, 0, 0, size), back));
  }
}

/* For every row or element of the operand the number of its group. */
static void return_inverse(torus_call_t *call, hlo_graph_t *g, const unique_t *u,
                           const unique_rows_t *r, hlo_t groups) {
  if (!u->inverse) {
    op_return(call, 1, op_nothing(g, TORUS_DTYPE_I64));
    return;
  }
  if (r->places != HLO_NONE) {
    hlo_t zeros = hlo_zeros(g, TORUS_DTYPE_I64, 1, &r->size);
    groups = hlo_put_along(g, HLO_SCATTER_SET, zeros, 0, r->places, groups);
  }
  int64_t dims[TORUS_MAX_RANK] = {r->size};
  int rank = u->dim < 0 ? op_tensor_rank(call, 0) : 1;
  for (int i = 0; u->dim < 0 && i < rank; ++i) dims[i] = op_tensor_dim(call, 0, i);
  op_return(call, 1, hlo_reshape(g, groups, rank, dims));
}

static void return_counts(torus_call_t *call, hlo_graph_t *g, const unique_t *u,
                          const unique_rows_t *r, hlo_t groups, int64_t size) {
  if (u->is_pair) return;
  if (!u->counts) {
    op_return(call, 2, op_nothing(g, TORUS_DTYPE_I64));
    return;
  }
  hlo_t zeros = hlo_zeros(g, TORUS_DTYPE_I64, 1, &r->size);
  hlo_t ones = hlo_full_like(g, groups, TORUS_DTYPE_I64, 1);
  op_return_prefix(call, 2, hlo_put_along(g, HLO_SCATTER_ADD, zeros, 0, groups, ones), size);
}

/* Nothing in, nothing out. */
static void return_empty(torus_call_t *call, hlo_graph_t *g, const unique_t *u) {
  hlo_t x = op_tensor(call, 0);
  op_return(call, 0, u->dim < 0 ? hlo_flatten(g, x) : x);
  hlo_t places = hlo_full_like(g, x, TORUS_DTYPE_I64, 0);
  op_return(call, 1, u->inverse && u->dim < 0 ? places : op_nothing(g, TORUS_DTYPE_I64));
  if (!u->is_pair) op_return(call, 2, op_nothing(g, TORUS_DTYPE_I64));
}

static bool check_operand(torus_call_t *call, const unique_t *u) {
  if (torus_dtype_is_complex(op_tensor_dtype(call, 0))) {
    op_fallback(call, "complex numbers");
    return false;
  }
  if (u->dim >= 0 && op_tensor_rank(call, 0) > 0 && op_tensor_numel(call, 0) == 0 &&
      op_tensor_dim(call, 0, u->dim) != 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
    return false;
  }
  return !op_failed(call);
}

static void emit_unique(torus_call_t *call, hlo_graph_t *g, const unique_t *u) {
  if (!check_operand(call, u)) return;
  if (op_tensor_numel(call, 0) == 0) {
    return_empty(call, g, u);
    return;
  }
  unique_rows_t r = compared_rows(call, g, u);
  int64_t size = op_read_int(call, count_starts(g, r.starts));
  if (op_failed(call)) return;
  /* The read ended the window: nodes made before it are gone, and their graph. */
  g = op_graph(call);
  r = compared_rows(call, g, u);
  hlo_t groups = row_groups(g, r.starts);
  return_values(call, g, u, group_rows(g, &r, groups), size);
  return_inverse(call, g, u, &r, groups);
  return_counts(call, g, u, &r, groups, size);
}

/* ---- operators ---- */

static int unique_dim(torus_call_t *call, int arg) {
  return op_has(call, arg) ? op_dim(call, arg, op_tensor_rank(call, 0)) : -1;
}

/* (self, sorted, return_inverse) */
TORUS_OP(_unique, "_unique", 0) {
  emit_unique(call, g, &(unique_t){-1, true, op_bool(call, 2), false, true});
}

/* (self, sorted, return_inverse, return_counts); the result is always sorted, as on the CPU */
TORUS_OP(_unique2, "_unique2", 0) {
  emit_unique(call, g, &(unique_t){-1, true, op_bool(call, 2), op_bool(call, 3), false});
}

/* (self, dim, sorted, return_inverse, return_counts) */
TORUS_OP(unique_dim, "unique_dim", 0) {
  emit_unique(call, g,
              &(unique_t){unique_dim(call, 1), true, op_bool(call, 3), op_bool(call, 4), false});
}

/* (self, return_inverse, return_counts, dim) */
TORUS_OP(unique_consecutive, "unique_consecutive", 0) {
  emit_unique(call, g,
              &(unique_t){unique_dim(call, 3), false, op_bool(call, 1), op_bool(call, 2), false});
}

/* (self, dim, return_inverse, return_counts) */
TORUS_OP(unique_dim_consecutive, "unique_dim_consecutive", 0) {
  emit_unique(call, g,
              &(unique_t){unique_dim(call, 1), false, op_bool(call, 2), op_bool(call, 3), false});
}
