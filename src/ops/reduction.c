/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Reductions to sums, products, extremes and truth values. */
#include <math.h>

#include "ops/axes.h"

/* ---- sums and products ---- */

/* The type a sum has: the dtype argument, else int64 for integers and bool, else its own. */
static torus_dtype_t sum_type(torus_call_t *call, int arg) {
  torus_dtype_t own = op_tensor_dtype(call, 0);
  return op_dtype_or(call, arg, torus_dtype_is_integral(own) ? TORUS_DTYPE_I64 : own);
}

/* Operand 0 rounded to |dtype|, as PyTorch does first, in the type to accumulate in. */
static hlo_t sum_operand(torus_call_t *call, hlo_graph_t *g, torus_dtype_t dtype) {
  return op_widen(g, op_tensor_as(call, 0, dtype));
}

static void return_reduced(torus_call_t *call, hlo_graph_t *g, hlo_reduction_t how, hlo_t x,
                           const torus_axes_t *axes, torus_dtype_t dtype) {
  op_return(call, 0, hlo_convert(g, axes_reduce_finish(g, how, x, axes), dtype));
}

static void emit_total(torus_call_t *call, hlo_graph_t *g, hlo_reduction_t how, torus_axes_t axes,
                        int dtype_arg) {
  torus_dtype_t dtype = sum_type(call, dtype_arg);
  return_reduced(call, g, how, sum_operand(call, g, dtype), &axes, dtype);
}

TORUS_OP(sum, "sum", 0) {
  emit_total(call, g, HLO_REDUCE_ADD, axes_all(op_tensor_rank(call, 0), false), 1);
}

TORUS_OP(sum_dim, "sum.dim_IntList", 0) {
  torus_axes_t axes = axes_list(call, 1, op_tensor_rank(call, 0), op_bool(call, 2));
  emit_total(call, g, HLO_REDUCE_ADD, axes, 3);
}

TORUS_OP(prod, "prod", 0) {
  emit_total(call, g, HLO_REDUCE_MULTIPLY, axes_all(op_tensor_rank(call, 0), false), 1);
}

TORUS_OP(prod_dim, "prod.dim_int", 0) {
  torus_axes_t axes = axes_one(call, 1, op_tensor_rank(call, 0), op_bool(call, 2));
  emit_total(call, g, HLO_REDUCE_MULTIPLY, axes, 3);
}

TORUS_OP(nansum, "nansum", 0) {
  torus_axes_t axes = axes_list(call, 1, op_tensor_rank(call, 0), op_bool(call, 2));
  torus_dtype_t dtype = sum_type(call, 3);
  if (torus_dtype_is_complex(op_tensor_dtype(call, 0))) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "nansum does not support complex inputs");
    return;
  }
  hlo_t x = sum_operand(call, g, dtype);
  x = hlo_select(g, hlo_is_nan(g, x), hlo_const(g, hlo_dtype(g, x), 0), x);
  return_reduced(call, g, HLO_REDUCE_ADD, x, &axes, dtype);
}

static void emit_mean(torus_call_t *call, hlo_graph_t *g, torus_axes_t axes, int dtype_arg) {
  torus_dtype_t dtype = op_dtype_or(call, dtype_arg, op_tensor_dtype(call, 0));
  if (torus_dtype_is_integral(dtype)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "mean(): could not infer output dtype. Input dtype must be either a floating point "
             "or complex dtype. Got: %s", torus_dtype_name(dtype));
    return;
  }
  hlo_t x = sum_operand(call, g, dtype);
  op_return(call, 0, hlo_convert(g, axes_finish(g, axes_mean(g, x, &axes), &axes), dtype));
}

TORUS_OP(mean, "mean", 0) {
  emit_mean(call, g, axes_all(op_tensor_rank(call, 0), false), 1);
}

TORUS_OP(mean_dim, "mean.dim", 0) {
  emit_mean(call, g, axes_list(call, 1, op_tensor_rank(call, 0), op_bool(call, 2)), 3);
}

TORUS_OP(count_nonzero, "count_nonzero.dim_IntList", 0) {
  torus_axes_t axes = axes_list(call, 1, op_tensor_rank(call, 0), false);
  hlo_t ones = hlo_convert(g, op_tensor_as(call, 0, TORUS_DTYPE_BOOL), TORUS_DTYPE_I64);
  op_return(call, 0, axes_reduce_finish(g, HLO_REDUCE_ADD, ones, &axes));
}

/* The exclusive or of all elements, each taken as 64 bits of an integer or a double. */
TORUS_OP(hash_tensor, "hash_tensor", 0) {
  torus_dtype_t own = op_tensor_dtype(call, 0);
  torus_axes_t axes = axes_list(call, 1, op_tensor_rank(call, 0), op_bool(call, 2));
  if (torus_dtype_is_complex(own)) {
    op_fallback(call, "complex numbers");
    return;
  }
  hlo_t x = op_tensor_as(call, 0, torus_dtype_is_float(own) ? TORUS_DTYPE_F64 : TORUS_DTYPE_I64);
  if (op_failed(call) || !axes_check_nonempty(call, g, x, &axes)) return;
  hlo_t bits = hlo_bitcast(g, x, TORUS_DTYPE_U64);
  op_return(call, 0, axes_reduce_finish(g, HLO_REDUCE_XOR, bits, &axes));
}

/* ---- extremes ---- */

/* Real operand 0 as an ordered type; |axes| must not be empty of elements. */
static hlo_t extreme_operand(torus_call_t *call, hlo_graph_t *g, const torus_axes_t *axes) {
  if (torus_dtype_is_complex(op_tensor_dtype(call, 0))) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "complex numbers have no order");
    return HLO_NONE;
  }
  hlo_t x = op_tensor(call, 0);
  return axes_check_nonempty(call, g, x, axes) ? x : HLO_NONE;
}

static void emit_extreme(torus_call_t *call, hlo_graph_t *g, hlo_reduction_t how,
                          torus_axes_t axes) {
  hlo_t x = extreme_operand(call, g, &axes);
  if (x != HLO_NONE) op_return(call, 0, axes_reduce_finish(g, how, x, &axes));
}

#define EXTREME_OPS(some, every, how)                                                              \
  TORUS_OP(some, #some, 0) {                                                                       \
    emit_extreme(call, g, HLO_REDUCE_##how,                                                        \
                 axes_list(call, 1, op_tensor_rank(call, 0), op_bool(call, 2)));                   \
  }                                                                                                \
  TORUS_OP(every, #every, 0) {                                                                     \
    emit_extreme(call, g, HLO_REDUCE_##how, axes_all(op_tensor_rank(call, 0), false));             \
  }
EXTREME_OPS(amax, max, MAXIMUM)
EXTREME_OPS(amin, min, MINIMUM)
#undef EXTREME_OPS

TORUS_OP(aminmax, "aminmax", 0) {
  torus_axes_t axes = axes_optional(call, 1, op_tensor_rank(call, 0), op_bool(call, 2));
  hlo_t x = extreme_operand(call, g, &axes);
  if (x == HLO_NONE) return;
  op_return(call, 0, axes_reduce_finish(g, HLO_REDUCE_MINIMUM, x, &axes));
  op_return(call, 1, axes_reduce_finish(g, HLO_REDUCE_MAXIMUM, x, &axes));
}

/* ---- truth ---- */

static void emit_truth(torus_call_t *call, hlo_graph_t *g, hlo_reduction_t how,
                        torus_axes_t axes) {
  torus_dtype_t own = op_tensor_dtype(call, 0);
  hlo_t x = op_tensor_as(call, 0, TORUS_DTYPE_BOOL);
  /* uint8 was the boolean type of old; any and all still return it. */
  torus_dtype_t dtype = own == TORUS_DTYPE_U8 ? TORUS_DTYPE_U8 : TORUS_DTYPE_BOOL;
  return_reduced(call, g, how, x, &axes, dtype);
}

/* Here, unlike in other reductions, an empty list of dimensions reduces none. */
static torus_axes_t truth_dims(torus_call_t *call) {
  int count = 0;
  op_ints(call, 1, &count);
  int rank = op_tensor_rank(call, 0);
  if (op_has(call, 1) && count == 0) return axes_range(rank, 0, 0);
  return axes_list(call, 1, rank, op_bool(call, 2));
}

#define TRUTH_OPS(ident, how)                                                                      \
  TORUS_OP(ident, #ident, 0) {                                                                     \
    emit_truth(call, g, HLO_REDUCE_##how, axes_all(op_tensor_rank(call, 0), false));              \
  }                                                                                                \
  TORUS_OP(ident##_dim, #ident ".dim", 0) {                                                        \
    emit_truth(call, g, HLO_REDUCE_##how,                                                         \
                axes_one(call, 1, op_tensor_rank(call, 0), op_bool(call, 2)));                     \
  }                                                                                                \
  TORUS_OP(ident##_dims, #ident ".dims", 0) {                                                      \
    emit_truth(call, g, HLO_REDUCE_##how, truth_dims(call));                                      \
  }
TRUTH_OPS(any, OR)
TRUTH_OPS(all, AND)
#undef TRUTH_OPS

/* ---- variance ---- */

/* Variance and mean of operand 0, both finished and in the types of the results. */
static void variance_and_mean(torus_call_t *call, hlo_graph_t *g, hlo_t *out_variance,
                              hlo_t *out_mean) {
  *out_variance = *out_mean = HLO_NONE;
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  if (torus_dtype_is_integral(dtype)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "std and var only support floating point and complex dtypes");
    return;
  }
  torus_axes_t axes = axes_list(call, 1, op_tensor_rank(call, 0), op_bool(call, 3));
  hlo_t x = op_tensor_wide(call, 0);
  if (op_failed(call) || x == HLO_NONE) return;
  hlo_t mean = axes_mean(g, x, &axes);
  hlo_t centred = hlo_subtract(g, x, op_like(g, mean, x));
  hlo_t real = hlo_real(g, centred);
  hlo_t squares = hlo_multiply(g, real, real);
  if (torus_dtype_is_complex(dtype)) {
    hlo_t imag = hlo_imag(g, centred);
    squares = hlo_add(g, squares, hlo_multiply(g, imag, imag));
  }
  hlo_t sum = axes_reduce_finish(g, HLO_REDUCE_ADD, squares, &axes);
  double freedom = (double)axes_numel(g, x, &axes) - op_double_or(call, 2, 1);
  hlo_t variance = hlo_divide(g, sum, hlo_soft(g, hlo_dtype(g, sum), fmax(freedom, 0)));
  *out_variance = variance;
  *out_mean = hlo_convert(g, axes_finish(g, mean, &axes), dtype);
}

static void emit_variance(torus_call_t *call, hlo_graph_t *g, bool root, bool with_mean) {
  hlo_t variance, mean;
  variance_and_mean(call, g, &variance, &mean);
  if (variance == HLO_NONE) return;
  if (root) variance = hlo_sqrt(g, variance);
  op_return(call, 0, hlo_convert(g, variance, torus_dtype_real(op_tensor_dtype(call, 0))));
  if (with_mean) op_return(call, 1, mean);
}

TORUS_OP(var, "var.correction", 0) { emit_variance(call, g, false, false); }
TORUS_OP(std, "std.correction", 0) { emit_variance(call, g, true, false); }
TORUS_OP(var_mean, "var_mean.correction", 0) { emit_variance(call, g, false, true); }
TORUS_OP(std_mean, "std_mean.correction", 0) { emit_variance(call, g, true, true); }

/* ---- norms ---- */

/* Arguments: self, p at 1, dims at 2, keepdim at 3, dtype at 4 where the schema has one. */
static void emit_norm(torus_call_t *call, hlo_graph_t *g, torus_dtype_t dtype) {
  if (torus_dtype_is_integral(dtype)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "vector_norm: expected a floating point or complex tensor as input. Got %s",
             torus_dtype_name(dtype));
    return;
  }
  torus_axes_t axes = axes_list(call, 2, op_tensor_rank(call, 0), op_bool(call, 3));
  double p = op_double_or(call, 1, 2);
  hlo_t x = sum_operand(call, g, dtype);
  if (torus_dtype_is_complex(dtype)) x = hlo_abs(g, x);
  if (x == HLO_NONE) return;
  if ((p < 0 || isinf(p)) && axes_numel(g, x, &axes) == 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "this norm has no identity to reduce nothing to");
    return;
  }
  op_return(call, 0, hlo_convert(g, axes_norm(g, x, p, &axes), torus_dtype_real(dtype)));
}

TORUS_OP(linalg_vector_norm, "linalg_vector_norm", 0) {
  emit_norm(call, g, op_dtype_or(call, 4, op_tensor_dtype(call, 0)));
}

TORUS_OP(norm_dim, "norm.ScalarOpt_dim", 0) { emit_norm(call, g, op_tensor_dtype(call, 0)); }

TORUS_OP(norm_dim_dtype, "norm.ScalarOpt_dim_dtype", 0) {
  emit_norm(call, g, op_dtype_or(call, 4, op_tensor_dtype(call, 0)));
}

/* ---- logsumexp ---- */

/* log(sum(exp(x))) shifted by the largest real part, so that nothing overflows; a shift that is
 * infinite would turn inf into nan. */
static hlo_t log_sum_exp(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes) {
  hlo_t largest = axes_reduce(g, HLO_REDUCE_MAXIMUM, hlo_real(g, x), axes);
  hlo_t zero = hlo_const(g, hlo_dtype(g, largest), 0);
  hlo_t is_infinite = hlo_compare_f(g, HLO_EQ, hlo_abs(g, largest), INFINITY);
  hlo_t shift = hlo_convert(g, hlo_select(g, is_infinite, zero, largest), hlo_dtype(g, x));
  hlo_t powers = hlo_exp(g, hlo_subtract(g, x, op_like(g, shift, x)));
  return hlo_add(g, hlo_log(g, axes_reduce(g, HLO_REDUCE_ADD, powers, axes)), shift);
}

TORUS_OP(logsumexp, "logsumexp", 0) {
  torus_axes_t axes = axes_list(call, 1, op_tensor_rank(call, 0), op_bool(call, 2));
  torus_dtype_t dtype = op_float_type(call, op_tensor_dtype(call, 0));
  hlo_t x = sum_operand(call, g, dtype);
  if (op_failed(call)) return;
  op_return(call, 0, hlo_convert(g, axes_finish(g, log_sum_exp(g, x, &axes), &axes), dtype));
}
