/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* A typed StableHLO graph under construction.
 *
 * A graph is a list of nodes in topological order; a node is named by its index, hlo_t. Builder
 * functions append one node, infer its type and check their operands. The first mistake is kept in
 * the graph and every later call returns HLO_NONE, so lowerings nest calls without checking each:
 *
 *     return hlo_multiply(g, hlo_subtract(g, x, mean), hlo_rsqrt(g, variance));
 *
 * Binary functions broadcast a rank-0 operand to the shape of the other one and nothing else; types
 * must be equal. Numbers that the user may change from call to call are *soft*: they stay out of the
 * program's identity and may become run-time arguments (see encode.h). */
#ifndef TORUS_HLO_GRAPH_H_
#define TORUS_HLO_GRAPH_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "torus/dtype.h"
#include "torus/status.h"

enum { TORUS_MAX_RANK = 32 };

typedef struct hlo_graph hlo_graph_t;
typedef int32_t hlo_t; /* index of a node */
#define HLO_NONE ((hlo_t)-1)

/* ---- life ---- */

TORUS_NODISCARD torus_status_t hlo_graph_create(hlo_graph_t **out_graph);
void hlo_graph_destroy(hlo_graph_t *g); /* accepts NULL */
/* Forgets all nodes, keeps the memory. */
void hlo_graph_clear(hlo_graph_t *g);
/* Exchanges the nodes of two graphs; each keeps its settings. */
void hlo_graph_swap(hlo_graph_t *a, hlo_graph_t *b);
size_t hlo_graph_node_count(const hlo_graph_t *g);

/* Who appended the nodes from |first| up to the next mark. Marks say nothing about the program: they
 * are for explaining it. */
typedef struct hlo_mark {
  const char *name;     /* of the operator; lives for ever */
  const void *code;     /* where it was called, as in torus_place_t */
  int32_t instruction;
  hlo_t first;
} hlo_mark_t;
/* The nodes from here on are |name|'s. Without memory there is no mark. */
void hlo_graph_mark(hlo_graph_t *g, const char *name, const void *code, int32_t instruction);
/* Takes over the marks of a graph of which g is a rewritten form. Which nodes are whose is lost. */
void hlo_graph_adopt_marks(hlo_graph_t *g, hlo_graph_t *from);
/* Valid until the next mark. */
const hlo_mark_t *hlo_graph_marks(const hlo_graph_t *g, size_t *out_count);
/* The mark that node x belongs to, or NULL. */
const hlo_mark_t *hlo_graph_mark_of(const hlo_graph_t *g, hlo_t x);

/* The first error since the last take, owned by the caller; success when there is none. */
TORUS_NODISCARD torus_status_t hlo_graph_take_error(hlo_graph_t *g);
bool hlo_graph_failed(const hlo_graph_t *g);
/* Records an error unless there is one already; returns HLO_NONE. */
hlo_t hlo_fail(hlo_graph_t *g, torus_status_code_t code, const char *format, ...)
    TORUS_PRINTF(3, 4);
/* The same with an error made elsewhere, which it takes over. */
hlo_t hlo_fail_with(hlo_graph_t *g, torus_status_t status);

/* ---- types ---- */

torus_dtype_t hlo_dtype(const hlo_graph_t *g, hlo_t x);
int hlo_rank(const hlo_graph_t *g, hlo_t x);
/* Valid until the next node is appended: copy before building on. */
const int64_t *hlo_dims(const hlo_graph_t *g, hlo_t x);
int64_t hlo_dim(const hlo_graph_t *g, hlo_t x, int i);
int64_t hlo_numel(const hlo_graph_t *g, hlo_t x);
/* Copies the dimensions to |out_dims| (TORUS_MAX_RANK entries) and returns the rank. */
int hlo_shape(const hlo_graph_t *g, hlo_t x, int64_t *out_dims);
bool hlo_same_shape(const hlo_graph_t *g, hlo_t x, hlo_t y);
/* Whether all elements are known to be one and the same number. */
bool hlo_is_uniform(const hlo_graph_t *g, hlo_t x);

/* ---- sources ---- */

/* An array that exists before the program runs. |index| is the window's input number. */
hlo_t hlo_parameter(hlo_graph_t *g, int index, torus_dtype_t dtype, int rank, const int64_t *dims);
/* Rank-0 constants that are part of the program (epsilons of formulas, zero, one). For complex
 * types the imaginary part is 0. Integers are exact for every integer type. */
hlo_t hlo_const(hlo_graph_t *g, torus_dtype_t dtype, double value);
hlo_t hlo_const_int(hlo_graph_t *g, torus_dtype_t dtype, int64_t value);
/* Rank-0 numbers given by the user: soft. */
hlo_t hlo_soft(hlo_graph_t *g, torus_dtype_t dtype, double value);
hlo_t hlo_soft_int(hlo_graph_t *g, torus_dtype_t dtype, int64_t value);
/* Rank-0 numbers that differ in every call (seeds, offsets): run-time arguments from the first
 * compilation on. Integer types only. */
hlo_t hlo_volatile_int(hlo_graph_t *g, torus_dtype_t dtype, int64_t value);
/* The soft numbers of the graph in the order in which they were made: how many, the bits of one, and
 * the word that one is known to change from call to call. The word is not part of the identity. */
size_t hlo_graph_soft_count(const hlo_graph_t *g);
int64_t hlo_graph_soft_bits(const hlo_graph_t *g, size_t index);
bool hlo_graph_soft_is_real(const hlo_graph_t *g, size_t index); /* a float, not an integer */
void hlo_graph_expect_change(hlo_graph_t *g, size_t index);
/* Lowest / highest value of the type: -inf/+inf for floats, False/True for bool. */
hlo_t hlo_lowest(hlo_graph_t *g, torus_dtype_t dtype);
hlo_t hlo_highest(hlo_graph_t *g, torus_dtype_t dtype);
/* 0, 1, 2, ... along |dim|. */
hlo_t hlo_iota(hlo_graph_t *g, torus_dtype_t dtype, int rank, const int64_t *dims, int dim);
/* A rank-0 node repeated to a shape. */
hlo_t hlo_splat(hlo_graph_t *g, hlo_t scalar, int rank, const int64_t *dims);
/* hlo_splat of hlo_const to the shape and, when |dtype| is INVALID, the type of x. */
hlo_t hlo_full_like(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype, double value);
hlo_t hlo_zeros(hlo_graph_t *g, torus_dtype_t dtype, int rank, const int64_t *dims);

/* ---- elementwise ---- */

/* X(function suffix, spelling, allowed operand types) where allowed is one of
 * ANY, NUMERIC (no bool), FLOAT (float or complex), REAL_FLOAT, INTEGRAL (ints and bool), SIGNED. */
#define HLO_UNARY_LIST(X)                                                                          \
  X(abs, "stablehlo.abs", NUMERIC)                                                                 \
  X(negate, "stablehlo.negate", NUMERIC)                                                           \
  X(sign, "stablehlo.sign", NUMERIC)                                                               \
  X(not, "stablehlo.not", INTEGRAL)                                                                \
  X(popcnt, "stablehlo.popcnt", INTEGRAL)                                                          \
  X(count_leading_zeros, "stablehlo.count_leading_zeros", INTEGRAL)                                \
  X(exp, "stablehlo.exponential", FLOAT)                                                           \
  X(expm1, "stablehlo.exponential_minus_one", FLOAT)                                               \
  X(log, "stablehlo.log", FLOAT)                                                                   \
  X(log1p, "stablehlo.log_plus_one", FLOAT)                                                        \
  X(logistic, "stablehlo.logistic", FLOAT)                                                         \
  X(sqrt, "stablehlo.sqrt", FLOAT)                                                                 \
  X(rsqrt, "stablehlo.rsqrt", FLOAT)                                                               \
  X(cbrt, "stablehlo.cbrt", FLOAT)                                                                 \
  X(sine, "stablehlo.sine", FLOAT)                                                                 \
  X(cosine, "stablehlo.cosine", FLOAT)                                                             \
  X(tan, "stablehlo.tan", FLOAT)                                                                   \
  X(tanh, "stablehlo.tanh", FLOAT)                                                                 \
  X(floor, "stablehlo.floor", REAL_FLOAT)                                                          \
  X(ceil, "stablehlo.ceil", REAL_FLOAT)                                                            \
  X(round_nearest_even, "stablehlo.round_nearest_even", REAL_FLOAT)                                \
  X(round_nearest_afz, "stablehlo.round_nearest_afz", REAL_FLOAT)                                  \
  X(erf, "chlo.erf", REAL_FLOAT)                                                                   \
  X(erfc, "chlo.erfc", REAL_FLOAT)                                                                 \
  X(erf_inv, "chlo.erf_inv", REAL_FLOAT)                                                           \
  X(lgamma, "chlo.lgamma", REAL_FLOAT)                                                             \
  X(digamma, "chlo.digamma", REAL_FLOAT)                                                           \
  X(bessel_i1e, "chlo.bessel_i1e", REAL_FLOAT)                                                     \
  X(acos, "chlo.acos", FLOAT)                                                                      \
  X(acosh, "chlo.acosh", FLOAT)                                                                    \
  X(asin, "chlo.asin", FLOAT)                                                                      \
  X(asinh, "chlo.asinh", FLOAT)                                                                    \
  X(atan, "chlo.atan", FLOAT)                                                                      \
  X(atanh, "chlo.atanh", FLOAT)                                                                    \
  X(sinh, "chlo.sinh", FLOAT)                                                                      \
  X(cosh, "chlo.cosh", FLOAT)                                                                      \
  X(optimization_barrier, "stablehlo.optimization_barrier", ANY)

#define HLO_BINARY_LIST(X)                                                                         \
  X(add, "stablehlo.add", ANY)                                                                     \
  X(subtract, "stablehlo.subtract", NUMERIC)                                                       \
  X(multiply, "stablehlo.multiply", ANY)                                                           \
  X(divide, "stablehlo.divide", NUMERIC)          /* integers: towards zero; x/0 is -1 */          \
  X(remainder, "stablehlo.remainder", NUMERIC)    /* sign of the dividend */                       \
  X(power, "stablehlo.power", NUMERIC)                                                             \
  X(maximum, "stablehlo.maximum", ANY)            /* NaN wins */                                   \
  X(minimum, "stablehlo.minimum", ANY)                                                             \
  X(atan2, "stablehlo.atan2", FLOAT)                                                               \
  X(and, "stablehlo.and", INTEGRAL)                                                                \
  X(or, "stablehlo.or", INTEGRAL)                                                                  \
  X(xor, "stablehlo.xor", INTEGRAL)                                                                \
  X(shift_left, "stablehlo.shift_left", INTEGRAL)                                                  \
  X(shift_right_arithmetic, "stablehlo.shift_right_arithmetic", INTEGRAL)                          \
  X(shift_right_logical, "stablehlo.shift_right_logical", INTEGRAL)                                \
  X(next_after, "chlo.next_after", REAL_FLOAT)                                                     \
  X(polygamma, "chlo.polygamma", REAL_FLOAT)                                                       \
  X(zeta, "chlo.zeta", REAL_FLOAT)

#define HLO_DECLARE_UNARY(name, spelling, allowed) hlo_t hlo_##name(hlo_graph_t *g, hlo_t x);
HLO_UNARY_LIST(HLO_DECLARE_UNARY)
#undef HLO_DECLARE_UNARY
#define HLO_DECLARE_BINARY(name, spelling, allowed)                                                \
  hlo_t hlo_##name(hlo_graph_t *g, hlo_t x, hlo_t y);
HLO_BINARY_LIST(HLO_DECLARE_BINARY)
#undef HLO_DECLARE_BINARY

/* With a number of the same type on the right: hlo_add_f(g, x, 1.0). Structural, not soft. */
hlo_t hlo_add_f(hlo_graph_t *g, hlo_t x, double y);
hlo_t hlo_multiply_f(hlo_graph_t *g, hlo_t x, double y);

typedef enum { HLO_EQ, HLO_NE, HLO_LT, HLO_LE, HLO_GT, HLO_GE } hlo_comparison_t;
/* IEEE comparison; result BOOL. Complex: EQ and NE only. */
hlo_t hlo_compare(hlo_graph_t *g, hlo_comparison_t how, hlo_t x, hlo_t y);
hlo_t hlo_compare_f(hlo_graph_t *g, hlo_comparison_t how, hlo_t x, double y);
hlo_t hlo_is_nan(hlo_graph_t *g, hlo_t x);      /* x != x; all false for integers */
hlo_t hlo_is_finite(hlo_graph_t *g, hlo_t x);   /* real floats */
/* |condition| BOOL; any of the three may be rank 0 and is broadcast. */
hlo_t hlo_select(hlo_graph_t *g, hlo_t condition, hlo_t on_true, hlo_t on_false);
/* Value conversion with C semantics for in-range values; to BOOL: x != 0 (NaN is true); float to
 * int truncates; complex to real drops the imaginary part. Same type: x itself. */
hlo_t hlo_convert(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype);
/* Same bits. Sizes may differ: the last dimension is then added or removed as in StableHLO. */
hlo_t hlo_bitcast(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype);
hlo_t hlo_complex(hlo_graph_t *g, hlo_t real, hlo_t imag);
hlo_t hlo_real(hlo_graph_t *g, hlo_t x); /* of a real type: x itself */
hlo_t hlo_imag(hlo_graph_t *g, hlo_t x); /* of a real type: zeros */
hlo_t hlo_conj(hlo_graph_t *g, hlo_t x); /* of a real type: x itself */

/* ---- shape ---- */

hlo_t hlo_reshape(hlo_graph_t *g, hlo_t x, int rank, const int64_t *dims); /* same shape: x */
hlo_t hlo_flatten(hlo_graph_t *g, hlo_t x);                                /* to rank 1 */
hlo_t hlo_transpose(hlo_graph_t *g, hlo_t x, const int *permutation);      /* identity: x */
hlo_t hlo_swap_dims(hlo_graph_t *g, hlo_t x, int a, int b);
/* Operand dimension i becomes result dimension places[i]; sizes 1 are stretched. */
hlo_t hlo_broadcast_in_dim(hlo_graph_t *g, hlo_t x, int rank, const int64_t *dims,
                           const int *places);
/* Broadcasts as PyTorch does: shapes aligned at the right. Same shape: x. */
hlo_t hlo_expand(hlo_graph_t *g, hlo_t x, int rank, const int64_t *dims);
/* The PyTorch broadcast of two shapes; INVALID_ARGUMENT in the graph when they do not fit.
 * Returns the rank or -1. */
int hlo_broadcast_shape(hlo_graph_t *g, int rank_a, const int64_t *dims_a, int rank_b,
                        const int64_t *dims_b, int64_t *out_dims);
/* Inserts a dimension of size 1 before |dim| / removes dimension |dim| of size 1. */
hlo_t hlo_unsqueeze(hlo_graph_t *g, hlo_t x, int dim);
hlo_t hlo_squeeze(hlo_graph_t *g, hlo_t x, int dim);
/* Stretches a reduced node back over |like|: x has the shape of |like| without |dims|. */
hlo_t hlo_broadcast_back(hlo_graph_t *g, hlo_t x, hlo_t like, int dim_count, const int *dims);
/* Starts are soft; sizes and steps structural. size counts elements taken. steps NULL: all 1. */
hlo_t hlo_slice(hlo_graph_t *g, hlo_t x, const int64_t *starts, const int64_t *sizes,
                const int64_t *steps);
/* A slice of one dimension with step 1. */
hlo_t hlo_slice_dim(hlo_graph_t *g, hlo_t x, int dim, int64_t start, int64_t size);
/* One index of a dimension, which disappears. */
hlo_t hlo_index_dim(hlo_graph_t *g, hlo_t x, int dim, int64_t index);
/* x with |update| written at |starts| (soft), step 1. */
hlo_t hlo_update_slice(hlo_graph_t *g, hlo_t x, hlo_t update, const int64_t *starts);
/* Slice / update at rank-0 integer nodes, clamped as in StableHLO. */
hlo_t hlo_dynamic_slice(hlo_graph_t *g, hlo_t x, const hlo_t *starts, const int64_t *sizes);
hlo_t hlo_dynamic_update_slice(hlo_graph_t *g, hlo_t x, hlo_t update, const hlo_t *starts);
/* |value| rank 0. low/high may be negative (crops); interior may be NULL. */
hlo_t hlo_pad(hlo_graph_t *g, hlo_t x, hlo_t value, const int64_t *low, const int64_t *high,
              const int64_t *interior);
hlo_t hlo_concatenate(hlo_graph_t *g, const hlo_t *xs, size_t count, int dim);
hlo_t hlo_reverse(hlo_graph_t *g, hlo_t x, int dim_count, const int *dims);

/* ---- reductions, windows, sorting ---- */

typedef enum {
  HLO_REDUCE_ADD,
  HLO_REDUCE_MULTIPLY,
  HLO_REDUCE_MAXIMUM, /* NaN wins */
  HLO_REDUCE_MINIMUM,
  HLO_REDUCE_AND,
  HLO_REDUCE_OR,
  HLO_REDUCE_XOR,
} hlo_reduction_t;

/* Reduces |dims| (normalised, distinct); reducing no element gives the identity. Types as given:
 * accumulate in a wider type by converting before. keep: dims stay with size 1. */
hlo_t hlo_reduce(hlo_graph_t *g, hlo_reduction_t how, hlo_t x, int dim_count, const int *dims,
                 bool keep);
hlo_t hlo_reduce_all(hlo_graph_t *g, hlo_reduction_t how, hlo_t x); /* to rank 0 */
/* Maximum (or minimum) along |dim| and the I64 index of its first occurrence; NaN wins. The
 * dimension disappears and must not be empty. */
void hlo_reduce_arg(hlo_graph_t *g, bool is_max, hlo_t x, int dim, hlo_t *out_value,
                    hlo_t *out_index);
typedef struct hlo_window { /* one entry per dimension of the operand */
  int64_t size[TORUS_MAX_RANK], stride[TORUS_MAX_RANK], dilation[TORUS_MAX_RANK],
      base_dilation[TORUS_MAX_RANK], low[TORUS_MAX_RANK], high[TORUS_MAX_RANK];
} hlo_window_t;
/* Sizes, strides and dilations 1, no padding. */
hlo_window_t hlo_window_identity(void);
hlo_t hlo_reduce_window(hlo_graph_t *g, hlo_reduction_t how, hlo_t x, const hlo_window_t *window);
/* Window maximum of |keys| with the I64 |payload| carried along; the first maximum wins, NaN wins. */
void hlo_reduce_window_arg(hlo_graph_t *g, hlo_t keys, hlo_t payload, const hlo_window_t *window,
                           hlo_t *out_keys, hlo_t *out_payload);
/* Running reduction along |dim| (cumsum, cumprod, cummax): log-depth, exact for integers. */
hlo_t hlo_scan(hlo_graph_t *g, hlo_reduction_t how, hlo_t x, int dim);
/* Sorts |count| (1 or 2) arrays of one shape by the first. NaN counts as largest, -0 equals 0. */
void hlo_sort(hlo_graph_t *g, const hlo_t *xs, size_t count, int dim, bool descending, bool stable,
              hlo_t *out_xs);

/* ---- products ---- */

typedef struct hlo_dot_dims {
  int batch_count, contract_count;
  int lhs_batch[TORUS_MAX_RANK], rhs_batch[TORUS_MAX_RANK];
  int lhs_contract[TORUS_MAX_RANK], rhs_contract[TORUS_MAX_RANK];
} hlo_dot_dims_t;
/* Result: batch dimensions, then the rest of lhs, then the rest of rhs. |dtype| is the result's
 * (INVALID: the operands'). Floats are multiplied in the precision set in the graph. */
hlo_t hlo_dot_general(hlo_graph_t *g, hlo_t x, hlo_t y, const hlo_dot_dims_t *dims,
                      torus_dtype_t dtype);
/* (..., m, k) x (..., k, n) with equal leading dimensions. */
hlo_t hlo_matmul(hlo_graph_t *g, hlo_t x, hlo_t y);
typedef enum { HLO_PRECISION_DEFAULT, HLO_PRECISION_HIGH, HLO_PRECISION_HIGHEST } hlo_precision_t;
void hlo_graph_set_precision(hlo_graph_t *g, hlo_precision_t precision); /* HIGHEST at first */
/* Whether products of half types with a float32 result are printed as such (at first), which matrix
 * units compute at once, or with their operands converted: XLA's CPU code lacks some shapes of the
 * former. No part of the program's identity. */
void hlo_graph_set_mixed_products(hlo_graph_t *g, bool mixed);

typedef struct hlo_conv { /* spatial dimensions only */
  int spatial;
  int64_t stride[TORUS_MAX_RANK], low[TORUS_MAX_RANK], high[TORUS_MAX_RANK],
      lhs_dilation[TORUS_MAX_RANK], rhs_dilation[TORUS_MAX_RANK];
  bool reverse;                 /* flip the kernel in every spatial dimension */
  int64_t feature_groups, batch_groups;
  /* Places of batch, feature and spatial dimensions; NULL-like default (all zero with
   * explicit_layout false) is N C spatial... x O I spatial... -> N C spatial... */
  bool explicit_layout;
  int lhs_batch, lhs_feature, lhs_spatial[TORUS_MAX_RANK];
  int rhs_output, rhs_input, rhs_spatial[TORUS_MAX_RANK];
  int out_batch, out_feature, out_spatial[TORUS_MAX_RANK];
} hlo_conv_t;
hlo_t hlo_convolution(hlo_graph_t *g, hlo_t x, hlo_t kernel, const hlo_conv_t *conv);

/* ---- gather and scatter ---- */

/* StableHLO's numbers. index_vector_dim == rank of indices: implicit trailing 1. */
typedef struct hlo_gather_dims {
  int offset_count, offset[TORUS_MAX_RANK];          /* gather: offset_dims; scatter: update_window */
  int collapsed_count, collapsed[TORUS_MAX_RANK];    /* collapsed_slice / inserted_window */
  int map_count, map[TORUS_MAX_RANK];                /* start_index_map / scatter_dims_to_operand */
  int index_vector_dim;
} hlo_gather_dims_t;
/* Indices are clamped by StableHLO: check them first with op_check_index. */
hlo_t hlo_gather(hlo_graph_t *g, hlo_t x, hlo_t indices, const hlo_gather_dims_t *dims,
                 const int64_t *slice_sizes);
typedef enum {
  HLO_SCATTER_SET,
  HLO_SCATTER_ADD,
  HLO_SCATTER_MULTIPLY,
  HLO_SCATTER_MAXIMUM,
  HLO_SCATTER_MINIMUM,
} hlo_scatter_t;
/* Out-of-range updates are dropped. Duplicates are combined (SET: one of them wins). */
hlo_t hlo_scatter(hlo_graph_t *g, hlo_scatter_t how, hlo_t x, hlo_t indices, hlo_t updates,
                  const hlo_gather_dims_t *dims);
/* Rows of x along |dim|: result shape is x's with |dim| replaced by the shape of |indices|. */
hlo_t hlo_take(hlo_graph_t *g, hlo_t x, int dim, hlo_t indices);
/* torch.gather: out[i][j] = x[index[i][j]][j]; index as large as or smaller than x elsewhere. */
hlo_t hlo_take_along(hlo_graph_t *g, hlo_t x, int dim, hlo_t indices);
/* torch.scatter and kin along |dim|. */
hlo_t hlo_put_along(hlo_graph_t *g, hlo_scatter_t how, hlo_t x, int dim, hlo_t indices,
                    hlo_t updates);
/* Backward of max pooling: |source| goes to the (first) selected element of each window. */
hlo_t hlo_select_and_scatter(hlo_graph_t *g, hlo_t x, hlo_t source, const hlo_window_t *window);

/* ---- the rest ---- */

/* Random bits of the shape, unsigned 32 or 64 bit, Philox 4x32-10. |seed| and |offset| are rank-0
 * U64 nodes (hlo_volatile_int). */
hlo_t hlo_random_bits(hlo_graph_t *g, torus_dtype_t dtype, hlo_t seed, hlo_t offset, int rank,
                      const int64_t *dims);
typedef enum { HLO_FFT, HLO_IFFT, HLO_RFFT, HLO_IRFFT } hlo_fft_t;
/* Over the last |length_count| (1..3) dimensions; unnormalised forward, 1/n inverse. */
hlo_t hlo_fft(hlo_graph_t *g, hlo_fft_t how, hlo_t x, int length_count, const int64_t *lengths);
hlo_t hlo_cholesky(hlo_graph_t *g, hlo_t x, bool lower);
hlo_t hlo_triangular_solve(hlo_graph_t *g, hlo_t a, hlo_t b, bool left, bool lower, bool unit,
                           bool transpose);

/* A loop: while condition(state) state = body(state). The callbacks append to |g| nodes that use
 * only |state|, constants and nodes of their own; |condition| returns a rank-0 BOOL, |body| fills
 * |out_state| with nodes of the same types. |out_results| receives |count| nodes. */
typedef hlo_t (*hlo_condition_fn)(hlo_graph_t *g, const hlo_t *state, void *context);
typedef void (*hlo_body_fn)(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context);
void hlo_while(hlo_graph_t *g, const hlo_t *initial, size_t count, hlo_condition_fn condition,
               hlo_body_fn body, void *context, hlo_t *out_results);

#endif  /* TORUS_HLO_GRAPH_H_ */
