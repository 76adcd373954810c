/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Reductions over sliding windows, their backward, and running reductions. */
#include <string.h>

#include "hlo/graph_internal.h"

hlo_window_t hlo_window_identity(void) {
  hlo_window_t window = {0};
  for (int i = 0; i < TORUS_MAX_RANK; i++) {
    window.size[i] = window.stride[i] = window.dilation[i] = window.base_dilation[i] = 1;
  }
  return window;
}

/* ---- shapes ---- */

static int64_t windows_along(int64_t extent, const hlo_window_t *w, int i) {
  int64_t span = (w->size[i] - 1) * w->dilation[i] + 1;
  int64_t base = extent > 0 ? (extent - 1) * w->base_dilation[i] + 1 : 0;
  int64_t room = base + w->low[i] + w->high[i] - span;
  return room < 0 ? 0 : room / w->stride[i] + 1;
}

/* Fills |out_dims|; false after an error. */
static bool window_dims(hlo_graph_t *g, hlo_op_t op, hlo_t x, const hlo_window_t *w,
                        int64_t *out_dims) {
  int rank = hlo_rank(g, x);
  for (int i = 0; i < rank; i++) {
    if (w->size[i] < 1 || w->stride[i] < 1 || w->dilation[i] < 1 || w->base_dilation[i] < 1) {
      hlo_fail_types(g, op, "window sizes, strides and dilations must be positive", x, HLO_NONE);
      return false;
    }
    out_dims[i] = windows_along(hlo_dims(g, x)[i], w, i);
  }
  return true;
}

/* attrs of window operations: size, stride, dilation, base dilation, low, high, one number each
 * per dimension. */
static size_t window_attrs(const hlo_window_t *w, int rank, int64_t *out_attrs) {
  const int64_t *fields[] = {w->size, w->stride, w->dilation, w->base_dilation, w->low, w->high};
  for (int k = 0; k < 6 && rank; k++) {
    memcpy(out_attrs + k * rank, fields[k], (size_t)rank * sizeof *out_attrs);
  }
  return 6 * (size_t)rank;
}

static bool is_single(const hlo_window_t *w, int rank) {
  bool single = true;
  for (int i = 0; i < rank; i++) {
    single &= w->size[i] == 1 && w->stride[i] == 1 && w->base_dilation[i] == 1 && w->low[i] == 0 &&
              w->high[i] == 0;
  }
  return single;
}

/* ---- reduce_window ---- */

/* mode: hlo_reduction_t. */
hlo_t hlo_reduce_window(hlo_graph_t *g, hlo_reduction_t how, hlo_t x, const hlo_window_t *window) {
  hlo_op_t op = HLO_OP_REDUCE_WINDOW;
  int64_t dims[TORUS_MAX_RANK], attrs[6 * TORUS_MAX_RANK];
  if (!hlo_usable(g, op, x) || !hlo_reduction_for(g, op, x, &how) ||
      !window_dims(g, op, x, window, dims)) {
    return HLO_NONE;
  }
  int rank = hlo_rank(g, x);
  torus_dtype_t dtype = hlo_dtype(g, x);
  if (is_single(window, rank)) return x;
  hlo_t identity = hlo_identity_of(g, how, dtype);
  if (identity == HLO_NONE) return HLO_NONE;
  if (hlo_numel(g, x) == 0 || hlo_product(rank, dims) == 0) {
    return hlo_splat(g, identity, rank, dims);
  }
  return hlo_append(g, &(hlo_spec_t){.op = op,
                                     .dtype = dtype,
                                     .mode = (int)how,
                                     .rank = rank,
                                     .dims = dims,
                                     .operands = (hlo_t[]){x, identity},
                                     .operand_count = 2,
                                     .attrs = attrs,
                                     .attr_count = window_attrs(window, rank, attrs)});
}

/* Two results. operands: keys, payload, their initial values. Of equal keys the one with the
 * smaller payload wins, which is the first one for payloads that count elements. */
static void append_window_arg(hlo_graph_t *g, hlo_t keys, hlo_t payload,
                              const hlo_window_t *window, const int64_t *dims, hlo_t *out_keys,
                              hlo_t *out_payload) {
  int rank = hlo_rank(g, keys);
  torus_dtype_t key_type = hlo_dtype(g, keys), payload_type = hlo_dtype(g, payload);
  int64_t attrs[6 * TORUS_MAX_RANK];
  hlo_t operands[] = {keys, payload, hlo_lowest(g, key_type), hlo_highest(g, payload_type)};
  hlo_t node = hlo_append(g, &(hlo_spec_t){.op = HLO_OP_REDUCE_WINDOW_ARG,
                                           .dtype = key_type,
                                           .mode = 1,
                                           .rank = rank,
                                           .dims = dims,
                                           .operands = operands,
                                           .operand_count = 4,
                                           .attrs = attrs,
                                           .attr_count = window_attrs(window, rank, attrs)});
  *out_keys = hlo_append_result(g, node, 0, key_type, rank, dims);
  *out_payload = hlo_append_result(g, node, 1, payload_type, rank, dims);
}

void hlo_reduce_window_arg(hlo_graph_t *g, hlo_t keys, hlo_t payload, const hlo_window_t *window,
                           hlo_t *out_keys, hlo_t *out_payload) {
  *out_keys = *out_payload = HLO_NONE;
  hlo_op_t op = HLO_OP_REDUCE_WINDOW_ARG;
  int64_t dims[TORUS_MAX_RANK];
  if (!hlo_usable(g, op, keys) || !hlo_usable(g, op, payload) ||
      !window_dims(g, op, keys, window, dims)) {
    return;
  }
  torus_dtype_t key_type = hlo_dtype(g, keys), payload_type = hlo_dtype(g, payload);
  if (!hlo_same_shape(g, keys, payload) || torus_dtype_is_complex(key_type) ||
      key_type == TORUS_DTYPE_BOOL || !torus_dtype_is_integral(payload_type) ||
      payload_type == TORUS_DTYPE_BOOL) {
    hlo_fail_types(g, op, "numbers and integers of one shape are wanted", keys, payload);
    return;
  }
  int rank = hlo_rank(g, keys);
  if (rank == 0) {
    *out_keys = keys;
    *out_payload = payload;
  } else if (hlo_numel(g, keys) == 0 || hlo_product(rank, dims) == 0) {
    *out_keys = hlo_splat(g, hlo_lowest(g, key_type), rank, dims);
    *out_payload = hlo_splat(g, hlo_highest(g, payload_type), rank, dims);
  } else {
    append_window_arg(g, keys, payload, window, dims, out_keys, out_payload);
  }
}

/* operands: x, source, zero. */
hlo_t hlo_select_and_scatter(hlo_graph_t *g, hlo_t x, hlo_t source, const hlo_window_t *window) {
  hlo_op_t op = HLO_OP_SELECT_AND_SCATTER;
  int64_t dims[TORUS_MAX_RANK], attrs[6 * TORUS_MAX_RANK];
  if (!hlo_usable(g, op, x) || !hlo_usable(g, op, source) ||
      !window_dims(g, op, x, window, dims)) {
    return HLO_NONE;
  }
  int rank = hlo_rank(g, x);
  torus_dtype_t dtype = hlo_dtype(g, x);
  bool fits = dtype == hlo_dtype(g, source) && rank == hlo_rank(g, source) &&
              !torus_dtype_is_complex(dtype) && dtype != TORUS_DTYPE_BOOL;
  for (int i = 0; fits && i < rank; i++) {
    fits = window->dilation[i] == 1 && window->base_dilation[i] == 1 &&
           hlo_dims(g, source)[i] == dims[i];
  }
  if (!fits) return hlo_fail_types(g, op, "the second has not one element per window", x, source);
  if (rank == 0) return source;
  hlo_t zero = hlo_const(g, dtype, 0);
  if (hlo_numel(g, x) == 0 || hlo_numel(g, source) == 0) return hlo_zeros_like(g, x);
  hlo_t y = hlo_append_like(g, op, dtype, 0, x, (hlo_t[]){x, source, zero}, 3);
  if (y == HLO_NONE || !hlo_set_attrs(g, y, window_attrs(window, rank, attrs), attrs)) {
    return HLO_NONE;
  }
  return y;
}

/* ---- running reductions ---- */

/* Up to this length one window reduction does fewer passes over memory than the steps below. */
enum { SCAN_WINDOW = 32 };

static hlo_t scan_window(hlo_graph_t *g, hlo_reduction_t how, hlo_t x, int dim) {
  hlo_window_t window = hlo_window_identity();
  window.size[dim] = hlo_dims(g, x)[dim];
  window.low[dim] = window.size[dim] - 1;
  return hlo_reduce_window(g, how, x, &window);
}

static hlo_t combine(hlo_graph_t *g, hlo_reduction_t how, hlo_t x, hlo_t y) {
  switch (how) {
  case HLO_REDUCE_ADD:
    return hlo_add(g, x, y);
  case HLO_REDUCE_MULTIPLY:
    return hlo_multiply(g, x, y);
  case HLO_REDUCE_MAXIMUM:
    return hlo_maximum(g, x, y);
  case HLO_REDUCE_MINIMUM:
    return hlo_minimum(g, x, y);
  case HLO_REDUCE_AND:
    return hlo_and(g, x, y);
  case HLO_REDUCE_OR:
    return hlo_or(g, x, y);
  case HLO_REDUCE_XOR:
    return hlo_xor(g, x, y);
  }
  return HLO_NONE;
}

/* Splits |dim| into rows of SCAN_WINDOW elements, runs within the rows, and combines each row with
 * the running reduction of the rows before it, found in the same way. The last row is always filled
 * up, so that all sizes of as many steps are one structure. */
static hlo_t scan_rows(hlo_graph_t *g, hlo_reduction_t how, hlo_t x, int dim) {
  int64_t dims[TORUS_MAX_RANK + 1], low[TORUS_MAX_RANK + 1] = {0}, high[TORUS_MAX_RANK + 1] = {0};
  int rank = hlo_shape(g, x, dims);
  int64_t size = dims[dim], rows = size / SCAN_WINDOW + 1;
  hlo_t identity = hlo_identity_of(g, how, hlo_dtype(g, x));
  high[dim] = rows * SCAN_WINDOW - size;
  hlo_t padded = hlo_pad(g, x, identity, low, high, NULL);
  memmove(dims + dim + 1, dims + dim, (size_t)(rank - dim) * sizeof *dims);
  dims[dim] = rows;
  dims[dim + 1] = SCAN_WINDOW;
  hlo_t within = hlo_scan(g, how, hlo_reshape(g, padded, rank + 1, dims), dim + 1);
  hlo_t totals = hlo_index_dim(g, within, dim + 1, SCAN_WINDOW - 1);
  hlo_t running = hlo_scan(g, how, totals, dim);
  low[dim] = 1;
  high[dim] = -1;
  hlo_t before = hlo_pad(g, running, identity, low, high, NULL);
  hlo_t all = combine(g, how, hlo_broadcast_back(g, before, within, 1, (int[]){dim + 1}), within);
  memmove(dims + dim, dims + dim + 1, (size_t)(rank - dim) * sizeof *dims);
  dims[dim] = rows * SCAN_WINDOW;
  return hlo_slice_dim(g, hlo_reshape(g, all, rank, dims), dim, 0, size);
}

hlo_t hlo_scan(hlo_graph_t *g, hlo_reduction_t how, hlo_t x, int dim) {
  hlo_op_t op = HLO_OP_REDUCE_WINDOW;
  if (!hlo_usable(g, op, x) || !hlo_reduction_for(g, op, x, &how)) return HLO_NONE;
  if (hlo_rank(g, x) == 0 && dim == 0) return x;
  if (!hlo_check_dim(g, op, x, dim)) return HLO_NONE;
  if (hlo_dims(g, x)[dim] <= 1 || hlo_numel(g, x) == 0) return x;
  if (hlo_dims(g, x)[dim] <= SCAN_WINDOW) return scan_window(g, how, x, dim);
  return scan_rows(g, how, x, dim);
}
