/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* What is known of each element type, unfolded from the list in dtype.h. */
#include "torus/dtype.h"

typedef struct dtype_info {
  const char *name;
  const char *hlo;
  size_t bytes;
  torus_kind_t kind;
} dtype_info_t;

/* One entry more than there are types, so that TORUS_DTYPE_INVALID has answers too. */
static const dtype_info_t dtype_table[TORUS_DTYPE_COUNT + 1] = {
#define TORUS_DTYPE_INFO(name, pjrt, hlo, bytes, kind, torch)                                      \
  {torch, hlo, bytes, TORUS_KIND_##kind},
    TORUS_DTYPE_LIST(TORUS_DTYPE_INFO)
#undef TORUS_DTYPE_INFO
        {"invalid", "invalid", 0, TORUS_KIND_BOOL},
};

static const dtype_info_t *dtype_info(torus_dtype_t dtype) {
  return &dtype_table[(unsigned)dtype < TORUS_DTYPE_COUNT ? dtype : TORUS_DTYPE_INVALID];
}

size_t torus_dtype_bytes(torus_dtype_t dtype) { return dtype_info(dtype)->bytes; }
torus_kind_t torus_dtype_kind(torus_dtype_t dtype) { return dtype_info(dtype)->kind; }
const char *torus_dtype_name(torus_dtype_t dtype) { return dtype_info(dtype)->name; }
const char *torus_dtype_hlo(torus_dtype_t dtype) { return dtype_info(dtype)->hlo; }

static bool is_float8(torus_dtype_t d) {
  return torus_dtype_is_float(d) && torus_dtype_bytes(d) == 1;
}

/* torch lets the wide unsigned types meet floating types and themselves, nothing else. */
static bool is_wide_unsigned(torus_dtype_t d) {
  return d == TORUS_DTYPE_U16 || d == TORUS_DTYPE_U32 || d == TORUS_DTYPE_U64;
}

/* 0: integral or bool, 1: floating, 2: complex. The higher one wins whatever the sizes. */
static int category(torus_dtype_t d) {
  return torus_dtype_is_complex(d) ? 2 : torus_dtype_is_float(d) ? 1 : 0;
}

static torus_dtype_t wider(torus_dtype_t a, torus_dtype_t b) {
  return torus_dtype_bytes(a) >= torus_dtype_bytes(b) ? a : b;
}

static torus_dtype_t promote_integral(torus_dtype_t a, torus_dtype_t b) {
  if (a == TORUS_DTYPE_BOOL) return b;
  if (b == TORUS_DTYPE_BOOL) return a;
  bool mixed_bytes = torus_dtype_bytes(a) == 1 && torus_dtype_bytes(b) == 1;
  return mixed_bytes ? TORUS_DTYPE_I16 : wider(a, b);
}

static torus_dtype_t promote_float(torus_dtype_t a, torus_dtype_t b) {
  bool mixed_halves = torus_dtype_bytes(a) == 2 && torus_dtype_bytes(b) == 2;
  return mixed_halves ? TORUS_DTYPE_F32 : wider(a, b);
}

/* |high| is of a higher category than |low|. */
static torus_dtype_t promote_categories(torus_dtype_t high, torus_dtype_t low) {
  if (low == TORUS_DTYPE_F64) return TORUS_DTYPE_C128;
  return high;
}

torus_dtype_t torus_dtype_promote(torus_dtype_t a, torus_dtype_t b) {
  if ((unsigned)a >= TORUS_DTYPE_COUNT || (unsigned)b >= TORUS_DTYPE_COUNT) {
    return TORUS_DTYPE_INVALID;
  }
  if (a == b) return a;
  if (is_float8(a) || is_float8(b)) return TORUS_DTYPE_INVALID;
  int category_a = category(a), category_b = category(b);
  if (is_wide_unsigned(a) && category_b != 1) return TORUS_DTYPE_INVALID;
  if (is_wide_unsigned(b) && category_a != 1) return TORUS_DTYPE_INVALID;
  if (category_a > category_b) return promote_categories(a, b);
  if (category_a < category_b) return promote_categories(b, a);
  if (category_a == 2) return wider(a, b);
  return category_a == 1 ? promote_float(a, b) : promote_integral(a, b);
}

torus_dtype_t torus_dtype_real(torus_dtype_t dtype) {
  if (dtype == TORUS_DTYPE_C64) return TORUS_DTYPE_F32;
  return dtype == TORUS_DTYPE_C128 ? TORUS_DTYPE_F64 : dtype;
}

torus_dtype_t torus_dtype_complex(torus_dtype_t dtype) {
  if (torus_dtype_is_complex(dtype) || dtype == TORUS_DTYPE_INVALID) return dtype;
  return dtype == TORUS_DTYPE_F64 ? TORUS_DTYPE_C128 : TORUS_DTYPE_C64;
}
