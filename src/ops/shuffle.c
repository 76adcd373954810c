/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Moving elements between channels and pixels: pixel_shuffle, pixel_unshuffle, channel_shuffle. */
#include "ops/op.h"

/* Trailing dimensions that take part: channels, height, width. */
enum { CHANNEL_DIMS = 3 };

/* x with its last |taken| dimensions split into |count| parts, those permuted, and the result
 * brought to the |count| - merged dimensions |joined|; leading dimensions stay. */
static hlo_t regroup(hlo_graph_t *g, hlo_t x, int taken, int count, const int64_t *parts,
                     const int *permutation, int joined_count, const int64_t *joined) {
  int64_t dims[TORUS_MAX_RANK];
  int order[TORUS_MAX_RANK], lead = hlo_shape(g, x, dims) - taken;
  if (hlo_graph_failed(g))
    return HLO_NONE;
  if (lead + count > TORUS_MAX_RANK)
    return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "too many dimensions");
  for (int d = 0; d < lead; ++d)
    order[d] = d;
  for (int d = 0; d < count; ++d) {
    order[lead + d] = lead + permutation[d];
    dims[lead + d] = parts[d];
  }
  x = hlo_transpose(g, hlo_reshape(g, x, lead + count, dims), order);
  for (int d = 0; d < joined_count; ++d)
    dims[lead + d] = joined[d];
  return hlo_reshape(g, x, lead + joined_count, dims);
}

/* Channels, height and width of argument 0; false after an error. */
static bool read_image(torus_call_t *call, int64_t factor, int64_t *out_c, int64_t *out_h,
                       int64_t *out_w) {
  int rank = op_tensor_rank(call, 0);
  if (rank < CHANNEL_DIMS || factor <= 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "expected at least 3 dimensions and a positive factor");
    return false;
  }
  *out_c = op_tensor_dim(call, 0, rank - 3);
  *out_h = op_tensor_dim(call, 0, rank - 2);
  *out_w = op_tensor_dim(call, 0, rank - 1);
  return true;
}

TORUS_OP(pixel_shuffle, "pixel_shuffle", TORUS_OP_KEEP_FORMAT) {
  int64_t r = op_int(call, 1), c, h, w;
  if (!read_image(call, r, &c, &h, &w))
    return;
  if (c % (r * r) != 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "pixel_shuffle expects its channels to be divisible by the square of the factor");
    return;
  }
  c /= r * r;
  op_return(call, 0,
            regroup(g, op_tensor(call, 0), CHANNEL_DIMS, 5, (int64_t[]){c, r, r, h, w},
                    (int[]){0, 3, 1, 4, 2}, 3, (int64_t[]){c, h * r, w * r}));
}

TORUS_OP(pixel_unshuffle, "pixel_unshuffle", TORUS_OP_KEEP_FORMAT) {
  int64_t r = op_int(call, 1), c, h, w;
  if (!read_image(call, r, &c, &h, &w))
    return;
  if (h % r != 0 || w % r != 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "pixel_unshuffle expects height and width to be divisible by the factor");
    return;
  }
  h /= r;
  w /= r;
  op_return(call, 0,
            regroup(g, op_tensor(call, 0), CHANNEL_DIMS, 5, (int64_t[]){c, h, r, w, r},
                    (int[]){0, 2, 4, 1, 3}, 3, (int64_t[]){c * r * r, h, w}));
}

TORUS_OP(channel_shuffle, "channel_shuffle", TORUS_OP_KEEP_FORMAT) {
  int64_t groups = op_int(call, 1);
  int rank = op_tensor_rank(call, 0), taken = rank - 1;
  if (rank <= 2 || groups <= 0 || op_tensor_dim(call, 0, 1) % groups != 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "channel_shuffle expects channels that the number of groups divides");
    return;
  }
  int64_t parts[TORUS_MAX_RANK], joined[TORUS_MAX_RANK], channels = op_tensor_dim(call, 0, 1);
  int permutation[TORUS_MAX_RANK] = {1, 0};
  parts[0] = groups;
  parts[1] = channels / groups;
  joined[0] = channels;
  for (int d = 2; d < rank; ++d) {
    parts[d] = joined[d - 1] = op_tensor_dim(call, 0, d);
    permutation[d] = d;
  }
  op_return(call, 0,
            regroup(g, op_tensor(call, 0), taken, rank, parts, permutation, taken, joined));
}
