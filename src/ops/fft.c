/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Fourier transforms. StableHLO transforms up to three trailing dimensions and divides by n in the
 * inverse direction; PyTorch names any dimensions and its normalisation (0 none, 1 by the root of n,
 * 2 by n) apart from the direction. */
#include <math.h>

#include "ops/spatial.h"

static bool fft_type_fits(torus_call_t *call) {
  torus_dtype_t real = torus_dtype_real(op_tensor_dtype(call, 0));
  bool fits = real == TORUS_DTYPE_F32 || real == TORUS_DTYPE_F64;
  if (!fits) op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "unsupported type of a transform");
  return fits;
}

/* Order with |dim| moved to the end; moving back is the same with roles exchanged. */
static hlo_t last_dim(hlo_graph_t *g, hlo_t x, int dim) {
  return spatial_move_dim(g, x, dim, hlo_rank(g, x) - 1);
}

static hlo_t from_last(hlo_graph_t *g, hlo_t x, int dim) {
  return spatial_move_dim(g, x, hlo_rank(g, x) - 1, dim);
}

/* XLA refuses arrays without elements: their transform has none either. */
static hlo_t transform(hlo_graph_t *g, hlo_fft_t how, hlo_t x, int dim, int64_t length) {
  x = last_dim(g, x, dim);
  int64_t dims[TORUS_MAX_RANK] = {0};
  int rank = hlo_shape(g, x, dims);
  torus_dtype_t dtype = hlo_dtype(g, x);
  bool empty = hlo_numel(g, x) == 0;
  dims[rank - 1] = how == HLO_RFFT ? length / 2 + 1 : length;
  if (how == HLO_RFFT) dtype = torus_dtype_complex(dtype);
  if (how == HLO_IRFFT) dtype = torus_dtype_real(dtype);
  x = empty ? hlo_zeros(g, dtype, rank, dims) : hlo_fft(g, how, x, 1, &length);
  return from_last(g, x, dim);
}

/* Complex transforms over |count| dimensions, one after the other. */
static hlo_t transform_each(hlo_graph_t *g, bool forward, hlo_t x, const int *dims, int count) {
  for (int i = 0; i < count; i++)
    x = transform(g, forward ? HLO_FFT : HLO_IFFT, x, dims[i], hlo_dim(g, x, dims[i]));
  return x;
}

/* |divided| says that x was already divided by n. */
static hlo_t normalise(torus_call_t *call, hlo_graph_t *g, hlo_t x, double n, bool divided) {
  int64_t how = op_int(call, 2);
  double factor = how == 0 ? 1 : how == 1 ? 1 / sqrt(n) : 1 / n;
  if (divided) factor *= n;
  return factor == 1 ? x : hlo_multiply_f(g, x, factor);
}

static double product_of(const hlo_graph_t *g, hlo_t x, const int *dims, int count) {
  double n = 1;
  for (int i = 0; i < count; i++) n *= (double)hlo_dim(g, x, dims[i]);
  return n > 0 ? n : 1;
}

/* The dims argument, which is empty for a transform over nothing. */
static int fft_dims(torus_call_t *call, int *out_dims) {
  int count = 0;
  op_ints(call, 1, &count);
  return count == 0 ? 0 : op_dims(call, 1, op_tensor_rank(call, 0), out_dims);
}

TORUS_OP(fft_c2c, "_fft_c2c", 0) {
  int dims[TORUS_MAX_RANK] = {0}, count = fft_dims(call, dims);
  if (count < 0 || !fft_type_fits(call)) return;
  hlo_t x = op_tensor(call, 0);
  bool forward = op_bool(call, 3);
  double n = product_of(g, x, dims, count);
  op_return(call, 0, normalise(call, g, transform_each(g, forward, x, dims, count), n, !forward));
}

TORUS_OP(fft_r2c, "_fft_r2c", 0) {
  int dims[TORUS_MAX_RANK] = {0}, count = fft_dims(call, dims);
  if (count < 1 || !fft_type_fits(call)) return;
  hlo_t x = op_tensor(call, 0);
  double n = product_of(g, x, dims, count);
  int last = dims[count - 1];
  if (op_bool(call, 3))
    x = transform_each(g, true, transform(g, HLO_RFFT, x, last, hlo_dim(g, x, last)), dims,
                       count - 1);
  else
    x = transform_each(g, true, hlo_convert(g, x, torus_dtype_complex(hlo_dtype(g, x))), dims,
                       count);
  op_return(call, 0, normalise(call, g, x, n, false));
}

TORUS_OP(fft_c2r, "_fft_c2r", 0) {
  int dims[TORUS_MAX_RANK] = {0}, count = fft_dims(call, dims);
  if (count < 1 || !fft_type_fits(call)) return;
  int64_t length = op_int(call, 3);
  int last = dims[count - 1];
  hlo_t x = op_tensor(call, 0);
  double n = product_of(g, x, dims, count - 1) * (double)length;
  x = transform_each(g, false, x, dims, count - 1);
  x = transform(g, HLO_IRFFT, hlo_slice_dim(g, x, last, 0, length / 2 + 1), last, length);
  op_return(call, 0, normalise(call, g, x, n, true));
}
