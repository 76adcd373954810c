/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Random numbers: all distributions come from Philox bits through uniform and normal numbers. */
#include <math.h>

#include "ops/op.h"

static int64_t shape_numel(int rank, const int64_t *dims) {
  int64_t numel = 1;
  for (int d = 0; d < rank; ++d)
    numel *= dims[d];
  return numel;
}

static bool failed(const torus_call_t *call, const hlo_graph_t *g) {
  return op_failed(call) || hlo_graph_failed(g);
}

/* ---- bits, uniform and normal numbers ---- */

static hlo_t random_bits(torus_call_t *call, hlo_graph_t *g, torus_dtype_t dtype, int rank,
                         const int64_t *dims) {
  hlo_t seed, offset;
  int64_t numel = shape_numel(rank, dims);
  if (numel == 0)
    return hlo_zeros(g, dtype, rank, dims);
  op_random(call, dtype == TORUS_DTYPE_U64 ? 2 * numel : numel, &seed, &offset);
  return hlo_random_bits(g, dtype, seed, offset, rank, dims);
}

static int mantissa_bits(torus_dtype_t dtype) {
  switch (dtype) {
  case TORUS_DTYPE_F64:
    return 53;
  case TORUS_DTYPE_F16:
    return 11;
  case TORUS_DTYPE_BF16:
    return 8;
  default:
    return 24;
  }
}

/* The upper |bits| of random words as whole numbers of type |dtype|. */
static hlo_t random_whole(torus_call_t *call, hlo_graph_t *g, torus_dtype_t dtype, int bits,
                          int rank, const int64_t *dims) {
  bool is_wide = bits > 32;
  torus_dtype_t word = is_wide ? TORUS_DTYPE_U64 : TORUS_DTYPE_U32;
  hlo_t shift = hlo_const_int(g, word, (is_wide ? 64 : 32) - bits);
  hlo_t drawn = hlo_shift_right_logical(g, random_bits(call, g, word, rank, dims), shift);
  /* Signed numbers convert faster, and the upper bit is free. */
  drawn = hlo_bitcast(g, drawn, is_wide ? TORUS_DTYPE_I64 : TORUS_DTYPE_I32);
  return hlo_convert(g, drawn, dtype);
}

hlo_t op_random_uniform(torus_call_t *call, torus_dtype_t dtype, int rank, const int64_t *dims) {
  hlo_graph_t *g = op_graph(call);
  int bits = mantissa_bits(dtype);
  hlo_t whole = random_whole(call, g, dtype, bits, rank, dims);
  return hlo_multiply_f(g, whole, ldexp(1, -bits));
}

/* Uniform in (0, 1), symmetric around 1/2: (k + 1/2) / 2^n, exact with one bit less than the
 * mantissa has. Logarithms of it are finite. */
static hlo_t uniform_open(torus_call_t *call, hlo_graph_t *g, torus_dtype_t dtype, int rank,
                          const int64_t *dims) {
  int bits = mantissa_bits(dtype) - 1;
  hlo_t whole = random_whole(call, g, dtype, bits, rank, dims);
  return hlo_multiply_f(g, hlo_add_f(g, whole, 0.5), ldexp(1, -bits));
}

/* By inversion: sqrt(2) erfinv(2u - 1). */
hlo_t op_random_normal(torus_call_t *call, torus_dtype_t dtype, int rank, const int64_t *dims) {
  hlo_graph_t *g = op_graph(call);
  torus_dtype_t wide = op_accumulate_type(dtype);
  hlo_t u = uniform_open(call, g, wide, rank, dims);
  hlo_t centred = hlo_add_f(g, hlo_multiply_f(g, u, 2), -1);
  hlo_t z = hlo_multiply_f(g, hlo_erf_inv(g, centred), 1.4142135623730951);
  return hlo_convert(g, z, dtype);
}

/* ---- distributions that fill a tensor ---- */

/* The shape and type of argument 0, and the real type to compute in. */
typedef struct target {
  int rank;
  int64_t dims[TORUS_MAX_RANK];
  torus_dtype_t dtype, wide;
} target_t;

static target_t read_target(const torus_call_t *call) {
  target_t t = {.rank = op_tensor_rank(call, 0), .dtype = op_tensor_dtype(call, 0)};
  for (int d = 0; d < t.rank; ++d)
    t.dims[d] = op_tensor_dim(call, 0, d);
  t.wide = torus_dtype_real(op_accumulate_type(t.dtype));
  if (torus_dtype_is_integral(t.dtype))
    t.wide = TORUS_DTYPE_F32;
  return t;
}

static bool require(torus_call_t *call, bool holds, const char *what) {
  if (!holds)
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "%s", what);
  return holds;
}

static bool require_float(torus_call_t *call, torus_dtype_t dtype) {
  return require(call, torus_dtype_is_float(dtype), "expected a floating point tensor");
}

static void return_as(torus_call_t *call, hlo_graph_t *g, const target_t *t, hlo_t x) {
  op_return(call, 0, hlo_convert(g, x, t->dtype));
}

TORUS_OP(uniform, "uniform", TORUS_OP_RANDOM) {
  target_t t = read_target(call);
  double low = op_double(call, 1), high = op_double(call, 2);
  if (!require_float(call, t.dtype) || !require(call, low <= high, "uniform_: from > to"))
    return;
  /* Drawn with the mantissa of the result, so that rounding it cannot reach |high|. */
  hlo_t u = hlo_convert(g, op_random_uniform(call, t.dtype, t.rank, t.dims), t.wide);
  u = hlo_multiply(g, u, hlo_soft(g, t.wide, high - low));
  return_as(call, g, &t, hlo_add(g, u, hlo_soft(g, t.wide, low)));
}

/* Complex numbers share their variance between both parts. */
static hlo_t standard_normal(torus_call_t *call, hlo_graph_t *g, const target_t *t) {
  if (!torus_dtype_is_complex(t->dtype))
    return op_random_normal(call, t->wide, t->rank, t->dims);
  hlo_t real = op_random_normal(call, t->wide, t->rank, t->dims);
  hlo_t imag = op_random_normal(call, t->wide, t->rank, t->dims);
  return hlo_multiply_f(g, hlo_complex(g, real, imag), 0.7071067811865476);
}

static void normal(torus_call_t *call, hlo_graph_t *g) {
  target_t t = read_target(call);
  double mean = op_double(call, 1), std = op_double(call, 2);
  if (!require(call, !torus_dtype_is_integral(t.dtype),
               "normal_: expected a floating point tensor"))
    return;
  if (!require(call, std >= 0, "normal expects std >= 0.0"))
    return;
  hlo_t z = standard_normal(call, g, &t);
  torus_dtype_t wide = hlo_graph_failed(g) ? t.wide : hlo_dtype(g, z);
  z = hlo_multiply(g, z, hlo_soft(g, wide, std));
  return_as(call, g, &t, hlo_add(g, z, hlo_soft(g, wide, mean)));
}

TORUS_OP(normal_inplace, "normal_", TORUS_OP_RANDOM) {
  normal(call, g);
}
TORUS_OP(normal_functional, "normal_functional", TORUS_OP_RANDOM) {
  normal(call, g);
}

TORUS_OP(log_normal, "log_normal", TORUS_OP_RANDOM) {
  target_t t = read_target(call);
  double mean = op_double(call, 1), std = op_double(call, 2);
  if (!require_float(call, t.dtype) || !require(call, std > 0, "log_normal_ expects std > 0.0"))
    return;
  hlo_t z = op_random_normal(call, t.wide, t.rank, t.dims);
  z = hlo_add(g, hlo_multiply(g, z, hlo_soft(g, t.wide, std)), hlo_soft(g, t.wide, mean));
  return_as(call, g, &t, hlo_exp(g, z));
}

TORUS_OP(exponential, "exponential", TORUS_OP_RANDOM) {
  target_t t = read_target(call);
  double rate = op_double(call, 1);
  if (!require_float(call, t.dtype) ||
      !require(call, rate > 0, "exponential_ expects lambda > 0.0"))
    return;
  hlo_t x = hlo_negate(g, hlo_log(g, uniform_open(call, g, t.wide, t.rank, t.dims)));
  return_as(call, g, &t, hlo_multiply(g, x, hlo_soft(g, t.wide, 1 / rate)));
}

TORUS_OP(geometric, "geometric", TORUS_OP_RANDOM) {
  target_t t = read_target(call);
  double p = op_double(call, 1);
  if (!require(call, p > 0 && p < 1, "geometric_ expects p to be in (0, 1)"))
    return;
  hlo_t x = hlo_log(g, uniform_open(call, g, t.wide, t.rank, t.dims));
  x = hlo_ceil(g, hlo_multiply(g, x, hlo_soft(g, t.wide, 1 / log1p(-p))));
  return_as(call, g, &t, hlo_maximum(g, x, hlo_const(g, t.wide, 1)));
}

TORUS_OP(cauchy, "cauchy", TORUS_OP_RANDOM) {
  target_t t = read_target(call);
  double median = op_double(call, 1), sigma = op_double(call, 2);
  if (!require_float(call, t.dtype) || !require(call, sigma > 0, "cauchy_ expects sigma > 0.0"))
    return;
  hlo_t u = hlo_add_f(g, uniform_open(call, g, t.wide, t.rank, t.dims), -0.5);
  hlo_t x = hlo_tan(g, hlo_multiply_f(g, u, 3.141592653589793));
  x = hlo_multiply(g, x, hlo_soft(g, t.wide, sigma));
  return_as(call, g, &t, hlo_add(g, x, hlo_soft(g, t.wide, median)));
}

/* ---- random whole numbers ---- */

/* [from, from + range); range 0 stands for 2^64. Words of 64 bits where 32 do not suffice. */
static void return_integers(torus_call_t *call, hlo_graph_t *g, int64_t from, uint64_t range) {
  target_t t = read_target(call);
  bool is_wide = range == 0 || range > UINT32_MAX;
  torus_dtype_t word = is_wide ? TORUS_DTYPE_U64 : TORUS_DTYPE_U32;
  hlo_t x = random_bits(call, g, word, t.rank, t.dims);
  if (range != 0)
    x = hlo_remainder(g, x, hlo_soft_int(g, word, (int64_t)range));
  x = hlo_bitcast(g, hlo_convert(g, x, TORUS_DTYPE_U64), TORUS_DTYPE_I64);
  return_as(call, g, &t, hlo_add(g, x, hlo_soft_int(g, TORUS_DTYPE_I64, from)));
}

/* The largest whole number random_ draws: what the type holds exactly. */
static int64_t largest_drawn(torus_dtype_t dtype) {
  if (torus_dtype_is_float(dtype))
    return (int64_t)1 << mantissa_bits(dtype);
  if (dtype == TORUS_DTYPE_BOOL)
    return 1;
  int bits = 8 * (int)torus_dtype_bytes(dtype) - (torus_dtype_kind(dtype) == TORUS_KIND_INT);
  return bits >= 63 ? INT64_MAX : ((int64_t)1 << bits) - 1;
}

TORUS_OP(random_all, "random", TORUS_OP_RANDOM) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  if (require(call, !torus_dtype_is_complex(dtype), "random_: complex is not supported"))
    return_integers(call, g, 0, (uint64_t)largest_drawn(dtype) + 1);
}

static void random_between(torus_call_t *call, hlo_graph_t *g, int64_t from, int64_t to) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  if (!require(call, from < to, "random_ expects 'from' to be less than 'to'"))
    return;
  if (torus_dtype_is_integral(dtype)) {
    int64_t largest = largest_drawn(dtype);
    int64_t lowest = torus_dtype_kind(dtype) == TORUS_KIND_INT ? -largest - 1 : 0;
    if (!require(call, from >= lowest && to - 1 <= largest, "from or to - 1 is out of bounds"))
      return;
  }
  return_integers(call, g, from, (uint64_t)to - (uint64_t)from);
}

TORUS_OP(random_to, "random.to", TORUS_OP_RANDOM) {
  random_between(call, g, 0, op_int(call, 1));
}

TORUS_OP(random_from, "random.from", TORUS_OP_RANDOM) {
  int64_t from = op_int(call, 1);
  if (op_has(call, 2))
    random_between(call, g, from, op_int(call, 2));
  else /* up to and including the largest; from INT64_MIN the range wraps to 0, meaning 2^64 */
    return_integers(call, g, from,
                    (uint64_t)largest_drawn(op_tensor_dtype(call, 0)) - (uint64_t)from + 1);
}

/* ---- normal numbers by tensors of parameters ---- */

static void normal_by_tensors(torus_call_t *call, hlo_graph_t *g, bool has_mean, bool has_std) {
  int64_t dims[TORUS_MAX_RANK];
  const char *negative = "normal expects all elements of std >= 0.0";
  int pattern = has_mean ? 0 : 1;
  torus_dtype_t dtype = op_tensor_dtype(call, pattern);
  if (has_mean && has_std)
    dtype = op_result_type(call, (int[]){0, 1}, 2);
  if (op_failed(call))
    return;
  if (torus_dtype_is_integral(dtype))
    dtype = op_default_dtype(call);
  torus_dtype_t wide = op_accumulate_type(dtype);
  if (torus_dtype_is_complex(dtype)) {
    op_fallback(call, "complex parameters");
    return;
  }
  hlo_t mean = has_mean ? op_tensor_as(call, 0, wide) : hlo_soft(g, wide, op_double(call, 0));
  hlo_t std = has_std ? op_tensor_as(call, 1, wide) : hlo_soft(g, wide, op_double(call, 1));
  if (has_mean && has_std)
    op_binary_operands(call, 0, 1, wide, &mean, &std);
  if (!has_std && !require(call, op_double(call, 1) >= 0, negative))
    return;
  if (failed(call, g))
    return;
  if (has_std && hlo_numel(g, std) > 0)
    op_check(call, hlo_reduce_all(g, HLO_REDUCE_OR, hlo_compare_f(g, HLO_LT, std, 0)),
             TORUS_STATUS_INVALID_ARGUMENT, "normal expects all elements of std >= 0.0");
  int rank = hlo_shape(g, has_mean ? mean : std, dims);
  hlo_t z = hlo_multiply(g, op_random_normal(call, wide, rank, dims), std);
  op_return(call, 0, hlo_convert(g, hlo_add(g, z, mean), dtype));
}

TORUS_OP(normal_tensor_float, "normal.Tensor_float", TORUS_OP_RANDOM) {
  normal_by_tensors(call, g, true, false);
}
TORUS_OP(normal_float_tensor, "normal.float_Tensor", TORUS_OP_RANDOM) {
  normal_by_tensors(call, g, false, true);
}
TORUS_OP(normal_tensor_tensor, "normal.Tensor_Tensor", TORUS_OP_RANDOM) {
  normal_by_tensors(call, g, true, true);
}

/* ---- coins ---- */

/* True with probability |p| (rank 0 or of the target's shape). */
static hlo_t coins(torus_call_t *call, hlo_graph_t *g, const target_t *t, hlo_t p) {
  torus_dtype_t dtype = t->wide;
  return hlo_compare(g, HLO_LT, op_random_uniform(call, dtype, t->rank, t->dims),
                     hlo_convert(g, p, dtype));
}

static void bernoulli_number(torus_call_t *call, hlo_graph_t *g) {
  target_t t = read_target(call);
  double p = op_double(call, 1);
  if (require(call, p >= 0 && p <= 1, "bernoulli_ expects p to be in [0, 1]"))
    return_as(call, g, &t, coins(call, g, &t, hlo_soft(g, t.wide, p)));
}

TORUS_OP(bernoulli_p, "bernoulli.p", TORUS_OP_RANDOM) {
  bernoulli_number(call, g);
}

static void bernoulli_tensor(torus_call_t *call, hlo_graph_t *g, hlo_t p) {
  target_t t = read_target(call);
  if (failed(call, g) || !require_float(call, hlo_dtype(g, p)))
    return;
  p = hlo_expand(g, p, t.rank, t.dims);
  if (failed(call, g))
    return;
  if (hlo_numel(g, p) > 0) { /* NaN is outside too */
    hlo_t inside = hlo_and(g, hlo_compare_f(g, HLO_GE, p, 0), hlo_compare_f(g, HLO_LE, p, 1));
    op_check(call, hlo_not(g, hlo_reduce_all(g, HLO_REDUCE_AND, inside)),
             TORUS_STATUS_INVALID_ARGUMENT, "Expected p_in >= 0 && p_in <= 1 to be true");
  }
  return_as(call, g, &t, coins(call, g, &t, p));
}

TORUS_OP(bernoulli, "bernoulli", TORUS_OP_RANDOM) {
  bernoulli_tensor(call, g, op_tensor(call, 0));
}
TORUS_OP(bernoulli_by_tensor, "bernoulli.Tensor", TORUS_OP_RANDOM) {
  bernoulli_tensor(call, g, op_tensor(call, 1));
}

/* ---- dropout ---- */

/* Kept elements are multiplied by |scale|, the others by 0 (so NaN stays NaN). */
static hlo_t scale_kept(hlo_graph_t *g, hlo_t x, hlo_t mask, double scale) {
  torus_dtype_t dtype = hlo_dtype(g, x), wide = op_accumulate_type(dtype);
  hlo_t factor = hlo_select(g, mask, hlo_soft(g, wide, scale), hlo_const(g, wide, 0));
  return hlo_convert(g, hlo_multiply(g, hlo_convert(g, x, wide), factor), dtype);
}

TORUS_OP(native_dropout, "native_dropout", TORUS_OP_RANDOM) {
  target_t t = read_target(call);
  double p = op_double(call, 1);
  hlo_t x = op_tensor(call, 0);
  if (!require(call, p >= 0 && p <= 1, "dropout probability has to be between 0 and 1"))
    return;
  if (failed(call, g))
    return;
  if (!op_bool_or(call, 2, true)) {
    op_return(call, 0, x);
    op_return(call, 1, hlo_full_like(g, x, TORUS_DTYPE_BOOL, 1));
    return;
  }
  hlo_t mask = coins(call, g, &t, hlo_soft(g, t.wide, 1 - p));
  op_return(call, 0, scale_kept(g, x, mask, p < 1 ? 1 / (1 - p) : 0));
  op_return(call, 1, mask);
}

/* A number times a float: whole numbers become floats, as in the product that this stands for. */
TORUS_OP(native_dropout_backward, "native_dropout_backward", 0) {
  hlo_t grad = op_tensor_as(call, 0, op_float_type(call, op_tensor_dtype(call, 0)));
  hlo_t mask = op_tensor_as(call, 1, TORUS_DTYPE_BOOL);
  if (!failed(call, g))
    op_return(call, 0, scale_kept(g, grad, mask, op_double(call, 2)));
}

/* ---- multinomial ---- */

/* [1, n] or [b, n] weights, checked. */
static hlo_t weights(torus_call_t *call, hlo_graph_t *g, torus_dtype_t dtype) {
  hlo_t p = op_tensor_as(call, 0, dtype);
  if (!hlo_graph_failed(g) && hlo_rank(g, p) == 1)
    p = hlo_unsqueeze(g, p, 0);
  hlo_t valid = hlo_and(g, hlo_compare_f(g, HLO_GE, p, 0), hlo_is_finite(g, p));
  op_check(call, hlo_not(g, hlo_reduce_all(g, HLO_REDUCE_AND, valid)),
           TORUS_STATUS_INVALID_ARGUMENT,
           "probability tensor contains either `inf`, `nan` or element < 0");
  hlo_t sum = hlo_reduce(g, HLO_REDUCE_ADD, p, 1, (int[]){1}, false);
  op_check(call, hlo_reduce_all(g, HLO_REDUCE_OR, hlo_compare_f(g, HLO_LE, sum, 0)),
           TORUS_STATUS_INVALID_ARGUMENT,
           "invalid multinomial distribution (sum of probabilities <= 0)");
  return p;
}

/* The largest of log(p) - log(e), e exponential, is index i with probability p[i]; the k largest
 * are k draws without putting back. Weight 0 gives -inf. */
static hlo_t draw_distinct(torus_call_t *call, hlo_graph_t *g, hlo_t p, int64_t count) {
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, p, dims);
  hlo_t u = uniform_open(call, g, hlo_dtype(g, p), rank, dims);
  hlo_t e = hlo_log(g, hlo_negate(g, hlo_log(g, u)));
  hlo_t pair[2] = {hlo_subtract(g, hlo_log(g, p), e), HLO_NONE}, sorted[2];
  if (count == 1) {
    hlo_reduce_arg(g, true, pair[0], 1, &sorted[0], &sorted[1]);
    return hlo_unsqueeze(g, sorted[1], 1);
  }
  pair[1] = hlo_iota(g, TORUS_DTYPE_I64, rank, dims, 1);
  hlo_sort(g, pair, 2, 1, true, true, sorted);
  return hlo_slice_dim(g, sorted[1], 1, 0, count);
}

/* The first index whose running sum exceeds a uniform number. Only indices of positive weight take
 * part, whatever rounding does to the sums. */
static hlo_t draw_again(torus_call_t *call, hlo_graph_t *g, hlo_t p, int64_t count) {
  torus_dtype_t dtype = hlo_dtype(g, p);
  int64_t wide[3] = {hlo_dim(g, p, 0), count, hlo_dim(g, p, 1)};
  hlo_t sums = hlo_scan(g, HLO_REDUCE_ADD, p, 1);
  hlo_t total = hlo_slice_dim(g, sums, 1, wide[2] - 1, 1);
  hlo_t u = op_random_uniform(call, dtype, 2, wide);
  u = hlo_multiply(g, u, hlo_expand(g, total, 2, wide));
  u = hlo_broadcast_in_dim(g, u, 3, wide, (int[]){0, 1});
  hlo_t positive = hlo_compare_f(g, HLO_GT, p, 0);
  hlo_t index = hlo_iota(g, TORUS_DTYPE_I64, 2, (int64_t[]){wide[0], wide[2]}, 1);
  hlo_t none = hlo_const_int(g, TORUS_DTYPE_I64, -1);
  hlo_t last =
      hlo_reduce(g, HLO_REDUCE_MAXIMUM, hlo_select(g, positive, index, none), 1, (int[]){1}, true);
  hlo_t above = hlo_compare(g, HLO_GT, hlo_broadcast_in_dim(g, sums, 3, wide, (int[]){0, 2}), u);
  above = hlo_and(g, above, hlo_broadcast_in_dim(g, positive, 3, wide, (int[]){0, 2}));
  index = hlo_select(g, above, hlo_broadcast_in_dim(g, index, 3, wide, (int[]){0, 2}),
                     hlo_highest(g, TORUS_DTYPE_I64));
  index = hlo_reduce(g, HLO_REDUCE_MINIMUM, index, 1, (int[]){2}, false);
  return hlo_minimum(g, index, hlo_expand(g, last, 2, wide));
}

TORUS_OP(multinomial, "multinomial", TORUS_OP_RANDOM) {
  int rank = op_tensor_rank(call, 0);
  int64_t count = op_int(call, 1), rows = rank == 2 ? op_tensor_dim(call, 0, 0) : 1;
  bool again = op_bool(call, 2);
  torus_dtype_t dtype = op_accumulate_type(op_tensor_dtype(call, 0));
  if (!require_float(call, dtype) ||
      !require(call, rank == 1 || rank == 2, "prob_dist must be 1 or 2 dim") ||
      !require(call, count > 0, "cannot sample n_sample <= 0 samples"))
    return;
  int64_t choices = op_tensor_dim(call, 0, rank - 1);
  if (!require(call, again || count <= choices,
               "cannot sample n_sample > prob_dist.size(-1) samples without replacement") ||
      !require(call, rows == 0 || choices > 0, "invalid multinomial distribution"))
    return;
  if (rows == 0) {
    op_return(call, 0, hlo_zeros(g, TORUS_DTYPE_I64, 2, (int64_t[]){0, count}));
    return;
  }
  hlo_t p = weights(call, g, dtype);
  if (failed(call, g))
    return;
  hlo_t drawn =
      again && count > 1 ? draw_again(call, g, p, count) : draw_distinct(call, g, p, count);
  op_return(call, 0, rank == 2 ? drawn : hlo_squeeze(g, drawn, 0));
}
