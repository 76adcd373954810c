/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Parts of an array, read and written, at soft or computed places. */
#include <inttypes.h>
#include <string.h>

#include "hlo/graph_internal.h"

/* Places fit 32 bits unless a dimension does not. One type serves all dimensions because
 * stablehlo.dynamic_slice wants it so. */
static torus_dtype_t place_type(const hlo_graph_t *g, hlo_t x) {
  for (int i = 0; i < hlo_rank(g, x); i++) {
    if (hlo_dims(g, x)[i] > INT32_MAX) return TORUS_DTYPE_I64;
  }
  return TORUS_DTYPE_I32;
}

static hlo_t fail_bounds(hlo_graph_t *g, hlo_op_t op, hlo_t x, int dim, int64_t start,
                         int64_t size) {
  char text[HLO_TYPE_TEXT];
  return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT,
                  "%s: %" PRId64 " elements from %" PRId64 " on exceed dimension %d of %s",
                  hlo_op_name(op), size, start, dim, hlo_type_text(g, x, text));
}

/* One soft number for each dimension that is not taken whole, in order. */
static size_t soft_places(const hlo_graph_t *g, hlo_t x, const int64_t *starts,
                          const int64_t *sizes, hlo_soft_number_t *out_softs) {
  uint8_t dtype = (uint8_t)place_type(g, x);
  size_t count = 0;
  for (int i = 0; i < hlo_rank(g, x); i++) {
    if (sizes[i] == hlo_dims(g, x)[i]) continue;
    out_softs[count++] = (hlo_soft_number_t){.bits = starts[i], .dtype = dtype};
  }
  return count;
}

/* ---- reading ---- */

/* False after an error. */
static bool check_slice(hlo_graph_t *g, hlo_t x, const int64_t *starts, const int64_t *sizes,
                        const int64_t *steps) {
  for (int i = 0; i < hlo_rank(g, x); i++) {
    int64_t extent = hlo_dims(g, x)[i], step = steps ? steps[i] : 1, span = 0;
    bool bad = sizes[i] < 0 || step < 1 || starts[i] < 0 || starts[i] > extent;
    if (!bad && sizes[i] > 0) {
      bad = __builtin_mul_overflow(sizes[i] - 1, step, &span) || span >= extent - starts[i];
    }
    if (bad) {
      fail_bounds(g, HLO_OP_SLICE, x, i, starts[i], sizes[i]);
      return false;
    }
  }
  return true;
}

/* attrs: the steps, or nothing when all are 1. softs: see soft_places. */
hlo_t hlo_slice(hlo_graph_t *g, hlo_t x, const int64_t *starts, const int64_t *sizes,
                const int64_t *steps) {
  if (!hlo_usable(g, HLO_OP_SLICE, x) || !check_slice(g, x, starts, sizes, steps)) return HLO_NONE;
  int rank = hlo_rank(g, x);
  int64_t strides[TORUS_MAX_RANK];
  bool whole = true, strided = false;
  for (int i = 0; i < rank; i++) {
    strides[i] = steps && sizes[i] > 1 ? steps[i] : 1;
    strided |= strides[i] != 1;
    whole &= sizes[i] == hlo_dims(g, x)[i];
  }
  torus_dtype_t dtype = hlo_dtype(g, x);
  if (whole) return x;
  if (hlo_product(rank, sizes) == 0) return hlo_zeros(g, dtype, rank, sizes);
  if (hlo_node(g, x)->op == HLO_OP_CONSTANT) {
    return hlo_append_constant(g, dtype, hlo_attrs(g, x)[0], rank, sizes);
  }
  hlo_soft_number_t softs[TORUS_MAX_RANK];
  size_t soft_count = soft_places(g, x, starts, sizes, softs);
  return hlo_append(g, &(hlo_spec_t){.op = HLO_OP_SLICE,
                                     .dtype = dtype,
                                     .rank = rank,
                                     .dims = sizes,
                                     .operands = &x,
                                     .operand_count = 1,
                                     .attrs = strides,
                                     .attr_count = strided ? (size_t)rank : 0,
                                     .softs = softs,
                                     .soft_count = soft_count});
}

hlo_t hlo_slice_dim(hlo_graph_t *g, hlo_t x, int dim, int64_t start, int64_t size) {
  if (!hlo_usable(g, HLO_OP_SLICE, x) || !hlo_check_dim(g, HLO_OP_SLICE, x, dim)) return HLO_NONE;
  int64_t sizes[TORUS_MAX_RANK], starts[TORUS_MAX_RANK] = {0};
  hlo_shape(g, x, sizes);
  starts[dim] = start;
  sizes[dim] = size;
  return hlo_slice(g, x, starts, sizes, NULL);
}

hlo_t hlo_index_dim(hlo_graph_t *g, hlo_t x, int dim, int64_t index) {
  return hlo_squeeze(g, hlo_slice_dim(g, x, dim, index, 1), dim);
}

/* ---- writing ---- */

static bool fits_inside(hlo_graph_t *g, hlo_op_t op, hlo_t x, hlo_t update) {
  bool fits = hlo_dtype(g, x) == hlo_dtype(g, update) && hlo_rank(g, x) == hlo_rank(g, update);
  for (int i = 0; fits && i < hlo_rank(g, x); i++) {
    fits = hlo_dims(g, update)[i] <= hlo_dims(g, x)[i];
  }
  if (!fits) hlo_fail_types(g, op, "the second does not fit into the first", x, update);
  return fits;
}

/* softs: see soft_places. */
hlo_t hlo_update_slice(hlo_graph_t *g, hlo_t x, hlo_t update, const int64_t *starts) {
  hlo_op_t op = HLO_OP_UPDATE_SLICE;
  if (!hlo_usable(g, op, x) || !hlo_usable(g, op, update) || !fits_inside(g, op, x, update)) {
    return HLO_NONE;
  }
  int64_t dims[TORUS_MAX_RANK], sizes[TORUS_MAX_RANK];
  int rank = hlo_shape(g, x, dims);
  hlo_shape(g, update, sizes);
  for (int i = 0; i < rank; i++) {
    if (starts[i] < 0 || starts[i] > dims[i] - sizes[i]) {
      return fail_bounds(g, op, x, i, starts[i], sizes[i]);
    }
  }
  if (hlo_same_shape(g, x, update)) return update;
  if (hlo_numel(g, update) == 0) return x;
  hlo_soft_number_t softs[TORUS_MAX_RANK];
  size_t soft_count = soft_places(g, x, starts, sizes, softs);
  return hlo_append(g, &(hlo_spec_t){.op = op,
                                     .dtype = hlo_dtype(g, x),
                                     .rank = rank,
                                     .dims = dims,
                                     .operands = (hlo_t[]){x, update},
                                     .operand_count = 2,
                                     .softs = softs,
                                     .soft_count = soft_count});
}

/* ---- computed places ---- */

static bool check_places(hlo_graph_t *g, hlo_op_t op, const hlo_t *starts, int rank) {
  if (!hlo_usable_all(g, op, starts, (size_t)rank)) return false;
  for (int i = 0; i < rank; i++) {
    torus_dtype_t dtype = hlo_dtype(g, starts[i]);
    if (hlo_rank(g, starts[i]) != 0 || dtype == TORUS_DTYPE_BOOL ||
        !torus_dtype_is_integral(dtype) || dtype != hlo_dtype(g, starts[0])) {
      hlo_fail_types(g, op, "a place must be a single integer, all of one type", starts[i],
                     starts[0]);
      return false;
    }
  }
  return true;
}

hlo_t hlo_dynamic_slice(hlo_graph_t *g, hlo_t x, const hlo_t *starts, const int64_t *sizes) {
  hlo_op_t op = HLO_OP_DYNAMIC_SLICE;
  if (!hlo_usable(g, op, x)) return HLO_NONE;
  int rank = hlo_rank(g, x);
  if (!check_places(g, op, starts, rank)) return HLO_NONE;
  bool whole = true;
  for (int i = 0; i < rank; i++) {
    int64_t extent = hlo_dims(g, x)[i];
    if (sizes[i] < 0 || sizes[i] > extent) return fail_bounds(g, op, x, i, 0, sizes[i]);
    whole &= sizes[i] == extent;
  }
  if (whole) return x;
  if (hlo_product(rank, sizes) == 0) return hlo_zeros(g, hlo_dtype(g, x), rank, sizes);
  hlo_t operands[TORUS_MAX_RANK + 1] = {x};
  memcpy(operands + 1, starts, (size_t)rank * sizeof *starts);
  return hlo_append(g, &(hlo_spec_t){.op = op,
                                     .dtype = hlo_dtype(g, x),
                                     .rank = rank,
                                     .dims = sizes,
                                     .operands = operands,
                                     .operand_count = (size_t)rank + 1});
}

hlo_t hlo_dynamic_update_slice(hlo_graph_t *g, hlo_t x, hlo_t update, const hlo_t *starts) {
  hlo_op_t op = HLO_OP_DYNAMIC_UPDATE_SLICE;
  if (!hlo_usable(g, op, x) || !hlo_usable(g, op, update) || !fits_inside(g, op, x, update)) {
    return HLO_NONE;
  }
  int rank = hlo_rank(g, x);
  if (!check_places(g, op, starts, rank)) return HLO_NONE;
  if (hlo_same_shape(g, x, update)) return update;
  if (hlo_numel(g, update) == 0) return x;
  hlo_t operands[TORUS_MAX_RANK + 2] = {x, update};
  memcpy(operands + 2, starts, (size_t)rank * sizeof *starts);
  return hlo_append_like(g, op, hlo_dtype(g, x), 0, x, operands, (size_t)rank + 2);
}
