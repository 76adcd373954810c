/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Blocks: nodes taken out of one graph, with numbers that count from their own beginning, so that
 * to put them into another one is to copy a few arrays and to shift the numbers in them. */
#include "hlo/block.h"

#include <string.h>

#include "hlo/graph_internal.h"
#include "torus/memory.h"

/* ---- taking out ---- */

/* Where each live node will be: parameters first, by argument number. */
static void place_nodes(const hlo_graph_t *g, const hlo_live_t *live, hlo_t *places) {
  hlo_t next = (hlo_t)live->parameter_count;
  for (size_t i = 0; i < live->end; i++) {
    if (!live->number[i]) continue;
    const hlo_node_t *node = &g->nodes[i];
    const bool is_parameter = node->op == HLO_OP_PARAMETER;
    places[i] = is_parameter ? (hlo_t)live->position[g->ints[node->attrs]] - 1 : next++;
  }
}

static void take_parameters(const hlo_graph_t *g, const hlo_live_t *live, const hlo_t *places,
                            hlo_graph_t *block) {
  for (size_t i = 0; i < live->end; i++) {
    const hlo_node_t *node = &g->nodes[i];
    const bool is_next = live->number[i] && node->op == HLO_OP_PARAMETER &&
                         (size_t)places[i] == block->node_count;
    if (!is_next) continue;
    hlo_parameter(block, places[i], (torus_dtype_t)node->dtype, node->rank, g->ints + node->dims);
  }
}

/* A loop's bounds are numbers of nodes; its body ends where it stands itself. */
static void place_bounds(const hlo_graph_t *g, size_t i, const hlo_t *places, int64_t *bounds) {
  const int64_t *from = g->ints + g->nodes[i].attrs;
  bounds[0] = places[from[0]];
  bounds[1] = places[from[1]];
  bounds[2] = places[i];
}

static void take_node(const hlo_graph_t *g, size_t i, const hlo_t *places, hlo_graph_t *block) {
  const hlo_node_t *node = &g->nodes[i];
  const hlo_t x = hlo_append(block, &(hlo_spec_t){.op = (hlo_op_t)node->op,
                                                  .dtype = (torus_dtype_t)node->dtype,
                                                  .mode = node->mode,
                                                  .rank = node->rank,
                                                  .dims = g->ints + node->dims,
                                                  .operands = g->operands + node->operands,
                                                  .operand_count = node->operand_count,
                                                  .attrs = g->ints + node->attrs,
                                                  .attr_count = node->attr_count,
                                                  .softs = g->softs + node->softs,
                                                  .soft_count = node->soft_count});
  if (x == HLO_NONE) return;
  hlo_node_t *taken = &block->nodes[x];
  taken->region = node->region;
  hlo_t *operands = block->operands + taken->operands;
  for (uint32_t k = 0; k < taken->operand_count; k++) operands[k] = places[operands[k]];
  if (node->op == HLO_OP_WHILE) place_bounds(g, i, places, block->ints + taken->attrs);
}

static void take_nodes(const hlo_graph_t *g, const hlo_live_t *live, const hlo_t *places,
                       hlo_graph_t *block) {
  const hlo_mark_t *last = NULL;
  for (size_t i = 0; i < live->end; i++) {
    if (!live->number[i] || g->nodes[i].op == HLO_OP_PARAMETER) continue;
    const hlo_mark_t *mark = hlo_graph_mark_of(g, (hlo_t)i);
    if (mark != NULL && mark != last) {
      hlo_graph_mark(block, mark->name, mark->code, mark->instruction);
    }
    last = mark;
    take_node(g, i, places, block);
  }
}

static bool take_regions(const hlo_graph_t *g, hlo_graph_t *block) {
  if (g->region_count == 0) return true;
  if (!hlo_reserve(block, (void **)&block->region_parents, &block->region_capacity,
                   g->region_count, sizeof *g->region_parents)) {
    return false;
  }
  memcpy(block->region_parents, g->region_parents, g->region_count * sizeof *g->region_parents);
  block->region_count = g->region_count;
  return true;
}

static torus_status_t extract(hlo_graph_t *g, const hlo_live_t *live, hlo_graph_t *block,
                              const hlo_t *outputs, size_t count, hlo_t *out_outputs) {
  hlo_t *places = torus_alloc((live->end + 1) * sizeof *places);
  if (!places) return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "no memory for a graph");
  place_nodes(g, live, places);
  take_parameters(g, live, places, block);
  if (take_regions(g, block)) take_nodes(g, live, places, block);
  for (size_t i = 0; i < count; i++) out_outputs[i] = places[outputs[i]];
  torus_free(places);
  return hlo_graph_take_error(block);
}

torus_status_t hlo_block_extract(hlo_graph_t *g, const hlo_t *outputs, size_t count,
                                 hlo_graph_t **out_block, hlo_t *out_outputs) {
  hlo_live_t live;
  *out_block = NULL;
  if (!hlo_number_live(g, outputs, count, &live)) return hlo_graph_take_error(g);
  hlo_graph_t *block;
  TORUS_TRY(hlo_graph_create(&block));
  torus_status_t status = extract(g, &live, block, outputs, count, out_outputs);
  if (status != TORUS_OK) {
    hlo_graph_destroy(block);
    return status;
  }
  *out_block = block;
  return TORUS_OK;
}

/* ---- putting in ---- */

/* What is added to the numbers in a block. */
typedef struct shifts {
  const hlo_t *arguments;
  size_t argument_count;
  hlo_t node;
  uint32_t operand, integer, soft;
  int32_t region, outer_region;
} shifts_t;

static hlo_t shifted(const shifts_t *by, hlo_t x) {
  return (size_t)x < by->argument_count ? by->arguments[x] : x + by->node;
}

static bool has_type_of(const hlo_graph_t *block, hlo_t x, const hlo_graph_t *g, hlo_t y) {
  const size_t rank = (size_t)hlo_rank(g, y);
  return hlo_dtype(block, x) == hlo_dtype(g, y) && hlo_rank(block, x) == hlo_rank(g, y) &&
         memcmp(hlo_dims(block, x), hlo_dims(g, y), rank * sizeof(int64_t)) == 0;
}

static bool check_arguments(hlo_graph_t *g, const hlo_graph_t *block, const hlo_t *arguments,
                            size_t count) {
  if (!hlo_usable_all(g, HLO_OP_PARAMETER, arguments, count)) return false;
  for (size_t i = 0; i < count; i++) {
    if (has_type_of(block, (hlo_t)i, g, arguments[i])) continue;
    hlo_fail_types(g, HLO_OP_PARAMETER, "an argument of a block has another type", arguments[i],
                   HLO_NONE);
    return false;
  }
  return true;
}

static bool reserve_all(hlo_graph_t *g, const hlo_graph_t *block) {
#define RESERVE(field, count)                                                                      \
  hlo_reserve(g, (void **)&g->field, &g->count##_capacity,                                         \
              g->count##_count + block->count##_count, sizeof *g->field)
  return RESERVE(nodes, node) && RESERVE(operands, operand) && RESERVE(ints, int) &&
         RESERVE(softs, soft) && RESERVE(region_parents, region);
#undef RESERVE
}

static void put_marks(hlo_graph_t *g, const hlo_graph_t *block, const shifts_t *by) {
  for (size_t i = 0; i < block->mark_count; i++) {
    const hlo_mark_t *mark = &block->marks[i];
    const size_t before = g->mark_count;
    hlo_graph_mark(g, mark->name, mark->code, mark->instruction);
    if (g->mark_count > before) g->marks[before].first = mark->first + by->node;
  }
}

static void put_nodes(hlo_graph_t *g, const hlo_graph_t *block, const shifts_t *by) {
  for (size_t i = by->argument_count; i < block->node_count; i++) {
    hlo_node_t node = block->nodes[i];
    node.operands += by->operand;
    node.dims += by->integer;
    node.attrs += by->integer;
    node.softs += by->soft;
    node.region = node.region == 0 ? by->outer_region : node.region + by->region;
    if (node.op == HLO_OP_WHILE) {
      for (int k = 0; k < 3; k++) g->ints[node.attrs + (uint32_t)k] += by->node;
    }
    g->nodes[g->node_count++] = node;
  }
}

static void put_pools(hlo_graph_t *g, const hlo_graph_t *block, const shifts_t *by) {
  if (block->int_count) {
    memcpy(g->ints + g->int_count, block->ints, block->int_count * sizeof *g->ints);
  }
  if (block->soft_count) {
    memcpy(g->softs + g->soft_count, block->softs, block->soft_count * sizeof *g->softs);
  }
  for (size_t i = 0; i < block->operand_count; i++) {
    g->operands[g->operand_count++] = shifted(by, block->operands[i]);
  }
  for (size_t i = 0; i < block->region_count; i++) {
    const int32_t parent = block->region_parents[i];
    g->region_parents[g->region_count++] = parent == 0 ? by->outer_region : parent + by->region;
  }
  g->int_count += block->int_count;
  g->soft_count += block->soft_count;
}

bool hlo_block_append(hlo_graph_t *g, const hlo_graph_t *block, const hlo_t *arguments,
                      size_t argument_count, hlo_t *outputs, size_t count) {
  if (!check_arguments(g, block, arguments, argument_count) || !reserve_all(g, block)) return false;
  const shifts_t by = {.arguments = arguments,
                       .argument_count = argument_count,
                       .node = (hlo_t)g->node_count - (hlo_t)argument_count,
                       .operand = (uint32_t)g->operand_count,
                       .integer = (uint32_t)g->int_count,
                       .soft = (uint32_t)g->soft_count,
                       .region = (int32_t)g->region_count,
                       .outer_region = g->region};
  put_pools(g, block, &by);
  put_marks(g, block, &by);
  put_nodes(g, block, &by);
  for (size_t i = 0; i < count; i++) outputs[i] = shifted(&by, outputs[i]);
  return true;
}
