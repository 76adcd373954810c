/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Reductions of consecutive pieces of a dimension, whose lengths or offsets are data. */
#include <math.h>
#include <string.h>

#include "ops/axes.h"
#include "ops/indexing.h"
#include "ops/math.h"
#include "ops/sort.h"

typedef enum { SEGMENT_SUM, SEGMENT_MEAN, SEGMENT_MAX, SEGMENT_MIN, SEGMENT_PROD } segment_how_t;

typedef struct segments {
  segment_how_t how;
  torus_dtype_t dtype;         /* computed in */
  int axis, rank;              /* of the data */
  int64_t dims[TORUS_MAX_RANK];
  int64_t rows, length, count, inner; /* data as [rows * length, inner], segments [rows * count] */
  hlo_t sizes;                 /* I64 [rows * count]: elements of each segment */
  hlo_t owner;                 /* I64 [rows * length]: segment of each element; dropped: the number
                                  of segments */
} segments_t;

/* ---- arguments ---- */

static bool parse_how(torus_call_t *call, int i, segment_how_t *out_how) {
  static const char *const names[] = {"sum", "mean", "max", "min", "prod"};
  const char *name = op_string(call, i);
  for (int k = 0; name != NULL && k < 5; k++) {
    *out_how = (segment_how_t)k;
    if (strcmp(name, names[k]) == 0) return true;
  }
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "unsupported reduction given!");
  return false;
}

/* |places| (lengths or offsets) must have the data's dimensions up to the axis. */
static bool read_shape(torus_call_t *call, int data, int axis, int places, bool is_offsets,
                       segments_t *s) {
  s->rank = op_tensor_rank(call, data);
  s->axis = op_dim(call, axis, s->rank);
  bool fits = torus_dtype_is_float(op_tensor_dtype(call, data)) && !op_failed(call) &&
              s->rank > 0 && op_tensor_rank(call, places) == s->axis + 1;
  for (int d = 0; fits && d < s->axis; d++)
    fits = op_tensor_dim(call, places, d) == op_tensor_dim(call, data, d);
  if (fits) s->count = op_tensor_dim(call, places, s->axis) - is_offsets;
  if (fits && s->count >= 0) return true;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "segment_reduce: sizes do not fit the data");
  return false;
}

static void flatten_shape(const torus_call_t *call, int data, segments_t *s) {
  s->rows = s->inner = 1;
  for (int d = 0; d < s->rank; d++) {
    s->dims[d] = op_tensor_dim(call, data, d);
    if (d < s->axis) s->rows *= s->dims[d];
    if (d > s->axis) s->inner *= s->dims[d];
  }
  s->length = s->dims[s->axis];
}

/* Starts and ends [rows, count] of the segments. */
static void read_bounds(torus_call_t *call, hlo_graph_t *g, int places, bool is_offsets,
                        const segments_t *s, hlo_t *out_starts, hlo_t *out_ends) {
  const int64_t dims[2] = {s->rows, s->count + is_offsets};
  hlo_t x = hlo_reshape(g, op_tensor_as(call, places, TORUS_DTYPE_I64), 2, dims);
  if (is_offsets) {
    *out_starts = hlo_slice_dim(g, x, 1, 0, s->count);
    *out_ends = hlo_slice_dim(g, x, 1, 1, s->count);
  } else {
    *out_ends = hlo_scan(g, HLO_REDUCE_ADD, x, 1);
    *out_starts = hlo_subtract(g, *out_ends, x);
  }
}

/* Lengths that do not add up to the data's are refused where the caller did not promise them. */
static void check_lengths(torus_call_t *call, hlo_graph_t *g, const segments_t *s, hlo_t sizes,
                          hlo_t ends) {
  if (s->rows == 0 || s->count == 0) return;
  hlo_t total = hlo_slice_dim(g, ends, 1, s->count - 1, 1);
  hlo_t wrong = hlo_compare(g, HLO_NE, total, math_size(g, TORUS_DTYPE_I64, s->length));
  op_check(call, hlo_reduce_all(g, HLO_REDUCE_OR, wrong), TORUS_STATUS_INVALID_ARGUMENT,
           "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(axis) "
           "when !unsafe.");
  op_check(call, hlo_reduce_all(g, HLO_REDUCE_OR, hlo_compare_f(g, HLO_LT, sizes, 0)),
           TORUS_STATUS_INVALID_ARGUMENT, "lengths contains negative value!");
}

/* The segment that holds each element: as many segments end at or before it. */
static hlo_t owners(hlo_graph_t *g, const segments_t *s, hlo_t starts, hlo_t ends) {
  const int64_t dims[2] = {s->rows, s->length}, flat = s->rows * s->length;
  hlo_t place = hlo_iota(g, TORUS_DTYPE_I64, 2, dims, 1);
  hlo_t first = hlo_slice_dim(g, starts, 1, 0, 1);
  hlo_t own = sort_search(g, ends, place, true);
  hlo_t inside = hlo_and(g, hlo_compare(g, HLO_GE, place, hlo_expand(g, first, 2, dims)),
                         hlo_compare(g, HLO_LT, own, math_size(g, TORUS_DTYPE_I64, s->count)));
  hlo_t row = hlo_multiply(g, hlo_iota(g, TORUS_DTYPE_I64, 2, dims, 0),
                           math_size(g, TORUS_DTYPE_I64, s->count));
  hlo_t none = math_size(g, TORUS_DTYPE_I64, s->rows * s->count);
  return hlo_reshape(g, hlo_select(g, inside, hlo_add(g, own, row), none), 1, &flat);
}

/* Arguments by their places; |unsafe| is -1 where the schema has none. */
typedef struct segment_args {
  int data, how, lengths, offsets, axis, unsafe, initial;
} segment_args_t;

static bool read_segments(torus_call_t *call, hlo_graph_t *g, const segment_args_t *a,
                          segments_t *s) {
  bool is_offsets = op_has(call, a->offsets);
  int places = is_offsets ? a->offsets : a->lengths;
  if (!op_has(call, places)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "segment_reduce(): Either lengths or offsets must be defined.");
    return false;
  }
  if (!parse_how(call, a->how, &s->how)) return false;
  if (!read_shape(call, a->data, a->axis, places, is_offsets, s)) return false;
  flatten_shape(call, a->data, s);
  s->dtype = op_accumulate_type(op_tensor_dtype(call, a->data));
  hlo_t starts, ends;
  read_bounds(call, g, places, is_offsets, s, &starts, &ends);
  hlo_t sizes = hlo_subtract(g, ends, starts);
  if (!is_offsets && a->unsafe >= 0 && !op_bool(call, a->unsafe))
    check_lengths(call, g, s, sizes, ends);
  s->sizes = hlo_flatten(g, sizes);
  bool is_empty = s->rows * s->length * s->count == 0;
  s->owner = is_empty ? HLO_NONE : owners(g, s, starts, ends);
  return !op_failed(call) && !hlo_graph_failed(g);
}

static hlo_t read_elements(torus_call_t *call, hlo_graph_t *g, const segments_t *s, int i) {
  return hlo_reshape(g, op_tensor_as(call, i, s->dtype), 2,
                     (int64_t[]){s->rows * s->length, s->inner});
}

static hlo_t read_results(torus_call_t *call, hlo_graph_t *g, const segments_t *s, int i) {
  return hlo_reshape(g, op_tensor_as(call, i, s->dtype), 2,
                     (int64_t[]){s->rows * s->count, s->inner});
}

/* ---- steps ---- */

static double neutral(segment_how_t how) {
  static const double numbers[] = {0, 0, -INFINITY, INFINITY, 1};
  return numbers[how];
}

static hlo_scatter_t scatter_of(segment_how_t how) {
  static const hlo_scatter_t kinds[] = {HLO_SCATTER_ADD, HLO_SCATTER_ADD, HLO_SCATTER_MAXIMUM,
                                        HLO_SCATTER_MINIMUM, HLO_SCATTER_MULTIPLY};
  return kinds[how];
}

/* |x| of the elements combined by segment, starting from |start|. */
static hlo_t combine(hlo_graph_t *g, const segments_t *s, segment_how_t how, hlo_t start, hlo_t x) {
  hlo_t base = hlo_splat(g, start, 2, (int64_t[]){s->rows * s->count, s->inner});
  if (s->owner == HLO_NONE || s->inner == 0) return base;
  return index_put_rows(g, scatter_of(how), base, 0, s->owner, x);
}

/* What belongs to a segment, for each of its elements; anything for elements of none. */
static hlo_t of_owner(hlo_graph_t *g, const segments_t *s, hlo_t x) {
  hlo_t last = math_size(g, TORUS_DTYPE_I64, s->rows * s->count - 1);
  return hlo_take(g, x, 0, hlo_minimum(g, s->owner, last));
}

static hlo_t sizes_over_inner(hlo_graph_t *g, const segments_t *s) {
  return hlo_broadcast_in_dim(g, hlo_convert(g, s->sizes, s->dtype), 2,
                              (int64_t[]){s->rows * s->count, s->inner}, (const int[]){0});
}

static hlo_t start_of(torus_call_t *call, hlo_graph_t *g, const segments_t *s, int initial) {
  if (op_has(call, initial)) return op_scalar(call, initial, s->dtype);
  return hlo_const(g, s->dtype, neutral(s->how));
}

/* Empty segments keep the initial value, or have no mean. */
static hlo_t divide_by_sizes(torus_call_t *call, hlo_graph_t *g, const segments_t *s, hlo_t sum,
                             int initial) {
  hlo_t sizes = sizes_over_inner(g, s);
  hlo_t empty = hlo_compare_f(g, HLO_LE, sizes, 0);
  hlo_t otherwise = op_has(call, initial) ? sum : hlo_full_like(g, sum, s->dtype, NAN);
  return hlo_select(g, empty, otherwise, hlo_divide(g, sum, sizes));
}

/* (data, reduce, lengths, indices, offsets, axis, unsafe, initial) */
TORUS_OP(segment_reduce, "segment_reduce", 0) {
  const segment_args_t args = {0, 1, 2, 4, 5, 6, 7};
  segments_t s;
  if (op_has(call, 3)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "segment_reduce(): indices based reduction is not supported yet.");
    return;
  }
  if (!read_segments(call, g, &args, &s)) return;
  hlo_t x = combine(g, &s, s.how, start_of(call, g, &s, 7), read_elements(call, g, &s, 0));
  if (s.how == SEGMENT_MEAN) x = divide_by_sizes(call, g, &s, x, 7);
  s.dims[s.axis] = s.count;
  op_return(call, 0, hlo_convert(g, hlo_reshape(g, x, s.rank, s.dims), op_tensor_dtype(call, 0)));
}

/* ---- gradient ---- */

/* The gradient is shared by all elements that equal the result, and by nan. */
static hlo_t extremum_gradient(hlo_graph_t *g, const segments_t *s, hlo_t x, hlo_t y, hlo_t dy) {
  hlo_t hit = hlo_or(g, hlo_is_nan(g, x), hlo_compare(g, HLO_EQ, x, of_owner(g, s, y)));
  hit = hlo_convert(g, hit, s->dtype);
  hlo_t hits = combine(g, s, SEGMENT_SUM, hlo_const(g, s->dtype, 0), hit);
  return hlo_multiply(g, hit, hlo_divide(g, of_owner(g, s, dy), of_owner(g, s, hits)));
}

/* True for elements in whose segment another one is |marked|. */
static hlo_t others_marked(hlo_graph_t *g, const segments_t *s, hlo_t marked) {
  hlo_t ones = hlo_convert(g, marked, s->dtype);
  hlo_t sum = combine(g, s, SEGMENT_SUM, hlo_const(g, s->dtype, 0), ones);
  return hlo_compare_f(g, HLO_GT, hlo_subtract(g, of_owner(g, s, sum), ones), 0);
}

/* Where an element is 0 or nan the product of the others is not result / element. */
static hlo_t product_gradient(hlo_graph_t *g, const segments_t *s, hlo_t start, hlo_t x, hlo_t y,
                              hlo_t dy) {
  hlo_t is_nan = hlo_is_nan(g, x), is_zero = hlo_compare_f(g, HLO_EQ, x, 0);
  hlo_t is_special = hlo_or(g, is_nan, is_zero);
  hlo_t plain = hlo_select(g, is_special, hlo_const(g, s->dtype, 1), x);
  hlo_t rest = of_owner(g, s, combine(g, s, SEGMENT_PROD, start, plain));
  rest = hlo_select(g, others_marked(g, s, is_zero), hlo_const(g, s->dtype, 0), rest);
  rest = hlo_select(g, others_marked(g, s, is_nan), hlo_const(g, s->dtype, NAN), rest);
  rest = hlo_select(g, is_special, rest, hlo_divide(g, of_owner(g, s, y), plain));
  return hlo_multiply(g, rest, of_owner(g, s, dy));
}

static hlo_t segment_gradient(torus_call_t *call, hlo_graph_t *g, const segments_t *s) {
  hlo_t dy = read_results(call, g, s, 0), y = read_results(call, g, s, 1);
  hlo_t x = read_elements(call, g, s, 2);
  switch (s->how) {
  case SEGMENT_SUM: return of_owner(g, s, dy);
  case SEGMENT_MEAN: return of_owner(g, s, hlo_divide(g, dy, sizes_over_inner(g, s)));
  case SEGMENT_PROD: return product_gradient(g, s, start_of(call, g, s, 7), x, y, dy);
  default: return extremum_gradient(g, s, x, y, dy);
  }
}

/* (grad, output, data, reduce, lengths, offsets, axis, initial) */
TORUS_OP(segment_reduce_backward, "_segment_reduce_backward", 0) {
  const segment_args_t args = {2, 3, 4, 5, 6, -1, 7};
  segments_t s;
  if (!read_segments(call, g, &args, &s)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 2);
  if (s.owner == HLO_NONE || s.inner == 0) {
    op_return(call, 0, hlo_zeros(g, dtype, s.rank, s.dims));
    return;
  }
  hlo_t dx = segment_gradient(call, g, &s);
  hlo_t none = math_size(g, TORUS_DTYPE_I64, s.rows * s.count);
  hlo_t counts = hlo_compare(g, HLO_LT, s.owner, none);
  counts = hlo_broadcast_in_dim(g, counts, 2, (int64_t[]){s.rows * s.length, s.inner},
                                (const int[]){0});
  dx = hlo_select(g, counts, dx, hlo_const(g, s.dtype, 0));
  op_return(call, 0, hlo_convert(g, hlo_reshape(g, dx, s.rank, s.dims), dtype));
}
