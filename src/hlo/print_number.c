/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Numbers in StableHLO text: constants written exactly, promoted numbers read from words. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "hlo/print_internal.h"

/* ---- constants ---- */

typedef struct float_format {
  int digits;              /* of a significand that names the value exactly enough */
  double overflow;         /* magnitudes from here on become infinite, or NaN without infinities */
  const char *inf, *minus_inf, *nan;
} float_format_t;

/* Small types are printed through single precision as promoted numbers are, and with all digits,
 * because a second rounding of shortened ones could differ. */
static float_format_t float_format(torus_dtype_t dtype) {
  switch (dtype) {
  case TORUS_DTYPE_F8E5M2:
    return (float_format_t){17, 61440, "0x7C", "0xFC", "0x7E"};
  case TORUS_DTYPE_F8E4M3FN:
    return (float_format_t){17, 464.0000001, "0x7F", "0xFF", "0x7F"};
  case TORUS_DTYPE_F8E5M2FNUZ:
    return (float_format_t){17, 61440, "0x80", "0x80", "0x80"};
  case TORUS_DTYPE_F8E4M3FNUZ:
    return (float_format_t){17, 248, "0x80", "0x80", "0x80"};
  case TORUS_DTYPE_F16:
    return (float_format_t){17, 65520, "0x7C00", "0xFC00", "0x7E00"};
  case TORUS_DTYPE_BF16:
    return (float_format_t){17, 0x1.ffp127, "0x7F80", "0xFF80", "0x7FC0"};
  case TORUS_DTYPE_F64:
  case TORUS_DTYPE_C128:
    return (float_format_t){17, INFINITY, "0x7FF0000000000000", "0xFFF0000000000000",
                            "0x7FF8000000000000"};
  default:
    return (float_format_t){9, INFINITY, "0x7F800000", "0xFF800000", "0x7FC00000"};
  }
}

/* A point is wanted before an exponent too: 1.0e+20. */
static void put_decimal(hlo_printer_t *p, double value, int digits) {
  char text[40];
  if (value == (int)value && value > -1e6 && value < 1e6 && (value != 0 || !signbit(value))) {
    torus_strbuf_int(p->text, (int64_t)value);
    hlo_put(p, ".0");
    return;
  }
  snprintf(text, sizeof text, "%.*g", digits, value);
  char *exponent = strchr(text, 'e');
  if (strchr(text, '.')) {
    hlo_put(p, text);
  } else if (!exponent) {
    hlo_put(p, text);
    hlo_put(p, ".0");
  } else {
    torus_strbuf_append_bytes(p->text, text, (size_t)(exponent - text));
    hlo_put(p, ".0");
    hlo_put(p, exponent);
  }
}

static void put_float(hlo_printer_t *p, torus_dtype_t dtype, double value) {
  float_format_t format = float_format(dtype);
  if (dtype != TORUS_DTYPE_F64 && dtype != TORUS_DTYPE_C128) value = (float)value;
  if (isnan(value)) {
    hlo_put(p, format.nan);
  } else if (fabs(value) >= format.overflow) {
    hlo_put(p, value > 0 ? format.inf : format.minus_inf);
  } else {
    put_decimal(p, value, format.digits);
  }
}

void hlo_put_number(hlo_printer_t *p, torus_dtype_t dtype, int64_t bits) {
  switch (torus_dtype_kind(dtype)) {
  case TORUS_KIND_BOOL:
    hlo_put(p, bits ? "true" : "false");
    break;
  case TORUS_KIND_INT:
    torus_strbuf_int(p->text, bits);
    break;
  case TORUS_KIND_UINT:
    torus_strbuf_printf(p->text, "%" PRIu64, (uint64_t)bits);
    break;
  case TORUS_KIND_FLOAT:
    put_float(p, dtype, hlo_bits_double(bits));
    break;
  case TORUS_KIND_COMPLEX:
    hlo_put(p, "(");
    put_float(p, dtype, hlo_bits_double(bits));
    hlo_put(p, ", 0.0)");
    break;
  }
}

void hlo_put_constant(hlo_printer_t *p, torus_dtype_t dtype, int64_t bits, int rank,
                      const int64_t *dims) {
  hlo_put(p, " = stablehlo.constant dense<");
  hlo_put_number(p, dtype, bits);
  hlo_put(p, "> : ");
  hlo_put_type(p, dtype, rank, dims);
  hlo_put(p, "\n");
}

/* ---- promoted numbers ---- */

/* The type whose bits a single word holds. */
static torus_dtype_t word_type(torus_dtype_t dtype) {
  if (torus_dtype_is_float(dtype)) return TORUS_DTYPE_F32;
  return torus_dtype_kind(dtype) == TORUS_KIND_INT ? TORUS_DTYPE_I32 : TORUS_DTYPE_U32;
}

/* "%s3NAME = stablehlo.OP %s3FROM : (tensor<A>) -> tensor<B>" */
static void put_step(hlo_printer_t *p, size_t soft, const char *to, const char *op,
                     const char *from, const char *from_type, const char *to_type) {
  torus_strbuf_printf(p->text, "%%s%zu%s = stablehlo.%s %%s%zu%s : (tensor<%s>) -> tensor<%s>\n",
                      soft, to, op, soft, from, from_type, to_type);
}

static void put_word(hlo_printer_t *p, size_t soft, const char *to, size_t word, size_t words) {
  torus_strbuf_printf(p->text,
                      "%%s%zu%sv = stablehlo.slice %%q [%zu:%zu] : (tensor<%zuxui32>) -> "
                      "tensor<1xui32>\n",
                      soft, to, word, word + 1, words);
  torus_strbuf_printf(p->text,
                      "%%s%zu%s = stablehlo.reshape %%s%zu%sv : (tensor<1xui32>) -> tensor<ui32>\n",
                      soft, to, soft, to);
}

static void put_narrow(hlo_printer_t *p, size_t soft, torus_dtype_t dtype, size_t word,
                       size_t words) {
  torus_dtype_t raw = word_type(dtype);
  const char *raw_text = torus_dtype_hlo(raw), *text = torus_dtype_hlo(dtype);
  bool cast = raw != TORUS_DTYPE_U32, convert = raw != dtype;
  put_word(p, soft, cast || convert ? "w" : "", word, words);
  if (cast) put_step(p, soft, convert ? "c" : "", "bitcast_convert", "w", "ui32", raw_text);
  if (convert) put_step(p, soft, "", "convert", cast ? "c" : "w", raw_text, text);
}

static void put_wide_integer(hlo_printer_t *p, size_t soft, torus_dtype_t dtype, size_t word,
                             size_t words) {
  const char *type = torus_dtype_hlo(dtype);
  put_word(p, soft, "l", word, words);
  put_word(p, soft, "h", word + 1, words);
  put_step(p, soft, "m", "convert", "l", "ui32", type);
  put_step(p, soft, "i", "convert", "h", "ui32", type);
  torus_strbuf_printf(p->text,
                      "%%s%zuk = stablehlo.constant dense<32> : tensor<%s>\n"
                      "%%s%zuj = stablehlo.shift_left %%s%zui, %%s%zuk : tensor<%s>\n"
                      "%%s%zu = stablehlo.or %%s%zuj, %%s%zum : tensor<%s>\n",
                      soft, type, soft, soft, soft, type, soft, soft, soft, type);
}

static void put_double(hlo_printer_t *p, size_t soft, size_t word, size_t words) {
  torus_strbuf_printf(p->text,
                      "%%s%zuv = stablehlo.slice %%q [%zu:%zu] : (tensor<%zuxui32>) -> "
                      "tensor<2xui32>\n",
                      soft, word, word + 2, words);
  put_step(p, soft, "", "bitcast_convert", "v", "2xui32", "f64");
}

/* Returns the word after the number. */
static size_t put_promoted_number(hlo_printer_t *p, size_t soft, torus_dtype_t dtype, size_t word,
                                  size_t words) {
  if (torus_dtype_bytes(dtype) <= 4) {
    put_narrow(p, soft, dtype, word, words);
    return word + 1;
  }
  if (dtype == TORUS_DTYPE_F64) {
    put_double(p, soft, word, words);
  } else {
    put_wide_integer(p, soft, dtype, word, words);
  }
  return word + 2;
}

void hlo_put_promoted(hlo_printer_t *p, size_t words) {
  size_t word = 0;
  for (size_t i = 0; i < p->live.end && word < words; i++) {
    if (!p->live.number[i]) continue;
    const hlo_node_t *node = &p->g->nodes[i];
    for (uint32_t k = 0; k < node->soft_count; k++) {
      if (!hlo_is_promoted(p, (hlo_t)i, k)) continue;
      torus_dtype_t dtype = (torus_dtype_t)p->g->softs[node->softs + k].dtype;
      word = put_promoted_number(p, p->live.soft_base[i] + k, dtype, word, words);
    }
  }
}
