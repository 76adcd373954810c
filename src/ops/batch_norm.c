/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Batch norm, forward and backward, with its running statistics. */
#include "ops/batch_norm.h"

/* ---- shared steps ---- */

torus_axes_t channel_axes(torus_call_t *call, int input_arg) {
  int rank = op_tensor_rank(call, input_arg);
  if (rank < 2) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "batch_norm: expected an input of at least 2 dimensions, got %d", rank);
  }
  torus_axes_t axes = axes_except(rank, 1);
  axes.keep = false;
  return axes;
}

hlo_t channel_expand(hlo_graph_t *g, hlo_t x, hlo_t like) {
  if (x == HLO_NONE || like == HLO_NONE) return HLO_NONE;
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, like, dims);
  return hlo_broadcast_in_dim(g, x, rank, dims, (const int[]){1});
}

hlo_t channel_sum(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes) {
  return hlo_reduce(g, HLO_REDUCE_ADD, x, axes->count, axes->dims, false);
}

void channel_moments(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes, hlo_t *out_mean,
                     hlo_t *out_variance) {
  hlo_t count = op_count(g, hlo_dtype(g, x), axes_numel(g, x, axes));
  *out_mean = hlo_divide(g, channel_sum(g, x, axes), count);
  hlo_t centred = hlo_subtract(g, x, channel_expand(g, *out_mean, x));
  *out_variance = hlo_divide(g, channel_sum(g, hlo_multiply(g, centred, centred), axes), count);
}

hlo_t channel_invstd(hlo_graph_t *g, hlo_t variance, double epsilon) {
  return hlo_rsqrt(g, hlo_add_f(g, variance, epsilon));
}

hlo_t channel_normalize(hlo_graph_t *g, hlo_t x, hlo_t mean, hlo_t invstd, hlo_t weight,
                        hlo_t bias) {
  hlo_t scale = weight == HLO_NONE ? invstd : hlo_multiply(g, invstd, weight);
  hlo_t centred = hlo_subtract(g, x, channel_expand(g, mean, x));
  hlo_t y = hlo_multiply(g, centred, channel_expand(g, scale, x));
  return bias == HLO_NONE ? y : hlo_add(g, y, channel_expand(g, bias, x));
}

void channel_update(torus_call_t *call, hlo_graph_t *g, int arg, hlo_t value, double momentum) {
  if (value == HLO_NONE || !op_has(call, arg)) return;
  torus_dtype_t dtype = hlo_dtype(g, value);
  hlo_t kept = hlo_multiply(g, op_tensor_as(call, arg, dtype), hlo_soft(g, dtype, 1 - momentum));
  hlo_t added = hlo_multiply(g, value, hlo_soft(g, dtype, momentum));
  op_write(call, arg, hlo_add(g, kept, added));
}

hlo_t channel_unbiased(hlo_graph_t *g, hlo_t variance, int64_t count) {
  double ratio = (double)count / (double)(count - 1);
  return hlo_multiply(g, variance, hlo_soft(g, hlo_dtype(g, variance), ratio));
}

/* ---- forward ---- */

/* Where the operators of this family keep their arguments; -1: not in the schema. */
typedef struct batch_norm {
  int running_mean, running_var;
  bool training;
  double momentum, epsilon;
} batch_norm_t;

static void batch_statistics(torus_call_t *call, hlo_graph_t *g, const batch_norm_t *norm, hlo_t x,
                             hlo_t *out_mean, hlo_t *out_invstd) {
  torus_axes_t axes = channel_axes(call, 0);
  hlo_t variance;
  channel_moments(g, x, &axes, out_mean, &variance);
  *out_invstd = channel_invstd(g, variance, norm->epsilon);
  if (norm->running_mean < 0) return;
  int64_t count = axes_numel(g, x, &axes);
  channel_update(call, g, norm->running_mean, *out_mean, norm->momentum);
  channel_update(call, g, norm->running_var, channel_unbiased(g, variance, count), norm->momentum);
}

static void running_statistics(torus_call_t *call, hlo_graph_t *g, const batch_norm_t *norm,
                               torus_dtype_t dtype, hlo_t *out_mean, hlo_t *out_invstd) {
  *out_mean = *out_invstd = HLO_NONE;
  if (norm->running_mean < 0 || !op_has(call, norm->running_mean)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "batch_norm: running statistics are needed where batch statistics are not used");
    return;
  }
  *out_mean = op_tensor_as(call, norm->running_mean, dtype);
  *out_invstd = channel_invstd(g, op_tensor_as(call, norm->running_var, dtype), norm->epsilon);
}

/* True when the optional per-channel argument |arg| fits the input. */
static bool fits_channels(torus_call_t *call, int arg) {
  if (arg < 0 || !op_has(call, arg)) return true;
  int64_t channels = op_tensor_dim(call, 0, 1);
  if (op_tensor_numel(call, arg) == channels && op_tensor_rank(call, arg) == 1) return true;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
           "batch_norm: argument %d has %lld elements, the input has %lld channels", arg,
           (long long)op_tensor_numel(call, arg), (long long)channels);
  return false;
}

static bool check_arguments(torus_call_t *call, const batch_norm_t *norm) {
  channel_axes(call, 0);
  return !op_failed(call) && fits_channels(call, 1) && fits_channels(call, 2) &&
         fits_channels(call, norm->running_mean) && fits_channels(call, norm->running_var);
}

/* The type of the saved statistics: the input's, or that of the parameters where it is wider. */
static torus_dtype_t statistic_type(torus_call_t *call, int running_mean) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  const int parameters[2] = {1, running_mean};
  for (int i = 0; i < 2; ++i) {
    if (parameters[i] < 0 || !op_has(call, parameters[i])) continue;
    dtype = torus_dtype_promote(dtype, op_tensor_dtype(call, parameters[i]));
  }
  return dtype;
}

/* (input, weight, bias, ...) -> (output, save_mean, save_invstd) */
static void emit_batch_norm(torus_call_t *call, hlo_graph_t *g, const batch_norm_t *norm) {
  if (!check_arguments(call, norm)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 0), wide = op_accumulate_type(dtype);
  hlo_t x = op_tensor_as(call, 0, wide), mean, invstd;
  if (norm->training) {
    batch_statistics(call, g, norm, x, &mean, &invstd);
  } else {
    running_statistics(call, g, norm, wide, &mean, &invstd);
  }
  if (op_failed(call)) return;
  hlo_t weight = op_tensor_as(call, 1, wide), bias = op_tensor_as(call, 2, wide);
  hlo_t y = channel_normalize(g, x, mean, invstd, weight, bias);
  torus_dtype_t saved = statistic_type(call, norm->running_mean);
  op_return(call, 0, hlo_convert(g, y, dtype));
  op_return(call, 1, norm->training ? hlo_convert(g, mean, saved) : op_nothing(g, saved));
  op_return(call, 2, norm->training ? hlo_convert(g, invstd, saved) : op_nothing(g, saved));
}

TORUS_OP(native_batch_norm, "native_batch_norm", TORUS_OP_KEEP_FORMAT) {
  batch_norm_t norm = {3, 4, op_bool(call, 5), op_double(call, 6), op_double(call, 7)};
  emit_batch_norm(call, g, &norm);
}

TORUS_OP(_native_batch_norm_legit, "_native_batch_norm_legit", TORUS_OP_KEEP_FORMAT) {
  batch_norm_t norm = {3, 4, op_bool(call, 5), op_double(call, 6), op_double(call, 7)};
  emit_batch_norm(call, g, &norm);
}

TORUS_OP(_native_batch_norm_legit_no_stats, "_native_batch_norm_legit.no_stats",
         TORUS_OP_KEEP_FORMAT) {
  batch_norm_t norm = {-1, -1, op_bool(call, 3), op_double(call, 4), op_double(call, 5)};
  emit_batch_norm(call, g, &norm);
}

TORUS_OP(_batch_norm_with_update, "_batch_norm_with_update", TORUS_OP_KEEP_FORMAT) {
  batch_norm_t norm = {3, 4, true, op_double(call, 5), op_double(call, 6)};
  emit_batch_norm(call, g, &norm);
  op_return(call, 3, op_nothing(g, TORUS_DTYPE_U8));
}

/* (input, running_mean, running_var, momentum) -> (mean, biased variance) of the batch */
TORUS_OP(batch_norm_update_stats, "batch_norm_update_stats", 0) {
  torus_axes_t axes = channel_axes(call, 0);
  if (op_failed(call)) return;
  hlo_t x = op_tensor_wide(call, 0), mean, variance;
  channel_moments(g, x, &axes, &mean, &variance);
  int64_t count = axes_numel(g, x, &axes);
  channel_update(call, g, 1, mean, op_double(call, 3));
  channel_update(call, g, 2, channel_unbiased(g, variance, count), op_double(call, 3));
  torus_dtype_t saved = statistic_type(call, -1);
  op_return(call, 0, hlo_convert(g, mean, saved));
  op_return(call, 1, hlo_convert(g, variance, saved));
}

/* ---- backward ---- */

/* The statistics that the forward pass normalised with. */
static void used_statistics(torus_call_t *call, hlo_graph_t *g, torus_dtype_t dtype, bool train,
                            double epsilon, hlo_t *out_mean, hlo_t *out_invstd) {
  if (train) {
    *out_mean = op_tensor_as(call, 5, dtype);
    *out_invstd = op_tensor_as(call, 6, dtype);
    return;
  }
  batch_norm_t norm = {.running_mean = 3, .running_var = 4, .epsilon = epsilon};
  running_statistics(call, g, &norm, dtype, out_mean, out_invstd);
}

/* With batch statistics: (grad - mean(grad) - xhat * mean(grad * xhat)) * invstd * weight. */
static hlo_t input_gradient(hlo_graph_t *g, hlo_t grad, hlo_t xhat, hlo_t sum, hlo_t product_sum,
                            hlo_t scale, hlo_t count, bool train) {
  if (train) {
    hlo_t mean = channel_expand(g, hlo_divide(g, sum, count), grad);
    hlo_t slope = channel_expand(g, hlo_divide(g, product_sum, count), grad);
    grad = hlo_subtract(g, hlo_subtract(g, grad, mean), hlo_multiply(g, xhat, slope));
  }
  return hlo_multiply(g, grad, channel_expand(g, scale, grad));
}

/* (grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, mask) */
static void emit_batch_norm_backward(torus_call_t *call, hlo_graph_t *g) {
  torus_axes_t axes = channel_axes(call, 1);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 1), wide = op_accumulate_type(dtype);
  bool train = op_bool(call, 7);
  hlo_t grad = op_tensor_as(call, 0, wide), x = op_tensor_as(call, 1, wide);
  hlo_t weight = op_tensor_as(call, 2, wide), mean, invstd;
  used_statistics(call, g, wide, train, op_double(call, 8), &mean, &invstd);
  if (op_failed(call)) return;
  hlo_t xhat = channel_normalize(g, x, mean, invstd, HLO_NONE, HLO_NONE);
  hlo_t sum = channel_sum(g, grad, &axes);
  hlo_t product_sum = channel_sum(g, hlo_multiply(g, grad, xhat), &axes);
  hlo_t scale = weight == HLO_NONE ? invstd : hlo_multiply(g, invstd, weight);
  hlo_t count = op_count(g, wide, axes_numel(g, x, &axes));
  hlo_t input = input_gradient(g, grad, xhat, sum, product_sum, scale, count, train);
  torus_dtype_t weight_dtype = op_has(call, 2) ? op_tensor_dtype(call, 2) : dtype;
  const hlo_t results[3] = {hlo_convert(g, input, dtype),
                            hlo_convert(g, product_sum, weight_dtype),
                            hlo_convert(g, sum, weight_dtype)};
  for (int k = 0; k < 3; ++k) {
    if (op_ints_at(call, 9, k)) op_return(call, k, results[k]);
    else op_return_none(call, k);
  }
}

TORUS_OP(native_batch_norm_backward, "native_batch_norm_backward", TORUS_OP_KEEP_FORMAT) {
  emit_batch_norm_backward(call, g);
}

TORUS_OP(batch_norm_backward, "batch_norm_backward", TORUS_OP_KEEP_FORMAT) {
  emit_batch_norm_backward(call, g);
}
