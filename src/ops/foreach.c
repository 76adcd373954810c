/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The _foreach_* operators: one call for a list of tensors, element by element.
 *
 * They have decompositions of their own into single operators; lowering them whole makes one entry
 * of the dispatcher out of hundreds in an optimizer step. */
#include <math.h>

#include "ops/math.h"

/* Where the right operand of element k comes from. */
typedef enum {
  FROM_LIST,    /* Tensor[]: element k */
  FROM_SCALAR,  /* Scalar: the same for all */
  FROM_SCALARS, /* Scalar[]: number k */
  FROM_TENSOR,  /* Tensor: one 0-dim tensor for all */
} source_t;

/* An operand of all elements, and the number of a list made last. */
typedef struct operand {
  source_t source;
  int argument;
  hlo_t node;
  torus_dtype_t dtype;
  torus_number_t number;
} operand_t;

static operand_t operand(source_t source, int argument) {
  return (operand_t){source, argument, HLO_NONE, TORUS_DTYPE_INVALID, {0}};
}

/* Number |k| of a list argument; 0 behind its end, where the lengths do not match. */
static torus_number_t number_at(const torus_call_t *call, int i, int k) {
  int count;
  const torus_number_t *numbers = op_numbers(call, i, &count);
  return k < count ? numbers[k] : (torus_number_t){.kind = TORUS_NUMBER_INT};
}

/* ---- types ---- */

/* bool, integer, float, complex: what promotion between dimensioned and 0-dim operands looks at. */
static int category(torus_dtype_t dtype) {
  torus_kind_t kind = torus_dtype_kind(dtype);
  return kind == TORUS_KIND_BOOL ? 0 : kind <= TORUS_KIND_INT ? 1 : (int)kind - 1;
}

/* torch.result_type of two tensors, the second of which counts less when |is_weak|. */
static torus_dtype_t promote(torus_dtype_t x, torus_dtype_t y, bool is_weak) {
  if (is_weak && category(y) <= category(x)) return x;
  return torus_dtype_promote(x, y);
}

/* Result type of x with a number of the category of |number|. */
static torus_dtype_t promote_number(torus_call_t *call, torus_dtype_t x, torus_dtype_t number) {
  if (category(number) <= category(x)) return x;
  if (torus_dtype_is_float(number)) return op_default_dtype(call);
  if (!torus_dtype_is_complex(number)) return number;
  return torus_dtype_complex(torus_dtype_is_float(x) ? x : op_default_dtype(call));
}

static torus_dtype_t element_type(torus_call_t *call, hlo_graph_t *g, const operand_t *from, int k,
                                  hlo_t x) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  int i = from->argument;
  switch (from->source) {
  case FROM_LIST: {
    hlo_t y = op_list_tensor(call, i, k);
    if (hlo_rank(g, x) == 0 && hlo_rank(g, y) > 0) return promote(hlo_dtype(g, y), dtype, true);
    return promote(dtype, hlo_dtype(g, y), hlo_rank(g, y) == 0 && hlo_rank(g, x) > 0);
  }
  case FROM_SCALAR: return promote_number(call, dtype, op_scalar_dtype(call, i));
  case FROM_SCALARS: {
    torus_number_t number = number_at(call, i, k);
    return promote_number(call, dtype, op_number_dtype(&number));
  }
  default: return promote(dtype, op_tensor_dtype(call, i), hlo_rank(g, x) > 0);
  }
}

/* ---- operands ---- */

static bool is_same_number(torus_number_t x, torus_number_t y) {
  return x.kind == y.kind && x.i == y.i && x.re == y.re && x.im == y.im;
}

/* Number |k|. Equal neighbours share a node: optimizers pass one step size for hundreds of tensors,
 * which should become one run-time argument, not hundreds. */
static hlo_t number_node(torus_call_t *call, operand_t *from, int k, torus_dtype_t dtype) {
  torus_number_t number = {0};
  if (from->source == FROM_SCALARS) number = number_at(call, from->argument, k);
  bool is_known = from->node != HLO_NONE && from->dtype == dtype;
  if (is_known && is_same_number(from->number, number)) return from->node;
  from->dtype = dtype;
  from->number = number;
  from->node = from->source == FROM_SCALARS ? op_number(call, &number, dtype)
                                            : op_scalar(call, from->argument, dtype);
  return from->node;
}

static hlo_t element(torus_call_t *call, hlo_graph_t *g, operand_t *from, int k,
                     torus_dtype_t dtype) {
  switch (from->source) {
  case FROM_LIST: return hlo_convert(g, op_list_tensor(call, from->argument, k), dtype);
  case FROM_TENSOR: return op_tensor_as(call, from->argument, dtype);
  default: return number_node(call, from, k, dtype);
  }
}

/* Lists go together only when they are equally long. */
static bool is_matched(torus_call_t *call, const operand_t *from) {
  int count = op_list_size(call, 0), other = count;
  if (from->source == FROM_LIST) other = op_list_size(call, from->argument);
  if (from->source == FROM_SCALARS) op_numbers(call, from->argument, &other);
  if (count == other) return true;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
           "Tensor lists must have the same number of tensors, got %d and %d", count, other);
  return false;
}

static void return_element(torus_call_t *call, hlo_graph_t *g, int k, hlo_t x,
                           torus_dtype_t dtype) {
  op_return(call, k, hlo_convert(g, x, dtype));
}

/* ---- one operand ---- */

static void foreach_float(torus_call_t *call, hlo_graph_t *g, math_unary_fn fn) {
  for (int k = 0; k < op_list_size(call, 0); k++) {
    hlo_t x = op_list_tensor(call, 0, k);
    x = hlo_convert(g, x, op_float_type(call, hlo_dtype(g, x)));
    op_return(call, k, math_unary(g, fn, x));
  }
}

static void foreach_same(torus_call_t *call, hlo_graph_t *g, math_unary_fn fn) {
  for (int k = 0; k < op_list_size(call, 0); k++) {
    op_return(call, k, math_unary(g, fn, op_list_tensor(call, 0, k)));
  }
}

#define FOREACH_FLOAT(name, fn)                                                                    \
  TORUS_OP(foreach_##name, "_foreach_" #name, 0) {                                                 \
    foreach_float(call, g, fn);                                                                    \
  }
FOREACH_FLOAT(acos, hlo_acos)
FOREACH_FLOAT(asin, hlo_asin)
FOREACH_FLOAT(atan, hlo_atan)
FOREACH_FLOAT(cos, hlo_cosine)
FOREACH_FLOAT(cosh, hlo_cosh)
FOREACH_FLOAT(erf, hlo_erf)
FOREACH_FLOAT(erfc, hlo_erfc)
FOREACH_FLOAT(exp, hlo_exp)
FOREACH_FLOAT(expm1, hlo_expm1)
FOREACH_FLOAT(lgamma, hlo_lgamma)
FOREACH_FLOAT(log, hlo_log)
FOREACH_FLOAT(log10, math_log10)
FOREACH_FLOAT(log1p, hlo_log1p)
FOREACH_FLOAT(log2, math_log2)
FOREACH_FLOAT(reciprocal, math_reciprocal)
FOREACH_FLOAT(rsqrt, hlo_rsqrt)
FOREACH_FLOAT(sigmoid, math_sigmoid)
FOREACH_FLOAT(sin, hlo_sine)
FOREACH_FLOAT(sinh, hlo_sinh)
FOREACH_FLOAT(sqrt, hlo_sqrt)
FOREACH_FLOAT(tan, hlo_tan)
FOREACH_FLOAT(tanh, hlo_tanh)

static hlo_t zero_of(hlo_graph_t *g, hlo_t x) {
  return hlo_full_like(g, x, TORUS_DTYPE_INVALID, 0);
}

static hlo_t copy_of(hlo_graph_t *g __attribute__((unused)), hlo_t x) {
  return x;
}

#define FOREACH_SAME(name, fn)                                                                     \
  TORUS_OP(foreach_##name, "_foreach_" #name, 0) {                                                 \
    foreach_same(call, g, fn);                                                                     \
  }
FOREACH_SAME(abs, math_abs)
FOREACH_SAME(ceil, math_ceil)
FOREACH_SAME(clone, copy_of)
FOREACH_SAME(floor, math_floor)
FOREACH_SAME(frac, math_frac)
FOREACH_SAME(neg, hlo_negate)
FOREACH_SAME(round, math_round)
FOREACH_SAME(sign, math_sign)
FOREACH_SAME(trunc, math_trunc)
FOREACH_SAME(zero, zero_of)

/* ---- two operands ---- */

/* The type of the number of element |k|; INVALID where the operand is none. */
static torus_dtype_t number_type(const torus_call_t *call, const operand_t *from, int k) {
  if (from->source == FROM_SCALAR) return op_scalar_dtype(call, from->argument);
  if (from->source != FROM_SCALARS) return TORUS_DTYPE_INVALID;
  torus_number_t number = number_at(call, from->argument, k);
  return op_number_dtype(&number);
}

/* Real tensors have no complex factors. */
static bool number_fits(torus_call_t *call, const operand_t *from, int k, torus_dtype_t dtype) {
  if (number_type(call, from, k) != TORUS_DTYPE_C128 || torus_dtype_is_complex(dtype)) return true;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "a complex number with %s",
           torus_dtype_name(dtype));
  return false;
}

typedef struct binary {
  math_binary_fn fn;
  bool as_float; /* integers are divided as floats */
  int alpha;     /* argument that scales the right operand; 0: none */
} binary_t;

static hlo_t scale_by_alpha(torus_call_t *call, hlo_graph_t *g, int i, hlo_t y) {
  if (i == 0 || op_scalar_is(call, i, 1)) return y;
  return hlo_multiply(g, op_scalar(call, i, hlo_dtype(g, y)), y);
}

static void foreach_binary(torus_call_t *call, hlo_graph_t *g, source_t source, binary_t how) {
  operand_t right = operand(source, 1);
  if (!is_matched(call, &right)) return;
  for (int k = 0; k < op_list_size(call, 0) && !op_failed(call); k++) {
    hlo_t pair[2] = {op_list_tensor(call, 0, k), HLO_NONE};
    torus_dtype_t dtype = element_type(call, g, &right, k, pair[0]);
    bool has_bool = math_is_bool(g, pair[0]) || number_type(call, &right, k) == TORUS_DTYPE_BOOL;
    if (how.fn == hlo_subtract && has_bool) {
      op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "Subtraction with a bool is not supported.");
      return;
    }
    if (how.as_float) dtype = op_float_type(call, dtype);
    torus_dtype_t wide = op_accumulate_type(dtype);
    pair[0] = hlo_convert(g, pair[0], wide);
    pair[1] = scale_by_alpha(call, g, how.alpha, element(call, g, &right, k, wide));
    math_broadcast(g, pair, 2);
    return_element(call, g, k, how.fn(g, pair[0], pair[1]), dtype);
  }
}

#define FOREACH_BINARY(name, fn, as_float, list_alpha)                                             \
  TORUS_OP(foreach_##name##_scalar, "_foreach_" #name ".Scalar", 0) {                              \
    foreach_binary(call, g, FROM_SCALAR, (binary_t){fn, as_float, 0});                             \
  }                                                                                                \
  TORUS_OP(foreach_##name##_list, "_foreach_" #name ".List", 0) {                                  \
    foreach_binary(call, g, FROM_LIST, (binary_t){fn, as_float, list_alpha});                      \
  }                                                                                                \
  TORUS_OP(foreach_##name##_scalars, "_foreach_" #name ".ScalarList", 0) {                         \
    foreach_binary(call, g, FROM_SCALARS, (binary_t){fn, as_float, 0});                            \
  }
FOREACH_BINARY(add, hlo_add, false, 2)
FOREACH_BINARY(sub, hlo_subtract, false, 2)
FOREACH_BINARY(mul, hlo_multiply, false, 0)
FOREACH_BINARY(div, hlo_divide, true, 0)
FOREACH_BINARY(clamp_max, hlo_minimum, false, 0)
FOREACH_BINARY(clamp_min, hlo_maximum, false, 0)
FOREACH_BINARY(maximum, hlo_maximum, false, 0)
FOREACH_BINARY(minimum, hlo_minimum, false, 0)

TORUS_OP(foreach_add_tensor, "_foreach_add.Tensor", 0) {
  foreach_binary(call, g, FROM_TENSOR, (binary_t){hlo_add, false, 2});
}

TORUS_OP(foreach_mul_tensor, "_foreach_mul.Tensor", 0) {
  foreach_binary(call, g, FROM_TENSOR, (binary_t){hlo_multiply, false, 0});
}

TORUS_OP(foreach_div_tensor, "_foreach_div.Tensor", 0) {
  foreach_binary(call, g, FROM_TENSOR, (binary_t){hlo_divide, true, 0});
}

/* ---- powers ---- */

TORUS_OP(foreach_pow_list, "_foreach_pow.List", 0) {
  foreach_binary(call, g, FROM_LIST, (binary_t){hlo_power, false, 0});
}

/* The exponent of element |k| as a double in |re|. */
static torus_number_t exponent_at(const torus_call_t *call, source_t source, int k) {
  torus_number_t number = {.kind = TORUS_NUMBER_DOUBLE};
  if (source == FROM_SCALARS) number = number_at(call, 1, k);
  else if (torus_dtype_is_complex(op_scalar_dtype(call, 1))) number.kind = TORUS_NUMBER_COMPLEX;
  else number.re = op_double(call, 1);
  if (number.kind <= TORUS_NUMBER_INT) number.re = (double)number.i;
  return number;
}

static void foreach_power(torus_call_t *call, hlo_graph_t *g, source_t source) {
  operand_t exponents = operand(source, 1);
  if (!is_matched(call, &exponents)) return;
  for (int k = 0; k < op_list_size(call, 0) && !op_failed(call); k++) {
    hlo_t x = op_list_tensor(call, 0, k);
    torus_dtype_t dtype = element_type(call, g, &exponents, k, x);
    torus_dtype_t wide = op_accumulate_type(dtype);
    torus_number_t exponent = exponent_at(call, source, k);
    if (exponent.kind == TORUS_NUMBER_COMPLEX) {
      op_fallback(call, "a complex exponent");
      return;
    }
    if (torus_dtype_is_integral(dtype) && exponent.re < 0) {
      op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
               "Integers to negative integer powers are not allowed.");
      return;
    }
    hlo_t soft = element(call, g, &exponents, k, wide);
    x = hlo_convert(g, x, wide);
    return_element(call, g, k, math_power_number(g, x, exponent.re, soft), dtype);
  }
}

TORUS_OP(foreach_pow_scalar, "_foreach_pow.Scalar", 0) {
  foreach_power(call, g, FROM_SCALAR);
}

TORUS_OP(foreach_pow_scalars, "_foreach_pow.ScalarList", 0) {
  foreach_power(call, g, FROM_SCALARS);
}

TORUS_OP(foreach_pow_number_and_list, "_foreach_pow.ScalarAndTensor", 0) {
  for (int k = 0; k < op_list_size(call, 1); k++) {
    hlo_t y = op_list_tensor(call, 1, k);
    torus_dtype_t dtype = promote_number(call, hlo_dtype(g, y), op_scalar_dtype(call, 0));
    torus_dtype_t wide = op_accumulate_type(dtype);
    hlo_t x = op_scalar(call, 0, wide);
    return_element(call, g, k, hlo_power(g, x, hlo_convert(g, y, wide)), dtype);
  }
}

/* ---- three operands ---- */

/* self + value * tensor1 (times or over) tensor2, |value| from argument 3. */
static void foreach_add_combined(torus_call_t *call, hlo_graph_t *g, source_t source,
                                 math_binary_fn combine) {
  operand_t ops[3] = {operand(FROM_LIST, 1), operand(FROM_LIST, 2), operand(source, 3)};
  for (int i = 0; i < 3; i++) {
    if (!is_matched(call, &ops[i])) return;
  }
  for (int k = 0; k < op_list_size(call, 0) && !op_failed(call); k++) {
    hlo_t xs[3] = {op_list_tensor(call, 0, k), HLO_NONE, HLO_NONE};
    torus_dtype_t dtype = element_type(call, g, &ops[0], k, xs[0]);
    dtype = promote(dtype, op_list_dtype(call, 2, k), false);
    if (!number_fits(call, &ops[2], k, dtype)) return;
    if (combine == hlo_divide && torus_dtype_is_integral(dtype)) {
      op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "addcdiv of integers is not supported.");
      return;
    }
    torus_dtype_t wide = op_accumulate_type(dtype);
    xs[0] = hlo_convert(g, xs[0], wide);
    for (int i = 1; i <= 2; i++)
      xs[i] = element(call, g, &ops[i - 1], k, wide);
    math_broadcast(g, xs, 3);
    hlo_t term = hlo_multiply(g, element(call, g, &ops[2], k, wide), xs[1]);
    return_element(call, g, k, hlo_add(g, xs[0], combine(g, term, xs[2])), dtype);
  }
}

#define FOREACH_COMBINED(name, combine)                                                            \
  TORUS_OP(foreach_##name##_scalar, "_foreach_" #name ".Scalar", 0) {                              \
    foreach_add_combined(call, g, FROM_SCALAR, combine);                                           \
  }                                                                                                \
  TORUS_OP(foreach_##name##_scalars, "_foreach_" #name ".ScalarList", 0) {                         \
    foreach_add_combined(call, g, FROM_SCALARS, combine);                                          \
  }
FOREACH_COMBINED(addcmul, hlo_multiply)
FOREACH_COMBINED(addcdiv, hlo_divide)

static void foreach_lerp(torus_call_t *call, hlo_graph_t *g, source_t source) {
  operand_t start = operand(FROM_LIST, 0), end = operand(FROM_LIST, 1), weight = operand(source, 2);
  if (!is_matched(call, &end) || !is_matched(call, &weight)) return;
  for (int k = 0; k < op_list_size(call, 0) && !op_failed(call); k++) {
    torus_dtype_t dtype = op_list_dtype(call, 0, k), wide = op_accumulate_type(dtype);
    if (torus_dtype_is_integral(dtype) || op_list_dtype(call, 1, k) != dtype) {
      op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "lerp of %s", torus_dtype_name(dtype));
      return;
    }
    if (!number_fits(call, &weight, k, dtype)) return;
    hlo_t xs[3] = {element(call, g, &start, k, wide), element(call, g, &end, k, wide),
                   element(call, g, &weight, k, wide)};
    math_broadcast(g, xs, 3);
    return_element(call, g, k, math_lerp(g, xs[0], xs[1], xs[2]), dtype);
  }
}

TORUS_OP(foreach_lerp_list, "_foreach_lerp.List", 0) {
  foreach_lerp(call, g, FROM_LIST);
}
TORUS_OP(foreach_lerp_scalar, "_foreach_lerp.Scalar", 0) {
  foreach_lerp(call, g, FROM_SCALAR);
}
TORUS_OP(foreach_lerp_scalars, "_foreach_lerp.ScalarList", 0) {
  foreach_lerp(call, g, FROM_SCALARS);
}

/* ---- reductions ---- */

/* Sum of |x|^order. */
static hlo_t power_sum(hlo_graph_t *g, hlo_t size, double order, hlo_t soft) {
  if (order == 0) {
    hlo_t counts = hlo_compare_f(g, HLO_NE, size, 0);
    return math_sum(g, hlo_convert(g, counts, hlo_dtype(g, size)));
  }
  return math_sum(g, math_power_number(g, size, order, soft));
}

/* Vector norm of all elements of |size|, which are not negative. */
static hlo_t norm(hlo_graph_t *g, hlo_t size, double order, hlo_t soft) {
  if (isinf(order) && hlo_numel(g, size) == 0) {
    return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT,
                    "_foreach_norm cannot compute the infinity norm on an empty tensor because the "
                    "operation does not have an identity");
  }
  if (isinf(order)) {
    return hlo_reduce_all(g, order > 0 ? HLO_REDUCE_MAXIMUM : HLO_REDUCE_MINIMUM, size);
  }
  hlo_t sum = power_sum(g, size, order, soft);
  if (order == 0 || order == 1) return sum;
  if (order == 2) return hlo_sqrt(g, sum);
  return hlo_power(g, sum, math_reciprocal(g, soft));
}

typedef hlo_t (*norm_fn)(hlo_graph_t *g, hlo_t size, double order, hlo_t soft);

static void foreach_norm(torus_call_t *call, hlo_graph_t *g, norm_fn fn) {
  double order = op_double(call, 1);
  for (int k = 0; k < op_list_size(call, 0); k++) {
    hlo_t x = op_list_tensor(call, 0, k);
    if (torus_dtype_is_integral(hlo_dtype(g, x))) {
      op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
               "linalg.vector_norm: Expected a floating point or complex tensor as input");
      return;
    }
    torus_dtype_t dtype = op_dtype_or(call, 2, hlo_dtype(g, x));
    x = hlo_abs(g, hlo_convert(g, x, op_accumulate_type(dtype)));
    hlo_t soft = hlo_soft(g, hlo_dtype(g, x), order);
    return_element(call, g, k, fn(g, x, order, soft), torus_dtype_real(dtype));
  }
}

TORUS_OP(foreach_norm, "_foreach_norm.Scalar", 0) {
  foreach_norm(call, g, norm);
}
TORUS_OP(foreach_powsum, "_foreach_powsum.Scalar", 0) {
  foreach_norm(call, g, power_sum);
}

TORUS_OP(foreach_max, "_foreach_max", 0) {
  for (int k = 0; k < op_list_size(call, 0); k++) {
    hlo_t x = op_list_tensor(call, 0, k);
    if (hlo_numel(g, x) == 0) {
      op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
               "max(): Expected reduction dim to be specified "
               "for input.numel() == 0.");
      return;
    }
    op_return(call, k, hlo_reduce_all(g, HLO_REDUCE_MAXIMUM, x));
  }
}
