/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Operations on each element alone, and changes of type. */
#include "hlo/graph_internal.h"

enum {
  KIND_BOOL = 1 << TORUS_KIND_BOOL,
  KIND_INTS = 1 << TORUS_KIND_UINT | 1 << TORUS_KIND_INT,
  KIND_FLOAT = 1 << TORUS_KIND_FLOAT,
  KIND_COMPLEX = 1 << TORUS_KIND_COMPLEX,

  ALLOW_ANY = KIND_BOOL | KIND_INTS | KIND_FLOAT | KIND_COMPLEX,
  ALLOW_NUMERIC = KIND_INTS | KIND_FLOAT | KIND_COMPLEX,
  ALLOW_FLOAT = KIND_FLOAT | KIND_COMPLEX,
  ALLOW_REAL_FLOAT = KIND_FLOAT,
  ALLOW_INTEGRAL = KIND_BOOL | KIND_INTS,
};

static const uint8_t allowed_kinds[HLO_OP_FIRST_OTHER] = {
#define OP_ALLOWED(name, spelling, allowed) ALLOW_##allowed,
    HLO_UNARY_LIST(OP_ALLOWED) HLO_BINARY_LIST(OP_ALLOWED)
#undef OP_ALLOWED
};

/* XLA refuses some operations of complex numbers that StableHLO lets pass. */
static bool is_real_only(hlo_op_t op) {
  return op == HLO_OP_maximum || op == HLO_OP_minimum || op == HLO_OP_remainder ||
         op == HLO_OP_cbrt;
}

static bool allowed(hlo_op_t op, torus_dtype_t dtype) {
  torus_kind_t kind = torus_dtype_kind(dtype);
  return (allowed_kinds[op] >> kind & 1) && (kind != TORUS_KIND_COMPLEX || !is_real_only(op));
}

/* CHLO's expansions of special functions do not know the types of one byte. */
static bool needs_widening(hlo_op_t op, torus_dtype_t dtype) {
  return torus_dtype_bytes(dtype) == 1 && torus_dtype_is_float(dtype) &&
         hlo_op_spelling(op)[0] == 'c';
}

/* ---- one operand ---- */

/* StableHLO has no sign and abs of unsigned numbers and no bit counts of bool. */
static hlo_t unary_special(hlo_graph_t *g, hlo_op_t op, hlo_t x) {
  torus_kind_t kind = torus_dtype_kind(hlo_dtype(g, x));
  if (kind == TORUS_KIND_UINT && op == HLO_OP_abs) return x;
  if (kind == TORUS_KIND_UINT && op == HLO_OP_sign) {
    return hlo_minimum(g, x, hlo_const_int(g, hlo_dtype(g, x), 1));
  }
  if (kind == TORUS_KIND_BOOL && op == HLO_OP_popcnt) return x;
  if (kind == TORUS_KIND_BOOL && op == HLO_OP_count_leading_zeros) return hlo_not(g, x);
  return HLO_NONE;
}

static hlo_t unary(hlo_graph_t *g, hlo_op_t op, hlo_t x) {
  if (!hlo_usable(g, op, x)) return HLO_NONE;
  torus_dtype_t dtype = hlo_dtype(g, x);
  if (!allowed(op, dtype)) return hlo_fail_types(g, op, "the type is not supported", x, HLO_NONE);
  torus_kind_t kind = torus_dtype_kind(dtype);
  if (kind <= TORUS_KIND_UINT) {
    hlo_t special = unary_special(g, op, x);
    if (special != HLO_NONE || g->error) return special;
  }
  if (needs_widening(op, dtype)) {
    return hlo_convert(g, unary(g, op, hlo_convert(g, x, TORUS_DTYPE_F32)), dtype);
  }
  if (op == HLO_OP_abs) dtype = torus_dtype_real(dtype);
  return hlo_append_like(g, op, dtype, 0, x, &x, 1);
}

#define DEFINE_UNARY(name, spelling, allowed)                                                      \
  hlo_t hlo_##name(hlo_graph_t *g, hlo_t x) { return unary(g, HLO_OP_##name, x); }
HLO_UNARY_LIST(DEFINE_UNARY)

/* ---- two operands ---- */

/* Brings a rank-0 operand to the shape of the other one. */
static bool match_shapes(hlo_graph_t *g, hlo_op_t op, hlo_t *x, hlo_t *y) {
  if (hlo_same_shape(g, *x, *y)) return true;
  if (hlo_rank(g, *y) == 0) {
    *y = hlo_splat_like(g, *y, *x);
    return *y != HLO_NONE;
  }
  if (hlo_rank(g, *x) == 0) {
    *x = hlo_splat_like(g, *x, *y);
    return *x != HLO_NONE;
  }
  hlo_fail_types(g, op, "the shapes differ", *x, *y);
  return false;
}

static bool match_types(hlo_graph_t *g, hlo_op_t op, hlo_t *x, hlo_t *y) {
  if (!hlo_usable(g, op, *x) || !hlo_usable(g, op, *y)) return false;
  if (hlo_dtype(g, *x) != hlo_dtype(g, *y)) {
    hlo_fail_types(g, op, "the types differ", *x, *y);
    return false;
  }
  return match_shapes(g, op, x, y);
}

/* The only shift of one bit that keeps it is the one by zero. */
static bool is_shift(hlo_op_t op) {
  return op == HLO_OP_shift_left || op == HLO_OP_shift_right_arithmetic ||
         op == HLO_OP_shift_right_logical;
}

/* XLA folds the division of constants with the machine's own instruction, which stops the process
 * for x / 0 and for the lowest number / -1. So neither ever stands in a program: the divisor is
 * replaced by 1 there and the result (-1 and -x; for remainders x and 0) chosen afterwards. */
static bool is_safe_divisor(const hlo_graph_t *g, hlo_t y) {
  if (hlo_node(g, y)->op != HLO_OP_CONSTANT) return false;
  const int64_t value = hlo_attrs(g, y)[0];
  return value != 0 && value != -1;
}

static hlo_t safe_division(hlo_graph_t *g, hlo_op_t op, hlo_t x, hlo_t y) {
  const torus_dtype_t dtype = hlo_dtype(g, x);
  const bool is_signed = torus_dtype_kind(dtype) == TORUS_KIND_INT;
  const hlo_t zero = hlo_const_int(g, dtype, 0), one = hlo_const_int(g, dtype, 1);
  const hlo_t is_zero = hlo_compare(g, HLO_EQ, y, zero);
  hlo_t is_odd = is_zero, is_minus = HLO_NONE;
  if (is_signed) {
    is_minus = hlo_compare(g, HLO_EQ, y, hlo_const_int(g, dtype, -1));
    is_odd = hlo_or(g, is_zero, is_minus);
  }
  const hlo_t divisor = hlo_select(g, is_odd, one, y);
  if (divisor == HLO_NONE) return HLO_NONE;
  hlo_t result = hlo_append_like(g, op, dtype, 0, x, (hlo_t[]){x, divisor}, 2);
  const bool is_divide = op == HLO_OP_divide;
  if (is_signed && is_divide) result = hlo_select(g, is_minus, hlo_negate(g, x), result);
  return hlo_select(g, is_zero, is_divide ? hlo_const_int(g, dtype, -1) : x, result);
}

static bool is_division(hlo_op_t op, torus_dtype_t dtype) {
  return (op == HLO_OP_divide || op == HLO_OP_remainder) && torus_dtype_is_integral(dtype);
}

static hlo_t binary(hlo_graph_t *g, hlo_op_t op, hlo_t x, hlo_t y) {
  if (!match_types(g, op, &x, &y)) return HLO_NONE;
  torus_dtype_t dtype = hlo_dtype(g, x);
  if (!allowed(op, dtype)) return hlo_fail_types(g, op, "the type is not supported", x, y);
  if (dtype == TORUS_DTYPE_BOOL) {
    if (is_shift(op)) return hlo_and(g, x, hlo_not(g, y));
    if (op == HLO_OP_add || op == HLO_OP_maximum) op = HLO_OP_or;
    if (op == HLO_OP_multiply || op == HLO_OP_minimum) op = HLO_OP_and;
  }
  if (is_division(op, dtype) && !is_safe_divisor(g, y)) return safe_division(g, op, x, y);
  return hlo_append_like(g, op, dtype, 0, x, (hlo_t[]){x, y}, 2);
}

#define DEFINE_BINARY(name, spelling, allowed)                                                     \
  hlo_t hlo_##name(hlo_graph_t *g, hlo_t x, hlo_t y) { return binary(g, HLO_OP_##name, x, y); }
HLO_BINARY_LIST(DEFINE_BINARY)

static hlo_t number_like(hlo_graph_t *g, hlo_op_t op, hlo_t x, double value) {
  return hlo_usable(g, op, x) ? hlo_const(g, hlo_dtype(g, x), value) : HLO_NONE;
}

hlo_t hlo_add_f(hlo_graph_t *g, hlo_t x, double y) {
  return hlo_add(g, x, number_like(g, HLO_OP_add, x, y));
}

hlo_t hlo_multiply_f(hlo_graph_t *g, hlo_t x, double y) {
  hlo_t number = number_like(g, HLO_OP_multiply, x, y);
  return y == 1 && number != HLO_NONE ? x : hlo_multiply(g, x, number);
}

/* ---- comparison and choice ---- */

/* mode: hlo_comparison_t. */
hlo_t hlo_compare(hlo_graph_t *g, hlo_comparison_t how, hlo_t x, hlo_t y) {
  if (!match_types(g, HLO_OP_COMPARE, &x, &y)) return HLO_NONE;
  if (torus_dtype_is_complex(hlo_dtype(g, x)) && how != HLO_EQ && how != HLO_NE) {
    return hlo_fail_types(g, HLO_OP_COMPARE, "complex numbers have no order", x, y);
  }
  return hlo_append_like(g, HLO_OP_COMPARE, TORUS_DTYPE_BOOL, (int)how, x, (hlo_t[]){x, y}, 2);
}

hlo_t hlo_compare_f(hlo_graph_t *g, hlo_comparison_t how, hlo_t x, double y) {
  return hlo_compare(g, how, x, number_like(g, HLO_OP_COMPARE, x, y));
}

hlo_t hlo_is_nan(hlo_graph_t *g, hlo_t x) {
  if (torus_dtype_is_integral(hlo_dtype(g, x))) return hlo_full_like(g, x, TORUS_DTYPE_BOOL, 0);
  return hlo_compare(g, HLO_NE, x, x);
}

hlo_t hlo_is_finite(hlo_graph_t *g, hlo_t x) {
  if (!hlo_usable(g, HLO_OP_IS_FINITE, x)) return HLO_NONE;
  if (!torus_dtype_is_float(hlo_dtype(g, x))) {
    return hlo_fail_types(g, HLO_OP_IS_FINITE, "a real floating type is wanted", x, HLO_NONE);
  }
  return hlo_append_like(g, HLO_OP_IS_FINITE, TORUS_DTYPE_BOOL, 0, x, &x, 1);
}

hlo_t hlo_select(hlo_graph_t *g, hlo_t condition, hlo_t on_true, hlo_t on_false) {
  if (!match_types(g, HLO_OP_SELECT, &on_true, &on_false) ||
      !hlo_usable(g, HLO_OP_SELECT, condition)) {
    return HLO_NONE;
  }
  if (hlo_dtype(g, condition) != TORUS_DTYPE_BOOL) {
    return hlo_fail_types(g, HLO_OP_SELECT, "the condition must be bool", condition, HLO_NONE);
  }
  if (hlo_rank(g, condition) != 0 && hlo_rank(g, on_true) == 0) {
    on_true = hlo_splat_like(g, on_true, condition);
    on_false = on_true == HLO_NONE ? HLO_NONE : hlo_splat_like(g, on_false, condition);
    if (on_false == HLO_NONE) return HLO_NONE;
  }
  if (hlo_rank(g, condition) != 0 && !hlo_same_shape(g, condition, on_true)) {
    return hlo_fail_types(g, HLO_OP_SELECT, "the shapes of condition and values differ", condition,
                          on_true);
  }
  return hlo_append_like(g, HLO_OP_SELECT, hlo_dtype(g, on_true), 0, on_true,
                         (hlo_t[]){condition, on_true, on_false}, 3);
}

/* ---- types ---- */

static bool is_type(hlo_graph_t *g, hlo_op_t op, torus_dtype_t dtype) {
  if ((unsigned)dtype < TORUS_DTYPE_COUNT) return true;
  hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "%s: not a type", hlo_op_name(op));
  return false;
}

hlo_t hlo_convert(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype) {
  if (!hlo_usable(g, HLO_OP_CONVERT, x) || !is_type(g, HLO_OP_CONVERT, dtype)) return HLO_NONE;
  torus_dtype_t from = hlo_dtype(g, x);
  if (from == dtype) return x;
  hlo_t number = hlo_soft_as(g, x, dtype);
  if (number != HLO_NONE) return number;
  if (dtype == TORUS_DTYPE_BOOL) return hlo_compare_f(g, HLO_NE, x, 0);
  if (torus_dtype_is_complex(from) && !torus_dtype_is_complex(dtype)) {
    return hlo_convert(g, hlo_real(g, x), dtype);
  }
  return hlo_append_like(g, HLO_OP_CONVERT, dtype, 0, x, &x, 1);
}

/* Between types of other kinds of storage than bool and complex. */
static hlo_t bitcast_plain(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype) {
  if (!hlo_usable(g, HLO_OP_BITCAST, x)) return HLO_NONE;
  torus_dtype_t from = hlo_dtype(g, x);
  if (from == dtype) return x;
  size_t old_bytes = torus_dtype_bytes(from), new_bytes = torus_dtype_bytes(dtype);
  int64_t dims[TORUS_MAX_RANK + 1];
  int rank = hlo_shape(g, x, dims);
  if (old_bytes > new_bytes) {
    dims[rank++] = (int64_t)(old_bytes / new_bytes);
  } else if (old_bytes < new_bytes) {
    if (rank == 0 || dims[rank - 1] != (int64_t)(new_bytes / old_bytes)) {
      return hlo_fail_types(g, HLO_OP_BITCAST, "the last dimension does not make one number", x,
                            HLO_NONE);
    }
    rank--;
  }
  return hlo_append(g, &(hlo_spec_t){.op = HLO_OP_BITCAST,
                                     .dtype = dtype,
                                     .rank = rank,
                                     .dims = dims,
                                     .operands = &x,
                                     .operand_count = 1});
}

/* Real and imaginary parts side by side in a new last dimension of size 2. */
static hlo_t complex_pairs(hlo_graph_t *g, hlo_t x) {
  int rank = hlo_rank(g, x);
  hlo_t parts[] = {hlo_unsqueeze(g, hlo_real(g, x), rank), hlo_unsqueeze(g, hlo_imag(g, x), rank)};
  return hlo_concatenate(g, parts, 2, rank);
}

/* StableHLO casts no complex numbers: the bits go through pairs of reals. */
static hlo_t bitcast_from_complex(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype) {
  int64_t ratio = (int64_t)(torus_dtype_bytes(hlo_dtype(g, x)) / torus_dtype_bytes(dtype));
  int64_t dims[TORUS_MAX_RANK + 1];
  int rank = hlo_shape(g, x, dims);
  hlo_t bits = bitcast_plain(g, complex_pairs(g, x), dtype);
  if (ratio > 1) dims[rank++] = ratio;
  return ratio == 0 ? bits : hlo_reshape(g, bits, rank, dims);
}

static hlo_t bitcast_to_complex(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype) {
  torus_dtype_t real = torus_dtype_real(dtype);
  size_t ratio = torus_dtype_bytes(dtype) / torus_dtype_bytes(hlo_dtype(g, x));
  int64_t dims[TORUS_MAX_RANK + 1];
  int rank = hlo_shape(g, x, dims);
  if (ratio > 2) {
    if (rank == 0 || dims[rank - 1] != (int64_t)ratio) {
      return hlo_fail_types(g, HLO_OP_BITCAST, "the last dimension does not make one number", x,
                            HLO_NONE);
    }
    dims[rank - 1] = 2;
    dims[rank++] = (int64_t)(ratio / 2);
    x = hlo_reshape(g, x, rank, dims);
  }
  hlo_t pairs = bitcast_plain(g, x, real);
  int last = hlo_rank(g, pairs) - 1;
  if (hlo_dim(g, pairs, last) != 2) {
    return hlo_fail_types(g, HLO_OP_BITCAST, "the last dimension does not make one number", x,
                          HLO_NONE);
  }
  return hlo_complex(g, hlo_index_dim(g, pairs, last, 0), hlo_index_dim(g, pairs, last, 1));
}

hlo_t hlo_bitcast(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype) {
  if (!hlo_usable(g, HLO_OP_BITCAST, x) || !is_type(g, HLO_OP_BITCAST, dtype)) return HLO_NONE;
  torus_dtype_t from = hlo_dtype(g, x);
  if (from == dtype) return x;
  if (from == TORUS_DTYPE_BOOL) return hlo_bitcast(g, hlo_convert(g, x, TORUS_DTYPE_U8), dtype);
  if (dtype == TORUS_DTYPE_BOOL) return hlo_convert(g, hlo_bitcast(g, x, TORUS_DTYPE_U8), dtype);
  if (torus_dtype_is_complex(from)) {
    if (!torus_dtype_is_complex(dtype)) return bitcast_from_complex(g, x, dtype);
    return bitcast_to_complex(g, complex_pairs(g, x), dtype);
  }
  if (torus_dtype_is_complex(dtype)) return bitcast_to_complex(g, x, dtype);
  return bitcast_plain(g, x, dtype);
}

hlo_t hlo_complex(hlo_graph_t *g, hlo_t real, hlo_t imag) {
  if (!match_types(g, HLO_OP_COMPLEX, &real, &imag)) return HLO_NONE;
  torus_dtype_t dtype = hlo_dtype(g, real);
  if (dtype != TORUS_DTYPE_F32 && dtype != TORUS_DTYPE_F64) {
    return hlo_fail_types(g, HLO_OP_COMPLEX, "float32 or float64 is wanted", real, imag);
  }
  return hlo_append_like(g, HLO_OP_COMPLEX, torus_dtype_complex(dtype), 0, real,
                         (hlo_t[]){real, imag}, 2);
}

static hlo_t complex_part(hlo_graph_t *g, hlo_op_t op, hlo_t x) {
  hlo_node_t source = *hlo_node(g, x);
  if (source.op == HLO_OP_COMPLEX) return hlo_operand(g, x, op == HLO_OP_IMAG);
  return hlo_append_like(g, op, torus_dtype_real((torus_dtype_t)source.dtype), 0, x, &x, 1);
}

hlo_t hlo_real(hlo_graph_t *g, hlo_t x) {
  if (!hlo_usable(g, HLO_OP_REAL, x)) return HLO_NONE;
  return torus_dtype_is_complex(hlo_dtype(g, x)) ? complex_part(g, HLO_OP_REAL, x) : x;
}

hlo_t hlo_imag(hlo_graph_t *g, hlo_t x) {
  if (!hlo_usable(g, HLO_OP_IMAG, x)) return HLO_NONE;
  if (!torus_dtype_is_complex(hlo_dtype(g, x))) return hlo_zeros_like(g, x);
  return complex_part(g, HLO_OP_IMAG, x);
}

hlo_t hlo_conj(hlo_graph_t *g, hlo_t x) {
  if (!hlo_usable(g, HLO_OP_COMPLEX, x)) return HLO_NONE;
  if (!torus_dtype_is_complex(hlo_dtype(g, x))) return x;
  return hlo_complex(g, hlo_real(g, x), hlo_negate(g, hlo_imag(g, x)));
}
