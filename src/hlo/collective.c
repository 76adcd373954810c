/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Collectives as StableHLO: one program for all members, which are its replicas. */
#include "torus/collective.h"

#include "base/strbuf.h"

typedef struct writer {
  const torus_collective_t *c;
  torus_strbuf_t text;
} writer_t;

static void put(writer_t *w, const char *text) { torus_strbuf_append(&w->text, text); }

static void put_row(writer_t *w, const char *type, int64_t count) {
  torus_strbuf_printf(&w->text, "tensor<%lldx%s>", (long long)count, type);
}

static bool is_reducing(const torus_collective_t *c) {
  return c->kind == TORUS_ALL_REDUCE || c->kind == TORUS_REDUCE_SCATTER;
}

int64_t torus_collective_argument_count(const torus_collective_t *c) {
  const bool is_whole = c->kind == TORUS_REDUCE_SCATTER || c->kind == TORUS_ALL_TO_ALL;
  return is_whole ? c->count * c->size : c->count;
}

int64_t torus_collective_result_count(const torus_collective_t *c) {
  const bool is_whole = c->kind == TORUS_ALL_GATHER || c->kind == TORUS_ALL_TO_ALL;
  return is_whole ? c->count * c->size : c->count;
}

/* ---- what cannot be ---- */

static torus_status_t invalid(const char *what) {
  return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT, "collective: %s", what);
}

static torus_status_t check_reduction(const torus_collective_t *c) {
  const bool is_float = torus_dtype_is_float(c->dtype);
  const bool is_complex = torus_dtype_is_complex(c->dtype);
  if (c->reduction == TORUS_REDUCE_AVERAGE && !is_float) return invalid("the average of integers");
  const bool needs_order = c->reduction == TORUS_REDUCE_MIN || c->reduction == TORUS_REDUCE_MAX;
  return needs_order && is_complex ? invalid("the order of complex numbers") : TORUS_OK;
}

static torus_status_t check_pairs(const torus_collective_t *c) {
  for (int i = 0; i < c->pair_count; i++) {
    const int source = c->sources[i], target = c->targets[i];
    if (source < 0 || source >= c->size || target < 0 || target >= c->size) {
      return invalid("a pair names a member that the group does not have");
    }
    for (int k = 0; k < i; k++) {
      if (c->sources[k] == source || c->targets[k] == target) return invalid("a member twice");
    }
  }
  return c->pair_count > 0 ? TORUS_OK : invalid("no pairs");
}

static torus_status_t check(const torus_collective_t *c) {
  if (c->size < 1 || c->count < 1) return invalid("no members or no elements");
  if (is_reducing(c)) return check_reduction(c);
  if (c->kind == TORUS_PERMUTE) return check_pairs(c);
  if (c->kind == TORUS_BROADCAST && (c->root < 0 || c->root >= c->size)) {
    return invalid("the root is not a member");
  }
  return TORUS_OK;
}

/* ---- words ---- */

/* Numbers that are true or false know neither sums nor order in StableHLO. */
static const char *spelling(torus_reduction_t reduction, bool is_bool) {
  switch (reduction) {
  case TORUS_REDUCE_SUM:
  case TORUS_REDUCE_AVERAGE: return is_bool ? "or" : "add";
  case TORUS_REDUCE_PRODUCT: return is_bool ? "and" : "multiply";
  case TORUS_REDUCE_MIN: return is_bool ? "and" : "minimum";
  case TORUS_REDUCE_MAX: return is_bool ? "or" : "maximum";
  }
  return "add";
}

static void put_groups(writer_t *w) {
  put(w, "replica_groups = dense<[[");
  for (int i = 0; i < w->c->size; i++) torus_strbuf_printf(&w->text, "%s%d", i ? ", " : "", i);
  torus_strbuf_printf(&w->text, "]]> : tensor<1x%dxi64>", w->c->size);
}

/* "({ ... })" */
static void put_region(writer_t *w, const char *operation, const char *type) {
  torus_strbuf_printf(&w->text,
                      " ({\n^bb0(%%x: tensor<%s>, %%y: tensor<%s>):\n"
                      "%%z = stablehlo.%s %%x, %%y : tensor<%s>\n"
                      "stablehlo.return %%z : tensor<%s>\n})",
                      type, type, operation, type, type);
}

static void put_types(writer_t *w, const char *type) {
  put(w, " : (");
  put_row(w, type, torus_collective_argument_count(w->c));
  put(w, ") -> ");
  put_row(w, type, torus_collective_result_count(w->c));
  put(w, "\n");
}

static void put_reduction(writer_t *w, const char *name, const char *value, const char *operation,
                          const char *type) {
  const bool scatters = w->c->kind == TORUS_REDUCE_SCATTER;
  torus_strbuf_printf(&w->text, "%s = \"stablehlo.%s\"(%s)", name,
                      scatters ? "reduce_scatter" : "all_reduce", value);
  put_region(w, operation, type);
  put(w, " {");
  if (scatters) put(w, "scatter_dimension = 0 : i64, ");
  put_groups(w);
  put(w, "}");
  put_types(w, type);
}

/* ---- bodies: each defines %r ---- */

static void put_reducing(writer_t *w) {
  const char *type = torus_dtype_hlo(w->c->dtype);
  const bool averages = w->c->reduction == TORUS_REDUCE_AVERAGE;
  const bool is_bool = torus_dtype_kind(w->c->dtype) == TORUS_KIND_BOOL;
  put_reduction(w, averages ? "%s" : "%r", "%a", spelling(w->c->reduction, is_bool), type);
  if (!averages) return;
  torus_strbuf_printf(&w->text, "%%n = stablehlo.constant dense<%d.0> : ", w->c->size);
  put_row(w, type, w->c->count);
  put(w, "\n%r = stablehlo.divide %s, %n : ");
  put_row(w, type, w->c->count);
  put(w, "\n");
}

static void put_moving(writer_t *w) {
  const bool gathers = w->c->kind == TORUS_ALL_GATHER;
  put(w, gathers ? "%r = \"stablehlo.all_gather\"(%a) {all_gather_dim = 0 : i64, "
                 : "%r = \"stablehlo.all_to_all\"(%a) {split_dimension = 0 : i64, "
                   "concat_dimension = 0 : i64, ");
  if (!gathers) torus_strbuf_printf(&w->text, "split_count = %d : i64, ", w->c->size);
  put_groups(w);
  put(w, "}");
  put_types(w, torus_dtype_hlo(w->c->dtype));
}

static void put_permute(writer_t *w) {
  const torus_collective_t *c = w->c;
  put(w, "%r = \"stablehlo.collective_permute\"(%a) {source_target_pairs = dense<[");
  for (int i = 0; i < c->pair_count; i++) {
    torus_strbuf_printf(&w->text, "%s[%d, %d]", i ? ", " : "", c->sources[i], c->targets[i]);
  }
  torus_strbuf_printf(&w->text, "]> : tensor<%dx2xi64>}", c->pair_count);
  put_types(w, torus_dtype_hlo(c->dtype));
}

/* The bits of every member but the root count as zeros: compilers for TPUs know no broadcast, and a
 * sum of numbers would change NaN and the sign of zero. Complex numbers are a pair of them. */
static void put_bits_of_root(writer_t *w, const char *type) {
  const int64_t count = w->c->count;
  torus_strbuf_printf(&w->text,
                      "%%i = stablehlo.replica_id : tensor<ui32>\n"
                      "%%k = stablehlo.constant dense<%d> : tensor<ui32>\n"
                      "%%t = stablehlo.compare EQ, %%i, %%k, UNSIGNED : (tensor<ui32>, "
                      "tensor<ui32>) -> tensor<i1>\n%%o = stablehlo.constant dense<0> : ",
                      w->c->root);
  put_row(w, type, count);
  put(w, "\n%m = stablehlo.select %t, %b, %o : tensor<i1>, ");
  put_row(w, type, count);
  put(w, "\n");
}

static void put_bitcast(writer_t *w, const char *name, const char *value, const char *from,
                        const char *to) {
  torus_strbuf_printf(&w->text, "%s = stablehlo.bitcast_convert %s : (", name, value);
  put_row(w, from, w->c->count);
  put(w, ") -> ");
  put_row(w, to, w->c->count);
  put(w, "\n");
}

static const char *bits_of(torus_dtype_t dtype) {
  switch (torus_dtype_bytes(dtype)) {
  case 1: return "ui8";
  case 2: return "ui16";
  case 4: return "ui32";
  default: return "ui64";
  }
}

static void put_broadcast(writer_t *w) {
  const char *type = torus_dtype_hlo(w->c->dtype), *bits = bits_of(w->c->dtype);
  put_bitcast(w, "%b", "%a", type, bits);
  put_bits_of_root(w, bits);
  put_reduction(w, "%s", "%m", "add", bits);
  put_bitcast(w, "%r", "%s", bits, type);
}

static void put_body(writer_t *w) {
  switch (w->c->kind) {
  case TORUS_ALL_REDUCE:
  case TORUS_REDUCE_SCATTER: put_reducing(w); return;
  case TORUS_ALL_GATHER:
  case TORUS_ALL_TO_ALL: put_moving(w); return;
  case TORUS_BROADCAST: put_broadcast(w); return;
  case TORUS_PERMUTE: put_permute(w); return;
  }
}

torus_status_t torus_collective_text(const torus_collective_t *collective, char **out_text) {
  writer_t w = {.c = collective};
  const char *type = torus_dtype_hlo(collective->dtype);
  const torus_kind_t kind = torus_dtype_kind(collective->dtype);
  *out_text = NULL;
  TORUS_TRY(check(collective));
  if (collective->kind == TORUS_BROADCAST &&
      (kind == TORUS_KIND_BOOL || kind == TORUS_KIND_COMPLEX)) {
    return invalid("broadcast these numbers as bytes or as pairs");
  }
  put(&w, "module @torus {\nfunc.func public @main(%a: ");
  put_row(&w, type, torus_collective_argument_count(collective));
  put(&w, ") -> ");
  put_row(&w, type, torus_collective_result_count(collective));
  put(&w, " {\n");
  put_body(&w);
  put(&w, "return %r : ");
  put_row(&w, type, torus_collective_result_count(collective));
  put(&w, "\n}\n}\n");
  torus_status_t status = torus_strbuf_status(&w.text);
  *out_text = torus_strbuf_take(&w.text);
  return status;
}
