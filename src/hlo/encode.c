/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* A graph as a key, and its soft numbers as words.
 *
 * The key is: node count, output count, the outputs' numbers, then each live node as
 *   op, dtype, rank, mode (bytes), operand count, attribute count (32 bit),
 *   operands (32 bit, numbers of live nodes), dimensions and attributes (64 bit).
 * Two attributes depend on more than the program and are replaced: a parameter's input number by
 * its argument number, a loop's bounds by live numbers. */
#include "hlo/encode.h"

#include <string.h>

#include "base/hash.h"
#include "hlo/graph_internal.h"
#include "torus/memory.h"

/* ---- live nodes ---- */

static bool check_outputs(hlo_graph_t *g, const hlo_t *outputs, size_t count, size_t *out_end) {
  *out_end = 0;
  for (size_t i = 0; i < count; i++) {
    if (!hlo_usable(g, HLO_OP_RESULT, outputs[i])) return false;
    if ((size_t)outputs[i] >= *out_end) *out_end = (size_t)outputs[i] + 1;
  }
  return !g->error;
}

static bool reserve_scratch(hlo_graph_t *g, size_t need) {
  return hlo_reserve(g, (void **)&g->scratch, &g->scratch_capacity, need, sizeof *g->scratch);
}

/* The state of a live loop is all live, so that the regions keep their block arguments. */
static void mark_state(const hlo_graph_t *g, hlo_t loop, uint32_t *number) {
  size_t count = hlo_node(g, loop)->operand_count / 2;
  for (int region = 0; region < 2; region++) {
    size_t first = (size_t)hlo_attrs(g, loop)[region];
    for (size_t i = 0; i < count; i++) number[first + i] = 1;
  }
}

/* Users come after what they use, so one walk backwards finds all. Returns the end of the input
 * numbers. */
static size_t mark_live(const hlo_graph_t *g, size_t end, uint32_t *number) {
  size_t input_end = 0;
  for (size_t i = end; i-- > 0;) {
    if (!number[i]) continue;
    const hlo_node_t *node = &g->nodes[i];
    const hlo_t *operands = g->operands + node->operands;
    for (uint32_t k = 0; k < node->operand_count; k++) number[operands[k]] = 1;
    if (node->op == HLO_OP_WHILE) mark_state(g, (hlo_t)i, number);
    if (node->op == HLO_OP_PARAMETER && (size_t)g->ints[node->attrs] >= input_end) {
      input_end = (size_t)g->ints[node->attrs] + 1;
    }
  }
  return input_end;
}

static void number_marked(const hlo_graph_t *g, hlo_live_t *live, uint32_t *number,
                          uint32_t *soft_base, uint32_t *position) {
  for (size_t i = 0; i < live->end; i++) {
    if (!number[i]) continue;
    const hlo_node_t *node = &g->nodes[i];
    number[i] = (uint32_t)++live->node_count;
    soft_base[i] = (uint32_t)live->soft_count;
    live->soft_count += node->soft_count;
    live->operand_count += node->operand_count;
    live->int_count += node->rank + node->attr_count;
    if (node->op != HLO_OP_PARAMETER) continue;
    uint32_t *place = &position[g->ints[node->attrs]];
    if (!*place) *place = (uint32_t)++live->parameter_count;
  }
}

bool hlo_number_live(hlo_graph_t *g, const hlo_t *outputs, size_t output_count,
                     hlo_live_t *out_live) {
  *out_live = (hlo_live_t){0};
  size_t end;
  if (!check_outputs(g, outputs, output_count, &end) || !reserve_scratch(g, 2 * end)) return false;
  memset(g->scratch, 0, end * sizeof *g->scratch);
  for (size_t i = 0; i < output_count; i++) g->scratch[outputs[i]] = 1;
  size_t input_end = mark_live(g, end, g->scratch);
  if (!reserve_scratch(g, 2 * end + input_end)) return false;
  uint32_t *number = g->scratch, *soft_base = number + end, *position = soft_base + end;
  memset(position, 0, input_end * sizeof *position);
  *out_live = (hlo_live_t){.number = number,
                           .soft_base = soft_base,
                           .position = position,
                           .end = end,
                           .input_end = input_end};
  number_marked(g, out_live, number, soft_base, position);
  return true;
}

/* ---- key ---- */

enum { KEY_HEAD = 8, KEY_NODE = 12 };

static char *put_word(char *at, size_t value) {
  uint32_t word = (uint32_t)value;
  memcpy(at, &word, sizeof word);
  return at + sizeof word;
}

static char *put_longs(char *at, const int64_t *values, size_t count) {
  if (count) memcpy(at, values, count * sizeof *values);
  return at + count * sizeof *values;
}

static char *put_attrs(char *at, const hlo_graph_t *g, const hlo_live_t *live, size_t i) {
  const hlo_node_t *node = &g->nodes[i];
  const int64_t *attrs = g->ints + node->attrs;
  if (node->op == HLO_OP_PARAMETER) {
    return put_longs(at, (int64_t[]){live->position[attrs[0]]}, 1);
  }
  if (node->op == HLO_OP_WHILE) {
    int64_t bounds[] = {live->number[attrs[0]], live->number[attrs[1]], live->number[i]};
    return put_longs(at, bounds, 3);
  }
  return put_longs(at, attrs, node->attr_count);
}

static char *put_node(char *at, const hlo_graph_t *g, const hlo_live_t *live, size_t i) {
  const hlo_node_t *node = &g->nodes[i];
  const uint8_t head[4] = {node->op, node->dtype, node->rank, node->mode};
  memcpy(at, head, sizeof head);
  at = put_word(at + sizeof head, node->operand_count);
  at = put_word(at, node->attr_count);
  const hlo_t *operands = g->operands + node->operands;
  for (uint32_t k = 0; k < node->operand_count; k++) at = put_word(at, live->number[operands[k]]);
  at = put_longs(at, g->ints + node->dims, node->rank);
  return put_attrs(at, g, live, i);
}

static torus_status_t make_key(const hlo_graph_t *g, const hlo_live_t *live, const hlo_t *outputs,
                               size_t output_count, hlo_encoding_t *encoding) {
  encoding->key_bytes = KEY_HEAD + 4 * output_count + KEY_NODE * live->node_count +
                        4 * live->operand_count + 8 * live->int_count;
  TORUS_TRY(torus_try_alloc(encoding->key_bytes, (void **)&encoding->key));
  char *at = put_word(encoding->key, live->node_count);
  at = put_word(at, output_count);
  for (size_t i = 0; i < output_count; i++) at = put_word(at, live->number[outputs[i]]);
  for (size_t i = 0; i < live->end; i++) {
    if (live->number[i]) at = put_node(at, g, live, i);
  }
  encoding->hash = torus_hash_bytes(encoding->key, encoding->key_bytes, 0);
  return TORUS_OK;
}

/* ---- soft numbers and parameters ---- */

static torus_status_t alloc_lists(const hlo_live_t *live, hlo_encoding_t *encoding) {
  size_t softs = live->soft_count, parameters = live->parameter_count;
  if (softs) {
    TORUS_TRY(torus_try_alloc(softs * sizeof *encoding->softs, (void **)&encoding->softs));
    TORUS_TRY(torus_try_alloc(softs, (void **)&encoding->soft_dtypes));
    TORUS_TRY(torus_try_alloc(softs * sizeof *encoding->soft_volatile,
                              (void **)&encoding->soft_volatile));
  }
  if (parameters) {
    TORUS_TRY(torus_try_alloc(parameters * sizeof *encoding->parameters,
                              (void **)&encoding->parameters));
  }
  encoding->soft_count = softs;
  encoding->parameter_count = parameters;
  return TORUS_OK;
}

static void fill_softs(const hlo_graph_t *g, const hlo_live_t *live, hlo_encoding_t *encoding) {
  size_t at = 0;
  for (size_t i = 0; at < live->soft_count && i < live->end; i++) {
    if (!live->number[i]) continue;
    const hlo_node_t *node = &g->nodes[i];
    for (uint32_t k = 0; k < node->soft_count; k++, at++) {
      encoding->softs[at] = g->softs[node->softs + k].bits;
      encoding->soft_dtypes[at] = g->softs[node->softs + k].dtype;
      encoding->soft_volatile[at] = g->softs[node->softs + k].changes ||
                                    (node->op == HLO_OP_SOFT && node->mode == HLO_SOFT_VOLATILE);
    }
  }
}

static void fill_parameters(const hlo_live_t *live, hlo_encoding_t *encoding) {
  for (size_t i = 0; i < live->input_end; i++) {
    if (live->position[i]) encoding->parameters[live->position[i] - 1] = (int)i;
  }
}

torus_status_t hlo_encode(hlo_graph_t *g, const hlo_t *outputs, size_t output_count,
                          hlo_encoding_t *out_encoding) {
  *out_encoding = (hlo_encoding_t){0};
  hlo_live_t live;
  if (!hlo_number_live(g, outputs, output_count, &live)) return hlo_graph_take_error(g);
  torus_status_t status = make_key(g, &live, outputs, output_count, out_encoding);
  if (!status) status = alloc_lists(&live, out_encoding);
  if (status) {
    hlo_encoding_deinit(out_encoding);
    return status;
  }
  fill_softs(g, &live, out_encoding);
  fill_parameters(&live, out_encoding);
  return TORUS_OK;
}

void hlo_encoding_deinit(hlo_encoding_t *encoding) {
  torus_free(encoding->key);
  torus_free(encoding->softs);
  torus_free(encoding->soft_dtypes);
  torus_free(encoding->soft_volatile);
  torus_free(encoding->parameters);
  *encoding = (hlo_encoding_t){0};
}

/* ---- words ---- */

static size_t words_of(uint8_t dtype) {
  return torus_dtype_bytes((torus_dtype_t)dtype) > 4 ? 2 : 1;
}

static bool is_promoted(const hlo_encoding_t *encoding, const bool *promoted, size_t i) {
  return promoted ? promoted[i] : encoding->soft_volatile[i];
}

size_t hlo_soft_words(const hlo_encoding_t *encoding, const bool *promoted) {
  size_t words = 0;
  for (size_t i = 0; i < encoding->soft_count; i++) {
    if (is_promoted(encoding, promoted, i)) words += words_of(encoding->soft_dtypes[i]);
  }
  return words;
}

/* The program widens as print_number.c writes it: single precision for all smaller floats. */
static uint64_t word_bits(int64_t bits, uint8_t dtype) {
  if (!torus_dtype_is_float((torus_dtype_t)dtype) || dtype == TORUS_DTYPE_F64) {
    return (uint64_t)bits;
  }
  float single = (float)hlo_bits_double(bits);
  uint32_t word;
  memcpy(&word, &single, sizeof word);
  return word;
}

void hlo_pack_softs(const hlo_encoding_t *encoding, const bool *promoted, uint32_t *out_words) {
  for (size_t i = 0; i < encoding->soft_count; i++) {
    if (!is_promoted(encoding, promoted, i)) continue;
    uint64_t bits = word_bits(encoding->softs[i], encoding->soft_dtypes[i]);
    *out_words++ = (uint32_t)bits;
    if (words_of(encoding->soft_dtypes[i]) == 2) *out_words++ = (uint32_t)(bits >> 32);
  }
}
