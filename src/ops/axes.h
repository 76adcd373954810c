/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The dimensions that a reduction runs over, and the steps all reductions share.
 *
 * Inside a lowering reduced dimensions stay with size 1, so that op_like stretches a result back
 * over its operand; axes_finish gives it the shape the caller asked for. */
#ifndef TORUS_OPS_AXES_H_
#define TORUS_OPS_AXES_H_

#include "ops/op.h"

typedef struct torus_axes {
  int rank;                 /* of the operand */
  int count;                /* dimensions reduced */
  int dims[TORUS_MAX_RANK]; /* wrapped, distinct */
  bool keep;                /* the result keeps them with size 1 */
} torus_axes_t;

/* All dimensions of an operand of |rank|. */
torus_axes_t axes_all(int rank, bool keep);
/* int[]? argument |arg|: None and [] mean all dimensions. Mistakes are reported in |call|. */
torus_axes_t axes_list(torus_call_t *call, int arg, int rank, bool keep);
/* int argument |arg|. */
torus_axes_t axes_one(torus_call_t *call, int arg, int rank, bool keep);
/* int? argument |arg|: None means all dimensions. */
torus_axes_t axes_optional(torus_call_t *call, int arg, int rank, bool keep);
/* The |count| dimensions from |first| on. */
torus_axes_t axes_range(int rank, int first, int count);
/* All dimensions but |dim|. */
torus_axes_t axes_except(int rank, int dim);

/* Elements of x that go into one result. */
int64_t axes_numel(const hlo_graph_t *g, hlo_t x, const torus_axes_t *axes);
/* Reports an IndexError when a reduced dimension is empty: for reductions without identity. */
bool axes_check_nonempty(torus_call_t *call, const hlo_graph_t *g, hlo_t x,
                         const torus_axes_t *axes);
/* Reduces with the dimensions kept, and as the axes say. */
hlo_t axes_reduce(hlo_graph_t *g, hlo_reduction_t how, hlo_t x, const torus_axes_t *axes);
hlo_t axes_reduce_finish(hlo_graph_t *g, hlo_reduction_t how, hlo_t x, const torus_axes_t *axes);
/* Takes a kept result to the shape the axes ask for. */
hlo_t axes_finish(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes);
/* Mean over the axes, dimensions kept. */
hlo_t axes_mean(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes);
/* Biased variance around |mean| (kept). Real x. */
hlo_t axes_variance(hlo_graph_t *g, hlo_t x, hlo_t mean, const torus_axes_t *axes);
/* The p-norm of real x, with its dimensions as the axes say. */
hlo_t axes_norm(hlo_graph_t *g, hlo_t x, double p, const torus_axes_t *axes);

/* A count of elements as a number: soft, because sizes may change from call to call. */
hlo_t op_count(hlo_graph_t *g, torus_dtype_t dtype, int64_t count);
/* x expanded to the shape of |like|. */
hlo_t op_like(hlo_graph_t *g, hlo_t x, hlo_t like);
/* x converted to the type it is accumulated in. */
hlo_t op_widen(hlo_graph_t *g, hlo_t x);
/* Argument |i| as a node in its accumulation type. */
hlo_t op_tensor_wide(torus_call_t *call, int i);
/* The position along |dim| of every element of x, as |dtype|. */
hlo_t op_positions(hlo_graph_t *g, hlo_t x, int dim, torus_dtype_t dtype);
/* An empty tensor of shape (0), for results that were not asked for. */
hlo_t op_nothing(hlo_graph_t *g, torus_dtype_t dtype);
/* bool as a byte, other types unchanged: for operations that need an order. */
hlo_t op_ordered(hlo_graph_t *g, hlo_t x);

#endif  /* TORUS_OPS_AXES_H_ */
