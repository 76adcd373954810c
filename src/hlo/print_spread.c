/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Arguments and results that are cut into parts of unequal size. Inside of a program the compiler's
 * partitioner is only ever shown equal parts: what comes in is held in dimensions that the parts
 * divide, is gathered and then cut to size; what goes out is filled up. At some scatters into arrays
 * that are not cut evenly it aborts the process. */
#include "hlo/print_internal.h"

bool hlo_is_uneven(const hlo_printer_t *p, hlo_t x, const int64_t *parts) {
  const int64_t *dims = hlo_dims(p->g, x);
  for (int i = 0; parts && i < hlo_rank(p->g, x); i++) {
    if (dims[i] % parts[i]) return true;
  }
  return false;
}

static int64_t filled(int64_t size, int64_t parts) { return (size + parts - 1) / parts * parts; }

void hlo_put_filled_type(hlo_printer_t *p, hlo_t x, const int64_t *parts) {
  hlo_put(p, "tensor<");
  for (int i = 0; i < hlo_rank(p->g, x); i++) {
    torus_strbuf_int(p->text, filled(hlo_dims(p->g, x)[i], parts[i]));
    hlo_put(p, "x");
  }
  hlo_put(p, torus_dtype_hlo(hlo_dtype(p->g, x)));
  hlo_put(p, ">");
}

static void put_type(hlo_printer_t *p, hlo_t x, const int64_t *parts) {
  if (parts) hlo_put_filled_type(p, x, parts);
  else hlo_put_type_of(p, x);
}

/* |operand|, in the filled dimensions or (|parts| NULL) the node's own, on each device: "%gN". */
static void put_gather(hlo_printer_t *p, const char *name, size_t number, hlo_t x,
                       const int64_t *parts) {
  torus_strbuf_printf(p->text, "%%g%s%zu = stablehlo.custom_call @Sharding(", name, number);
  if (parts) torus_strbuf_printf(p->text, "%%p%zu", number);
  else hlo_put_name(p, x);
  hlo_put(p, ") {mhlo.sharding = \"{replicated}\"} : (");
  put_type(p, x, parts);
  hlo_put(p, ") -> ");
  put_type(p, x, parts);
  hlo_put(p, "\n");
}

void hlo_put_cut_argument(hlo_printer_t *p, size_t number, hlo_t x, const int64_t *parts) {
  put_gather(p, "a", number, x, parts);
  hlo_put_name(p, x);
  torus_strbuf_printf(p->text, " = stablehlo.slice %%ga%zu [", number);
  for (int i = 0; i < hlo_rank(p->g, x); i++) {
    if (i) hlo_put(p, ", ");
    hlo_put(p, "0:");
    torus_strbuf_int(p->text, hlo_dims(p->g, x)[i]);
  }
  hlo_put(p, "] : (");
  hlo_put_filled_type(p, x, parts);
  hlo_put(p, ") -> ");
  hlo_put_type_of(p, x);
  hlo_put(p, "\n");
}

static void put_padding(hlo_printer_t *p, const char *what, hlo_t x, const int64_t *parts) {
  hlo_put(p, what);
  for (int i = 0; i < hlo_rank(p->g, x); i++) {
    const int64_t size = hlo_dims(p->g, x)[i];
    if (i) hlo_put(p, ", ");
    torus_strbuf_int(p->text, parts ? filled(size, parts[i]) - size : 0);
  }
  hlo_put(p, "]");
}

void hlo_put_filled_result(hlo_printer_t *p, size_t number, hlo_t x, const int64_t *parts) {
  put_gather(p, "r", number, x, NULL);
  torus_strbuf_printf(p->text, "%%z%zu", number);
  hlo_put_constant(p, hlo_dtype(p->g, x), 0, 0, NULL);
  torus_strbuf_printf(p->text, "%%r%zu = stablehlo.pad %%gr%zu, %%z%zu", number, number, number);
  put_padding(p, ", low = [", x, NULL);
  put_padding(p, ", high = [", x, parts);
  put_padding(p, ", interior = [", x, NULL);
  hlo_put(p, " : (");
  hlo_put_type_of(p, x);
  hlo_put(p, ", ");
  hlo_put_type(p, hlo_dtype(p->g, x), 0, NULL);
  hlo_put(p, ") -> ");
  hlo_put_filled_type(p, x, parts);
  hlo_put(p, "\n");
}
