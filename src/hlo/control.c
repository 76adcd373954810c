/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Loops. */
#include <string.h>

#include "hlo/graph_internal.h"
#include "torus/memory.h"

/* Opens a region inside the current one; its number, or -1 after an error. */
static int32_t open_region(hlo_graph_t *g) {
  if (g->region_count >= g->region_capacity &&
      !hlo_reserve(g, (void **)&g->region_parents, &g->region_capacity, g->region_count + 1,
                   sizeof *g->region_parents)) {
    return -1;
  }
  g->region_parents[g->region_count++] = g->region;
  g->region = (int32_t)g->region_count;
  return g->region;
}

/* The state as the region sees it: |count| nodes in a row. */
static bool append_state(hlo_graph_t *g, const hlo_t *initial, size_t count, hlo_t *out_state) {
  for (size_t i = 0; i < count; i++) {
    out_state[i] =
        hlo_append_like(g, HLO_OP_BLOCK_ARG, hlo_dtype(g, initial[i]), 0, initial[i], NULL, 0);
    if (out_state[i] == HLO_NONE) return false;
  }
  return true;
}

static bool check_condition(hlo_graph_t *g, hlo_t condition) {
  if (!hlo_usable(g, HLO_OP_WHILE, condition)) return false;
  if (hlo_dtype(g, condition) == TORUS_DTYPE_BOOL && hlo_rank(g, condition) == 0) return true;
  hlo_fail_types(g, HLO_OP_WHILE, "the condition must be a single bool", condition, HLO_NONE);
  return false;
}

static bool check_next(hlo_graph_t *g, const hlo_t *initial, const hlo_t *next, size_t count) {
  if (!hlo_usable_all(g, HLO_OP_WHILE, next, count)) return false;
  for (size_t i = 0; i < count; i++) {
    if (hlo_dtype(g, initial[i]) != hlo_dtype(g, next[i]) ||
        !hlo_same_shape(g, initial[i], next[i])) {
      hlo_fail_types(g, HLO_OP_WHILE, "the body changes the type of the state", initial[i],
                     next[i]);
      return false;
    }
  }
  return true;
}

/* Runs both callbacks. |operands| holds the initial state and has room for one node and |count|
 * more; |state| is working memory of 2 * |count|; |bounds| receives where the regions begin and
 * where the second ends. */
static bool build_regions(hlo_graph_t *g, size_t count, hlo_condition_fn condition,
                          hlo_body_fn body, void *context, hlo_t *operands, hlo_t *state,
                          int64_t *bounds) {
  hlo_t *next = state + count;
  bounds[0] = (int64_t)g->node_count;
  int32_t outer = g->region;
  if (open_region(g) < 0 || !append_state(g, operands, count, state)) return false;
  operands[count] = condition(g, state, context);
  if (!check_condition(g, operands[count])) return false;
  bounds[1] = (int64_t)g->node_count;
  g->region = outer;
  if (open_region(g) < 0 || !append_state(g, operands, count, state)) return false;
  for (size_t i = 0; i < count; i++) next[i] = HLO_NONE;
  body(g, state, next, context);
  if (!check_next(g, operands, next, count)) return false;
  bounds[2] = (int64_t)g->node_count;
  memcpy(operands + count + 1, next, count * sizeof *next);
  return true;
}

/* operands: initial state, condition, next state; attrs: first node of the condition, first node
 * of the body, end of the body. Each region begins with |count| BLOCK_ARG nodes. */
static hlo_t append_while(hlo_graph_t *g, size_t count, const hlo_t *operands,
                          const int64_t *bounds) {
  return hlo_append(g, &(hlo_spec_t){.op = HLO_OP_WHILE,
                                     .dtype = TORUS_DTYPE_BOOL,
                                     .operands = operands,
                                     .operand_count = 2 * count + 1,
                                     .attrs = bounds,
                                     .attr_count = 3});
}

void hlo_while(hlo_graph_t *g, const hlo_t *initial, size_t count, hlo_condition_fn condition,
               hlo_body_fn body, void *context, hlo_t *out_results) {
  bool usable = count > 0 && hlo_usable_all(g, HLO_OP_WHILE, initial, count);
  if (count == 0) hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "while: there is no state");
  hlo_t *work = usable ? torus_alloc((4 * count + 1) * sizeof *work) : NULL;
  if (usable && !work) hlo_fail(g, TORUS_STATUS_RESOURCE_EXHAUSTED, "while: no memory");
  if (work) memcpy(work, initial, count * sizeof *work);
  for (size_t i = 0; i < count; i++) out_results[i] = HLO_NONE;
  if (!work) return;
  int64_t bounds[3];
  int32_t outer = g->region;
  bool built = build_regions(g, count, condition, body, context, work, work + 2 * count + 1,
                             bounds);
  g->region = outer;
  hlo_t node = built ? append_while(g, count, work, bounds) : HLO_NONE;
  for (size_t i = 0; i < count && node != HLO_NONE; i++) {
    int64_t dims[TORUS_MAX_RANK];
    int rank = hlo_shape(g, work[i], dims);
    out_results[i] = hlo_append_result(g, node, (int)i, hlo_dtype(g, work[i]), rank, dims);
  }
  torus_free(work);
}
