/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Sorting and searching steps that several families use. */
#ifndef TORUS_OPS_SORT_H_
#define TORUS_OPS_SORT_H_

#include "ops/axes.h"

/* The elements of x along |dim| in stable order (nan last, or first when descending) and the I64
 * positions they come from. bool is allowed, complex is not. x may be a scalar. */
void sort_with_places(hlo_graph_t *g, hlo_t x, int dim, bool descending, hlo_t *out_values,
                      hlo_t *out_places);

/* True where an element of x along |dim| differs from the one before it, and at the first. */
hlo_t sort_run_starts(hlo_graph_t *g, hlo_t x, int dim);

/* Where |values| would be put into the ascending |sequence| so that it stays sorted: before equal
 * elements, or behind them when |right|. The sequence is rank 1, or both have the same leading
 * dimensions and the search runs along the last one. Types must be equal. Result I64. */
hlo_t sort_search(hlo_graph_t *g, hlo_t sequence, hlo_t values, bool right);

#endif  /* TORUS_OPS_SORT_H_ */
