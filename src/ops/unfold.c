/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Sliding blocks: im2col, its transpose col2im, and the gradient of Tensor.unfold. */
#include "ops/spatial.h"

typedef struct blocks2d {
  torus_call_t *call;
  hlo_graph_t *g;
  int kernel, dilation, padding, stride; /* argument positions */
  int64_t size[2], count[2];             /* of the image, of block places along it */
} blocks2d_t;

static int64_t at(const blocks2d_t *b, int argument, int k) {
  return op_ints_at(b->call, argument, k);
}

static int64_t places(const blocks2d_t *b, int k) {
  int64_t reach = at(b, b->dilation, k) * (at(b, b->kernel, k) - 1) + 1;
  int64_t room = b->size[k] + 2 * at(b, b->padding, k) - reach;
  return room < 0 || at(b, b->stride, k) < 1 ? 0 : room / at(b, b->stride, k) + 1;
}

/* |first| is the position of the kernel size; dilation, padding and stride follow. */
static blocks2d_t read_blocks(torus_call_t *call, hlo_graph_t *g, int first, int64_t height,
                              int64_t width) {
  blocks2d_t b = {call, g, first, first + 1, first + 2, first + 3, {height, width}, {0, 0}};
  for (int k = 0; k < 2; k++) b.count[k] = places(&b, k);
  if (b.count[0] < 1 || b.count[1] < 1)
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "sliding blocks do not fit the image");
  return b;
}

/* Rank-1 indices k * dilation + place * stride into a padded dimension, k outermost. */
static hlo_t block_indices(hlo_graph_t *g, int64_t size, int64_t count, int64_t dilation,
                           int64_t stride) {
  const int64_t dims[] = {size, count};
  torus_dtype_t i32 = TORUS_DTYPE_I32;
  hlo_t k = hlo_multiply(g, hlo_iota(g, i32, 2, dims, 0), hlo_const_int(g, i32, dilation));
  hlo_t place = hlo_multiply(g, hlo_iota(g, i32, 2, dims, 1), hlo_const_int(g, i32, stride));
  return hlo_flatten(g, hlo_add(g, k, place));
}

static hlo_t indices_of(const blocks2d_t *b, int k) {
  return block_indices(b->g, at(b, b->kernel, k), b->count[k], at(b, b->dilation, k),
                       at(b, b->stride, k));
}

/* (N, C, H, W) -> (N, C kh kw, L). */
static hlo_t image_to_columns(const blocks2d_t *b, hlo_t x) {
  for (int k = 0; k < 2; k++) {
    int64_t pad = at(b, b->padding, k);
    x = hlo_take(b->g, spatial_pad_dim(b->g, x, k + 2, pad, pad), k + 2, indices_of(b, k));
  }
  x = spatial_split(b->g, x, 3, at(b, b->kernel, 1), b->count[1]);
  x = spatial_split(b->g, x, 2, at(b, b->kernel, 0), b->count[0]); /* N C kh oh kw ow */
  x = spatial_join(b->g, hlo_swap_dims(b->g, x, 3, 4), 4);         /* N C kh kw L */
  return spatial_join(b->g, spatial_join(b->g, x, 1), 1);
}

static hlo_t columns_to_image(const blocks2d_t *b, hlo_t x) {
  int64_t kh = at(b, b->kernel, 0), kw = at(b, b->kernel, 1);
  int64_t channels = hlo_dim(b->g, x, 1) / (kh * kw);
  x = spatial_split(b->g, x, 2, b->count[0], b->count[1]);
  x = spatial_split(b->g, spatial_split(b->g, x, 1, channels, kh * kw), 2, kh, kw);
  x = hlo_swap_dims(b->g, x, 3, 4);
  x = spatial_join(b->g, spatial_join(b->g, x, 4), 2);
  for (int k = 0; k < 2; k++) {
    int64_t pad = at(b, b->padding, k);
    x = spatial_add_rows(b->g, x, k + 2, b->size[k] + 2 * pad, indices_of(b, k));
    x = spatial_pad_dim(b->g, x, k + 2, -pad, -pad);
  }
  return x;
}

TORUS_OP(im2col, "im2col", 0) {
  int rank = op_tensor_rank(call, 0);
  if (rank != 3 && rank != 4) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "im2col needs 3 or 4 dimensions");
    return;
  }
  blocks2d_t b = read_blocks(call, g, 1, op_tensor_dim(call, 0, rank - 2),
                             op_tensor_dim(call, 0, rank - 1));
  if (op_failed(call)) return;
  hlo_t x = op_tensor(call, 0);
  hlo_t y = image_to_columns(&b, rank == 3 ? hlo_unsqueeze(g, x, 0) : x);
  op_return(call, 0, rank == 3 ? hlo_squeeze(g, y, 0) : y);
}

static bool columns_fit(torus_call_t *call, const blocks2d_t *b) {
  int rank = op_tensor_rank(call, 0);
  int64_t kernel = at(b, b->kernel, 0) * at(b, b->kernel, 1);
  bool fits = kernel > 0 && op_tensor_dim(call, 0, rank - 2) % kernel == 0 &&
              op_tensor_dim(call, 0, rank - 1) == b->count[0] * b->count[1];
  if (!fits) op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "columns do not fit the image");
  return fits;
}

TORUS_OP(col2im, "col2im", 0) {
  int rank = op_tensor_rank(call, 0);
  if (rank != 2 && rank != 3) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "col2im needs 2 or 3 dimensions");
    return;
  }
  blocks2d_t b = read_blocks(call, g, 2, op_ints_at(call, 1, 0), op_ints_at(call, 1, 1));
  if (op_failed(call) || !columns_fit(call, &b)) return;
  hlo_t x = spatial_tensor_wide(call, 0);
  hlo_t y = columns_to_image(&b, rank == 2 ? hlo_unsqueeze(g, x, 0) : x);
  y = hlo_convert(g, y, op_tensor_dtype(call, 0));
  op_return(call, 0, rank == 2 ? hlo_squeeze(g, y, 0) : y);
}

/* The window elements are the last dimension of the gradient: they go next to the windows. */
TORUS_OP(unfold_backward, "unfold_backward", 0) {
  int rank = 0;
  const int64_t *sizes = op_ints(call, 1, &rank);
  int dim = op_dim(call, 2, rank);
  if (op_failed(call)) return;
  hlo_t x = spatial_tensor_wide(call, 0);
  if (rank == 0) {
    op_return(call, 0, hlo_reshape(g, op_tensor(call, 0), 0, NULL));
    return;
  }
  x = spatial_join(g, spatial_move_dim(g, x, rank, dim), dim);
  int64_t count = op_tensor_dim(call, 0, dim);
  hlo_t index = block_indices(g, op_int(call, 3), count, 1, op_int(call, 4));
  x = spatial_add_rows(g, x, dim, sizes[dim], index);
  op_return(call, 0, hlo_convert(g, x, op_tensor_dtype(call, 0)));
}
