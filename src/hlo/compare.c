/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Walks two keys node by node. A key that does not read as one counts as ending there. */
#include "hlo/compare.h"

#include <stdio.h>
#include <string.h>

#include "hlo/graph_internal.h"

typedef struct reader {
  const char *at, *end;
  size_t nodes;          /* not read yet */
  size_t results;
  const char *result_numbers;
} reader_t;

/* A node with what hlo_key_node_t leaves out. */
typedef struct full_node {
  hlo_key_node_t shown;
  uint8_t mode;
  const char *operands, *attrs;
  size_t operand_bytes, attr_bytes;
} full_node_t;

static const char *take(reader_t *r, size_t bytes) {
  const char *at = r->at;
  if ((size_t)(r->end - at) < bytes) return NULL;
  r->at += bytes;
  return at;
}

static uint32_t take_word(reader_t *r) {
  uint32_t word = 0;
  const char *at = take(r, sizeof word);
  if (at != NULL) memcpy(&word, at, sizeof word);
  return word;
}

static reader_t open_key(const char *key, size_t bytes) {
  reader_t r = {.at = key, .end = key + bytes};
  r.nodes = take_word(&r);
  r.results = take_word(&r);
  r.result_numbers = take(&r, 4 * r.results);
  if (r.result_numbers == NULL) r.results = r.nodes = 0;
  return r;
}

static bool next_node(reader_t *r, full_node_t *out) {
  *out = (full_node_t){.shown.op = -1};
  const char *head = r->nodes > 0 ? take(r, 4) : NULL;
  if (head == NULL) return false;
  r->nodes -= 1;
  out->operand_bytes = 4 * (size_t)take_word(r);
  out->attr_bytes = 8 * (size_t)take_word(r);
  out->operands = take(r, out->operand_bytes);
  const int rank = (unsigned char)head[2];
  const char *dims = rank <= TORUS_MAX_RANK ? take(r, 8 * (size_t)rank) : NULL;
  out->attrs = take(r, out->attr_bytes);
  if (!out->operands || !dims || !out->attrs || (unsigned char)head[0] >= HLO_OP_COUNT) return false;
  out->shown.op = (unsigned char)head[0];
  out->shown.dtype = (torus_dtype_t)(unsigned char)head[1];
  out->shown.rank = rank;
  out->mode = (uint8_t)head[3];
  memcpy(out->shown.dims, dims, 8 * (size_t)rank);
  return true;
}

static int first_other_dim(const hlo_key_node_t *a, const hlo_key_node_t *b) {
  for (int d = 0; d < a->rank; ++d) {
    if (a->dims[d] != b->dims[d]) return d;
  }
  return -1;
}

static hlo_difference_kind_t compare_nodes(const full_node_t *a, const full_node_t *b) {
  if (a->shown.op != b->shown.op || a->shown.op < 0 || a->shown.rank != b->shown.rank ||
      a->mode != b->mode || a->operand_bytes != b->operand_bytes ||
      memcmp(a->operands, b->operands, a->operand_bytes) != 0) {
    return HLO_DIFFERENCE_STRUCTURE;
  }
  if (a->shown.dtype != b->shown.dtype) return HLO_DIFFERENCE_TYPES;
  if (first_other_dim(&a->shown, &b->shown) >= 0) return HLO_DIFFERENCE_SIZES;
  if (a->attr_bytes == b->attr_bytes && memcmp(a->attrs, b->attrs, a->attr_bytes) == 0) {
    return HLO_DIFFERENCE_NONE;
  }
  return HLO_DIFFERENCE_ATTRIBUTES;
}

/* Details (bounds of a slice) follow from sizes, and sizes from types: the first of the farthest
 * kind is what to tell, with parameters before what is made of them. */
static void note(hlo_difference_t *d, hlo_difference_kind_t kind, size_t place,
                 const full_node_t *a, const full_node_t *b) {
  if (kind == d->kind && b->shown.op == HLO_OP_PARAMETER) d->other_count += 1;
  const bool is_clearer =
      kind == d->kind && b->shown.op == HLO_OP_PARAMETER && d->new_node.op != HLO_OP_PARAMETER;
  if (kind < d->kind || (kind == d->kind && !is_clearer)) return;
  d->kind = kind;
  d->node = place;
  d->old_node = a->shown;
  d->new_node = b->shown;
  d->other_count = 0;
  d->dim = kind == HLO_DIFFERENCE_SIZES ? first_other_dim(&a->shown, &b->shown) : 0;
}

/* Other operations follow from another type or size of what goes in. */
static bool has_cause(const hlo_difference_t *d) {
  return (d->kind == HLO_DIFFERENCE_SIZES || d->kind == HLO_DIFFERENCE_TYPES) &&
         d->new_node.op == HLO_OP_PARAMETER;
}

static void compare_results(const reader_t *a, const reader_t *b, hlo_difference_t *d) {
  d->old_results = a->results;
  d->new_results = b->results;
  const bool are_same = a->results == b->results &&
                        memcmp(a->result_numbers, b->result_numbers, 4 * a->results) == 0;
  if (!are_same) d->kind = HLO_DIFFERENCE_RESULTS;
}

void hlo_key_compare(const char *old_key, size_t old_bytes, const char *new_key, size_t new_bytes,
                     hlo_difference_t *out_difference) {
  reader_t a = open_key(old_key, old_bytes), b = open_key(new_key, new_bytes);
  *out_difference = (hlo_difference_t){.old_node.op = -1, .new_node.op = -1};
  if (a.results > 0 || b.results > 0) compare_results(&a, &b, out_difference);
  for (size_t place = 0; a.nodes > 0 || b.nodes > 0; ++place) {
    full_node_t x, y;
    const bool has_x = next_node(&a, &x), has_y = next_node(&b, &y);
    /* What is wanted besides adds nodes at the end. */
    if ((!has_x || !has_y) && out_difference->kind == HLO_DIFFERENCE_RESULTS) return;
    const hlo_difference_kind_t kind = compare_nodes(&x, &y);
    if (kind == HLO_DIFFERENCE_STRUCTURE && has_cause(out_difference)) {
      out_difference->has_other_nodes = true;
      return;
    }
    if (kind != HLO_DIFFERENCE_NONE) note(out_difference, kind, place, &x, &y);
    if (kind == HLO_DIFFERENCE_STRUCTURE) return;
  }
}

const char *hlo_key_node_text(const hlo_key_node_t *node, char *text) {
  if (node->op < 0) {
    snprintf(text, HLO_KEY_NODE_TEXT, "nothing");
    return text;
  }
  char type[HLO_TYPE_TEXT];
  hlo_shape_text(node->dtype, node->rank, node->dims, type);
  snprintf(text, HLO_KEY_NODE_TEXT, "%s %s", hlo_op_name((hlo_op_t)node->op), type);
  return text;
}
