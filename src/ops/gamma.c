/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Random numbers that are drawn by rejection: gamma, Dirichlet, Poisson and binomial.
 *
 * Every element draws until its number is accepted; a loop goes on while one element has not. The
 * numbers of round k come from the words k * (words of a round) on of the generator's stream, so that
 * a seed gives the same numbers whatever else was drawn. */
#include <math.h>

#include "ops/math.h"

enum { MOST_ROUNDS = 128 };

/* What every loop carries in front; its own state follows. */
enum { ROUND, OPEN, SEED, OFFSET, OWN };

typedef struct draw {
  int rank;
  int64_t dims[TORUS_MAX_RANK];
  torus_dtype_t dtype; /* F32 or F64 */
  int uniforms;        /* drawn in a round */
} draw_t;

/* ---- numbers of a round ---- */

/* Uniform in (0, 1), number |k| of this round, from the state of a loop. */
static hlo_t uniform_of(hlo_graph_t *g, const draw_t *d, const hlo_t *state, int k) {
  bool is_wide = d->dtype == TORUS_DTYPE_F64;
  torus_dtype_t word = is_wide ? TORUS_DTYPE_U64 : TORUS_DTYPE_U32;
  int64_t numel = is_wide ? 2 : 1;
  for (int i = 0; i < d->rank; i++)
    numel *= d->dims[i];
  hlo_t part = hlo_add(g, hlo_multiply_f(g, state[ROUND], d->uniforms),
                       hlo_const_int(g, TORUS_DTYPE_U64, k));
  part = hlo_multiply(g, part, hlo_const_int(g, TORUS_DTYPE_U64, numel));
  hlo_t offset = hlo_add(g, state[OFFSET], part);
  hlo_t bits = hlo_random_bits(g, word, state[SEED], offset, d->rank, d->dims);
  int used = is_wide ? 52 : 23;
  bits = hlo_shift_right_logical(g, bits, hlo_const_int(g, word, (is_wide ? 64 : 32) - used));
  hlo_t whole = hlo_convert(g, bits, d->dtype);
  return hlo_multiply_f(g, hlo_add_f(g, whole, 0.5), ldexp(1, -used));
}

static hlo_t normal_of(hlo_graph_t *g, const draw_t *d, const hlo_t *state, int k) {
  hlo_t centred = hlo_add_f(g, hlo_multiply_f(g, uniform_of(g, d, state, k), 2), -1);
  return hlo_multiply_f(g, hlo_erf_inv(g, centred), sqrt(2));
}

static hlo_t goes_on(hlo_graph_t *g, const hlo_t *state, void *context __attribute__((unused))) {
  hlo_t any = hlo_reduce_all(g, HLO_REDUCE_OR, state[OPEN]);
  return hlo_and(g, any, hlo_compare_f(g, HLO_LT, state[ROUND], MOST_ROUNDS));
}

/* Runs |body| until every element that is |open| at first is not. own: |count| further states,
 * replaced by their last values. */
static void draw_until(torus_call_t *call, hlo_graph_t *g, draw_t *d, hlo_t open, hlo_t *own,
                       int count, hlo_body_fn body) {
  hlo_t state[OWN + 8], results[OWN + 8], seed, offset;
  int64_t words = (int64_t)d->uniforms * MOST_ROUNDS * (d->dtype == TORUS_DTYPE_F64 ? 2 : 1);
  op_random(call, hlo_numel(g, open) * words, &seed, &offset);
  state[ROUND] = hlo_const_int(g, TORUS_DTYPE_U64, 0);
  state[OPEN] = open;
  state[SEED] = seed;
  state[OFFSET] = offset;
  for (int k = 0; k < count; k++)
    state[OWN + k] = own[k];
  hlo_while(g, state, (size_t)(OWN + count), goes_on, body, d, results);
  for (int k = 0; k < count; k++)
    own[k] = results[OWN + k];
}

/* The states that a round leaves as they are, and its result for the elements that were open. */
static void end_round(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, hlo_t accepted,
                      hlo_t drawn, int count) {
  out_state[ROUND] = hlo_add(g, state[ROUND], hlo_const_int(g, TORUS_DTYPE_U64, 1));
  out_state[OPEN] = hlo_and(g, state[OPEN], hlo_not(g, accepted));
  for (int k = SEED; k < OWN + count; k++)
    out_state[k] = state[k];
  out_state[OWN] = hlo_select(g, state[OPEN], drawn, state[OWN]);
}

static draw_t draw_like(hlo_graph_t *g, hlo_t x, int uniforms) {
  draw_t d = {.dtype = hlo_dtype(g, x), .uniforms = uniforms};
  d.rank = hlo_shape(g, x, d.dims);
  return d;
}

static hlo_t all_true(hlo_graph_t *g, hlo_t x) {
  return hlo_full_like(g, x, TORUS_DTYPE_BOOL, 1);
}

static hlo_t like(hlo_graph_t *g, hlo_t x, double value) {
  return hlo_full_like(g, x, TORUS_DTYPE_INVALID, value);
}

static bool read_floats(torus_call_t *call, int i, hlo_t *out_x) {
  torus_dtype_t dtype = op_tensor_dtype(call, i);
  *out_x = op_tensor_as(call, i, op_accumulate_type(dtype));
  if (torus_dtype_is_float(dtype)) return !op_failed(call);
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "expected a floating point tensor");
  return false;
}

/* ---- gamma ---- */

enum { GAMMA_VALUE = OWN, GAMMA_D };

/* Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26 (2000). */
static void gamma_round(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  const draw_t *draw = context;
  hlo_t d = state[GAMMA_D], c = hlo_rsqrt(g, hlo_multiply_f(g, d, 9));
  hlo_t x = normal_of(g, draw, state, 0), u = uniform_of(g, draw, state, 1);
  hlo_t y = hlo_add_f(g, hlo_multiply(g, c, x), 1);
  hlo_t positive = hlo_compare_f(g, HLO_GT, y, 0);
  y = hlo_select(g, positive, y, hlo_const(g, draw->dtype, 1));
  hlo_t v = hlo_multiply(g, y, math_square(g, y));
  hlo_t limit = hlo_add(g, hlo_subtract(g, like(g, v, 1), v), hlo_log(g, v));
  limit = hlo_add(g, hlo_multiply_f(g, math_square(g, x), 0.5), hlo_multiply(g, d, limit));
  hlo_t accepted = hlo_and(g, positive, hlo_compare(g, HLO_LT, hlo_log(g, u), limit));
  end_round(g, state, out_state, accepted, hlo_multiply(g, d, v), 2);
}

/* Gamma numbers of shape parameter |alpha|. Below 1 one of alpha + 1 is scaled by a power of a
 * uniform number. |out_log_scale| is the logarithm of that scale: small results vanish without it. */
static hlo_t draw_gamma(torus_call_t *call, hlo_graph_t *g, hlo_t alpha, hlo_t *out_log_scale) {
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, alpha, dims);
  hlo_t is_small = hlo_compare_f(g, HLO_LT, alpha, 1);
  hlo_t shape = hlo_select(g, is_small, hlo_add_f(g, alpha, 1), alpha);
  hlo_t own[2] = {like(g, alpha, 0), hlo_add_f(g, shape, -1.0 / 3)};
  draw_t d = draw_like(g, alpha, 2);
  draw_until(call, g, &d, all_true(g, alpha), own, 2, gamma_round);
  hlo_t u = op_random_uniform(call, d.dtype, rank, dims);
  hlo_t power = hlo_divide(g, hlo_log1p(g, hlo_negate(g, u)), alpha);
  *out_log_scale = hlo_select(g, is_small, power, hlo_const(g, d.dtype, 0));
  return own[0];
}

static double least_positive(torus_dtype_t dtype) {
  return dtype == TORUS_DTYPE_F64 ? 2.2250738585072014e-308 : 1.1754943508222875e-38;
}

TORUS_OP(standard_gamma, "_standard_gamma", TORUS_OP_RANDOM) {
  hlo_t alpha, log_scale;
  if (!read_floats(call, 0, &alpha)) return;
  torus_dtype_t dtype = hlo_dtype(g, alpha);
  if (hlo_numel(g, alpha) > 0) {
    hlo_t x = draw_gamma(call, g, alpha, &log_scale);
    x = hlo_multiply(g, x, hlo_exp(g, log_scale));
    alpha = hlo_maximum(g, x, hlo_const(g, dtype, least_positive(dtype)));
  }
  op_return(call, 0, hlo_convert(g, alpha, op_tensor_dtype(call, 0)));
}

/* Normalised gamma numbers, by their logarithms: with small parameters all of them may be too small
 * to represent. */
TORUS_OP(sample_dirichlet, "_sample_dirichlet", TORUS_OP_RANDOM) {
  hlo_t alpha, log_scale;
  if (!read_floats(call, 0, &alpha)) return;
  int rank = hlo_rank(g, alpha), last = rank - 1;
  if (rank == 0 || hlo_numel(g, alpha) == 0) {
    op_return(call, 0, hlo_convert(g, alpha, op_tensor_dtype(call, 0)));
    return;
  }
  hlo_t x = draw_gamma(call, g, alpha, &log_scale);
  x = hlo_add(g, hlo_log(g, x), log_scale);
  hlo_t top = hlo_reduce(g, HLO_REDUCE_MAXIMUM, x, 1, &last, false);
  x = hlo_exp(g, hlo_subtract(g, x, hlo_broadcast_back(g, top, x, 1, &last)));
  hlo_t sum = hlo_reduce(g, HLO_REDUCE_ADD, x, 1, &last, false);
  x = hlo_divide(g, x, hlo_broadcast_back(g, sum, x, 1, &last));
  hlo_t least = hlo_const(g, hlo_dtype(g, x), least_positive(hlo_dtype(g, x)));
  op_return(call, 0, hlo_convert(g, hlo_maximum(g, x, least), op_tensor_dtype(call, 0)));
}

/* ---- Poisson ---- */

enum { POISSON_VALUE = OWN, POISSON_RATE, POISSON_TERM, POISSON_REST };
static const double kSmallRate = 10;

/* Inversion, one number in each round: the value grows while the uniform number REST, drawn before
 * the loop, is not used up by the probabilities of the values passed. */
static void small_poisson_round(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state,
                                void *context __attribute__((unused))) {
  hlo_t rest = hlo_subtract(g, state[POISSON_REST], state[POISSON_TERM]);
  hlo_t accepted = hlo_compare_f(g, HLO_LT, rest, 0);
  hlo_t next = hlo_add_f(g, state[POISSON_VALUE], 1);
  end_round(g, state, out_state, accepted, hlo_select(g, accepted, state[POISSON_VALUE], next), 4);
  hlo_t term = hlo_divide(g, hlo_multiply(g, state[POISSON_TERM], state[POISSON_RATE]), next);
  out_state[POISSON_TERM] = term;
  out_state[POISSON_REST] = rest;
  /* Past the largest representable sum nothing more can be used up. */
  hlo_t lost = hlo_and(g, hlo_compare(g, HLO_GT, next, state[POISSON_RATE]),
                       hlo_compare_f(g, HLO_LT, term, 1e-12));
  out_state[OPEN] = hlo_and(g, out_state[OPEN], hlo_not(g, lost));
}

static hlo_t small_poisson(torus_call_t *call, hlo_graph_t *g, hlo_t rate) {
  draw_t d = draw_like(g, rate, 0);
  hlo_t used = hlo_compare_f(g, HLO_LT, rate, kSmallRate);
  hlo_t mean = hlo_select(g, used, rate, hlo_const(g, d.dtype, 1));
  hlo_t own[4] = {like(g, rate, 0), mean, hlo_exp(g, hlo_negate(g, mean)),
                  op_random_uniform(call, d.dtype, d.rank, d.dims)};
  draw_until(call, g, &d, used, own, 4, small_poisson_round);
  return own[0];
}

/* PTRS of Hoermann, "The transformed rejection method for generating Poisson random variables",
 * Insurance: Mathematics and Economics 12 (1993). */
static void large_poisson_round(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state,
                                void *context) {
  const draw_t *d = context;
  hlo_t rate = state[OWN + 1], u = hlo_add_f(g, uniform_of(g, d, state, 0), -0.5);
  hlo_t v = uniform_of(g, d, state, 1);
  hlo_t b = hlo_add_f(g, hlo_multiply_f(g, hlo_sqrt(g, rate), 2.53), 0.931);
  hlo_t a = hlo_add_f(g, hlo_multiply_f(g, b, 0.02483), -0.059);
  hlo_t inverse = hlo_add_f(g, hlo_divide(g, like(g, b, 1.1328), hlo_add_f(g, b, -3.4)), 1.1239);
  hlo_t fast = hlo_divide(g, like(g, b, -3.6224), hlo_add_f(g, b, -2));
  fast = hlo_add_f(g, fast, 0.9277);
  hlo_t us = hlo_subtract(g, like(g, u, 0.5), hlo_abs(g, u));
  hlo_t k = hlo_add(g, hlo_divide(g, hlo_multiply_f(g, a, 2), us), b);
  k = hlo_add_f(g, hlo_add(g, hlo_multiply(g, k, u), rate), 0.43);
  k = math_floor(g, k);
  hlo_t quick = hlo_and(g, hlo_compare_f(g, HLO_GE, us, 0.07), hlo_compare(g, HLO_LE, v, fast));
  hlo_t never = hlo_and(g, hlo_compare_f(g, HLO_LT, us, 0.013), hlo_compare(g, HLO_GT, v, us));
  never = hlo_or(g, never, hlo_compare_f(g, HLO_LT, k, 0));
  hlo_t left = hlo_add(g, hlo_divide(g, a, math_square(g, us)), b);
  left = hlo_log(g, hlo_divide(g, hlo_multiply(g, v, inverse), left));
  hlo_t right = hlo_subtract(g, hlo_multiply(g, k, hlo_log(g, rate)), rate);
  right = hlo_subtract(g, right, hlo_lgamma(g, hlo_add_f(g, k, 1)));
  hlo_t slow = hlo_and(g, hlo_not(g, never), hlo_compare(g, HLO_LE, left, right));
  end_round(g, state, out_state, hlo_or(g, quick, slow), k, 2);
}

static hlo_t large_poisson(torus_call_t *call, hlo_graph_t *g, hlo_t rate) {
  draw_t d = draw_like(g, rate, 2);
  hlo_t used = hlo_compare_f(g, HLO_GE, rate, kSmallRate);
  hlo_t mean = hlo_select(g, used, rate, hlo_const(g, d.dtype, kSmallRate));
  hlo_t own[2] = {like(g, rate, 0), mean};
  draw_until(call, g, &d, used, own, 2, large_poisson_round);
  return own[0];
}

TORUS_OP(poisson, "poisson", TORUS_OP_RANDOM) {
  hlo_t rate;
  if (!read_floats(call, 0, &rate)) return;
  if (hlo_numel(g, rate) > 0) {
    op_check(call, hlo_reduce_all(g, HLO_REDUCE_OR, hlo_compare_f(g, HLO_LT, rate, 0)),
             TORUS_STATUS_INVALID_ARGUMENT, "invalid Poisson rate, expected rate to be non-negative");
    hlo_t is_large = hlo_compare_f(g, HLO_GE, rate, kSmallRate);
    hlo_t small = small_poisson(call, g, rate), large = large_poisson(call, g, rate);
    rate = hlo_select(g, is_large, large, small);
  }
  op_return(call, 0, hlo_convert(g, rate, op_tensor_dtype(call, 0)));
}

/* ---- binomial ---- */

enum { BINOMIAL_VALUE = OWN, BINOMIAL_COUNT, BINOMIAL_PROB, BINOMIAL_SUM };

/* The gaps between successes are geometric: they are added up until the trials are used up. */
static void small_binomial_round(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state,
                                 void *context) {
  hlo_t u = uniform_of(g, context, state, 0);
  hlo_t fails = hlo_log1p(g, hlo_negate(g, state[BINOMIAL_PROB]));
  hlo_t sum = hlo_add(g, state[BINOMIAL_SUM], math_ceil(g, hlo_divide(g, hlo_log(g, u), fails)));
  hlo_t over = hlo_compare(g, HLO_GT, sum, state[BINOMIAL_COUNT]);
  hlo_t next = hlo_add_f(g, state[BINOMIAL_VALUE], 1);
  end_round(g, state, out_state, over, hlo_select(g, over, state[BINOMIAL_VALUE], next), 4);
  out_state[BINOMIAL_SUM] = sum;
}

/* log(k!) - (k + 1/2) log(k + 1) + k + 1 - log(2 pi) / 2, which is all that is left of Stirling's
 * formula. */
static hlo_t stirling_rest(hlo_graph_t *g, hlo_t k) {
  hlo_t next = hlo_add_f(g, k, 1);
  hlo_t main = hlo_multiply(g, hlo_add_f(g, k, 0.5), hlo_log(g, next));
  hlo_t rest = hlo_add(g, hlo_subtract(g, hlo_lgamma(g, next), main), next);
  rest = hlo_add_f(g, rest, -0.9189385332046727);
  hlo_t square = math_square(g, next);
  hlo_t series = hlo_divide(g, hlo_const(g, hlo_dtype(g, k), 1.0 / 360), square);
  series = hlo_divide(g, hlo_subtract(g, like(g, k, 1.0 / 12), series), next);
  return hlo_select(g, hlo_compare_f(g, HLO_GT, k, 9), series, rest);
}

/* BTRS of Hoermann, "The generation of binomial random variates", J. Stat. Comput. Simul. 46
 * (1993). */
static void large_binomial_round(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state,
                                 void *context) {
  const draw_t *d = context;
  hlo_t n = state[BINOMIAL_COUNT], p = state[BINOMIAL_PROB], one = like(g, n, 1);
  hlo_t u = hlo_add_f(g, uniform_of(g, d, state, 0), -0.5), v = uniform_of(g, d, state, 1);
  hlo_t mean = hlo_multiply(g, n, p), q = hlo_subtract(g, one, p);
  hlo_t spread = hlo_sqrt(g, hlo_multiply(g, mean, q));
  hlo_t b = hlo_add_f(g, hlo_multiply_f(g, spread, 2.53), 1.15);
  hlo_t a = hlo_add(g, hlo_add_f(g, hlo_multiply_f(g, b, 0.0248), -0.0873),
                    hlo_multiply_f(g, p, 0.01));
  hlo_t c = hlo_add_f(g, mean, 0.5);
  hlo_t fast = hlo_subtract(g, like(g, b, 0.92), hlo_divide(g, like(g, b, 4.2), b));
  hlo_t alpha = hlo_multiply(g, hlo_add_f(g, hlo_divide(g, like(g, b, 5.1), b), 2.83), spread);
  hlo_t mode = math_floor(g, hlo_multiply(g, hlo_add_f(g, n, 1), p));
  hlo_t us = hlo_subtract(g, like(g, u, 0.5), hlo_abs(g, u));
  hlo_t k = hlo_add(g, hlo_divide(g, hlo_multiply_f(g, a, 2), us), b);
  k = math_floor(g, hlo_add(g, hlo_multiply(g, k, u), c));
  hlo_t in_range = hlo_and(g, hlo_compare_f(g, HLO_GE, k, 0), hlo_compare(g, HLO_LE, k, n));
  hlo_t quick = hlo_and(g, hlo_compare_f(g, HLO_GE, us, 0.07), hlo_compare(g, HLO_LE, v, fast));
  hlo_t at = hlo_select(g, in_range, k, mode);
  hlo_t left = hlo_add(g, hlo_divide(g, a, math_square(g, us)), b);
  left = hlo_log(g, hlo_divide(g, hlo_multiply(g, v, alpha), left));
  hlo_t odds = hlo_divide(g, p, q), rest = hlo_subtract(g, n, at), top = hlo_subtract(g, n, mode);
  hlo_t fold = hlo_divide(g, hlo_add_f(g, mode, 1), hlo_multiply(g, odds, hlo_add_f(g, top, 1)));
  hlo_t right = hlo_multiply(g, hlo_add_f(g, mode, 0.5), hlo_log(g, fold));
  hlo_t ratio = hlo_divide(g, hlo_add_f(g, top, 1), hlo_add_f(g, rest, 1));
  right = hlo_add(g, right, hlo_multiply(g, hlo_add_f(g, n, 1), hlo_log(g, ratio)));
  ratio = hlo_divide(g, hlo_multiply(g, odds, hlo_add_f(g, rest, 1)), hlo_add_f(g, at, 1));
  right = hlo_add(g, right, hlo_multiply(g, hlo_add_f(g, at, 0.5), hlo_log(g, ratio)));
  right = hlo_add(g, right, hlo_add(g, stirling_rest(g, mode), stirling_rest(g, top)));
  right = hlo_subtract(g, right, hlo_add(g, stirling_rest(g, at), stirling_rest(g, rest)));
  hlo_t accepted = hlo_or(g, quick, hlo_compare(g, HLO_LE, left, right));
  end_round(g, state, out_state, hlo_and(g, in_range, accepted), k, 3);
}

/* Numbers of successes for probabilities of at most 1/2, by the method that suits their mean. */
static hlo_t draw_binomial(torus_call_t *call, hlo_graph_t *g, hlo_t n, hlo_t p) {
  torus_dtype_t dtype = hlo_dtype(g, n);
  hlo_t is_large = hlo_compare_f(g, HLO_GE, hlo_multiply(g, n, p), 10);
  hlo_t possible = hlo_and(g, hlo_compare_f(g, HLO_GT, n, 0), hlo_compare_f(g, HLO_GT, p, 0));
  hlo_t is_small = hlo_and(g, possible, hlo_not(g, is_large)), zero = like(g, n, 0);
  hlo_t half = hlo_const(g, dtype, 0.5), many = hlo_const(g, dtype, 64);
  draw_t small = draw_like(g, n, 1), large = draw_like(g, n, 2);
  hlo_t own[4] = {zero, n, hlo_select(g, is_small, p, half), zero};
  draw_until(call, g, &small, is_small, own, 4, small_binomial_round);
  hlo_t big[3] = {zero, hlo_select(g, is_large, n, many), hlo_select(g, is_large, p, half)};
  draw_until(call, g, &large, is_large, big, 3, large_binomial_round);
  return hlo_select(g, is_large, big[0], own[0]);
}

TORUS_OP(binomial, "binomial", TORUS_OP_RANDOM) {
  hlo_t n, p;
  torus_dtype_t dtype = op_accumulate_type(op_tensor_dtype(call, 0));
  if (!torus_dtype_is_float(dtype) || !torus_dtype_is_float(op_tensor_dtype(call, 1))) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "binomial only supports floating-point dtypes");
    return;
  }
  op_binary_operands(call, 0, 1, dtype, &n, &p);
  if (op_failed(call) || hlo_graph_failed(g)) return;
  if (hlo_numel(g, n) > 0) {
    hlo_t flips = hlo_compare_f(g, HLO_GT, p, 0.5);
    hlo_t other = hlo_subtract(g, like(g, p, 1), p);
    hlo_t drawn = draw_binomial(call, g, n, hlo_select(g, flips, other, p));
    n = hlo_select(g, flips, hlo_subtract(g, n, drawn), drawn);
  }
  op_return(call, 0, hlo_convert(g, n, op_tensor_dtype(call, 0)));
}
