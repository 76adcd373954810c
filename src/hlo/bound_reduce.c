/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The bounding transform's rules for what sums over elements: reductions, windows, products. */
#include <math.h>
#include <string.h>

#include "hlo/bound_internal.h"

static uint32_t mask_of(const int64_t *dims, size_t count) {
  uint32_t mask = 0;
  for (size_t i = 0; i < count; i++) mask |= UINT32_C(1) << dims[i];
  return mask;
}

/* Dimensions of new node |x| without those in |mask|. */
static int without(const hlo_graph_t *g, hlo_t x, uint32_t mask, int64_t *out_dims) {
  int rank = 0;
  for (int d = 0; d < hlo_rank(g, x); d++) {
    if (!(mask >> d & 1)) out_dims[rank++] = hlo_dims(g, x)[d];
  }
  return rank;
}

/* ---- reductions ---- */

hlo_t hlo_bind_reduce(hlo_binder_t *b, hlo_t old) {
  const hlo_node_t *node = hlo_node(b->from, old);
  const uint32_t gone = mask_of(hlo_attrs(b->from, old), node->attr_count);
  hlo_t operands[] = {hlo_mapped(b, old, 0), hlo_mapped(b, old, 1)};
  operands[0] =
      hlo_mask_garbage(b, operands[0], hlo_operand(b->from, old, 0), gone, operands[1]);
  int64_t dims[TORUS_MAX_RANK];
  const int rank = without(b->to, operands[0], gone, dims);
  return hlo_append_as(b, old, rank, dims, operands, NULL);
}

/* Places are compared after values, so garbage that draws with the first elements loses. */
hlo_t hlo_bind_reduce_arg(hlo_binder_t *b, hlo_t old) {
  const uint32_t gone = mask_of(hlo_attrs(b->from, old), 1);
  hlo_t operands[4];
  for (size_t i = 0; i < 4; i++) operands[i] = hlo_mapped(b, old, i);
  hlo_fit_together(b, operands, 2, -1);
  operands[0] =
      hlo_mask_garbage(b, operands[0], hlo_operand(b->from, old, 0), gone, operands[2]);
  int64_t dims[TORUS_MAX_RANK];
  const int rank = without(b->to, operands[0], gone, dims);
  return hlo_append_as(b, old, rank, dims, operands, NULL);
}

/* Garbage becomes what stands last, and a stable order leaves it behind its equals. */
hlo_t hlo_bind_sort(hlo_binder_t *b, hlo_t old) {
  const hlo_node_t *node = hlo_node(b->from, old);
  hlo_t xs[2];
  for (uint32_t i = 0; i < node->operand_count; i++) xs[i] = hlo_mapped(b, old, i);
  hlo_fit_together(b, xs, node->operand_count, -1);
  const torus_dtype_t dtype = hlo_dtype(b->to, xs[0]);
  const bool descending = node->mode & 1;
  hlo_t last = descending ? hlo_lowest(b->to, dtype) : hlo_highest(b->to, dtype);
  if (!descending && torus_dtype_is_float(dtype)) last = hlo_const(b->to, dtype, NAN);
  const uint32_t along = mask_of(hlo_attrs(b->from, old), 1);
  xs[0] = hlo_mask_garbage(b, xs[0], hlo_operand(b->from, old, 0), along, last);
  int64_t dims[TORUS_MAX_RANK];
  const int rank = hlo_shape(b->to, xs[0], dims);
  hlo_t y = hlo_append_as(b, old, rank, dims, xs, NULL);
  if (y != HLO_NONE) b->to->nodes[y].mode |= 2;
  return y;
}

/* ---- windows ---- */

/* Whether each window along |dim| is one element. */
static bool is_single(const hlo_binder_t *b, hlo_t old, int dim) {
  const int rank = hlo_rank(b->from, old);
  const int64_t *a = hlo_attrs(b->from, old) + dim;
  return a[0] == 1 && a[rank] == 1 && a[3 * rank] == 1 && a[4 * rank] == 0 && a[5 * rank] == 0;
}

static void set_running(int64_t *attrs, int rank, int dim, int64_t extent) {
  attrs[dim] = extent;
  attrs[4 * rank + dim] = extent - 1;
}

/* A running reduction needs nothing: what counts comes before the garbage. */
hlo_t hlo_bind_window(hlo_binder_t *b, hlo_t old) {
  const hlo_node_t *node = hlo_node(b->from, old);
  const int rank = node->rank;
  hlo_t operands[4], source = hlo_operand(b->from, old, 0);
  int64_t dims[TORUS_MAX_RANK], attrs[6 * TORUS_MAX_RANK];
  for (uint32_t i = 0; i < node->operand_count; i++) operands[i] = hlo_mapped(b, old, i);
  memcpy(attrs, hlo_attrs(b->from, old), 6 * (size_t)rank * sizeof *attrs);
  hlo_shape(b->from, old, dims);
  for (int d = 0; d < rank; d++) {
    if (!hlo_class_of(b, source, d) && !hlo_class_of(b, old, d)) continue;
    dims[d] = hlo_dim(b->to, operands[0], d);
    const bool running = node->op == HLO_OP_REDUCE_WINDOW && hlo_is_running(b->from, old, d);
    if (running) set_running(attrs, rank, d, dims[d]);
    if (!running && !is_single(b, old, d)) {
      return hlo_refuse(b, old, "along a size that changes");
    }
  }
  if (node->op == HLO_OP_REDUCE_WINDOW) return hlo_append_as(b, old, rank, dims, operands, attrs);
  for (uint32_t i = 0; i < 2; i++) {
    int64_t held[TORUS_MAX_RANK];
    hlo_shape(b->to, operands[i], held);
    for (int d = 0; d < rank; d++) {
      if (hlo_class_of(b, source, d)) held[d] = dims[d];
    }
    operands[i] = hlo_fit(b, operands[i], held);
  }
  return hlo_append_as(b, old, rank, dims, operands, attrs);
}

/* ---- products ---- */

static hlo_t zero_of(hlo_binder_t *b, hlo_t x) {
  return hlo_const_int(b->to, hlo_dtype(b->to, x), 0);
}

/* Brings dimensions that belong together to one size. */
static void fit_pairs(hlo_binder_t *b, hlo_t *xs, const int64_t *lefts, const int64_t *rights,
                      size_t count) {
  int64_t left[TORUS_MAX_RANK], right[TORUS_MAX_RANK];
  hlo_shape(b->to, xs[0], left);
  hlo_shape(b->to, xs[1], right);
  for (size_t i = 0; i < count; i++) {
    int64_t *l = &left[lefts[i]], *r = &right[rights[i]];
    *l = *r = *l > *r ? *l : *r;
  }
  xs[0] = hlo_fit(b, xs[0], left);
  xs[1] = hlo_fit(b, xs[1], right);
}

/* Both operands are masked: zero times a NaN in the garbage is NaN. */
static void mask_pairs(hlo_binder_t *b, hlo_t old, hlo_t *xs, uint32_t left, uint32_t right) {
  xs[0] = hlo_mask_garbage(b, xs[0], hlo_operand(b->from, old, 0), left, zero_of(b, xs[0]));
  xs[1] = hlo_mask_garbage(b, xs[1], hlo_operand(b->from, old, 1), right, zero_of(b, xs[1]));
}

hlo_t hlo_bind_dot(hlo_binder_t *b, hlo_t old) {
  const int64_t *attrs = hlo_attrs(b->from, old);
  const size_t batch = (size_t)attrs[0], contract = (size_t)attrs[1];
  const int64_t *left_batch = attrs + 2, *right_batch = left_batch + batch;
  const int64_t *left = right_batch + batch, *right = left + contract;
  hlo_t xs[] = {hlo_mapped(b, old, 0), hlo_mapped(b, old, 1)};
  fit_pairs(b, xs, left_batch, right_batch, batch);
  fit_pairs(b, xs, left, right, contract);
  mask_pairs(b, old, xs, mask_of(left, contract), mask_of(right, contract));
  int64_t dims[2 * TORUS_MAX_RANK];
  int rank = (int)batch;
  for (size_t i = 0; i < batch; i++) dims[i] = hlo_dim(b->to, xs[0], (int)left_batch[i]);
  rank += without(b->to, xs[0], mask_of(left_batch, batch) | mask_of(left, contract), dims + rank);
  rank += without(b->to, xs[1], mask_of(right_batch, batch) | mask_of(right, contract),
                  dims + rank);
  return hlo_append_as(b, old, rank, dims, xs, NULL);
}

/* See conv_attrs in dot.c. */
typedef struct conv_places {
  int spatial;
  bool grouped;
  const int64_t *lhs, *rhs, *out; /* batch, feature, spatial; output, input, spatial */
} conv_places_t;

static conv_places_t conv_places(const int64_t *attrs) {
  const int64_t *lists = attrs + 4;
  const int64_t length = attrs[0] + 2;
  return (conv_places_t){.spatial = (int)attrs[0],
                         .grouped = attrs[2] != 1 || attrs[3] != 1,
                         .lhs = lists,
                         .rhs = lists + length,
                         .out = lists + 2 * length};
}

/* Features are contracted, as the batch is in the gradient of a kernel. */
hlo_t hlo_bind_convolution(hlo_binder_t *b, hlo_t old) {
  const conv_places_t c = conv_places(hlo_attrs(b->from, old));
  hlo_t x = hlo_operand(b->from, old, 0), kernel = hlo_operand(b->from, old, 1);
  for (int i = 2; i < c.spatial + 2; i++) {
    if (hlo_class_of(b, x, (int)c.lhs[i]) || hlo_class_of(b, kernel, (int)c.rhs[i])) {
      return hlo_refuse(b, old, "along a size that changes");
    }
  }
  const bool fixed = !hlo_class_of(b, x, (int)c.lhs[1]) && !hlo_class_of(b, kernel, (int)c.rhs[0]) &&
                     !hlo_class_of(b, kernel, (int)c.rhs[1]);
  const int64_t *groups = hlo_attrs(b->from, old) + 2;
  if (groups[1] != 1 || (groups[0] != 1 && !fixed)) {
    return hlo_refuse(b, old, "in groups of a size that changes");
  }
  hlo_t xs[] = {hlo_mapped(b, old, 0), hlo_mapped(b, old, 1)};
  if (groups[0] == 1) fit_pairs(b, xs, &c.lhs[1], &c.rhs[1], 1);
  mask_pairs(b, old, xs, mask_of(&c.lhs[1], 1), mask_of(&c.rhs[1], 1));
  int64_t dims[TORUS_MAX_RANK];
  const int rank = hlo_shape(b->from, old, dims);
  dims[c.out[0]] = hlo_dim(b->to, xs[0], (int)c.lhs[0]);
  dims[c.out[1]] = hlo_dim(b->to, xs[1], (int)c.rhs[0]);
  return hlo_append_as(b, old, rank, dims, xs, NULL);
}
