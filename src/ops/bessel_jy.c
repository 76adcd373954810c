/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Bessel functions of the first and second kind, the Airy function and the spherical Bessel
 * function, after S. L. Moshier's Cephes Mathematical Library (j0.c, j1.c, airy.c): rational
 * approximations near 0, the asymptotic form with a phase beyond. */
#include <math.h>

#include "ops/math.h"

static const double j0_pp[] = {0.0007969367292973471,
                               0.08283523921074408,
                               1.239533716464143,
                               5.447250030587687,
                               8.74716500199817,
                               5.303240382353949,
                               1.0};
static const double j0_pq[] = {0.0009244088105588637,
                               0.08562884743544745,
                               1.2535274390105895,
                               5.470977403304171,
                               8.761908832370695,
                               5.306052882353947,
                               1.0};
static const double j0_qp[] = {-0.011366383889846916, -1.2825271867050931, -19.553954425773597,
                               -93.20601521237683,    -177.68116798048806, -147.07750515495118,
                               -51.41053267665993,    -6.050143506007285};
static const double j0_qq[] = {64.3178256118178,  856.4300259769806, 3882.4018360540163,
                               7240.467741956525, 5930.727011873169, 2062.0933166032783,
                               242.0057402402914};
static const double j0_rp[] = {-4794432209.782018, 1956174919465.5657, -249248344360967.72,
                               9708622510473064.0};
static const double j0_rq[] = {499.563147152651,       173785.4016763747,     48440965.83399621,
                               11185553704.535683,     2112775201154.892,     310518229857422.56,
                               3.1812195594320496e+16, 1.7108629408104315e+18};
static const double j1_pp[] = {0.0007621256162081731,
                               0.07313970569409176,
                               1.1271960812968493,
                               5.112079511468076,
                               8.424045901417724,
                               5.214515986823615,
                               1.0};
static const double j1_pq[] = {0.0005713231280725487,
                               0.06884559087544954,
                               1.105142326340617,
                               5.073863861286015,
                               8.399855543276042,
                               5.209828486823619,
                               1.0};
static const double j1_qp[] = {0.05108625947501766, 4.982138729512334, 75.82382841325453,
                               366.7796093601508,   710.8563049989261, 597.4896124006136,
                               211.68875710057213,  25.207020585802372};
static const double j1_qq[] = {74.23732770356752, 1056.4488603826283, 4986.410583376536,
                               9562.318924047562, 7997.041604473507,  2826.1927851763908,
                               336.0936078106983};
static const double j1_rp[] = {-899971225.7055594, 452228297998.19403, -72749424522181.83,
                               3682957328638529.0};
static const double j1_rq[] = {620.8364781180543,     256987.25675774884,   83514679.14319493,
                               22151159547.97925,     4749141220799.914,    784369607876235.9,
                               8.952223361846274e+16, 5.322786203326801e+18};
static const double y0_yp[] = {15592.436785523574,     -14663929.59039716,     5435264770.518765,
                               -982136065717.9115,     87590639439536.7,       -3466283033847297.0,
                               4.4273326857256984e+16, -1.8495080043698668e+16};
static const double y0_yq[] = {1041.2835366425984,    626107.330137135,   268919633.39381415,
                               86400248710.3935,      20297961275010.555, 3171577528429750.5,
                               2.5059625617265306e+17};
static const double y1_yp[] = {1263204747.9017804,  -647355876379.1603,    114509511541823.73,
                               -8127702555013251.0, 2.024394757135949e+17, -7.788771962659501e+17};
static const double y1_yq[] = {594.3015923461282,     235564.09294306856,    73481194.44597217,
                               18760131610.870617,    3882312774962.3857,    620557727146953.8,
                               6.871410873553005e+16, 3.9727060811656064e+18};

static const double airy_an[] = {
    0.346538101525629,  12.007595273964581, 76.27960536152345,  168.08922493463058,
    159.75639135016442, 70.53609068404442,  14.026469116338967, 1.0};
static const double airy_ad[] = {
    0.5675945326387702, 14.75625625848472, 84.51389701414746,  177.31808814540045,
    164.2346928715297,  71.47784008255756, 14.095913560783403, 1.0};
static const double airy_afn[] = {
    -0.1316963234183318,    -0.6264565444319123,    -0.6931580360369335,
    -0.2797799815451191,    -0.04919001326095003,   -0.004062659235948854,
    -0.0001592764962392621, -2.776491081552329e-06, -1.6778769848911465e-08};
static const double airy_afd[] = {
    13.356042070655324,   32.682503279522464,    26.736704094149957,
    9.187074029072596,    1.4752914677166642,    0.11568717379518804,
    0.004402916416152112, 7.547203482874142e-05, 4.5185009297058035e-07};
static const double airy_agn[] = {0.01973399320916857,   0.39110302961568827,  1.0657989759959559,
                                  0.9391692298166502,    0.35146565610554764,  0.06338889196289255,
                                  0.005858041130483885,  0.000282851600836737, 6.98793669997261e-06,
                                  8.117892395543892e-08, 3.415517847659236e-10};
static const double airy_agd[] = {
    9.30892908077442,       19.835292871831214,  15.564662893286462,   5.476860694229755,
    0.9542936116189619,     0.08645808263523921, 0.004126565238242226, 0.00010125908511650914,
    1.1716673321441352e-06, 4.9183457006293e-09};

#define FRACTION(g, z, top, bottom)                                                                \
  hlo_divide(g, math_polynomial(g, z, top, sizeof(top) / sizeof *(top)),                           \
             math_polynomial(g, z, bottom, sizeof(bottom) / sizeof *(bottom)))

static hlo_t over(hlo_graph_t *g, double numerator, hlo_t x) {
  return hlo_divide(g, hlo_const(g, hlo_dtype(g, x), numerator), x);
}

/* sqrt(2 / (pi x)) (p cos(x - phase) - 5 / x q sin(x - phase)); for the second kind with sine and
 * cosine exchanged and the sign turned. */
static hlo_t with_phase(hlo_graph_t *g, hlo_t x, hlo_t p, hlo_t q, double phase, bool is_second) {
  hlo_t angle = hlo_add_f(g, x, -phase);
  hlo_t sine = hlo_sine(g, angle), cosine = hlo_cosine(g, angle);
  hlo_t tail = hlo_multiply(g, over(g, 5, x), hlo_multiply(g, q, is_second ? cosine : sine));
  hlo_t head = hlo_multiply(g, p, is_second ? sine : cosine);
  hlo_t sum = is_second ? hlo_add(g, head, tail) : hlo_subtract(g, head, tail);
  return hlo_divide(g, hlo_multiply_f(g, sum, M_SQRT2 * M_2_SQRTPI / 2), hlo_sqrt(g, x));
}

static hlo_t far_0(hlo_graph_t *g, hlo_t x, bool is_second) {
  hlo_t z = over(g, 25, math_square(g, x));
  return with_phase(g, x, FRACTION(g, z, j0_pp, j0_pq), FRACTION(g, z, j0_qp, j0_qq), M_PI_4,
                    is_second);
}

static hlo_t far_1(hlo_graph_t *g, hlo_t x, bool is_second) {
  hlo_t z = over(g, 25, math_square(g, x));
  return with_phase(g, x, FRACTION(g, z, j1_pp, j1_pq), FRACTION(g, z, j1_qp, j1_qq), 3 * M_PI_4,
                    is_second);
}

/* Zeros of J0 and J1 are factored out near 0, which keeps them exact. */
static hlo_t near_first(hlo_graph_t *g, hlo_t z, hlo_t quotient, double zero_a, double zero_b) {
  hlo_t factors = hlo_multiply(g, hlo_add_f(g, z, -zero_a), hlo_add_f(g, z, -zero_b));
  return hlo_multiply(g, factors, quotient);
}

hlo_t math_j0(hlo_graph_t *g, hlo_t x) {
  hlo_t size = hlo_abs(g, x), z = math_square(g, x);
  hlo_t near = near_first(g, z, FRACTION(g, z, j0_rp, j0_rq), 5.78318596294678452118,
                          30.4712623436620863991);
  return hlo_select(g, hlo_compare_f(g, HLO_LE, size, 5), near, far_0(g, size, false));
}

hlo_t math_j1(hlo_graph_t *g, hlo_t x) {
  hlo_t size = hlo_abs(g, x), z = math_square(g, x);
  hlo_t near = near_first(g, z, FRACTION(g, z, j1_rp, j1_rq), 14.6819706421238932572,
                          49.2184563216946036703);
  near = hlo_multiply(g, near, size);
  hlo_t y = hlo_select(g, hlo_compare_f(g, HLO_LE, size, 5), near, far_1(g, size, false));
  return hlo_select(g, hlo_compare_f(g, HLO_LT, x, 0), hlo_negate(g, y), y);
}

/* -inf at 0, undefined below. */
static hlo_t join_second(hlo_graph_t *g, hlo_t x, hlo_t near, hlo_t far) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t y = hlo_select(g, hlo_compare_f(g, HLO_LE, x, 5), near, far);
  y = hlo_select(g, hlo_compare_f(g, HLO_EQ, x, 0), hlo_lowest(g, dtype), y);
  return hlo_select(g, hlo_compare_f(g, HLO_LT, x, 0), hlo_const(g, dtype, (double)NAN), y);
}

hlo_t math_y0(hlo_graph_t *g, hlo_t x) {
  hlo_t z = math_square(g, x);
  hlo_t log_term = hlo_multiply(g, hlo_log(g, x), math_j0(g, x));
  hlo_t near = hlo_add(g, FRACTION(g, z, y0_yp, y0_yq), hlo_multiply_f(g, log_term, M_2_PI));
  return join_second(g, x, near, far_0(g, x, true));
}

hlo_t math_y1(hlo_graph_t *g, hlo_t x) {
  hlo_t z = math_square(g, x);
  hlo_t log_term = hlo_multiply(g, hlo_log(g, x), math_j1(g, x));
  log_term = hlo_multiply_f(g, hlo_subtract(g, log_term, over(g, 1, x)), M_2_PI);
  hlo_t near = hlo_add(g, hlo_multiply(g, x, FRACTION(g, z, y1_yp, y1_yq)), log_term);
  return join_second(g, x, near, far_1(g, x, true));
}

hlo_t math_spherical_j0(hlo_graph_t *g, hlo_t x) {
  /* The series of sin(x) / x, which is exact where the quotient would lose digits. */
  static const double series[] = {1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040,
                                  1.0 / 120,        -1.0 / 6,        1.0};
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t size = hlo_abs(g, x), near = math_polynomial(g, math_square(g, x), series, 7);
  hlo_t y =
      hlo_select(g, hlo_compare_f(g, HLO_LT, size, 0.5), near, hlo_divide(g, hlo_sine(g, x), x));
  hlo_t endless = hlo_compare(g, HLO_EQ, size, hlo_highest(g, dtype));
  return hlo_select(g, endless, hlo_const(g, dtype, 0), y);
}

/* ---- Airy's function ---- */

#define AIRY_SCALE 0.564189583547756286948 /* 1 / sqrt(pi) */

/* Left of -2.09: an oscillation. */
static hlo_t airy_left(hlo_graph_t *g, hlo_t x) {
  hlo_t size = hlo_negate(g, x), root = hlo_sqrt(g, size);
  hlo_t arc = hlo_multiply_f(g, hlo_multiply(g, size, root), 2.0 / 3);
  hlo_t z = over(g, 1, arc), zz = math_square(g, z), angle = hlo_add_f(g, arc, M_PI_4);
  hlo_t f = hlo_multiply(g, zz, FRACTION(g, zz, airy_afn, airy_afd));
  hlo_t h = hlo_multiply(g, z, FRACTION(g, zz, airy_agn, airy_agd));
  hlo_t wave = hlo_subtract(g, hlo_multiply(g, hlo_sine(g, angle), hlo_add_f(g, f, 1)),
                            hlo_multiply(g, hlo_cosine(g, angle), h));
  return hlo_divide(g, hlo_multiply_f(g, wave, AIRY_SCALE), hlo_sqrt(g, root));
}

/* Right of 2.09: a decay. */
static hlo_t airy_right(hlo_graph_t *g, hlo_t x) {
  hlo_t root = hlo_sqrt(g, x), arc = hlo_multiply_f(g, hlo_multiply(g, x, root), 2.0 / 3);
  hlo_t z = over(g, 1, arc);
  hlo_t top = hlo_multiply_f(g, FRACTION(g, z, airy_an, airy_ad), AIRY_SCALE / 2);
  return hlo_divide(g, top, hlo_multiply(g, hlo_sqrt(g, root), hlo_exp(g, arc)));
}

/* Between: the Maclaurin series, 16 terms of which reach double precision for |x| < 2.1. */
static hlo_t airy_middle(hlo_graph_t *g, hlo_t x) {
  hlo_t cube = hlo_multiply(g, math_square(g, x), x);
  hlo_t m = hlo_full_like(g, x, TORUS_DTYPE_INVALID, 1), n = x, f = m, h = x;
  for (int k = 1; k < 48; k += 3) {
    m = hlo_multiply_f(g, hlo_multiply(g, m, cube), 1.0 / ((k + 1) * (k + 2)));
    n = hlo_multiply_f(g, hlo_multiply(g, n, cube), 1.0 / ((k + 2) * (k + 3)));
    f = hlo_add(g, f, m);
    h = hlo_add(g, h, n);
  }
  return hlo_subtract(g, hlo_multiply_f(g, f, 0.355028053887817239260),
                      hlo_multiply_f(g, h, 0.258819403792806798405));
}

hlo_t math_airy_ai(hlo_graph_t *g, hlo_t x) {
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t y = hlo_select(g, hlo_compare_f(g, HLO_LT, x, -2.09), airy_left(g, x), airy_middle(g, x));
  y = hlo_select(g, hlo_compare_f(g, HLO_GE, x, 2.09), airy_right(g, x), y);
  y = hlo_select(g, hlo_compare_f(g, HLO_GT, x, 103.892), hlo_const(g, dtype, 0), y);
  hlo_t endless = hlo_compare(g, HLO_EQ, hlo_abs(g, x), hlo_highest(g, dtype));
  return hlo_select(g, endless, hlo_const(g, dtype, (double)NAN), y);
}
