/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* How a graph is stored, for the files of src/hlo alone.
 *
 * A graph is a handful of flat arrays: node records of one size, and pools of operands, integers
 * (dimensions and attributes) and soft numbers into which the records point by index. Ranges may be
 * shared: an elementwise node points to the dimensions of its operand.
 *
 * A node with several results (while, sort, ...) is followed by one RESULT node per result; only
 * those are handed to callers. Nodes of a loop's regions stand in the same list, before their while
 * node, between the bounds it keeps. Each knows the region it is in, so that a use from outside is
 * noticed; uses of outer nodes inside a region are captures, which StableHLO allows. */
#ifndef TORUS_HLO_GRAPH_INTERNAL_H_
#define TORUS_HLO_GRAPH_INTERNAL_H_

#include "hlo/graph.h"

/* X(name, spelling): everything that is neither in the unary nor in the binary list.
 * |attrs| of each are described where it is built. */
#define HLO_OTHER_LIST(X)                                                                          \
  X(PARAMETER, "parameter")                                                                        \
  X(CONSTANT, "stablehlo.constant")                                                                \
  X(SOFT, "number")                                                                                \
  X(BLOCK_ARG, "loop state")                                                                       \
  X(RESULT, "result")                                                                              \
  X(IOTA, "stablehlo.iota")                                                                        \
  X(BROADCAST, "stablehlo.broadcast_in_dim")                                                       \
  X(COMPARE, "stablehlo.compare")                                                                  \
  X(SELECT, "stablehlo.select")                                                                    \
  X(CONVERT, "stablehlo.convert")                                                                  \
  X(BITCAST, "stablehlo.bitcast_convert")                                                          \
  X(IS_FINITE, "stablehlo.is_finite")                                                              \
  X(COMPLEX, "stablehlo.complex")                                                                  \
  X(REAL, "stablehlo.real")                                                                        \
  X(IMAG, "stablehlo.imag")                                                                        \
  X(RESHAPE, "stablehlo.reshape")                                                                  \
  X(TRANSPOSE, "stablehlo.transpose")                                                              \
  X(SLICE, "stablehlo.slice")                                                                      \
  X(UPDATE_SLICE, "stablehlo.dynamic_update_slice")                                                \
  X(DYNAMIC_SLICE, "stablehlo.dynamic_slice")                                                      \
  X(DYNAMIC_UPDATE_SLICE, "stablehlo.dynamic_update_slice")                                        \
  X(PAD, "stablehlo.pad")                                                                          \
  X(CONCATENATE, "stablehlo.concatenate")                                                          \
  X(REVERSE, "stablehlo.reverse")                                                                  \
  X(REDUCE, "stablehlo.reduce")                                                                    \
  X(REDUCE_ARG, "stablehlo.reduce")                                                                \
  X(REDUCE_WINDOW, "stablehlo.reduce_window")                                                      \
  X(REDUCE_WINDOW_ARG, "stablehlo.reduce_window")                                                  \
  X(SELECT_AND_SCATTER, "stablehlo.select_and_scatter")                                            \
  X(SORT, "stablehlo.sort")                                                                        \
  X(DOT_GENERAL, "stablehlo.dot_general")                                                          \
  X(CONVOLUTION, "stablehlo.convolution")                                                          \
  X(GATHER, "stablehlo.gather")                                                                    \
  X(SCATTER, "stablehlo.scatter")                                                                  \
  X(RANDOM_BITS, "stablehlo.rng_bit_generator")                                                    \
  X(FFT, "stablehlo.fft")                                                                          \
  X(CHOLESKY, "stablehlo.cholesky")                                                                \
  X(TRIANGULAR_SOLVE, "stablehlo.triangular_solve")                                                \
  X(WHILE, "stablehlo.while")

typedef enum hlo_op {
#define HLO_OP_ENUM(name, spelling, allowed) HLO_OP_##name,
  HLO_UNARY_LIST(HLO_OP_ENUM) HLO_BINARY_LIST(HLO_OP_ENUM)
#undef HLO_OP_ENUM
#define HLO_OP_ENUM(name, spelling) HLO_OP_##name,
      HLO_OTHER_LIST(HLO_OP_ENUM)
#undef HLO_OP_ENUM
          HLO_OP_COUNT
} hlo_op_t;

enum {
  HLO_OP_FIRST_BINARY = HLO_OP_add,
  HLO_OP_FIRST_OTHER = HLO_OP_PARAMETER,
};

typedef struct hlo_node {
  uint8_t op;             /* hlo_op_t */
  uint8_t dtype;          /* torus_dtype_t */
  uint8_t rank;
  uint8_t mode;           /* small choice of the operation: comparison, reduction, flags */
  int32_t region;         /* 0: the main function */
  uint32_t operands;      /* start in graph->operands */
  uint32_t operand_count;
  uint32_t dims;          /* start in graph->ints, |rank| long */
  uint32_t attrs;         /* start in graph->ints */
  uint32_t attr_count;
  uint32_t softs;         /* start in graph->softs */
  uint32_t soft_count;
} hlo_node_t;

/* Modes of SOFT. */
enum { HLO_SOFT_STEADY, HLO_SOFT_VOLATILE };

typedef struct hlo_soft_number {
  int64_t bits; /* integers as they are, reals as the bits of a double */
  uint8_t dtype;
  bool changes; /* seen to differ from call to call: promoted from the first compilation on */
} hlo_soft_number_t;

struct hlo_graph {
  hlo_node_t *nodes;
  size_t node_count, node_capacity;
  hlo_t *operands;
  size_t operand_count, operand_capacity;
  int64_t *ints;
  size_t int_count, int_capacity;
  hlo_soft_number_t *softs;
  size_t soft_count, soft_capacity;
  int32_t *region_parents; /* of region 1, 2, ... at [0], [1], ... */
  size_t region_count, region_capacity;
  int32_t region;          /* where nodes are appended now */
  hlo_mark_t *marks;
  size_t mark_count, mark_capacity;
  uint32_t *scratch;       /* of hlo_number_live */
  size_t scratch_capacity;
  hlo_precision_t precision;
  bool widened_products;   /* see hlo_graph_set_mixed_products */
  torus_status_t error;    /* owned; the first one */
};

/* What to append. Everything pointed to is copied, and may lie in the graph's own pools. */
typedef struct hlo_spec {
  hlo_op_t op;
  torus_dtype_t dtype;
  int mode;
  int rank;
  const int64_t *dims;
  const hlo_t *operands;
  size_t operand_count;
  const int64_t *attrs;
  size_t attr_count;
  const hlo_soft_number_t *softs;
  size_t soft_count;
} hlo_spec_t;

static inline const hlo_node_t *hlo_node(const hlo_graph_t *g, hlo_t x) { return &g->nodes[x]; }

static inline const int64_t *hlo_attrs(const hlo_graph_t *g, hlo_t x) {
  return g->ints + g->nodes[x].attrs;
}

static inline const hlo_t *hlo_operands(const hlo_graph_t *g, hlo_t x) {
  return g->operands + g->nodes[x].operands;
}

static inline hlo_t hlo_operand(const hlo_graph_t *g, hlo_t x, size_t i) {
  return g->operands[g->nodes[x].operands + i];
}

/* Room for |need| items of |item_bytes| in all; false after recording RESOURCE_EXHAUSTED. */
bool hlo_reserve(hlo_graph_t *g, void **block, size_t *capacity, size_t need, size_t item_bytes);

/* Operands must have passed hlo_usable; dimensions are checked here. */
hlo_t hlo_append(hlo_graph_t *g, const hlo_spec_t *spec);
/* The shape of |like|, no attributes. */
hlo_t hlo_append_like(hlo_graph_t *g, hlo_op_t op, torus_dtype_t dtype, int mode, hlo_t like,
                      const hlo_t *operands, size_t operand_count);
/* Gives the attributes of a node made by hlo_append_like; false after an error. */
bool hlo_set_attrs(hlo_graph_t *g, hlo_t x, size_t count, const int64_t *attrs);
/* Result |index| of a node with several. */
hlo_t hlo_append_result(hlo_graph_t *g, hlo_t node, int index, torus_dtype_t dtype, int rank,
                        const int64_t *dims);
/* A constant of any shape from bits as in hlo_soft_number_t. */
hlo_t hlo_append_constant(hlo_graph_t *g, torus_dtype_t dtype, int64_t bits, int rank,
                          const int64_t *dims);
/* A steady soft number as one of |dtype|, or HLO_NONE where a conversion is needed. A number in the
 * type that uses it is a single word of the program's arguments, unpacked within the loop. */
hlo_t hlo_soft_as(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype);
/* |scalar| in the shape of |like|. */
hlo_t hlo_splat_like(hlo_graph_t *g, hlo_t scalar, hlo_t like);
/* Zeros in the shape of |like|. */
hlo_t hlo_zeros_like(hlo_graph_t *g, hlo_t like);

/* True when |x| is a node that may be used in the current region; otherwise the graph has an
 * error. */
bool hlo_usable(hlo_graph_t *g, hlo_op_t op, hlo_t x);
bool hlo_usable_all(hlo_graph_t *g, hlo_op_t op, const hlo_t *xs, size_t count);

/* "add", without the dialect. */
const char *hlo_op_name(hlo_op_t op);
const char *hlo_op_spelling(hlo_op_t op);

enum { HLO_TYPE_TEXT = 512 };
/* "float32[4, 8]" into |text| of HLO_TYPE_TEXT bytes; returns |text|. */
const char *hlo_type_text(const hlo_graph_t *g, hlo_t x, char *text);
const char *hlo_shape_text(torus_dtype_t dtype, int rank, const int64_t *dims, char *text);
/* INVALID_ARGUMENT "op: complaint, got TYPE[, TYPE]"; y may be HLO_NONE. */
hlo_t hlo_fail_types(hlo_graph_t *g, hlo_op_t op, const char *complaint, hlo_t x, hlo_t y);
/* False after recording an error when |dim| is no dimension of x. */
bool hlo_check_dim(hlo_graph_t *g, hlo_op_t op, hlo_t x, int64_t dim);

int64_t hlo_double_bits(double value);
double hlo_bits_double(int64_t bits);
int64_t hlo_product(int rank, const int64_t *dims);

/* Of bool, sums are or and products are and; other types keep |how|. Sets INVALID_ARGUMENT for
 * types that |how| does not know and returns false. */
bool hlo_reduction_for(hlo_graph_t *g, hlo_op_t op, hlo_t x, hlo_reduction_t *how);
/* The identity of a reduction, rank 0. */
hlo_t hlo_identity_of(hlo_graph_t *g, hlo_reduction_t how, torus_dtype_t dtype);

/* Whether window operation x runs over all elements up to its own along |dim|. */
bool hlo_is_running(const hlo_graph_t *g, hlo_t x, int dim);

/* ---- live nodes ---- */

/* The nodes that reach an output, in order. The arrays lie in the graph's scratch memory. */
typedef struct hlo_live {
  const uint32_t *number;    /* of node i: 0 when dead, else 1 + its place among the live ones */
  const uint32_t *soft_base; /* of node i: soft numbers of the live nodes before it */
  const uint32_t *position;  /* of input number i: 0 when unused, else 1 + argument number */
  size_t end;                /* the nodes from here on are dead */
  size_t input_end;          /* the input numbers from here on are unused */
  size_t node_count, operand_count, int_count, soft_count, parameter_count;
} hlo_live_t;

/* False after recording an error. */
bool hlo_number_live(hlo_graph_t *g, const hlo_t *outputs, size_t output_count,
                     hlo_live_t *out_live);

#endif /* TORUS_HLO_GRAPH_INTERNAL_H_ */
