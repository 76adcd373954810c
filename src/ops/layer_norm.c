/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Norms over the elements of one sample: layer, root-mean-square and group norm. */
#include <float.h>

#include "ops/axes.h"

/* ---- shared steps ---- */

static hlo_t scaled(hlo_graph_t *g, hlo_t x, hlo_t factor) {
  return factor == HLO_NONE ? x : hlo_multiply(g, x, op_like(g, factor, x));
}

static hlo_t centred(hlo_graph_t *g, hlo_t x, hlo_t mean) {
  return mean == HLO_NONE ? x : hlo_subtract(g, x, op_like(g, mean, x));
}

static hlo_t affine(hlo_graph_t *g, hlo_t x, hlo_t weight, hlo_t bias) {
  x = scaled(g, x, weight);
  return bias == HLO_NONE ? x : hlo_add(g, x, op_like(g, bias, x));
}

static hlo_t inverse_root(hlo_graph_t *g, hlo_t square, double epsilon) {
  return hlo_rsqrt(g, hlo_add_f(g, square, epsilon));
}

/* Gradient through xhat = (x - mean) * rstd, where |grad| is the one of xhat:
 * rstd * (grad - mean(grad) - xhat * mean(grad * xhat)). A norm that does not centre (rms) has no
 * second term. */
static hlo_t normalized_gradient(hlo_graph_t *g, hlo_t grad, hlo_t xhat, hlo_t rstd, bool centres,
                                 const torus_axes_t *axes) {
  hlo_t slope = axes_mean(g, hlo_multiply(g, grad, xhat), axes);
  hlo_t mean = centres ? axes_mean(g, grad, axes) : HLO_NONE;
  hlo_t inner = hlo_subtract(g, centred(g, grad, mean), scaled(g, xhat, slope));
  return scaled(g, inner, rstd);
}

/* The type of the saved statistics: the input's, or the weight's where that is wider. */
static torus_dtype_t statistic_type(torus_call_t *call, int input, int weight) {
  torus_dtype_t dtype = op_tensor_dtype(call, input);
  return op_has(call, weight) ? torus_dtype_promote(dtype, op_tensor_dtype(call, weight)) : dtype;
}

static void return_masked(torus_call_t *call, int mask_arg, int k, hlo_t x) {
  if (op_ints_at(call, mask_arg, k)) op_return(call, k, x);
  else op_return_none(call, k);
}

/* ---- layer norm ---- */

/* The trailing dimensions that |shape_arg| names; the input at |input_arg| must end with them. */
static torus_axes_t trailing_axes(torus_call_t *call, int input_arg, int shape_arg) {
  int count = 0, rank = op_tensor_rank(call, input_arg);
  const int64_t *shape = op_ints(call, shape_arg, &count);
  bool fits = count > 0 && count <= rank;
  for (int i = 0; fits && i < count; ++i) {
    fits = op_tensor_dim(call, input_arg, rank - count + i) == shape[i];
  }
  if (!fits) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "the input does not end with the normalized_shape");
    return axes_range(rank, 0, 0);
  }
  return axes_range(rank, rank - count, count);
}

/* An optional weight or bias must have exactly the normalised shape. */
static void check_trailing(torus_call_t *call, int arg, int input_arg, const torus_axes_t *axes) {
  if (op_failed(call) || !op_has(call, arg)) return;
  bool fits = op_tensor_rank(call, arg) == axes->count;
  for (int i = 0; fits && i < axes->count; ++i) {
    fits = op_tensor_dim(call, arg, i) == op_tensor_dim(call, input_arg, axes->dims[i]);
  }
  if (!fits) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "weight and bias must have the normalized_shape");
  }
}

/* Sum over all leading dimensions, which disappear: the gradient of a weight or bias. */
static hlo_t leading_sum(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes) {
  torus_axes_t outer = axes_range(axes->rank, 0, axes->rank - axes->count);
  return hlo_reduce(g, HLO_REDUCE_ADD, x, outer.count, outer.dims, false);
}

/* (input, normalized_shape, weight, bias, eps) -> (output, mean, rstd) */
TORUS_OP(native_layer_norm, "native_layer_norm", 0) {
  torus_axes_t axes = trailing_axes(call, 0, 1);
  check_trailing(call, 2, 0, &axes);
  check_trailing(call, 3, 0, &axes);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 0), wide = op_accumulate_type(dtype);
  hlo_t x = op_tensor_as(call, 0, wide);
  hlo_t mean = axes_mean(g, x, &axes);
  hlo_t apart = centred(g, x, mean);
  hlo_t variance = axes_mean(g, hlo_multiply(g, apart, apart), &axes);
  hlo_t rstd = inverse_root(g, variance, op_double(call, 4));
  hlo_t y = affine(g, scaled(g, apart, rstd), op_tensor_as(call, 2, wide),
                   op_tensor_as(call, 3, wide));
  torus_dtype_t saved = statistic_type(call, 0, 2);
  op_return(call, 0, hlo_convert(g, y, dtype));
  op_return(call, 1, hlo_convert(g, mean, saved));
  op_return(call, 2, hlo_convert(g, rstd, saved));
}

/* (grad_out, input, normalized_shape, mean, rstd, weight, bias, mask) */
TORUS_OP(native_layer_norm_backward, "native_layer_norm_backward", 0) {
  torus_axes_t axes = trailing_axes(call, 1, 2);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 1), wide = op_accumulate_type(dtype);
  hlo_t grad = op_tensor_as(call, 0, wide), x = op_tensor_as(call, 1, wide);
  hlo_t mean = op_tensor_as(call, 3, wide), rstd = op_tensor_as(call, 4, wide);
  hlo_t xhat = scaled(g, centred(g, x, mean), rstd);
  hlo_t inner = scaled(g, grad, op_tensor_as(call, 5, wide));
  hlo_t input = normalized_gradient(g, inner, xhat, rstd, true, &axes);
  hlo_t weight = leading_sum(g, hlo_multiply(g, grad, xhat), &axes);
  hlo_t bias = leading_sum(g, grad, &axes);
  torus_dtype_t weight_dtype = op_has(call, 5) ? op_tensor_dtype(call, 5) : dtype;
  torus_dtype_t bias_dtype = op_has(call, 6) ? op_tensor_dtype(call, 6) : dtype;
  return_masked(call, 7, 0, hlo_convert(g, input, dtype));
  return_masked(call, 7, 1, hlo_convert(g, weight, weight_dtype));
  return_masked(call, 7, 2, hlo_convert(g, bias, bias_dtype));
}

/* ---- root-mean-square norm ---- */

static double rms_epsilon(torus_call_t *call, torus_dtype_t wide) {
  return op_double_or(call, 3, wide == TORUS_DTYPE_F64 ? DBL_EPSILON : (double)FLT_EPSILON);
}

/* (input, normalized_shape, weight, eps) -> (output, rstd) */
TORUS_OP(_fused_rms_norm, "_fused_rms_norm", 0) {
  torus_axes_t axes = trailing_axes(call, 0, 1);
  check_trailing(call, 2, 0, &axes);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 0), wide = op_accumulate_type(dtype);
  hlo_t x = op_tensor_as(call, 0, wide);
  hlo_t square = axes_mean(g, hlo_multiply(g, x, x), &axes);
  hlo_t rstd = inverse_root(g, square, rms_epsilon(call, wide));
  hlo_t y = scaled(g, scaled(g, x, rstd), op_tensor_as(call, 2, wide));
  op_return(call, 0, hlo_convert(g, y, dtype));
  op_return(call, 1, rstd);
}

/* (grad_out, input, normalized_shape, rstd, weight, mask) */
TORUS_OP(_fused_rms_norm_backward, "_fused_rms_norm_backward", 0) {
  torus_axes_t axes = trailing_axes(call, 1, 2);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 1), wide = op_accumulate_type(dtype);
  hlo_t grad = op_tensor_as(call, 0, wide), x = op_tensor_as(call, 1, wide);
  hlo_t rstd = op_tensor_as(call, 3, wide);
  hlo_t xhat = scaled(g, x, rstd);
  hlo_t inner = scaled(g, grad, op_tensor_as(call, 4, wide));
  hlo_t input = normalized_gradient(g, inner, xhat, rstd, false, &axes);
  hlo_t weight = leading_sum(g, hlo_multiply(g, grad, xhat), &axes);
  torus_dtype_t weight_dtype = op_has(call, 4) ? op_tensor_dtype(call, 4) : dtype;
  return_masked(call, 5, 0, hlo_convert(g, input, dtype));
  return_masked(call, 5, 1, hlo_convert(g, weight, weight_dtype));
}

/* ---- group norm ---- */

/* The input split into (samples, groups, channels of a group, elements). */
typedef struct group_norm {
  int64_t split[4];
  torus_axes_t axes; /* of one group */
} group_norm_t;

/* Sizes stand at |arg|: N, C, HxW, group. */
static group_norm_t group_sizes(torus_call_t *call, int arg) {
  int64_t channels = op_int(call, arg + 1), groups = op_int(call, arg + 3);
  if (groups <= 0 || channels % groups != 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "Expected number of channels in input to be divisible by num_groups");
    groups = 1;
  }
  group_norm_t norm = {
      .split = {op_int(call, arg), groups, channels / groups, op_int(call, arg + 2)},
      .axes = axes_range(4, 2, 2),
  };
  return norm;
}

static hlo_t split_input(torus_call_t *call, hlo_graph_t *g, const group_norm_t *norm, int arg,
                         torus_dtype_t wide) {
  return hlo_reshape(g, op_tensor_as(call, arg, wide), 4, norm->split);
}

/* A weight or bias (channels) as (1, groups, channels of a group, 1). */
static hlo_t split_channels(torus_call_t *call, hlo_graph_t *g, const group_norm_t *norm, int arg,
                            torus_dtype_t wide) {
  if (!op_has(call, arg)) return HLO_NONE;
  int64_t dims[4] = {1, norm->split[1], norm->split[2], 1};
  return hlo_reshape(g, op_tensor_as(call, arg, wide), 4, dims);
}

/* Statistics (samples, groups) with dimensions of size 1 for the rest. */
static hlo_t split_statistic(torus_call_t *call, hlo_graph_t *g, const group_norm_t *norm, int arg,
                             torus_dtype_t wide) {
  int64_t dims[4] = {norm->split[0], norm->split[1], 1, 1};
  return hlo_reshape(g, op_tensor_as(call, arg, wide), 4, dims);
}

static hlo_t merged(torus_call_t *call, hlo_graph_t *g, hlo_t x, int like_arg) {
  int64_t dims[TORUS_MAX_RANK];
  int rank = op_tensor_rank(call, like_arg);
  for (int i = 0; i < rank; ++i) dims[i] = op_tensor_dim(call, like_arg, i);
  return hlo_convert(g, hlo_reshape(g, x, rank, dims), op_tensor_dtype(call, like_arg));
}

/* (input, weight, bias, N, C, HxW, group, eps) -> (output, mean, rstd) */
TORUS_OP(native_group_norm, "native_group_norm", TORUS_OP_KEEP_FORMAT) {
  group_norm_t norm = group_sizes(call, 3);
  if (op_failed(call)) return;
  torus_dtype_t wide = op_accumulate_type(op_tensor_dtype(call, 0));
  hlo_t x = split_input(call, g, &norm, 0, wide);
  hlo_t mean = axes_mean(g, x, &norm.axes);
  hlo_t rstd = inverse_root(g, axes_variance(g, x, mean, &norm.axes), op_double(call, 7));
  hlo_t y = affine(g, scaled(g, centred(g, x, mean), rstd),
                   split_channels(call, g, &norm, 1, wide),
                   split_channels(call, g, &norm, 2, wide));
  torus_dtype_t saved = statistic_type(call, 0, 1);
  op_return(call, 0, merged(call, g, y, 0));
  op_return(call, 1, hlo_convert(g, hlo_reshape(g, mean, 2, norm.split), saved));
  op_return(call, 2, hlo_convert(g, hlo_reshape(g, rstd, 2, norm.split), saved));
}

/* Sum over samples and elements, as (channels). */
static hlo_t channel_total(hlo_graph_t *g, hlo_t x, const group_norm_t *norm, torus_dtype_t dtype) {
  hlo_t sum = hlo_reduce(g, HLO_REDUCE_ADD, x, 2, (const int[]){0, 3}, false);
  int64_t channels = norm->split[1] * norm->split[2];
  return hlo_convert(g, hlo_reshape(g, sum, 1, &channels), dtype);
}

/* (grad_out, input, mean, rstd, weight, N, C, HxW, group, mask) */
TORUS_OP(native_group_norm_backward, "native_group_norm_backward", TORUS_OP_KEEP_FORMAT) {
  group_norm_t norm = group_sizes(call, 5);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 1), wide = op_accumulate_type(dtype);
  hlo_t grad = split_input(call, g, &norm, 0, wide), x = split_input(call, g, &norm, 1, wide);
  hlo_t rstd = split_statistic(call, g, &norm, 3, wide);
  hlo_t xhat = scaled(g, centred(g, x, split_statistic(call, g, &norm, 2, wide)), rstd);
  hlo_t inner = scaled(g, grad, split_channels(call, g, &norm, 4, wide));
  hlo_t input = normalized_gradient(g, inner, xhat, rstd, true, &norm.axes);
  torus_dtype_t weight_dtype = op_has(call, 4) ? op_tensor_dtype(call, 4) : dtype;
  hlo_t weight = channel_total(g, hlo_multiply(g, grad, xhat), &norm, weight_dtype);
  return_masked(call, 9, 0, merged(call, g, input, 1));
  return_masked(call, 9, 1, weight);
  return_masked(call, 9, 2, channel_total(g, grad, &norm, weight_dtype));
}
