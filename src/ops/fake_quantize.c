/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Fake quantisation: rounding to the numbers that an integer type with a scale could hold. The
 * gradient passes where the rounded number is in range. */
#include "ops/math.h"

typedef struct grid {
  hlo_t scale, zero; /* rank 0, or of the shape of x; F32 or F64 like the computation */
  hlo_t low, high;   /* rank 0 */
  int axis;          /* of the channels; -1: one grid for all */
  bool is_shifted;   /* the zero point need not be a whole number */
} grid_t;

/* ---- arguments ---- */

/* A number per channel, stretched over x; or one number for all. */
static hlo_t per_channel(hlo_graph_t *g, hlo_t x, hlo_t number, int axis) {
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, x, dims);
  if (axis < 0) return hlo_reshape(g, number, 0, NULL);
  return hlo_broadcast_in_dim(g, number, rank, dims, (const int[]){axis});
}

static void read_limits(torus_call_t *call, hlo_graph_t *g, int i, torus_dtype_t dtype,
                        grid_t *grid) {
  grid->low = hlo_soft(g, dtype, (double)op_int(call, i));
  grid->high = hlo_soft(g, dtype, (double)op_int(call, i + 1));
  if (op_int(call, i) > op_int(call, i + 1)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "`quant_min` should be less than or equal to `quant_max`.");
  }
}

/* |axis| names an argument, or is -1. Channels must be as many as scales. */
static bool read_axis(torus_call_t *call, int x, int scale, int axis, grid_t *grid) {
  grid->axis = axis < 0 ? -1 : (int)op_int(call, axis);
  int rank = op_tensor_rank(call, x);
  bool fits = grid->axis < rank;
  if (fits && grid->axis >= 0)
    fits = op_tensor_numel(call, scale) == op_tensor_dim(call, x, grid->axis);
  if (fits && grid->axis < 0) fits = op_tensor_numel(call, scale) == 1;
  if (!fits || (axis >= 0 && grid->axis < 0)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "fake_quantize: dimensions of scale, zero point and input do not fit");
    return false;
  }
  return true;
}

/* scale and zero_point are tensors |i| and |i| + 1, which may be learnt numbers. */
static bool read_grid(torus_call_t *call, hlo_graph_t *g, hlo_t x, int i, int limits,
                      grid_t *grid) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  grid->scale = per_channel(g, x, op_tensor_as(call, i, dtype), grid->axis);
  grid->zero = per_channel(g, x, op_tensor_as(call, i + 1, dtype), grid->axis);
  grid->is_shifted = torus_dtype_is_float(op_tensor_dtype(call, i + 1));
  read_limits(call, g, limits, dtype, grid);
  return !op_failed(call) && !hlo_graph_failed(g);
}

/* ---- rounding ---- */

/* The number of x's place on the grid, before it is clamped. Halves go to the even number, so that
 * it matters whether a whole zero point is added before or after. */
static hlo_t place_of(hlo_graph_t *g, hlo_t x, const grid_t *grid) {
  hlo_t inverse = hlo_divide(g, hlo_const(g, hlo_dtype(g, x), 1), grid->scale);
  hlo_t place = hlo_multiply(g, x, inverse);
  if (grid->is_shifted) return math_round(g, hlo_add(g, place, grid->zero));
  return hlo_add(g, math_round(g, place), grid->zero);
}

static hlo_t clamped(hlo_graph_t *g, hlo_t place, const grid_t *grid) {
  return hlo_minimum(g, hlo_maximum(g, place, grid->low), grid->high);
}

static hlo_t value_at(hlo_graph_t *g, hlo_t place, const grid_t *grid) {
  return hlo_multiply(g, hlo_subtract(g, clamped(g, place, grid), grid->zero), grid->scale);
}

static hlo_t is_inside(hlo_graph_t *g, hlo_t place, const grid_t *grid) {
  return hlo_and(g, hlo_compare(g, HLO_GE, place, grid->low),
                 hlo_compare(g, HLO_LE, place, grid->high));
}

static void return_masked(torus_call_t *call, hlo_graph_t *g, hlo_t place, const grid_t *grid) {
  op_return(call, 0, hlo_convert(g, value_at(g, place, grid), op_tensor_dtype(call, 0)));
  op_return(call, 1, is_inside(g, place, grid));
}

/* ---- fixed grids ---- */

/* (self, scale, zero_point, quant_min, quant_max) */
TORUS_OP(fake_quantize_tensor, "fake_quantize_per_tensor_affine_cachemask",
         TORUS_OP_POINTWISE) {
  torus_dtype_t dtype = op_accumulate_type(op_tensor_dtype(call, 0));
  hlo_t x = op_tensor_as(call, 0, dtype);
  grid_t grid = {.scale = op_scalar(call, 1, dtype), .zero = op_scalar(call, 2, dtype), .axis = -1};
  read_limits(call, g, 3, dtype, &grid);
  if (!op_failed(call)) return_masked(call, g, place_of(g, x, &grid), &grid);
}

/* (self, scale, zero_point, fake_quant_enabled, quant_min, quant_max) */
TORUS_OP(fake_quantize_parameters, "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
         TORUS_OP_POINTWISE) {
  hlo_t x = op_tensor_as(call, 0, op_accumulate_type(op_tensor_dtype(call, 0)));
  grid_t grid;
  if (!read_axis(call, 0, 1, -1, &grid) || !read_grid(call, g, x, 1, 4, &grid)) return;
  hlo_t place = place_of(g, x, &grid), on = op_tensor_as(call, 3, TORUS_DTYPE_BOOL);
  on = hlo_reshape(g, on, 0, NULL);
  hlo_t y = hlo_select(g, on, value_at(g, place, &grid), x);
  op_return(call, 0, hlo_convert(g, y, op_tensor_dtype(call, 0)));
  op_return(call, 1, hlo_or(g, is_inside(g, place, &grid), hlo_not(g, on)));
}

/* (self, scale, zero_point, axis, quant_min, quant_max) */
TORUS_OP(fake_quantize_channel, "fake_quantize_per_channel_affine_cachemask",
         TORUS_OP_POINTWISE) {
  hlo_t x = op_tensor_as(call, 0, op_accumulate_type(op_tensor_dtype(call, 0)));
  grid_t grid;
  if (!read_axis(call, 0, 1, 3, &grid) || !read_grid(call, g, x, 1, 4, &grid)) return;
  return_masked(call, g, place_of(g, x, &grid), &grid);
}

/* ---- learnt grids ---- */

/* The zero point becomes a whole number in range. */
static void settle_zero(hlo_graph_t *g, grid_t *grid) {
  hlo_t half = hlo_const(g, hlo_dtype(g, grid->zero), 0.5);
  grid->zero = clamped(g, math_floor(g, hlo_add(g, grid->zero, half)), grid);
  grid->is_shifted = false;
}

static bool read_learnt(torus_call_t *call, hlo_graph_t *g, int first, bool by_channel,
                        grid_t *grid, hlo_t *out_x) {
  int axis = by_channel ? first + 3 : -1, limits = first + 3 + by_channel;
  *out_x = op_tensor_as(call, first, op_accumulate_type(op_tensor_dtype(call, first)));
  if (!read_axis(call, first, first + 1, axis, grid)) return false;
  if (!read_grid(call, g, *out_x, first + 1, limits, grid)) return false;
  settle_zero(g, grid);
  return true;
}

/* (self, scale, zero_point, [axis,] quant_min, quant_max, grad_factor) */
static void learnt_forward(torus_call_t *call, hlo_graph_t *g, bool by_channel) {
  grid_t grid;
  hlo_t x;
  if (!read_learnt(call, g, 0, by_channel, &grid, &x)) return;
  hlo_t y = value_at(g, place_of(g, x, &grid), &grid);
  op_return(call, 0, hlo_convert(g, y, op_tensor_dtype(call, 0)));
}

/* Summed over all dimensions but the channels', in the shape and type of argument |i|. */
static hlo_t parameter_gradient(torus_call_t *call, hlo_graph_t *g, const grid_t *grid, hlo_t dx,
                                int i) {
  int dims[TORUS_MAX_RANK], count = 0, rank = hlo_rank(g, dx);
  for (int d = 0; d < rank; d++)
    if (d != grid->axis) dims[count++] = d;
  hlo_t sum = hlo_reduce(g, HLO_REDUCE_ADD, dx, count, dims, false);
  if (grid->axis < 0)
    sum = hlo_reshape(g, sum, op_tensor_rank(call, i), (int64_t[]){1, 1, 1, 1});
  return hlo_convert(g, sum, op_tensor_dtype(call, i));
}

/* (grad, self, scale, zero_point, [axis,] quant_min, quant_max, grad_factor). Esser et al.,
 * "Learned step size quantization", ICLR 2020, with a learnt zero point. */
static void learnt_backward(torus_call_t *call, hlo_graph_t *g, bool by_channel) {
  grid_t grid;
  hlo_t x;
  if (!read_learnt(call, g, 1, by_channel, &grid, &x)) return;
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t dy = op_tensor_as(call, 0, dtype), zero = hlo_const(g, dtype, 0);
  hlo_t factor = op_scalar(call, 6 + by_channel, dtype);
  hlo_t place = place_of(g, x, &grid), inside = is_inside(g, place, &grid);
  hlo_t scaled = hlo_divide(g, hlo_subtract(g, value_at(g, place, &grid), x), grid.scale);
  hlo_t edge = hlo_subtract(g, clamped(g, place, &grid), grid.zero);
  hlo_t slope = hlo_multiply(g, hlo_select(g, inside, scaled, edge), factor);
  hlo_t shift = hlo_multiply(g, hlo_negate(g, grid.scale), factor);
  shift = hlo_multiply(g, dy, shift);
  op_return(call, 0, hlo_convert(g, hlo_select(g, inside, dy, zero), op_tensor_dtype(call, 1)));
  op_return(call, 1, parameter_gradient(call, g, &grid, hlo_multiply(g, dy, slope), 2));
  op_return(call, 2, parameter_gradient(call, g, &grid, hlo_select(g, inside, zero, shift), 3));
}

TORUS_OP(learnt_tensor, "_fake_quantize_learnable_per_tensor_affine", 0) {
  learnt_forward(call, g, false);
}
TORUS_OP(learnt_tensor_backward, "_fake_quantize_learnable_per_tensor_affine_backward", 0) {
  learnt_backward(call, g, false);
}
TORUS_OP(learnt_channel, "_fake_quantize_learnable_per_channel_affine", 0) {
  learnt_forward(call, g, true);
}
TORUS_OP(learnt_channel_backward, "_fake_quantize_learnable_per_channel_affine_backward", 0) {
  learnt_backward(call, g, true);
}

/* Of a tensor that is not quantized, which all tensors of the device are. */
TORUS_OP(dequantize, "dequantize.self", TORUS_OP_POINTWISE) {
  op_return(call, 0, op_tensor_as(call, 0, TORUS_DTYPE_F32));
}
