/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Modified Bessel functions by Chebyshev series, after S. L. Moshier's Cephes Mathematical Library
 * (i0.c, k0.c, k1.c): one series near 0, one in 1/x beyond. */
#include <math.h>

#include "ops/math.h"

static const double i0e_near[] = {
    -4.41534164647933937950E-18, 3.33079451882223809783E-17,  -2.43127984654795469359E-16,
    1.71539128555513303061E-15,  -1.16853328779934516808E-14, 7.67618549860493561688E-14,
    -4.85644678311192946090E-13, 2.95505266312963983461E-12,  -1.72682629144155570723E-11,
    9.67580903537323691224E-11,  -5.18979560163526290666E-10, 2.65982372468238665035E-9,
    -1.30002500998624804212E-8,  6.04699502254191894932E-8,   -2.67079385394061173391E-7,
    1.11738753912010371815E-6,   -4.41673835845875056359E-6,  1.64484480707288970893E-5,
    -5.75419501008210370398E-5,  1.88502885095841655729E-4,   -5.76375574538582365885E-4,
    1.63947561694133579842E-3,   -4.32430999505057594430E-3,  1.05464603945949983183E-2,
    -2.37374148058994688156E-2,  4.93052842396707084878E-2,   -9.49010970480476444210E-2,
    1.71620901522208775349E-1,   -3.04682672343198398683E-1,  6.76795274409476084995E-1};

static const double i0e_far[] = {
    -7.23318048787475395456E-18, -4.83050448594418207126E-18, 4.46562142029675999901E-17,
    3.46122286769746109310E-17,  -2.82762398051658348494E-16, -3.42548561967721913462E-16,
    1.77256013305652638360E-15,  3.81168066935262242075E-15,  -9.55484669882830764870E-15,
    -4.15056934728722208663E-14, 1.54008621752140982691E-14,  3.85277838274214270114E-13,
    7.18012445138366623367E-13,  -1.79417853150680611778E-12, -1.32158118404477131188E-11,
    -3.14991652796324136454E-11, 1.18891471078464383424E-11,  4.94060238822496958910E-10,
    3.39623202570838634515E-9,   2.26666899049817806459E-8,   2.04891858946906374183E-7,
    2.89137052083475648297E-6,   6.88975834691682398426E-5,   3.36911647825569408990E-3,
    8.04490411014108831608E-1};

hlo_t math_chebyshev(hlo_graph_t *g, hlo_t x, const double *coefficients, int count) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t current = hlo_const(g, dtype, coefficients[0]);
  hlo_t last = hlo_const(g, dtype, 0), before = last;
  for (int i = 1; i < count; i++) {
    before = last;
    last = current;
    current = hlo_subtract(g, hlo_multiply(g, x, last), before);
    current = hlo_add_f(g, current, coefficients[i]);
  }
  return hlo_multiply_f(g, hlo_subtract(g, current, before), 0.5);
}

hlo_t math_i0e(hlo_graph_t *g, hlo_t x) {
  enum { NEAR = sizeof i0e_near / sizeof *i0e_near, FAR = sizeof i0e_far / sizeof *i0e_far };
  /* Terms below float32's resolution are left out for it. */
  int near_skip = hlo_dtype(g, x) == TORUS_DTYPE_F64 ? 0 : 12;
  int far_skip = hlo_dtype(g, x) == TORUS_DTYPE_F64 ? 0 : 18;
  hlo_t size = hlo_abs(g, x);
  hlo_t near_arg = hlo_add_f(g, hlo_multiply_f(g, size, 0.5), -2);
  hlo_t far_arg = hlo_divide(g, hlo_const(g, hlo_dtype(g, x), 32), size);
  far_arg = hlo_add_f(g, far_arg, -2);
  hlo_t near = math_chebyshev(g, near_arg, i0e_near + near_skip, NEAR - near_skip);
  hlo_t far = math_chebyshev(g, far_arg, i0e_far + far_skip, FAR - far_skip);
  far = hlo_divide(g, far, hlo_sqrt(g, size));
  return hlo_select(g, hlo_compare_f(g, HLO_LE, size, 8), near, far);
}

static hlo_t unscale(hlo_graph_t *g, hlo_t scaled, hlo_t x) {
  return hlo_multiply(g, hlo_exp(g, hlo_abs(g, x)), scaled);
}

hlo_t math_i0(hlo_graph_t *g, hlo_t x) {
  return unscale(g, math_i0e(g, x), x);
}

hlo_t math_i1e(hlo_graph_t *g, hlo_t x) {
  return hlo_bessel_i1e(g, x);
}

hlo_t math_i1(hlo_graph_t *g, hlo_t x) {
  return unscale(g, math_i1e(g, x), x);
}

/* ---- the second kind ---- */

static const double k0e_near[] = {
    1.374465435613523e-16,  4.25981614279661e-14,  1.0349695257633842e-11, 1.904516377220209e-09,
    2.5347910790261494e-07, 2.286212103119452e-05, 0.001264615411446926,   0.0359799365153615,
    0.3442898999246285,     -0.5353273932339028};
static const double k0e_far[] = {
    5.300433772686263e-18,   -1.6475804301524212e-17, 5.2103915050390274e-17,
    -1.678231096805412e-16,  5.512055978524319e-16,   -1.848593377343779e-15,
    6.3400764774050706e-15,  -2.2275133269916698e-14, 8.032890775363575e-14,
    -2.9800969231727303e-13, 1.140340588208475e-12,   -4.514597883373944e-12,
    1.8559491149547177e-11,  -7.957489244477107e-11,  3.577397281400301e-10,
    -1.69753450938906e-09,   8.574034017414225e-09,   -4.660489897687948e-08,
    2.766813639445015e-07,   -1.8317555227191195e-06, 1.39498137188765e-05,
    -0.00012849549581627802, 0.0015698838857300533,   -0.0314481013119645,
    2.4403030820659555};
static const double k1e_near[] = {
    -7.023863479386288e-18,  -2.427449850519366e-15, -6.666901694199329e-13,
    -1.4114883926335278e-10, -2.213387630734726e-08, -2.4334061415659684e-06,
    -0.0001730288957513052,  -0.006975723859639864,  -0.12261118082265715,
    -0.3531559607765449,     1.5253002273389478};
static const double k1e_far[] = {
    -5.756744483665017e-18,  1.7940508731475592e-17,  -5.689462558442859e-17,
    1.838093544366639e-16,   -6.057047248373319e-16,  2.038703165624334e-15,
    -7.019837090418314e-15,  2.4771544244813043e-14,  -8.976705182324994e-14,
    3.3484196660784293e-13,  -1.2891739609510289e-12, 5.13963967348173e-12,
    -2.1299678384275683e-11, 9.218315187605006e-11,   -4.1903547593418965e-10,
    2.015049755197033e-09,   -1.0345762465678097e-08, 5.7410841254500495e-08,
    -3.5019606030878126e-07, 2.406484947837217e-06,   -1.936197974166083e-05,
    0.00019521551847135162,  -0.002857816859622779,   0.10392373657681724,
    2.7206261904844427};

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* The series in 1/x: e^x K(x) for x above 2. */
static hlo_t far_k(hlo_graph_t *g, hlo_t x, const double *coefficients, int count) {
  hlo_t z = hlo_add_f(g, hlo_divide(g, hlo_const(g, hlo_dtype(g, x), 8), x), -2);
  return hlo_divide(g, math_chebyshev(g, z, coefficients, count), hlo_sqrt(g, x));
}

/* Infinite at 0, undefined below. |near| is K(x) up to 2, |far| e^x K(x) beyond. */
static hlo_t join_k(hlo_graph_t *g, hlo_t x, hlo_t near, hlo_t far, bool is_scaled) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  if (is_scaled) near = hlo_multiply(g, near, hlo_exp(g, x));
  if (!is_scaled) far = hlo_multiply(g, far, hlo_exp(g, hlo_negate(g, x)));
  hlo_t y = hlo_select(g, hlo_compare_f(g, HLO_LE, x, 2), near, far);
  y = hlo_select(g, hlo_compare_f(g, HLO_EQ, x, 0), hlo_highest(g, dtype), y);
  return hlo_select(g, hlo_compare_f(g, HLO_LT, x, 0), hlo_const(g, dtype, (double)NAN), y);
}

static hlo_t k0(hlo_graph_t *g, hlo_t x, bool is_scaled) {
  hlo_t series = hlo_add_f(g, math_square(g, x), -2);
  hlo_t log_half = hlo_log(g, hlo_multiply_f(g, x, 0.5));
  hlo_t near = math_chebyshev(g, series, k0e_near, COUNT(k0e_near));
  near = hlo_subtract(g, near, hlo_multiply(g, log_half, math_i0(g, x)));
  return join_k(g, x, near, far_k(g, x, k0e_far, COUNT(k0e_far)), is_scaled);
}

static hlo_t k1(hlo_graph_t *g, hlo_t x, bool is_scaled) {
  hlo_t series = hlo_add_f(g, math_square(g, x), -2);
  hlo_t log_half = hlo_log(g, hlo_multiply_f(g, x, 0.5));
  hlo_t near = hlo_divide(g, math_chebyshev(g, series, k1e_near, COUNT(k1e_near)), x);
  near = hlo_add(g, near, hlo_multiply(g, log_half, math_i1(g, x)));
  return join_k(g, x, near, far_k(g, x, k1e_far, COUNT(k1e_far)), is_scaled);
}

hlo_t math_k0(hlo_graph_t *g, hlo_t x) {
  return k0(g, x, false);
}
hlo_t math_k0e(hlo_graph_t *g, hlo_t x) {
  return k0(g, x, true);
}
hlo_t math_k1(hlo_graph_t *g, hlo_t x) {
  return k1(g, x, false);
}
hlo_t math_k1e(hlo_graph_t *g, hlo_t x) {
  return k1(g, x, true);
}
