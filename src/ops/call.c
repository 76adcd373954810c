/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* From a request to results: runs a lowering in the open window and lays its results out. */
#include <string.h>

#include "base/hash.h"
#include "ops/call_internal.h"

/* ---- memory order of results ---- */

/* Stride with which a tensor argument walks dimension |d| of the result: 0 where it is broadcast.
 */
static int64_t walk(const torus_view_t *view, int rank, int d) {
  const int own = d - (rank - view->rank);
  return own < 0 || view->sizes[own] == 1 ? 0 : view->strides[own];
}

/* Positive: |a| belongs outside |b|... as TensorIterator's should_swap compares two dimensions. */
static int compare_dims(const torus_view_t *const *views, int count, int rank, const int64_t *sizes,
                        int a, int b) {
  for (int k = 0; k < count; ++k) {
    const int64_t stride_a = walk(views[k], rank, a), stride_b = walk(views[k], rank, b);
    if (stride_a == 0 || stride_b == 0) continue;
    if (stride_a < stride_b) return -1;
    if (stride_a > stride_b) return 1;
    if (sizes[a] > sizes[b]) return 1;
  }
  return 0;
}

/* TensorIteratorBase::reorder_dimensions: |order| lists dimensions from the fastest. */
static void order_like_inputs(const torus_view_t *const *views, int count, int rank,
                              const int64_t *sizes, int *order) {
  for (int d = 0; d < rank; ++d) order[d] = rank - 1 - d;
  for (int i = 1; i < rank; ++i) {
    int at = i;
    for (int j = i - 1; j >= 0; --j) {
      const int how = compare_dims(views, count, rank, sizes, order[j], order[at]);
      if (how < 0) break;
      if (how == 0) continue;
      const int moved = order[j];
      order[j] = order[at];
      order[at] = moved;
      at = j;
    }
  }
}

static bool is_row_major(const torus_view_t *view) {
  int64_t expected = 1;
  for (int d = view->rank; d-- > 0;) {
    if (view->sizes[d] != 1 && view->strides[d] != expected) return false;
    expected *= view->sizes[d];
  }
  return true;
}

static int tensor_arguments(const torus_request_t *request, const torus_view_t **views, int most,
                            bool *out_all_row_major) {
  int count = 0;
  *out_all_row_major = true;
  for (int i = 0; i < request->arg_count && count < most; ++i) {
    const torus_arg_t *a = &request->args[i];
    if (a->tag != TORUS_ARG_TENSOR || a->as.views->storage == NULL) continue;
    views[count++] = a->as.views;
    *out_all_row_major &= is_row_major(a->as.views);
  }
  return count;
}

static bool is_channels_last(const torus_view_t *view) {
  if (view->rank != 4 && view->rank != 5) return false;
  if (is_row_major(view)) return false;
  int64_t expected = 1;
  for (int k = 0; k < view->rank; ++k) {
    const int d = k == 0 ? 1 : k == view->rank - 1 ? 0 : view->rank - k;
    if (view->sizes[d] != 1 && view->strides[d] != expected) return false;
    expected *= view->sizes[d];
  }
  return true;
}

static void channels_last_order(int rank, int *order) {
  order[0] = 1;
  for (int k = 1; k < rank - 1; ++k) order[k] = rank - k;
  order[rank - 1] = 0;
}

/* Fills |order| and returns true when the result is not row-major. */
static bool choose_order(const torus_request_t *request, int rank, const int64_t *sizes,
                         int *order) {
  const torus_view_t *views[16];
  bool all_row_major;
  const unsigned flags = request->op->flags;
  if (rank == 4 && flags & TORUS_OP_HEADS_INSIDE) {
    memcpy(order, (const int[]){3, 1, 2, 0}, 4 * sizeof *order);
    return true;
  }
  if (rank < 2 || !(flags & (TORUS_OP_POINTWISE | TORUS_OP_KEEP_FORMAT))) return false;
  int count = tensor_arguments(request, views, 16, &all_row_major);
  if (all_row_major || count == 0) return false;
  if (flags & TORUS_OP_KEEP_FORMAT) {
    if ((rank != 4 && rank != 5) || views[0]->rank != rank || !is_channels_last(views[0]))
      return false;
    channels_last_order(rank, order);
    return true;
  }
  for (int k = 0; k < count; ++k) {
    if (views[k]->rank > rank) return false;
  }
  order_like_inputs(views, count, rank, sizes, order);
  return true;
}

/* ---- results ---- */

static void row_major_strides(torus_result_t *result) {
  int64_t stride = 1;
  for (int d = result->rank; d-- > 0;) {
    result->strides[d] = stride;
    stride *= result->sizes[d] > 1 ? result->sizes[d] : 1;
  }
}

/* The node in memory order; strides that undo the transposition. */
static hlo_t lay_out(hlo_graph_t *g, const torus_request_t *request, hlo_t node,
                     torus_result_t *result) {
  int order[TORUS_MAX_RANK], permutation[TORUS_MAX_RANK];
  result->rank = hlo_shape(g, node, result->sizes);
  result->dtype = hlo_dtype(g, node);
  row_major_strides(result);
  if (!choose_order(request, result->rank, result->sizes, order)) return node;
  int64_t stride = 1;
  for (int k = 0; k < result->rank; ++k) {
    permutation[result->rank - 1 - k] = order[k];
    result->strides[order[k]] = stride;
    stride *= result->sizes[order[k]] > 1 ? result->sizes[order[k]] : 1;
  }
  return hlo_transpose(g, node, permutation);
}

static torus_status_t make_result(torus_call_t *call, const torus_call_result_t *from,
                                  torus_result_t *result) {
  result->value = NULL;
  if (from->node == HLO_NONE) return TORUS_OK;
  hlo_t node = lay_out(call->graph, call->request, from->node, result);
  TORUS_TRY(hlo_graph_take_error(call->graph));
  if (from->prefix >= 0) result->sizes[0] = from->prefix;
  return torus_window_value(call->engine, call->request->device, node, &result->value);
}

static torus_status_t make_results(torus_call_t *call) {
  torus_device_t *device = call->device;
  const size_t wanted = (size_t)call->result_count;
  if (wanted > device->result_capacity) {
    torus_result_t *bigger = torus_realloc(device->results, wanted * sizeof *bigger);
    if (bigger == NULL)
      return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
    device->results = bigger;
    device->result_capacity = wanted;
  }
  for (int k = 0; k < call->result_count; ++k) {
    torus_status_t status = make_result(call, &call->results[k], &device->results[k]);
    if (status == TORUS_OK) continue;
    while (k-- > 0) torus_value_release(device->results[k].value);
    return status;
  }
  return TORUS_OK;
}

static torus_status_t apply_write(torus_call_t *call, const torus_call_write_t *write) {
  const torus_view_t *view = &call->request->args[write->arg].as.views[write->element];
  int64_t sizes[TORUS_MAX_RANK], strides[TORUS_MAX_RANK];
  if (view->storage == NULL)
    return torus_status_make(TORUS_STATUS_UNIMPLEMENTED, "writes to the CPU");
  const int rank = hlo_shape(call->graph, write->node, sizes);
  int64_t stride = 1;
  for (int d = rank; d-- > 0; stride *= sizes[d]) strides[d] = stride;
  torus_value_t *value;
  TORUS_TRY(torus_window_value(call->engine, call->request->device, write->node, &value));
  torus_status_t status = torus_view_assign(call->engine, view, value, rank, sizes, strides);
  torus_value_release(value);
  return status;
}

static torus_status_t apply_writes(torus_call_t *call) {
  for (int k = 0; k < call->write_count; ++k) TORUS_TRY(apply_write(call, &call->writes[k]));
  return TORUS_OK;
}

/* ---- numbers that change ---- */

/* A learning rate, a step count, the start of a slice: where the same place in the stream brought
 * another number last time, the number is an argument of the next program from the start, instead
 * of costing one program with it built in and a second without. */
static void note_number(torus_device_t *device, hlo_graph_t *g, uint64_t place, size_t index) {
  torus_soft_memory_t *memory = &device->soft_memory[place >> 40 & (TORUS_SOFT_MEMORIES - 1)];
  const int64_t bits = hlo_graph_soft_bits(g, index);
  const bool is_known = memory->place == place;
  const bool changes = is_known && (memory->changes || memory->bits != bits);
  *memory = (torus_soft_memory_t){.place = place, .bits = bits, .changes = changes};
  if (changes) hlo_graph_expect_change(g, index);
}

static void note_captured(const torus_device_t *device, hlo_graph_t *g, size_t first) {
  if (!device->numbers_change) return; /* what is captured never changes again */
  for (size_t i = first; i < hlo_graph_soft_count(g); ++i) {
    if (hlo_graph_soft_is_real(g, i)) hlo_graph_expect_change(g, i);
  }
}

static void note_numbers(torus_device_t *device, hlo_graph_t *g, size_t first) {
  if (device->capture != NULL) {
    note_captured(device, g, first);
    return;
  }
  const size_t count = hlo_graph_soft_count(g);
  for (size_t i = first; i < count; ++i) {
    note_number(device, g, torus_hash_combine(device->window.rolling, i - first), i);
  }
}

/* ---- the call ---- */

static torus_status_t take_error(torus_call_t *call) {
  torus_status_t from_graph = hlo_graph_take_error(call->graph);
  if (call->error == TORUS_OK) return from_graph;
  torus_status_free(from_graph);
  return call->error;
}

static torus_status_t finish(torus_call_t *call) {
  TORUS_TRY(take_error(call));
  TORUS_TRY(apply_writes(call));
  return make_results(call);
}

static void set_precision(hlo_graph_t *g, const torus_request_t *request) {
  static const hlo_precision_t precisions[] = {
      [TORUS_PRECISION_MEDIUM] = HLO_PRECISION_DEFAULT,
      [TORUS_PRECISION_HIGH] = HLO_PRECISION_HIGH,
      [TORUS_PRECISION_HIGHEST] = HLO_PRECISION_HIGHEST,
  };
  const bool follows = request->traits.is_precise;
  hlo_graph_set_precision(g, follows ? precisions[request->precision] : HLO_PRECISION_HIGHEST);
}

torus_status_t torus_engine_call(torus_engine_t *engine, const torus_request_t *request,
                                 torus_result_t **out_results, int *out_result_count) {
  *out_results = NULL;
  *out_result_count = 0;
  const torus_stretch_t stretch = {request->traits.hash, 1, request->traits.is_heavy};
  TORUS_TRY(torus_window_expect(engine, request->device, &stretch));
  torus_device_t *device = &engine->devices[request->device];
  torus_call_t call = {.engine = engine,
                       .device = device,
                       .request = request,
                       .graph = device->window.graph,
                       .results = device->call_results,
                       .result_capacity = device->call_result_capacity};
  const size_t checks = device->window.check_count;
  const size_t softs = hlo_graph_soft_count(call.graph);
  const uint64_t serial = device->window.serial;
  hlo_graph_mark(call.graph, request->op->name, request->place.code, request->place.instruction);
  set_precision(call.graph, request);
  request->op->lower(&call, call.graph);
  torus_status_t status = finish(&call);
  if (status == TORUS_OK && device->window.serial == serial)
    note_numbers(device, call.graph, softs);
  if (status != TORUS_OK && device->window.serial == serial) device->window.check_count = checks;
  *out_results = device->results;
  *out_result_count = status == TORUS_OK ? call.result_count : 0;
  device->call_results = call.results;
  device->call_result_capacity = call.result_capacity;
  torus_free(call.writes);
  return status;
}
