/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Small pieces that the layer families (pooling, padding, resampling, embedding) share: vectors
 * along one dimension, gathers of fixed rows and their transposes. */
#ifndef TORUS_OPS_SPATIAL_H_
#define TORUS_OPS_SPATIAL_H_

#include "ops/op.h"

/* 0, 1, ... n-1. */
hlo_t spatial_iota(hlo_graph_t *g, torus_dtype_t dtype, int64_t n);
/* A rank-1 node stretched along |dim| of a shape. */
hlo_t spatial_along(hlo_graph_t *g, hlo_t vector, int rank, const int64_t *dims, int dim);
/* x times (or by) a rank-1 node along |dim|. */
hlo_t spatial_scale(hlo_graph_t *g, hlo_t x, hlo_t vector, int dim);
/* Splits dimension |dim| into sizes a x b, and the reverse: joins |dim| and |dim| + 1. */
hlo_t spatial_split(hlo_graph_t *g, hlo_t x, int dim, int64_t a, int64_t b);
hlo_t spatial_join(hlo_graph_t *g, hlo_t x, int dim);
/* All dimensions before |dim| become one, and so do all from |dim| on. */
hlo_t spatial_planes(hlo_graph_t *g, hlo_t x, int dim);
/* Transpose of hlo_take with a rank-1 |indices|: entry k of |updates| along |dim| is added to entry
 * indices[k] of zeros whose dimension |dim| is |size|. Indices outside are dropped. */
hlo_t spatial_add_rows(hlo_graph_t *g, hlo_t updates, int dim, int64_t size, hlo_t indices);
/* Adds (or writes) low zeros before and high zeros behind along |dim|; negative values crop. */
hlo_t spatial_pad_dim(hlo_graph_t *g, hlo_t x, int dim, int64_t low, int64_t high);
/* [dims before, n, dims behind] -> the same with |dim| moved to |to|. */
hlo_t spatial_move_dim(hlo_graph_t *g, hlo_t x, int dim, int to);
/* I64 position of every element of x within its plane (dimensions from |first| on, row-major). */
hlo_t spatial_positions(hlo_graph_t *g, hlo_t x, int first);
/* Zeros, for outputs without elements. */
hlo_t spatial_zeros_like(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype);
/* Integer clamp to [low, high]. */
hlo_t spatial_clamp_int(hlo_graph_t *g, hlo_t x, int64_t low, int64_t high);
/* The argument converted to the type to accumulate in. */
hlo_t spatial_tensor_wide(torus_call_t *call, int i);

#endif  /* TORUS_OPS_SPATIAL_H_ */
