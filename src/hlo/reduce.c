/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Reductions along dimensions, and sorting. */
#include "hlo/graph_internal.h"

bool hlo_reduction_for(hlo_graph_t *g, hlo_op_t op, hlo_t x, hlo_reduction_t *how) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  bool bitwise = *how == HLO_REDUCE_AND || *how == HLO_REDUCE_OR || *how == HLO_REDUCE_XOR;
  bool ordering = *how == HLO_REDUCE_MAXIMUM || *how == HLO_REDUCE_MINIMUM;
  if ((bitwise && !torus_dtype_is_integral(dtype)) || (ordering && torus_dtype_is_complex(dtype))) {
    hlo_fail_types(g, op, "the type is not supported", x, HLO_NONE);
    return false;
  }
  if (dtype == TORUS_DTYPE_BOOL && !bitwise) {
    bool any = *how == HLO_REDUCE_ADD || *how == HLO_REDUCE_MAXIMUM;
    *how = any ? HLO_REDUCE_OR : HLO_REDUCE_AND;
  }
  return true;
}

hlo_t hlo_identity_of(hlo_graph_t *g, hlo_reduction_t how, torus_dtype_t dtype) {
  switch (how) {
  case HLO_REDUCE_MULTIPLY:
    return hlo_const_int(g, dtype, 1);
  case HLO_REDUCE_MAXIMUM:
    return hlo_lowest(g, dtype);
  case HLO_REDUCE_MINIMUM:
    return hlo_highest(g, dtype);
  case HLO_REDUCE_AND:
    return hlo_const_int(g, dtype, -1);
  default:
    return hlo_const_int(g, dtype, 0);
  }
}

/* ---- reduce ---- */

/* The dimensions in rising order as attributes, and the shapes without and with them. */
typedef struct reduced_shape {
  size_t gone_count;
  int rank;
  int64_t gone[TORUS_MAX_RANK], dims[TORUS_MAX_RANK], kept_dims[TORUS_MAX_RANK];
  bool trivial; /* every reduced dimension has size 1 */
} reduced_shape_t;

static bool reduce_shape(hlo_graph_t *g, hlo_t x, int dim_count, const int *dims,
                         reduced_shape_t *out_shape) {
  uint32_t mask = 0;
  for (int i = 0; i < dim_count; i++) {
    if (!hlo_check_dim(g, HLO_OP_REDUCE, x, dims[i])) return false;
    if (mask >> dims[i] & 1) {
      hlo_fail_types(g, HLO_OP_REDUCE, "a dimension appears twice", x, HLO_NONE);
      return false;
    }
    mask |= UINT32_C(1) << dims[i];
  }
  *out_shape = (reduced_shape_t){.trivial = true};
  int rank = hlo_shape(g, x, out_shape->kept_dims);
  for (int i = 0; i < rank; i++) {
    int64_t size = out_shape->kept_dims[i];
    if (mask >> i & 1) {
      out_shape->gone[out_shape->gone_count++] = i;
      out_shape->kept_dims[i] = 1;
      out_shape->trivial &= size == 1;
    } else {
      out_shape->dims[out_shape->rank++] = size;
    }
  }
  return true;
}

/* mode: hlo_reduction_t; attrs: the dimensions. */
static hlo_t append_reduce(hlo_graph_t *g, hlo_reduction_t how, hlo_t x,
                           const reduced_shape_t *shape) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t identity = hlo_identity_of(g, how, dtype);
  if (identity == HLO_NONE) return HLO_NONE;
  return hlo_append(g, &(hlo_spec_t){.op = HLO_OP_REDUCE,
                                     .dtype = dtype,
                                     .mode = (int)how,
                                     .rank = shape->rank,
                                     .dims = shape->dims,
                                     .operands = (hlo_t[]){x, identity},
                                     .operand_count = 2,
                                     .attrs = shape->gone,
                                     .attr_count = shape->gone_count});
}

hlo_t hlo_reduce(hlo_graph_t *g, hlo_reduction_t how, hlo_t x, int dim_count, const int *dims,
                 bool keep) {
  reduced_shape_t shape;
  if (!hlo_usable(g, HLO_OP_REDUCE, x) || !hlo_reduction_for(g, HLO_OP_REDUCE, x, &how) ||
      !reduce_shape(g, x, dim_count, dims, &shape)) {
    return HLO_NONE;
  }
  if (shape.trivial) {
    return keep ? x : hlo_reshape(g, x, shape.rank, shape.dims);
  }
  hlo_t y = append_reduce(g, how, x, &shape);
  return keep && y != HLO_NONE ? hlo_reshape(g, y, hlo_rank(g, x), shape.kept_dims) : y;
}

hlo_t hlo_reduce_all(hlo_graph_t *g, hlo_reduction_t how, hlo_t x) {
  int dims[TORUS_MAX_RANK];
  for (int i = 0; i < TORUS_MAX_RANK; i++) dims[i] = i;
  return hlo_reduce(g, how, x, hlo_rank(g, x), dims, false);
}

/* ---- the place of the largest ---- */

/* Two results. mode: is_max; operands: values, places, their initial values; attrs: the dimension.
 * The initial place is larger than any other, so that the initial value never wins a draw. */
static void append_reduce_arg(hlo_graph_t *g, bool is_max, hlo_t x, int dim,
                              const reduced_shape_t *shape, hlo_t *out_value, hlo_t *out_index) {
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, x, dims);
  torus_dtype_t dtype = hlo_dtype(g, x);
  torus_dtype_t place = dims[dim] <= INT32_MAX ? TORUS_DTYPE_I32 : TORUS_DTYPE_I64;
  hlo_t operands[] = {x, hlo_iota(g, place, rank, dims, dim),
                      is_max ? hlo_lowest(g, dtype) : hlo_highest(g, dtype),
                      hlo_highest(g, place)};
  hlo_t node = hlo_append(g, &(hlo_spec_t){.op = HLO_OP_REDUCE_ARG,
                                           .dtype = dtype,
                                           .mode = is_max,
                                           .rank = shape->rank,
                                           .dims = shape->dims,
                                           .operands = operands,
                                           .operand_count = 4,
                                           .attrs = shape->gone,
                                           .attr_count = 1});
  *out_value = hlo_append_result(g, node, 0, dtype, shape->rank, shape->dims);
  *out_index = hlo_convert(g, hlo_append_result(g, node, 1, place, shape->rank, shape->dims),
                           TORUS_DTYPE_I64);
}

void hlo_reduce_arg(hlo_graph_t *g, bool is_max, hlo_t x, int dim, hlo_t *out_value,
                    hlo_t *out_index) {
  *out_value = *out_index = HLO_NONE;
  hlo_op_t op = HLO_OP_REDUCE_ARG;
  reduced_shape_t shape;
  if (!hlo_usable(g, op, x) || !hlo_check_dim(g, op, x, dim) ||
      !reduce_shape(g, x, 1, &dim, &shape)) {
    return;
  }
  torus_dtype_t dtype = hlo_dtype(g, x);
  if (hlo_dims(g, x)[dim] == 0 || torus_dtype_is_complex(dtype)) {
    hlo_fail_types(g, op, "there is no largest or smallest element", x, HLO_NONE);
    return;
  }
  if (shape.trivial) {
    *out_value = hlo_reshape(g, x, shape.rank, shape.dims);
    *out_index = hlo_zeros(g, TORUS_DTYPE_I64, shape.rank, shape.dims);
    return;
  }
  bool is_bool = dtype == TORUS_DTYPE_BOOL;
  hlo_t keys = is_bool ? hlo_convert(g, x, TORUS_DTYPE_U8) : x;
  append_reduce_arg(g, is_max, keys, dim, &shape, out_value, out_index);
  if (is_bool) *out_value = hlo_convert(g, *out_value, TORUS_DTYPE_BOOL);
}

/* ---- sort ---- */

static bool check_sort(hlo_graph_t *g, const hlo_t *xs, size_t count, int dim) {
  if (!hlo_usable_all(g, HLO_OP_SORT, xs, count)) return false;
  if (torus_dtype_is_complex(hlo_dtype(g, xs[0]))) {
    hlo_fail_types(g, HLO_OP_SORT, "complex numbers have no order", xs[0], HLO_NONE);
    return false;
  }
  for (size_t i = 1; i < count; i++) {
    if (!hlo_same_shape(g, xs[0], xs[i])) {
      hlo_fail_types(g, HLO_OP_SORT, "the shapes differ", xs[0], xs[i]);
      return false;
    }
  }
  return hlo_rank(g, xs[0]) == 0 || hlo_check_dim(g, HLO_OP_SORT, xs[0], dim);
}

/* |count| results. mode: 1 descending, 2 stable; attrs: the dimension. */
void hlo_sort(hlo_graph_t *g, const hlo_t *xs, size_t count, int dim, bool descending, bool stable,
              hlo_t *out_xs) {
  hlo_t inputs[2] = {HLO_NONE, HLO_NONE};
  for (size_t i = 0; i < count && i < 2; i++) {
    inputs[i] = xs[i];
    out_xs[i] = HLO_NONE;
  }
  if (count < 1 || count > 2) {
    hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "sort: 1 or 2 arrays are sorted, not %zu", count);
    return;
  }
  if (!check_sort(g, inputs, count, dim)) return;
  bool sorted = hlo_numel(g, inputs[0]) == 0 || hlo_dim(g, inputs[0], dim) <= 1;
  hlo_t node = HLO_NONE;
  if (!sorted) {
    node = hlo_append_like(g, HLO_OP_SORT, hlo_dtype(g, inputs[0]),
                           (descending ? 1 : 0) | (stable ? 2 : 0), inputs[0], inputs, count);
    if (node == HLO_NONE || !hlo_set_attrs(g, node, 1, (int64_t[]){dim})) return;
  }
  for (size_t i = 0; i < count; i++) {
    int64_t dims[TORUS_MAX_RANK];
    int rank = hlo_shape(g, inputs[i], dims);
    out_xs[i] = sorted ? inputs[i]
                       : hlo_append_result(g, node, (int)i, hlo_dtype(g, inputs[i]), rank, dims);
  }
}
