/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* What the files of the StableHLO printer share. Names in the text: %aN arguments, %q the extra
 * argument of promoted numbers and %sN the numbers in it, %N the results of live nodes, %x, %y and
 * the like inside small regions; %pN and %rN arguments and results in filled dimensions. */
#ifndef TORUS_HLO_PRINT_INTERNAL_H_
#define TORUS_HLO_PRINT_INTERNAL_H_

#include "base/strbuf.h"
#include "hlo/graph_internal.h"

typedef struct hlo_printer {
  const hlo_graph_t *g;
  torus_strbuf_t *text;
  hlo_live_t live;
  const bool *promoted; /* may be NULL */
} hlo_printer_t;

static inline void hlo_put(hlo_printer_t *p, const char *text) {
  torus_strbuf_append(p->text, text);
}

/* Soft number |slot| of node x is read from the extra argument. */
bool hlo_is_promoted(const hlo_printer_t *p, hlo_t x, size_t slot);

void hlo_put_name(hlo_printer_t *p, hlo_t x);
/* "%3, %5" */
void hlo_put_names(hlo_printer_t *p, const hlo_t *xs, size_t count);
void hlo_put_type(hlo_printer_t *p, torus_dtype_t dtype, int rank, const int64_t *dims);
void hlo_put_type_of(hlo_printer_t *p, hlo_t x);
void hlo_put_types(hlo_printer_t *p, const hlo_t *xs, size_t count);
/* "[1, 2]" */
void hlo_put_list(hlo_printer_t *p, const int64_t *values, size_t count);
/* " : (T, U) -> R" of a node with one result. */
void hlo_put_signature(hlo_printer_t *p, hlo_t x);

/* "1.5" or "0x7F800000", the element of a constant. */
void hlo_put_number(hlo_printer_t *p, torus_dtype_t dtype, int64_t bits);
/* " stablehlo.constant dense<1.5> : tensor<f32>" without a name. */
void hlo_put_constant(hlo_printer_t *p, torus_dtype_t dtype, int64_t bits, int rank,
                      const int64_t *dims);
/* Defines all promoted numbers. */
void hlo_put_promoted(hlo_printer_t *p, size_t words);

/* Whether the node's dimensions cannot be cut into equal |parts| (NULL: not cut at all). */
bool hlo_is_uneven(const hlo_printer_t *p, hlo_t x, const int64_t *parts);
/* Its type in the next larger dimensions that can. */
void hlo_put_filled_type(hlo_printer_t *p, hlo_t x, const int64_t *parts);
/* The parameter from the argument "%pN" of that type. */
void hlo_put_cut_argument(hlo_printer_t *p, size_t number, hlo_t x, const int64_t *parts);
/* "%rN" of that type from the node. */
void hlo_put_filled_result(hlo_printer_t *p, size_t number, hlo_t x, const int64_t *parts);

/* The nodes of one region between two places, loops with their own regions. */
void hlo_put_nodes(hlo_printer_t *p, size_t begin, size_t end, int32_t region);

/* Operations with attributes or regions; false when |x| is none of them. */
bool hlo_put_structured(hlo_printer_t *p, hlo_t x);
bool hlo_put_regional(hlo_printer_t *p, hlo_t x);

#endif /* TORUS_HLO_PRINT_INTERNAL_H_ */
