/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* A graph as a structure without sizes, and its sizes as a vector.
 *
 * Two graphs with equal shape-free keys consist of the same operations over the same operands with
 * the same attributes; they may differ in their vectors of sizes, which are equally long. Sizes 0
 * and 1 are part of the structure, for PyTorch's rules treat them specially; so is whether a part
 * takes a dimension whole. Amounts that follow from the sizes (the window of a running reduction,
 * the padding at the end) are left out. */
#ifndef TORUS_HLO_SHAPES_H_
#define TORUS_HLO_SHAPES_H_

#include "hlo/graph.h"

typedef struct hlo_shapes {
  char *key;          /* owned */
  size_t key_bytes;
  uint64_t hash;      /* of key */
  int64_t *sizes;     /* owned; the dimensions of the live nodes, in order */
  size_t size_count;
  int64_t *softs;     /* owned; bits of the soft numbers of the live nodes, in order */
  size_t soft_count;
} hlo_shapes_t;

/* |out_shapes| must be released with hlo_shapes_deinit. */
TORUS_NODISCARD torus_status_t hlo_shapes_of(hlo_graph_t *g, const hlo_t *outputs,
                                             size_t output_count, hlo_shapes_t *out_shapes);
void hlo_shapes_deinit(hlo_shapes_t *shapes); /* accepts a zeroed one */

/* Marks those soft numbers of the live nodes that differ from |softs| as changing, and notes them in
 * |changes|, one flag per number: those noted there before are marked too. */
TORUS_NODISCARD torus_status_t hlo_mark_changes(hlo_graph_t *g, const hlo_t *outputs,
                                                size_t output_count, const int64_t *softs,
                                                bool *changes);

#endif /* TORUS_HLO_SHAPES_H_ */
