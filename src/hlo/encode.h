/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* A finished graph as an identity (key), as soft values, and as StableHLO text.
 *
 * Only nodes that reach an output count; they are renumbered in order, so that dead work and
 * gaps do not change the key. Soft numbers are left out of the key: two graphs with equal keys are
 * the same program up to their vectors of soft values, which have equal lengths and types. A
 * program may be printed with some of them *promoted*: instead of a constant, the program reads
 * them from one extra last argument, tensor<Nxui32>, into which hlo_pack_softs writes them. */
#ifndef TORUS_HLO_ENCODE_H_
#define TORUS_HLO_ENCODE_H_

#include "base/strbuf.h"
#include "hlo/graph.h"

typedef struct hlo_encoding {
  char *key;              /* owned, torus_free */
  size_t key_bytes;
  uint64_t hash;          /* of key */
  int64_t *softs;         /* owned; bit patterns: integers as int64, reals as double */
  uint8_t *soft_dtypes;   /* owned; torus_dtype_t of each soft number */
  bool *soft_volatile;    /* owned; made by hlo_volatile_int: always promoted */
  size_t soft_count;
  int *parameters;        /* owned; input numbers used, in canonical order = order of arguments */
  size_t parameter_count;
} hlo_encoding_t;

/* |outputs| are nodes in the order of the program's results. |out_encoding| must be released with
 * hlo_encoding_deinit. */
TORUS_NODISCARD torus_status_t hlo_encode(hlo_graph_t *g, const hlo_t *outputs,
                                          size_t output_count, hlo_encoding_t *out_encoding);
void hlo_encoding_deinit(hlo_encoding_t *encoding); /* accepts a zeroed one */

/* Appends the module text. |promoted| has one flag per soft number (NULL: only volatile ones).
 * |aliases| has, for each used parameter in argument order, the output it is donated to or -1
 * (NULL: none), printed as tf.aliasing_output. */
TORUS_NODISCARD torus_status_t hlo_print(hlo_graph_t *g, const hlo_t *outputs, size_t output_count,
                                         const bool *promoted, const int *aliases,
                                         torus_strbuf_t *text);

/* How a program lies on several devices: an mhlo.sharding for each used parameter in argument order
 * and for each result, NULL for those without, and into how many parts each dimension is cut. Where
 * the parts are not equal, the argument or result is held in larger dimensions. */
typedef struct hlo_sharding_texts {
  const char *const *arguments;
  const char *const *results;
  const int64_t *const *argument_parts;
  const int64_t *const *result_parts;
} hlo_sharding_texts_t;

/* The same with |shardings| (NULL: none). */
TORUS_NODISCARD torus_status_t hlo_print_sharded(hlo_graph_t *g, const hlo_t *outputs,
                                                 size_t output_count, const bool *promoted,
                                                 const int *aliases,
                                                 const hlo_sharding_texts_t *shardings,
                                                 torus_strbuf_t *text);

/* 32-bit words that the promoted soft numbers take in the extra argument (0: there is none). */
size_t hlo_soft_words(const hlo_encoding_t *encoding, const bool *promoted);
void hlo_pack_softs(const hlo_encoding_t *encoding, const bool *promoted, uint32_t *out_words);

#endif  /* TORUS_HLO_ENCODE_H_ */
