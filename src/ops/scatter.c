/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Reading and writing along one dimension by index: gather, scatter, index_select, index_add. */
#include "ops/indexing.h"

#include <string.h>

/* Either hlo_put_along (an index per element) or index_put_rows (an index per row). */
typedef hlo_t (*put_fn)(hlo_graph_t *g, hlo_scatter_t how, hlo_t x, int dim, hlo_t index,
                        hlo_t updates);

/* Operands of one call. A self without dimensions counts as one of size 1. */
typedef struct operands {
  int rank; /* of self as given: the result is reshaped to it */
  int64_t dims[TORUS_MAX_RANK];
  hlo_t self, index, source;
  int dim;
} operands_t;

static bool failed(const torus_call_t *call, const hlo_graph_t *g) {
  return op_failed(call) || hlo_graph_failed(g);
}

static void read_self(torus_call_t *call, hlo_graph_t *g, operands_t *o) {
  o->self = op_tensor(call, 0);
  o->rank = hlo_shape(g, o->self, o->dims);
  o->self = index_at_least_1d(g, o->self);
  o->dim = op_dim(call, 1, o->rank);
  o->index = o->source = HLO_NONE;
}

static void return_like_self(torus_call_t *call, hlo_graph_t *g, const operands_t *o, hlo_t x) {
  op_return(call, 0, hlo_reshape(g, x, o->rank, o->dims));
}

static bool require_dtype(torus_call_t *call, int i) {
  if (op_tensor_dtype(call, i) == op_tensor_dtype(call, 0))
    return true;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "expected self and source to have one dtype");
  return false;
}

/* ---- one index per element ---- */

static bool fits_within(const hlo_graph_t *g, hlo_t small, hlo_t large, int free_dim) {
  if (hlo_rank(g, small) != hlo_rank(g, large))
    return false;
  for (int d = 0; d < hlo_rank(g, small); ++d)
    if (d != free_dim && hlo_dim(g, small, d) > hlo_dim(g, large, d))
      return false;
  return true;
}

static hlo_t checked_along(torus_call_t *call, hlo_graph_t *g, const operands_t *o) {
  if (hlo_numel(g, o->index) == 0)
    return o->index;
  return op_check_index(call, o->index, 0, hlo_dim(g, o->self, o->dim), o->dim);
}

/* self, dim and index of gather and scatter. */
static bool read_along(torus_call_t *call, hlo_graph_t *g, operands_t *o) {
  read_self(call, g, o);
  o->index = index_at_least_1d(g, index_argument(call, g, 2));
  if (failed(call, g))
    return false;
  if (hlo_numel(g, o->index) > 0 && !fits_within(g, o->index, o->self, o->dim)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "Expected index to be no larger than self apart from dimension %d", o->dim);
    return false;
  }
  o->index = checked_along(call, g, o);
  return !failed(call, g);
}

/* The part of the source that has an index; |source| HLO_NONE: argument 3. */
static bool read_source(torus_call_t *call, hlo_graph_t *g, operands_t *o) {
  int64_t starts[TORUS_MAX_RANK] = {0}, sizes[TORUS_MAX_RANK];
  if (!require_dtype(call, 3))
    return false;
  hlo_t source = index_at_least_1d(g, op_tensor(call, 3));
  if (failed(call, g))
    return false;
  if (hlo_numel(g, o->index) == 0)
    return true;
  if (!fits_within(g, o->index, source, -1)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "Expected index to be no larger than src");
    return false;
  }
  hlo_shape(g, o->index, sizes);
  o->source =
      hlo_same_shape(g, o->index, source) ? source : hlo_slice(g, source, starts, sizes, NULL);
  return !failed(call, g);
}

static bool read_scatter(torus_call_t *call, hlo_graph_t *g, operands_t *o) {
  return read_along(call, g, o) && read_source(call, g, o);
}

/* The same with a number in place of the source. */
static bool read_scatter_value(torus_call_t *call, hlo_graph_t *g, operands_t *o) {
  int64_t dims[TORUS_MAX_RANK];
  if (!read_along(call, g, o))
    return false;
  int rank = hlo_shape(g, o->index, dims);
  o->source = hlo_splat(g, op_scalar(call, 3, op_tensor_dtype(call, 0)), rank, dims);
  return !failed(call, g);
}

TORUS_OP(gather, "gather", 0) {
  operands_t o;
  int64_t dims[TORUS_MAX_RANK];
  if (!read_along(call, g, &o))
    return;
  int rank = hlo_shape(g, o.index, dims);
  hlo_t x = hlo_numel(g, o.index) == 0 ? hlo_zeros(g, hlo_dtype(g, o.self), rank, dims)
                                       : hlo_take_along(g, o.self, o.dim, o.index);
  if (op_tensor_rank(call, 2) == 0)
    x = hlo_squeeze(g, x, 0);
  op_return(call, 0, x);
}

/* ---- reductions into self ---- */

typedef enum reduce { REDUCE_SUM, REDUCE_PROD, REDUCE_MEAN, REDUCE_AMAX, REDUCE_AMIN } reduce_t;

static const struct {
  const char *name;
  reduce_t reduce;
} reduce_names[] = {
    {"sum", REDUCE_SUM},   {"add", REDUCE_SUM},   {"prod", REDUCE_PROD}, {"multiply", REDUCE_PROD},
    {"mean", REDUCE_MEAN}, {"amax", REDUCE_AMAX}, {"amin", REDUCE_AMIN},
};

static bool read_reduce(torus_call_t *call, int i, reduce_t *out_reduce) {
  const char *name = op_string(call, i);
  for (size_t k = 0; name && k < sizeof reduce_names / sizeof *reduce_names; ++k) {
    if (strcmp(reduce_names[k].name, name) != 0)
      continue;
    *out_reduce = reduce_names[k].reduce;
    return true;
  }
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "unknown reduction %s", name ? name : "None");
  return false;
}

static hlo_scatter_t scatter_of(reduce_t reduce) {
  switch (reduce) {
  case REDUCE_PROD:
    return HLO_SCATTER_MULTIPLY;
  case REDUCE_AMAX:
    return HLO_SCATTER_MAXIMUM;
  case REDUCE_AMIN:
    return HLO_SCATTER_MINIMUM;
  case REDUCE_SUM:
  case REDUCE_MEAN:
    break;
  }
  return HLO_SCATTER_ADD;
}

static hlo_t identity_of(hlo_graph_t *g, reduce_t reduce, torus_dtype_t dtype) {
  if (reduce == REDUCE_AMAX)
    return hlo_lowest(g, dtype);
  if (reduce == REDUCE_AMIN)
    return hlo_highest(g, dtype);
  return hlo_const(g, dtype, reduce == REDUCE_PROD ? 1 : 0);
}

/* Integers divide towards minus infinity, as the mean of torch.scatter_reduce does. */
static hlo_t divide_by_count(hlo_graph_t *g, hlo_t sum, hlo_t count) {
  hlo_t quotient = hlo_divide(g, sum, count);
  if (!torus_dtype_is_integral(hlo_dtype(g, sum)))
    return quotient;
  hlo_t rest = hlo_remainder(g, sum, count);
  if (torus_dtype_kind(hlo_dtype(g, sum)) == TORUS_KIND_UINT)
    return quotient;
  return hlo_select(g, hlo_compare_f(g, HLO_LT, rest, 0), hlo_add_f(g, quotient, -1), quotient);
}

static hlo_t mean_of(hlo_graph_t *g, put_fn put, bool include_self, const operands_t *o,
                     hlo_t sum) {
  torus_dtype_t dtype = torus_dtype_real(hlo_dtype(g, sum));
  hlo_t ones = hlo_full_like(g, o->source, dtype, 1);
  hlo_t count = hlo_full_like(g, sum, dtype, include_self ? 1 : 0);
  count = put(g, HLO_SCATTER_ADD, count, o->dim, o->index, ones);
  count = hlo_maximum(g, count, hlo_const(g, dtype, 1));
  return divide_by_count(g, sum, hlo_convert(g, count, hlo_dtype(g, sum)));
}

/* Without include_self the elements that receive something start from the identity. */
static hlo_t without_self(hlo_graph_t *g, put_fn put, reduce_t reduce, const operands_t *o,
                          hlo_t x) {
  hlo_t none = hlo_full_like(g, x, TORUS_DTYPE_BOOL, 0);
  hlo_t all = hlo_full_like(g, o->source, TORUS_DTYPE_BOOL, 1);
  hlo_t touched = put(g, HLO_SCATTER_SET, none, o->dim, o->index, all);
  return hlo_select(g, touched, identity_of(g, reduce, hlo_dtype(g, x)), x);
}

static void reduce_into(torus_call_t *call, hlo_graph_t *g, put_fn put, reduce_t reduce,
                        bool include_self, operands_t *o) {
  torus_dtype_t dtype = hlo_dtype(g, o->self), wide = op_accumulate_type(dtype);
  hlo_t x = hlo_convert(g, o->self, wide);
  if (hlo_numel(g, o->index) > 0 && hlo_numel(g, x) > 0) {
    o->source = hlo_convert(g, o->source, wide);
    if (!include_self)
      x = without_self(g, put, reduce, o, x);
    x = put(g, scatter_of(reduce), x, o->dim, o->index, o->source);
    if (reduce == REDUCE_MEAN)
      x = mean_of(g, put, include_self, o, x);
  }
  return_like_self(call, g, o, hlo_convert(g, x, dtype));
}

static void set_into(torus_call_t *call, hlo_graph_t *g, put_fn put, const operands_t *o) {
  hlo_t x = o->self;
  if (hlo_numel(g, o->index) > 0 && hlo_numel(g, x) > 0)
    x = put(g, HLO_SCATTER_SET, x, o->dim, o->index, o->source);
  return_like_self(call, g, o, x);
}

TORUS_OP(scatter_src, "scatter.src", 0) {
  operands_t o;
  if (read_scatter(call, g, &o))
    set_into(call, g, hlo_put_along, &o);
}

TORUS_OP(scatter_value, "scatter.value", 0) {
  operands_t o;
  if (read_scatter_value(call, g, &o))
    set_into(call, g, hlo_put_along, &o);
}

TORUS_OP(scatter_reduce_src, "scatter.reduce", 0) {
  operands_t o;
  reduce_t reduce;
  if (read_reduce(call, 4, &reduce) && read_scatter(call, g, &o))
    reduce_into(call, g, hlo_put_along, reduce, true, &o);
}

TORUS_OP(scatter_value_reduce, "scatter.value_reduce", 0) {
  operands_t o;
  reduce_t reduce;
  if (read_reduce(call, 4, &reduce) && read_scatter_value(call, g, &o))
    reduce_into(call, g, hlo_put_along, reduce, true, &o);
}

TORUS_OP(scatter_add, "scatter_add", 0) {
  operands_t o;
  if (read_scatter(call, g, &o))
    reduce_into(call, g, hlo_put_along, REDUCE_SUM, true, &o);
}

TORUS_OP(scatter_reduce_two, "scatter_reduce.two", 0) {
  operands_t o;
  reduce_t reduce;
  if (read_reduce(call, 4, &reduce) && read_scatter(call, g, &o))
    reduce_into(call, g, hlo_put_along, reduce, op_bool(call, 5), &o);
}

/* ---- one index per row ---- */

/* The index of the index_ operators: rank 1, also when given without dimensions. */
static hlo_t row_index(torus_call_t *call, hlo_graph_t *g) {
  hlo_t index = index_argument(call, g, 2);
  if (failed(call, g))
    return HLO_NONE;
  if (hlo_rank(g, index) > 1) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "Index is supposed to be a vector");
    return HLO_NONE;
  }
  return index_at_least_1d(g, index);
}

/* Negative indices count from the end where |low| is negative. */
static bool read_rows(torus_call_t *call, hlo_graph_t *g, bool wraps, operands_t *o) {
  read_self(call, g, o);
  o->index = row_index(call, g);
  if (failed(call, g))
    return false;
  int64_t size = hlo_dim(g, o->self, o->dim);
  if (hlo_numel(g, o->index) > 0)
    o->index = op_check_index(call, o->index, wraps ? -size : 0, size, o->dim);
  return !failed(call, g);
}

/* Argument 3 as rows: the shape of self with |dim| as long as the index. */
static bool read_row_source(torus_call_t *call, hlo_graph_t *g, operands_t *o) {
  int64_t dims[TORUS_MAX_RANK], own[TORUS_MAX_RANK];
  if (!require_dtype(call, 3))
    return false;
  hlo_t source = op_tensor(call, 3);
  int rank = hlo_shape(g, o->self, dims), own_rank = hlo_shape(g, source, own);
  dims[o->dim] = hlo_numel(g, o->index);
  bool scalar = own_rank == 0 && rank == 1 && dims[0] == 1;
  bool same = own_rank == rank && memcmp(own, dims, (size_t)rank * sizeof *own) == 0;
  if (!scalar && !same) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "source must have the shape of self apart from dimension %d", o->dim);
    return false;
  }
  o->source = hlo_reshape(g, source, rank, dims);
  return !failed(call, g);
}

TORUS_OP(index_select, "index_select", 0) {
  operands_t o;
  int64_t dims[TORUS_MAX_RANK];
  read_self(call, g, &o);
  o.index = row_index(call, g);
  if (failed(call, g))
    return;
  int rank = hlo_shape(g, o.self, dims);
  int64_t size = dims[o.dim];
  dims[o.dim] = hlo_numel(g, o.index);
  if (hlo_numel(g, o.index) == 0 || hlo_numel(g, o.self) == 0) {
    if (dims[o.dim] > 0 && size == 0)
      op_error(call, TORUS_STATUS_OUT_OF_RANGE, "index out of range in self");
    op_return(call, 0, hlo_zeros(g, hlo_dtype(g, o.self), rank, dims));
    return;
  }
  /* As an unsigned number a negative index is larger than any size. */
  hlo_t worst = hlo_reduce_all(g, HLO_REDUCE_MAXIMUM, hlo_bitcast(g, o.index, TORUS_DTYPE_U64));
  op_check(call, hlo_compare(g, HLO_GE, worst, hlo_soft_int(g, TORUS_DTYPE_U64, size)),
           TORUS_STATUS_OUT_OF_RANGE, "index out of range in self");
  hlo_t x = hlo_take(g, o.self, o.dim, o.index);
  op_return(call, 0, o.rank == 0 ? hlo_reshape(g, x, 0, NULL) : x);
}

TORUS_OP(index_add, "index_add", 0) {
  operands_t o;
  if (!read_rows(call, g, false, &o) || !read_row_source(call, g, &o))
    return;
  if (!op_scalar_is(call, 4, 1))
    o.source = hlo_multiply(g, o.source, op_scalar(call, 4, hlo_dtype(g, o.source)));
  reduce_into(call, g, index_put_rows, REDUCE_SUM, true, &o);
}

TORUS_OP(index_copy, "index_copy", 0) {
  operands_t o;
  if (read_rows(call, g, false, &o) && read_row_source(call, g, &o))
    set_into(call, g, index_put_rows, &o);
}

TORUS_OP(index_reduce, "index_reduce", 0) {
  operands_t o;
  reduce_t reduce;
  if (read_reduce(call, 4, &reduce) && read_rows(call, g, false, &o) &&
      read_row_source(call, g, &o))
    reduce_into(call, g, index_put_rows, reduce, op_bool(call, 5), &o);
}

/* One value for all rows: marking the rows is cheaper than scattering them. */
static void fill_rows(torus_call_t *call, hlo_graph_t *g, hlo_t value) {
  operands_t o;
  int64_t dims[TORUS_MAX_RANK];
  if (!read_rows(call, g, true, &o))
    return;
  if (hlo_numel(g, o.index) > 0 && hlo_numel(g, o.self) > 0) {
    int rank = hlo_shape(g, o.self, dims);
    hlo_t none = hlo_zeros(g, TORUS_DTYPE_BOOL, 1, &dims[o.dim]);
    hlo_t all = hlo_full_like(g, o.index, TORUS_DTYPE_BOOL, 1);
    hlo_t filled = index_put_rows(g, HLO_SCATTER_SET, none, 0, o.index, all);
    filled = hlo_broadcast_in_dim(g, filled, rank, dims, &o.dim);
    o.self = hlo_select(g, filled, value, o.self);
  }
  return_like_self(call, g, &o, o.self);
}

TORUS_OP(index_fill_scalar, "index_fill.int_Scalar", 0) {
  fill_rows(call, g, op_scalar(call, 3, op_tensor_dtype(call, 0)));
}

TORUS_OP(index_fill_tensor, "index_fill.int_Tensor", 0) {
  if (op_tensor_rank(call, 3) == 0)
    fill_rows(call, g, op_tensor_as(call, 3, op_tensor_dtype(call, 0)));
  else
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "index_fill_ only supports a 0-dimensional value tensor");
}

/* ---- repeat_interleave ---- */

/* Result j is the number of groups that end at or before j: marks at the ends, summed up. */
TORUS_OP(repeat_interleave, "repeat_interleave.Tensor", 0) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  int64_t length = op_tensor_numel(call, 0);
  if (op_tensor_rank(call, 0) != 1 || (dtype != TORUS_DTYPE_I64 && dtype != TORUS_DTYPE_I32)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "repeat_interleave only accepts 1D int32 or int64 vectors as repeat");
    return;
  }
  int64_t total = op_int_or(call, 1, -1);
  bool given = total >= 0;
  if (!given && length > 0)
    total = op_read_int(call,
                        hlo_reduce_all(g, HLO_REDUCE_ADD, op_tensor_as(call, 0, TORUS_DTYPE_I64)));
  if (op_failed(call))
    return;
  g = op_graph(call);
  if (total <= 0)
    total = 0;
  hlo_t marks = hlo_zeros(g, TORUS_DTYPE_I64, 1, &total);
  if (length > 0) {
    hlo_t repeats = op_tensor_as(call, 0, TORUS_DTYPE_I64);
    hlo_t negative = hlo_compare_f(g, HLO_LT, repeats, 0);
    op_check(call, hlo_reduce_all(g, HLO_REDUCE_OR, negative), TORUS_STATUS_INVALID_ARGUMENT,
             "repeats can not be negative");
    hlo_t sum = hlo_reduce_all(g, HLO_REDUCE_ADD, repeats);
    if (given)
      op_check(call, hlo_compare(g, HLO_NE, sum, hlo_soft_int(g, TORUS_DTYPE_I64, total)),
               TORUS_STATUS_INVALID_ARGUMENT, "allocated size does not match required size");
    hlo_t ends = hlo_scan(g, HLO_REDUCE_ADD, repeats, 0);
    marks = index_put_rows(g, HLO_SCATTER_ADD, marks, 0, ends,
                           hlo_full_like(g, ends, TORUS_DTYPE_I64, 1));
  }
  op_return(call, 0,
            hlo_convert(g, total > 0 ? hlo_scan(g, HLO_REDUCE_ADD, marks, 0) : marks, dtype));
}
