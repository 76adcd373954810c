/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* What the rules of the bounding transform share. "Old" nodes are those of the graph with exact
 * sizes, "new" ones those of the graph with bounds. A dimension without a class has its exact size
 * in both. */
#ifndef TORUS_HLO_BOUND_INTERNAL_H_
#define TORUS_HLO_BOUND_INTERNAL_H_

#include "hlo/bound.h"
#include "hlo/graph_internal.h"

typedef struct hlo_binder {
  const hlo_bounding_t *how;
  hlo_graph_t *from, *to;
  hlo_live_t live;
  uint32_t *base; /* of old node i: where its classes begin */
  hlo_t *map;     /* old to new */
  hlo_t *numbers; /* by class: the size as a node, HLO_NONE before its first use */
  char *reason;
} hlo_binder_t;

/* ---- bound.c ---- */

/* The class of a dimension of an old node; 0: its size does not change. */
int hlo_class_of(const hlo_binder_t *b, hlo_t old, int dim);
bool hlo_has_classes(const hlo_binder_t *b, hlo_t old);
/* The run-time size of a dimension of an old node, rank-0 I32. */
hlo_t hlo_size_node(hlo_binder_t *b, hlo_t old, int dim);
/* Sizes to be held for an old node where nothing else asks for others; returns the rank. */
int hlo_target_dims(const hlo_binder_t *b, hlo_t old, int64_t *out_dims);
/* The new node of operand |i| of an old one. */
hlo_t hlo_mapped(const hlo_binder_t *b, hlo_t old, size_t i);
/* Notes why there is no rule; returns HLO_NONE. */
hlo_t hlo_refuse(hlo_binder_t *b, hlo_t old, const char *why);
/* Cut or filled up at the end of each dimension. */
hlo_t hlo_fit(hlo_binder_t *b, hlo_t x, const int64_t *dims);
/* Brings new nodes of one rank to their largest sizes, except along |except| (-1: none). */
void hlo_fit_together(hlo_binder_t *b, hlo_t *xs, size_t count, int except);
/* New node |x|, standing for |old|, with |fill| instead of garbage along the dimensions in |mask|. */
hlo_t hlo_mask_garbage(hlo_binder_t *b, hlo_t x, hlo_t old, uint32_t mask, hlo_t fill);
/* True at the first |limit| places along |dim| in an array of shape |dims|. */
hlo_t hlo_below(hlo_binder_t *b, int rank, const int64_t *dims, int dim, hlo_t limit);
/* An old node with other operands, dimensions and (unless NULL) attributes. */
hlo_t hlo_append_as(hlo_binder_t *b, hlo_t old, int rank, const int64_t *dims,
                    const hlo_t *operands, const int64_t *attrs);

/* ---- rules: the new node of |old|, HLO_NONE after hlo_refuse or an error in |to| ---- */

hlo_t hlo_bind_reshape(hlo_binder_t *b, hlo_t old);    /* bound_reshape.c */
hlo_t hlo_bind_reverse(hlo_binder_t *b, hlo_t old);    /* bound_shape.c */
hlo_t hlo_bind_pad(hlo_binder_t *b, hlo_t old);
hlo_t hlo_bind_concatenate(hlo_binder_t *b, hlo_t old);
hlo_t hlo_bind_slice(hlo_binder_t *b, hlo_t old);
hlo_t hlo_bind_update(hlo_binder_t *b, hlo_t old);
hlo_t hlo_bind_reduce(hlo_binder_t *b, hlo_t old);     /* bound_reduce.c */
hlo_t hlo_bind_reduce_arg(hlo_binder_t *b, hlo_t old);
hlo_t hlo_bind_sort(hlo_binder_t *b, hlo_t old);
hlo_t hlo_bind_window(hlo_binder_t *b, hlo_t old);
hlo_t hlo_bind_dot(hlo_binder_t *b, hlo_t old);
hlo_t hlo_bind_convolution(hlo_binder_t *b, hlo_t old);
hlo_t hlo_bind_gather(hlo_binder_t *b, hlo_t old);     /* bound_gather.c */
hlo_t hlo_bind_scatter(hlo_binder_t *b, hlo_t old);

#endif /* TORUS_HLO_BOUND_INTERNAL_H_ */
