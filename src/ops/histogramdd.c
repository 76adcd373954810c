/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Histograms over several dimensions: the last dimension of the operand holds coordinates. */
#include "ops/histogram.h"
#include "ops/math.h"

typedef struct hdd {
  torus_dtype_t dtype;
  hlo_t x;        /* (M, D) */
  int64_t points; /* M */
  int dims;       /* D */
  hlo_t edges[TORUS_MAX_RANK];
  int64_t bins[TORUS_MAX_RANK];
} hdd_t;

/* Places of the arguments behind self and bins; |range| is -1 where the edges are given. */
typedef struct hdd_args {
  int range, weight, density;
} hdd_args_t;

/* ---- arguments ---- */

static bool read_points(torus_call_t *call, hlo_graph_t *g, int bin_count, hdd_t *h) {
  int rank = op_tensor_rank(call, 0);
  h->dtype = op_tensor_dtype(call, 0);
  h->dims = rank < 2 ? 0 : (int)op_tensor_dim(call, 0, rank - 1);
  if (h->dims < 1 || h->dims != bin_count || h->dims > TORUS_MAX_RANK ||
      !torus_dtype_is_float(h->dtype)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "torch.histogramdd: needs real floats of two or more dimensions, and bins for each "
             "coordinate");
    return false;
  }
  h->points = op_tensor_numel(call, 0) / h->dims;
  h->x = hlo_reshape(g, op_tensor(call, 0), 2, (int64_t[]){h->points, h->dims});
  return !op_failed(call);
}

/* Both bounds of coordinate |d|. */
static void read_bounds(torus_call_t *call, hlo_graph_t *g, const hdd_t *h, int range, int d,
                        hlo_t *out_low, hlo_t *out_high) {
  int count = 0;
  const double *numbers = op_doubles(call, range, &count);
  if (count != 0 && count != 2 * h->dims) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "torch.histogramdd: range should have two numbers for each coordinate");
  }
  hlo_t column = hlo_index_dim(g, h->x, 1, d);
  histogram_bounds(call, g, column, count == 2 * h->dims ? numbers + 2 * d : NULL, out_low,
                   out_high);
}

static bool make_edges(torus_call_t *call, hlo_graph_t *g, int range, hdd_t *h) {
  int count = 0;
  const int64_t *bins = op_ints(call, 1, &count);
  if (!read_points(call, g, count, h)) return false;
  for (int d = 0; d < h->dims; d++) {
    hlo_t low, high;
    h->bins[d] = bins[d];
    if (bins[d] < 1) {
      op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "torch.histogramdd: bins must be positive");
      return false;
    }
    read_bounds(call, g, h, range, d, &low, &high);
    if (op_failed(call)) return false;
    h->edges[d] = histogram_spaced_edges(g, low, high, bins[d]);
  }
  return true;
}

static bool read_edges(torus_call_t *call, hlo_graph_t *g, hdd_t *h) {
  if (!read_points(call, g, op_list_size(call, 1), h)) return false;
  for (int d = 0; d < h->dims; d++) {
    h->edges[d] = op_list_tensor(call, 1, d);
    if (op_failed(call)) return false;
    h->bins[d] = hlo_numel(g, h->edges[d]) - 1;
    if (hlo_rank(g, h->edges[d]) == 1 && h->bins[d] >= 0 &&
        hlo_dtype(g, h->edges[d]) == h->dtype)
      continue;
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "torch.histogramdd: edges should be of one dimension and of the type of the input");
    return false;
  }
  return true;
}

/* ---- counting ---- */

/* The row-major number of each point's bin, or the number of bins for points outside. */
static hlo_t point_places(hlo_graph_t *g, const hdd_t *h) {
  hlo_t place = HLO_NONE, inside = HLO_NONE;
  int64_t total = 1;
  for (int d = 0; d < h->dims; d++) {
    hlo_t own = histogram_places(g, hlo_index_dim(g, h->x, 1, d), h->edges[d], h->bins[d]);
    hlo_t size = op_count(g, TORUS_DTYPE_I64, h->bins[d]);
    hlo_t fits = hlo_compare(g, HLO_LT, own, size);
    place = d == 0 ? own : hlo_add(g, hlo_multiply(g, place, size), own);
    inside = d == 0 ? fits : hlo_and(g, inside, fits);
    total *= h->bins[d];
  }
  return hlo_select(g, inside, place, op_count(g, TORUS_DTYPE_I64, total));
}

/* Divided by the sum and the volume of each bin. */
static hlo_t as_density(hlo_graph_t *g, const hdd_t *h, hlo_t counts) {
  counts = hlo_divide(g, counts, hlo_reduce_all(g, HLO_REDUCE_ADD, counts));
  for (int d = 0; d < h->dims; d++) {
    hlo_t widths = hlo_subtract(g, hlo_slice_dim(g, h->edges[d], 0, 1, h->bins[d]),
                                hlo_slice_dim(g, h->edges[d], 0, 0, h->bins[d]));
    counts = hlo_divide(g, counts, hlo_broadcast_in_dim(g, widths, h->dims, h->bins, &d));
  }
  return counts;
}

static void return_counts(torus_call_t *call, hlo_graph_t *g, const hdd_args_t *args,
                          const hdd_t *h) {
  int64_t total = 1;
  for (int d = 0; d < h->dims; d++)
    total *= h->bins[d];
  bool has_weight = op_has(call, args->weight);
  if (has_weight && op_tensor_numel(call, args->weight) != h->points) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "torch.histogramdd: weights should be as many as points");
    return;
  }
  hlo_t sums = hlo_zeros(g, h->dtype, 1, &total);
  if (total > 0 && h->points > 0) {
    hlo_t place = point_places(g, h);
    hlo_t weights = has_weight ? hlo_flatten(g, op_tensor_as(call, args->weight, h->dtype))
                               : hlo_full_like(g, place, h->dtype, 1);
    sums = hlo_put_along(g, HLO_SCATTER_ADD, sums, 0, place, weights);
  }
  sums = hlo_reshape(g, sums, h->dims, h->bins);
  op_return(call, 0, op_bool(call, args->density) ? as_density(g, h, sums) : sums);
}

/* (self, bins, weight, density) */
TORUS_OP(histogramdd_tensors, "_histogramdd_from_bin_tensors", 0) {
  hdd_t h;
  if (read_edges(call, g, &h)) return_counts(call, g, &(hdd_args_t){-1, 2, 3}, &h);
}

/* (self, bins, range, weight, density) */
TORUS_OP(histogramdd_counts, "_histogramdd_from_bin_cts", 0) {
  hdd_t h;
  if (make_edges(call, g, 2, &h)) return_counts(call, g, &(hdd_args_t){2, 3, 4}, &h);
}

TORUS_OP(histogramdd_edges, "_histogramdd_bin_edges", 0) {
  hdd_t h;
  if (!make_edges(call, g, 2, &h)) return;
  for (int d = 0; d < h.dims; d++)
    op_return(call, d, h.edges[d]);
}
