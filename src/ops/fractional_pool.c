/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Fractional max pooling: windows of one size at pseudo-random places (Graham, 2014). */
#include "ops/math.h"

enum { MOST_SPATIAL = 3 };

typedef struct fractional {
  int spatial, rank;
  int64_t planes, places, kernel_places, out_places; /* samples * channels; products of sizes */
  int64_t size[MOST_SPATIAL], kernel[MOST_SPATIAL], out[MOST_SPATIAL];
  torus_dtype_t dtype; /* of the random numbers */
  hlo_t samples;       /* (planes, spatial) */
} fractional_t;

static bool read_fractional(torus_call_t *call, hlo_graph_t *g, int spatial, fractional_t *f) {
  *f = (fractional_t){.spatial = spatial, .rank = op_tensor_rank(call, 0), .planes = 1,
                      .places = 1, .kernel_places = 1, .out_places = 1};
  int first = f->rank - spatial;
  bool fits = first == 1 || first == 2;
  for (int i = 0; fits && i < first; i++)
    f->planes *= op_tensor_dim(call, 0, i);
  for (int k = 0; fits && k < spatial; k++) {
    f->size[k] = op_tensor_dim(call, 0, first + k);
    f->kernel[k] = op_ints_at(call, 1, k);
    f->out[k] = op_ints_at(call, 2, k);
    f->places *= f->size[k];
    f->kernel_places *= f->kernel[k];
    f->out_places *= f->out[k];
    fits = f->kernel[k] > 0 && f->out[k] > 0 && f->out[k] + f->kernel[k] - 1 <= f->size[k];
  }
  fits = fits && op_tensor_rank(call, 3) == 3 && op_tensor_numel(call, 3) == f->planes * spatial;
  if (!fits) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "fractional_max_pool: sizes do not fit");
    return false;
  }
  f->dtype = op_accumulate_type(op_tensor_dtype(call, 3));
  f->samples = hlo_reshape(g, op_tensor_as(call, 3, f->dtype), 2, (int64_t[]){f->planes, spatial});
  return !op_failed(call) && !hlo_graph_failed(g);
}

/* Starts of the windows along spatial dimension |k|, I64 (planes, out). In two dimensions the first
 * random number belongs to the width. */
static hlo_t window_starts(hlo_graph_t *g, const fractional_t *f, int k) {
  const int64_t dims[2] = {f->planes, f->out[k]};
  int64_t room = f->size[k] - f->kernel[k];
  hlo_t last = math_size(g, TORUS_DTYPE_I64, room);
  if (f->out[k] == 1) return hlo_splat(g, last, 2, dims);
  hlo_t step = hlo_divide(g, math_size(g, f->dtype, room), math_size(g, f->dtype, f->out[k] - 1));
  hlo_t sample = hlo_index_dim(g, f->samples, 1, f->spatial == 2 ? 1 - k : k);
  sample = hlo_broadcast_in_dim(g, sample, 2, dims, (const int[]){0});
  hlo_t number = hlo_iota(g, f->dtype, 2, dims, 1);
  hlo_t place = hlo_multiply(g, hlo_add(g, number, sample), step);
  hlo_t start = hlo_subtract(g, hlo_convert(g, place, TORUS_DTYPE_I64),
                             hlo_convert(g, hlo_multiply(g, sample, step), TORUS_DTYPE_I64));
  hlo_t is_last = hlo_compare(g, HLO_EQ, number, math_size(g, f->dtype, f->out[k] - 1));
  return hlo_select(g, is_last, last, start);
}

/* I64 (planes, kernel places, out places): where each window looks within its plane. */
static hlo_t window_places(hlo_graph_t *g, const fractional_t *f) {
  int64_t dims[1 + 2 * MOST_SPATIAL] = {f->planes};
  int n = f->spatial, rank = 1 + 2 * n;
  for (int k = 0; k < n; k++) {
    dims[1 + k] = f->kernel[k];
    dims[1 + n + k] = f->out[k];
  }
  hlo_t places = HLO_NONE;
  for (int k = 0; k < n; k++) {
    const int to[2] = {0, 1 + n + k};
    hlo_t own = hlo_broadcast_in_dim(g, window_starts(g, f, k), rank, dims, to);
    own = hlo_add(g, own, hlo_iota(g, TORUS_DTYPE_I64, rank, dims, 1 + k));
    hlo_t width = math_size(g, TORUS_DTYPE_I64, f->size[k]);
    places = k == 0 ? own : hlo_add(g, hlo_multiply(g, places, width), own);
  }
  return hlo_reshape(g, places, 3, (int64_t[]){f->planes, f->kernel_places, f->out_places});
}

static void fractional_pool(torus_call_t *call, hlo_graph_t *g, int spatial) {
  fractional_t f;
  int64_t shape[TORUS_MAX_RANK];
  if (!read_fractional(call, g, spatial, &f)) return;
  for (int i = 0; i < f.rank; i++)
    shape[i] = i < f.rank - spatial ? op_tensor_dim(call, 0, i) : f.out[i - (f.rank - spatial)];
  if (f.planes == 0) {
    op_return(call, 0, hlo_zeros(g, op_tensor_dtype(call, 0), f.rank, shape));
    op_return(call, 1, hlo_zeros(g, TORUS_DTYPE_I64, f.rank, shape));
    return;
  }
  const int64_t seen[2] = {f.planes, f.kernel_places * f.out_places};
  hlo_t x = hlo_reshape(g, op_tensor(call, 0), 2, (int64_t[]){f.planes, f.places});
  hlo_t places = window_places(g, &f), value, best;
  x = hlo_take_along(g, x, 1, hlo_reshape(g, places, 2, seen));
  x = hlo_reshape(g, x, 3, (int64_t[]){f.planes, f.kernel_places, f.out_places});
  hlo_reduce_arg(g, true, x, 1, &value, &best);
  hlo_t index = hlo_take_along(g, places, 1, hlo_unsqueeze(g, best, 1));
  op_return(call, 0, hlo_reshape(g, value, f.rank, shape));
  op_return(call, 1, hlo_reshape(g, index, f.rank, shape));
}

TORUS_OP(fractional_pool_2d, "fractional_max_pool2d", 0) {
  fractional_pool(call, g, 2);
}
TORUS_OP(fractional_pool_3d, "fractional_max_pool3d", 0) {
  fractional_pool(call, g, 3);
}
