/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Strided views over a storage's value, as StableHLO.
 *
 * A view is decomposed as reshape -> slice -> reshape -> transpose -> broadcast: the storage is seen
 * as an array of shape |extent| in which the view takes |size[i]| elements from |start[i]| in steps
 * of |step[i]|. Two shapes are tried: the value's own (no relayout on a device with tiled layouts),
 * then one made of the view's strides. Strides that divide neither (overlapping windows, odd
 * as_strided calls) are read by gather and written by scatter. */
#include <string.h>

#include "engine/engine_internal.h"

typedef struct plan {
  int rank;                        /* of the storage's shape */
  int64_t extent[TORUS_MAX_RANK];
  int64_t start[TORUS_MAX_RANK], size[TORUS_MAX_RANK], step[TORUS_MAX_RANK];
  int64_t padded;                  /* elements the shape needs; more than the storage has: pad */
  int active_count;                /* view dimensions with more than one distinct element */
  int active[TORUS_MAX_RANK];      /* those, by descending stride */
  int place[TORUS_MAX_RANK];       /* dimension of the shape that active[i] walks */
} plan_t;

static int64_t product(int rank, const int64_t *dims) {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= dims[i];
  return n;
}

static bool is_contiguous(const torus_view_t *view) {
  int64_t expected = 1;
  for (int i = view->rank; i-- > 0;) {
    if (view->sizes[i] != 1 && view->strides[i] != expected) return false;
    expected *= view->sizes[i];
  }
  return true;
}

bool torus_view_is_dense(const torus_view_t *view, int64_t count) {
  return view->offset == 0 && is_contiguous(view) && product(view->rank, view->sizes) == count;
}

/* ---- element types ---- */

static hlo_t split_complex(hlo_graph_t *g, hlo_t x) {
  const int64_t pair[2] = {hlo_numel(g, x), 1};
  const hlo_t parts[2] = {hlo_reshape(g, hlo_real(g, x), 2, pair),
                          hlo_reshape(g, hlo_imag(g, x), 2, pair)};
  return hlo_flatten(g, hlo_concatenate(g, parts, 2, 1));
}

static hlo_t join_complex(hlo_graph_t *g, hlo_t x) {
  const int64_t pairs[2] = {hlo_numel(g, x) / 2, 2};
  hlo_t two = hlo_reshape(g, x, 2, pairs);
  return hlo_complex(g, hlo_index_dim(g, two, 1, 0), hlo_index_dim(g, two, 1, 1));
}

/* Real types of different sizes: StableHLO moves the ratio into a last dimension. */
static hlo_t bitcast_real(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype) {
  if (x == HLO_NONE) return HLO_NONE;
  const int64_t from = (int64_t)torus_dtype_bytes(hlo_dtype(g, x));
  const int64_t to = (int64_t)torus_dtype_bytes(dtype);
  if (to > from) {
    const int64_t dims[2] = {hlo_numel(g, x) * from / to, to / from};
    x = hlo_reshape(g, x, 2, dims);
  }
  return hlo_flatten(g, hlo_bitcast(g, x, dtype));
}

hlo_t torus_view_bitcast(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype) {
  if (x == HLO_NONE || hlo_dtype(g, x) == dtype) return x;
  x = hlo_flatten(g, x);
  if (torus_dtype_is_complex(hlo_dtype(g, x))) x = split_complex(g, x);
  if (hlo_dtype(g, x) == TORUS_DTYPE_BOOL) x = hlo_convert(g, x, TORUS_DTYPE_U8);
  if (dtype == TORUS_DTYPE_BOOL) {
    return hlo_convert(g, torus_view_bitcast(g, x, TORUS_DTYPE_U8), TORUS_DTYPE_BOOL);
  }
  if (torus_dtype_is_complex(dtype)) {
    return join_complex(g, torus_view_bitcast(g, x, torus_dtype_real(dtype)));
  }
  return hlo_dtype(g, x) == dtype ? x : bitcast_real(g, x, dtype);
}

/* ---- planning ---- */

/* Sorts the dimensions that matter by descending stride; equal strides keep their order. */
static void find_active(const torus_view_t *view, plan_t *plan) {
  plan->active_count = 0;
  for (int i = 0; i < view->rank; ++i) {
    if (view->sizes[i] == 1 || view->strides[i] == 0) continue;
    int at = plan->active_count++;
    for (; at > 0 && view->strides[plan->active[at - 1]] < view->strides[i]; --at) {
      plan->active[at] = plan->active[at - 1];
    }
    plan->active[at] = i;
  }
}

static bool fits(const plan_t *plan) {
  for (int i = 0; i < plan->rank; ++i) {
    if (plan->start[i] + (plan->size[i] - 1) * plan->step[i] >= plan->extent[i]) return false;
  }
  return true;
}

/* Splits the offset over the dimensions of the shape. */
static void place_offset(plan_t *plan, int64_t offset) {
  int64_t stride = product(plan->rank, plan->extent);
  for (int i = 0; i < plan->rank; ++i) {
    stride = plan->extent[i] > 0 ? stride / plan->extent[i] : 1;
    plan->start[i] = stride > 0 ? offset / stride : 0;
    offset -= plan->start[i] * stride;
  }
}

static void take_one_everywhere(plan_t *plan) {
  for (int i = 0; i < plan->rank; ++i) {
    plan->start[i] = 0;
    plan->size[i] = plan->step[i] = 1;
  }
}

/* The dimension of a shape with the given strides that a view stride walks, or -1. */
static int find_place(const plan_t *plan, const int64_t *strides, int64_t stride) {
  for (int j = 0; j < plan->rank; ++j) {
    if (plan->extent[j] > 1 && strides[j] <= stride) {
      const bool is_inside = stride < strides[j] * plan->extent[j];
      return is_inside && stride % strides[j] == 0 && plan->size[j] == 1 ? j : -1;
    }
  }
  return -1;
}

static bool plan_by_value(const torus_view_t *view, int rank, const int64_t *dims, plan_t *plan) {
  int64_t strides[TORUS_MAX_RANK];
  plan->rank = rank;
  plan->padded = product(rank, dims);
  int64_t stride = 1;
  for (int j = rank; j-- > 0; stride *= dims[j]) {
    plan->extent[j] = dims[j];
    strides[j] = stride;
  }
  take_one_everywhere(plan);
  for (int i = 0; i < plan->active_count; ++i) {
    const int d = plan->active[i];
    const int j = find_place(plan, strides, view->strides[d]);
    if (j < 0) return false;
    plan->place[i] = j;
    plan->size[j] = view->sizes[d];
    plan->step[j] = view->strides[d] / strides[j];
  }
  place_offset(plan, view->offset);
  return fits(plan);
}

/* Shape (count / s0, s0 / s1, s1 / s2, ..., s_last) for view strides s0 > s1 > ... */
static bool plan_by_strides(const torus_view_t *view, int64_t count, plan_t *plan) {
  plan->rank = 0;
  int64_t outer = 0;
  for (int i = 0; i < plan->active_count; ++i) {
    const int64_t stride = view->strides[plan->active[i]];
    if (i > 0 && (outer % stride != 0 || outer == stride)) return false;
    plan->extent[plan->rank++] = i > 0 ? outer / stride : (count + stride - 1) / stride;
    outer = stride;
  }
  if (plan->active_count == 0) {
    outer = count;
  }
  if (outer > 1 || plan->rank == 0) plan->extent[plan->rank++] = outer;
  take_one_everywhere(plan);
  for (int i = 0; i < plan->active_count; ++i) {
    plan->place[i] = i;
    plan->size[i] = view->sizes[plan->active[i]];
  }
  plan->padded = product(plan->rank, plan->extent);
  place_offset(plan, view->offset);
  return fits(plan);
}

static bool make_plan(const torus_view_t *view, int rank, const int64_t *dims, plan_t *plan) {
  find_active(view, plan);
  return plan_by_value(view, rank, dims, plan) ||
         plan_by_strides(view, product(rank, dims), plan);
}

/* ---- reading ---- */

static hlo_t pad_flat(hlo_graph_t *g, hlo_t x, int64_t count) {
  const int64_t low = 0, high = count - hlo_numel(g, x);
  if (high == 0) return x;
  return hlo_pad(g, hlo_flatten(g, x), hlo_const(g, hlo_dtype(g, x), 0), &low, &high, NULL);
}

static bool has_repeats(const torus_view_t *view) {
  bool found = false;
  for (int d = 0; d < view->rank; ++d) found |= view->sizes[d] > 1 && view->strides[d] == 0;
  return found && product(view->rank, view->sizes) > 0;
}

/* Dimensions in stride order (|x|) to the view's order, sizes 1 and repeats put back. */
static hlo_t to_view_order(hlo_graph_t *g, hlo_t x, const torus_view_t *view, const plan_t *plan) {
  int places[TORUS_MAX_RANK];
  int permutation[TORUS_MAX_RANK];
  int sorted[TORUS_MAX_RANK];
  for (int i = 0; i < plan->active_count; ++i) sorted[i] = plan->active[i];
  int next = 0;
  for (int d = 0; d < view->rank; ++d) {
    for (int i = 0; i < plan->active_count; ++i) {
      if (sorted[i] != d) continue;
      permutation[next] = i;
      places[next++] = d;
    }
  }
  x = hlo_transpose(g, x, permutation);
  if (next == view->rank) return x;
  return has_repeats(view) ? hlo_broadcast_in_dim(g, x, view->rank, view->sizes, places)
                     : hlo_reshape(g, x, view->rank, view->sizes);
}

static hlo_t read_by_plan(hlo_graph_t *g, hlo_t base, const torus_view_t *view,
                          const plan_t *plan) {
  int64_t dims[TORUS_MAX_RANK];
  base = pad_flat(g, base, plan->padded);
  base = hlo_reshape(g, base, plan->rank, plan->extent);
  base = hlo_slice(g, base, plan->start, plan->size, plan->step);
  for (int i = 0; i < plan->active_count; ++i) dims[i] = view->sizes[plan->active[i]];
  return to_view_order(g, hlo_reshape(g, base, plan->active_count, dims), view, plan);
}

/* Flat positions of the view's elements, in the view's shape. */
static hlo_t positions(hlo_graph_t *g, const torus_view_t *view) {
  hlo_t sum = hlo_splat(g, hlo_soft_int(g, TORUS_DTYPE_I64, view->offset), view->rank, view->sizes);
  for (int d = 0; d < view->rank; ++d) {
    if (view->strides[d] == 0 || view->sizes[d] == 1) continue;
    hlo_t index = hlo_iota(g, TORUS_DTYPE_I64, view->rank, view->sizes, d);
    sum = hlo_add(g, sum, hlo_multiply(g, index, hlo_const_int(g, TORUS_DTYPE_I64, view->strides[d])));
  }
  return sum;
}

static hlo_t conjugated(hlo_graph_t *g, hlo_t x, const torus_view_t *view) {
  if (view->is_conj) x = hlo_conj(g, x);
  return view->is_neg ? hlo_negate(g, x) : x;
}

static hlo_t read_strided(hlo_graph_t *g, hlo_t base, const torus_view_t *view) {
  int64_t dims[TORUS_MAX_RANK];
  if (product(view->rank, view->sizes) == 0) {
    return hlo_zeros(g, view->dtype, view->rank, view->sizes);
  }
  base = torus_view_bitcast(g, base, view->dtype);
  if (base == HLO_NONE) return HLO_NONE;
  if (view->offset == 0 && is_contiguous(view) &&
      product(view->rank, view->sizes) == hlo_numel(g, base)) {
    return hlo_reshape(g, base, view->rank, view->sizes);
  }
  plan_t plan;
  const int rank = hlo_shape(g, base, dims);
  if (make_plan(view, rank, dims, &plan)) return read_by_plan(g, base, view, &plan);
  return hlo_take(g, hlo_flatten(g, base), 0, positions(g, view));
}

hlo_t torus_view_gather(hlo_graph_t *g, hlo_t base, const torus_view_t *view) {
  return conjugated(g, read_strided(g, base, view), view);
}

/* ---- writing ---- */

/* |update| in the view's shape to dimensions in stride order. */
static hlo_t to_stride_order(hlo_graph_t *g, hlo_t update, const torus_view_t *view,
                             const plan_t *plan) {
  int64_t dims[TORUS_MAX_RANK];
  int kept[TORUS_MAX_RANK], permutation[TORUS_MAX_RANK];
  int count = 0;
  for (int d = 0; d < view->rank; ++d) {
    if (view->sizes[d] == 1) continue;
    dims[count] = view->sizes[d];
    kept[count++] = d;
  }
  for (int i = 0; i < plan->active_count; ++i) {
    for (int k = 0; k < count; ++k) {
      if (kept[k] == plan->active[i]) permutation[i] = k;
    }
  }
  return hlo_transpose(g, hlo_reshape(g, update, count, dims), permutation);
}

/* Spreads |update| over steps: between two written elements the old ones stay. */
static hlo_t merge_steps(hlo_graph_t *g, hlo_t base, hlo_t update, const plan_t *plan) {
  int64_t span[TORUS_MAX_RANK], zero[TORUS_MAX_RANK] = {0}, gap[TORUS_MAX_RANK];
  for (int i = 0; i < plan->rank; ++i) {
    span[i] = (plan->size[i] - 1) * plan->step[i] + 1;
    gap[i] = plan->step[i] - 1;
  }
  hlo_t mask = hlo_splat(g, hlo_const(g, TORUS_DTYPE_BOOL, 1), plan->rank, plan->size);
  mask = hlo_pad(g, mask, hlo_const(g, TORUS_DTYPE_BOOL, 0), zero, zero, gap);
  hlo_t spread = hlo_pad(g, update, hlo_const(g, hlo_dtype(g, update), 0), zero, zero, gap);
  return hlo_select(g, mask, spread, hlo_slice(g, base, plan->start, span, NULL));
}

static hlo_t write_by_plan(hlo_graph_t *g, hlo_t base, const torus_view_t *view, hlo_t update,
                           const plan_t *plan) {
  int64_t dims[TORUS_MAX_RANK];
  const int rank = hlo_shape(g, base, dims);
  const int64_t count = hlo_numel(g, base);
  hlo_t shaped = hlo_reshape(g, pad_flat(g, base, plan->padded), plan->rank, plan->extent);
  update = hlo_reshape(g, to_stride_order(g, update, view, plan), plan->rank, plan->size);
  bool has_steps = false;
  for (int i = 0; i < plan->rank; ++i) has_steps |= plan->step[i] > 1;
  if (has_steps) update = merge_steps(g, shaped, update, plan);
  shaped = hlo_update_slice(g, shaped, update, plan->start);
  if (plan->padded != count) shaped = hlo_slice_dim(g, hlo_flatten(g, shaped), 0, 0, count);
  return hlo_reshape(g, shaped, rank, dims);
}

static hlo_t write_by_scatter(hlo_graph_t *g, hlo_t base, const torus_view_t *view, hlo_t update) {
  int64_t dims[TORUS_MAX_RANK];
  const int rank = hlo_shape(g, base, dims);
  hlo_t flat = hlo_put_along(g, HLO_SCATTER_SET, hlo_flatten(g, base), 0,
                             hlo_flatten(g, positions(g, view)), hlo_flatten(g, update));
  return hlo_reshape(g, flat, rank, dims);
}

/* A view that takes every element of the storage once: the update is the new content, in the
 * order of memory. */
static bool covers(const torus_view_t *view, int64_t count, plan_t *plan) {
  if (view->offset != 0 || product(view->rank, view->sizes) != count) return false;
  find_active(view, plan);
  int64_t expected = 1;
  for (int i = plan->active_count; i-- > 0;) {
    const int d = plan->active[i];
    if (view->strides[d] != expected) return false;
    expected *= view->sizes[d];
  }
  return expected == count;
}

/* Repeated elements can only take one number: |out_once| is the view without repeats, and the
 * update for it is returned. |sizes| has room for them. */
static hlo_t write_once(hlo_graph_t *g, const torus_view_t *view, hlo_t update, int64_t *sizes,
                        torus_view_t *out_once) {
  *out_once = *view;
  if (!has_repeats(view)) return update;
  if (!hlo_is_uniform(g, update)) {
    return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT,
                    "unsupported operation: more than one element of the written-to tensor "
                    "refers to a single memory location. Please clone() the tensor before "
                    "performing the operation.");
  }
  for (int d = 0; d < view->rank; ++d) {
    const bool repeats = view->strides[d] == 0 && view->sizes[d] > 1;
    sizes[d] = repeats ? 1 : view->sizes[d];
    if (repeats) update = hlo_slice_dim(g, update, d, 0, 1);
  }
  out_once->sizes = sizes;
  return update;
}

hlo_t torus_view_scatter(hlo_graph_t *g, hlo_t base, int64_t count, const torus_view_t *view,
                         hlo_t update) {
  plan_t plan;
  int64_t dims[TORUS_MAX_RANK];
  update = conjugated(g, update, view);
  if (update == HLO_NONE) return HLO_NONE;
  if (covers(view, count, &plan)) return to_stride_order(g, update, view, &plan);
  torus_view_t once;
  int64_t sizes[TORUS_MAX_RANK];
  update = write_once(g, view, update, sizes, &once);
  if (update == HLO_NONE) return HLO_NONE;
  view = &once;
  base = base == HLO_NONE ? hlo_zeros(g, view->dtype, 1, &count)
                          : torus_view_bitcast(g, base, view->dtype);
  if (base == HLO_NONE) return HLO_NONE;
  if (product(view->rank, view->sizes) == 0) return base;
  const int rank = hlo_shape(g, base, dims);
  if (make_plan(view, rank, dims, &plan)) return write_by_plan(g, base, view, update, &plan);
  return write_by_scatter(g, base, view, update);
}

/* ---- views of storages ---- */

static hlo_t number_node(hlo_graph_t *g, const torus_view_t *view) {
  const torus_number_t *n = &view->number;
  if (n->kind == TORUS_NUMBER_COMPLEX) {
    const torus_dtype_t real = torus_dtype_real(view->dtype);
    return hlo_complex(g, hlo_soft(g, real, n->re), hlo_soft(g, real, n->im));
  }
  if (n->kind == TORUS_NUMBER_DOUBLE) return hlo_soft(g, view->dtype, n->re);
  if (torus_dtype_is_integral(view->dtype)) return hlo_soft_int(g, view->dtype, n->i);
  return hlo_soft(g, view->dtype, (double)n->i);
}

/* The node of the storage's content; HLO_NONE when there is none, or with an error in the graph. */
static hlo_t content_node(torus_device_t *device, const torus_view_t *view) {
  torus_storage_t *storage = view->storage;
  torus_status_t status = torus_storage_fill_abstract(storage, view);
  if (status == TORUS_OK && storage->value == NULL && device->capture != NULL) {
    status = torus_capture_fill(device, view);
  }
  if (status != TORUS_OK) return hlo_fail_with(device->window.graph, status);
  return storage->value != NULL ? torus_storage_node(device, storage) : HLO_NONE;
}

hlo_t torus_view_node(torus_device_t *device, const torus_view_t *view) {
  hlo_graph_t *g = device->window.graph;
  if (view->storage == NULL) return number_node(g, view);
  const hlo_t content = content_node(device, view);
  if (view->storage->value == NULL) return hlo_zeros(g, view->dtype, view->rank, view->sizes);
  return torus_view_gather(g, content, view);
}

static torus_status_t read_new_value(torus_engine_t *engine, const torus_view_t *view,
                                     torus_value_t **out_value) {
  const int device = view->storage->device;
  hlo_graph_t *g = engine->devices[device].window.graph;
  hlo_t node = torus_view_node(&engine->devices[device], view);
  TORUS_TRY(hlo_graph_take_error(g));
  return torus_window_value(engine, device, node, out_value);
}

static bool is_whole(const torus_view_t *view, const torus_value_t *value) {
  return value != NULL && value->dtype == view->dtype && view->offset == 0 && !view->is_conj &&
         !view->is_neg && is_contiguous(view) &&
         product(view->rank, view->sizes) == torus_value_numel(value);
}

torus_status_t torus_view_read(torus_engine_t *engine, const torus_view_t *view,
                               torus_value_t **out_value) {
  *out_value = NULL;
  if (is_whole(view, view->storage->value)) {
    *out_value = torus_storage_get(view->storage);
    return TORUS_OK;
  }
  return read_new_value(engine, view, out_value);
}

/* A value that already lies in the order and type of the whole storage needs no node. */
static bool can_install(const torus_view_t *view, const torus_value_t *value, int rank,
                        const int64_t *sizes, const int64_t *strides) {
  if (value->dtype != view->dtype || view->is_conj || view->is_neg || view->offset != 0) return false;
  if (rank != view->rank) return false;
  for (int d = 0; d < rank; ++d) {
    if (sizes[d] != view->sizes[d]) return false;
    if (sizes[d] != 1 && strides[d] != view->strides[d]) return false;
  }
  return torus_value_size_bytes(value) == view->storage->size_bytes;
}

static torus_status_t assign_node(torus_engine_t *engine, const torus_view_t *view,
                                  torus_value_t *value, int rank, const int64_t *sizes,
                                  const int64_t *strides) {
  torus_storage_t *storage = view->storage;
  torus_device_t *device = &engine->devices[storage->device];
  hlo_graph_t *g = device->window.graph;
  const torus_view_t source = {.dtype = value->dtype, .rank = rank, .sizes = sizes, .strides = strides};
  hlo_t update = torus_view_gather(g, torus_window_node(device, value), &source);
  update = hlo_expand(g, hlo_convert(g, update, view->dtype), view->rank, view->sizes);
  hlo_t base = content_node(device, view);
  const int64_t count = (int64_t)(storage->size_bytes / torus_dtype_bytes(view->dtype));
  hlo_t node = torus_view_scatter(g, base, count, view, update);
  TORUS_TRY(hlo_graph_take_error(g));
  torus_value_t *next;
  TORUS_TRY(torus_window_value(engine, storage->device, node, &next));
  torus_storage_set(storage, next);
  torus_value_release(next);
  return TORUS_OK;
}

torus_status_t torus_view_assign(torus_engine_t *engine, const torus_view_t *view,
                                 torus_value_t *value, int value_rank, const int64_t *value_sizes,
                                 const int64_t *value_strides) {
  if (can_install(view, value, value_rank, value_sizes, value_strides)) {
    torus_storage_set(view->storage, value);
    return TORUS_OK;
  }
  return assign_node(engine, view, value, value_rank, value_sizes, value_strides);
}
