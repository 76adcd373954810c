/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* How two programs differ, read from their keys (see encode.c for what a key holds). */
#ifndef TORUS_HLO_COMPARE_H_
#define TORUS_HLO_COMPARE_H_

#include "hlo/graph.h"

/* From near to far. */
typedef enum hlo_difference_kind {
  HLO_DIFFERENCE_NONE,
  HLO_DIFFERENCE_RESULTS,    /* same operations, other results are wanted */
  HLO_DIFFERENCE_ATTRIBUTES, /* same operations and sizes, another detail of one */
  HLO_DIFFERENCE_SIZES,      /* same operations on other sizes */
  HLO_DIFFERENCE_TYPES,      /* an element type differs */
  HLO_DIFFERENCE_STRUCTURE,  /* other operations */
} hlo_difference_kind_t;

/* A node as its key tells it. */
typedef struct hlo_key_node {
  int op;                /* hlo_op_t; -1: the key ends before */
  torus_dtype_t dtype;
  int rank;
  int64_t dims[TORUS_MAX_RANK];
} hlo_key_node_t;

typedef struct hlo_difference {
  hlo_difference_kind_t kind;
  size_t node;           /* place of the first node of that kind among the live ones, from 0 */
  hlo_key_node_t old_node, new_node;
  int dim;               /* SIZES: the first dimension that differs */
  size_t other_count;    /* SIZES, TYPES: further parameters that differ in the same way */
  size_t old_results, new_results;
  bool has_other_nodes;  /* SIZES, TYPES of a parameter: the operations differ too, further on */
} hlo_difference_t;

void hlo_key_compare(const char *old_key, size_t old_bytes, const char *new_key, size_t new_bytes,
                     hlo_difference_t *out_difference);

/* "add float32[4, 8]" into |text| of HLO_KEY_NODE_TEXT bytes; returns |text|. */
enum { HLO_KEY_NODE_TEXT = 640 };
const char *hlo_key_node_text(const hlo_key_node_t *node, char *text);

#endif /* TORUS_HLO_COMPARE_H_ */
