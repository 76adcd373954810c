/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
#include "hlo/shapes.h"

#include <string.h>

#include "base/hash.h"
#include "base/strbuf.h"
#include "hlo/graph_internal.h"
#include "torus/memory.h"

static void put_word(torus_strbuf_t *key, size_t value) {
  const uint32_t word = (uint32_t)value;
  torus_strbuf_append_bytes(key, &word, sizeof word);
}

static void put_longs(torus_strbuf_t *key, const int64_t *values, size_t count) {
  if (count) torus_strbuf_append_bytes(key, values, count * sizeof *values);
}

/* ---- attributes ---- */

/* One bit for each dimension that |part| takes whole. */
static uint32_t whole_mask(const hlo_graph_t *g, hlo_t whole, hlo_t part) {
  uint32_t mask = 0;
  for (int i = 0; i < hlo_rank(g, whole); i++) {
    if (hlo_dims(g, whole)[i] == hlo_dims(g, part)[i]) mask |= UINT32_C(1) << i;
  }
  return mask;
}

/* Slice sizes that are the operand's own become -1. */
static void put_gather(torus_strbuf_t *key, const hlo_graph_t *g, hlo_t x) {
  const hlo_node_t *node = hlo_node(g, x);
  const int64_t *attrs = hlo_attrs(g, x);
  const hlo_t source = hlo_operand(g, x, 0);
  const size_t head = 4 + (size_t)(attrs[0] + attrs[1] + attrs[2]);
  put_longs(key, attrs, head);
  for (size_t i = head; i < node->attr_count; i++) {
    const bool whole = attrs[i] == hlo_dims(g, source)[i - head];
    put_longs(key, (int64_t[]){whole ? -1 : attrs[i]}, 1);
  }
}

/* A window over all elements up to its own becomes -1. */
static void put_window(torus_strbuf_t *key, const hlo_graph_t *g, hlo_t x) {
  const int rank = hlo_node(g, x)->rank;
  const int64_t *attrs = hlo_attrs(g, x);
  for (int i = 0; i < rank; i++) {
    if (hlo_is_running(g, x, i)) {
      put_longs(key, (int64_t[]){-1}, 1);
      continue;
    }
    for (int k = 0; k < 6; k++) put_longs(key, &attrs[k * rank + i], 1);
  }
}

/* The padding at the end follows from the sizes before and after. */
static void put_padding(torus_strbuf_t *key, const hlo_graph_t *g, hlo_t x) {
  const size_t rank = hlo_node(g, x)->rank;
  put_longs(key, hlo_attrs(g, x), rank);
  put_longs(key, hlo_attrs(g, x) + 2 * rank, rank);
}

static void put_attrs(torus_strbuf_t *key, const hlo_graph_t *g, const hlo_live_t *live, hlo_t x) {
  const hlo_node_t *node = hlo_node(g, x);
  const int64_t *attrs = hlo_attrs(g, x);
  switch ((hlo_op_t)node->op) {
  case HLO_OP_PARAMETER:
    put_word(key, live->position[attrs[0]]);
    return;
  case HLO_OP_WHILE:
    put_word(key, live->number[attrs[0]]);
    put_word(key, live->number[attrs[1]]);
    return;
  case HLO_OP_GATHER:
    put_gather(key, g, x);
    return;
  case HLO_OP_REDUCE_WINDOW:
    put_window(key, g, x);
    return;
  case HLO_OP_PAD:
    put_padding(key, g, x);
    return;
  case HLO_OP_SLICE:
  case HLO_OP_DYNAMIC_SLICE:
    put_word(key, whole_mask(g, hlo_operand(g, x, 0), x));
    break;
  case HLO_OP_UPDATE_SLICE:
  case HLO_OP_DYNAMIC_UPDATE_SLICE:
    put_word(key, whole_mask(g, x, hlo_operand(g, x, 1)));
    break;
  default:
    break;
  }
  put_longs(key, attrs, node->attr_count);
}

bool hlo_is_running(const hlo_graph_t *g, hlo_t x, int dim) {
  const int rank = hlo_node(g, x)->rank;
  const int64_t *a = hlo_attrs(g, x) + dim;
  const int64_t extent = hlo_dims(g, x)[dim];
  return extent > 1 && a[0] == extent && a[rank] == 1 && a[2 * rank] == 1 && a[3 * rank] == 1 &&
         a[4 * rank] == extent - 1 && a[5 * rank] == 0;
}

/* ---- nodes ---- */

static void put_node(torus_strbuf_t *key, const hlo_graph_t *g, const hlo_live_t *live, hlo_t x) {
  const hlo_node_t *node = hlo_node(g, x);
  const int64_t *dims = hlo_dims(g, x);
  unsigned char head[8 + TORUS_MAX_RANK] = {node->op, node->dtype, node->rank, node->mode,
                                            (unsigned char)node->soft_count};
  for (int i = 0; i < node->rank; i++) head[8 + i] = dims[i] > 1 ? 2 : (unsigned char)dims[i];
  torus_strbuf_append_bytes(key, head, 8 + (size_t)node->rank);
  put_word(key, node->operand_count);
  put_word(key, node->attr_count);
  const hlo_t *operands = hlo_operands(g, x);
  for (uint32_t k = 0; k < node->operand_count; k++) put_word(key, live->number[operands[k]]);
  put_attrs(key, g, live, x);
}

static void make_key(const hlo_graph_t *g, const hlo_live_t *live, const hlo_t *outputs,
                     size_t output_count, torus_strbuf_t *key) {
  put_word(key, live->node_count);
  put_word(key, output_count);
  for (size_t i = 0; i < output_count; i++) put_word(key, live->number[outputs[i]]);
  for (size_t i = 0; i < live->end; i++) {
    if (live->number[i]) put_node(key, g, live, (hlo_t)i);
  }
}

static size_t count_sizes(const hlo_graph_t *g, const hlo_live_t *live) {
  size_t count = 0;
  for (size_t i = 0; i < live->end; i++) {
    if (live->number[i]) count += g->nodes[i].rank;
  }
  return count;
}

static void fill_vectors(const hlo_graph_t *g, const hlo_live_t *live, hlo_shapes_t *shapes) {
  size_t soft = 0, size = 0;
  for (size_t i = 0; i < live->end; i++) {
    if (!live->number[i]) continue;
    const hlo_node_t *node = &g->nodes[i];
    for (int d = 0; d < node->rank; d++) shapes->sizes[size++] = g->ints[node->dims + (size_t)d];
    for (uint32_t k = 0; k < node->soft_count; k++) {
      shapes->softs[soft++] = g->softs[node->softs + k].bits;
    }
  }
}

static torus_status_t alloc_vectors(const hlo_graph_t *g, const hlo_live_t *live,
                                    hlo_shapes_t *shapes) {
  shapes->size_count = count_sizes(g, live);
  shapes->soft_count = live->soft_count;
  TORUS_TRY(torus_try_alloc((shapes->size_count + 1) * sizeof(int64_t), (void **)&shapes->sizes));
  return torus_try_alloc((shapes->soft_count + 1) * sizeof(int64_t), (void **)&shapes->softs);
}

torus_status_t hlo_shapes_of(hlo_graph_t *g, const hlo_t *outputs, size_t output_count,
                             hlo_shapes_t *out_shapes) {
  *out_shapes = (hlo_shapes_t){0};
  hlo_live_t live;
  if (!hlo_number_live(g, outputs, output_count, &live)) return hlo_graph_take_error(g);
  torus_strbuf_t key = {0};
  make_key(g, &live, outputs, output_count, &key);
  torus_status_t status = torus_strbuf_status(&key);
  out_shapes->key = key.data;
  out_shapes->key_bytes = key.size;
  if (status == TORUS_OK) status = alloc_vectors(g, &live, out_shapes);
  if (status != TORUS_OK) {
    hlo_shapes_deinit(out_shapes);
    return status;
  }
  out_shapes->hash = torus_hash_bytes(out_shapes->key, out_shapes->key_bytes, 0);
  fill_vectors(g, &live, out_shapes);
  return TORUS_OK;
}

void hlo_shapes_deinit(hlo_shapes_t *shapes) {
  torus_free(shapes->key);
  torus_free(shapes->sizes);
  torus_free(shapes->softs);
  *shapes = (hlo_shapes_t){0};
}

torus_status_t hlo_mark_changes(hlo_graph_t *g, const hlo_t *outputs, size_t output_count,
                                const int64_t *softs, bool *changes) {
  hlo_live_t live;
  if (!hlo_number_live(g, outputs, output_count, &live)) return hlo_graph_take_error(g);
  size_t at = 0;
  for (size_t i = 0; i < live.end; i++) {
    if (!live.number[i]) continue;
    for (uint32_t k = 0; k < g->nodes[i].soft_count; k++, at++) {
      hlo_soft_number_t *soft = &g->softs[g->nodes[i].softs + k];
      changes[at] |= soft->bits != softs[at];
      soft->changes |= changes[at];
    }
  }
  return TORUS_OK;
}
