/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Convolutions of any number of spatial dimensions, and their gradients.
 *
 * PyTorch's layouts: input (N, C, spatial...), weight (O, I / groups, spatial...), and for the
 * transposed ones (I, O / groups, spatial...). A transposed convolution is the input gradient of the
 * plain one with the same weight, and the other way round, so two functions serve all four. */
#include "ops/spatial.h"

typedef struct conv {
  torus_call_t *call;
  hlo_graph_t *g;
  int spatial;
  int stride, padding, dilation, output_padding; /* argument positions */
  bool transposed;
  int64_t groups;
} conv_t;

/* |first| is the position of the stride argument; the others follow as in the schema. */
static conv_t read_conv(torus_call_t *call, hlo_graph_t *g, int input, int first) {
  conv_t c = {.call = call, .g = g, .spatial = op_tensor_rank(call, input) - 2};
  c.stride = first;
  c.padding = first + 1;
  c.dilation = first + 2;
  c.transposed = op_bool(call, first + 3);
  c.output_padding = first + 4;
  c.groups = op_int(call, first + 5);
  return c;
}

/* float16 has no matrix unit anywhere and XLA's CPU code sums it in float16. bfloat16 has both a
 * matrix unit and a float32 sum. */
static torus_dtype_t conv_type(torus_dtype_t dtype) {
  return dtype == TORUS_DTYPE_BF16 ? dtype : op_accumulate_type(dtype);
}

static hlo_t conv_argument(const conv_t *c, int i) {
  return op_tensor_as(c->call, i, conv_type(op_tensor_dtype(c->call, i)));
}

/* ---- the three products ---- */

/* x * w with weight (O, I / groups, ...). The result's spatial sizes are |sizes|: as the gradient of
 * a transposed convolution it may leave out places that output_padding alone would add. */
static hlo_t convolve(const conv_t *c, hlo_t x, hlo_t w, const int64_t *sizes) {
  hlo_conv_t how = {.spatial = c->spatial, .feature_groups = c->groups, .batch_groups = 1};
  for (int i = 0; i < c->spatial; i++) {
    int64_t dilation = op_ints_at(c->call, c->dilation, i);
    int64_t reach = dilation * (hlo_dim(c->g, w, i + 2) - 1) + 1;
    how.stride[i] = op_ints_at(c->call, c->stride, i);
    how.low[i] = op_ints_at(c->call, c->padding, i);
    how.high[i] =
        (sizes[i] - 1) * how.stride[i] + reach - hlo_dim(c->g, x, i + 2) - how.low[i];
    how.rhs_dilation[i] = dilation;
    how.lhs_dilation[i] = 1;
  }
  return hlo_convolution(c->g, x, w, &how);
}

/* (G * a, b, ...) -> (G * b, a, ...), every spatial dimension reversed. */
static hlo_t flip_weight(const conv_t *c, hlo_t w) {
  int dims[TORUS_MAX_RANK] = {0};
  for (int i = 0; i < c->spatial; i++) dims[i] = i + 2;
  int64_t in = hlo_dim(c->g, w, 0);
  w = spatial_split(c->g, hlo_reverse(c->g, w, c->spatial, dims), 0, c->groups, in / c->groups);
  return spatial_join(c->g, hlo_swap_dims(c->g, w, 1, 2), 0);
}

/* The transpose of |convolve| with the same weight; the result's spatial sizes are |sizes|. */
static hlo_t convolve_back(const conv_t *c, hlo_t y, hlo_t w, const int64_t *sizes) {
  hlo_conv_t how = {.spatial = c->spatial, .feature_groups = c->groups, .batch_groups = 1};
  for (int i = 0; i < c->spatial; i++) {
    int64_t dilation = op_ints_at(c->call, c->dilation, i);
    int64_t reach = dilation * (hlo_dim(c->g, w, i + 2) - 1);
    int64_t stride = op_ints_at(c->call, c->stride, i);
    how.stride[i] = 1;
    how.lhs_dilation[i] = stride;
    how.rhs_dilation[i] = dilation;
    how.low[i] = reach - op_ints_at(c->call, c->padding, i);
    how.high[i] = sizes[i] + reach - how.low[i] - ((hlo_dim(c->g, y, i + 2) - 1) * stride + 1);
  }
  return hlo_convolution(c->g, y, flip_weight(c, w), &how);
}

/* Gradient of the weight of y = convolve(x, w): channels take the place of the batch. */
static hlo_t convolve_weight(const conv_t *c, hlo_t x, hlo_t y, const int64_t *kernel) {
  hlo_conv_t how = {.spatial = c->spatial, .feature_groups = 1, .batch_groups = c->groups};
  how.explicit_layout = true;
  how.lhs_batch = how.rhs_output = how.out_batch = 1;
  for (int i = 0; i < c->spatial; i++) {
    int64_t dilation = op_ints_at(c->call, c->dilation, i);
    int64_t reach = (hlo_dim(c->g, y, i + 2) - 1) * op_ints_at(c->call, c->stride, i);
    how.lhs_spatial[i] = how.rhs_spatial[i] = how.out_spatial[i] = i + 2;
    how.stride[i] = dilation;
    how.rhs_dilation[i] = op_ints_at(c->call, c->stride, i);
    how.lhs_dilation[i] = 1;
    how.low[i] = op_ints_at(c->call, c->padding, i);
    how.high[i] =
        reach + 1 + (kernel[i] - 1) * dilation - hlo_dim(c->g, x, i + 2) - how.low[i];
  }
  return hlo_convolution(c->g, x, y, &how);
}

/* ---- forward ---- */

/* Sizes of the result for arguments input 0 and weight 1. */
static void output_dims(const conv_t *c, int64_t *out_dims) {
  out_dims[0] = op_tensor_dim(c->call, 0, 0);
  out_dims[1] = c->transposed ? op_tensor_dim(c->call, 1, 1) * c->groups
                              : op_tensor_dim(c->call, 1, 0);
  for (int i = 0; i < c->spatial; i++) {
    int64_t n = op_tensor_dim(c->call, 0, i + 2), s = op_ints_at(c->call, c->stride, i);
    int64_t pad = 2 * op_ints_at(c->call, c->padding, i);
    int64_t reach = op_ints_at(c->call, c->dilation, i) * (op_tensor_dim(c->call, 1, i + 2) - 1);
    out_dims[i + 2] = c->transposed ? (n - 1) * s - pad + reach + 1 +
                                          op_ints_at(c->call, c->output_padding, i)
                                    : (n + pad - reach - 1) / s + 1;
  }
}

static bool conv_fits(const conv_t *c, int input, int weight) {
  int64_t channels = op_tensor_dim(c->call, input, 1);
  bool fits = c->spatial >= 1 && op_tensor_rank(c->call, weight) == c->spatial + 2 &&
              c->groups > 0 && op_tensor_dtype(c->call, input) == op_tensor_dtype(c->call, weight);
  fits = fits && (c->transposed ? op_tensor_dim(c->call, weight, 0) == channels
                                : op_tensor_dim(c->call, weight, 1) * c->groups == channels);
  if (!fits) op_error(c->call, TORUS_STATUS_INVALID_ARGUMENT, "input and weight do not fit");
  return fits;
}

static hlo_t conv_forward(const conv_t *c, const int64_t *dims) {
  bool empty = op_tensor_numel(c->call, 0) == 0 || op_tensor_numel(c->call, 1) == 0;
  for (int i = 0; i < c->spatial + 2; i++) empty = empty || dims[i] == 0;
  if (empty)
    return hlo_zeros(c->g, conv_type(op_tensor_dtype(c->call, 0)), c->spatial + 2, dims);
  hlo_t x = conv_argument(c, 0), w = conv_argument(c, 1);
  return c->transposed ? convolve_back(c, x, w, dims + 2) : convolve(c, x, w, dims + 2);
}

TORUS_OP(convolution, "convolution_overrideable", TORUS_OP_KEEP_FORMAT) {
  conv_t c = read_conv(call, g, 0, 3);
  if (!conv_fits(&c, 0, 1)) return;
  int64_t dims[TORUS_MAX_RANK] = {0};
  output_dims(&c, dims);
  hlo_t y = conv_forward(&c, dims);
  if (op_has(call, 2)) {
    hlo_t bias = op_tensor_as(call, 2, hlo_dtype(g, y));
    y = hlo_add(g, y, spatial_along(g, bias, c.spatial + 2, dims, 1));
  }
  op_return(call, 0, hlo_convert(g, y, op_tensor_dtype(call, 0)));
}

/* ---- backward: grad_output 0, input 1, weight 2 ---- */

static hlo_t input_gradient(const conv_t *c) {
  int64_t sizes[TORUS_MAX_RANK] = {0};
  for (int i = 0; i < c->spatial; i++) sizes[i] = op_tensor_dim(c->call, 1, i + 2);
  hlo_t gy = conv_argument(c, 0), w = conv_argument(c, 2);
  return c->transposed ? convolve(c, gy, w, sizes) : convolve_back(c, gy, w, sizes);
}

static hlo_t weight_gradient(const conv_t *c) {
  int64_t kernel[TORUS_MAX_RANK] = {0};
  for (int i = 0; i < c->spatial; i++) kernel[i] = op_tensor_dim(c->call, 2, i + 2);
  hlo_t gy = conv_argument(c, 0), x = conv_argument(c, 1);
  return c->transposed ? convolve_weight(c, gy, x, kernel) : convolve_weight(c, x, gy, kernel);
}

static hlo_t bias_gradient(const conv_t *c) {
  int dims[TORUS_MAX_RANK] = {0}, count = 0;
  for (int i = 0; i < c->spatial + 2; i++)
    if (i != 1) dims[count++] = i;
  return hlo_reduce(c->g, HLO_REDUCE_ADD, spatial_tensor_wide(c->call, 0), count, dims, false);
}

TORUS_OP(convolution_backward, "convolution_backward_overrideable", TORUS_OP_KEEP_FORMAT) {
  conv_t c = read_conv(call, g, 1, 3);
  if (!conv_fits(&c, 1, 2)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 1);
  bool empty = false;
  for (int i = 0; i < 3; i++) empty = empty || op_tensor_numel(call, i) == 0;
  for (int k = 0; k < 3; k++) {
    if (op_ints_at(call, 9, k) == 0) {
      op_return_none(call, k);
      continue;
    }
    hlo_t x = k == 2  ? bias_gradient(&c)
              : empty ? spatial_zeros_like(g, op_tensor(call, k + 1), dtype)
              : k == 0 ? input_gradient(&c)
                       : weight_gradient(&c);
    op_return(call, k, hlo_convert(g, x, dtype));
  }
}
