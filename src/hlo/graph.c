/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Storage of a graph: life, growth, appending, errors, and questions about types. */
#include "hlo/graph.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "hlo/graph_internal.h"
#include "torus/memory.h"

/* ---- life ---- */

torus_status_t hlo_graph_create(hlo_graph_t **out_graph) {
  *out_graph = NULL;
  hlo_graph_t *g = torus_alloc(sizeof *g);
  if (!g) return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "no memory for a graph");
  g->precision = HLO_PRECISION_HIGHEST;
  *out_graph = g;
  return TORUS_OK;
}

void hlo_graph_destroy(hlo_graph_t *g) {
  if (!g) return;
  torus_free(g->nodes);
  torus_free(g->operands);
  torus_free(g->ints);
  torus_free(g->softs);
  torus_free(g->region_parents);
  torus_free(g->marks);
  torus_free(g->scratch);
  torus_status_free(g->error);
  torus_free(g);
}

void hlo_graph_clear(hlo_graph_t *g) {
  g->node_count = 0;
  g->operand_count = 0;
  g->int_count = 0;
  g->soft_count = 0;
  g->region_count = 0;
  g->region = 0;
  g->mark_count = 0;
}

void hlo_graph_swap(hlo_graph_t *a, hlo_graph_t *b) {
  hlo_graph_t held = *a;
  *a = *b;
  *b = held;
  b->precision = a->precision;
  a->precision = held.precision;
  b->widened_products = a->widened_products;
  a->widened_products = held.widened_products;
}

size_t hlo_graph_node_count(const hlo_graph_t *g) { return g->node_count; }

void hlo_graph_set_precision(hlo_graph_t *g, hlo_precision_t precision) {
  g->precision = precision;
}

void hlo_graph_set_mixed_products(hlo_graph_t *g, bool mixed) { g->widened_products = !mixed; }

/* ---- marks ---- */

static bool grow_marks(hlo_graph_t *g) {
  const size_t wanted = g->mark_capacity ? g->mark_capacity * 2 : 64;
  hlo_mark_t *bigger = torus_realloc(g->marks, wanted * sizeof *bigger);
  if (!bigger) return false;
  g->marks = bigger;
  g->mark_capacity = wanted;
  return true;
}

void hlo_graph_mark(hlo_graph_t *g, const char *name, const void *code, int32_t instruction) {
  if (g->mark_count == g->mark_capacity && !grow_marks(g)) return;
  g->marks[g->mark_count++] = (hlo_mark_t){
      .name = name, .code = code, .instruction = instruction, .first = (hlo_t)g->node_count};
}

const hlo_mark_t *hlo_graph_marks(const hlo_graph_t *g, size_t *out_count) {
  *out_count = g->mark_count;
  return g->marks;
}

/* Marks without nodes go; the others begin at numbers below 0, which are no nodes. */
void hlo_graph_adopt_marks(hlo_graph_t *g, hlo_graph_t *from) {
  hlo_mark_t *const own = g->marks;
  const size_t own_capacity = g->mark_capacity;
  size_t kept = 0;
  for (size_t i = 0; i < from->mark_count; i++) {
    const size_t end =
        i + 1 < from->mark_count ? (size_t)from->marks[i + 1].first : from->node_count;
    if ((size_t)from->marks[i].first != end) from->marks[kept++] = from->marks[i];
  }
  for (size_t i = 0; i < kept; i++) from->marks[i].first = -(hlo_t)(kept - i);
  g->marks = from->marks;
  g->mark_capacity = from->mark_capacity;
  g->mark_count = kept;
  from->marks = own;
  from->mark_capacity = own_capacity;
  from->mark_count = 0;
}

const hlo_mark_t *hlo_graph_mark_of(const hlo_graph_t *g, hlo_t x) {
  size_t low = 0, high = g->mark_count; /* marks below |low| begin at or before x */
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (g->marks[middle].first <= x)
      low = middle + 1;
    else
      high = middle;
  }
  return low > 0 && g->marks[0].first >= 0 ? &g->marks[low - 1] : NULL;
}

/* ---- errors ---- */

torus_status_t hlo_graph_take_error(hlo_graph_t *g) {
  torus_status_t error = g->error;
  g->error = TORUS_OK;
  return error;
}

bool hlo_graph_failed(const hlo_graph_t *g) { return g->error != TORUS_OK; }

hlo_t hlo_fail(hlo_graph_t *g, torus_status_code_t code, const char *format, ...) {
  if (g->error) return HLO_NONE;
  char message[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  g->error = torus_status_make(code, "%s", message);
  return HLO_NONE;
}

hlo_t hlo_fail_with(hlo_graph_t *g, torus_status_t status) {
  if (g->error) {
    torus_status_free(status);
  } else {
    g->error = status;
  }
  return HLO_NONE;
}

static const char *const op_spellings[HLO_OP_COUNT] = {
#define OP_SPELLING(name, spelling, allowed) spelling,
    HLO_UNARY_LIST(OP_SPELLING) HLO_BINARY_LIST(OP_SPELLING)
#undef OP_SPELLING
#define OP_SPELLING(name, spelling) spelling,
        HLO_OTHER_LIST(OP_SPELLING)
#undef OP_SPELLING
};

const char *hlo_op_spelling(hlo_op_t op) { return op_spellings[op]; }

const char *hlo_op_name(hlo_op_t op) {
  const char *dot = strchr(op_spellings[op], '.');
  return dot ? dot + 1 : op_spellings[op];
}

const char *hlo_shape_text(torus_dtype_t dtype, int rank, const int64_t *dims, char *text) {
  size_t at = (size_t)snprintf(text, HLO_TYPE_TEXT, "%s[", torus_dtype_name(dtype));
  for (int i = 0; i < rank && at < HLO_TYPE_TEXT - 32; i++) {
    at += (size_t)snprintf(text + at, HLO_TYPE_TEXT - at, "%s%" PRId64, i ? ", " : "", dims[i]);
  }
  snprintf(text + at, HLO_TYPE_TEXT - at, "]");
  return text;
}

const char *hlo_type_text(const hlo_graph_t *g, hlo_t x, char *text) {
  return hlo_shape_text(hlo_dtype(g, x), hlo_rank(g, x), hlo_dims(g, x), text);
}

hlo_t hlo_fail_types(hlo_graph_t *g, hlo_op_t op, const char *complaint, hlo_t x, hlo_t y) {
  char first[HLO_TYPE_TEXT], second[HLO_TYPE_TEXT];
  hlo_type_text(g, x, first);
  if (y == HLO_NONE) {
    return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "%s: %s, got %s", hlo_op_name(op), complaint,
                    first);
  }
  return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "%s: %s, got %s and %s", hlo_op_name(op),
                  complaint, first, hlo_type_text(g, y, second));
}

bool hlo_check_dim(hlo_graph_t *g, hlo_op_t op, hlo_t x, int64_t dim) {
  if (dim >= 0 && dim < hlo_rank(g, x)) return true;
  char text[HLO_TYPE_TEXT];
  hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "%s: there is no dimension %" PRId64 " in %s",
           hlo_op_name(op), dim, hlo_type_text(g, x, text));
  return false;
}

/* ---- growth ---- */

bool hlo_reserve(hlo_graph_t *g, void **block, size_t *capacity, size_t need, size_t item_bytes) {
  if (need <= *capacity) return true;
  size_t wanted = *capacity ? *capacity : 64;
  while (wanted < need && wanted <= UINT32_MAX) wanted *= 2;
  void *grown = wanted <= UINT32_MAX ? torus_realloc(*block, wanted * item_bytes) : NULL;
  if (!grown) {
    hlo_fail(g, TORUS_STATUS_RESOURCE_EXHAUSTED, "no memory for a graph of %zu entries", need);
    return false;
  }
  *block = grown;
  *capacity = wanted;
  return true;
}

#define HLO_RESERVE(g, field, count, need)                                                         \
  ((need) <= (g)->count##_capacity ||                                                              \
   hlo_reserve((g), (void **)&(g)->field, &(g)->count##_capacity, (need), sizeof *(g)->field))

static bool reserve_node(hlo_graph_t *g, size_t operands, size_t ints, size_t softs) {
  return HLO_RESERVE(g, nodes, node, g->node_count + 1) &&
         HLO_RESERVE(g, operands, operand, g->operand_count + operands) &&
         HLO_RESERVE(g, ints, int, g->int_count + ints) &&
         HLO_RESERVE(g, softs, soft, g->soft_count + softs);
}

/* ---- appending ---- */

bool hlo_usable(hlo_graph_t *g, hlo_op_t op, hlo_t x) {
  if (g->error) return false;
  if (x < 0 || (size_t)x >= g->node_count) {
    hlo_fail(g, TORUS_STATUS_INTERNAL, "%s: an operand is missing", hlo_op_name(op));
    return false;
  }
  int32_t home = g->nodes[x].region;
  for (int32_t at = g->region; at != home; at = g->region_parents[at - 1]) {
    if (at == 0) {
      hlo_fail(g, TORUS_STATUS_INTERNAL, "%s: an operand belongs to the inside of a loop",
               hlo_op_name(op));
      return false;
    }
  }
  return true;
}

bool hlo_usable_all(hlo_graph_t *g, hlo_op_t op, const hlo_t *xs, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (!hlo_usable(g, op, xs[i])) return false;
  }
  return true;
}

static bool check_dims(hlo_graph_t *g, hlo_op_t op, torus_dtype_t dtype, int rank,
                       const int64_t *dims) {
  if (rank < 0 || rank > TORUS_MAX_RANK) {
    hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "%s: %d dimensions; at most %d are supported",
             hlo_op_name(op), rank, TORUS_MAX_RANK);
    return false;
  }
  int64_t size = (int64_t)torus_dtype_bytes(dtype);
  bool bad = size == 0;
  for (int i = 0; i < rank; i++) {
    bad |= dims[i] < 0 || __builtin_mul_overflow(size, dims[i] ? dims[i] : 1, &size);
  }
  if (bad) {
    char text[HLO_TYPE_TEXT];
    hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "%s: an array %s cannot exist", hlo_op_name(op),
             hlo_shape_text(dtype, rank, dims, text));
  }
  return !bad;
}

/* Appends to the pool; |from| may lie in it, but room has been reserved so it does not move. */
static uint32_t put_ints(hlo_graph_t *g, const int64_t *from, size_t count) {
  uint32_t start = (uint32_t)g->int_count;
  if (count) memcpy(g->ints + start, from, count * sizeof *from);
  g->int_count += count;
  return start;
}

/* Where |from| will be after the pool has moved. */
static const int64_t *follow(const hlo_graph_t *g, const int64_t *from, const int64_t *old,
                             size_t old_count) {
  bool inside = (uintptr_t)from >= (uintptr_t)old &&
                (uintptr_t)from < (uintptr_t)old + old_count * sizeof *old;
  return inside ? g->ints + ((uintptr_t)from - (uintptr_t)old) / sizeof *old : from;
}

hlo_t hlo_append(hlo_graph_t *g, const hlo_spec_t *spec) {
  if (g->error) return HLO_NONE;
  if (!check_dims(g, spec->op, spec->dtype, spec->rank, spec->dims)) return HLO_NONE;
  size_t rank = (size_t)spec->rank;
  const int64_t *old = g->ints;
  if (!reserve_node(g, spec->operand_count, rank + spec->attr_count, spec->soft_count)) {
    return HLO_NONE;
  }
  const int64_t *dims = follow(g, spec->dims, old, g->int_count);
  const int64_t *attrs = follow(g, spec->attrs, old, g->int_count);
  hlo_t x = (hlo_t)g->node_count;
  g->nodes[g->node_count++] = (hlo_node_t){
      .op = (uint8_t)spec->op,
      .dtype = (uint8_t)spec->dtype,
      .rank = (uint8_t)rank,
      .mode = (uint8_t)spec->mode,
      .region = g->region,
      .operands = (uint32_t)g->operand_count,
      .operand_count = (uint32_t)spec->operand_count,
      .dims = put_ints(g, dims, rank),
      .attrs = put_ints(g, attrs, spec->attr_count),
      .attr_count = (uint32_t)spec->attr_count,
      .softs = (uint32_t)g->soft_count,
      .soft_count = (uint32_t)spec->soft_count,
  };
  for (size_t i = 0; i < spec->operand_count; i++) {
    g->operands[g->operand_count++] = spec->operands[i];
  }
  for (size_t i = 0; i < spec->soft_count; i++) g->softs[g->soft_count++] = spec->softs[i];
  return x;
}

hlo_t hlo_append_like(hlo_graph_t *g, hlo_op_t op, torus_dtype_t dtype, int mode, hlo_t like,
                      const hlo_t *operands, size_t operand_count) {
  if (!reserve_node(g, operand_count, 0, 0)) return HLO_NONE;
  const hlo_node_t *model = hlo_node(g, like);
  hlo_t x = (hlo_t)g->node_count;
  g->nodes[g->node_count++] = (hlo_node_t){
      .op = (uint8_t)op,
      .dtype = (uint8_t)dtype,
      .rank = model->rank,
      .mode = (uint8_t)mode,
      .region = g->region,
      .operands = (uint32_t)g->operand_count,
      .operand_count = (uint32_t)operand_count,
      .dims = model->dims,
  };
  for (size_t i = 0; i < operand_count; i++) g->operands[g->operand_count++] = operands[i];
  return x;
}

bool hlo_set_attrs(hlo_graph_t *g, hlo_t x, size_t count, const int64_t *attrs) {
  if (!reserve_node(g, 0, count, 0)) return false;
  g->nodes[x].attrs = put_ints(g, attrs, count);
  g->nodes[x].attr_count = (uint32_t)count;
  return true;
}

hlo_t hlo_append_result(hlo_graph_t *g, hlo_t node, int index, torus_dtype_t dtype, int rank,
                        const int64_t *dims) {
  if (node == HLO_NONE) return HLO_NONE;
  return hlo_append(g, &(hlo_spec_t){.op = HLO_OP_RESULT,
                                     .dtype = dtype,
                                     .rank = rank,
                                     .dims = dims,
                                     .operands = &node,
                                     .operand_count = 1,
                                     .attrs = (int64_t[]){index},
                                     .attr_count = 1});
}

/* ---- types ---- */

static bool is_node(const hlo_graph_t *g, hlo_t x) { return x >= 0 && (size_t)x < g->node_count; }

torus_dtype_t hlo_dtype(const hlo_graph_t *g, hlo_t x) {
  return is_node(g, x) ? (torus_dtype_t)hlo_node(g, x)->dtype : TORUS_DTYPE_INVALID;
}

int hlo_rank(const hlo_graph_t *g, hlo_t x) { return is_node(g, x) ? hlo_node(g, x)->rank : 0; }

const int64_t *hlo_dims(const hlo_graph_t *g, hlo_t x) {
  static const int64_t none[TORUS_MAX_RANK];
  return is_node(g, x) && g->ints ? g->ints + hlo_node(g, x)->dims : none;
}

int64_t hlo_dim(const hlo_graph_t *g, hlo_t x, int i) {
  return i >= 0 && i < hlo_rank(g, x) ? hlo_dims(g, x)[i] : 0;
}

int64_t hlo_product(int rank, const int64_t *dims) {
  int64_t product = 1;
  for (int i = 0; i < rank; i++) product *= dims[i];
  return product;
}

int64_t hlo_numel(const hlo_graph_t *g, hlo_t x) {
  return is_node(g, x) ? hlo_product(hlo_rank(g, x), hlo_dims(g, x)) : 0;
}

int hlo_shape(const hlo_graph_t *g, hlo_t x, int64_t *out_dims) {
  int rank = hlo_rank(g, x);
  if (rank) memcpy(out_dims, hlo_dims(g, x), (size_t)rank * sizeof *out_dims);
  return rank;
}

static bool moves_elements(int op) {
  switch (op) {
  case HLO_OP_BROADCAST:
  case HLO_OP_TRANSPOSE:
  case HLO_OP_RESHAPE:
  case HLO_OP_SLICE:
  case HLO_OP_CONVERT: return true;
  default: return false;
  }
}

bool hlo_is_uniform(const hlo_graph_t *g, hlo_t x) {
  while (x != HLO_NONE && hlo_numel(g, x) != 1 && moves_elements(hlo_node(g, x)->op)) {
    x = hlo_operand(g, x, 0);
  }
  return x != HLO_NONE && (hlo_numel(g, x) == 1 || hlo_node(g, x)->op == HLO_OP_CONSTANT);
}

bool hlo_same_shape(const hlo_graph_t *g, hlo_t x, hlo_t y) {
  int rank = hlo_rank(g, x);
  if (rank != hlo_rank(g, y)) return false;
  const int64_t *a = hlo_dims(g, x), *b = hlo_dims(g, y);
  return a == b || memcmp(a, b, (size_t)rank * sizeof *a) == 0;
}
