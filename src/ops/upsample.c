/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Resampling to another size, one dimension at a time. An output element reads a few *taps*, input
 * elements with weights. Forward gathers the taps; backward, and the antialiased filters whose taps
 * are many, multiply by the (outputs x inputs) matrix that the taps stand for. */
#include "ops/spatial.h"

typedef enum { NEAREST, NEAREST_EXACT, LINEAR, CUBIC, SMOOTH_LINEAR, SMOOTH_CUBIC } filter_t;

typedef struct resample {
  torus_call_t *call;
  hlo_graph_t *g;
  filter_t filter;
  torus_dtype_t dtype, wide;
  int spatial, scales; /* scales: position of the first scale factor */
  bool align;
} resample_t;

typedef struct axis {
  int dim;
  int64_t in, out;
  double scale; /* input elements per output element */
} axis_t;

typedef struct taps {
  int count;
  hlo_t index[4], weight[4]; /* rank 1, one entry per output; weight HLO_NONE: 1 */
} taps_t;

/* ---- where an output element lies in the input ---- */

static bool is_nearest(filter_t f) { return f == NEAREST || f == NEAREST_EXACT; }
static bool is_smooth(filter_t f) { return f == SMOOTH_LINEAR || f == SMOOTH_CUBIC; }

/* Rounded as PyTorch's kernels do, which hold it in the type they compute in. */
static double scale_of(const resample_t *r, const axis_t *a, int k) {
  double given = op_double_or(r->call, r->scales + k, 0), scale;
  if (r->align)
    scale = a->out > 1 ? (double)(a->in - 1) / (double)(a->out - 1) : 0;
  else
    scale = given > 0 ? 1 / given : (double)a->in / (double)a->out;
  bool in_double = r->wide == TORUS_DTYPE_F64 && !is_nearest(r->filter);
  return in_double ? scale : (double)(float)scale;
}

static axis_t make_axis(const resample_t *r, int k, int64_t in, int64_t out) {
  axis_t a = {.dim = k + 2, .in = in, .out = out};
  a.scale = scale_of(r, &a, k);
  return a;
}

/* Real position of each output element, as a vector. */
static hlo_t positions(const resample_t *r, const axis_t *a) {
  hlo_graph_t *g = r->g;
  torus_dtype_t type = is_nearest(r->filter) ? TORUS_DTYPE_F32 : r->wide;
  hlo_t i = spatial_iota(g, type, a->out), scale = hlo_const(g, type, a->scale);
  if (r->align || r->filter == NEAREST) return hlo_multiply(g, i, scale);
  hlo_t x = hlo_multiply(g, hlo_add_f(g, i, 0.5), scale);
  return r->filter == NEAREST_EXACT ? x : hlo_add_f(g, x, -0.5);
}

static hlo_t as_index(const resample_t *r, const axis_t *a, hlo_t x) {
  return spatial_clamp_int(r->g, hlo_convert(r->g, x, TORUS_DTYPE_I32), 0, a->in - 1);
}

/* ---- taps ---- */

static taps_t nearest_taps(const resample_t *r, const axis_t *a) {
  return (taps_t){1, {as_index(r, a, positions(r, a))}, {HLO_NONE}};
}

static taps_t linear_taps(const resample_t *r, const axis_t *a) {
  hlo_graph_t *g = r->g;
  hlo_t zero = hlo_const(g, r->wide, 0), one = hlo_const(g, r->wide, 1);
  hlo_t x = hlo_maximum(g, positions(r, a), zero);
  hlo_t low = as_index(r, a, x);
  hlo_t high = as_index(r, a, hlo_add(g, low, hlo_const_int(g, TORUS_DTYPE_I32, 1)));
  hlo_t part = hlo_subtract(g, x, hlo_convert(g, low, r->wide));
  part = hlo_minimum(g, hlo_maximum(g, part, zero), one);
  return (taps_t){2, {low, high}, {hlo_subtract(g, one, part), part}};
}

static hlo_t polynomial(hlo_graph_t *g, hlo_t x, const double *c) {
  hlo_t y = hlo_multiply_f(g, x, c[3]);
  for (int i = 2; i > 0; i--) y = hlo_multiply(g, hlo_add_f(g, y, c[i]), x);
  return hlo_add_f(g, y, c[0]);
}

/* Keys' cubic kernel at distance |x|: within 1 (near) and from 1 to 2 (far); constant first. */
static hlo_t keys(hlo_graph_t *g, hlo_t x, double a, bool near) {
  const double inner[4] = {1, 0, -(a + 3), a + 2}, outer[4] = {-4 * a, 8 * a, -5 * a, a};
  return polynomial(g, x, near ? inner : outer);
}

static taps_t cubic_taps(const resample_t *r, const axis_t *a) {
  hlo_graph_t *g = r->g;
  taps_t t = {.count = 4};
  hlo_t x = positions(r, a), base = hlo_floor(g, x), part = hlo_subtract(g, x, base);
  hlo_t rest = hlo_subtract(g, hlo_const(g, r->wide, 1), part);
  const hlo_t distance[4] = {hlo_add_f(g, part, 1), part, rest, hlo_add_f(g, rest, 1)};
  for (int k = 0; k < 4; k++) {
    t.index[k] = as_index(r, a, hlo_add_f(g, base, k - 1));
    t.weight[k] = keys(g, distance[k], -0.75, k == 1 || k == 2);
  }
  return t;
}

static taps_t taps_of(const resample_t *r, const axis_t *a) {
  return is_nearest(r->filter) ? nearest_taps(r, a)
         : r->filter == LINEAR ? linear_taps(r, a)
                               : cubic_taps(r, a);
}

static hlo_t gather_taps(const resample_t *r, const axis_t *a, hlo_t x) {
  taps_t t = taps_of(r, a);
  hlo_t sum = HLO_NONE;
  for (int k = 0; k < t.count; k++) {
    hlo_t part = hlo_take(r->g, x, a->dim, t.index[k]);
    if (t.weight[k] != HLO_NONE) part = spatial_scale(r->g, part, t.weight[k], a->dim);
    sum = sum == HLO_NONE ? part : hlo_add(r->g, sum, part);
  }
  return sum;
}

/* ---- matrices (outputs x inputs) ---- */

static hlo_t taps_matrix(const resample_t *r, const axis_t *a) {
  hlo_graph_t *g = r->g;
  const int64_t dims[2] = {a->out, a->in};
  taps_t t = taps_of(r, a);
  hlo_t column = hlo_iota(g, TORUS_DTYPE_I32, 2, dims, 1), sum = HLO_NONE;
  hlo_t zero = hlo_const(g, r->wide, 0), one = hlo_const(g, r->wide, 1);
  for (int k = 0; k < t.count; k++) {
    hlo_t hit = hlo_compare(g, HLO_EQ, column, spatial_along(g, t.index[k], 2, dims, 0));
    hlo_t weight = t.weight[k] == HLO_NONE ? one : spatial_along(g, t.weight[k], 2, dims, 0);
    hlo_t part = hlo_select(g, hit, weight, zero);
    sum = sum == HLO_NONE ? part : hlo_add(g, sum, part);
  }
  return sum;
}

static hlo_t smooth_kernel(const resample_t *r, hlo_t distance) {
  hlo_graph_t *g = r->g;
  hlo_t zero = hlo_const(g, r->wide, 0), one = hlo_const(g, r->wide, 1);
  if (r->filter == SMOOTH_LINEAR) return hlo_maximum(g, hlo_subtract(g, one, distance), zero);
  hlo_t far =
      hlo_select(g, hlo_compare_f(g, HLO_LT, distance, 2), keys(g, distance, -0.5, false), zero);
  return hlo_select(g, hlo_compare(g, HLO_LT, distance, one), keys(g, distance, -0.5, true), far);
}

/* The kernel is stretched by the scale when shrinking; each row is normalised to sum 1 over the
 * inputs that PyTorch's kernel visits: from trunc(center - support + 0.5) on. */
static hlo_t smooth_matrix(const resample_t *r, const axis_t *a) {
  hlo_graph_t *g = r->g;
  const int64_t dims[2] = {a->out, a->in};
  double stretch = a->scale > 1 ? a->scale : 1;
  double support = (r->filter == SMOOTH_LINEAR ? 1 : 2) * stretch;
  hlo_t row = hlo_iota(g, r->wide, 2, dims, 0), column = hlo_iota(g, r->wide, 2, dims, 1);
  hlo_t center = hlo_multiply_f(g, hlo_add_f(g, row, 0.5), a->scale);
  hlo_t first = hlo_floor(g, hlo_add_f(g, center, 0.5 - support));
  hlo_t end = hlo_floor(g, hlo_add_f(g, center, 0.5 + support));
  hlo_t inside =
      hlo_and(g, hlo_compare(g, HLO_GE, column, first), hlo_compare(g, HLO_LT, column, end));
  hlo_t distance = hlo_subtract(g, hlo_add_f(g, column, 0.5), center);
  distance = hlo_abs(g, hlo_multiply_f(g, distance, 1 / stretch));
  hlo_t weight = hlo_select(g, inside, smooth_kernel(r, distance), hlo_const(g, r->wide, 0));
  hlo_t sum = hlo_reduce(g, HLO_REDUCE_ADD, weight, 1, (const int[]){1}, true);
  return hlo_divide(g, weight, hlo_expand(g, sum, 2, dims));
}

/* Contracts dimension |dim| of x with |of| of the matrix; the matrix's other one takes its place.
 */
static hlo_t apply_matrix(const resample_t *r, const axis_t *a, hlo_t x, int of) {
  hlo_dot_dims_t dims = {.contract_count = 1, .lhs_contract = {a->dim}, .rhs_contract = {of}};
  hlo_t matrix = is_smooth(r->filter) ? smooth_matrix(r, a) : taps_matrix(r, a);
  hlo_t y = hlo_dot_general(r->g, x, matrix, &dims, r->wide);
  return spatial_move_dim(r->g, y, r->spatial + 1, a->dim);
}

/* ---- nearest by a whole factor: a repetition ---- */

static bool repeats(const resample_t *r, const axis_t *a) {
  if (!is_nearest(r->filter) || a->out % a->in != 0) return false;
  float scale = (float)a->scale, shift = r->filter == NEAREST ? 0.0F : 0.5F;
  for (int64_t i = 0; i < a->out; i++) {
    volatile float at = ((float)i + shift) * scale;
    if ((int64_t)at != i / (a->out / a->in)) return false;
  }
  return true;
}

static hlo_t repeat(const resample_t *r, const axis_t *a, hlo_t x) {
  int64_t dims[TORUS_MAX_RANK] = {0};
  x = hlo_unsqueeze(r->g, x, a->dim + 1);
  int rank = hlo_shape(r->g, x, dims);
  dims[a->dim + 1] = a->out / a->in;
  return spatial_join(r->g, hlo_expand(r->g, x, rank, dims), a->dim);
}

static hlo_t sum_repeats(const resample_t *r, const axis_t *a, hlo_t y) {
  y = spatial_split(r->g, y, a->dim, a->in, a->out / a->in);
  return hlo_reduce(r->g, HLO_REDUCE_ADD, y, 1, (const int[]){a->dim + 1}, false);
}

/* ---- operators ---- */

static hlo_t resample_dim(const resample_t *r, const axis_t *a, hlo_t x) {
  if (a->in == a->out && a->scale == 1) return x;
  if (repeats(r, a)) return repeat(r, a, x);
  return is_smooth(r->filter) ? apply_matrix(r, a, x, 1) : gather_taps(r, a, x);
}

static hlo_t resample_dim_back(const resample_t *r, const axis_t *a, hlo_t y) {
  if (a->in == a->out && a->scale == 1) return y;
  return repeats(r, a) ? sum_repeats(r, a, y) : apply_matrix(r, a, y, 0);
}

static resample_t read_resample(torus_call_t *call, hlo_graph_t *g, filter_t filter, int spatial,
                                int align) {
  resample_t r = {.call = call, .g = g, .filter = filter, .spatial = spatial};
  r.dtype = op_tensor_dtype(call, 0);
  bool integral = torus_dtype_is_integral(r.dtype);
  r.wide = integral && !is_nearest(filter) ? TORUS_DTYPE_F32 : op_accumulate_type(r.dtype);
  r.align = !is_nearest(filter) && op_bool(call, align);
  r.scales = is_nearest(filter) ? align : align + 1;
  return r;
}

static bool resample_fits(const resample_t *r) {
  bool fits = op_tensor_rank(r->call, 0) == r->spatial + 2 && !torus_dtype_is_complex(r->dtype) &&
              r->dtype != TORUS_DTYPE_BOOL;
  for (int k = 0; fits && k < r->spatial; k++)
    fits = op_tensor_dim(r->call, 0, k + 2) > 0 && op_ints_at(r->call, 1, k) > 0;
  if (!fits) op_error(r->call, TORUS_STATUS_INVALID_ARGUMENT, "unexpected sizes to resample");
  return fits;
}

static hlo_t rounded(const resample_t *r, hlo_t x) {
  if (!torus_dtype_is_integral(r->dtype) || is_nearest(r->filter))
    return hlo_convert(r->g, x, r->dtype);
  x = hlo_maximum(r->g, hlo_round_nearest_even(r->g, x), hlo_const(r->g, r->wide, 0));
  return hlo_convert(r->g, hlo_minimum(r->g, x, hlo_const(r->g, r->wide, 255)), r->dtype);
}

static void resample(torus_call_t *call, hlo_graph_t *g, filter_t filter, int spatial) {
  resample_t r = read_resample(call, g, filter, spatial, 2);
  if (!resample_fits(&r)) return;
  hlo_t x = is_nearest(filter) ? op_tensor(call, 0) : op_tensor_as(call, 0, r.wide);
  for (int k = spatial - 1; k >= 0; k--) {
    axis_t a = make_axis(&r, k, op_tensor_dim(call, 0, k + 2), op_ints_at(call, 1, k));
    x = resample_dim(&r, &a, x);
  }
  op_return(call, 0, rounded(&r, x));
}

static void resample_backward(torus_call_t *call, hlo_graph_t *g, filter_t filter, int spatial) {
  resample_t r = read_resample(call, g, filter, spatial, 3);
  if (!resample_fits(&r)) return;
  hlo_t y = op_tensor_as(call, 0, r.wide);
  for (int k = 0; k < spatial; k++) {
    axis_t a = make_axis(&r, k, op_ints_at(call, 2, k + 2), op_ints_at(call, 1, k));
    y = resample_dim_back(&r, &a, y);
  }
  op_return(call, 0, rounded(&r, y));
}

#define RESAMPLE_OPS(name, filter, spatial)                                                        \
  TORUS_OP(name, #name, TORUS_OP_KEEP_FORMAT) { resample(call, g, filter, spatial); }              \
  TORUS_OP(name##_backward, #name "_backward", TORUS_OP_KEEP_FORMAT) {                             \
    resample_backward(call, g, filter, spatial);                                                   \
  }

RESAMPLE_OPS(upsample_nearest1d, NEAREST, 1)
RESAMPLE_OPS(upsample_nearest2d, NEAREST, 2)
RESAMPLE_OPS(upsample_nearest3d, NEAREST, 3)
RESAMPLE_OPS(_upsample_nearest_exact1d, NEAREST_EXACT, 1)
RESAMPLE_OPS(_upsample_nearest_exact2d, NEAREST_EXACT, 2)
RESAMPLE_OPS(_upsample_nearest_exact3d, NEAREST_EXACT, 3)
RESAMPLE_OPS(upsample_linear1d, LINEAR, 1)
RESAMPLE_OPS(upsample_bilinear2d, LINEAR, 2)
RESAMPLE_OPS(upsample_trilinear3d, LINEAR, 3)
RESAMPLE_OPS(upsample_bicubic2d, CUBIC, 2)
RESAMPLE_OPS(_upsample_bilinear2d_aa, SMOOTH_LINEAR, 2)
RESAMPLE_OPS(_upsample_bicubic2d_aa, SMOOTH_CUBIC, 2)
