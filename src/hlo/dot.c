/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Products: dot_general and convolution. */
#include <string.h>

#include "hlo/graph_internal.h"

/* ---- dot_general ---- */

static bool mark_dims(int rank, int count, const int *dims, uint32_t *mask) {
  for (int i = 0; i < count; i++) {
    if (dims[i] < 0 || dims[i] >= rank || *mask >> dims[i] & 1) return false;
    *mask |= UINT32_C(1) << dims[i];
  }
  return true;
}

static bool same_sizes(const hlo_graph_t *g, hlo_t x, hlo_t y, int count, const int *xs,
                       const int *ys) {
  for (int i = 0; i < count; i++) {
    if (hlo_dims(g, x)[xs[i]] != hlo_dims(g, y)[ys[i]]) return false;
  }
  return true;
}

/* Appends the dimensions that are not in |mask|. */
static int free_dims(const hlo_graph_t *g, hlo_t x, uint32_t mask, int rank, int64_t *dims) {
  for (int i = 0; i < hlo_rank(g, x) && rank < 2 * TORUS_MAX_RANK; i++) {
    if (!(mask >> i & 1)) dims[rank++] = hlo_dims(g, x)[i];
  }
  return rank;
}

/* The rank of the result, or -1 when the numbers are wrong. */
static int dot_shape(const hlo_graph_t *g, hlo_t x, hlo_t y, const hlo_dot_dims_t *d,
                     int64_t *out_dims) {
  uint32_t in_x = 0, in_y = 0;
  int x_rank = hlo_rank(g, x), y_rank = hlo_rank(g, y);
  if (!mark_dims(x_rank, d->batch_count, d->lhs_batch, &in_x) ||
      !mark_dims(x_rank, d->contract_count, d->lhs_contract, &in_x) ||
      !mark_dims(y_rank, d->batch_count, d->rhs_batch, &in_y) ||
      !mark_dims(y_rank, d->contract_count, d->rhs_contract, &in_y) ||
      !same_sizes(g, x, y, d->batch_count, d->lhs_batch, d->rhs_batch) ||
      !same_sizes(g, x, y, d->contract_count, d->lhs_contract, d->rhs_contract)) {
    return -1;
  }
  for (int i = 0; i < d->batch_count; i++) out_dims[i] = hlo_dims(g, x)[d->lhs_batch[i]];
  int rank = free_dims(g, x, in_x, d->batch_count, out_dims);
  return free_dims(g, y, in_y, rank, out_dims);
}

/* attrs: batch_count, contract_count, lhs batch, rhs batch, lhs contract, rhs contract. */
static size_t dot_attrs(const hlo_dot_dims_t *d, int64_t *out_attrs) {
  size_t at = 0;
  out_attrs[at++] = d->batch_count;
  out_attrs[at++] = d->contract_count;
  for (int i = 0; i < d->batch_count; i++) out_attrs[at++] = d->lhs_batch[i];
  for (int i = 0; i < d->batch_count; i++) out_attrs[at++] = d->rhs_batch[i];
  for (int i = 0; i < d->contract_count; i++) out_attrs[at++] = d->lhs_contract[i];
  for (int i = 0; i < d->contract_count; i++) out_attrs[at++] = d->rhs_contract[i];
  return at;
}

/* Floats are multiplied as they are when the result is wider; XLA knows no other mixture. */
static bool is_widening(torus_dtype_t from, torus_dtype_t to) {
  return torus_dtype_is_float(from) && torus_dtype_is_float(to) &&
         torus_dtype_bytes(from) < torus_dtype_bytes(to) && torus_dtype_bytes(from) > 1 &&
         to == TORUS_DTYPE_F32;
}

/* Types that are multiplied in another one and converted back. */
static torus_dtype_t product_type(torus_dtype_t dtype) {
  if (dtype == TORUS_DTYPE_BOOL) return TORUS_DTYPE_I32;
  if (torus_dtype_is_float(dtype) && torus_dtype_bytes(dtype) == 1) return TORUS_DTYPE_F32;
  return dtype;
}

/* mode: hlo_precision_t. */
hlo_t hlo_dot_general(hlo_graph_t *g, hlo_t x, hlo_t y, const hlo_dot_dims_t *dims,
                      torus_dtype_t dtype) {
  hlo_op_t op = HLO_OP_DOT_GENERAL;
  if (!hlo_usable(g, op, x) || !hlo_usable(g, op, y)) return HLO_NONE;
  torus_dtype_t from = hlo_dtype(g, x), inner = product_type(from);
  if (from != hlo_dtype(g, y)) return hlo_fail_types(g, op, "the types differ", x, y);
  if (dtype == TORUS_DTYPE_INVALID) dtype = from;
  if (inner != from) {
    return hlo_convert(g, hlo_dot_general(g, hlo_convert(g, x, inner), hlo_convert(g, y, inner),
                                          dims, inner), dtype);
  }
  if (dtype != from && !is_widening(from, dtype)) {
    torus_dtype_t wide = torus_dtype_promote(from, dtype);
    if (wide == TORUS_DTYPE_INVALID) wide = dtype;
    if (wide == from) return hlo_convert(g, hlo_dot_general(g, x, y, dims, from), dtype);
    return hlo_convert(g, hlo_dot_general(g, hlo_convert(g, x, wide), hlo_convert(g, y, wide),
                                          dims, wide), dtype);
  }
  int64_t shape[2 * TORUS_MAX_RANK], attrs[2 + 4 * TORUS_MAX_RANK];
  int rank = dot_shape(g, x, y, dims, shape);
  if (rank < 0) return hlo_fail_types(g, op, "the shapes do not fit", x, y);
  if (hlo_numel(g, x) == 0 || hlo_numel(g, y) == 0) return hlo_zeros(g, dtype, rank, shape);
  return hlo_append(g, &(hlo_spec_t){.op = op,
                                     .dtype = dtype,
                                     .mode = (int)g->precision,
                                     .rank = rank,
                                     .dims = shape,
                                     .operands = (hlo_t[]){x, y},
                                     .operand_count = 2,
                                     .attrs = attrs,
                                     .attr_count = dot_attrs(dims, attrs)});
}

hlo_t hlo_matmul(hlo_graph_t *g, hlo_t x, hlo_t y) {
  hlo_op_t op = HLO_OP_DOT_GENERAL;
  if (!hlo_usable(g, op, x) || !hlo_usable(g, op, y)) return HLO_NONE;
  int rank = hlo_rank(g, x);
  if (rank < 2 || rank != hlo_rank(g, y)) {
    return hlo_fail_types(g, op, "matrices, or as many of them, are wanted", x, y);
  }
  hlo_dot_dims_t dims = {.batch_count = rank - 2, .contract_count = 1};
  for (int i = 0; i < rank - 2; i++) dims.lhs_batch[i] = dims.rhs_batch[i] = i;
  dims.lhs_contract[0] = rank - 1;
  dims.rhs_contract[0] = rank - 2;
  return hlo_dot_general(g, x, y, &dims, TORUS_DTYPE_INVALID);
}

/* ---- convolution ---- */

/* The default layout written out. */
static hlo_conv_t with_layout(const hlo_conv_t *conv) {
  hlo_conv_t c = *conv;
  if (c.explicit_layout) return c;
  c.lhs_batch = c.rhs_output = c.out_batch = 0;
  c.lhs_feature = c.rhs_input = c.out_feature = 1;
  for (int i = 0; i < c.spatial; i++) {
    c.lhs_spatial[i] = c.rhs_spatial[i] = c.out_spatial[i] = i + 2;
  }
  return c;
}

static bool is_layout(int spatial, int a, int b, const int *rest) {
  uint32_t mask = 0;
  int rank = spatial + 2;
  return mark_dims(rank, 1, &a, &mask) && mark_dims(rank, 1, &b, &mask) &&
         mark_dims(rank, spatial, rest, &mask);
}

static bool is_conv_sound(const hlo_graph_t *g, hlo_t x, hlo_t kernel, const hlo_conv_t *c) {
  if (c->spatial < 0 || c->spatial > TORUS_MAX_RANK - 2 || hlo_rank(g, x) != c->spatial + 2 ||
      hlo_rank(g, kernel) != c->spatial + 2 || c->feature_groups < 1 || c->batch_groups < 1 ||
      !is_layout(c->spatial, c->lhs_batch, c->lhs_feature, c->lhs_spatial) ||
      !is_layout(c->spatial, c->rhs_output, c->rhs_input, c->rhs_spatial) ||
      !is_layout(c->spatial, c->out_batch, c->out_feature, c->out_spatial)) {
    return false;
  }
  const int64_t *a = hlo_dims(g, x), *b = hlo_dims(g, kernel);
  bool sound = a[c->lhs_feature] == b[c->rhs_input] * c->feature_groups &&
               b[c->rhs_output] % c->feature_groups == 0 &&
               b[c->rhs_output] % c->batch_groups == 0 && a[c->lhs_batch] % c->batch_groups == 0;
  for (int i = 0; i < c->spatial; i++) {
    sound &= c->stride[i] > 0 && c->lhs_dilation[i] > 0 && c->rhs_dilation[i] > 0;
  }
  return sound;
}

static int64_t conv_size(int64_t extent, int64_t kernel, const hlo_conv_t *c, int i) {
  int64_t base = extent > 0 ? (extent - 1) * c->lhs_dilation[i] + 1 : 0;
  int64_t span = kernel > 0 ? (kernel - 1) * c->rhs_dilation[i] + 1 : 0;
  int64_t room = base + c->low[i] + c->high[i] - span;
  return room < 0 ? 0 : room / c->stride[i] + 1;
}

static void conv_shape(const hlo_graph_t *g, hlo_t x, hlo_t kernel, const hlo_conv_t *c,
                       int64_t *out_dims) {
  const int64_t *a = hlo_dims(g, x), *b = hlo_dims(g, kernel);
  out_dims[c->out_batch] = a[c->lhs_batch] / c->batch_groups;
  out_dims[c->out_feature] = b[c->rhs_output];
  for (int i = 0; i < c->spatial; i++) {
    out_dims[c->out_spatial[i]] = conv_size(a[c->lhs_spatial[i]], b[c->rhs_spatial[i]], c, i);
  }
}

/* attrs: spatial, reverse, feature groups, batch groups, the places of batch, feature and spatial
 * dimensions of operand, kernel and result, then stride, low, high, lhs and rhs dilation. */
static size_t conv_attrs(const hlo_conv_t *c, int64_t *out_attrs) {
  const int heads[3][2] = {{c->lhs_batch, c->lhs_feature},
                           {c->rhs_output, c->rhs_input},
                           {c->out_batch, c->out_feature}};
  const int *tails[] = {c->lhs_spatial, c->rhs_spatial, c->out_spatial};
  const int64_t *fields[] = {c->stride, c->low, c->high, c->lhs_dilation, c->rhs_dilation};
  size_t at = 0;
  out_attrs[at++] = c->spatial;
  out_attrs[at++] = c->reverse;
  out_attrs[at++] = c->feature_groups;
  out_attrs[at++] = c->batch_groups;
  for (int k = 0; k < 3; k++) {
    out_attrs[at++] = heads[k][0];
    out_attrs[at++] = heads[k][1];
    for (int i = 0; i < c->spatial; i++) out_attrs[at++] = tails[k][i];
  }
  for (int k = 0; k < 5; k++) {
    for (int i = 0; i < c->spatial; i++) out_attrs[at++] = fields[k][i];
  }
  return at;
}

static hlo_t append_convolution(hlo_graph_t *g, hlo_t x, hlo_t kernel, const hlo_conv_t *c) {
  int64_t dims[TORUS_MAX_RANK], attrs[4 + 8 * TORUS_MAX_RANK];
  int rank = c->spatial + 2;
  conv_shape(g, x, kernel, c, dims);
  if (hlo_numel(g, x) == 0 || hlo_numel(g, kernel) == 0 || hlo_product(rank, dims) == 0) {
    return hlo_zeros(g, hlo_dtype(g, x), rank, dims);
  }
  return hlo_append(g, &(hlo_spec_t){.op = HLO_OP_CONVOLUTION,
                                     .dtype = hlo_dtype(g, x),
                                     .mode = (int)g->precision,
                                     .rank = rank,
                                     .dims = dims,
                                     .operands = (hlo_t[]){x, kernel},
                                     .operand_count = 2,
                                     .attrs = attrs,
                                     .attr_count = conv_attrs(c, attrs)});
}

/* mode: hlo_precision_t. */
hlo_t hlo_convolution(hlo_graph_t *g, hlo_t x, hlo_t kernel, const hlo_conv_t *conv) {
  hlo_op_t op = HLO_OP_CONVOLUTION;
  if (!hlo_usable(g, op, x) || !hlo_usable(g, op, kernel)) return HLO_NONE;
  torus_dtype_t dtype = hlo_dtype(g, x), inner = product_type(dtype);
  if (dtype != hlo_dtype(g, kernel)) return hlo_fail_types(g, op, "the types differ", x, kernel);
  hlo_conv_t c = with_layout(conv);
  if (!is_conv_sound(g, x, kernel, &c)) {
    return hlo_fail_types(g, op, "operand, kernel and groups do not fit", x, kernel);
  }
  hlo_t y = hlo_convert(g, x, inner), k = hlo_convert(g, kernel, inner);
  if (y == HLO_NONE || k == HLO_NONE) return HLO_NONE;
  return hlo_convert(g, append_convolution(g, y, k, &c), dtype);
}
