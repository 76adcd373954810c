/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Matrix products. Half types are multiplied as they are, summed in float32 and rounded once. */
#include "ops/spatial.h"

/* ---- products of two arguments ---- */

static bool same_dtype(torus_call_t *call, int i, int j) {
  torus_dtype_t a = op_tensor_dtype(call, i), b = op_tensor_dtype(call, j);
  bool fits = a == b && a != TORUS_DTYPE_BOOL;
  if (!fits)
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "products need two numeric types that agree");
  return fits;
}

static bool ranks_are(torus_call_t *call, int i, int rank_i, int j, int rank_j) {
  bool fits = op_tensor_rank(call, i) == rank_i && op_tensor_rank(call, j) == rank_j;
  if (!fits) op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "unexpected number of dimensions");
  return fits && same_dtype(call, i, j);
}

/* Contracts dimension |cx| of x with |cy| of y; the leading |batch| dimensions go together. */
static hlo_t contract(hlo_graph_t *g, hlo_t x, int cx, hlo_t y, int cy, int batch,
                      torus_dtype_t dtype) {
  hlo_dot_dims_t dims = {.batch_count = batch, .contract_count = 1};
  for (int i = 0; i < batch; i++) dims.lhs_batch[i] = dims.rhs_batch[i] = i;
  dims.lhs_contract[0] = cx;
  dims.rhs_contract[0] = cy;
  return hlo_dot_general(g, x, y, &dims, dtype);
}

/* Argument i times argument j, over the last of i and the one given of j, in the wide type. */
static hlo_t product_as(torus_call_t *call, hlo_graph_t *g, int i, int j, torus_dtype_t wide) {
  int rank = op_tensor_rank(call, i), batch = rank > 2 ? rank - 2 : 0;
  hlo_t x = op_tensor(call, i), y = op_tensor(call, j);
  return contract(g, x, rank - 1, y, batch, batch, wide);
}

static hlo_t product(torus_call_t *call, hlo_graph_t *g, int i, int j) {
  return product_as(call, g, i, j, op_accumulate_type(op_tensor_dtype(call, i)));
}

static void return_rounded(torus_call_t *call, hlo_graph_t *g, hlo_t x, torus_dtype_t dtype) {
  op_return(call, 0, hlo_convert(g, x, dtype));
}

#define PRODUCT_OP(ident, name, rank_i, rank_j)                                                    \
  TORUS_OP(ident, name, 0) {                                                                       \
    if (!ranks_are(call, 0, rank_i, 1, rank_j)) return;                                            \
    return_rounded(call, g, product(call, g, 0, 1), op_tensor_dtype(call, 0));                     \
  }

PRODUCT_OP(mm, "mm", 2, 2)
PRODUCT_OP(bmm, "bmm", 3, 3)
PRODUCT_OP(mv, "mv", 2, 1)
PRODUCT_OP(dot, "dot", 1, 1)

TORUS_OP(vdot, "vdot", 0) {
  if (!ranks_are(call, 0, 1, 1, 1)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  hlo_t x = hlo_conj(g, op_tensor(call, 0)), y = op_tensor(call, 1);
  return_rounded(call, g, contract(g, x, 0, y, 0, 0, op_accumulate_type(dtype)), dtype);
}

#define PRODUCT_DTYPE_OP(ident, name, rank)                                                        \
  TORUS_OP(ident, name, 0) {                                                                       \
    if (!ranks_are(call, 0, rank, 1, rank)) return;                                                \
    torus_dtype_t out = op_dtype_or(call, 2, op_tensor_dtype(call, 0));                            \
    return_rounded(call, g, product(call, g, 0, 1), out);                                          \
  }

PRODUCT_DTYPE_OP(mm_dtype, "mm.dtype", 2)
PRODUCT_DTYPE_OP(bmm_dtype, "bmm.dtype", 3)

TORUS_OP(int_mm, "_int_mm", 0) {
  if (!ranks_are(call, 0, 2, 1, 2)) return;
  op_return(call, 0, product_as(call, g, 0, 1, TORUS_DTYPE_I32));
}

/* ---- beta * self + alpha * product ---- */

static hlo_t scaled(torus_call_t *call, hlo_graph_t *g, hlo_t x, int factor) {
  if (op_scalar_is(call, factor, 1)) return x;
  return hlo_multiply(g, x, op_scalar(call, factor, hlo_dtype(g, x)));
}

/* A zero beta drops self altogether, NaN included, as BLAS does. Integer tensors cut the fraction
 * of their factors off. */
static hlo_t add_scaled(torus_call_t *call, hlo_graph_t *g, hlo_t sum, int beta, int alpha) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, sum, dims);
  torus_dtype_t wide = hlo_dtype(g, sum);
  sum = scaled(call, g, sum, alpha);
  if (op_scalar_is(call, beta, 0)) return sum;
  hlo_t self = hlo_expand(g, op_tensor_as(call, 0, wide), rank, dims);
  return hlo_add(g, scaled(call, g, self, beta), sum);
}

static hlo_t add_product(torus_call_t *call, hlo_graph_t *g, int rank_i, int rank_j, int beta) {
  if (!ranks_are(call, 1, rank_i, 2, rank_j) || !same_dtype(call, 0, 1)) return HLO_NONE;
  return add_scaled(call, g, product(call, g, 1, 2), beta, beta + 1);
}

#define ADD_PRODUCT_OP(ident, name, rank_i, rank_j)                                                \
  TORUS_OP(ident, name, 0) {                                                                       \
    hlo_t sum = add_product(call, g, rank_i, rank_j, 3);                                           \
    if (!op_failed(call)) return_rounded(call, g, sum, op_tensor_dtype(call, 1));                  \
  }

ADD_PRODUCT_OP(addmm, "addmm", 2, 2)
ADD_PRODUCT_OP(addmv, "addmv", 2, 1)
ADD_PRODUCT_OP(baddbmm, "baddbmm", 3, 3)

#define ADD_PRODUCT_DTYPE_OP(ident, name, rank)                                                    \
  TORUS_OP(ident, name, 0) {                                                                       \
    if (!ranks_are(call, 1, rank, 2, rank)) return;                                                \
    hlo_t sum = add_scaled(call, g, product(call, g, 1, 2), 4, 5);                                 \
    return_rounded(call, g, sum, op_dtype_or(call, 3, op_tensor_dtype(call, 1)));                  \
  }

ADD_PRODUCT_DTYPE_OP(addmm_dtype, "addmm.dtype", 2)
ADD_PRODUCT_DTYPE_OP(baddbmm_dtype, "baddbmm.dtype", 3)

TORUS_OP(addbmm, "addbmm", 0) {
  if (!ranks_are(call, 1, 3, 2, 3) || !same_dtype(call, 0, 1)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 1);
  hlo_dot_dims_t dims = {.contract_count = 2, .lhs_contract = {0, 2}, .rhs_contract = {0, 1}};
  hlo_t x = op_tensor(call, 1), y = op_tensor(call, 2);
  hlo_t sum = hlo_dot_general(g, x, y, &dims, op_accumulate_type(dtype));
  return_rounded(call, g, add_scaled(call, g, sum, 3, 4), dtype);
}

static hlo_t gelu(hlo_graph_t *g, hlo_t x) {
  hlo_t tail = hlo_add_f(g, hlo_erf(g, hlo_multiply_f(g, x, 0.70710678118654752440)), 1);
  return hlo_multiply(g, hlo_multiply_f(g, x, 0.5), tail);
}

TORUS_OP(addmm_activation, "_addmm_activation", 0) {
  hlo_t sum = add_product(call, g, 2, 2, 3);
  if (op_failed(call)) return;
  hlo_t zero = hlo_const(g, hlo_dtype(g, sum), 0);
  sum = op_bool(call, 5) ? gelu(g, sum) : hlo_maximum(g, sum, zero);
  return_rounded(call, g, sum, op_tensor_dtype(call, 1));
}

/* The outer product; bool is a conjunction there, and the sum a disjunction. */
static hlo_t outer(torus_call_t *call, hlo_graph_t *g, torus_dtype_t dtype) {
  int64_t dims[2] = {op_tensor_dim(call, 1, 0), op_tensor_dim(call, 2, 0)};
  hlo_t x = spatial_along(g, op_tensor_as(call, 1, dtype), 2, dims, 0);
  hlo_t y = spatial_along(g, op_tensor_as(call, 2, dtype), 2, dims, 1);
  return dtype == TORUS_DTYPE_BOOL ? hlo_and(g, x, y) : hlo_multiply(g, x, y);
}

static hlo_t addr_bool(torus_call_t *call, hlo_graph_t *g) {
  hlo_t sum = outer(call, g, TORUS_DTYPE_BOOL);
  if (op_scalar_is(call, 4, 0)) sum = hlo_full_like(g, sum, TORUS_DTYPE_BOOL, 0);
  if (op_scalar_is(call, 3, 0)) return sum;
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, sum, dims);
  return hlo_or(g, hlo_expand(g, op_tensor(call, 0), rank, dims), sum);
}

static bool is_real_scalar(const torus_call_t *call, int i) {
  torus_dtype_t dtype = op_scalar_dtype(call, i);
  return torus_dtype_is_float(dtype) || torus_dtype_is_complex(dtype);
}

/* addr alone takes nothing but integer factors for integers. */
static bool factors_fit(torus_call_t *call, torus_dtype_t dtype, int beta, int alpha) {
  bool fits = !torus_dtype_is_integral(dtype) ||
              (!is_real_scalar(call, beta) && !is_real_scalar(call, alpha));
  if (!fits) op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "integer tensors need integer factors");
  return fits;
}

TORUS_OP(addr, "addr", 0) {
  if (op_tensor_rank(call, 1) != 1 || op_tensor_rank(call, 2) != 1) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "addr needs two vectors");
    return;
  }
  torus_dtype_t dtype = op_result_type(call, (const int[]){0, 1, 2}, 3);
  if (dtype == TORUS_DTYPE_BOOL) {
    op_return(call, 0, addr_bool(call, g));
    return;
  }
  if (!factors_fit(call, dtype, 3, 4)) return;
  hlo_t sum = outer(call, g, op_accumulate_type(dtype));
  return_rounded(call, g, add_scaled(call, g, sum, 3, 4), dtype);
}

/* ---- quantised weights ---- */

/* self (M, K) times the rows of the int8 matrix (N, K), each row with a scale of its own. */
TORUS_OP(weight_int8pack_mm, "_weight_int8pack_mm", 0) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0), wide = op_accumulate_type(dtype);
  hlo_t y = contract(g, op_tensor_as(call, 0, wide), 1, op_tensor_as(call, 1, wide), 1, 0, wide);
  return_rounded(call, g, spatial_scale(g, y, op_tensor_as(call, 2, wide), 1), dtype);
}

/* A scale of one element, or one with the sizes (M, 1) or (1, N), over an (M, N) product. */
static hlo_t apply_scale(torus_call_t *call, hlo_graph_t *g, hlo_t y, int i) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, y, dims);
  hlo_t scale = op_tensor_as(call, i, hlo_dtype(g, y));
  if (op_tensor_numel(call, i) == 1) scale = hlo_reshape(g, scale, 0, NULL);
  return hlo_multiply(g, y, hlo_expand(g, scale, rank, dims));
}

TORUS_OP(scaled_mm, "_scaled_mm", 0) {
  torus_dtype_t f32 = TORUS_DTYPE_F32;
  hlo_t y = contract(g, op_tensor_as(call, 0, f32), 1, op_tensor_as(call, 1, f32), 0, 0, f32);
  y = apply_scale(call, g, apply_scale(call, g, y, 2), 3);
  if (op_has(call, 4)) {
    int64_t dims[TORUS_MAX_RANK] = {0};
    int rank = hlo_shape(g, y, dims);
    y = hlo_add(g, y, hlo_expand(g, op_tensor_as(call, 4, f32), rank, dims));
  }
  if (op_has(call, 5)) y = apply_scale(call, g, y, 5);
  return_rounded(call, g, y, op_dtype_or(call, 6, op_tensor_dtype(call, 0)));
}
