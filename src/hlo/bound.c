/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The bounding transform: its state, sources, operations on each element, and the walk. */
#include "hlo/bound.h"

#include <stdio.h>
#include <string.h>

#include "hlo/bound_internal.h"
#include "torus/memory.h"

enum {
  LEAST_BOUND = 16,
  /* A graph may not grow beyond this many times its size, plus a few elements. */
  MOST_GROWTH = 16,
};
static const double spare_elements = 4e6;

int64_t hlo_bound_size(int64_t size) {
  int64_t bound = LEAST_BOUND;
  while (bound < size && bound <= INT64_MAX / 2) bound *= 2;
  return bound;
}

/* ---- questions ---- */

int hlo_class_of(const hlo_binder_t *b, hlo_t old, int dim) {
  return b->how->classes ? b->how->classes[b->base[old] + (uint32_t)dim] : 0;
}

bool hlo_has_classes(const hlo_binder_t *b, hlo_t old) {
  for (int d = 0; d < hlo_rank(b->from, old); d++) {
    if (hlo_class_of(b, old, d)) return true;
  }
  return false;
}

hlo_t hlo_size_node(hlo_binder_t *b, hlo_t old, int dim) {
  const int class = hlo_class_of(b, old, dim);
  const int64_t size = hlo_dim(b->from, old, dim);
  if (!class) return hlo_const_int(b->to, TORUS_DTYPE_I32, size);
  hlo_t *number = &b->numbers[class];
  if (*number == HLO_NONE) *number = hlo_volatile_int(b->to, TORUS_DTYPE_I32, size);
  return *number;
}

int hlo_target_dims(const hlo_binder_t *b, hlo_t old, int64_t *out_dims) {
  const int rank = hlo_shape(b->from, old, out_dims);
  for (int d = 0; d < rank; d++) {
    if (hlo_class_of(b, old, d)) out_dims[d] = hlo_bound_size(out_dims[d]);
  }
  return rank;
}

hlo_t hlo_mapped(const hlo_binder_t *b, hlo_t old, size_t i) {
  return b->map[hlo_operand(b->from, old, i)];
}

hlo_t hlo_refuse(hlo_binder_t *b, hlo_t old, const char *why) {
  if (!b->reason[0]) {
    snprintf(b->reason, HLO_REASON_BYTES, "%s: %s", hlo_op_name((hlo_op_t)hlo_node(b->from, old)->op),
             why);
  }
  return HLO_NONE;
}

/* ---- building blocks ---- */

/* Whether a node can as well be made with other dimensions. */
static bool is_source(const hlo_graph_t *g, hlo_t x) {
  const hlo_node_t *node = hlo_node(g, x);
  return node->op == HLO_OP_CONSTANT || node->op == HLO_OP_IOTA ||
         (node->op == HLO_OP_BROADCAST && node->attr_count == 0);
}

static hlo_t remake_source(hlo_graph_t *g, hlo_t x, const int64_t *dims) {
  const hlo_node_t node = *hlo_node(g, x);
  const int64_t attr = node.attr_count ? hlo_attrs(g, x)[0] : 0;
  hlo_t scalar = node.operand_count ? hlo_operand(g, x, 0) : HLO_NONE;
  return hlo_append(g, &(hlo_spec_t){.op = (hlo_op_t)node.op,
                                     .dtype = (torus_dtype_t)node.dtype,
                                     .rank = node.rank,
                                     .dims = dims,
                                     .operands = &scalar,
                                     .operand_count = node.operand_count,
                                     .attrs = &attr,
                                     .attr_count = node.attr_count});
}

hlo_t hlo_fit(hlo_binder_t *b, hlo_t x, const int64_t *dims) {
  const int64_t low[TORUS_MAX_RANK] = {0};
  int64_t high[TORUS_MAX_RANK];
  if (!hlo_usable(b->to, HLO_OP_PAD, x)) return HLO_NONE;
  bool same = true;
  for (int d = 0; d < hlo_rank(b->to, x); d++) {
    high[d] = dims[d] - hlo_dims(b->to, x)[d];
    same &= high[d] == 0;
  }
  if (same) return x;
  if (is_source(b->to, x)) return remake_source(b->to, x, dims);
  return hlo_pad(b->to, x, hlo_const(b->to, hlo_dtype(b->to, x), 0), low, high, NULL);
}

/* Sources follow the others. */
void hlo_fit_together(hlo_binder_t *b, hlo_t *xs, size_t count, int except) {
  int64_t dims[TORUS_MAX_RANK] = {0}, own[TORUS_MAX_RANK];
  bool only_sources = true;
  if (!hlo_usable_all(b->to, HLO_OP_PAD, xs, count)) return;
  for (size_t i = 0; i < count; i++) only_sources &= is_source(b->to, xs[i]);
  for (size_t i = 0; i < count; i++) {
    if (!only_sources && is_source(b->to, xs[i])) continue;
    for (int d = 0; d < hlo_rank(b->to, xs[i]); d++) {
      if (hlo_dim(b->to, xs[i], d) > dims[d]) dims[d] = hlo_dim(b->to, xs[i], d);
    }
  }
  for (size_t i = 0; i < count; i++) {
    memcpy(own, dims, sizeof own);
    if (except >= 0) own[except] = hlo_dim(b->to, xs[i], except);
    xs[i] = hlo_fit(b, xs[i], own);
  }
}

hlo_t hlo_below(hlo_binder_t *b, int rank, const int64_t *dims, int dim, hlo_t limit) {
  const int64_t length = dims[dim];
  hlo_t place = hlo_iota(b->to, TORUS_DTYPE_I32, 1, &length, 0);
  return hlo_broadcast_in_dim(b->to, hlo_compare(b->to, HLO_LT, place, limit), rank, dims, &dim);
}

hlo_t hlo_mask_garbage(hlo_binder_t *b, hlo_t x, hlo_t old, uint32_t mask, hlo_t fill) {
  int64_t dims[TORUS_MAX_RANK];
  const int rank = hlo_shape(b->to, x, dims);
  for (int d = 0; d < rank; d++) {
    if (!(mask >> d & 1) || !hlo_class_of(b, old, d)) continue;
    hlo_t inside = hlo_below(b, rank, dims, d, hlo_size_node(b, old, d));
    x = hlo_select(b->to, inside, x, hlo_splat(b->to, fill, rank, dims));
  }
  return x;
}

hlo_t hlo_append_as(hlo_binder_t *b, hlo_t old, int rank, const int64_t *dims,
                    const hlo_t *operands, const int64_t *attrs) {
  const hlo_node_t *node = hlo_node(b->from, old);
  if (!hlo_usable_all(b->to, (hlo_op_t)node->op, operands, node->operand_count)) return HLO_NONE;
  return hlo_append(b->to, &(hlo_spec_t){.op = (hlo_op_t)node->op,
                                         .dtype = (torus_dtype_t)node->dtype,
                                         .mode = node->mode,
                                         .rank = rank,
                                         .dims = dims,
                                         .operands = operands,
                                         .operand_count = node->operand_count,
                                         .attrs = attrs ? attrs : hlo_attrs(b->from, old),
                                         .attr_count = node->attr_count,
                                         .softs = b->from->softs + node->softs,
                                         .soft_count = node->soft_count});
}

/* ---- sources ---- */

/* What is held in other dimensions than the bounds stays so: the program then depends on fewer
 * bounds. */
static hlo_t bind_parameter(hlo_binder_t *b, hlo_t old) {
  int64_t dims[TORUS_MAX_RANK];
  const int rank = hlo_target_dims(b, old, dims);
  const int input = (int)hlo_attrs(b->from, old)[0];
  const int64_t *held = b->how->held(b->how->context, input, dims);
  hlo_t x = hlo_append_as(b, old, rank, held ? held : hlo_dims(b->from, old), NULL, NULL);
  for (int d = 0; d < rank && held; d++) {
    if (hlo_class_of(b, old, d)) dims[d] = held[d];
  }
  return hlo_fit(b, x, dims);
}

static hlo_t bind_source(hlo_binder_t *b, hlo_t old) {
  int64_t dims[TORUS_MAX_RANK];
  return hlo_append_as(b, old, hlo_target_dims(b, old, dims), dims, NULL, NULL);
}

static hlo_t bind_broadcast(hlo_binder_t *b, hlo_t old) {
  int64_t dims[TORUS_MAX_RANK];
  const int rank = hlo_target_dims(b, old, dims);
  hlo_t source = hlo_operand(b->from, old, 0), x = b->map[source];
  for (int i = 0; i < hlo_rank(b->from, source); i++) {
    const int64_t place = hlo_attrs(b->from, old)[i];
    if (hlo_dim(b->from, source, i) > 1) dims[place] = hlo_dim(b->to, x, i);
  }
  return hlo_append_as(b, old, rank, dims, &x, NULL);
}

/* ---- operations on each element ---- */

enum { MOST_ELEMENTWISE = 3 };

static hlo_t bind_elementwise(hlo_binder_t *b, hlo_t old) {
  hlo_t xs[MOST_ELEMENTWISE], operands[MOST_ELEMENTWISE];
  const uint32_t count = hlo_node(b->from, old)->operand_count;
  size_t ranked = 0;
  for (uint32_t i = 0; i < count; i++) {
    operands[i] = hlo_mapped(b, old, i);
    if (hlo_rank(b->to, operands[i]) > 0) xs[ranked++] = operands[i];
  }
  hlo_fit_together(b, xs, ranked, -1);
  for (uint32_t i = count; i-- > 0;) {
    if (hlo_rank(b->to, operands[i]) > 0) operands[i] = xs[--ranked];
  }
  int64_t dims[TORUS_MAX_RANK];
  const int rank = hlo_shape(b->to, operands[count - 1], dims);
  return hlo_append_as(b, old, rank, dims, operands, NULL);
}

/* A last dimension may come or go; it is no size of the user. */
static hlo_t bind_bitcast(hlo_binder_t *b, hlo_t old) {
  int64_t dims[TORUS_MAX_RANK];
  hlo_t x = hlo_mapped(b, old, 0);
  const int rank = hlo_rank(b->from, old), source_rank = hlo_rank(b->to, x);
  hlo_shape(b->from, old, dims);
  for (int d = 0; d < rank && d < source_rank; d++) dims[d] = hlo_dim(b->to, x, d);
  return hlo_append_as(b, old, rank, dims, &x, NULL);
}

static hlo_t bind_transpose(hlo_binder_t *b, hlo_t old) {
  int64_t dims[TORUS_MAX_RANK];
  hlo_t x = hlo_mapped(b, old, 0);
  const int rank = hlo_rank(b->from, old);
  for (int d = 0; d < rank; d++) dims[d] = hlo_dim(b->to, x, (int)hlo_attrs(b->from, old)[d]);
  return hlo_append_as(b, old, rank, dims, &x, NULL);
}

/* ---- several arrays along dimensions that do not change ---- */

static bool changes_along(const hlo_binder_t *b, hlo_t old, size_t operand, int first, int end) {
  for (int d = first; d < end; d++) {
    if (hlo_class_of(b, hlo_operand(b->from, old, operand), d)) return true;
  }
  return false;
}

static hlo_t bind_rows(hlo_binder_t *b, hlo_t old, int first, int end) {
  hlo_t xs[2];
  int64_t dims[TORUS_MAX_RANK];
  const size_t count = hlo_node(b->from, old)->operand_count;
  for (size_t i = 0; i < count; i++) {
    if (changes_along(b, old, i, first, end)) {
      return hlo_refuse(b, old, "along a size that changes");
    }
    xs[i] = hlo_mapped(b, old, i);
  }
  const int rank = hlo_shape(b->from, old, dims);
  int64_t held[2][TORUS_MAX_RANK];
  for (size_t i = 0; i < count; i++) hlo_shape(b->to, xs[i], held[i]);
  for (int d = 0; d < rank; d++) {
    if (d >= first && d < end) continue;
    dims[d] = held[0][d];
    if (count == 2 && held[1][d] > dims[d]) dims[d] = held[1][d];
    held[0][d] = held[count - 1][d] = dims[d];
  }
  for (size_t i = 0; i < count; i++) xs[i] = hlo_fit(b, xs[i], held[i]);
  return hlo_append_as(b, old, rank, dims, xs, NULL);
}

static hlo_t bind_fft(hlo_binder_t *b, hlo_t old) {
  const int rank = hlo_rank(b->from, old);
  return bind_rows(b, old, rank - (int)hlo_node(b->from, old)->attr_count, rank);
}

static hlo_t bind_matrices(hlo_binder_t *b, hlo_t old) {
  const int rank = hlo_rank(b->from, old);
  return bind_rows(b, old, rank - 2, rank);
}

static hlo_t bind_result(hlo_binder_t *b, hlo_t old) {
  int64_t dims[TORUS_MAX_RANK];
  hlo_t node = hlo_mapped(b, old, 0);
  const int rank = hlo_shape(b->to, node, dims);
  return hlo_append_as(b, old, rank, dims, &node, NULL);
}

/* ---- the walk ---- */

/* Whether the node or an operand has a size that changes. */
static bool is_touched(const hlo_binder_t *b, hlo_t old) {
  if (hlo_has_classes(b, old)) return true;
  const hlo_node_t *node = hlo_node(b->from, old);
  for (uint32_t i = 0; i < node->operand_count; i++) {
    if (hlo_has_classes(b, hlo_operand(b->from, old, i))) return true;
  }
  return false;
}

/* The bounds of a loop's regions are nodes. */
static hlo_t copy_node(hlo_binder_t *b, hlo_t old) {
  const hlo_node_t *node = hlo_node(b->from, old);
  const int64_t *attrs = hlo_attrs(b->from, old);
  hlo_t few[8], *operands = few;
  void *many = NULL;
  if (node->operand_count > 8) {
    many = operands = torus_alloc(node->operand_count * sizeof *operands);
    if (!many) return hlo_fail(b->to, TORUS_STATUS_RESOURCE_EXHAUSTED, "no memory for a graph");
  }
  for (uint32_t i = 0; i < node->operand_count; i++) operands[i] = hlo_mapped(b, old, i);
  int64_t bounds[3];
  if (node->op == HLO_OP_WHILE) {
    bounds[0] = b->map[attrs[0]];
    bounds[1] = b->map[attrs[1]];
    bounds[2] = (int64_t)b->to->node_count;
    attrs = bounds;
  }
  hlo_t x = hlo_append(b->to, &(hlo_spec_t){.op = (hlo_op_t)node->op,
                                            .dtype = (torus_dtype_t)node->dtype,
                                            .mode = node->mode,
                                            .rank = node->rank,
                                            .dims = hlo_dims(b->from, old),
                                            .operands = operands,
                                            .operand_count = node->operand_count,
                                            .attrs = attrs,
                                            .attr_count = node->attr_count,
                                            .softs = b->from->softs + node->softs,
                                            .soft_count = node->soft_count});
  torus_free(many);
  return x;
}

static hlo_t bind_touched(hlo_binder_t *b, hlo_t old) {
  const hlo_op_t op = (hlo_op_t)hlo_node(b->from, old)->op;
  if ((int)op < HLO_OP_FIRST_OTHER) return bind_elementwise(b, old);
  switch (op) {
  case HLO_OP_COMPARE:
  case HLO_OP_SELECT:
  case HLO_OP_CONVERT:
  case HLO_OP_IS_FINITE:
  case HLO_OP_COMPLEX:
  case HLO_OP_REAL:
  case HLO_OP_IMAG: return bind_elementwise(b, old);
  case HLO_OP_BITCAST: return bind_bitcast(b, old);
  case HLO_OP_CONSTANT:
  case HLO_OP_IOTA: return bind_source(b, old);
  case HLO_OP_BROADCAST: return bind_broadcast(b, old);
  case HLO_OP_TRANSPOSE: return bind_transpose(b, old);
  case HLO_OP_RESULT: return bind_result(b, old);
  case HLO_OP_SORT: return hlo_bind_sort(b, old);
  case HLO_OP_FFT: return bind_fft(b, old);
  case HLO_OP_CHOLESKY:
  case HLO_OP_TRIANGULAR_SOLVE: return bind_matrices(b, old);
  case HLO_OP_RESHAPE: return hlo_bind_reshape(b, old);
  case HLO_OP_REVERSE: return hlo_bind_reverse(b, old);
  case HLO_OP_PAD: return hlo_bind_pad(b, old);
  case HLO_OP_CONCATENATE: return hlo_bind_concatenate(b, old);
  case HLO_OP_SLICE:
  case HLO_OP_DYNAMIC_SLICE: return hlo_bind_slice(b, old);
  case HLO_OP_UPDATE_SLICE:
  case HLO_OP_DYNAMIC_UPDATE_SLICE: return hlo_bind_update(b, old);
  case HLO_OP_REDUCE: return hlo_bind_reduce(b, old);
  case HLO_OP_REDUCE_ARG: return hlo_bind_reduce_arg(b, old);
  case HLO_OP_REDUCE_WINDOW:
  case HLO_OP_REDUCE_WINDOW_ARG:
  case HLO_OP_SELECT_AND_SCATTER: return hlo_bind_window(b, old);
  case HLO_OP_DOT_GENERAL: return hlo_bind_dot(b, old);
  case HLO_OP_CONVOLUTION: return hlo_bind_convolution(b, old);
  case HLO_OP_GATHER: return hlo_bind_gather(b, old);
  case HLO_OP_SCATTER: return hlo_bind_scatter(b, old);
  default: return hlo_refuse(b, old, "the result depends on the size as a whole");
  }
}

static hlo_t bind_node(hlo_binder_t *b, hlo_t old) {
  const hlo_node_t *node = hlo_node(b->from, old);
  if (node->op == HLO_OP_PARAMETER) return bind_parameter(b, old);
  if (!is_touched(b, old)) return copy_node(b, old);
  if (node->region) return hlo_refuse(b, old, "a size that changes inside a loop");
  return bind_touched(b, old);
}

static double elements(const hlo_graph_t *g, hlo_t x) {
  double count = 1;
  for (int d = 0; d < hlo_rank(g, x); d++) count *= (double)hlo_dims(g, x)[d];
  return count;
}

/* False when the bounds would take far more memory and time than the sizes do. */
static bool is_affordable(const hlo_binder_t *b) {
  double before = 0, after = 0;
  for (size_t i = 0; i < b->live.end; i++) {
    if (b->live.number[i]) before += elements(b->from, (hlo_t)i);
  }
  for (size_t i = 0; i < b->to->node_count; i++) {
    const double count = elements(b->to, (hlo_t)i);
    if (count > INT32_MAX) return false;
    after += count;
  }
  return after <= MOST_GROWTH * before + spare_elements;
}

static bool copy_regions(hlo_binder_t *b) {
  hlo_graph_t *to = b->to;
  const size_t count = b->from->region_count;
  if (!hlo_reserve(to, (void **)&to->region_parents, &to->region_capacity, count,
                   sizeof *to->region_parents)) {
    return false;
  }
  if (count) memcpy(to->region_parents, b->from->region_parents, count * sizeof(int32_t));
  to->region_count = count;
  return true;
}

static void walk(hlo_binder_t *b, hlo_t *out_outputs) {
  if (!copy_regions(b)) return;
  for (size_t i = 0; i < b->live.end && !b->to->error && !b->reason[0]; i++) {
    if (!b->live.number[i]) continue;
    b->to->region = b->from->nodes[i].region;
    b->map[i] = bind_node(b, (hlo_t)i);
  }
  b->to->region = 0;
  for (size_t k = 0; k < b->how->output_count; k++) out_outputs[k] = b->map[b->how->outputs[k]];
  if (b->how->class_count && !b->to->error && !b->reason[0] && !is_affordable(b)) {
    snprintf(b->reason, HLO_REASON_BYTES, "the bounds would take far more than the sizes");
  }
}

static torus_status_t init(hlo_binder_t *b) {
  if (!hlo_number_live(b->from, b->how->outputs, b->how->output_count, &b->live)) {
    return hlo_graph_take_error(b->from);
  }
  const size_t end = b->live.end, classes = (size_t)b->how->class_count + 1;
  TORUS_TRY(torus_try_alloc((2 * end + classes) * sizeof(uint32_t), (void **)&b->base));
  b->map = (hlo_t *)(b->base + end);
  b->numbers = b->map + end;
  uint32_t at = 0;
  for (size_t i = 0; i < end; i++) {
    b->map[i] = HLO_NONE;
    b->base[i] = at;
    if (b->live.number[i]) at += b->from->nodes[i].rank;
  }
  for (size_t i = 0; i < classes; i++) b->numbers[i] = HLO_NONE;
  return TORUS_OK;
}

torus_status_t hlo_bound(const hlo_bounding_t *bounding, hlo_graph_t *to, hlo_t *out_outputs,
                         char *out_reason) {
  hlo_binder_t b = {.how = bounding, .from = bounding->graph, .to = to, .reason = out_reason};
  out_reason[0] = 0;
  hlo_graph_clear(to);
  to->precision = b.from->precision;
  to->widened_products = b.from->widened_products;
  TORUS_TRY(init(&b));
  walk(&b, out_outputs);
  torus_free(b.base);
  to->region = 0;
  return hlo_graph_take_error(to);
}
