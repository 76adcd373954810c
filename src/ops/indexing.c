/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Indexing with tensors and masks: x[i, j], x[mask] = value, take and put. */
#include "ops/indexing.h"

#include <string.h>

/* ---- shared helpers ---- */

hlo_t index_argument(torus_call_t *call, hlo_graph_t *g, int i) {
  torus_dtype_t dtype = op_tensor_dtype(call, i);
  bool fits = dtype == TORUS_DTYPE_I64 || dtype == TORUS_DTYPE_I32;
  if (!fits && op_tensor_numel(call, i) > 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "Expected dtype int32 or int64 for index, got %s",
             torus_dtype_name(dtype));
    return HLO_NONE;
  }
  return hlo_convert(g, op_tensor(call, i), TORUS_DTYPE_I64);
}

hlo_t index_at_least_1d(hlo_graph_t *g, hlo_t x) {
  return hlo_rank(g, x) == 0 ? hlo_unsqueeze(g, x, 0) : x;
}

hlo_t index_put_rows(hlo_graph_t *g, hlo_scatter_t how, hlo_t x, int dim, hlo_t index,
                     hlo_t updates) {
  if (hlo_graph_failed(g) || hlo_numel(g, updates) == 0 || hlo_numel(g, x) == 0)
    return x;
  hlo_gather_dims_t dims = {.collapsed_count = 1, .map_count = 1, .index_vector_dim = 1};
  for (int d = 0; d < hlo_rank(g, x); ++d)
    if (d != dim)
      dims.offset[dims.offset_count++] = d;
  dims.collapsed[0] = dims.map[0] = dim;
  return hlo_scatter(g, how, x, index, updates, &dims);
}

hlo_t index_diagonal_mask(hlo_graph_t *g, hlo_comparison_t how, int rank, const int64_t *dims,
                          int row_dim, int column_dim, int64_t offset) {
  hlo_t rows = hlo_iota(g, TORUS_DTYPE_I64, rank, dims, row_dim);
  hlo_t columns = hlo_iota(g, TORUS_DTYPE_I64, rank, dims, column_dim);
  hlo_t shifted = hlo_add(g, rows, hlo_soft_int(g, TORUS_DTYPE_I64, offset));
  return hlo_compare(g, how, columns, shifted);
}

/* ---- the index list ---- */

/* The defined entries of a Tensor?[] argument, masks replaced by the positions they select. */
typedef struct index_list {
  int count;
  hlo_t index[TORUS_MAX_RANK]; /* I64, in range, broadcast to the shape below */
  int dim[TORUS_MAX_RANK];     /* the dimension of self each one selects from, ascending */
  int rank;                    /* of the broadcast shape */
  int64_t dims[TORUS_MAX_RANK];
} index_list_t;

static bool is_mask(const torus_call_t *call, int list, int k) {
  torus_dtype_t dtype = op_list_dtype(call, list, k);
  return dtype == TORUS_DTYPE_BOOL || dtype == TORUS_DTYPE_U8;
}

static hlo_t list_mask(torus_call_t *call, hlo_graph_t *g, int list, int k) {
  return hlo_convert(g, op_list_tensor(call, list, k), TORUS_DTYPE_BOOL);
}

/* The only defined entry of the list, or -1. */
static int sole_entry(const torus_call_t *call, int list) {
  int found = -1;
  for (int k = 0; k < op_list_size(call, list); ++k) {
    if (!op_list_has(call, list, k))
      continue;
    if (found >= 0)
      return -1;
    found = k;
  }
  return found;
}

/* The mask's dimensions must be those of self from |dim| on. */
static bool check_mask(torus_call_t *call, hlo_graph_t *g, hlo_t mask, int dim) {
  for (int d = 0; d < hlo_rank(g, mask); ++d) {
    if (dim + d < op_tensor_rank(call, 0) && hlo_dim(g, mask, d) == op_tensor_dim(call, 0, dim + d))
      continue;
    op_error(call, TORUS_STATUS_OUT_OF_RANGE,
             "The shape of the mask does not match the shape of the indexed tensor");
    return false;
  }
  return !hlo_graph_failed(g);
}

static bool check_index_list(torus_call_t *call, hlo_graph_t *g, int list) {
  int dim = 0;
  for (int k = 0; k < op_list_size(call, list); ++k) {
    bool defined = op_list_has(call, list, k);
    if (defined && is_mask(call, list, k)) {
      hlo_t mask = op_list_tensor(call, list, k);
      if (hlo_rank(g, mask) == 0)
        return op_fallback(call, "a mask without dimensions"), false;
      if (!check_mask(call, g, mask, dim))
        return false;
      dim += hlo_rank(g, mask);
      continue;
    }
    dim += 1;
    torus_dtype_t dtype = defined ? op_list_dtype(call, list, k) : TORUS_DTYPE_I64;
    if (dtype == TORUS_DTYPE_I64 || dtype == TORUS_DTYPE_I32)
      continue;
    op_error(call, TORUS_STATUS_OUT_OF_RANGE,
             "tensors used as indices must be long, int, byte or bool tensors");
    return false;
  }
  if (dim > op_tensor_rank(call, 0))
    op_error(call, TORUS_STATUS_OUT_OF_RANGE, "too many indices for tensor of dimension %d",
             op_tensor_rank(call, 0));
  return !op_failed(call);
}

/* How many elements each mask of the list selects. Waits for them, so it comes before any node. */
static bool read_mask_counts(torus_call_t *call, hlo_graph_t *g, int list, int64_t *out_counts) {
  for (int k = 0; k < op_list_size(call, list) && k < TORUS_MAX_RANK; ++k) {
    out_counts[k] = 0;
    if (!op_list_has(call, list, k) || !is_mask(call, list, k))
      continue;
    out_counts[k] = op_read_int(call, index_count(g, list_mask(call, g, list, k)));
    if (op_failed(call))
      return false;
    g = op_graph(call);
  }
  return true;
}

static void add_index(index_list_t *indices, hlo_t index, int dim) {
  indices->index[indices->count] = index;
  indices->dim[indices->count++] = dim;
}

static int add_mask(torus_call_t *call, hlo_graph_t *g, int list, int k, int dim, int64_t count,
                    index_list_t *indices) {
  hlo_t mask = list_mask(call, g, list, k), coordinates[TORUS_MAX_RANK];
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, mask, dims);
  index_unravel(g, index_true_positions(g, hlo_flatten(g, mask), count, 0), rank, dims,
                coordinates);
  for (int d = 0; d < rank; ++d)
    add_index(indices, coordinates[d], dim + d);
  return rank;
}

/* Indices into a dimension of size 0 are errors unless there are none. */
static hlo_t checked_entry(torus_call_t *call, hlo_graph_t *g, int list, int k, int dim) {
  hlo_t index = hlo_convert(g, op_list_tensor(call, list, k), TORUS_DTYPE_I64);
  int64_t size = op_tensor_dim(call, 0, dim);
  if (hlo_graph_failed(g) || hlo_numel(g, index) == 0)
    return index;
  if (size > 0)
    return op_check_index(call, index, -size, size, dim);
  op_error(call, TORUS_STATUS_OUT_OF_RANGE, "index is out of bounds for dimension with size 0");
  return HLO_NONE;
}

static void broadcast_indices(hlo_graph_t *g, index_list_t *indices) {
  indices->rank = 0;
  for (int k = 0; k < indices->count && !hlo_graph_failed(g); ++k) {
    int64_t own[TORUS_MAX_RANK], joint[TORUS_MAX_RANK];
    int rank = hlo_shape(g, indices->index[k], own);
    indices->rank = hlo_broadcast_shape(g, indices->rank, indices->dims, rank, own, joint);
    if (indices->rank < 0)
      return;
    memcpy(indices->dims, joint, sizeof joint);
  }
  for (int k = 0; k < indices->count; ++k)
    indices->index[k] = hlo_expand(g, indices->index[k], indices->rank, indices->dims);
}

static bool read_indices(torus_call_t *call, hlo_graph_t *g, int list, index_list_t *out_indices) {
  int64_t counts[TORUS_MAX_RANK];
  memset(out_indices, 0, sizeof *out_indices);
  if (!check_index_list(call, g, list) || !read_mask_counts(call, g, list, counts))
    return false;
  g = op_graph(call);
  int dim = 0;
  for (int k = 0; k < op_list_size(call, list); ++k) {
    if (!op_list_has(call, list, k)) {
      dim += 1;
    } else if (is_mask(call, list, k)) {
      dim += add_mask(call, g, list, k, dim, counts[k], out_indices);
    } else {
      add_index(out_indices, checked_entry(call, g, list, k, dim), dim);
      dim += 1;
    }
  }
  broadcast_indices(g, out_indices);
  return !op_failed(call);
}

/* The shape of x[indices] and how its dimensions come about: the index dimensions stand where the
 * indexed ones stood when those are neighbours, in front otherwise. */
typedef struct index_plan {
  hlo_gather_dims_t dims;
  int64_t slice_sizes[TORUS_MAX_RANK];
  int rank;
  int64_t shape[TORUS_MAX_RANK];
} index_plan_t;

static bool is_indexed(const index_list_t *indices, int dim) {
  for (int k = 0; k < indices->count; ++k)
    if (indices->dim[k] == dim)
      return true;
  return false;
}

static int index_place(const index_list_t *indices) {
  int span = indices->dim[indices->count - 1] - indices->dim[0] + 1;
  return span == indices->count ? indices->dim[0] : 0;
}

static void plan_index(hlo_graph_t *g, hlo_t x, const index_list_t *indices, index_plan_t *plan) {
  int64_t sizes[TORUS_MAX_RANK];
  int rank = hlo_shape(g, x, sizes), place = index_place(indices), kept = 0;
  memset(plan, 0, sizeof *plan);
  plan->rank = rank - indices->count + indices->rank;
  if (plan->rank > TORUS_MAX_RANK) {
    hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "indexing gives too many dimensions");
    return;
  }
  for (int d = 0; d < rank; ++d) {
    plan->slice_sizes[d] = sizes[d];
    if (is_indexed(indices, d)) {
      plan->slice_sizes[d] = 1;
      plan->dims.collapsed[plan->dims.collapsed_count++] = d;
      plan->dims.map[plan->dims.map_count++] = d;
      continue;
    }
    int target = kept < place ? kept : kept + indices->rank;
    plan->dims.offset[plan->dims.offset_count++] = target;
    plan->shape[target] = sizes[d];
    ++kept;
  }
  for (int d = 0; d < indices->rank; ++d)
    plan->shape[place + d] = indices->dims[d];
  plan->dims.index_vector_dim = indices->rank;
}

static int64_t shape_numel(int rank, const int64_t *dims) {
  int64_t numel = 1;
  for (int d = 0; d < rank; ++d)
    numel *= dims[d];
  return numel;
}

/* All indices as one array with a trailing dimension of coordinates. */
static hlo_t index_vectors(hlo_graph_t *g, hlo_t x, const index_list_t *indices) {
  torus_dtype_t dtype = index_position_dtype(hlo_numel(g, x));
  hlo_t columns[TORUS_MAX_RANK];
  for (int k = 0; k < indices->count; ++k) {
    columns[k] = hlo_convert(g, indices->index[k], dtype);
    if (indices->count > 1)
      columns[k] = hlo_unsqueeze(g, columns[k], indices->rank);
  }
  if (indices->count == 1)
    return columns[0];
  return hlo_concatenate(g, columns, (size_t)indices->count, indices->rank);
}

/* ---- index ---- */

/* x[mask] with the mask over the leading dimensions. */
static void index_by_mask(torus_call_t *call, hlo_graph_t *g) {
  if (!check_index_list(call, g, 1))
    return;
  int64_t count = op_read_int(call, index_count(g, list_mask(call, g, 1, 0)));
  if (op_failed(call))
    return;
  g = op_graph(call);
  hlo_t x = op_tensor(call, 0), mask = list_mask(call, g, 1, 0);
  int64_t dims[TORUS_MAX_RANK], rows = hlo_numel(g, mask);
  int mask_rank = hlo_rank(g, mask), rank = hlo_shape(g, x, dims) - mask_rank + 1;
  memmove(dims + 1, dims + mask_rank, (size_t)(rank - 1) * sizeof *dims);
  dims[0] = count;
  if (shape_numel(rank, dims) == 0) {
    op_return(call, 0, hlo_zeros(g, hlo_dtype(g, x), rank, dims));
    return;
  }
  dims[0] = rows;
  x = hlo_reshape(g, x, rank, dims);
  hlo_t positions = index_true_positions(g, hlo_flatten(g, mask), index_room(count, rows), 0);
  op_return_prefix(call, 0, hlo_take(g, x, 0, positions), count);
}

static void index_get(torus_call_t *call, hlo_graph_t *g) {
  index_list_t indices;
  index_plan_t plan;
  if (sole_entry(call, 1) == 0 && is_mask(call, 1, 0)) {
    index_by_mask(call, g);
    return;
  }
  if (!read_indices(call, g, 1, &indices))
    return;
  g = op_graph(call);
  hlo_t x = op_tensor(call, 0);
  if (indices.count == 0) {
    op_return(call, 0, x);
    return;
  }
  plan_index(g, x, &indices, &plan);
  if (hlo_graph_failed(g))
    return;
  if (shape_numel(plan.rank, plan.shape) == 0) {
    op_return(call, 0, hlo_zeros(g, hlo_dtype(g, x), plan.rank, plan.shape));
    return;
  }
  hlo_t vectors = index_vectors(g, x, &indices);
  op_return(call, 0, hlo_gather(g, x, vectors, &plan.dims, plan.slice_sizes));
}

TORUS_OP(index, "index.Tensor", 0) {
  index_get(call, g);
}
TORUS_OP(unsafe_index, "_unsafe_index.Tensor", 0) {
  index_get(call, g);
}

/* ---- index_put ---- */

/* |value| with dimension |dim| replaced by the dimensions |dims|. */
static hlo_t split_dim(hlo_graph_t *g, hlo_t value, int dim, int rank, const int64_t *dims) {
  int64_t own[TORUS_MAX_RANK], shape[TORUS_MAX_RANK];
  int own_rank = hlo_shape(g, value, own), n = 0;
  if (own_rank - 1 + rank > TORUS_MAX_RANK)
    return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "too many dimensions");
  for (int d = 0; d < dim; ++d)
    shape[n++] = own[d];
  for (int d = 0; d < rank; ++d)
    shape[n++] = dims[d];
  for (int d = dim + 1; d < own_rank; ++d)
    shape[n++] = own[d];
  return hlo_reshape(g, value, n, shape);
}

/* Rows of |value| along |dim| handed out to the true elements of |mask| in order. */
static hlo_t spread_rows(torus_call_t *call, hlo_graph_t *g, hlo_t value, int dim, hlo_t mask) {
  int64_t mask_dims[TORUS_MAX_RANK];
  int mask_rank = hlo_shape(g, mask, mask_dims);
  hlo_t count = hlo_soft_int(g, TORUS_DTYPE_I64, hlo_dim(g, value, dim));
  op_check(call, hlo_compare(g, HLO_NE, index_count(g, mask), count), TORUS_STATUS_INVALID_ARGUMENT,
           "shape mismatch: value tensor cannot be broadcast to the elements the mask selects");
  if (hlo_dim(g, value, dim) == 0 || hlo_numel(g, mask) == 0)
    return HLO_NONE;
  hlo_t ranks = index_ranks(g, hlo_flatten(g, mask));
  return split_dim(g, hlo_take(g, value, dim, ranks), dim, mask_rank, mask_dims);
}

/* x[mask] = value needs no data-dependent size: every element takes its new or its old value. */
static void put_by_mask(torus_call_t *call, hlo_graph_t *g, int place, hlo_t value,
                        bool accumulate) {
  if (!check_index_list(call, g, 1))
    return;
  hlo_t x = op_tensor(call, 0), mask = list_mask(call, g, 1, place);
  int64_t dims[TORUS_MAX_RANK], ones[TORUS_MAX_RANK];
  int rank = hlo_shape(g, x, dims), mask_rank = hlo_rank(g, mask);
  int behind = rank - place - mask_rank, dim = hlo_rank(g, value) - behind - 1;
  for (int d = 0; d < TORUS_MAX_RANK; ++d)
    ones[d] = 1;
  if (dim > place) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "shape mismatch: too many value dimensions");
    return;
  }
  if (dim >= 0 && hlo_dim(g, value, dim) == 1)
    value = split_dim(g, value, dim, mask_rank, ones);
  else if (dim >= 0)
    value = spread_rows(call, g, value, dim, mask);
  if (value == HLO_NONE) { /* nothing to write */
    op_return(call, 0, x);
    return;
  }
  int places[TORUS_MAX_RANK];
  for (int d = 0; d < mask_rank; ++d)
    places[d] = place + d;
  value = hlo_expand(g, value, rank, dims);
  mask = hlo_broadcast_in_dim(g, mask, rank, dims, places);
  op_return(call, 0, hlo_select(g, mask, accumulate ? hlo_add(g, x, value) : value, x));
}

/* Sums in half types are rounded once, at the end. */
static hlo_t scatter_rounded(hlo_graph_t *g, bool accumulate, hlo_t x, hlo_t vectors, hlo_t value,
                             const hlo_gather_dims_t *dims) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  if (!accumulate)
    return hlo_scatter(g, HLO_SCATTER_SET, x, vectors, value, dims);
  torus_dtype_t wide = op_accumulate_type(dtype);
  hlo_t sum = hlo_scatter(g, HLO_SCATTER_ADD, hlo_convert(g, x, wide), vectors,
                          hlo_convert(g, value, wide), dims);
  return hlo_convert(g, sum, dtype);
}

static void put_by_indices(torus_call_t *call, hlo_graph_t *g, bool accumulate) {
  index_list_t indices;
  index_plan_t plan;
  if (!read_indices(call, g, 1, &indices))
    return;
  g = op_graph(call);
  hlo_t x = op_tensor(call, 0), value = op_tensor(call, 2);
  if (indices.count == 0) {
    int64_t dims[TORUS_MAX_RANK];
    value = hlo_expand(g, value, hlo_shape(g, x, dims), dims);
    op_return(call, 0, accumulate ? hlo_add(g, x, value) : value);
    return;
  }
  plan_index(g, x, &indices, &plan);
  value = hlo_expand(g, value, plan.rank, plan.shape);
  if (hlo_graph_failed(g))
    return;
  if (hlo_numel(g, value) == 0) {
    op_return(call, 0, x);
    return;
  }
  hlo_t vectors = index_vectors(g, x, &indices);
  op_return(call, 0, scatter_rounded(g, accumulate, x, vectors, value, &plan.dims));
}

static void index_put(torus_call_t *call, hlo_graph_t *g) {
  bool accumulate = op_bool(call, 3);
  if (op_tensor_dtype(call, 0) != op_tensor_dtype(call, 2)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "Index put requires the source and destination dtypes match, got %s for the "
             "destination and %s for the source.",
             torus_dtype_name(op_tensor_dtype(call, 0)),
             torus_dtype_name(op_tensor_dtype(call, 2)));
    return;
  }
  int place = sole_entry(call, 1);
  if (place >= 0 && is_mask(call, 1, place))
    put_by_mask(call, g, place, op_tensor(call, 2), accumulate);
  else
    put_by_indices(call, g, accumulate);
}

TORUS_OP(index_put, "index_put", 0) {
  index_put(call, g);
}
TORUS_OP(unsafe_index_put, "_unsafe_index_put", 0) {
  index_put(call, g);
}
TORUS_OP(index_put_impl, "_index_put_impl", 0) {
  index_put(call, g);
}

/* ---- take and put: flat positions ---- */

static hlo_t flat_index(torus_call_t *call, hlo_graph_t *g, int i) {
  hlo_t index = index_argument(call, g, i);
  int64_t size = op_tensor_numel(call, 0);
  if (hlo_graph_failed(g) || op_failed(call) || hlo_numel(g, index) == 0)
    return index;
  if (size > 0)
    return op_check_index(call, index, -size, size, 0);
  op_error(call, TORUS_STATUS_OUT_OF_RANGE, "tried to access an index of an empty tensor");
  return HLO_NONE;
}

TORUS_OP(take, "take", 0) {
  hlo_t index = flat_index(call, g, 1);
  int64_t dims[TORUS_MAX_RANK];
  if (op_failed(call) || hlo_graph_failed(g))
    return;
  if (hlo_numel(g, index) > 0)
    op_return(call, 0, hlo_take(g, hlo_flatten(g, op_tensor(call, 0)), 0, index));
  else
    op_return(call, 0, hlo_zeros(g, op_tensor_dtype(call, 0), hlo_shape(g, index, dims), dims));
}

TORUS_OP(put, "put", 0) {
  hlo_t x = op_tensor(call, 0), index = flat_index(call, g, 1), source = op_tensor(call, 2);
  int64_t dims[TORUS_MAX_RANK];
  if (op_failed(call) || hlo_graph_failed(g))
    return;
  if (hlo_numel(g, index) != hlo_numel(g, source) || hlo_dtype(g, x) != hlo_dtype(g, source)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "put_(): self and source must have one dtype, index and source one size");
    return;
  }
  hlo_scatter_t how = op_bool(call, 3) ? HLO_SCATTER_ADD : HLO_SCATTER_SET;
  int rank = hlo_shape(g, x, dims);
  hlo_t result =
      index_put_rows(g, how, hlo_flatten(g, x), 0, hlo_flatten(g, index), hlo_flatten(g, source));
  op_return(call, 0, hlo_reshape(g, result, rank, dims));
}
