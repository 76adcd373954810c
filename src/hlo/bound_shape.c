/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The bounding transform's rules for parts and joins: pad, reverse, concatenate, slices. */
#include <string.h>

#include "hlo/bound_internal.h"

/* More elements at the end of one dimension. */
static hlo_t lengthen(hlo_binder_t *b, hlo_t x, int dim, int64_t extra) {
  int64_t dims[TORUS_MAX_RANK];
  hlo_shape(b->to, x, dims);
  dims[dim] += extra;
  return hlo_fit(b, x, dims);
}

/* Places for a slice or update that starts at |start| along |dim| and at 0 elsewhere. */
static void place_along(hlo_binder_t *b, int rank, int dim, hlo_t start, hlo_t *out_places) {
  for (int d = 0; d < rank; d++) {
    out_places[d] = d == dim ? start : hlo_const_int(b->to, TORUS_DTYPE_I32, 0);
  }
}

/* ---- pad ---- */

static hlo_t mask_padding(hlo_binder_t *b, hlo_t old, hlo_t y, hlo_t value) {
  hlo_t source = hlo_operand(b->from, old, 0);
  int64_t dims[TORUS_MAX_RANK];
  const int rank = hlo_shape(b->to, y, dims);
  for (int d = 0; d < rank; d++) {
    if (!hlo_class_of(b, source, d)) continue;
    hlo_t low = hlo_const_int(b->to, TORUS_DTYPE_I32, hlo_attrs(b->from, old)[d]);
    hlo_t end = hlo_add(b->to, hlo_size_node(b, source, d), low);
    hlo_t inside = hlo_below(b, rank, dims, d, end);
    y = hlo_select(b->to, inside, y, hlo_splat(b->to, value, rank, dims));
  }
  return y;
}

hlo_t hlo_bind_pad(hlo_binder_t *b, hlo_t old) {
  hlo_t operands[] = {hlo_mapped(b, old, 0), hlo_mapped(b, old, 1)};
  int64_t dims[TORUS_MAX_RANK], attrs[3 * TORUS_MAX_RANK];
  const int rank = hlo_target_dims(b, old, dims);
  hlo_t source = hlo_operand(b->from, old, 0);
  memcpy(attrs, hlo_attrs(b->from, old), 3 * (size_t)rank * sizeof *attrs);
  for (int d = 0; d < rank; d++) {
    if (!hlo_class_of(b, source, d) && !hlo_class_of(b, old, d)) continue;
    if (attrs[2 * rank + d]) return hlo_refuse(b, old, "inside a size that changes");
    attrs[rank + d] = dims[d] - attrs[d] - hlo_dim(b->to, operands[0], d);
  }
  return mask_padding(b, old, hlo_append_as(b, old, rank, dims, operands, attrs), operands[1]);
}

/* ---- reverse ---- */

/* The garbage comes first and is cut off at run time. */
hlo_t hlo_bind_reverse(hlo_binder_t *b, hlo_t old) {
  hlo_t x = hlo_mapped(b, old, 0), places[TORUS_MAX_RANK];
  int64_t dims[TORUS_MAX_RANK];
  const int rank = hlo_shape(b->to, x, dims);
  hlo_t y = hlo_append_as(b, old, rank, dims, &x, NULL);
  for (uint32_t i = 0; i < hlo_node(b->from, old)->attr_count; i++) {
    const int d = (int)hlo_attrs(b->from, old)[i];
    if (!hlo_class_of(b, old, d)) continue;
    hlo_t held = hlo_const_int(b->to, TORUS_DTYPE_I32, dims[d]);
    place_along(b, rank, d, hlo_subtract(b->to, held, hlo_size_node(b, old, d)), places);
    y = hlo_dynamic_slice(b->to, lengthen(b, y, d, dims[d]), places, dims);
  }
  return y;
}

/* ---- concatenate ---- */

/* Each operand is written behind the one before, over its garbage; what is too long at the end is
 * cut off. */
static hlo_t join(hlo_binder_t *b, hlo_t old, const hlo_t *xs, size_t count, int dim) {
  int64_t dims[TORUS_MAX_RANK], whole[TORUS_MAX_RANK];
  const int rank = hlo_shape(b->to, xs[0], dims);
  int64_t slack = 0;
  for (size_t i = 0; i < count; i++) {
    if (hlo_dim(b->to, xs[i], dim) > slack) slack = hlo_dim(b->to, xs[i], dim);
  }
  hlo_target_dims(b, old, whole);
  dims[dim] = whole[dim] + slack;
  hlo_t y = hlo_fit(b, xs[0], dims), places[TORUS_MAX_RANK];
  hlo_t offset = hlo_size_node(b, hlo_operand(b->from, old, 0), dim);
  for (size_t i = 1; i < count && y != HLO_NONE; i++) {
    place_along(b, rank, dim, offset, places);
    y = hlo_dynamic_update_slice(b->to, y, xs[i], places);
    offset = hlo_add(b->to, offset, hlo_size_node(b, hlo_operand(b->from, old, i), dim));
  }
  dims[dim] = whole[dim];
  return hlo_fit(b, y, dims);
}

enum { MOST_JOINED = 256 };

hlo_t hlo_bind_concatenate(hlo_binder_t *b, hlo_t old) {
  hlo_t xs[MOST_JOINED];
  const size_t count = hlo_node(b->from, old)->operand_count;
  const int dim = (int)hlo_attrs(b->from, old)[0];
  if (count > MOST_JOINED) return hlo_refuse(b, old, "of very many arrays");
  bool changes = hlo_class_of(b, old, dim) != 0;
  for (size_t i = 0; i < count; i++) {
    xs[i] = hlo_mapped(b, old, i);
    changes |= hlo_class_of(b, hlo_operand(b->from, old, i), dim) != 0;
  }
  hlo_fit_together(b, xs, count, dim);
  if (changes) return join(b, old, xs, count, dim);
  int64_t dims[TORUS_MAX_RANK];
  const int rank = hlo_shape(b->to, xs[0], dims);
  dims[dim] = hlo_dim(b->from, old, dim);
  return hlo_append_as(b, old, rank, dims, xs, NULL);
}

/* ---- slices ---- */

static bool is_dynamic_place(const hlo_binder_t *b, hlo_t old) {
  const int op = hlo_node(b->from, old)->op;
  return op == HLO_OP_DYNAMIC_SLICE || op == HLO_OP_DYNAMIC_UPDATE_SLICE;
}

/* Computed places are clamped by the size, which would have to be a number too. */
static bool is_clamped(const hlo_binder_t *b, hlo_t old, hlo_t whole, hlo_t part, int d) {
  return is_dynamic_place(b, old) && (hlo_class_of(b, whole, d) || hlo_class_of(b, part, d)) &&
         hlo_dim(b->from, whole, d) != hlo_dim(b->from, part, d);
}

/* A part that changes its size reads a whole bound: the operand is lengthened by that. */
hlo_t hlo_bind_slice(hlo_binder_t *b, hlo_t old) {
  hlo_t operands[TORUS_MAX_RANK + 1];
  int64_t dims[TORUS_MAX_RANK], held[TORUS_MAX_RANK];
  const hlo_node_t *node = hlo_node(b->from, old);
  hlo_t source = hlo_operand(b->from, old, 0);
  for (uint32_t i = 0; i < node->operand_count; i++) operands[i] = hlo_mapped(b, old, i);
  const int rank = hlo_target_dims(b, old, dims);
  hlo_shape(b->to, operands[0], held);
  const bool has_steps = node->op == HLO_OP_SLICE && node->attr_count;
  for (int d = 0; d < rank; d++) {
    if (hlo_dim(b->from, source, d) == hlo_dim(b->from, old, d)) {
      dims[d] = held[d];
    } else if (is_clamped(b, old, source, old, d)) {
      return hlo_refuse(b, old, "at a computed place of a size that changes");
    } else if (hlo_class_of(b, old, d)) {
      held[d] += dims[d] * (has_steps ? hlo_attrs(b->from, old)[d] : 1);
    }
  }
  operands[0] = hlo_fit(b, operands[0], held);
  return hlo_append_as(b, old, rank, dims, operands, NULL);
}

/* |update| where it counts, and what is there elsewhere. */
static hlo_t merge(hlo_binder_t *b, hlo_t old, hlo_t x, hlo_t update, uint32_t partial) {
  hlo_t part = hlo_operand(b->from, old, 1);
  const hlo_node_t *node = hlo_node(b->from, old);
  int64_t dims[TORUS_MAX_RANK];
  const int rank = hlo_shape(b->to, update, dims);
  hlo_t there = hlo_append(b->to, &(hlo_spec_t){.op = HLO_OP_SLICE,
                                                .dtype = (torus_dtype_t)node->dtype,
                                                .rank = rank,
                                                .dims = dims,
                                                .operands = &x,
                                                .operand_count = 1,
                                                .softs = b->from->softs + node->softs,
                                                .soft_count = node->soft_count});
  for (int d = 0; d < rank; d++) {
    if (!(partial >> d & 1)) continue;
    hlo_t inside = hlo_below(b, rank, dims, d, hlo_size_node(b, part, d));
    update = hlo_select(b->to, inside, update, there);
  }
  return update;
}

hlo_t hlo_bind_update(hlo_binder_t *b, hlo_t old) {
  hlo_t operands[TORUS_MAX_RANK + 2];
  int64_t whole[TORUS_MAX_RANK], dims[TORUS_MAX_RANK], part[TORUS_MAX_RANK];
  const hlo_node_t *node = hlo_node(b->from, old);
  hlo_t update = hlo_operand(b->from, old, 1);
  uint32_t partial = 0;
  for (uint32_t i = 0; i < node->operand_count; i++) operands[i] = hlo_mapped(b, old, i);
  const int rank = hlo_shape(b->to, operands[0], whole);
  hlo_shape(b->to, operands[1], part);
  memcpy(dims, whole, sizeof dims);
  for (int d = 0; d < rank; d++) {
    if (hlo_dim(b->from, old, d) == hlo_dim(b->from, update, d)) {
      if (part[d] > whole[d]) whole[d] = dims[d] = part[d];
      part[d] = whole[d];
    } else if (is_clamped(b, old, old, update, d)) {
      return hlo_refuse(b, old, "at a computed place of a size that changes");
    } else if (hlo_class_of(b, update, d)) {
      partial |= UINT32_C(1) << d;
      whole[d] += part[d];
    }
  }
  operands[0] = hlo_fit(b, operands[0], whole);
  operands[1] = hlo_fit(b, operands[1], part);
  if (partial) operands[1] = merge(b, old, operands[0], operands[1], partial);
  return hlo_fit(b, hlo_append_as(b, old, rank, whole, operands, NULL), dims);
}
