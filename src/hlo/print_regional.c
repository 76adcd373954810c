/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The text of operations with regions: reductions, windows, sort, scatter, loops. */
#include <stdio.h>

#include "hlo/print_internal.h"

static const char *const reduction_ops[] = {"add", "multiply", "maximum", "minimum",
                                            "and", "or",       "xor"};

static torus_dtype_t operand_type(const hlo_printer_t *p, hlo_t x, size_t i) {
  return hlo_dtype(p->g, hlo_operand(p->g, x, i));
}

static void put_operands(hlo_printer_t *p, hlo_t x) {
  hlo_put_names(p, hlo_operands(p->g, x), hlo_node(p->g, x)->operand_count);
}

/* "%3 = " or "%3:2 = " */
static void put_results(hlo_printer_t *p, hlo_t x, size_t count) {
  torus_strbuf_printf(p->text, "%%%u", p->live.number[x]);
  if (count > 1) torus_strbuf_printf(p->text, ":%zu", count);
  hlo_put(p, " = ");
}

/* " : (T, U) -> (R, S)" with the results in the shape of the node. */
static void put_pair_signature(hlo_printer_t *p, hlo_t x) {
  const hlo_node_t *node = hlo_node(p->g, x);
  hlo_put(p, " : (");
  hlo_put_types(p, hlo_operands(p->g, x), node->operand_count);
  hlo_put(p, ") -> (");
  hlo_put_type(p, operand_type(p, x, 0), node->rank, hlo_dims(p->g, x));
  hlo_put(p, ", ");
  hlo_put_type(p, operand_type(p, x, 1), node->rank, hlo_dims(p->g, x));
  hlo_put(p, ")\n");
}

/* ---- small regions over %x, %y ---- */

/* "{ ^bb0(%x: tensor<f32>, %y: tensor<f32>):" */
static void open_pair(hlo_printer_t *p, const char *type) {
  torus_strbuf_printf(p->text, "{\n^bb0(%%x: tensor<%s>, %%y: tensor<%s>):\n", type, type);
}

static void close_region(hlo_printer_t *p, const char *result, const char *type) {
  torus_strbuf_printf(p->text, "stablehlo.return %s : tensor<%s>\n}", result, type);
}

static void put_combiner(hlo_printer_t *p, const char *op, const char *type) {
  open_pair(p, type);
  torus_strbuf_printf(p->text, "%%r = stablehlo.%s %%x, %%y : tensor<%s>\n", op, type);
  close_region(p, "%r", type);
}

/* "%r = stablehlo.compare LT, %x, %y : ..." */
static void put_comparison(hlo_printer_t *p, const char *to, const char *how, const char *x,
                           const char *y, const char *type) {
  torus_strbuf_printf(p->text,
                      "%s = stablehlo.compare %s, %s, %s : (tensor<%s>, tensor<%s>) -> "
                      "tensor<i1>\n",
                      to, how, x, y, type, type);
}

static void put_logic(hlo_printer_t *p, const char *to, const char *op, const char *x,
                      const char *y) {
  torus_strbuf_printf(p->text, "%s = stablehlo.%s %s, %s : tensor<i1>\n", to, op, x, y);
}

/* |to| = x is before y where NaN comes first; |how| is GT for the largest. */
static void put_before(hlo_printer_t *p, const char *to, const char *how, const char *x,
                       const char *y, torus_dtype_t dtype) {
  const char *type = torus_dtype_hlo(dtype);
  char strict[16], nan[16];
  if (!torus_dtype_is_float(dtype)) {
    put_comparison(p, to, how, x, y, type);
    return;
  }
  snprintf(strict, sizeof strict, "%sg", to);
  snprintf(nan, sizeof nan, "%sn", to);
  put_comparison(p, strict, how, x, y, type);
  put_comparison(p, nan, "NE", x, x, type);
  put_logic(p, to, "or", strict, nan);
}

/* Chooses between (%x, %i) and (%y, %j). When neither or both claim to be before the other, they
 * are equal or both NaN, and the smaller place wins. */
static void put_arg_region(hlo_printer_t *p, bool is_max, torus_dtype_t value,
                           torus_dtype_t place) {
  const char *v = torus_dtype_hlo(value), *i = torus_dtype_hlo(place);
  const char *how = is_max ? "GT" : "LT";
  torus_strbuf_printf(p->text,
                      "{\n^bb0(%%x: tensor<%s>, %%i: tensor<%s>, %%y: tensor<%s>, %%j: "
                      "tensor<%s>):\n",
                      v, i, v, i);
  put_before(p, "%a", how, "%x", "%y", value);
  put_before(p, "%b", how, "%y", "%x", value);
  put_logic(p, "%d", "xor", "%a", "%b");
  put_comparison(p, "%l", "LT", "%i", "%j", i);
  torus_strbuf_printf(p->text,
                      "%%t = stablehlo.select %%d, %%a, %%l : tensor<i1>, tensor<i1>\n"
                      "%%u = stablehlo.select %%t, %%x, %%y : tensor<i1>, tensor<%s>\n"
                      "%%k = stablehlo.select %%t, %%i, %%j : tensor<i1>, tensor<%s>\n"
                      "stablehlo.return %%u, %%k : tensor<%s>, tensor<%s>\n}",
                      v, i, v, i);
}

/* ---- reduce ---- */

static void put_reduce(hlo_printer_t *p, hlo_t x) {
  const hlo_node_t *node = hlo_node(p->g, x);
  put_results(p, x, 1);
  hlo_put(p, "stablehlo.reduce(");
  hlo_put_name(p, hlo_operand(p->g, x, 0));
  hlo_put(p, " init: ");
  hlo_put_name(p, hlo_operand(p->g, x, 1));
  torus_strbuf_printf(p->text, ") applies stablehlo.%s across dimensions = ",
                      reduction_ops[node->mode]);
  hlo_put_list(p, hlo_attrs(p->g, x), node->attr_count);
  hlo_put_signature(p, x);
  hlo_put(p, "\n");
}

static void put_reduce_arg(hlo_printer_t *p, hlo_t x) {
  put_results(p, x, 2);
  hlo_put(p, "\"stablehlo.reduce\"(");
  put_operands(p, x);
  torus_strbuf_printf(p->text, ") <{dimensions = array<i64: %d>}> (", (int)hlo_attrs(p->g, x)[0]);
  put_arg_region(p, hlo_node(p->g, x)->mode, operand_type(p, x, 0), operand_type(p, x, 1));
  hlo_put(p, ")");
  put_pair_signature(p, x);
}

/* ---- windows ---- */

static void put_array(hlo_printer_t *p, const char *name, const int64_t *values, size_t count) {
  torus_strbuf_printf(p->text, "%s = array<i64: ", name);
  for (size_t i = 0; i < count; i++) {
    if (i) hlo_put(p, ", ");
    torus_strbuf_int(p->text, values[i]);
  }
  hlo_put(p, ">");
}

static bool are_all(const int64_t *values, size_t count, int64_t value) {
  bool all = true;
  for (size_t i = 0; i < count; i++) all &= values[i] == value;
  return all;
}

/* ", padding = dense<[[0, 1]]> : tensor<1x2xi64>", unless there is none. */
static void put_window_padding(hlo_printer_t *p, const int64_t *low, const int64_t *high,
                               size_t rank) {
  if (are_all(low, rank, 0) && are_all(high, rank, 0)) return;
  hlo_put(p, ", padding = dense<[");
  for (size_t i = 0; i < rank; i++) {
    torus_strbuf_printf(p->text, "%s[%lld, %lld]", i ? ", " : "", (long long)low[i],
                        (long long)high[i]);
  }
  torus_strbuf_printf(p->text, "]> : tensor<%zux2xi64>", rank);
}

/* What is left out has the value that StableHLO assumes. */
static void put_window(hlo_printer_t *p, hlo_t x) {
  static const char *const names[] = {", window_strides", ", window_dilations",
                                      ", base_dilations"};
  size_t rank = hlo_node(p->g, x)->rank;
  const int64_t *attrs = hlo_attrs(p->g, x);
  hlo_put(p, " <{");
  put_array(p, "window_dimensions", attrs, rank);
  for (size_t k = 0; k < 3; k++) {
    const int64_t *values = attrs + (k + 1) * rank;
    if (!are_all(values, rank, 1)) put_array(p, names[k], values, rank);
  }
  put_window_padding(p, attrs + 4 * rank, attrs + 5 * rank, rank);
  hlo_put(p, "}> (");
}

static void put_reduce_window(hlo_printer_t *p, hlo_t x) {
  const hlo_node_t *node = hlo_node(p->g, x);
  bool two = node->op == HLO_OP_REDUCE_WINDOW_ARG;
  put_results(p, x, two ? 2 : 1);
  hlo_put(p, "\"stablehlo.reduce_window\"(");
  put_operands(p, x);
  hlo_put(p, ")");
  put_window(p, x);
  if (two) {
    put_arg_region(p, node->mode, operand_type(p, x, 0), operand_type(p, x, 1));
    hlo_put(p, ")");
    put_pair_signature(p, x);
    return;
  }
  put_combiner(p, reduction_ops[node->mode], torus_dtype_hlo((torus_dtype_t)node->dtype));
  hlo_put(p, ")");
  hlo_put_signature(p, x);
  hlo_put(p, "\n");
}

/* True keeps %x, the element selected so far. NaN stays and is taken. */
static void put_selector(hlo_printer_t *p, torus_dtype_t dtype) {
  const char *type = torus_dtype_hlo(dtype);
  open_pair(p, type);
  put_before(p, "%r", "GE", "%x", "%y", dtype);
  close_region(p, "%r", "i1");
}

static void put_select_and_scatter(hlo_printer_t *p, hlo_t x) {
  torus_dtype_t dtype = (torus_dtype_t)hlo_node(p->g, x)->dtype;
  put_results(p, x, 1);
  hlo_put(p, "\"stablehlo.select_and_scatter\"(");
  put_operands(p, x);
  hlo_put(p, ")");
  put_window(p, x);
  put_selector(p, dtype);
  hlo_put(p, ", ");
  put_combiner(p, "add", torus_dtype_hlo(dtype));
  hlo_put(p, ")");
  hlo_put_signature(p, x);
  hlo_put(p, "\n");
}

/* ---- sort ---- */

/* %r = %x stands before %y. NaN counts as larger than all and equal to itself. */
static void put_sort_order(hlo_printer_t *p, torus_dtype_t dtype, bool descending) {
  const char *type = torus_dtype_hlo(dtype);
  if (!torus_dtype_is_float(dtype)) {
    put_comparison(p, "%r", descending ? "GT" : "LT", "%x", "%y", type);
    return;
  }
  put_comparison(p, "%p", descending ? "GT" : "LT", "%x", "%y", type);
  put_comparison(p, "%s", descending ? "NE" : "EQ", "%x", "%x", type);
  put_comparison(p, "%t", descending ? "EQ" : "NE", "%y", "%y", type);
  put_logic(p, "%w", "and", "%s", "%t");
  put_logic(p, "%r", "or", "%p", "%w");
}

static void put_sort(hlo_printer_t *p, hlo_t x) {
  const hlo_node_t *node = hlo_node(p->g, x);
  torus_dtype_t dtype = operand_type(p, x, 0);
  put_results(p, x, node->operand_count);
  hlo_put(p, "\"stablehlo.sort\"(");
  put_operands(p, x);
  torus_strbuf_printf(p->text, ") <{dimension = %d : i64, is_stable = %s}> ({\n^bb0(",
                      (int)hlo_attrs(p->g, x)[0], node->mode & 2 ? "true" : "false");
  torus_strbuf_printf(p->text, "%%x: tensor<%s>, %%y: tensor<%s>", torus_dtype_hlo(dtype),
                      torus_dtype_hlo(dtype));
  if (node->operand_count > 1) {
    const char *second = torus_dtype_hlo(operand_type(p, x, 1));
    torus_strbuf_printf(p->text, ", %%u: tensor<%s>, %%v: tensor<%s>", second, second);
  }
  hlo_put(p, "):\n");
  put_sort_order(p, dtype, node->mode & 1);
  close_region(p, "%r", "i1");
  hlo_put(p, ") : (");
  hlo_put_types(p, hlo_operands(p->g, x), node->operand_count);
  hlo_put(p, ") -> (");
  hlo_put_types(p, hlo_operands(p->g, x), node->operand_count);
  hlo_put(p, ")\n");
}

/* ---- scatter ---- */

static const char *scatter_op(int how, torus_dtype_t dtype) {
  bool is_bool = dtype == TORUS_DTYPE_BOOL;
  switch (how) {
  case HLO_SCATTER_ADD:
    return is_bool ? "or" : "add";
  case HLO_SCATTER_MULTIPLY:
    return is_bool ? "and" : "multiply";
  case HLO_SCATTER_MAXIMUM:
    return is_bool ? "or" : "maximum";
  default:
    return is_bool ? "and" : "minimum";
  }
}

static void put_scatter_numbers(hlo_printer_t *p, const int64_t *attrs) {
  const int64_t *lists = attrs + 4;
  size_t window = (size_t)attrs[0], inserted = (size_t)attrs[1], map = (size_t)attrs[2];
  hlo_put(p, ") <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = ");
  hlo_put_list(p, lists, window);
  hlo_put(p, ", inserted_window_dims = ");
  hlo_put_list(p, lists + window, inserted);
  hlo_put(p, ", scatter_dims_to_operand_dims = ");
  hlo_put_list(p, lists + window + inserted, map);
  torus_strbuf_printf(p->text, ", index_vector_dim = %d>}> (", (int)attrs[3]);
}

static void put_scatter(hlo_printer_t *p, hlo_t x) {
  const hlo_node_t *node = hlo_node(p->g, x);
  torus_dtype_t dtype = (torus_dtype_t)node->dtype;
  put_results(p, x, 1);
  hlo_put(p, "\"stablehlo.scatter\"(");
  put_operands(p, x);
  put_scatter_numbers(p, hlo_attrs(p->g, x));
  if (node->mode == HLO_SCATTER_SET) {
    open_pair(p, torus_dtype_hlo(dtype));
    close_region(p, "%y", torus_dtype_hlo(dtype));
  } else {
    put_combiner(p, scatter_op(node->mode, dtype), torus_dtype_hlo(dtype));
  }
  hlo_put(p, ")");
  hlo_put_signature(p, x);
  hlo_put(p, "\n");
}

/* ---- while ---- */

/* "{ ^bb0(%6: T): ... stablehlo.return %8 : U }" */
static void put_region(hlo_printer_t *p, size_t begin, size_t end, size_t count,
                       const hlo_t *results, size_t result_count) {
  hlo_put(p, "{\n^bb0(");
  for (size_t i = 0; i < count; i++) {
    hlo_t state = (hlo_t)(begin + i);
    if (i) hlo_put(p, ", ");
    hlo_put_name(p, state);
    hlo_put(p, ": ");
    hlo_put_type_of(p, state);
  }
  hlo_put(p, "):\n");
  hlo_put_nodes(p, begin + count, end, p->g->nodes[begin].region);
  hlo_put(p, "stablehlo.return ");
  hlo_put_names(p, results, result_count);
  hlo_put(p, " : ");
  hlo_put_types(p, results, result_count);
  hlo_put(p, "\n}");
}

static void put_while(hlo_printer_t *p, hlo_t x) {
  const int64_t *bounds = hlo_attrs(p->g, x);
  const hlo_t *operands = hlo_operands(p->g, x);
  size_t count = hlo_node(p->g, x)->operand_count / 2;
  put_results(p, x, count);
  hlo_put(p, "\"stablehlo.while\"(");
  hlo_put_names(p, operands, count);
  hlo_put(p, ") (");
  put_region(p, (size_t)bounds[0], (size_t)bounds[1], count, operands + count, 1);
  hlo_put(p, ", ");
  put_region(p, (size_t)bounds[1], (size_t)bounds[2], count, operands + count + 1, count);
  hlo_put(p, ") : (");
  hlo_put_types(p, operands, count);
  hlo_put(p, ") -> (");
  hlo_put_types(p, operands, count);
  hlo_put(p, ")\n");
}

bool hlo_put_regional(hlo_printer_t *p, hlo_t x) {
  switch ((hlo_op_t)hlo_node(p->g, x)->op) {
  case HLO_OP_REDUCE:
    put_reduce(p, x);
    return true;
  case HLO_OP_REDUCE_ARG:
    put_reduce_arg(p, x);
    return true;
  case HLO_OP_REDUCE_WINDOW:
  case HLO_OP_REDUCE_WINDOW_ARG:
    put_reduce_window(p, x);
    return true;
  case HLO_OP_SELECT_AND_SCATTER:
    put_select_and_scatter(p, x);
    return true;
  case HLO_OP_SORT:
    put_sort(p, x);
    return true;
  case HLO_OP_SCATTER:
    put_scatter(p, x);
    return true;
  case HLO_OP_WHILE:
    put_while(p, x);
    return true;
  default:
    return false;
  }
}
