/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Binary search and membership. */
#include <string.h>

#include "ops/sort.h"

/* ---- binary search ---- */

/* Elements of |sequence| at |places|: one sequence for all, or one per row. */
static hlo_t sequence_at(hlo_graph_t *g, hlo_t sequence, hlo_t places) {
  int rank = hlo_rank(g, sequence);
  return rank == 1 ? hlo_take(g, sequence, 0, places)
                   : hlo_take_along(g, sequence, rank - 1, places);
}

/* One halving of [low, high). The comparisons are written so that nan goes to the right end. */
static void halve(hlo_graph_t *g, hlo_t sequence, hlo_t values, bool right, int64_t size,
                  hlo_t *low, hlo_t *high) {
  torus_dtype_t dtype = hlo_dtype(g, *low);
  hlo_t two = hlo_const_int(g, dtype, 2), last = op_count(g, dtype, size - 1);
  hlo_t middle = hlo_divide(g, hlo_add(g, *low, *high), two);
  hlo_t element = sequence_at(g, sequence, hlo_minimum(g, middle, last));
  hlo_t is_open = hlo_compare(g, HLO_LT, *low, *high);
  hlo_t stops = hlo_compare(g, right ? HLO_GT : HLO_GE, element, values);
  hlo_t goes_right = hlo_and(g, is_open, hlo_not(g, stops));
  hlo_t goes_left = hlo_and(g, is_open, stops);
  *low = hlo_select(g, goes_right, hlo_add_f(g, middle, 1), *low);
  *high = hlo_select(g, goes_left, middle, *high);
}

hlo_t sort_search(hlo_graph_t *g, hlo_t sequence, hlo_t values, bool right) {
  if (sequence == HLO_NONE || values == HLO_NONE) return HLO_NONE;
  sequence = op_ordered(g, sequence);
  values = op_ordered(g, values);
  int64_t size = hlo_dim(g, sequence, hlo_rank(g, sequence) - 1);
  /* Sums of two positions must fit as well. */
  torus_dtype_t dtype = size < INT32_MAX / 2 ? TORUS_DTYPE_I32 : TORUS_DTYPE_I64;
  hlo_t low = hlo_full_like(g, values, dtype, 0);
  hlo_t high = op_like(g, op_count(g, dtype, size), values);
  for (int64_t span = size; span > 0; span /= 2) {
    halve(g, sequence, values, right, size, &low, &high);
  }
  return hlo_convert(g, low, TORUS_DTYPE_I64);
}

/* What searchsorted and bucketize have in common; places of their arguments, -1 for none. */
typedef struct search {
  int sequence, values;
  bool values_are_number;
  int out_int32, right, side, sorter;
} search_t;

/* True for "right" in either spelling; they must not contradict each other. */
static bool search_side(torus_call_t *call, const search_t *s) {
  bool right = op_bool(call, s->right);
  const char *side = s->side < 0 ? NULL : op_string(call, s->side);
  if (side == NULL) return right;
  bool is_right = strcmp(side, "right") == 0, is_left = strcmp(side, "left") == 0;
  if ((!is_right && !is_left) || (is_left && right)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "searchsorted(): side must be 'left' or 'right', and not contradict right");
  }
  return is_right;
}

static bool search_shapes_fit(torus_call_t *call, const search_t *s) {
  int rank = op_tensor_rank(call, s->sequence);
  bool fits = rank == 1;
  if (!fits && !s->values_are_number && rank > 0) {
    fits = op_tensor_rank(call, s->values) == rank;
    for (int i = 0; fits && i < rank - 1; ++i) {
      fits = op_tensor_dim(call, s->sequence, i) == op_tensor_dim(call, s->values, i);
    }
  }
  if (!fits) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "boundaries must be 1-dimensional or share their leading dimensions with the values");
  }
  return fits;
}

static hlo_t search_sequence(torus_call_t *call, hlo_graph_t *g, const search_t *s,
                             torus_dtype_t dtype) {
  hlo_t sequence = op_tensor_as(call, s->sequence, dtype);
  if (s->sorter < 0 || !op_has(call, s->sorter)) return sequence;
  int last = op_tensor_rank(call, s->sequence) - 1;
  hlo_t sorter = op_tensor_as(call, s->sorter, TORUS_DTYPE_I64);
  int64_t size = op_tensor_dim(call, s->sequence, last);
  return hlo_take_along(g, sequence, last, op_check_index(call, sorter, 0, size, last));
}

static void emit_search(torus_call_t *call, hlo_graph_t *g, const search_t *s) {
  const int both[2] = {s->sequence, s->values};
  torus_dtype_t dtype = op_result_type(call, both, 2);
  bool right = search_side(call, s);
  if (op_failed(call) || !search_shapes_fit(call, s)) return;
  hlo_t sequence = search_sequence(call, g, s, dtype);
  hlo_t values = s->values_are_number ? op_scalar(call, s->values, dtype)
                                      : op_tensor_as(call, s->values, dtype);
  hlo_t places = sort_search(g, sequence, values, right);
  bool narrow = op_bool(call, s->out_int32);
  op_return(call, 0, hlo_convert(g, places, narrow ? TORUS_DTYPE_I32 : TORUS_DTYPE_I64));
}

TORUS_OP(searchsorted_tensor, "searchsorted.Tensor", 0) {
  emit_search(call, g, &(search_t){0, 1, false, 2, 3, 4, 5});
}
TORUS_OP(searchsorted_scalar, "searchsorted.Scalar", 0) {
  emit_search(call, g, &(search_t){0, 1, true, 2, 3, 4, 5});
}
TORUS_OP(bucketize_tensor, "bucketize.Tensor", 0) {
  emit_search(call, g, &(search_t){1, 0, false, 2, 3, -1, -1});
}
TORUS_OP(bucketize_scalar, "bucketize.Scalar", 0) {
  emit_search(call, g, &(search_t){1, 0, true, 2, 3, -1, -1});
}

/* ---- membership ---- */

/* Up to this many test elements every pair is compared; beyond, sorting them pays. */
enum { PAIRWISE_LIMIT = 128 };

static hlo_t found_by_pairs(hlo_graph_t *g, hlo_t elements, hlo_t tests) {
  int64_t dims[2] = {hlo_dim(g, elements, 0), hlo_dim(g, tests, 0)};
  hlo_t rows = hlo_broadcast_in_dim(g, elements, 2, dims, (const int[]){0});
  hlo_t columns = hlo_broadcast_in_dim(g, tests, 2, dims, (const int[]){1});
  hlo_t equal = hlo_compare(g, HLO_EQ, rows, columns);
  return hlo_reduce(g, HLO_REDUCE_OR, equal, 1, (const int[]){1}, false);
}

static hlo_t found_by_search(hlo_graph_t *g, hlo_t elements, hlo_t tests) {
  hlo_t sorted, places;
  sort_with_places(g, op_ordered(g, tests), 0, false, &sorted, &places);
  elements = op_ordered(g, elements);
  hlo_t last = op_count(g, TORUS_DTYPE_I64, hlo_dim(g, tests, 0) - 1);
  hlo_t where = hlo_minimum(g, sort_search(g, sorted, elements, false), last);
  return hlo_compare(g, HLO_EQ, hlo_take(g, sorted, 0, where), elements);
}

/* Arguments 0 and 1 are elements and tests, each a tensor or a number; invert is at 3. */
static void emit_isin(torus_call_t *call, hlo_graph_t *g, bool element_is_number,
                      bool test_is_number) {
  torus_dtype_t dtype = op_result_type(call, (const int[]){0, 1}, 2);
  if (op_failed(call)) return;
  if (torus_dtype_is_complex(dtype)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "isin does not support complex numbers");
    return;
  }
  hlo_t elements = element_is_number ? op_scalar(call, 0, dtype) : op_tensor_as(call, 0, dtype);
  hlo_t tests = test_is_number ? op_scalar(call, 1, dtype) : op_tensor_as(call, 1, dtype);
  if (elements == HLO_NONE || tests == HLO_NONE) return;
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, elements, dims);
  elements = hlo_flatten(g, elements);
  tests = hlo_flatten(g, tests);
  bool few = hlo_numel(g, tests) <= PAIRWISE_LIMIT;
  hlo_t found = few ? found_by_pairs(g, elements, tests) : found_by_search(g, elements, tests);
  if (op_bool(call, 3)) found = hlo_not(g, found);
  op_return(call, 0, hlo_reshape(g, found, rank, dims));
}

TORUS_OP(isin_tensor_tensor, "isin.Tensor_Tensor", 0) { emit_isin(call, g, false, false); }
TORUS_OP(isin_tensor_scalar, "isin.Tensor_Scalar", 0) { emit_isin(call, g, false, true); }
TORUS_OP(isin_scalar_tensor, "isin.Scalar_Tensor", 0) { emit_isin(call, g, true, false); }
