/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Counting elements into bins. */
#include <math.h>

#include "ops/histogram.h"
#include "ops/sort.h"

/* |weights| added up in |size| bins; places outside are dropped. All rank 1. */
static hlo_t bin_sums(hlo_graph_t *g, hlo_t places, hlo_t weights, int64_t size) {
  hlo_t zeros = hlo_zeros(g, hlo_dtype(g, weights), 1, &size);
  return hlo_put_along(g, HLO_SCATTER_ADD, zeros, 0, places, weights);
}

/* ---- bincount ---- */

/* The largest value, or -1 when one is negative. */
static hlo_t largest_index(hlo_graph_t *g, hlo_t x) {
  hlo_t lowest = hlo_reduce_all(g, HLO_REDUCE_MINIMUM, x);
  hlo_t highest = hlo_reduce_all(g, HLO_REDUCE_MAXIMUM, x);
  hlo_t minus_one = hlo_const_int(g, TORUS_DTYPE_I64, -1);
  return hlo_select(g, hlo_compare_f(g, HLO_LT, lowest, 0), minus_one, highest);
}

static int64_t power_of_two_above(int64_t size) {
  int64_t power = 1;
  while (power < size) power *= 2;
  return power;
}

static hlo_t bin_weights(torus_call_t *call, hlo_graph_t *g, hlo_t x) {
  if (!op_has(call, 1)) return hlo_full_like(g, x, TORUS_DTYPE_I64, 1);
  bool is_f32 = op_tensor_dtype(call, 1) == TORUS_DTYPE_F32;
  return op_tensor_as(call, 1, is_f32 ? TORUS_DTYPE_F32 : TORUS_DTYPE_F64);
}

/* (self, weights, minlength). Bins are counted in a power of two of them, so that a growing
 * maximum does not make a program each time. */
TORUS_OP(bincount, "bincount", 0) {
  int64_t length = op_int(call, 2);
  bool fits = op_tensor_rank(call, 0) == 1 && torus_dtype_is_integral(op_tensor_dtype(call, 0)) &&
              length >= 0;
  if (fits && op_has(call, 1)) fits = op_tensor_numel(call, 1) == op_tensor_numel(call, 0);
  if (!fits) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "bincount only supports 1-d non-negative integral inputs.");
    return;
  }
  if (op_tensor_numel(call, 0) == 0) {
    op_return(call, 0, hlo_zeros(g, TORUS_DTYPE_I64, 1, &length));
    return;
  }
  int64_t largest = op_read_int(call, largest_index(g, op_tensor_as(call, 0, TORUS_DTYPE_I64)));
  if (op_failed(call)) return;
  g = op_graph(call); /* the read ended the window */
  if (largest < 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "bincount only supports 1-d non-negative integral inputs.");
    return;
  }
  int64_t size = largest + 1 > length ? largest + 1 : length;
  hlo_t x = op_tensor_as(call, 0, TORUS_DTYPE_I64);
  hlo_t sums = bin_sums(g, x, bin_weights(call, g, x), power_of_two_above(size));
  op_return_prefix(call, 0, sums, size);
}

/* ---- histc ---- */

/* Elements and the bounds of equal bins. */
typedef struct histc {
  hlo_t x, low, high; /* rank 1 and two scalars of one type */
  int64_t bins;
} histc_t;

/* Equal bounds stand for those of the data. */
static void data_bounds(torus_call_t *call, hlo_graph_t *g, histc_t *h) {
  h->low = hlo_reduce_all(g, HLO_REDUCE_MINIMUM, h->x);
  h->high = hlo_reduce_all(g, HLO_REDUCE_MAXIMUM, h->x);
  if (!torus_dtype_is_float(hlo_dtype(g, h->x))) return;
  hlo_t is_finite = hlo_and(g, hlo_is_finite(g, h->low), hlo_is_finite(g, h->high));
  op_check(call, hlo_not(g, is_finite), TORUS_STATUS_INVALID_ARGUMENT,
           "the range of the input is not finite");
}

/* Bounds that still coincide are moved by |distance| each. */
static void part_bounds(hlo_graph_t *g, histc_t *h, double distance) {
  hlo_t same = hlo_compare(g, HLO_EQ, h->low, h->high);
  hlo_t low = hlo_add_f(g, h->low, -distance), high = hlo_add_f(g, h->high, distance);
  h->low = hlo_select(g, same, low, h->low);
  h->high = hlo_select(g, same, high, h->high);
}

/* The bin of every element; |bins| (dropped) for those outside the bounds and for nan. */
static hlo_t bin_places(hlo_graph_t *g, const histc_t *h) {
  torus_dtype_t dtype = hlo_dtype(g, h->x);
  hlo_t bins = op_count(g, dtype, h->bins);
  hlo_t above = hlo_multiply(g, hlo_subtract(g, h->x, h->low), bins);
  hlo_t place = hlo_divide(g, above, hlo_subtract(g, h->high, h->low));
  hlo_t inside = hlo_and(g, hlo_compare(g, HLO_GE, h->x, h->low),
                         hlo_compare(g, HLO_LE, h->x, h->high));
  place = hlo_convert(g, hlo_select(g, inside, place, hlo_const(g, dtype, 0)), TORUS_DTYPE_I64);
  hlo_t last = op_count(g, TORUS_DTYPE_I64, h->bins - 1);
  hlo_t outside = op_count(g, TORUS_DTYPE_I64, h->bins);
  return hlo_select(g, inside, hlo_minimum(g, place, last), outside);
}

static bool histc_arguments_fit(torus_call_t *call) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  double low = op_double(call, 2), high = op_double(call, 3);
  if (op_int(call, 1) > 0 && low <= high && isfinite(low) && isfinite(high) &&
      dtype != TORUS_DTYPE_BOOL && !torus_dtype_is_complex(dtype)) {
    return true;
  }
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
           "torch.histc: needs real numbers, bins > 0 and finite bounds with max >= min");
  return false;
}

/* (self, bins, min, max). Integers are binned in integer arithmetic, exactly. */
TORUS_OP(histc, "histc", 0) {
  if (!histc_arguments_fit(call)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  bool is_float = torus_dtype_is_float(dtype);
  torus_dtype_t wide = is_float ? op_accumulate_type(dtype) : TORUS_DTYPE_I64;
  histc_t h = {.bins = op_int(call, 1), .x = hlo_flatten(g, op_tensor_as(call, 0, wide))};
  if (op_failed(call)) return;
  h.low = op_scalar(call, 2, wide);
  h.high = op_scalar(call, 3, wide);
  if (op_double(call, 2) == op_double(call, 3)) {
    if (hlo_numel(g, h.x) > 0) data_bounds(call, g, &h);
    part_bounds(g, &h, 1);
  }
  hlo_t ones = hlo_full_like(g, h.x, TORUS_DTYPE_I32, 1);
  op_return(call, 0, hlo_convert(g, bin_sums(g, bin_places(g, &h), ones, h.bins), dtype));
}

/* ---- histogram ---- */

/* Places of the arguments; |range| is -1 where the schema gives the edges themselves. */
typedef struct histogram {
  int range, weight, density;
} histogram_t;

hlo_t histogram_spaced_edges(hlo_graph_t *g, hlo_t low, hlo_t high, int64_t bins) {
  int64_t size = bins + 1;
  torus_dtype_t dtype = hlo_dtype(g, low);
  hlo_t place = hlo_iota(g, dtype, 1, &size, 0), count = op_count(g, dtype, bins);
  hlo_t step = hlo_divide(g, hlo_subtract(g, high, low), count);
  hlo_t rising = hlo_add(g, hlo_multiply(g, place, step), low);
  hlo_t left = hlo_subtract(g, op_like(g, count, place), place);
  hlo_t falling = hlo_subtract(g, op_like(g, high, place), hlo_multiply(g, left, step));
  hlo_t is_lower = hlo_compare(g, HLO_LT, place, op_count(g, dtype, size / 2));
  return hlo_select(g, is_lower, rising, falling);
}

void histogram_bounds(torus_call_t *call, hlo_graph_t *g, hlo_t x, const double *range,
                      hlo_t *out_low, hlo_t *out_high) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  histc_t bounds = {.x = x};
  if (range != NULL) {
    bounds.low = hlo_soft(g, dtype, range[0]);
    bounds.high = hlo_soft(g, dtype, range[1]);
  } else if (hlo_numel(g, x) == 0) {
    bounds.low = hlo_const(g, dtype, 0);
    bounds.high = hlo_const(g, dtype, 1);
  } else {
    data_bounds(call, g, &bounds);
  }
  part_bounds(g, &bounds, 0.5);
  *out_low = bounds.low;
  *out_high = bounds.high;
}

static hlo_t histogram_edges(torus_call_t *call, hlo_graph_t *g, const histogram_t *h, hlo_t x) {
  if (h->range < 0) return op_tensor_as(call, 1, hlo_dtype(g, x));
  int count = 0;
  const double *range = op_doubles(call, h->range, &count);
  hlo_t low, high;
  histogram_bounds(call, g, x, count == 2 ? range : NULL, &low, &high);
  return histogram_spaced_edges(g, low, high, op_int(call, 1));
}

hlo_t histogram_places(hlo_graph_t *g, hlo_t x, hlo_t edges, int64_t bins) {
  hlo_t first = hlo_reshape(g, hlo_slice_dim(g, edges, 0, 0, 1), 0, NULL);
  hlo_t last = hlo_reshape(g, hlo_slice_dim(g, edges, 0, bins, 1), 0, NULL);
  hlo_t inside = hlo_and(g, hlo_compare(g, HLO_GE, x, first), hlo_compare(g, HLO_LE, x, last));
  hlo_t place = hlo_add_f(g, sort_search(g, edges, x, true), -1);
  place = hlo_minimum(g, place, op_count(g, TORUS_DTYPE_I64, bins - 1));
  return hlo_select(g, inside, place, op_count(g, TORUS_DTYPE_I64, bins));
}

/* Counts divided by their sum and the width of their bins. */
static hlo_t as_density(hlo_graph_t *g, hlo_t counts, hlo_t edges, int64_t bins) {
  hlo_t widths = hlo_subtract(g, hlo_slice_dim(g, edges, 0, 1, bins),
                              hlo_slice_dim(g, edges, 0, 0, bins));
  hlo_t sum = hlo_reduce_all(g, HLO_REDUCE_ADD, counts);
  return hlo_divide(g, hlo_divide(g, counts, sum), widths);
}

static bool histogram_arguments_fit(torus_call_t *call, const histogram_t *h) {
  bool fits = torus_dtype_is_float(op_tensor_dtype(call, 0));
  if (h->range < 0) {
    fits &= op_tensor_rank(call, 1) == 1 && op_tensor_numel(call, 1) > 0 &&
            op_tensor_dtype(call, 1) == op_tensor_dtype(call, 0);
  } else {
    fits &= op_int(call, 1) > 0;
  }
  if (op_has(call, h->weight)) {
    fits &= op_tensor_numel(call, h->weight) == op_tensor_numel(call, 0);
  }
  if (fits) return true;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
           "torch.histogram: needs real floats, bins, and weights like the input");
  return false;
}

static void emit_histogram(torus_call_t *call, hlo_graph_t *g, const histogram_t *h) {
  if (!histogram_arguments_fit(call, h)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  hlo_t x = hlo_flatten(g, op_tensor(call, 0));
  if (op_failed(call)) return;
  hlo_t edges = histogram_edges(call, g, h, x);
  if (edges == HLO_NONE) return;
  int64_t bins = hlo_dim(g, edges, 0) - 1;
  hlo_t weights = op_has(call, h->weight) ? hlo_flatten(g, op_tensor_as(call, h->weight, dtype))
                                          : hlo_full_like(g, x, dtype, 1);
  hlo_t counts = bin_sums(g, histogram_places(g, x, edges, bins), weights, bins);
  if (op_bool(call, h->density)) counts = as_density(g, counts, edges, bins);
  op_return(call, 0, counts);
  op_return(call, 1, edges);
}

TORUS_OP(histogram_bins_tensor, "histogram.bins_tensor", 0) {
  emit_histogram(call, g, &(histogram_t){.range = -1, .weight = 2, .density = 3});
}
TORUS_OP(histogram_bin_ct, "histogram.bin_ct", 0) {
  emit_histogram(call, g, &(histogram_t){.range = 2, .weight = 3, .density = 4});
}
