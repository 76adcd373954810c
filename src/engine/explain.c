/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Compares a program that has to be compiled with those known before it.
 *
 * Of each program a memory is kept: its operators, its key and its donations. The nearest one has
 * the same operators and, among those, the nearest key; failing that, the longest common beginning
 * of operators. Memories and events are bounded in number, memories also in bytes; the oldest go
 * first. */
#include "engine/explain.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "hlo/compare.h"
#include "hlo/graph_internal.h"
#include "torus/log.h"
#include "torus/memory.h"

enum {
  MOST_MEMORIES = 512,
  MOST_MEMORY_BYTES = 8 << 20,
  MOST_COMPARED = 32, /* memories with the same operators whose keys are compared */
  REASON_BYTES = 1024,
};

typedef struct memory {
  uint64_t hash;      /* of the operators' names */
  size_t op_count, key_bytes, alias_bytes, bytes;
  const char **ops;   /* the three lie behind the struct, in one block */
  char *key, *aliases;
} memory_t;

typedef struct reason {
  torus_trigger_t trigger;
  char text[REASON_BYTES];
} reason_t;

struct torus_explain {
  pthread_mutex_t lock;
  torus_compilation_t *events[TORUS_COMPILATIONS_KEPT]; /* by serial, texts behind the struct */
  uint64_t newest;
  memory_t *memories[MOST_MEMORIES]; /* by number */
  uint64_t memory_end, memory_begin; /* numbers of the kept ones */
  size_t memory_bytes;
  bool has_said;
  reason_t said;
};

/* ---- life ---- */

torus_status_t torus_explain_create(torus_explain_t **out_explain) {
  *out_explain = NULL;
  void *block;
  TORUS_TRY(torus_try_alloc(sizeof(torus_explain_t), &block));
  *out_explain = block;
  pthread_mutex_init(&(*out_explain)->lock, NULL);
  return TORUS_OK;
}

void torus_explain_destroy(torus_explain_t *explain) {
  if (explain == NULL) return;
  for (int i = 0; i < TORUS_COMPILATIONS_KEPT; ++i) torus_free(explain->events[i]);
  for (int i = 0; i < MOST_MEMORIES; ++i) torus_free(explain->memories[i]);
  pthread_mutex_destroy(&explain->lock);
  torus_free(explain);
}

/* ---- memories ---- */

static void forget_oldest(torus_explain_t *explain) {
  memory_t **slot = &explain->memories[explain->memory_begin++ % MOST_MEMORIES];
  explain->memory_bytes -= (*slot)->bytes;
  torus_free(*slot);
  *slot = NULL;
}

static memory_t *new_memory(const torus_new_program_t *p) {
  size_t count;
  const hlo_mark_t *marks = hlo_graph_marks(p->graph, &count);
  const size_t alias_bytes = p->encoding->parameter_count * sizeof(int);
  const size_t bytes =
      sizeof(memory_t) + count * sizeof(char *) + p->encoding->key_bytes + alias_bytes;
  memory_t *m = torus_alloc(bytes);
  if (m == NULL) return NULL;
  *m = (memory_t){.op_count = count,
                  .key_bytes = p->encoding->key_bytes,
                  .alias_bytes = alias_bytes,
                  .bytes = bytes,
                  .ops = (const char **)(m + 1)};
  m->key = (char *)(m->ops + count);
  m->aliases = m->key + m->key_bytes;
  memcpy(m->key, p->encoding->key, m->key_bytes);
  if (alias_bytes > 0) memcpy(m->aliases, p->aliases, alias_bytes);
  for (size_t i = 0; i < count; ++i) {
    m->ops[i] = marks[i].name;
    m->hash = torus_hash_combine(m->hash, (uint64_t)(uintptr_t)marks[i].name);
  }
  return m;
}

static void keep_memory(torus_explain_t *explain, memory_t *m) {
  if (m->bytes > MOST_MEMORY_BYTES / 4) {
    torus_free(m);
    return;
  }
  while (explain->memory_end - explain->memory_begin == MOST_MEMORIES ||
         explain->memory_bytes + m->bytes > MOST_MEMORY_BYTES) {
    forget_oldest(explain);
  }
  explain->memories[explain->memory_end++ % MOST_MEMORIES] = m;
  explain->memory_bytes += m->bytes;
}

static bool same_operators(const memory_t *a, const memory_t *b) {
  return a->hash == b->hash && a->op_count == b->op_count &&
         (a->op_count == 0 || memcmp(a->ops, b->ops, a->op_count * sizeof *a->ops) == 0);
}

static int distance(const hlo_difference_t *d) {
  return d->has_other_nodes ? HLO_DIFFERENCE_STRUCTURE : (int)d->kind;
}

/* The memory with the same operators and the nearest key, or NULL. */
static const memory_t *nearest_key(const torus_explain_t *explain, const memory_t *m,
                                   hlo_difference_t *out) {
  const memory_t *best = NULL;
  int compared = 0;
  for (uint64_t i = explain->memory_end; i-- > explain->memory_begin;) {
    const memory_t *known = explain->memories[i % MOST_MEMORIES];
    hlo_difference_t d;
    if (!same_operators(known, m)) continue;
    hlo_key_compare(known->key, known->key_bytes, m->key, m->key_bytes, &d);
    if (best == NULL || distance(&d) < distance(out)) {
      best = known;
      *out = d;
    }
    if (d.kind == HLO_DIFFERENCE_NONE || ++compared == MOST_COMPARED) break;
  }
  return best;
}

static size_t common_operators(const memory_t *a, const memory_t *b) {
  size_t i = 0;
  while (i < a->op_count && i < b->op_count && a->ops[i] == b->ops[i]) i += 1;
  return i;
}

static const memory_t *longest_beginning(const torus_explain_t *explain, const memory_t *m,
                                         size_t *out_common) {
  const memory_t *best = NULL;
  *out_common = 0;
  for (uint64_t i = explain->memory_end; i-- > explain->memory_begin;) {
    const memory_t *known = explain->memories[i % MOST_MEMORIES];
    const size_t common = common_operators(known, m);
    if (common <= *out_common) continue;
    best = known;
    *out_common = common;
  }
  return best;
}

/* ---- numbers ---- */

static void number_text(uint8_t dtype, int64_t bits, char *text, size_t size) {
  if (dtype == TORUS_DTYPE_BOOL) {
    snprintf(text, size, bits != 0 ? "True" : "False");
  } else if (torus_dtype_is_float((torus_dtype_t)dtype)) {
    snprintf(text, size, "%.9g", hlo_bits_double(bits));
  } else {
    snprintf(text, size, "%" PRId64, bits);
  }
}

/* The operator that gave soft number |index|, without its overload; "" when it is not known. */
static void owner_text(const torus_new_program_t *p, size_t index, char *text, size_t size) {
  hlo_live_t live;
  text[0] = '\0';
  if (!hlo_number_live(p->graph, p->outputs, p->output_count, &live)) return;
  for (size_t i = live.end; i-- > 0;) {
    if (live.number[i] == 0 || live.soft_base[i] > index || p->graph->nodes[i].soft_count == 0) {
      continue;
    }
    const hlo_mark_t *mark = hlo_graph_mark_of(p->graph, (hlo_t)i);
    if (mark != NULL) {
      snprintf(text, size, "%.*s's number: ", (int)strcspn(mark->name, "."), mark->name);
    }
    return;
  }
}

static bool explain_number(const torus_new_program_t *p, reason_t *reason) {
  const hlo_encoding_t *e = p->encoding;
  size_t first = SIZE_MAX, others = 0;
  for (size_t i = 0; p->known_softs != NULL && i < e->soft_count; ++i) {
    if (p->known_promoted[i] || p->known_softs[i] == e->softs[i]) continue;
    if (first == SIZE_MAX) first = i;
    else others += 1;
  }
  if (first == SIZE_MAX) return false;
  char owner[128], before[64], after[64], more[64] = "";
  owner_text(p, first, owner, sizeof owner);
  number_text(e->soft_dtypes[first], p->known_softs[first], before, sizeof before);
  number_text(e->soft_dtypes[first], e->softs[first], after, sizeof after);
  if (others > 0) snprintf(more, sizeof more, " and %zu more", others);
  reason->trigger = TORUS_TRIGGER_NUMBER;
  snprintf(reason->text, sizeof reason->text, "%s%s -> %s%s; run-time argument%s from now on", owner,
           before, after, more, others > 0 ? "s" : "");
  return true;
}

/* ---- keys ---- */

/* The first live node that uses live node |place|, as a node of the graph; or that node itself. */
static hlo_t node_at(const torus_new_program_t *p, size_t place, bool wants_user) {
  hlo_live_t live;
  hlo_t self = HLO_NONE;
  if (!hlo_number_live(p->graph, p->outputs, p->output_count, &live)) return HLO_NONE;
  for (size_t i = 0; i < live.end; ++i) {
    if (live.number[i] == place + 1) self = (hlo_t)i;
    if (live.number[i] == 0 || self == HLO_NONE) continue;
    if (!wants_user) return self;
    const hlo_node_t *node = hlo_node(p->graph, (hlo_t)i);
    for (uint32_t k = 0; k < node->operand_count; ++k) {
      if (hlo_operand(p->graph, (hlo_t)i, k) == self) return (hlo_t)i;
    }
  }
  return self;
}

/* "addmm's input" or "addmm"; "an input" without marks. */
static void whose_text(const torus_new_program_t *p, const hlo_difference_t *d, char *text,
                       size_t size) {
  const bool is_input = d->new_node.op == HLO_OP_PARAMETER;
  const hlo_t node = node_at(p, d->node, is_input);
  const hlo_mark_t *mark = node != HLO_NONE ? hlo_graph_mark_of(p->graph, node) : NULL;
  if (mark == NULL) {
    snprintf(text, size, is_input ? "an input" : "a copy");
  } else {
    snprintf(text, size, "%.*s%s", (int)strcspn(mark->name, "."), mark->name,
             is_input ? "'s input" : "");
  }
}

static void explain_shapes(const torus_new_program_t *p, const hlo_difference_t *d,
                           reason_t *reason) {
  char whose[128], more[64] = "", before[HLO_TYPE_TEXT], after[HLO_TYPE_TEXT];
  whose_text(p, d, whose, sizeof whose);
  hlo_shape_text(d->old_node.dtype, d->old_node.rank, d->old_node.dims, before);
  hlo_shape_text(d->new_node.dtype, d->new_node.rank, d->new_node.dims, after);
  if (d->other_count > 0) snprintf(more, sizeof more, " and %zu more inputs", d->other_count);
  if (d->kind == HLO_DIFFERENCE_TYPES) {
    reason->trigger = TORUS_TRIGGER_TYPE;
    snprintf(reason->text, sizeof reason->text, "%s: %.160s -> %.160s%s", whose, before, after, more);
    return;
  }
  reason->trigger = TORUS_TRIGGER_SIZE;
  snprintf(reason->text, sizeof reason->text,
           "dimension %d of %s: %" PRId64 " -> %" PRId64 " (%.120s -> %.120s)%s", d->dim, whose,
           d->old_node.dims[d->dim], d->new_node.dims[d->dim], before, after, more);
}

static void explain_node(const torus_new_program_t *p, const hlo_difference_t *d,
                         reason_t *reason) {
  char whose[128], before[HLO_KEY_NODE_TEXT], after[HLO_KEY_NODE_TEXT];
  whose_text(p, d, whose, sizeof whose);
  hlo_key_node_text(&d->old_node, before);
  hlo_key_node_text(&d->new_node, after);
  reason->trigger = TORUS_TRIGGER_STRUCTURE;
  if (d->kind == HLO_DIFFERENCE_ATTRIBUTES) {
    reason->trigger = TORUS_TRIGGER_DETAIL;
    snprintf(reason->text, sizeof reason->text, "%s: %.200s with other built-in arguments", whose,
             after);
  } else if (strcmp(before, after) == 0) {
    snprintf(reason->text, sizeof reason->text, "%s: %.200s of other operands", whose, after);
  } else {
    snprintf(reason->text, sizeof reason->text, "%s: %.200s where %.200s was", whose, after, before);
  }
}

static void explain_results(const hlo_difference_t *d, reason_t *reason) {
  reason->trigger = TORUS_TRIGGER_RESULTS;
  if (d->old_results == d->new_results) {
    snprintf(reason->text, sizeof reason->text, "other results are still wanted (%zu)",
             d->new_results);
  } else {
    snprintf(reason->text, sizeof reason->text, "%zu results are still wanted where %zu were",
             d->new_results, d->old_results);
  }
}

static void explain_same(const memory_t *known, const memory_t *m, reason_t *reason) {
  const bool is_same = known->alias_bytes == m->alias_bytes &&
                       memcmp(known->aliases, m->aliases, m->alias_bytes) == 0;
  reason->trigger = is_same ? TORUS_TRIGGER_AGAIN : TORUS_TRIGGER_DONATION;
  snprintf(reason->text, sizeof reason->text,
           is_same ? "compiled before; the programs were cleared since"
                   : "other inputs may be overwritten, having no further user");
}

static void explain_key(const torus_new_program_t *p, const memory_t *known, const memory_t *m,
                        const hlo_difference_t *d, reason_t *reason) {
  switch (d->kind) {
    case HLO_DIFFERENCE_NONE: explain_same(known, m, reason); return;
    case HLO_DIFFERENCE_RESULTS: explain_results(d, reason); return;
    case HLO_DIFFERENCE_SIZES:
    case HLO_DIFFERENCE_TYPES: explain_shapes(p, d, reason); return;
    case HLO_DIFFERENCE_ATTRIBUTES: explain_node(p, d, reason); return;
    default: break;
  }
  /* Wanting another result brings nodes to life in between. */
  if (d->old_results != d->new_results) explain_results(d, reason);
  else explain_node(p, d, reason);
}

/* ---- operators ---- */

static void op_text(const memory_t *m, size_t i, char *text, size_t size) {
  if (i >= m->op_count) snprintf(text, size, "the end");
  else snprintf(text, size, "%.*s", (int)strcspn(m->ops[i], "."), m->ops[i]);
}

static void explain_operators(const torus_explain_t *explain, const memory_t *m, reason_t *reason) {
  size_t common;
  const memory_t *known = longest_beginning(explain, m, &common);
  if (known == NULL || common * 2 < m->op_count) {
    reason->trigger = TORUS_TRIGGER_FIRST;
    snprintf(reason->text, sizeof reason->text, "first sight of these operators");
    return;
  }
  char before[64], after[64];
  op_text(known, common, before, sizeof before);
  op_text(m, common, after, sizeof after);
  reason->trigger = TORUS_TRIGGER_OPERATORS;
  snprintf(reason->text, sizeof reason->text,
           "after %zu equal operators of %zu: %s where %s was", common, m->op_count, after, before);
}

/* ---- the reason ---- */

void torus_explain_say(torus_explain_t *explain, torus_trigger_t trigger, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(explain->said.text, sizeof explain->said.text, format, list);
  va_end(list);
  explain->said.trigger = trigger;
  explain->has_said = true;
}

void torus_explain_unsay(torus_explain_t *explain) { explain->has_said = false; }

static void find_reason(torus_explain_t *explain, const torus_new_program_t *p, const memory_t *m,
                        reason_t *reason) {
  hlo_difference_t d = {0};
  if (explain->has_said) {
    *reason = explain->said;
    explain->has_said = false;
    return;
  }
  if (explain_number(p, reason) || m == NULL) return;
  const memory_t *known = nearest_key(explain, m, &d);
  if (known != NULL) explain_key(p, known, m, &d, reason);
  else explain_operators(explain, m, reason);
}

/* ---- events ---- */

static const char *const trigger_names[] = {
#define TRIGGER_NAME(name, spelling) spelling,
    TORUS_TRIGGER_LIST(TRIGGER_NAME)
#undef TRIGGER_NAME
};

const char *torus_trigger_name(torus_trigger_t trigger) { return trigger_names[trigger]; }

static char *put(char *at, const char *text, const char **out) {
  const size_t size = strlen(text) + 1;
  memcpy(at, text, size);
  *out = at;
  return at + size;
}

static torus_compilation_t *new_event(const torus_new_program_t *p, const reason_t *reason) {
  torus_strbuf_t operators = {0};
  const size_t count = torus_operators_text(p->graph, &operators);
  const char *names = torus_strbuf_text(&operators), *error = torus_status_message(p->status);
  torus_compilation_t *e = torus_alloc(sizeof *e + strlen(reason->text) + strlen(names) +
                                       strlen(error) + 3);
  if (e != NULL) {
    *e = (torus_compilation_t){.trigger = reason->trigger,
                               .seconds = p->seconds,
                               .from_disk = p->from_disk,
                               .mode = p->mode,
                               .device = p->device,
                               .operator_count = (int64_t)count,
                               .node_count = (int64_t)hlo_graph_node_count(p->graph),
                               .text_bytes = (int64_t)p->text_bytes};
    torus_operators_places(p->graph, &e->first, &e->last);
    put(put(put((char *)(e + 1), reason->text, &e->reason), names, &e->operators), error, &e->error);
  }
  torus_strbuf_deinit(&operators);
  return e;
}

static void log_event(const torus_compilation_t *e) {
  if (!torus_log_is_on(TORUS_LOG_COMPILE)) return;
  torus_strbuf_t text = {0};
  torus_strbuf_printf(&text, "%.3f s %s: %s; %" PRId64 " nodes", e->seconds,
                      e->from_disk ? "from disk" : "compiled", e->operators, e->node_count);
  if (e->text_bytes > 0) torus_strbuf_printf(&text, ", %" PRId64 " bytes of text", e->text_bytes);
  torus_place_append(&text, ", at ", e->last, "");
  torus_strbuf_printf(&text, "; %s: %s", torus_trigger_name(e->trigger), e->reason);
  if (e->error[0] != '\0') torus_strbuf_printf(&text, "; failed: %s", e->error);
  torus_log(TORUS_LOG_COMPILE, "%s", torus_strbuf_text(&text));
  torus_strbuf_deinit(&text);
}

static void keep_event(torus_explain_t *explain, torus_compilation_t *event) {
  event->serial = ++explain->newest;
  torus_compilation_t **slot = &explain->events[event->serial % TORUS_COMPILATIONS_KEPT];
  torus_free(*slot);
  *slot = event;
}

void torus_explain_add(torus_explain_t *explain, const torus_new_program_t *program) {
  reason_t reason = {.trigger = TORUS_TRIGGER_OTHER};
  pthread_mutex_lock(&explain->lock);
  memory_t *m = new_memory(program);
  find_reason(explain, program, m, &reason);
  /* What could not be compiled is not known. */
  if (m != NULL && program->status == TORUS_OK) keep_memory(explain, m);
  else torus_free(m);
  torus_compilation_t *event = new_event(program, &reason);
  if (event != NULL) {
    keep_event(explain, event);
    log_event(event);
  }
  pthread_mutex_unlock(&explain->lock);
}

uint64_t torus_explain_visit(torus_explain_t *explain, uint64_t after,
                             void (*visit)(void *context, const torus_compilation_t *event),
                             void *context) {
  pthread_mutex_lock(&explain->lock);
  const uint64_t newest = explain->newest;
  uint64_t serial = newest > TORUS_COMPILATIONS_KEPT ? newest - TORUS_COMPILATIONS_KEPT : 0;
  if (serial < after) serial = after;
  while (visit != NULL && serial++ < newest) {
    visit(context, explain->events[serial % TORUS_COMPILATIONS_KEPT]);
  }
  pthread_mutex_unlock(&explain->lock);
  return newest;
}
