/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* A graph for one set of sizes becomes a graph for all sizes under a bound.
 *
 * A size that changes from call to call, n, is held in hlo_bound_size(n) elements: the first n
 * count, the rest is garbage, which never reaches what counts. All shapes stay static; n itself
 * enters as a volatile number, so that every n under one bound gives the same graph. Sizes that have
 * always been equal share one number: they form a class.
 *
 * What mixes elements along such a dimension is rebuilt: reductions and products mask the garbage,
 * concatenation writes at run-time offsets, a slice reads past its end. The rest runs over the
 * garbage too. */
#ifndef TORUS_HLO_BOUND_H_
#define TORUS_HLO_BOUND_H_

#include "hlo/graph.h"

enum { HLO_REASON_BYTES = 128 };

typedef struct hlo_bounding {
  hlo_graph_t *graph;
  const hlo_t *outputs;
  size_t output_count;
  const int *classes; /* per size as in hlo_shapes_t: 0 static, else the class */
  int class_count;    /* classes are 1 ... class_count; NULL and 0: nothing changes */
  /* The dimensions in which an input is held, NULL when exactly; |bounds| would suit best. */
  const int64_t *(*held)(void *context, int input, const int64_t *bounds);
  void *context;
} hlo_bounding_t;

/* Elements in which |size| of them are held: a power of two. */
int64_t hlo_bound_size(int64_t size);

/* Rebuilds the live nodes in |to|, which is cleared. An output is held in the dimensions of its new
 * node, which are exact for sizes that do not change. What cannot be rebuilt is named in |out_reason|
 * (HLO_REASON_BYTES), which is empty on success. */
TORUS_NODISCARD torus_status_t hlo_bound(const hlo_bounding_t *bounding, hlo_graph_t *to,
                                         hlo_t *out_outputs, char *out_reason);

#endif /* TORUS_HLO_BOUND_H_ */
