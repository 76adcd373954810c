/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Scaled dot product attention in one operator, forward and backward.
 *
 * F.scaled_dot_product_attention asks the device which kernel it wants; the binding answers "flash",
 * and for a device that is not CUDA this is _scaled_dot_product_flash_attention_for_cpu, with an
 * additive mask. Only the log-sum-exp of the scores is kept for backward, which computes the
 * probabilities again (Dao et al., FlashAttention, section 3). Shapes: query (..., H, L, E), key and
 * value (..., H / r, S, E): query heads in groups of r share a key head. Rows that are masked
 * altogether give zeros. */
#include <math.h>

#include "ops/spatial.h"

typedef struct attention {
  torus_call_t *call;
  hlo_graph_t *g;
  torus_dtype_t dtype, wide;
  int rank;
  int query, key, value, mask;           /* argument positions */
  bool causal;
  double scale;
  int64_t heads, shared, length, source; /* key heads, r, L, S */
} attention_t;

static attention_t read_attention(torus_call_t *call, hlo_graph_t *g, int query, int causal,
                                  int mask) {
  attention_t a = {.call = call, .g = g, .query = query, .key = query + 1, .value = query + 2,
                   .mask = mask, .causal = op_bool(call, causal)};
  a.dtype = op_tensor_dtype(call, query);
  a.wide = op_accumulate_type(a.dtype);
  a.rank = op_tensor_rank(call, query);
  a.length = op_tensor_dim(call, query, a.rank - 2);
  a.source = op_tensor_dim(call, a.key, a.rank - 2);
  a.heads = a.rank > 3 ? op_tensor_dim(call, a.key, a.rank - 3) : 1;
  a.shared = a.rank > 3 && a.heads > 0 ? op_tensor_dim(call, query, a.rank - 3) / a.heads : 1;
  a.scale = op_double_or(call, mask + 1,
                         1 / sqrt((double)op_tensor_dim(call, query, a.rank - 1)));
  return a;
}

static bool attention_fits(const attention_t *a, int dropout) {
  int heads = a->rank > 3 ? a->rank - 3 : 0;
  bool fits = a->rank >= 3 && op_tensor_rank(a->call, a->key) == a->rank &&
              op_tensor_rank(a->call, a->value) == a->rank &&
              op_double(a->call, dropout) == 0 && torus_dtype_is_float(a->dtype);
  fits = fits && (a->rank == 3 || a->heads * a->shared == op_tensor_dim(a->call, a->query, heads));
  if (!fits) op_error(a->call, TORUS_STATUS_INVALID_ARGUMENT, "unexpected arguments of attention");
  return fits;
}

/* ---- shapes: query side as (B, heads, shared * L, E), key side as (B, heads, S, E) ---- */

static int64_t batch_of(const attention_t *a) {
  int64_t n = 1;
  for (int i = 0; i < (a->rank > 3 ? a->rank - 3 : 1); i++)
    n *= op_tensor_dim(a->call, a->query, i);
  return n;
}

/* Query heads of one group follow each other, so that the group is one matrix. */
static hlo_t query_side(const attention_t *a, hlo_t x, int64_t width) {
  const int64_t dims[] = {batch_of(a), a->heads, a->shared * a->length, width};
  return hlo_reshape(a->g, x, 4, dims);
}

static hlo_t key_side(const attention_t *a, hlo_t x, int64_t width) {
  const int64_t dims[] = {batch_of(a), a->heads, a->source, width};
  return hlo_reshape(a->g, x, 4, dims);
}

static int64_t width_of(const attention_t *a, int i) {
  return op_tensor_dim(a->call, i, a->rank - 1);
}

static hlo_t query_argument(const attention_t *a, int i) {
  return query_side(a, op_tensor(a->call, i), width_of(a, i));
}

static hlo_t key_argument(const attention_t *a, int i) {
  return key_side(a, op_tensor(a->call, i), width_of(a, i));
}

/* A query-side result in the shape of argument i, with its last dimension or without one. */
static hlo_t as_argument(const attention_t *a, hlo_t x, int i, int64_t width) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  for (int k = 0; k < a->rank; k++) dims[k] = op_tensor_dim(a->call, i, k);
  dims[a->rank - 1] = width;
  return hlo_reshape(a->g, x, width == 0 ? a->rank - 1 : a->rank, dims);
}

static hlo_t multiply(const attention_t *a, hlo_t x, int cx, hlo_t y, int cy) {
  hlo_dot_dims_t dims = {.batch_count = 2, .contract_count = 1};
  dims.lhs_batch[1] = dims.rhs_batch[1] = 1;
  dims.lhs_contract[0] = cx;
  dims.rhs_contract[0] = cy;
  return hlo_dot_general(a->g, x, y, &dims, a->wide);
}

/* ---- scores ---- */

static hlo_t add_mask(const attention_t *a, hlo_t scores) {
  hlo_t mask = op_tensor_as(a->call, a->mask, a->wide);
  int64_t dims[TORUS_MAX_RANK] = {0};
  for (int i = 0; i < a->rank; i++) dims[i] = op_tensor_dim(a->call, a->query, i);
  dims[a->rank - 1] = a->source;
  mask = hlo_expand(a->g, mask, a->rank, dims);
  return hlo_add(a->g, scores, query_side(a, mask, a->source));
}

/* Query l sees keys 0..l, counted from the top left corner also where L and S differ. */
static hlo_t mask_future(const attention_t *a, hlo_t scores) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  const int64_t square[2] = {a->length, a->source};
  const int64_t repeated[3] = {a->shared, a->length, a->source};
  int rank = hlo_shape(a->g, scores, dims);
  hlo_t row = hlo_iota(a->g, TORUS_DTYPE_I32, 2, square, 0);
  hlo_t column = hlo_iota(a->g, TORUS_DTYPE_I32, 2, square, 1);
  hlo_t seen = hlo_expand(a->g, hlo_compare(a->g, HLO_GE, row, column), 3, repeated);
  seen = hlo_expand(a->g, spatial_join(a->g, seen, 0), rank, dims);
  return hlo_select(a->g, seen, scores, hlo_lowest(a->g, a->wide));
}

static hlo_t scores_of(const attention_t *a) {
  hlo_t x = multiply(a, query_argument(a, a->query), 3, key_argument(a, a->key), 3);
  x = hlo_multiply(a->g, x, hlo_soft(a->g, a->wide, a->scale));
  if (op_has(a->call, a->mask)) x = add_mask(a, x);
  return a->causal ? mask_future(a, x) : x;
}

/* Where a whole row is -inf there is no maximum to subtract. */
static hlo_t finite_or_zero(const attention_t *a, hlo_t x) {
  hlo_t none = hlo_compare(a->g, HLO_EQ, x, hlo_lowest(a->g, a->wide));
  return hlo_select(a->g, none, hlo_const(a->g, a->wide, 0), x);
}

static hlo_t exp_below(const attention_t *a, hlo_t scores, hlo_t top) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(a->g, scores, dims);
  return hlo_exp(a->g, hlo_subtract(a->g, scores, hlo_expand(a->g, top, rank, dims)));
}

static hlo_t row_sum(const attention_t *a, hlo_t x) {
  return hlo_reduce(a->g, HLO_REDUCE_ADD, x, 1, (const int[]){3}, true);
}

static hlo_t narrow(const attention_t *a, hlo_t x) { return hlo_convert(a->g, x, a->dtype); }

/* ---- forward ---- */

static bool is_empty(const attention_t *a) {
  return op_tensor_numel(a->call, a->query) == 0 || op_tensor_numel(a->call, a->key) == 0 ||
         op_tensor_numel(a->call, a->value) == 0;
}

static void return_empty(const attention_t *a) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  for (int i = 0; i < a->rank; i++) dims[i] = op_tensor_dim(a->call, a->query, i);
  dims[a->rank - 1] = width_of(a, a->value);
  op_return(a->call, 0, hlo_zeros(a->g, a->dtype, a->rank, dims));
  op_return(a->call, 1, hlo_zeros(a->g, a->wide, a->rank - 1, dims));
}

TORUS_OP(attention, "_scaled_dot_product_flash_attention_for_cpu", TORUS_OP_HEADS_INSIDE) {
  attention_t a = read_attention(call, g, 0, 4, 5);
  if (!attention_fits(&a, 3)) return;
  if (is_empty(&a)) {
    return_empty(&a);
    return;
  }
  hlo_t scores = scores_of(&a);
  hlo_t top = hlo_reduce(g, HLO_REDUCE_MAXIMUM, scores, 1, (const int[]){3}, true);
  top = finite_or_zero(&a, top);
  hlo_t weights = exp_below(&a, scores, top), sum = row_sum(&a, weights);
  hlo_t none = hlo_compare_f(g, HLO_EQ, sum, 0);
  sum = hlo_select(g, none, hlo_const(g, a.wide, 1), sum);
  hlo_t y = multiply(&a, narrow(&a, weights), 3, key_argument(&a, a.value), 2);
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, y, dims);
  y = hlo_divide(g, y, hlo_expand(g, sum, rank, dims));
  hlo_t lse = hlo_add(g, top, hlo_log(g, sum));
  op_return(call, 0, narrow(&a, as_argument(&a, y, a.query, width_of(&a, a.value))));
  op_return(call, 1, as_argument(&a, lse, a.query, 0));
}

/* ---- backward: grad_out 0, query 1, key 2, value 3, out 4, logsumexp 5 ---- */

static void return_empty_gradients(const attention_t *a) {
  for (int k = 0; k < 3; k++)
    op_return(a->call, k, spatial_zeros_like(a->g, op_tensor(a->call, k + 1), a->dtype));
}

TORUS_OP(attention_backward, "_scaled_dot_product_flash_attention_for_cpu_backward",
         TORUS_OP_HEADS_INSIDE) {
  attention_t a = read_attention(call, g, 1, 7, 8);
  if (!attention_fits(&a, 6)) return;
  if (is_empty(&a)) {
    return_empty_gradients(&a);
    return;
  }
  hlo_t gy = query_argument(&a, 0), q = query_argument(&a, 1), k = key_argument(&a, 2);
  hlo_t lse = query_side(&a, op_tensor_as(call, 5, a.wide), 1);
  hlo_t p = exp_below(&a, scores_of(&a), lse);
  hlo_t gp = multiply(&a, gy, 3, key_argument(&a, 3), 3);
  hlo_t out = hlo_convert(g, query_argument(&a, 4), a.wide);
  hlo_t along = row_sum(&a, hlo_multiply(g, hlo_convert(g, gy, a.wide), out));
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, gp, dims);
  hlo_t gs = hlo_multiply(g, p, hlo_subtract(g, gp, hlo_expand(g, along, rank, dims)));
  gs = narrow(&a, hlo_multiply(g, gs, hlo_soft(g, a.wide, a.scale)));
  hlo_t gv = multiply(&a, narrow(&a, p), 2, gy, 2);
  op_return(call, 0, narrow(&a, as_argument(&a, multiply(&a, gs, 3, k, 2), 1, width_of(&a, 1))));
  op_return(call, 1, narrow(&a, as_argument(&a, multiply(&a, gs, 2, q, 2), 2, width_of(&a, 2))));
  op_return(call, 2, narrow(&a, as_argument(&a, gv, 3, width_of(&a, 3))));
}
