/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Modified Bessel functions of the first kind by Chebyshev series, after S. L. Moshier's Cephes
 * Mathematical Library (i0.c): one series on [0, 8], one in 1/x beyond. */
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

hlo_t math_i0(hlo_graph_t *g, hlo_t x) { return unscale(g, math_i0e(g, x), x); }

hlo_t math_i1e(hlo_graph_t *g, hlo_t x) { return hlo_bessel_i1e(g, x); }

hlo_t math_i1(hlo_graph_t *g, hlo_t x) { return unscale(g, math_i1e(g, x), x); }
