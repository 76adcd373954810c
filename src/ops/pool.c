/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Pooling over fixed windows, unpooling, and their gradients. */
#include "ops/spatial.h"

typedef struct pool {
  torus_call_t *call;
  int spatial, rank, input;              /* input: position of the pooled tensor */
  int kernel, stride, padding, dilation; /* argument positions; dilation -1: none */
  bool ceil_mode;
  int64_t out[3]; /* places of the window */
} pool_t;

static int64_t kernel_of(const pool_t *p, int k) { return op_ints_at(p->call, p->kernel, k); }
static int64_t padding_of(const pool_t *p, int k) { return op_ints_at(p->call, p->padding, k); }

static int64_t dilation_of(const pool_t *p, int k) {
  return p->dilation < 0 ? 1 : op_ints_at(p->call, p->dilation, k);
}

/* An empty stride stands for the kernel size. */
static int64_t stride_of(const pool_t *p, int k) {
  int count = 0;
  op_ints(p->call, p->stride, &count);
  return op_ints_at(p->call, count == 0 ? p->kernel : p->stride, k);
}

static int first_dim(const pool_t *p) { return p->rank - p->spatial; }

static int64_t size_of(const pool_t *p, int k) {
  return op_tensor_dim(p->call, p->input, first_dim(p) + k);
}

static int64_t reach_of(const pool_t *p, int k) {
  return dilation_of(p, k) * (kernel_of(p, k) - 1) + 1;
}

/* In ceil mode the last window may hang over, but must start inside the input or its left padding.
 */
static int64_t window_places(const pool_t *p, int k) {
  int64_t stride = stride_of(p, k), room = size_of(p, k) + 2 * padding_of(p, k) - reach_of(p, k);
  if (room < 0 && !(p->ceil_mode && room + stride - 1 >= 0)) return 0;
  int64_t n = (room + (p->ceil_mode ? stride - 1 : 0)) / stride + 1;
  return p->ceil_mode && (n - 1) * stride >= size_of(p, k) + padding_of(p, k) ? n - 1 : n;
}

static bool pool_fits(const pool_t *p) {
  bool fits = p->rank == p->spatial + 1 || p->rank == p->spatial + 2;
  for (int k = 0; fits && k < p->spatial; k++)
    fits = kernel_of(p, k) > 0 && stride_of(p, k) > 0 && dilation_of(p, k) > 0 &&
           padding_of(p, k) >= 0 && 2 * padding_of(p, k) <= reach_of(p, k) && size_of(p, k) > 0;
  return fits;
}

/* |kernel| is the position of the kernel size; stride and padding follow. */
static pool_t read_pool(torus_call_t *call, int spatial, int input, int kernel, int dilation,
                        bool ceil_mode) {
  pool_t p = {.call = call,
              .spatial = spatial,
              .rank = op_tensor_rank(call, input),
              .input = input,
              .kernel = kernel,
              .stride = kernel + 1,
              .padding = kernel + 2,
              .dilation = dilation,
              .ceil_mode = ceil_mode};
  bool fits = pool_fits(&p);
  for (int k = 0; fits && k < spatial; k++) {
    p.out[k] = window_places(&p, k);
    fits = p.out[k] > 0;
  }
  if (!fits) op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "pooling windows do not fit the input");
  return p;
}

static int64_t positive(int64_t n) { return n > 0 ? n : 0; }

static hlo_window_t window_of(const pool_t *p) {
  hlo_window_t w = hlo_window_identity();
  for (int k = 0; k < p->spatial; k++) {
    int dim = first_dim(p) + k;
    w.size[dim] = kernel_of(p, k);
    w.stride[dim] = stride_of(p, k);
    w.dilation[dim] = dilation_of(p, k);
    w.low[dim] = padding_of(p, k);
    w.high[dim] =
        positive((p->out[k] - 1) * w.stride[dim] + reach_of(p, k) - size_of(p, k) - w.low[dim]);
  }
  return w;
}

static hlo_t empty_output(const pool_t *p, hlo_graph_t *g, torus_dtype_t dtype) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  for (int i = 0; i < p->rank; i++)
    dims[i] = i < first_dim(p) ? op_tensor_dim(p->call, p->input, i) : p->out[i - first_dim(p)];
  return hlo_zeros(g, dtype, p->rank, dims);
}

/* ---- maximum ---- */

static void max_pool(torus_call_t *call, hlo_graph_t *g, int spatial) {
  pool_t p = read_pool(call, spatial, 0, 1, 4, op_bool(call, 5));
  if (op_failed(call)) return;
  hlo_t values = HLO_NONE, indices = HLO_NONE, x = op_tensor(call, 0);
  if (op_tensor_numel(call, 0) == 0) {
    values = empty_output(&p, g, op_tensor_dtype(call, 0));
    indices = empty_output(&p, g, TORUS_DTYPE_I64);
  } else {
    hlo_window_t window = window_of(&p);
    hlo_t places = spatial_positions(g, x, first_dim(&p));
    hlo_reduce_window_arg(g, x, places, &window, &values, &indices);
  }
  op_return(call, 0, values);
  op_return(call, 1, indices);
}

/* Adds (or sets) every entry of |y| at its index within planes of zeros of the given shape. */
static hlo_t put_in_planes(hlo_graph_t *g, hlo_scatter_t how, hlo_t y, hlo_t indices, int rank,
                           const int64_t *dims, int first) {
  hlo_t zeros = hlo_zeros(g, hlo_dtype(g, y), rank, dims);
  if (hlo_numel(g, zeros) == 0 || hlo_numel(g, y) == 0) return zeros;
  hlo_t sum = hlo_put_along(g, how, spatial_planes(g, zeros, first), 1,
                            spatial_planes(g, indices, first), spatial_planes(g, y, first));
  return hlo_reshape(g, sum, rank, dims);
}

/* The gradient of any maximum that left indices: grad_output 0, self 1. */
static void max_backward(torus_call_t *call, hlo_graph_t *g, int spatial, int indices) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = op_tensor_rank(call, 1);
  for (int i = 0; i < rank; i++) dims[i] = op_tensor_dim(call, 1, i);
  hlo_t y = put_in_planes(g, HLO_SCATTER_ADD, spatial_tensor_wide(call, 0),
                          op_tensor(call, indices), rank, dims, rank - spatial);
  op_return(call, 0, hlo_convert(g, y, op_tensor_dtype(call, 0)));
}

#define MAX_POOL_OPS(n)                                                                            \
  TORUS_OP(max_pool##n##d, "max_pool" #n "d_with_indices", TORUS_OP_KEEP_FORMAT) {                 \
    max_pool(call, g, n);                                                                          \
  }                                                                                                \
  TORUS_OP(max_pool##n##d_backward, "max_pool" #n "d_with_indices_backward",                       \
           TORUS_OP_KEEP_FORMAT) {                                                                 \
    max_backward(call, g, n, 7);                                                                   \
  }                                                                                                \
  TORUS_OP(adaptive_max_pool##n##d_backward, "adaptive_max_pool" #n "d_backward",                  \
           TORUS_OP_KEEP_FORMAT) {                                                                 \
    max_backward(call, g, n, 2);                                                                   \
  }                                                                                                \
  TORUS_OP(fractional_max_pool##n##d_backward, "fractional_max_pool" #n "d_backward", 0) {         \
    max_backward(call, g, n, 4);                                                                   \
  }

MAX_POOL_OPS(2)
MAX_POOL_OPS(3)

static void max_unpool(torus_call_t *call, hlo_graph_t *g, int spatial) {
  int64_t dims[TORUS_MAX_RANK] = {0}, plane = 1;
  int rank = op_tensor_rank(call, 0), first = rank - spatial;
  if (first < 1 || first > 2) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "unexpected number of dimensions");
    return;
  }
  for (int i = 0; i < rank; i++) {
    dims[i] = i < first ? op_tensor_dim(call, 0, i) : op_ints_at(call, 2, i - first);
    if (i >= first) plane *= dims[i];
  }
  hlo_t indices = op_check_index(call, op_tensor(call, 1), 0, plane, first);
  op_return(call, 0,
            put_in_planes(g, HLO_SCATTER_SET, op_tensor(call, 0), indices, rank, dims, first));
}

TORUS_OP(max_unpool2d, "max_unpool2d", TORUS_OP_KEEP_FORMAT) { max_unpool(call, g, 2); }
TORUS_OP(max_unpool3d, "max_unpool3d", TORUS_OP_KEEP_FORMAT) { max_unpool(call, g, 3); }

/* ---- average ---- */

typedef struct average {
  bool include_padding;
  bool has_divisor;
  double divisor;
} average_t;

/* |i|: position of count_include_pad; divisor_override follows. */
static average_t read_average(torus_call_t *call, int i) {
  average_t a = {op_bool(call, i), op_has(call, i + 1), op_double_or(call, i + 1, 1)};
  if (a.has_divisor && a.divisor == 0)
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "divisor must be not zero");
  return a;
}

/* Elements that count in each window along one dimension. */
static hlo_t window_counts(const pool_t *p, hlo_graph_t *g, bool include_padding, int k) {
  torus_dtype_t i64 = TORUS_DTYPE_I64;
  int64_t pad = padding_of(p, k), size = size_of(p, k);
  hlo_t start =
      hlo_multiply(g, spatial_iota(g, i64, p->out[k]), hlo_const_int(g, i64, stride_of(p, k)));
  start = hlo_subtract(g, start, hlo_const_int(g, i64, pad));
  hlo_t end = hlo_add(g, start, hlo_const_int(g, i64, kernel_of(p, k)));
  end = hlo_minimum(g, end, hlo_const_int(g, i64, include_padding ? size + pad : size));
  if (!include_padding) start = hlo_maximum(g, start, hlo_const_int(g, i64, 0));
  return hlo_subtract(g, end, start);
}

/* Whether every window along a dimension counts the same number of elements. */
static bool counts_whole(const pool_t *p, bool include_padding, int k) {
  int64_t pad = padding_of(p, k);
  int64_t end = (p->out[k] - 1) * stride_of(p, k) - pad + kernel_of(p, k);
  return (include_padding || pad == 0) && end <= size_of(p, k) + (include_padding ? pad : 0);
}

/* x, which has the shape of the output, divided by what each window counts. */
static hlo_t divide_by_counts(const pool_t *p, hlo_graph_t *g, const average_t *a, hlo_t x) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  if (a->has_divisor) return hlo_divide(g, x, hlo_const(g, dtype, a->divisor));
  double whole = 1;
  for (int k = 0; k < p->spatial; k++) {
    if (counts_whole(p, a->include_padding, k)) {
      whole *= (double)kernel_of(p, k);
      continue;
    }
    int64_t dims[TORUS_MAX_RANK] = {0};
    int rank = hlo_shape(g, x, dims);
    hlo_t count = hlo_convert(g, window_counts(p, g, a->include_padding, k), dtype);
    x = hlo_divide(g, x, spatial_along(g, count, rank, dims, first_dim(p) + k));
  }
  return whole == 1 ? x : hlo_divide(g, x, hlo_const(g, dtype, whole));
}

static void avg_pool(torus_call_t *call, hlo_graph_t *g, int spatial) {
  pool_t p = read_pool(call, spatial, 0, 1, -1, op_bool(call, 4));
  average_t a = read_average(call, 5);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  if (op_tensor_numel(call, 0) == 0) {
    op_return(call, 0, empty_output(&p, g, dtype));
    return;
  }
  hlo_window_t window = window_of(&p);
  hlo_t sum = hlo_reduce_window(g, HLO_REDUCE_ADD, spatial_tensor_wide(call, 0), &window);
  op_return(call, 0, hlo_convert(g, divide_by_counts(&p, g, &a, sum), dtype));
}

/* Each input element sums the gradients of the windows that cover it: a window of the same size
 * and stride 1 over the gradients set |stride| apart. */
static hlo_t spread_windows(const pool_t *p, hlo_graph_t *g, hlo_t y) {
  int64_t low[TORUS_MAX_RANK] = {0}, high[TORUS_MAX_RANK] = {0}, interior[TORUS_MAX_RANK] = {0};
  hlo_window_t window = hlo_window_identity();
  for (int k = 0; k < p->spatial; k++) {
    int dim = first_dim(p) + k;
    int64_t stride = stride_of(p, k), last = (p->out[k] - 1) * stride + 1;
    window.size[dim] = kernel_of(p, k);
    interior[dim] = stride - 1;
    low[dim] = kernel_of(p, k) - 1 - padding_of(p, k);
    high[dim] = size_of(p, k) + kernel_of(p, k) - 1 - low[dim] - last;
  }
  y = hlo_pad(g, y, hlo_const(g, hlo_dtype(g, y), 0), low, high, interior);
  return hlo_reduce_window(g, HLO_REDUCE_ADD, y, &window);
}

static void avg_pool_backward(torus_call_t *call, hlo_graph_t *g, int spatial) {
  pool_t p = read_pool(call, spatial, 1, 2, -1, op_bool(call, 5));
  average_t a = read_average(call, 6);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  if (op_tensor_numel(call, 1) == 0) {
    op_return(call, 0, spatial_zeros_like(g, op_tensor(call, 1), dtype));
    return;
  }
  hlo_t y = divide_by_counts(&p, g, &a, spatial_tensor_wide(call, 0));
  op_return(call, 0, hlo_convert(g, spread_windows(&p, g, y), dtype));
}

#define AVG_POOL_OPS(n)                                                                            \
  TORUS_OP(avg_pool##n##d, "avg_pool" #n "d", TORUS_OP_KEEP_FORMAT) { avg_pool(call, g, n); }      \
  TORUS_OP(avg_pool##n##d_backward, "avg_pool" #n "d_backward", TORUS_OP_KEEP_FORMAT) {            \
    avg_pool_backward(call, g, n);                                                                 \
  }

AVG_POOL_OPS(2)
AVG_POOL_OPS(3)
