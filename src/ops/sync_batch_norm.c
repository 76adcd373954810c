/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The pieces from which torch.nn.SyncBatchNorm is put together: local statistics, their
 * combination over the processes, normalisation, and the same for the gradient. */
#include "ops/batch_norm.h"

/* (input, eps) -> (mean, invstd) of this process */
TORUS_OP(batch_norm_stats, "batch_norm_stats", 0) {
  torus_axes_t axes = channel_axes(call, 0);
  if (op_failed(call)) return;
  hlo_t mean, variance;
  channel_moments(g, op_tensor_wide(call, 0), &axes, &mean, &variance);
  op_return(call, 0, mean);
  op_return(call, 1, channel_invstd(g, variance, op_double(call, 1)));
}

/* (input, weight, bias, mean, invstd, eps) */
TORUS_OP(batch_norm_elemt, "batch_norm_elemt", TORUS_OP_KEEP_FORMAT) {
  channel_axes(call, 0);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 0), wide = op_accumulate_type(dtype);
  hlo_t y = channel_normalize(g, op_tensor_as(call, 0, wide), op_tensor_as(call, 3, wide),
                              op_tensor_as(call, 4, wide), op_tensor_as(call, 1, wide),
                              op_tensor_as(call, 2, wide));
  op_return(call, 0, hlo_convert(g, y, dtype));
}

/* Sum over processes, dimension 0. */
static hlo_t world_sum(hlo_graph_t *g, hlo_t x) {
  return hlo_reduce(g, HLO_REDUCE_ADD, x, 1, (const int[]){0}, false);
}

/* (input, mean, invstd, running_mean, running_var, momentum, eps) with mean and invstd of shape
 * (world, channels) and |counts| (world) -> the statistics over all processes. The squares around
 * the common mean are the local ones plus those of the local means (Chan et al. 1979). */
static void gather_statistics(torus_call_t *call, hlo_graph_t *g, hlo_t counts) {
  torus_dtype_t wide = op_accumulate_type(op_tensor_dtype(call, 1));
  hlo_t means = op_tensor_as(call, 1, wide), invstds = op_tensor_as(call, 2, wide);
  if (op_failed(call)) return;
  double epsilon = op_double(call, 6), momentum = op_double(call, 5);
  counts = op_like(g, hlo_unsqueeze(g, hlo_convert(g, counts, wide), 1), means);
  hlo_t total = world_sum(g, counts);
  hlo_t mean = hlo_divide(g, world_sum(g, hlo_multiply(g, counts, means)), total);
  hlo_t one = hlo_const(g, wide, 1);
  hlo_t local = hlo_add_f(g, hlo_divide(g, one, hlo_multiply(g, invstds, invstds)), -epsilon);
  hlo_t apart = hlo_subtract(g, means, op_like(g, mean, means));
  hlo_t around = hlo_add(g, local, hlo_multiply(g, apart, apart));
  hlo_t squares = world_sum(g, hlo_multiply(g, counts, around));
  channel_update(call, g, 3, mean, momentum);
  channel_update(call, g, 4, hlo_divide(g, squares, hlo_add_f(g, total, -1)), momentum);
  op_return(call, 0, mean);
  op_return(call, 1, channel_invstd(g, hlo_divide(g, squares, total), epsilon));
}

TORUS_OP(batch_norm_gather_stats_with_counts, "batch_norm_gather_stats_with_counts", 0) {
  gather_statistics(call, g, hlo_flatten(g, op_tensor(call, 7)));
}

TORUS_OP(batch_norm_gather_stats, "batch_norm_gather_stats", 0) {
  hlo_t count = hlo_soft(g, TORUS_DTYPE_F32, op_double(call, 7));
  gather_statistics(call, g, hlo_splat(g, count, 1, (const int64_t[]){op_tensor_dim(call, 1, 0)}));
}

/* (grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g)
 * -> (sum of grad, sum of grad * (x - mean), grad_weight, grad_bias) */
TORUS_OP(batch_norm_backward_reduce, "batch_norm_backward_reduce", 0) {
  torus_axes_t axes = channel_axes(call, 1);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 1), wide = op_accumulate_type(dtype);
  torus_dtype_t weight_dtype = op_has(call, 4) ? op_tensor_dtype(call, 4) : dtype;
  hlo_t grad = op_tensor_as(call, 0, wide), x = op_tensor_as(call, 1, wide);
  hlo_t centred = hlo_subtract(g, x, channel_expand(g, op_tensor_as(call, 2, wide), x));
  hlo_t sum = channel_sum(g, grad, &axes);
  hlo_t products = channel_sum(g, hlo_multiply(g, grad, centred), &axes);
  hlo_t weight = hlo_multiply(g, products, op_tensor_as(call, 3, wide));
  const hlo_t results[4] = {sum, products, hlo_convert(g, weight, weight_dtype),
                            hlo_convert(g, sum, weight_dtype)};
  for (int k = 0; k < 4; ++k) {
    if (op_bool(call, k < 2 ? 5 : 4 + k)) op_return(call, k, results[k]);
    else op_return_none(call, k);
  }
}

/* (grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count) */
TORUS_OP(batch_norm_backward_elemt, "batch_norm_backward_elemt", TORUS_OP_KEEP_FORMAT) {
  channel_axes(call, 1);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 1), wide = op_accumulate_type(dtype);
  hlo_t grad = op_tensor_as(call, 0, wide), x = op_tensor_as(call, 1, wide);
  hlo_t invstd = op_tensor_as(call, 3, wide), weight = op_tensor_as(call, 4, wide);
  hlo_t count = hlo_reduce_all(g, HLO_REDUCE_ADD, op_tensor_as(call, 7, wide));
  hlo_t mean = hlo_divide(g, op_tensor_as(call, 5, wide), count);
  hlo_t slope = hlo_divide(g, op_tensor_as(call, 6, wide), count);
  slope = hlo_multiply(g, slope, hlo_multiply(g, invstd, invstd));
  hlo_t centred = hlo_subtract(g, x, channel_expand(g, op_tensor_as(call, 2, wide), x));
  grad = hlo_subtract(g, grad, channel_expand(g, mean, x));
  grad = hlo_subtract(g, grad, hlo_multiply(g, centred, channel_expand(g, slope, x)));
  hlo_t scale = weight == HLO_NONE ? invstd : hlo_multiply(g, invstd, weight);
  op_return(call, 0, hlo_convert(g, hlo_multiply(g, grad, channel_expand(g, scale, x)), dtype));
}
