/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Embedding tables: lookup, bags, renormalisation and the dense gradients. */
#include "ops/spatial.h"

static const torus_dtype_t I64 = TORUS_DTYPE_I64;

/* Indices with those equal to |padding| moved behind the last row, where a scatter drops them. */
static hlo_t without_padding(hlo_graph_t *g, hlo_t indices, int64_t padding, int64_t rows) {
  if (padding < 0) return indices;
  hlo_t is_padding = hlo_compare_f(g, HLO_EQ, indices, (double)padding);
  return hlo_select(g, is_padding, hlo_const_int(g, hlo_dtype(g, indices), rows), indices);
}

/* How often each of |rows| rows is named. */
static hlo_t row_counts(hlo_graph_t *g, hlo_t indices, int64_t rows, torus_dtype_t dtype) {
  hlo_t ones = hlo_full_like(g, indices, dtype, 1);
  return spatial_add_rows(g, ones, 0, rows, indices);
}

/* Gradient rows divided by how often their index occurs. */
static hlo_t divide_by_frequency(hlo_graph_t *g, hlo_t y, hlo_t indices, int64_t rows) {
  hlo_t counts = row_counts(g, indices, rows, hlo_dtype(g, y));
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, y, dims);
  hlo_t own = hlo_take(g, counts, 0, spatial_clamp_int(g, indices, 0, rows - 1));
  return hlo_divide(g, y, spatial_along(g, own, rank, dims, 0));
}

/* ---- embedding ---- */

TORUS_OP(embedding, "embedding", 0) {
  if (op_tensor_rank(call, 0) != 2) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "'weight' must be 2-D");
    return;
  }
  hlo_t indices = op_check_index(call, op_tensor(call, 1), 0, op_tensor_dim(call, 0, 0), 0);
  op_return(call, 0, hlo_take(g, op_tensor(call, 0), 0, indices));
}

TORUS_OP(embedding_dense_backward, "embedding_dense_backward", 0) {
  int64_t rows = op_int(call, 2);
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  int rank = op_tensor_rank(call, 0);
  hlo_t indices = hlo_flatten(g, op_tensor(call, 1));
  const int64_t dims[2] = {op_tensor_numel(call, 1), op_tensor_dim(call, 0, rank - 1)};
  hlo_t y = hlo_reshape(g, spatial_tensor_wide(call, 0), 2, dims);
  if (rows == 0 || hlo_numel(g, y) == 0) {
    op_return(call, 0, hlo_zeros(g, dtype, 2, (const int64_t[]){rows, dims[1]}));
    return;
  }
  if (op_bool(call, 4)) y = divide_by_frequency(g, y, indices, rows);
  y = spatial_add_rows(g, y, 0, rows, without_padding(g, indices, op_int(call, 3), rows));
  op_return(call, 0, hlo_convert(g, y, dtype));
}

static hlo_t row_norms(hlo_graph_t *g, hlo_t x, double p) {
  x = hlo_abs(g, x);
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t sum = hlo_reduce(g, HLO_REDUCE_ADD, p == 2 ? hlo_multiply(g, x, x)
                                            : p == 1 ? x
                                                     : hlo_power(g, x, hlo_const(g, dtype, p)),
                         1, (const int[]){1}, false);
  return p == 2 ? hlo_sqrt(g, sum) : p == 1 ? sum : hlo_power(g, sum, hlo_const(g, dtype, 1 / p));
}

/* Rows that are named and longer than max_norm shrink to it. */
TORUS_OP(embedding_renorm, "embedding_renorm", 0) {
  hlo_t x = spatial_tensor_wide(call, 0);
  torus_dtype_t wide = hlo_dtype(g, x);
  int64_t rows = op_tensor_dim(call, 0, 0);
  hlo_t limit = op_scalar(call, 2, wide), norm = row_norms(g, x, op_double(call, 3));
  hlo_t named = row_counts(g, hlo_flatten(g, op_tensor(call, 1)), rows, TORUS_DTYPE_I32);
  hlo_t shrink = hlo_and(g, hlo_compare_f(g, HLO_GT, named, 0),
                         hlo_compare(g, HLO_GT, norm, limit));
  hlo_t factor = hlo_divide(g, limit, hlo_add_f(g, norm, 1e-7));
  factor = hlo_select(g, shrink, factor, hlo_const(g, wide, 1));
  op_return(call, 0, hlo_convert(g, spatial_scale(g, x, factor, 0), op_tensor_dtype(call, 0)));
}

/* ---- bags ---- */

enum { MODE_SUM, MODE_MEAN, MODE_MAX };

typedef struct bag {
  torus_call_t *call;
  hlo_graph_t *g;
  int64_t mode, bags, count, rows, width; /* count: indices */
  torus_dtype_t dtype, wide;
  hlo_t indices, kept, bag, size; /* kept: without padding; bag: of each index; size: of each bag */
} bag_t;

/* The bag of each index: the offsets that lie at or before it, less one. */
static hlo_t bag_of_indices(const bag_t *b, hlo_t offsets) {
  hlo_t marks = row_counts(b->g, offsets, b->count, I64);
  hlo_t bag = hlo_scan(b->g, HLO_REDUCE_ADD, marks, 0);
  return hlo_subtract(b->g, bag, hlo_const_int(b->g, I64, 1));
}

static bag_t read_bag(torus_call_t *call, hlo_graph_t *g) {
  bag_t b = {.call = call, .g = g, .mode = op_int(call, 4)};
  b.dtype = op_tensor_dtype(call, 0);
  b.wide = op_accumulate_type(b.dtype);
  b.rows = op_tensor_dim(call, 0, 0);
  b.width = op_tensor_dim(call, 0, 1);
  b.count = op_tensor_dim(call, 1, 0);
  b.bags = op_tensor_dim(call, 2, 0) - (op_bool(call, 7) ? 1 : 0);
  b.indices = op_check_index(call, op_tensor_as(call, 1, I64), 0, b.rows, 0);
  hlo_t offsets = hlo_slice_dim(g, op_tensor_as(call, 2, I64), 0, 0, b.bags);
  b.kept = without_padding(g, b.indices, op_int(call, 8), b.rows);
  if (b.count == 0 || b.bags == 0) return b;
  b.bag = bag_of_indices(&b, offsets);
  hlo_t used = hlo_compare_f(g, HLO_LT, b.kept, (double)b.rows);
  b.size = spatial_add_rows(g, hlo_convert(g, used, I64), 0, b.bags, b.bag);
  return b;
}

/* The bag of each index that counts; |bags| for padding, so that it is dropped. */
static hlo_t target_bags(const bag_t *b) {
  hlo_t used = hlo_compare_f(b->g, HLO_LT, b->kept, (double)b->rows);
  return hlo_select(b->g, used, b->bag, hlo_const_int(b->g, I64, b->bags));
}

static hlo_t bag_rows(const bag_t *b) {
  hlo_t x = hlo_convert(b->g, hlo_take(b->g, op_tensor(b->call, 0), 0, b->indices), b->wide);
  return op_has(b->call, 6) ? spatial_scale(b->g, x, op_tensor_as(b->call, 6, b->wide), 0) : x;
}

static hlo_t at_least_one(hlo_graph_t *g, hlo_t counts, torus_dtype_t dtype) {
  return hlo_convert(g, hlo_maximum(g, counts, hlo_const_int(g, hlo_dtype(g, counts), 1)), dtype);
}

static hlo_t divide_rows(hlo_graph_t *g, hlo_t x, hlo_t by) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, x, dims);
  return hlo_divide(g, x, spatial_along(g, by, rank, dims, 0));
}

static hlo_t bag_sum(const bag_t *b) {
  hlo_t sum = spatial_add_rows(b->g, bag_rows(b), 0, b->bags, target_bags(b));
  if (b->mode != MODE_MEAN) return sum;
  return divide_rows(b->g, sum, at_least_one(b->g, b->size, b->wide));
}

/* Combines |rows| (count, width) by bag. */
static hlo_t by_bag(const bag_t *b, hlo_scatter_t how, hlo_t start, hlo_t rows) {
  hlo_gather_dims_t dims = {.offset_count = 1, .offset = {1}, .collapsed_count = 1,
                            .map_count = 1, .index_vector_dim = 1};
  const int64_t shape[2] = {b->bags, b->width};
  return hlo_scatter(b->g, how, hlo_splat(b->g, start, 2, shape), target_bags(b), rows, &dims);
}

static hlo_t non_empty(const bag_t *b) {
  const int64_t shape[2] = {b->bags, b->width};
  return spatial_along(b->g, hlo_compare_f(b->g, HLO_GT, b->size, 0), 2, shape, 0);
}

/* The maximum, and the row of the table that it came from: the first that equals it. */
static hlo_t bag_max(const bag_t *b, hlo_t *out_indices) {
  hlo_graph_t *g = b->g;
  hlo_t rows = bag_rows(b), top = by_bag(b, HLO_SCATTER_MAXIMUM, hlo_lowest(g, b->wide), rows);
  const int64_t shape[2] = {b->count, b->width};
  hlo_t last = hlo_const_int(g, I64, b->count - 1);
  hlo_t own = hlo_take(g, top, 0, spatial_clamp_int(g, b->bag, 0, b->bags - 1));
  hlo_t place = hlo_select(g, hlo_compare(g, HLO_EQ, rows, own), hlo_iota(g, I64, 2, shape, 0),
                           last);
  place = by_bag(b, HLO_SCATTER_MINIMUM, last, place);
  hlo_t filled = non_empty(b);
  *out_indices = hlo_select(g, filled, hlo_take(g, b->indices, 0, place),
                            hlo_const_int(g, I64, 0));
  return hlo_select(g, filled, top, hlo_const(g, b->wide, 0));
}

static void return_empty_bags(const bag_t *b) {
  const int64_t dims[2] = {b->bags, b->width};
  op_return(b->call, 0, hlo_zeros(b->g, b->dtype, 2, dims));
  op_return(b->call, 1, hlo_zeros(b->g, I64, 1, &b->count));
  op_return(b->call, 2, hlo_zeros(b->g, I64, 1, &b->bags));
  op_return(b->call, 3, hlo_zeros(b->g, I64, b->mode == MODE_MAX ? 2 : 1, dims));
}

static void embedding_bag(torus_call_t *call, hlo_graph_t *g) {
  if (op_tensor_rank(call, 0) != 2 || op_tensor_rank(call, 1) != 1 ||
      op_tensor_rank(call, 2) != 1) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "unexpected shapes of embedding_bag");
    return;
  }
  bag_t b = read_bag(call, g);
  if (op_failed(call)) return;
  if (b.count == 0 || b.bags == 0) {
    return_empty_bags(&b);
    return;
  }
  hlo_t top = b.size, y = b.mode == MODE_MAX ? bag_max(&b, &top) : bag_sum(&b);
  op_return(call, 0, hlo_convert(g, y, b.dtype));
  op_return(call, 1, b.bag);
  op_return(call, 2, b.size);
  op_return(call, 3, top);
}

TORUS_OP(embedding_bag, "_embedding_bag", 0) { embedding_bag(call, g); }
TORUS_OP(embedding_bag_forward, "_embedding_bag_forward_only", 0) { embedding_bag(call, g); }

/* ---- gradients of bags ---- */

/* |bag| is the position of offset2bag; bag_size, maximum_indices, num_weights, scale_grad_by_freq
 * and mode follow. */
typedef struct bag_gradient {
  torus_call_t *call;
  hlo_graph_t *g;
  int bag, weights, padding;
  int64_t rows;
} bag_gradient_t;

static hlo_t own_rows(hlo_graph_t *g, hlo_t x, hlo_t bag) { return hlo_take(g, x, 0, bag); }

static hlo_t max_gradient(const bag_gradient_t *b) {
  hlo_graph_t *g = b->g;
  hlo_t y = spatial_tensor_wide(b->call, 0), index = op_tensor_as(b->call, b->bag + 2, I64);
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, y, dims);
  hlo_t filled = hlo_compare_f(g, HLO_GT, op_tensor_as(b->call, b->bag + 1, I64), 0);
  y = hlo_select(g, spatial_along(g, filled, rank, dims, 0), y,
                 hlo_const(g, hlo_dtype(g, y), 0));
  dims[0] = b->rows;
  return hlo_put_along(g, HLO_SCATTER_ADD, hlo_zeros(g, hlo_dtype(g, y), 2, dims), 0, index, y);
}

static hlo_t sum_gradient(const bag_gradient_t *b, bool mean) {
  hlo_graph_t *g = b->g;
  hlo_t y = spatial_tensor_wide(b->call, 0), index = op_tensor_as(b->call, 1, I64);
  hlo_t bag = op_tensor_as(b->call, b->bag, I64);
  torus_dtype_t wide = hlo_dtype(g, y);
  if (mean)
    y = divide_rows(g, y, at_least_one(g, op_tensor_as(b->call, b->bag + 1, I64), wide));
  y = own_rows(g, y, bag);
  if (op_has(b->call, b->weights))
    y = spatial_scale(g, y, op_tensor_as(b->call, b->weights, wide), 0);
  if (op_bool(b->call, b->bag + 4)) y = divide_by_frequency(g, y, index, b->rows);
  index = without_padding(g, index, op_int(b->call, b->padding), b->rows);
  return spatial_add_rows(g, y, 0, b->rows, index);
}

static void bag_backward(torus_call_t *call, hlo_graph_t *g, int bag, int weights) {
  bag_gradient_t b = {call, g, bag, weights, weights + 1, op_int(call, bag + 3)};
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  int64_t mode = op_int(call, bag + 5);
  if (op_tensor_numel(call, 1) == 0 || op_tensor_numel(call, 0) == 0 || b.rows == 0) {
    const int64_t dims[2] = {b.rows, op_tensor_dim(call, 0, 1)};
    op_return(call, 0, hlo_zeros(g, dtype, 2, dims));
    return;
  }
  hlo_t y = mode == MODE_MAX ? max_gradient(&b) : sum_gradient(&b, mode == MODE_MEAN);
  op_return(call, 0, hlo_convert(g, y, dtype));
}

TORUS_OP(embedding_bag_dense_backward, "_embedding_bag_dense_backward", 0) {
  bag_backward(call, g, 2, 8);
}

TORUS_OP(embedding_bag_backward, "_embedding_bag_backward", 0) {
  if (op_bool(call, 9)) op_fallback(call, "sparse gradients");
  else bag_backward(call, g, 3, 10);
}

/* Each weight's gradient: the product of its row with the gradient of its bag. */
TORUS_OP(embedding_bag_weights, "_embedding_bag_per_sample_weights_backward", 0) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0), wide = op_accumulate_type(dtype);
  hlo_t index = op_tensor_as(call, 2, I64);
  if (op_tensor_numel(call, 2) == 0 || op_tensor_numel(call, 0) == 0) {
    op_return(call, 0, spatial_zeros_like(g, index, dtype));
    return;
  }
  hlo_t y = own_rows(g, op_tensor_as(call, 0, wide), op_tensor_as(call, 4, I64));
  hlo_t x = hlo_take(g, op_tensor_as(call, 1, wide), 0, index);
  hlo_t sum = hlo_reduce(g, HLO_REDUCE_ADD, hlo_multiply(g, x, y), 1, (const int[]){1}, false);
  int64_t padding = op_int(call, 6);
  if (padding >= 0)
    sum = hlo_select(g, hlo_compare_f(g, HLO_EQ, index, (double)padding), hlo_const(g, wide, 0),
                     sum);
  op_return(call, 0, hlo_convert(g, sum, dtype));
}
