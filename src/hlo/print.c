/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The module, the names, and the operations whose text is nothing but operands and types. */
#include "hlo/encode.h"
#include "hlo/print_internal.h"

/* ---- words of the text ---- */

bool hlo_is_promoted(const hlo_printer_t *p, hlo_t x, size_t slot) {
  const hlo_node_t *node = hlo_node(p->g, x);
  if (node->op == HLO_OP_SOFT && node->mode == HLO_SOFT_VOLATILE) return true;
  return p->promoted && p->promoted[p->live.soft_base[x] + slot];
}

static void put_numbered(hlo_printer_t *p, const char *prefix, size_t number) {
  hlo_put(p, prefix);
  torus_strbuf_int(p->text, (int64_t)number);
}

void hlo_put_name(hlo_printer_t *p, hlo_t x) {
  const hlo_node_t *node = hlo_node(p->g, x);
  if (node->op == HLO_OP_PARAMETER) {
    put_numbered(p, "%a", p->live.position[hlo_attrs(p->g, x)[0]] - 1);
  } else if (node->op == HLO_OP_RESULT) {
    put_numbered(p, "%", p->live.number[hlo_operand(p->g, x, 0)]);
    put_numbered(p, "#", (size_t)hlo_attrs(p->g, x)[0]);
  } else if (node->op == HLO_OP_SOFT && hlo_is_promoted(p, x, 0)) {
    put_numbered(p, "%s", p->live.soft_base[x]);
  } else {
    put_numbered(p, "%", p->live.number[x]);
  }
}

void hlo_put_names(hlo_printer_t *p, const hlo_t *xs, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (i) hlo_put(p, ", ");
    hlo_put_name(p, xs[i]);
  }
}

void hlo_put_type(hlo_printer_t *p, torus_dtype_t dtype, int rank, const int64_t *dims) {
  hlo_put(p, "tensor<");
  for (int i = 0; i < rank; i++) {
    torus_strbuf_int(p->text, dims[i]);
    hlo_put(p, "x");
  }
  hlo_put(p, torus_dtype_hlo(dtype));
  hlo_put(p, ">");
}

void hlo_put_type_of(hlo_printer_t *p, hlo_t x) {
  hlo_put_type(p, hlo_dtype(p->g, x), hlo_rank(p->g, x), hlo_dims(p->g, x));
}

void hlo_put_types(hlo_printer_t *p, const hlo_t *xs, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (i) hlo_put(p, ", ");
    hlo_put_type_of(p, xs[i]);
  }
}

void hlo_put_list(hlo_printer_t *p, const int64_t *values, size_t count) {
  hlo_put(p, "[");
  for (size_t i = 0; i < count; i++) {
    if (i) hlo_put(p, ", ");
    torus_strbuf_int(p->text, values[i]);
  }
  hlo_put(p, "]");
}

void hlo_put_signature(hlo_printer_t *p, hlo_t x) {
  hlo_put(p, " : (");
  hlo_put_types(p, hlo_operands(p->g, x), hlo_node(p->g, x)->operand_count);
  hlo_put(p, ") -> ");
  hlo_put_type_of(p, x);
}

/* ---- plain operations ---- */

/* "stablehlo.add %1, %2 : T": all types are the same. CHLO wants every one spelled out. */
static void put_plain(hlo_printer_t *p, hlo_t x) {
  const hlo_node_t *node = hlo_node(p->g, x);
  const hlo_t *operands = hlo_operands(p->g, x);
  const char *spelling = hlo_op_spelling((hlo_op_t)node->op);
  hlo_put(p, spelling);
  hlo_put(p, " ");
  hlo_put_names(p, operands, node->operand_count);
  if (spelling[0] == 'c') {
    hlo_put(p, " : ");
    hlo_put_types(p, operands, node->operand_count);
    hlo_put(p, " -> ");
    hlo_put_type_of(p, x);
  } else if (node->dtype != hlo_node(p->g, operands[0])->dtype) {
    hlo_put_signature(p, x);
  } else {
    hlo_put(p, " : ");
    hlo_put_type_of(p, x);
  }
}

/* "stablehlo.convert %1 : (T) -> R" */
static void put_signed(hlo_printer_t *p, hlo_t x) {
  const hlo_node_t *node = hlo_node(p->g, x);
  hlo_put(p, hlo_op_spelling((hlo_op_t)node->op));
  hlo_put(p, " ");
  hlo_put_names(p, hlo_operands(p->g, x), node->operand_count);
  hlo_put_signature(p, x);
}

/* The kind of comparison is optional in StableHLO, but its constant folder takes integers for
 * unsigned where it is missing. */
static const char *comparison_kind(torus_dtype_t dtype) {
  switch (torus_dtype_kind(dtype)) {
  case TORUS_KIND_INT:
    return "SIGNED";
  case TORUS_KIND_BOOL:
  case TORUS_KIND_UINT:
    return "UNSIGNED";
  default:
    return "FLOAT";
  }
}

static void put_compare(hlo_printer_t *p, hlo_t x) {
  static const char *const hows[] = {"EQ", "NE", "LT", "LE", "GT", "GE"};
  hlo_put(p, "stablehlo.compare ");
  hlo_put(p, hows[hlo_node(p->g, x)->mode]);
  hlo_put(p, ", ");
  hlo_put_names(p, hlo_operands(p->g, x), 2);
  hlo_put(p, ", ");
  hlo_put(p, comparison_kind(hlo_dtype(p->g, hlo_operand(p->g, x, 0))));
  hlo_put_signature(p, x);
}

static void put_select(hlo_printer_t *p, hlo_t x) {
  hlo_put(p, "stablehlo.select ");
  hlo_put_names(p, hlo_operands(p->g, x), 3);
  hlo_put(p, " : ");
  hlo_put_types(p, hlo_operands(p->g, x), 2);
}

static void put_value(hlo_printer_t *p, hlo_t x) {
  switch ((hlo_op_t)hlo_node(p->g, x)->op) {
  case HLO_OP_CONVERT:
  case HLO_OP_BITCAST:
  case HLO_OP_IS_FINITE:
  case HLO_OP_COMPLEX:
  case HLO_OP_REAL:
  case HLO_OP_IMAG:
  case HLO_OP_RESHAPE:
  case HLO_OP_DYNAMIC_UPDATE_SLICE:
    put_signed(p, x);
    break;
  case HLO_OP_COMPARE:
    put_compare(p, x);
    break;
  case HLO_OP_SELECT:
    put_select(p, x);
    break;
  default:
    put_plain(p, x);
    break;
  }
}

/* ---- nodes ---- */

static void put_node(hlo_printer_t *p, hlo_t x) {
  const hlo_node_t *node = hlo_node(p->g, x);
  if (node->op == HLO_OP_PARAMETER || node->op == HLO_OP_RESULT || node->op == HLO_OP_BLOCK_ARG) {
    return;
  }
  if (node->op == HLO_OP_CONSTANT || node->op == HLO_OP_SOFT) {
    bool soft = node->op == HLO_OP_SOFT;
    if (soft && hlo_is_promoted(p, x, 0)) return;
    hlo_put_name(p, x);
    hlo_put_constant(p, (torus_dtype_t)node->dtype,
                     soft ? p->g->softs[node->softs].bits : p->g->ints[node->attrs], node->rank,
                     hlo_dims(p->g, x));
    return;
  }
  if (hlo_put_regional(p, x) || hlo_put_structured(p, x)) return;
  hlo_put_name(p, x);
  hlo_put(p, " = ");
  put_value(p, x);
  hlo_put(p, "\n");
}

void hlo_put_nodes(hlo_printer_t *p, size_t begin, size_t end, int32_t region) {
  for (size_t i = begin; i < end; i++) {
    if (p->live.number[i] && p->g->nodes[i].region == region) put_node(p, (hlo_t)i);
  }
}

/* ---- module ---- */

static size_t count_words(const hlo_printer_t *p) {
  size_t words = 0;
  for (size_t i = 0; i < p->live.end; i++) {
    if (!p->live.number[i]) continue;
    const hlo_node_t *node = &p->g->nodes[i];
    for (uint32_t k = 0; k < node->soft_count; k++) {
      if (!hlo_is_promoted(p, (hlo_t)i, k)) continue;
      words += torus_dtype_bytes((torus_dtype_t)p->g->softs[node->softs + k].dtype) > 4 ? 2 : 1;
    }
  }
  return words;
}

/* Of an argument or result; |alias| -1: none. */
static void put_attributes(hlo_printer_t *p, const char *sharding, int alias) {
  if (!sharding && alias < 0) return;
  hlo_put(p, " {");
  if (sharding) torus_strbuf_printf(p->text, "mhlo.sharding = \"%s\"", sharding);
  if (sharding && alias >= 0) hlo_put(p, ", ");
  if (alias >= 0) torus_strbuf_printf(p->text, "tf.aliasing_output = %d : i32", alias);
  hlo_put(p, "}");
}

/* NULL where the node's parts are equal. */
static const int64_t *uneven(const hlo_printer_t *p, hlo_t x, const int64_t *parts) {
  return hlo_is_uneven(p, x, parts) ? parts : NULL;
}

static const int64_t *uneven_result(const hlo_printer_t *p, const hlo_t *outputs, size_t i,
                                    const hlo_sharding_texts_t *shardings) {
  return shardings ? uneven(p, outputs[i], shardings->result_parts[i]) : NULL;
}

static void put_result_type(hlo_printer_t *p, const hlo_t *outputs, size_t i,
                            const hlo_sharding_texts_t *shardings) {
  const int64_t *parts = uneven_result(p, outputs, i, shardings);
  if (i) hlo_put(p, ", ");
  if (parts) hlo_put_filled_type(p, outputs[i], parts);
  else hlo_put_type_of(p, outputs[i]);
}

static void put_results(hlo_printer_t *p, const hlo_t *outputs, size_t output_count,
                        const hlo_sharding_texts_t *shardings) {
  for (size_t i = 0; i < output_count; i++) {
    put_result_type(p, outputs, i, shardings);
    put_attributes(p, shardings ? shardings->results[i] : NULL, -1);
  }
}

static void put_return(hlo_printer_t *p, const hlo_t *outputs, size_t output_count,
                       const hlo_sharding_texts_t *shardings) {
  for (size_t i = 0; i < output_count; i++) {
    const int64_t *parts = uneven_result(p, outputs, i, shardings);
    if (parts) hlo_put_filled_result(p, i, outputs[i], parts);
  }
  hlo_put(p, "return");
  for (size_t i = 0; i < output_count; i++) {
    hlo_put(p, i ? ", " : " ");
    if (uneven_result(p, outputs, i, shardings)) put_numbered(p, "%r", i);
    else hlo_put_name(p, outputs[i]);
  }
  if (output_count) hlo_put(p, " : ");
  for (size_t i = 0; i < output_count; i++) put_result_type(p, outputs, i, shardings);
}

static void put_argument(hlo_printer_t *p, hlo_t x, size_t number, int alias,
                         const hlo_sharding_texts_t *shardings) {
  const int64_t *parts = shardings ? uneven(p, x, shardings->argument_parts[number]) : NULL;
  if (number) hlo_put(p, ", ");
  if (parts) {
    put_numbered(p, "%p", number);
    hlo_put(p, ": ");
    hlo_put_filled_type(p, x, parts);
  } else {
    hlo_put_name(p, x);
    hlo_put(p, ": ");
    hlo_put_type_of(p, x);
  }
  put_attributes(p, shardings ? shardings->arguments[number] : NULL, alias);
}

/* Whether node |i| is the argument |number|. */
static bool is_argument(const hlo_printer_t *p, size_t i, size_t number) {
  if (!p->live.number[i] || p->g->nodes[i].op != HLO_OP_PARAMETER) return false;
  return p->live.position[hlo_attrs(p->g, (hlo_t)i)[0]] == number + 1;
}

/* Arguments are numbered in the order in which their nodes appear. */
static void put_arguments(hlo_printer_t *p, const int *aliases,
                          const hlo_sharding_texts_t *shardings, size_t words) {
  size_t done = 0;
  for (size_t i = 0; i < p->live.end && done < p->live.parameter_count; i++) {
    if (!is_argument(p, i, done)) continue;
    put_argument(p, (hlo_t)i, done, aliases ? aliases[done] : -1, shardings);
    done++;
  }
  if (words) torus_strbuf_printf(p->text, "%s%%q: tensor<%zuxui32>", done ? ", " : "", words);
}

static void put_cut_arguments(hlo_printer_t *p, const hlo_sharding_texts_t *shardings) {
  size_t done = 0;
  for (size_t i = 0; shardings && i < p->live.end && done < p->live.parameter_count; i++) {
    if (!is_argument(p, i, done)) continue;
    const int64_t *parts = uneven(p, (hlo_t)i, shardings->argument_parts[done]);
    if (parts) hlo_put_cut_argument(p, done, (hlo_t)i, parts);
    done++;
  }
}

torus_status_t hlo_print(hlo_graph_t *g, const hlo_t *outputs, size_t output_count,
                         const bool *promoted, const int *aliases, torus_strbuf_t *text) {
  return hlo_print_sharded(g, outputs, output_count, promoted, aliases, NULL, text);
}

torus_status_t hlo_print_sharded(hlo_graph_t *g, const hlo_t *outputs, size_t output_count,
                                 const bool *promoted, const int *aliases,
                                 const hlo_sharding_texts_t *shardings, torus_strbuf_t *text) {
  hlo_printer_t p = {.g = g, .text = text, .promoted = promoted};
  if (!hlo_number_live(g, outputs, output_count, &p.live)) return hlo_graph_take_error(g);
  size_t words = count_words(&p);
  hlo_put(&p, "module @torus {\nfunc.func public @main(");
  put_arguments(&p, aliases, shardings, words);
  hlo_put(&p, ") -> (");
  put_results(&p, outputs, output_count, shardings);
  hlo_put(&p, ") {\n");
  put_cut_arguments(&p, shardings);
  hlo_put_promoted(&p, words);
  hlo_put_nodes(&p, 0, p.live.end, 0);
  put_return(&p, outputs, output_count, shardings);
  hlo_put(&p, "\n}\n}\n");
  return torus_strbuf_status(text);
}
