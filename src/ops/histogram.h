/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Bins that histograms of one and of several dimensions share. Everything is of one real type. */
#ifndef TORUS_OPS_HISTOGRAM_H_
#define TORUS_OPS_HISTOGRAM_H_

#include "ops/axes.h"

/* Bounds for the rank-1 |x|: two numbers of |range|, or those of the data when it is NULL;
 * coinciding bounds are moved half apart each. */
void histogram_bounds(torus_call_t *call, hlo_graph_t *g, hlo_t x, const double *range,
                      hlo_t *out_low, hlo_t *out_high);
/* |bins| + 1 equally spaced edges, counted from both ends as torch.linspace does. */
hlo_t histogram_spaced_edges(hlo_graph_t *g, hlo_t low, hlo_t high, int64_t bins);
/* The bin of every element; the number of bins for those outside and for nan. */
hlo_t histogram_places(hlo_graph_t *g, hlo_t x, hlo_t edges, int64_t bins);

#endif /* TORUS_OPS_HISTOGRAM_H_ */
