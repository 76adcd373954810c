/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Numeric functions on nodes, shared by the pointwise, activation, foreach and optimizer families.
 *
 * They compute in the type they are given; math_unary and math_binary wrap them so that half types
 * are computed in float32 and rounded once. Two-operand functions take equal types and, like the
 * builder, broadcast nothing but a rank-0 operand. */
#ifndef TORUS_OPS_MATH_H_
#define TORUS_OPS_MATH_H_

#include "ops/op.h"

typedef hlo_t (*math_unary_fn)(hlo_graph_t *g, hlo_t x);
typedef hlo_t (*math_binary_fn)(hlo_graph_t *g, hlo_t x, hlo_t y);

/* ---- types ---- */

bool math_is_float(const hlo_graph_t *g, hlo_t x); /* real floats */
bool math_is_complex(const hlo_graph_t *g, hlo_t x);
bool math_is_int(const hlo_graph_t *g, hlo_t x); /* not bool */
bool math_is_bool(const hlo_graph_t *g, hlo_t x);
bool math_is_unsigned(const hlo_graph_t *g, hlo_t x);
/* Largest finite value of a real float type. */
double math_finite_max(torus_dtype_t dtype);

/* fn(x) in the accumulation type of x, rounded back to the type of x. */
hlo_t math_unary(hlo_graph_t *g, math_unary_fn fn, hlo_t x);
/* Broadcasts |count| nodes together in place; rank-0 nodes stay as they are. */
void math_broadcast(hlo_graph_t *g, hlo_t *xs, int count);
/* Sum or mean over everything; the mean of nothing is NaN. */
hlo_t math_sum(hlo_graph_t *g, hlo_t x);
hlo_t math_mean(hlo_graph_t *g, hlo_t x);
/* A size as a soft number, so that a new size needs no new program. */
hlo_t math_size(hlo_graph_t *g, torus_dtype_t dtype, int64_t size);

/* ---- tables ---- */

/* X(ATen name, function): result in the default float type for integers. */
#define MATH_FLOAT_LIST(X)                                                                         \
  X(acos, hlo_acos)                                                                                \
  X(acosh, hlo_acosh)                                                                              \
  X(asin, hlo_asin)                                                                                \
  X(asinh, hlo_asinh)                                                                              \
  X(atan, hlo_atan)                                                                                \
  X(atanh, hlo_atanh)                                                                              \
  X(cos, hlo_cosine)                                                                               \
  X(cosh, hlo_cosh)                                                                                \
  X(digamma, math_digamma)                                                                         \
  X(erf, hlo_erf)                                                                                  \
  X(erfc, hlo_erfc)                                                                                \
  X(erfinv, hlo_erf_inv)                                                                           \
  X(exp, hlo_exp)                                                                                  \
  X(exp2, math_exp2)                                                                               \
  X(expm1, hlo_expm1)                                                                              \
  X(i0, math_i0)                                                                                   \
  X(lgamma, hlo_lgamma)                                                                            \
  X(log, hlo_log)                                                                                  \
  X(log10, math_log10)                                                                             \
  X(log1p, hlo_log1p)                                                                              \
  X(log2, math_log2)                                                                               \
  X(reciprocal, math_reciprocal)                                                                   \
  X(rsqrt, hlo_rsqrt)                                                                              \
  X(sigmoid, math_sigmoid)                                                                         \
  X(sin, hlo_sine)                                                                                 \
  X(sinc, math_sinc)                                                                               \
  X(sinh, hlo_sinh)                                                                                \
  X(special_airy_ai, math_airy_ai)                                                                 \
  X(special_bessel_j0, math_j0)                                                                    \
  X(special_bessel_j1, math_j1)                                                                    \
  X(special_bessel_y0, math_y0)                                                                    \
  X(special_bessel_y1, math_y1)                                                                    \
  X(special_entr, math_entr)                                                                       \
  X(special_erfcx, math_erfcx)                                                                     \
  X(special_i0e, math_i0e)                                                                         \
  X(special_i1, math_i1)                                                                           \
  X(special_i1e, math_i1e)                                                                         \
  X(special_log_ndtr, math_log_ndtr)                                                               \
  X(special_modified_bessel_i0, math_i0)                                                           \
  X(special_modified_bessel_i1, math_i1)                                                           \
  X(special_modified_bessel_k0, math_k0)                                                           \
  X(special_modified_bessel_k1, math_k1)                                                           \
  X(special_ndtri, math_ndtri)                                                                     \
  X(special_scaled_modified_bessel_k0, math_k0e)                                                   \
  X(special_scaled_modified_bessel_k1, math_k1e)                                                   \
  X(special_spherical_bessel_j0, math_spherical_j0)                                                \
  X(sqrt, hlo_sqrt)                                                                                \
  X(tan, hlo_tan)                                                                                  \
  X(tanh, hlo_tanh)

/* X(ATen name, function): result in the operand's type. */
#define MATH_SAME_LIST(X)                                                                          \
  X(abs, math_abs)                                                                                 \
  X(bitwise_not, hlo_not)                                                                          \
  X(ceil, math_ceil)                                                                               \
  X(floor, math_floor)                                                                             \
  X(frac, math_frac)                                                                               \
  X(neg, hlo_negate)                                                                               \
  X(round, math_round)                                                                             \
  X(sgn, math_sgn)                                                                                 \
  X(sign, math_sign)                                                                               \
  X(trunc, math_trunc)                                                                             \
  X(_conj_physical, hlo_conj)

/* ---- one operand ---- */

hlo_t math_abs(hlo_graph_t *g, hlo_t x); /* complex: the magnitude, real */
hlo_t math_airy_ai(hlo_graph_t *g, hlo_t x);
hlo_t math_angle(hlo_graph_t *g, hlo_t x);
hlo_t math_ceil(hlo_graph_t *g, hlo_t x);
hlo_t math_digamma(hlo_graph_t *g, hlo_t x);
hlo_t math_entr(hlo_graph_t *g, hlo_t x);
hlo_t math_erfcx(hlo_graph_t *g, hlo_t x);
hlo_t math_exp2(hlo_graph_t *g, hlo_t x);
hlo_t math_floor(hlo_graph_t *g, hlo_t x);
hlo_t math_frac(hlo_graph_t *g, hlo_t x);
hlo_t math_i0(hlo_graph_t *g, hlo_t x);
hlo_t math_i0e(hlo_graph_t *g, hlo_t x);
hlo_t math_i1(hlo_graph_t *g, hlo_t x);
hlo_t math_i1e(hlo_graph_t *g, hlo_t x);
hlo_t math_j0(hlo_graph_t *g, hlo_t x);
hlo_t math_j1(hlo_graph_t *g, hlo_t x);
hlo_t math_k0(hlo_graph_t *g, hlo_t x);
hlo_t math_k0e(hlo_graph_t *g, hlo_t x);
hlo_t math_k1(hlo_graph_t *g, hlo_t x);
hlo_t math_k1e(hlo_graph_t *g, hlo_t x);
hlo_t math_log_ndtr(hlo_graph_t *g, hlo_t x);
hlo_t math_log10(hlo_graph_t *g, hlo_t x);
hlo_t math_log2(hlo_graph_t *g, hlo_t x);
hlo_t math_ndtri(hlo_graph_t *g, hlo_t x);
hlo_t math_reciprocal(hlo_graph_t *g, hlo_t x);
hlo_t math_relu(hlo_graph_t *g, hlo_t x);
hlo_t math_round(hlo_graph_t *g, hlo_t x); /* halves to even */
hlo_t math_sgn(hlo_graph_t *g, hlo_t x);
hlo_t math_sigmoid(hlo_graph_t *g, hlo_t x);
hlo_t math_sign(hlo_graph_t *g, hlo_t x);
hlo_t math_signbit(hlo_graph_t *g, hlo_t x);
hlo_t math_sinc(hlo_graph_t *g, hlo_t x);
hlo_t math_spherical_j0(hlo_graph_t *g, hlo_t x);
hlo_t math_square(hlo_graph_t *g, hlo_t x);
hlo_t math_trunc(hlo_graph_t *g, hlo_t x);
hlo_t math_y0(hlo_graph_t *g, hlo_t x);
hlo_t math_y1(hlo_graph_t *g, hlo_t x);

/* ---- two operands ---- */

hlo_t math_copysign(hlo_graph_t *g, hlo_t x, hlo_t y);
hlo_t math_div_floor(hlo_graph_t *g, hlo_t x, hlo_t y);
hlo_t math_fmax(hlo_graph_t *g, hlo_t x, hlo_t y);
hlo_t math_fmin(hlo_graph_t *g, hlo_t x, hlo_t y);
hlo_t math_gcd(hlo_graph_t *g, hlo_t x, hlo_t y);
hlo_t math_heaviside(hlo_graph_t *g, hlo_t x, hlo_t y);
hlo_t math_hypot(hlo_graph_t *g, hlo_t x, hlo_t y);
hlo_t math_lcm(hlo_graph_t *g, hlo_t x, hlo_t y);
hlo_t math_logaddexp(hlo_graph_t *g, hlo_t x, hlo_t y);
hlo_t math_logaddexp2(hlo_graph_t *g, hlo_t x, hlo_t y);
/* The remainder with the sign of the divisor, as Python's %. */
hlo_t math_remainder(hlo_graph_t *g, hlo_t x, hlo_t y);
hlo_t math_shift_right(hlo_graph_t *g, hlo_t x, hlo_t y);
hlo_t math_xlogy(hlo_graph_t *g, hlo_t x, hlo_t y);
hlo_t math_xlog1py(hlo_graph_t *g, hlo_t x, hlo_t y);

/* ---- more ---- */

/* x to the power |exponent|; |soft| is that number as a node of the type of x. Frequent exponents
 * become products and roots, as on CPU. */
hlo_t math_power_number(hlo_graph_t *g, hlo_t x, double exponent, hlo_t soft);
/* Both ends are met exactly: the formula counts from the nearer one. */
hlo_t math_lerp(hlo_graph_t *g, hlo_t start, hlo_t end, hlo_t weight);
/* coefficients[0] x^(count - 1) + ... + coefficients[count - 1]. */
hlo_t math_polynomial(hlo_graph_t *g, hlo_t x, const double *coefficients, size_t count);
/* Hurwitz' zeta function of two nodes of one shape. */
hlo_t math_zeta(hlo_graph_t *g, hlo_t x, hlo_t q);
/* Derivative |order| of digamma. */
hlo_t math_polygamma(hlo_graph_t *g, int64_t order, hlo_t x);
/* sum of coefficients[i] * T_i-like terms by Clenshaw's recurrence, as cephes' chbevl. */
hlo_t math_chebyshev(hlo_graph_t *g, hlo_t x, const double *coefficients, int count);

#endif /* TORUS_OPS_MATH_H_ */
