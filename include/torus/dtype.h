/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Element types: one list from which the enum, PJRT types, StableHLO spellings and sizes follow. */
#ifndef TORUS_DTYPE_H_
#define TORUS_DTYPE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, PJRT_Buffer_Type suffix, StableHLO spelling, bytes, kind, torch name) */
#define TORUS_DTYPE_LIST(X)                                                                        \
  X(BOOL, PRED, "i1", 1, BOOL, "bool")                                                             \
  X(U8, U8, "ui8", 1, UINT, "uint8")                                                               \
  X(I8, S8, "i8", 1, INT, "int8")                                                                  \
  X(U16, U16, "ui16", 2, UINT, "uint16")                                                           \
  X(I16, S16, "i16", 2, INT, "int16")                                                              \
  X(U32, U32, "ui32", 4, UINT, "uint32")                                                           \
  X(I32, S32, "i32", 4, INT, "int32")                                                              \
  X(U64, U64, "ui64", 8, UINT, "uint64")                                                           \
  X(I64, S64, "i64", 8, INT, "int64")                                                              \
  X(F8E5M2, F8E5M2, "f8E5M2", 1, FLOAT, "float8_e5m2")                                             \
  X(F8E4M3FN, F8E4M3FN, "f8E4M3FN", 1, FLOAT, "float8_e4m3fn")                                     \
  X(F8E5M2FNUZ, F8E5M2FNUZ, "f8E5M2FNUZ", 1, FLOAT, "float8_e5m2fnuz")                             \
  X(F8E4M3FNUZ, F8E4M3FNUZ, "f8E4M3FNUZ", 1, FLOAT, "float8_e4m3fnuz")                             \
  X(F16, F16, "f16", 2, FLOAT, "float16")                                                          \
  X(BF16, BF16, "bf16", 2, FLOAT, "bfloat16")                                                      \
  X(F32, F32, "f32", 4, FLOAT, "float32")                                                          \
  X(F64, F64, "f64", 8, FLOAT, "float64")                                                          \
  X(C64, C64, "complex<f32>", 8, COMPLEX, "complex64")                                             \
  X(C128, C128, "complex<f64>", 16, COMPLEX, "complex128")

typedef enum torus_dtype {
#define TORUS_DTYPE_ENUM(name, pjrt, hlo, bytes, kind, torch) TORUS_DTYPE_##name,
  TORUS_DTYPE_LIST(TORUS_DTYPE_ENUM)
#undef TORUS_DTYPE_ENUM
  TORUS_DTYPE_COUNT,
  TORUS_DTYPE_INVALID = TORUS_DTYPE_COUNT,
} torus_dtype_t;

typedef enum torus_kind {
  TORUS_KIND_BOOL,
  TORUS_KIND_UINT,
  TORUS_KIND_INT,
  TORUS_KIND_FLOAT,
  TORUS_KIND_COMPLEX,
} torus_kind_t;

size_t torus_dtype_bytes(torus_dtype_t dtype);
torus_kind_t torus_dtype_kind(torus_dtype_t dtype);
const char *torus_dtype_name(torus_dtype_t dtype);   /* as torch prints it, without "torch." */
const char *torus_dtype_hlo(torus_dtype_t dtype);    /* as StableHLO spells it */
static inline bool torus_dtype_is_float(torus_dtype_t d) { return torus_dtype_kind(d) == TORUS_KIND_FLOAT; }
static inline bool torus_dtype_is_complex(torus_dtype_t d) { return torus_dtype_kind(d) == TORUS_KIND_COMPLEX; }
/* Signed or unsigned integers and bool: what torch calls integral including bool. */
static inline bool torus_dtype_is_integral(torus_dtype_t d) { return torus_dtype_kind(d) <= TORUS_KIND_INT; }

/* torch.promote_types: the smallest type both convert to. */
torus_dtype_t torus_dtype_promote(torus_dtype_t a, torus_dtype_t b);
/* complex64 -> float32 and so on; other types unchanged. */
torus_dtype_t torus_dtype_real(torus_dtype_t dtype);
/* float32 -> complex64, float64 -> complex128; smaller floats -> complex64. */
torus_dtype_t torus_dtype_complex(torus_dtype_t dtype);

#ifdef __cplusplus
}
#endif
#endif  /* TORUS_DTYPE_H_ */
