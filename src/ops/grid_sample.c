/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Sampling an image at the points of a grid (torch.nn.functional.grid_sample), 2-D and 3-D.
 *
 * Along each dimension a point reads 1 (nearest), 2 (linear) or 4 (cubic) taps; their products over
 * the dimensions are the corners. A tap has an index, a weight, the derivative of that weight by
 * the grid coordinate, and a flag whether it lies inside, all of shape (N, P) for P points. */
#include "ops/spatial.h"

enum { MODE_LINEAR, MODE_NEAREST, MODE_CUBIC };
enum { PAD_ZEROS, PAD_BORDER, PAD_REFLECTION };

typedef struct tap {
  hlo_t index, weight, slope, inside;
} tap_t;

typedef struct grid {
  torus_call_t *call;
  hlo_graph_t *g;
  torus_dtype_t wide;
  int spatial, input; /* input: position of the image, the grid follows */
  int64_t mode, padding, batch, channels, points, size[3]; /* sizes in the image's order */
  bool align;
  int taps;
  tap_t tap[3][4];
} grid_t;

static hlo_t number(const grid_t *s, double value) { return hlo_const(s->g, s->wide, value); }

/* ---- coordinates with their derivative by the grid's ---- */

typedef struct coordinate {
  hlo_t x, slope;
} coordinate_t;

static hlo_t grid_coordinate(const grid_t *s, int k) {
  hlo_t grid = op_tensor_as(s->call, s->input + 1, s->wide);
  grid = hlo_index_dim(s->g, grid, s->spatial + 1, s->spatial - 1 - k);
  return hlo_reshape(s->g, grid, 2, (const int64_t[]){s->batch, s->points});
}

/* [-1, 1] to [0, size - 1] (align) or to [-0.5, size - 0.5]. */
static coordinate_t unnormalise(const grid_t *s, int k) {
  hlo_t x = hlo_add_f(s->g, grid_coordinate(s, k), 1);
  double size = (double)s->size[k], factor = s->align ? (size - 1) / 2 : size / 2;
  x = hlo_multiply_f(s->g, x, factor);
  coordinate_t c = {s->align ? x : hlo_add_f(s->g, x, -0.5), HLO_NONE};
  c.slope = hlo_splat(s->g, number(s, factor), 2, (const int64_t[]){s->batch, s->points});
  return c;
}

static coordinate_t clip(const grid_t *s, coordinate_t c, double high) {
  hlo_graph_t *g = s->g;
  hlo_t inside = hlo_and(g, hlo_compare_f(g, HLO_GT, c.x, 0), hlo_compare_f(g, HLO_LT, c.x, high));
  c.x = hlo_minimum(g, hlo_maximum(g, c.x, number(s, 0)), number(s, high));
  c.slope = hlo_select(g, inside, c.slope, number(s, 0));
  return c;
}

/* Mirrors at |low| and low + span, as often as needed. */
static coordinate_t reflect(const grid_t *s, coordinate_t c, double low, double span) {
  hlo_graph_t *g = s->g;
  if (span == 0) return (coordinate_t){hlo_multiply_f(g, c.x, 0), hlo_multiply_f(g, c.slope, 0)};
  hlo_t x = hlo_add_f(g, c.x, -low);
  hlo_t below = hlo_compare_f(g, HLO_LT, x, 0), turns = hlo_abs(g, x), length = number(s, span);
  hlo_t extra = hlo_remainder(g, turns, length);
  hlo_t flips = hlo_floor(g, hlo_divide(g, turns, length));
  hlo_t odd = hlo_compare_f(g, HLO_NE, hlo_remainder(g, flips, number(s, 2)), 0);
  hlo_t back = hlo_subtract(g, length, extra);
  hlo_t down = hlo_xor(g, below, odd);
  c.x = hlo_add_f(g, hlo_select(g, odd, back, extra), low);
  c.slope = hlo_select(g, down, hlo_negate(g, c.slope), c.slope);
  return c;
}

static coordinate_t pad_coordinate(const grid_t *s, coordinate_t c, int k) {
  double size = (double)s->size[k];
  if (s->padding == PAD_ZEROS) return c;
  if (s->padding == PAD_REFLECTION)
    c = s->align ? reflect(s, c, 0, size - 1) : reflect(s, c, -0.5, size);
  return clip(s, c, size - 1);
}

/* ---- taps ---- */

/* A tap at the whole number |at| (still a float). */
static tap_t make_tap(const grid_t *s, int k, hlo_t at, hlo_t weight, hlo_t slope) {
  hlo_graph_t *g = s->g;
  double high = (double)(s->size[k] - 1);
  hlo_t inside = hlo_and(g, hlo_compare_f(g, HLO_GE, at, 0), hlo_compare_f(g, HLO_LE, at, high));
  at = hlo_minimum(g, hlo_maximum(g, at, number(s, 0)), number(s, high));
  return (tap_t){hlo_convert(g, at, TORUS_DTYPE_I32), weight, slope, inside};
}

static void linear_taps(grid_t *s, int k, coordinate_t c) {
  hlo_graph_t *g = s->g;
  hlo_t base = hlo_floor(g, c.x), part = hlo_subtract(g, c.x, base);
  hlo_t rest = hlo_subtract(g, number(s, 1), part);
  s->tap[k][0] = make_tap(s, k, base, rest, hlo_negate(g, c.slope));
  s->tap[k][1] = make_tap(s, k, hlo_add_f(g, base, 1), part, c.slope);
}

static hlo_t cubic(const grid_t *s, hlo_t x, const double *c) {
  hlo_graph_t *g = s->g;
  hlo_t y = hlo_add_f(g, hlo_multiply_f(g, x, c[3]), c[2]);
  y = hlo_add_f(g, hlo_multiply(g, y, x), c[1]);
  return hlo_add_f(g, hlo_multiply(g, y, x), c[0]);
}

/* Keys' kernel with a = -0.75 at distances t + 1, t, 1 - t, 2 - t, and its derivatives by t. */
static void cubic_taps(grid_t *s, int k, coordinate_t c) {
  static const double inner[4] = {1, 0, -2.25, 1.25}, outer[4] = {3, -6, 3.75, -0.75};
  static const double inner_slope[4] = {0, -4.5, 3.75, 0}, outer_slope[4] = {-6, 7.5, -2.25, 0};
  hlo_graph_t *g = s->g;
  hlo_t base = hlo_floor(g, c.x), part = hlo_subtract(g, c.x, base);
  hlo_t rest = hlo_subtract(g, number(s, 1), part);
  const hlo_t distance[4] = {hlo_add_f(g, part, 1), part, rest, hlo_add_f(g, rest, 1)};
  for (int i = 0; i < 4; i++) {
    bool near = i == 1 || i == 2;
    hlo_t slope = cubic(s, distance[i], near ? inner_slope : outer_slope);
    slope = hlo_multiply(g, i < 2 ? slope : hlo_negate(g, slope), c.slope);
    coordinate_t at = pad_coordinate(s, (coordinate_t){hlo_add_f(g, base, i - 1), c.slope}, k);
    at.x = hlo_round_nearest_even(g, at.x);
    s->tap[k][i] = make_tap(s, k, at.x, cubic(s, distance[i], near ? inner : outer), slope);
  }
}

static void nearest_tap(grid_t *s, int k, coordinate_t c) {
  hlo_t one = hlo_full_like(s->g, c.x, TORUS_DTYPE_INVALID, 1);
  s->tap[k][0] = make_tap(s, k, hlo_round_nearest_even(s->g, c.x), one,
                          spatial_zeros_like(s->g, c.x, TORUS_DTYPE_INVALID));
}

static void make_taps(grid_t *s) {
  for (int k = 0; k < s->spatial; k++) {
    coordinate_t c = unnormalise(s, k);
    if (s->mode == MODE_CUBIC) {
      cubic_taps(s, k, c);
      continue;
    }
    c = pad_coordinate(s, c, k);
    if (s->mode == MODE_LINEAR)
      linear_taps(s, k, c);
    else
      nearest_tap(s, k, c);
  }
}

/* ---- corners ---- */

static int corner_count(const grid_t *s) {
  int n = 1;
  for (int k = 0; k < s->spatial; k++) n *= s->taps;
  return n;
}

static const tap_t *tap_of(const grid_t *s, int corner, int k) {
  for (int i = s->spatial - 1; i > k; i--) corner /= s->taps;
  return &s->tap[k][corner % s->taps];
}

/* Row of the flattened image (N * pixels, C). */
static hlo_t corner_row(const grid_t *s, int corner) {
  const int64_t dims[2] = {s->batch, s->points};
  hlo_t row = hlo_iota(s->g, TORUS_DTYPE_I32, 2, dims, 0);
  for (int k = 0; k < s->spatial; k++) {
    row = hlo_multiply(s->g, row, hlo_const_int(s->g, TORUS_DTYPE_I32, s->size[k]));
    row = hlo_add(s->g, row, tap_of(s, corner, k)->index);
  }
  return row;
}

/* The corner's weight, or with |by| >= 0 its derivative by that dimension; 0 outside. */
static hlo_t corner_weight(const grid_t *s, int corner, int by) {
  hlo_t weight = HLO_NONE, inside = HLO_NONE;
  for (int k = 0; k < s->spatial; k++) {
    const tap_t *t = tap_of(s, corner, k);
    hlo_t factor = k == by ? t->slope : t->weight;
    weight = weight == HLO_NONE ? factor : hlo_multiply(s->g, weight, factor);
    inside = inside == HLO_NONE ? t->inside : hlo_and(s->g, inside, t->inside);
  }
  return hlo_select(s->g, inside, weight, number(s, 0));
}

/* (N, P) numbers stretched over the channels of (N, P, C). */
static hlo_t over_channels(const grid_t *s, hlo_t x) {
  const int64_t dims[3] = {s->batch, s->points, s->channels};
  return hlo_broadcast_in_dim(s->g, x, 3, dims, (const int[]){0, 1});
}

/* ---- layouts: (N, C, spatial...) <-> rows with the channels last ---- */

static hlo_t channels_last(const grid_t *s, int i, int64_t rows) {
  hlo_t x = op_tensor_as(s->call, i, s->wide);
  x = spatial_move_dim(s->g, x, 1, s->spatial + 1);
  return hlo_reshape(s->g, x, 2, (const int64_t[]){s->batch * rows, s->channels});
}

static hlo_t channels_first(const grid_t *s, hlo_t x, const int64_t *sizes) {
  int64_t dims[TORUS_MAX_RANK] = {s->batch};
  for (int k = 0; k < s->spatial; k++) dims[k + 1] = sizes[k];
  dims[s->spatial + 1] = s->channels;
  return spatial_move_dim(s->g, hlo_reshape(s->g, x, s->spatial + 2, dims), s->spatial + 1, 1);
}

static int64_t pixels(const grid_t *s) {
  int64_t n = 1;
  for (int k = 0; k < s->spatial; k++) n *= s->size[k];
  return n;
}

static bool grid_fits(const grid_t *s) {
  int rank = s->spatial + 2, grid = s->input + 1;
  bool fits = op_tensor_rank(s->call, s->input) == rank && op_tensor_rank(s->call, grid) == rank;
  fits = fits && op_tensor_dim(s->call, grid, 0) == op_tensor_dim(s->call, s->input, 0) &&
         op_tensor_dim(s->call, grid, rank - 1) == s->spatial &&
         op_tensor_dtype(s->call, grid) == op_tensor_dtype(s->call, s->input);
  for (int k = 0; fits && k < s->spatial; k++) fits = op_tensor_dim(s->call, s->input, k + 2) > 0;
  if (!fits) op_error(s->call, TORUS_STATUS_INVALID_ARGUMENT, "input and grid do not fit");
  return fits;
}

static grid_t read_grid(torus_call_t *call, hlo_graph_t *g, int spatial, int input) {
  grid_t s = {.call = call, .g = g, .spatial = spatial, .input = input};
  s.wide = op_accumulate_type(op_tensor_dtype(call, input));
  s.mode = op_int(call, input + 2);
  s.padding = op_int(call, input + 3);
  s.align = op_bool(call, input + 4);
  s.taps = s.mode == MODE_NEAREST ? 1 : s.mode == MODE_CUBIC ? 4 : 2;
  if (!grid_fits(&s)) return s;
  s.batch = op_tensor_dim(call, input, 0);
  s.channels = op_tensor_dim(call, input, 1);
  s.points = 1;
  for (int k = 0; k < spatial; k++) {
    s.size[k] = op_tensor_dim(call, input, k + 2);
    s.points *= op_tensor_dim(call, input + 1, k + 1);
  }
  return s;
}

/* ---- operators ---- */

static hlo_t sample(const grid_t *s) {
  hlo_t image = channels_last(s, 0, pixels(s)), sum = HLO_NONE;
  for (int i = 0; i < corner_count(s); i++) {
    hlo_t weight = corner_weight(s, i, -1);
    /* Outside nothing is read: not even an infinity times zero. */
    hlo_t value = hlo_take(s->g, image, 0, corner_row(s, i));
    hlo_t used = over_channels(s, hlo_compare_f(s->g, HLO_NE, weight, 0));
    value = hlo_multiply(s->g, value, over_channels(s, weight));
    value = hlo_select(s->g, used, value, number(s, 0));
    sum = sum == HLO_NONE ? value : hlo_add(s->g, sum, value);
  }
  return sum;
}

static void grid_sampler(torus_call_t *call, hlo_graph_t *g, int spatial) {
  grid_t s = read_grid(call, g, spatial, 0);
  if (op_failed(call)) return;
  int64_t sizes[3] = {0};
  for (int k = 0; k < spatial; k++) sizes[k] = op_tensor_dim(call, 1, k + 1);
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  if (s.batch * s.channels * s.points == 0) {
    hlo_t none = hlo_zeros(g, dtype, 2, (const int64_t[]){s.batch * s.points, s.channels});
    op_return(call, 0, channels_first(&s, none, sizes));
    return;
  }
  make_taps(&s);
  op_return(call, 0, hlo_convert(g, channels_first(&s, sample(&s), sizes), dtype));
}

static hlo_t image_gradient(const grid_t *s, hlo_t gy) {
  hlo_t sum = HLO_NONE;
  for (int i = 0; i < corner_count(s); i++) {
    hlo_t part = hlo_multiply(s->g, gy, over_channels(s, corner_weight(s, i, -1)));
    part = spatial_join(s->g, part, 0);
    hlo_t row = hlo_flatten(s->g, corner_row(s, i));
    part = spatial_add_rows(s->g, part, 0, s->batch * pixels(s), row);
    sum = sum == HLO_NONE ? part : hlo_add(s->g, sum, part);
  }
  return channels_first(s, sum, s->size);
}

/* Derivative by one coordinate: over corners and channels, gradient x value x slope. */
static hlo_t coordinate_gradient(const grid_t *s, hlo_t gy, hlo_t image, int k) {
  hlo_t sum = HLO_NONE;
  for (int i = 0; i < corner_count(s); i++) {
    hlo_t value = hlo_multiply(s->g, gy, hlo_take(s->g, image, 0, corner_row(s, i)));
    value = hlo_reduce(s->g, HLO_REDUCE_ADD, value, 1, (const int[]){2}, false);
    value = hlo_multiply(s->g, value, corner_weight(s, i, k));
    sum = sum == HLO_NONE ? value : hlo_add(s->g, sum, value);
  }
  return hlo_unsqueeze(s->g, sum, 2);
}

static hlo_t grid_gradient(const grid_t *s, hlo_t gy) {
  hlo_t image = channels_last(s, s->input, pixels(s)), parts[3];
  for (int k = 0; k < s->spatial; k++)
    parts[s->spatial - 1 - k] = coordinate_gradient(s, gy, image, k);
  int64_t dims[TORUS_MAX_RANK] = {0};
  for (int i = 0; i < s->spatial + 2; i++) dims[i] = op_tensor_dim(s->call, s->input + 1, i);
  hlo_t all = hlo_concatenate(s->g, parts, (size_t)s->spatial, 2);
  return hlo_reshape(s->g, all, s->spatial + 2, dims);
}

/* grad_output 0, input 1, grid 2. */
static void grid_sampler_backward(torus_call_t *call, hlo_graph_t *g, int spatial) {
  grid_t s = read_grid(call, g, spatial, 1);
  if (op_failed(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 1);
  bool empty = s.batch * s.channels * s.points == 0;
  hlo_t gy = HLO_NONE;
  if (!empty) {
    make_taps(&s);
    gy = spatial_split(g, channels_last(&s, 0, s.points), 0, s.batch, s.points);
  }
  for (int k = 0; k < 2; k++) {
    if (op_ints_at(call, 6, k) == 0) {
      op_return_none(call, k);
      continue;
    }
    hlo_t x = empty    ? spatial_zeros_like(g, op_tensor(call, k + 1), TORUS_DTYPE_INVALID)
              : k == 0 ? image_gradient(&s, gy)
                       : grid_gradient(&s, gy);
    op_return(call, k, hlo_convert(g, x, dtype));
  }
}

#define GRID_OPS(n)                                                                                \
  TORUS_OP(grid_sampler_##n##d, "grid_sampler_" #n "d", TORUS_OP_KEEP_FORMAT) {                    \
    grid_sampler(call, g, n);                                                                      \
  }                                                                                                \
  TORUS_OP(grid_sampler_##n##d_backward, "grid_sampler_" #n "d_backward", 0) {                     \
    grid_sampler_backward(call, g, n);                                                             \
  }

GRID_OPS(2)
GRID_OPS(3)
