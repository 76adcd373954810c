/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Padding: by a constant, by reflection and by repetition of the border. Sizes come in pairs from
 * the last dimension on; negative ones crop. */
#include "ops/spatial.h"

/* ---- constant ---- */

static bool pad_sizes(torus_call_t *call, int64_t *low, int64_t *high) {
  int count = 0, rank = op_tensor_rank(call, 0);
  const int64_t *pad = op_ints(call, 1, &count);
  bool fits = count % 2 == 0 && count / 2 <= rank;
  for (int k = 0; fits && k < count / 2; k++) {
    int dim = rank - 1 - k;
    low[dim] = pad[2 * k];
    high[dim] = pad[2 * k + 1];
    fits = op_tensor_dim(call, 0, dim) + low[dim] + high[dim] >= 0;
  }
  if (!fits) op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "unexpected padding");
  return fits;
}

TORUS_OP(constant_pad_nd, "constant_pad_nd", TORUS_OP_KEEP_FORMAT) {
  int64_t low[TORUS_MAX_RANK] = {0}, high[TORUS_MAX_RANK] = {0};
  if (!pad_sizes(call, low, high)) return;
  hlo_t value = op_scalar(call, 2, op_tensor_dtype(call, 0));
  op_return(call, 0, hlo_pad(g, op_tensor(call, 0), value, low, high, NULL));
}

/* ---- reflection and replication, one dimension at a time ---- */

typedef struct border {
  hlo_graph_t *g;
  bool reflect;
  int dim;
  int64_t size, low, high; /* size of the unpadded dimension; low and high not negative */
} border_t;

static hlo_t reversed(const border_t *b, hlo_t x) { return hlo_reverse(b->g, x, 1, &b->dim); }

static hlo_t repeated(const border_t *b, hlo_t x, int64_t count) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(b->g, x, dims);
  dims[b->dim] = count;
  return hlo_expand(b->g, x, rank, dims);
}

static hlo_t low_border(const border_t *b, hlo_t x) {
  if (b->reflect) return reversed(b, hlo_slice_dim(b->g, x, b->dim, 1, b->low));
  return repeated(b, hlo_slice_dim(b->g, x, b->dim, 0, 1), b->low);
}

static hlo_t high_border(const border_t *b, hlo_t x) {
  int64_t from = b->size - 1;
  if (b->reflect) return reversed(b, hlo_slice_dim(b->g, x, b->dim, from - b->high, b->high));
  return repeated(b, hlo_slice_dim(b->g, x, b->dim, from, 1), b->high);
}

static hlo_t add_borders(const border_t *b, hlo_t x) {
  hlo_t parts[3];
  size_t count = 0;
  if (b->low > 0) parts[count++] = low_border(b, x);
  parts[count++] = x;
  if (b->high > 0) parts[count++] = high_border(b, x);
  return count == 1 ? x : hlo_concatenate(b->g, parts, count, b->dim);
}

/* The gradient of a border, as an array of the unpadded size. */
static hlo_t fold_border(const border_t *b, hlo_t y, int64_t from, int64_t count, bool is_low) {
  hlo_t part = hlo_slice_dim(b->g, y, b->dim, from, count);
  if (b->reflect) part = reversed(b, part);
  else part = hlo_reduce(b->g, HLO_REDUCE_ADD, part, 1, &b->dim, true);
  int64_t width = b->reflect ? count : 1, inset = b->reflect ? 1 : 0;
  int64_t at = is_low ? inset : b->size - inset - width;
  return spatial_pad_dim(b->g, part, b->dim, at, b->size - at - width);
}

static hlo_t fold_borders(const border_t *b, hlo_t y) {
  hlo_t x = hlo_slice_dim(b->g, y, b->dim, b->low, b->size);
  if (b->low > 0) x = hlo_add(b->g, x, fold_border(b, y, 0, b->low, true));
  if (b->high > 0)
    x = hlo_add(b->g, x, fold_border(b, y, b->low + b->size, b->high, false));
  return x;
}

static int64_t positive(int64_t n) { return n > 0 ? n : 0; }
static int64_t negative(int64_t n) { return n < 0 ? n : 0; }

/* Borders of dimension |k| from the last one, for the tensor argument |like|. */
static border_t read_border(torus_call_t *call, hlo_graph_t *g, bool reflect, int like, int pads,
                            int k) {
  border_t b = {.g = g, .reflect = reflect, .dim = op_tensor_rank(call, like) - 1 - k};
  b.size = op_tensor_dim(call, like, b.dim);
  b.low = positive(op_ints_at(call, pads, 2 * k));
  b.high = positive(op_ints_at(call, pads, 2 * k + 1));
  return b;
}

static bool borders_fit(torus_call_t *call, bool reflect, int n, int like, int pads) {
  int count = 0, rank = op_tensor_rank(call, like);
  const int64_t *pad = op_ints(call, pads, &count);
  bool fits = count == 2 * n && (rank == n + 1 || rank == n + 2);
  for (int k = 0; fits && k < n; k++) {
    int64_t size = op_tensor_dim(call, like, rank - 1 - k), low = pad[2 * k], high = pad[2 * k + 1];
    fits = size + low + high >= 1 && size >= 1 && (!reflect || (low < size && high < size));
  }
  if (!fits) op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "padding does not fit the input");
  return fits;
}

static void pad_borders(torus_call_t *call, hlo_graph_t *g, bool reflect, int n) {
  if (!borders_fit(call, reflect, n, 0, 1)) return;
  hlo_t x = op_tensor(call, 0);
  for (int k = 0; k < n; k++) {
    border_t b = read_border(call, g, reflect, 0, 1, k);
    x = spatial_pad_dim(g, add_borders(&b, x), b.dim, negative(op_ints_at(call, 1, 2 * k)),
                        negative(op_ints_at(call, 1, 2 * k + 1)));
  }
  op_return(call, 0, x);
}

/* grad_output 0, self 1, padding 2. */
static void pad_borders_backward(torus_call_t *call, hlo_graph_t *g, bool reflect, int n) {
  if (!borders_fit(call, reflect, n, 1, 2)) return;
  hlo_t y = spatial_tensor_wide(call, 0);
  for (int k = 0; k < n; k++) {
    border_t b = read_border(call, g, reflect, 1, 2, k);
    y = spatial_pad_dim(g, y, b.dim, -negative(op_ints_at(call, 2, 2 * k)),
                        -negative(op_ints_at(call, 2, 2 * k + 1)));
    y = fold_borders(&b, y);
  }
  op_return(call, 0, hlo_convert(g, y, op_tensor_dtype(call, 0)));
}

#define PAD_OPS(ident, reflect, n)                                                                 \
  TORUS_OP(ident, #ident, TORUS_OP_KEEP_FORMAT) { pad_borders(call, g, reflect, n); }              \
  TORUS_OP(ident##_backward, #ident "_backward", TORUS_OP_KEEP_FORMAT) {                           \
    pad_borders_backward(call, g, reflect, n);                                                     \
  }

PAD_OPS(reflection_pad1d, true, 1)
PAD_OPS(reflection_pad2d, true, 2)
PAD_OPS(reflection_pad3d, true, 3)
PAD_OPS(replication_pad1d, false, 1)
PAD_OPS(replication_pad2d, false, 2)
PAD_OPS(replication_pad3d, false, 3)
