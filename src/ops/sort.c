/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Sorting and the largest or smallest k. */
#include "ops/sort.h"

/* ---- shared steps ---- */

/* Positions travel as int32 where they fit: half the bytes to move, and native on TPUs. */
static torus_dtype_t place_type(const hlo_graph_t *g, hlo_t x, int dim) {
  return hlo_dim(g, x, dim) <= INT32_MAX ? TORUS_DTYPE_I32 : TORUS_DTYPE_I64;
}

static void sort_places(hlo_graph_t *g, hlo_t x, int dim, bool descending, hlo_t *out_values,
                        hlo_t *out_places) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t sorted[2] = {HLO_NONE, HLO_NONE};
  hlo_t xs[2] = {op_ordered(g, x), op_positions(g, x, dim, place_type(g, x, dim))};
  hlo_sort(g, xs, 2, dim, descending, true, sorted);
  *out_values = hlo_convert(g, sorted[0], dtype);
  *out_places = hlo_convert(g, sorted[1], TORUS_DTYPE_I64);
}

void sort_with_places(hlo_graph_t *g, hlo_t x, int dim, bool descending, hlo_t *out_values,
                      hlo_t *out_places) {
  *out_values = x;
  *out_places = HLO_NONE;
  if (x == HLO_NONE) return;
  if (hlo_rank(g, x) == 0 || hlo_numel(g, x) == 0) {
    *out_places = hlo_full_like(g, x, TORUS_DTYPE_I64, 0);
    return;
  }
  sort_places(g, x, dim, descending, out_values, out_places);
}

hlo_t sort_run_starts(hlo_graph_t *g, hlo_t x, int dim) {
  if (x == HLO_NONE) return HLO_NONE;
  int64_t low[TORUS_MAX_RANK] = {0}, high[TORUS_MAX_RANK] = {0};
  low[dim] = 1;
  high[dim] = -1;
  hlo_t before = hlo_pad(g, x, hlo_const(g, hlo_dtype(g, x), 0), low, high, NULL);
  hlo_t is_first = hlo_compare_f(g, HLO_EQ, op_positions(g, x, dim, TORUS_DTYPE_I32), 0);
  return hlo_or(g, is_first, hlo_compare(g, HLO_NE, x, before));
}

/* ---- operators ---- */

static bool require_order(torus_call_t *call) {
  if (!torus_dtype_is_complex(op_tensor_dtype(call, 0))) return true;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "complex numbers cannot be sorted");
  return false;
}

/* (self, stable, dim, descending); always stable, so that every mode gives the same order */
TORUS_OP(sort_stable, "sort.stable", 0) {
  int dim = op_dim(call, 2, op_tensor_rank(call, 0));
  if (op_failed(call) || !require_order(call)) return;
  hlo_t values, places;
  sort_with_places(g, op_tensor(call, 0), dim, op_bool(call, 3), &values, &places);
  op_return(call, 0, values);
  op_return(call, 1, places);
}

/* (self, k, dim, largest, sorted); nan counts as the largest number */
TORUS_OP(topk, "topk", 0) {
  int rank = op_tensor_rank(call, 0), dim = op_dim(call, 2, rank);
  int64_t k = op_int(call, 1);
  if (op_failed(call) || !require_order(call)) return;
  if (k < 0 || k > (rank == 0 ? 1 : op_tensor_dim(call, 0, dim))) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "selected index k out of range");
    return;
  }
  hlo_t values, places;
  sort_with_places(g, op_tensor(call, 0), dim, op_bool(call, 3), &values, &places);
  if (rank > 0) {
    values = hlo_slice_dim(g, values, dim, 0, k);
    places = hlo_slice_dim(g, places, dim, 0, k);
  }
  op_return(call, 0, values);
  op_return(call, 1, places);
}
