/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Pointwise operators of two operands, each of which may be a tensor or a Scalar. */
#include "ops/math.h"

/* Which of the first two arguments are Scalars. */
typedef enum { BOTH_TENSORS, RIGHT_SCALAR, LEFT_SCALAR } form_t;

/* The operands broadcast together in the type they are computed in. */
typedef struct operands {
  hlo_t x, y;
  torus_dtype_t dtype; /* of the result */
} operands_t;

static hlo_t read_one(torus_call_t *call, int i, bool is_scalar, torus_dtype_t dtype) {
  return is_scalar ? op_scalar(call, i, dtype) : op_tensor_as(call, i, dtype);
}

static operands_t read_as(torus_call_t *call, form_t form, torus_dtype_t dtype,
                          torus_dtype_t compute) {
  operands_t o = {HLO_NONE, HLO_NONE, dtype};
  if (op_failed(call)) return o;
  if (form == BOTH_TENSORS) {
    op_binary_operands(call, 0, 1, compute, &o.x, &o.y);
    return o;
  }
  o.x = read_one(call, 0, form == LEFT_SCALAR, compute);
  o.y = read_one(call, 1, form == RIGHT_SCALAR, compute);
  return o;
}

static torus_dtype_t common_type(torus_call_t *call) {
  return op_result_type(call, (const int[]){0, 1}, 2);
}

static operands_t read_promoted(torus_call_t *call, form_t form) {
  torus_dtype_t dtype = common_type(call);
  return read_as(call, form, dtype, op_accumulate_type(dtype));
}

static operands_t read_float(torus_call_t *call, form_t form) {
  torus_dtype_t dtype = op_float_type(call, common_type(call));
  return read_as(call, form, dtype, op_accumulate_type(dtype));
}

static void return_as(torus_call_t *call, hlo_graph_t *g, hlo_t x, torus_dtype_t dtype) {
  op_return(call, 0, hlo_convert(g, x, dtype));
}

/* ---- sums ---- */

/* PyTorch's text stands here: its kernels for meta tensors word this case differently. */
static const char *alpha_fault(torus_kind_t alpha, torus_dtype_t dtype) {
  if (alpha == TORUS_KIND_BOOL && dtype != TORUS_DTYPE_BOOL) {
    return "Boolean alpha only supported for Boolean results.";
  }
  if (alpha == TORUS_KIND_FLOAT && torus_dtype_is_integral(dtype)) {
    return "For integral input tensors, argument alpha must not be a floating point number.";
  }
  if (alpha == TORUS_KIND_COMPLEX && !torus_dtype_is_complex(dtype)) {
    return "For non-complex input tensors, argument alpha must not be a complex number.";
  }
  return NULL;
}

static bool alpha_fits(torus_call_t *call, int i, torus_dtype_t dtype) {
  const char *fault = alpha_fault(torus_dtype_kind(op_scalar_dtype(call, i)), dtype);
  if (fault == NULL) return true;
  op_error(call, TORUS_STATUS_FAILED_PRECONDITION, "%s", fault);
  return false;
}

/* alpha * x, where argument i is alpha. */
static hlo_t scaled(torus_call_t *call, hlo_graph_t *g, int i, hlo_t x, torus_dtype_t dtype) {
  if (op_failed(call) || !alpha_fits(call, i, dtype)) return HLO_NONE;
  if (op_scalar_is(call, i, 1)) return x;
  return hlo_multiply(g, op_scalar(call, i, hlo_dtype(g, x)), x);
}

#define BINARY_ADD(ident, name, form)                                                              \
  TORUS_OP(ident, name, TORUS_OP_POINTWISE) {                                                      \
    operands_t o = read_promoted(call, form);                                                      \
    return_as(call, g, hlo_add(g, o.x, scaled(call, g, 2, o.y, o.dtype)), o.dtype);                \
  }
BINARY_ADD(add_tensor, "add.Tensor", BOTH_TENSORS)
BINARY_ADD(add_scalar, "add.Scalar", RIGHT_SCALAR)

#define BINARY_SUB(ident, name, form)                                                              \
  TORUS_OP(ident, name, TORUS_OP_POINTWISE) {                                                      \
    operands_t o = read_promoted(call, form);                                                      \
    return_as(call, g, hlo_subtract(g, o.x, scaled(call, g, 2, o.y, o.dtype)), o.dtype);           \
  }
BINARY_SUB(sub_tensor, "sub.Tensor", BOTH_TENSORS)
BINARY_SUB(sub_scalar, "sub.Scalar", RIGHT_SCALAR)

#define BINARY_RSUB(ident, name, form)                                                             \
  TORUS_OP(ident, name, TORUS_OP_POINTWISE) {                                                      \
    operands_t o = read_promoted(call, form);                                                      \
    return_as(call, g, hlo_subtract(g, o.y, scaled(call, g, 2, o.x, o.dtype)), o.dtype);           \
  }
BINARY_RSUB(rsub_tensor, "rsub.Tensor", BOTH_TENSORS)
BINARY_RSUB(rsub_scalar, "rsub.Scalar", RIGHT_SCALAR)

/* ---- promoted operands, result in their type ---- */

#define BINARY_PROMOTED(ident, name, form, fn)                                                     \
  TORUS_OP(ident, name, TORUS_OP_POINTWISE) {                                                      \
    operands_t o = read_promoted(call, form);                                                      \
    return_as(call, g, fn(g, o.x, o.y), o.dtype);                                                  \
  }
BINARY_PROMOTED(mul_tensor, "mul.Tensor", BOTH_TENSORS, hlo_multiply)
BINARY_PROMOTED(mul_scalar, "mul.Scalar", RIGHT_SCALAR, hlo_multiply)
BINARY_PROMOTED(maximum, "maximum", BOTH_TENSORS, hlo_maximum)
BINARY_PROMOTED(minimum, "minimum", BOTH_TENSORS, hlo_minimum)
BINARY_PROMOTED(fmax, "fmax", BOTH_TENSORS, math_fmax)
BINARY_PROMOTED(fmin, "fmin", BOTH_TENSORS, math_fmin)
BINARY_PROMOTED(gcd, "gcd", BOTH_TENSORS, math_gcd)
BINARY_PROMOTED(lcm, "lcm", BOTH_TENSORS, math_lcm)
BINARY_PROMOTED(heaviside, "heaviside", BOTH_TENSORS, math_heaviside)
BINARY_PROMOTED(hypot, "hypot", BOTH_TENSORS, math_hypot)
BINARY_PROMOTED(logaddexp2, "logaddexp2", BOTH_TENSORS, math_logaddexp2)

#define BINARY_BITS(ident, name, fn)                                                               \
  BINARY_PROMOTED(ident##_tensor, name ".Tensor", BOTH_TENSORS, fn)                                \
  BINARY_PROMOTED(ident##_scalar, name ".Scalar", RIGHT_SCALAR, fn)                                \
  BINARY_PROMOTED(ident##_scalar_tensor, name ".Scalar_Tensor", LEFT_SCALAR, fn)
BINARY_BITS(bitwise_and, "bitwise_and", hlo_and)
BINARY_BITS(bitwise_or, "bitwise_or", hlo_or)
BINARY_BITS(bitwise_xor, "bitwise_xor", hlo_xor)

/* Shifting by a negative number or by the width and more: StableHLO reads the count as unsigned and
 * gives 0 or the sign, which is what PyTorch does on CPU. */
#define BINARY_SHIFT(ident, name, fn)                                                              \
  BINARY_PROMOTED(ident##_tensor, name ".Tensor", BOTH_TENSORS, fn)                                \
  BINARY_PROMOTED(ident##_tensor_scalar, name ".Tensor_Scalar", RIGHT_SCALAR, fn)                  \
  BINARY_PROMOTED(ident##_scalar_tensor, name ".Scalar_Tensor", LEFT_SCALAR, fn)
BINARY_SHIFT(left_shift, "bitwise_left_shift", hlo_shift_left)
BINARY_SHIFT(right_shift, "bitwise_right_shift", math_shift_right)
BINARY_PROMOTED(lshift_tensor, "__lshift__.Tensor", BOTH_TENSORS, hlo_shift_left)
BINARY_PROMOTED(lshift_scalar, "__lshift__.Scalar", RIGHT_SCALAR, hlo_shift_left)
BINARY_PROMOTED(rshift_tensor, "__rshift__.Tensor", BOTH_TENSORS, math_shift_right)
BINARY_PROMOTED(rshift_scalar, "__rshift__.Scalar", RIGHT_SCALAR, math_shift_right)
/* These do not follow the naming of in-place operators, so they are entries of their own. */
BINARY_PROMOTED(ilshift_tensor, "__ilshift__.Tensor", BOTH_TENSORS, hlo_shift_left)
BINARY_PROMOTED(ilshift_scalar, "__ilshift__.Scalar", RIGHT_SCALAR, hlo_shift_left)
BINARY_PROMOTED(irshift_tensor, "__irshift__.Tensor", BOTH_TENSORS, math_shift_right)
BINARY_PROMOTED(irshift_scalar, "__irshift__.Scalar", RIGHT_SCALAR, math_shift_right)

/* The next number depends on the type: no wider one may stand in. */
TORUS_OP(nextafter, "nextafter", TORUS_OP_POINTWISE) {
  torus_dtype_t dtype = common_type(call);
  operands_t o = read_as(call, BOTH_TENSORS, dtype, dtype);
  op_return(call, 0, hlo_next_after(g, o.x, o.y));
}

TORUS_OP(logaddexp, "logaddexp", TORUS_OP_POINTWISE) {
  operands_t o = read_promoted(call, BOTH_TENSORS);
  return_as(call, g, math_logaddexp(g, o.x, o.y), o.dtype);
}

/* ---- float results ---- */

#define BINARY_FLOAT(ident, name, form, fn)                                                        \
  TORUS_OP(ident, name, TORUS_OP_POINTWISE) {                                                      \
    operands_t o = read_float(call, form);                                                         \
    return_as(call, g, fn(g, o.x, o.y), o.dtype);                                                  \
  }
BINARY_FLOAT(div_tensor, "div.Tensor", BOTH_TENSORS, hlo_divide)
BINARY_FLOAT(div_scalar, "div.Scalar", RIGHT_SCALAR, hlo_divide)
BINARY_FLOAT(atan2, "atan2", BOTH_TENSORS, hlo_atan2)
BINARY_FLOAT(copysign_tensor, "copysign.Tensor", BOTH_TENSORS, math_copysign)
BINARY_FLOAT(copysign_scalar, "copysign.Scalar", RIGHT_SCALAR, math_copysign)
BINARY_FLOAT(xlogy_tensor, "xlogy.Tensor", BOTH_TENSORS, math_xlogy)
BINARY_FLOAT(xlogy_self, "xlogy.Scalar_Self", LEFT_SCALAR, math_xlogy)
BINARY_FLOAT(xlogy_other, "xlogy.Scalar_Other", RIGHT_SCALAR, math_xlogy)
BINARY_FLOAT(xlog1py, "special_xlog1py", BOTH_TENSORS, math_xlog1py)
BINARY_FLOAT(xlog1py_self, "special_xlog1py.self_scalar", LEFT_SCALAR, math_xlog1py)
BINARY_FLOAT(xlog1py_other, "special_xlog1py.other_scalar", RIGHT_SCALAR, math_xlog1py)

/* The Hurwitz zeta function wants operands of one shape. */
static hlo_t zeta(hlo_graph_t *g, hlo_t x, hlo_t y) {
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, hlo_rank(g, x) > 0 ? x : y, dims);
  if (hlo_rank(g, x) == 0 && rank > 0) x = hlo_splat(g, x, rank, dims);
  if (hlo_rank(g, y) == 0 && rank > 0) y = hlo_splat(g, y, rank, dims);
  return math_zeta(g, x, y);
}
BINARY_FLOAT(zeta, "special_zeta", BOTH_TENSORS, zeta)
BINARY_FLOAT(zeta_self, "special_zeta.self_scalar", LEFT_SCALAR, zeta)
BINARY_FLOAT(zeta_other, "special_zeta.other_scalar", RIGHT_SCALAR, zeta)

/* ---- integer division ---- */

/* PyTorch on CPU refuses an integer division by zero. A number that is known here and not zero, as
 * in x // 2, needs no check in the program. Zeros become ones after the check: a plugin's compiler
 * may fold constants with the machine's own division, which traps. */
static hlo_t checked_divisor(torus_call_t *call, hlo_graph_t *g, hlo_t y) {
  if (!math_is_int(g, y) || op_double(call, 1) != 0) return y;
  hlo_t zeros = hlo_compare_f(g, HLO_EQ, y, 0);
  hlo_t any = hlo_rank(g, y) > 0 ? hlo_reduce_all(g, HLO_REDUCE_OR, zeros) : zeros;
  op_check(call, any, TORUS_STATUS_INVALID_ARGUMENT, "ZeroDivisionError");
  return hlo_select(g, zeros, hlo_const_int(g, hlo_dtype(g, y), 1), y);
}

static bool divides(torus_call_t *call, hlo_graph_t *g, operands_t *o) {
  if (op_failed(call)) return false;
  if (o->dtype == TORUS_DTYPE_BOOL || torus_dtype_is_complex(o->dtype)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "rounded division is not defined for %s",
             torus_dtype_name(o->dtype));
    return false;
  }
  o->y = checked_divisor(call, g, o->y);
  return true;
}

#define BINARY_DIVISION(ident, name, form, fn)                                                     \
  TORUS_OP(ident, name, TORUS_OP_POINTWISE) {                                                      \
    operands_t o = read_promoted(call, form);                                                      \
    if (divides(call, g, &o)) return_as(call, g, fn(g, o.x, o.y), o.dtype);                         \
  }
BINARY_DIVISION(floor_divide, "floor_divide", BOTH_TENSORS, math_div_floor)
BINARY_DIVISION(floor_divide_scalar, "floor_divide.Scalar", RIGHT_SCALAR, math_div_floor)
BINARY_DIVISION(remainder_tensor, "remainder.Tensor", BOTH_TENSORS, math_remainder)
BINARY_DIVISION(remainder_scalar, "remainder.Scalar", RIGHT_SCALAR, math_remainder)
BINARY_DIVISION(remainder_left, "remainder.Scalar_Tensor", LEFT_SCALAR, math_remainder)
BINARY_DIVISION(fmod_tensor, "fmod.Tensor", BOTH_TENSORS, hlo_remainder)
BINARY_DIVISION(fmod_scalar, "fmod.Scalar", RIGHT_SCALAR, hlo_remainder)

/* A quotient of bfloat16 or float16 is rounded to that type before its fraction is dropped, as CPU's
 * kernels do: 0.998 has become 1 by then. */
static hlo_t truncated_quotient(hlo_graph_t *g, const operands_t *o) {
  hlo_t quotient = hlo_convert(g, hlo_divide(g, o->x, o->y), o->dtype);
  return math_is_float(g, quotient) ? math_trunc(g, quotient) : quotient;
}

static void div_mode(torus_call_t *call, hlo_graph_t *g, form_t form) {
  const char *mode = op_string(call, 2);
  if (mode == NULL) {
    operands_t o = read_float(call, form);
    return_as(call, g, hlo_divide(g, o.x, o.y), o.dtype);
    return;
  }
  if (mode[0] != 'f' && mode[0] != 't') {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "unknown rounding mode '%s'", mode);
    return;
  }
  operands_t o = read_promoted(call, form);
  if (!divides(call, g, &o)) return;
  hlo_t whole = mode[0] == 'f' ? math_div_floor(g, o.x, o.y) : truncated_quotient(g, &o);
  return_as(call, g, whole, o.dtype);
}

TORUS_OP(div_tensor_mode, "div.Tensor_mode", TORUS_OP_POINTWISE) {
  div_mode(call, g, BOTH_TENSORS);
}

TORUS_OP(div_scalar_mode, "div.Scalar_mode", TORUS_OP_POINTWISE) {
  div_mode(call, g, RIGHT_SCALAR);
}

/* ---- powers ---- */

static bool has_power(torus_call_t *call, torus_dtype_t dtype) {
  if (op_failed(call)) return false;
  if (dtype == TORUS_DTYPE_BOOL) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "\"pow\" not implemented for 'Bool'");
    return false;
  }
  return true;
}

TORUS_OP(pow_tensors, "pow.Tensor_Tensor", TORUS_OP_POINTWISE) {
  operands_t o = read_promoted(call, BOTH_TENSORS);
  if (has_power(call, o.dtype)) return_as(call, g, hlo_power(g, o.x, o.y), o.dtype);
}

TORUS_OP(pow_scalar, "pow.Scalar", TORUS_OP_POINTWISE) {
  operands_t o = read_promoted(call, LEFT_SCALAR);
  if (has_power(call, o.dtype)) return_as(call, g, hlo_power(g, o.x, o.y), o.dtype);
}

TORUS_OP(pow_number, "pow.Tensor_Scalar", TORUS_OP_POINTWISE) {
  operands_t o = read_promoted(call, RIGHT_SCALAR);
  if (!has_power(call, o.dtype)) return;
  if (torus_dtype_is_complex(op_scalar_dtype(call, 1))) {
    return_as(call, g, hlo_power(g, o.x, o.y), o.dtype);
    return;
  }
  double exponent = op_double(call, 1);
  if (torus_dtype_is_integral(o.dtype) && exponent < 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "Integers to negative integer powers are not allowed.");
    return;
  }
  return_as(call, g, math_power_number(g, o.x, exponent, o.y), o.dtype);
}

/* ---- comparisons and logic ---- */

/* Compared in the common type itself: a number is rounded to it first, as on CPU. */
static void compare(torus_call_t *call, hlo_graph_t *g, form_t form, hlo_comparison_t how) {
  torus_dtype_t dtype = common_type(call);
  operands_t o = read_as(call, form, dtype, dtype);
  op_return(call, 0, hlo_compare(g, how, o.x, o.y));
}

#define BINARY_COMPARE(ident, how)                                                                 \
  TORUS_OP(ident##_tensor, #ident ".Tensor", TORUS_OP_POINTWISE) {                                 \
    compare(call, g, BOTH_TENSORS, how);                                                           \
  }                                                                                                \
  TORUS_OP(ident##_scalar, #ident ".Scalar", TORUS_OP_POINTWISE) {                                 \
    compare(call, g, RIGHT_SCALAR, how);                                                           \
  }
BINARY_COMPARE(eq, HLO_EQ)
BINARY_COMPARE(ne, HLO_NE)
BINARY_COMPARE(lt, HLO_LT)
BINARY_COMPARE(le, HLO_LE)
BINARY_COMPARE(gt, HLO_GT)
BINARY_COMPARE(ge, HLO_GE)

#define BINARY_LOGIC(ident, fn)                                                                    \
  TORUS_OP(ident, #ident, TORUS_OP_POINTWISE) {                                                    \
    operands_t o = read_as(call, BOTH_TENSORS, TORUS_DTYPE_BOOL, TORUS_DTYPE_BOOL);                \
    op_return(call, 0, fn(g, o.x, o.y));                                                           \
  }
BINARY_LOGIC(logical_and, hlo_and)
BINARY_LOGIC(logical_or, hlo_or)
BINARY_LOGIC(logical_xor, hlo_xor)
