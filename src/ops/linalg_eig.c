/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Eigenvalues and eigenvectors of general square matrices, from the Schur form.
 *
 * The blocks of a real Schur form are made triangular by unitary matrices of size 2, so that one
 * back substitution in complex numbers serves real and complex matrices (Golub and Van Loan,
 * "Matrix Computations", 4th edition, sections 7.6.3 and 7.6.4). The values come in LAPACK's order,
 * the vectors have length 1 and a real largest element. */
#include "ops/axes.h"
#include "ops/linalg.h"

static hlo_t times(hlo_graph_t *g, hlo_t a, hlo_t b) { return hlo_multiply(g, a, b); }

static hlo_t zero_of(hlo_graph_t *g, hlo_t x) {
  return hlo_graph_failed(g) ? HLO_NONE : hlo_const(g, hlo_dtype(g, x), 0);
}

/* Where b is zero, 0. */
static hlo_t safe_divide(hlo_graph_t *g, hlo_t a, hlo_t b) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t none = hlo_compare_f(g, HLO_EQ, b, 0);
  hlo_t one = hlo_const(g, hlo_dtype(g, b), 1);
  return hlo_select(g, none, zero_of(g, b), hlo_divide(g, a, hlo_select(g, none, one, b)));
}

/* ---- blocks of real matrices ---- */

/* For each row the block [[a, b], [c, d]] that begins there, if c is not zero: its eigenvalues, and
 * (z, c) along the vector of the first one. */
typedef struct blocks {
  hlo_t c, begins;               /* [batch, size]; BOOL */
  hlo_t first, second, imag;     /* eigenvalues first + i imag and second - i imag */
  hlo_t z_real, z_imag;
} blocks_t;

/* b c + p^2, divided by |scale|. */
static hlo_t discriminant(hlo_graph_t *g, hlo_t p, hlo_t b, hlo_t c, hlo_t scale) {
  hlo_t size_b = hlo_abs(g, b), size_c = hlo_abs(g, c);
  hlo_t least = times(g, hlo_minimum(g, size_b, size_c), times(g, hlo_sign(g, b), hlo_sign(g, c)));
  hlo_t product = times(g, safe_divide(g, hlo_maximum(g, size_b, size_c), scale), least);
  return hlo_add(g, times(g, safe_divide(g, p, scale), p), product);
}

/* As LAPACK's lanv2: real eigenvalues without cancellation, of a pair the upper one first. */
static blocks_t read_blocks(hlo_graph_t *g, hlo_t t) {
  hlo_t a = linalg_diagonal(g, t), d = linalg_shift(g, a, 1, -1);
  hlo_t b = linalg_diagonal(g, linalg_shift(g, t, 2, -1));
  hlo_t c = linalg_diagonal(g, linalg_shift(g, t, 1, -1));
  hlo_t p = hlo_multiply_f(g, hlo_subtract(g, a, d), 0.5);
  hlo_t most = hlo_maximum(g, hlo_abs(g, b), hlo_abs(g, c));
  hlo_t scale = hlo_maximum(g, hlo_abs(g, p), most), disc = discriminant(g, p, b, c, scale);
  if (hlo_graph_failed(g))
    return (blocks_t){0};
  hlo_t zero = zero_of(g, p), real = hlo_compare_f(g, HLO_GE, disc, 0);
  hlo_t root = times(g, hlo_sqrt(g, scale), hlo_sqrt(g, hlo_abs(g, disc)));
  hlo_t away = hlo_select(g, hlo_compare_f(g, HLO_LT, p, 0), hlo_negate(g, root), root);
  hlo_t z = hlo_add(g, p, hlo_select(g, real, away, zero));
  hlo_t rest = times(g, safe_divide(g, b, z), c);
  hlo_t no_b = hlo_compare_f(g, HLO_EQ, b, 0);
  z = hlo_select(g, no_b, zero, z);
  hlo_t first = hlo_add(g, d, z);
  hlo_t second = hlo_select(g, no_b, a, hlo_subtract(g, d, rest));
  hlo_t imag = hlo_select(g, real, zero, root);
  return (blocks_t){c, hlo_compare_f(g, HLO_NE, c, 0), first,
                    hlo_select(g, real, second, first), imag, z, imag};
}

static hlo_t block_values(hlo_graph_t *g, hlo_t t, const blocks_t *b) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t real = linalg_diagonal(g, t), zero = zero_of(g, real);
  hlo_t ends = hlo_compare_f(g, HLO_NE, linalg_shift(g, b->c, 1, 1), 0);
  real = hlo_select(g, b->begins, b->first, real);
  real = hlo_select(g, ends, linalg_shift(g, b->second, 1, 1), real);
  hlo_t imag = hlo_select(g, b->begins, b->imag, zero);
  imag = hlo_select(g, ends, hlo_negate(g, linalg_shift(g, b->imag, 1, 1)), imag);
  return hlo_complex(g, real, imag);
}

/* x in the places (row, row + count) of a stack of square matrices, zero elsewhere. */
static hlo_t band(hlo_graph_t *g, hlo_t like, hlo_t x, int64_t count) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t row = hlo_add_f(g, linalg_numbers(g, like, 1), (double)count);
  hlo_t here = hlo_compare(g, HLO_EQ, row, linalg_numbers(g, like, 2));
  return hlo_select(g, here, linalg_over(g, x, like, 1), zero_of(g, x));
}

/* The unitary matrix that makes all blocks triangular. */
static hlo_t block_rotations(hlo_graph_t *g, hlo_t like, const blocks_t *b) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t zero = zero_of(g, b->c), one = hlo_const(g, hlo_dtype(g, b->c), 1);
  hlo_t size = hlo_maximum(g, linalg_size(g, hlo_complex(g, b->z_real, b->z_imag)),
                           hlo_abs(g, b->c));
  hlo_t parts[3] = {b->z_real, b->z_imag, b->c}, sum = zero;
  for (int i = 0; i < 3; ++i) {
    parts[i] = hlo_select(g, b->begins, safe_divide(g, parts[i], size), i == 0 ? one : zero);
    sum = hlo_add(g, sum, times(g, parts[i], parts[i]));
  }
  hlo_t root = hlo_sqrt(g, sum);
  for (int i = 0; i < 3; ++i)
    parts[i] = hlo_divide(g, parts[i], root);
  hlo_t x = hlo_complex(g, parts[0], parts[1]), y = hlo_convert(g, parts[2], hlo_dtype(g, x));
  hlo_t ends = hlo_compare_f(g, HLO_NE, linalg_shift(g, b->c, 1, 1), 0);
  hlo_t diagonal = hlo_select(g, ends, hlo_conj(g, linalg_shift(g, x, 1, 1)), x);
  hlo_t u = hlo_add(g, band(g, like, diagonal, 0), band(g, like, hlo_negate(g, y), 1));
  return hlo_add(g, u, band(g, like, linalg_shift(g, y, 1, 1), -1));
}

/* ---- vectors ---- */

/* Factors above this are divided out before they overflow. */
static const double kLarge = 0x1p20;

typedef struct substitution {
  int64_t size;
  double epsilon, least;
} substitution_t;

/* t(row, row) - values, [batch, size], or the least number that still divides. */
static hlo_t differences(hlo_graph_t *g, hlo_t values, hlo_t row, const substitution_t *how) {
  hlo_t own = linalg_column(g, hlo_unsqueeze(g, values, 1), row);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  own = hlo_squeeze(g, own, 1);
  hlo_t gap = hlo_subtract(g, linalg_over(g, own, values, 1), values);
  hlo_t limit = hlo_multiply_f(g, linalg_size(g, values), how->epsilon);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  limit = hlo_maximum(g, limit, hlo_const(g, hlo_dtype(g, limit), how->least));
  hlo_t small = hlo_compare(g, HLO_LT, linalg_size(g, gap), limit);
  return hlo_select(g, small, hlo_convert(g, limit, hlo_dtype(g, gap)), gap);
}

/* state: vectors, triangular matrix, its diagonal. All columns take the same row at a time, from
 * the last to the first. */
static void substitute_step(hlo_graph_t *g, hlo_t k, const hlo_t *state, hlo_t *out_state,
                            void *context) {
  const substitution_t *how = context;
  if (hlo_graph_failed(g))
    return;
  hlo_t x = state[0], last = hlo_const_int(g, TORUS_DTYPE_I32, how->size - 1);
  hlo_t row = hlo_subtract(g, last, k);
  hlo_t line = linalg_column(g, hlo_swap_dims(g, state[1], 1, 2), row);
  hlo_t right = hlo_compare(g, HLO_GT, linalg_numbers(g, line, 1), row);
  line = hlo_select(g, right, line, zero_of(g, line));
  hlo_t sum = hlo_reduce(g, HLO_REDUCE_ADD, times(g, linalg_over(g, line, x, 1), x), 1,
                         (const int[]){1}, false);
  hlo_t entry = hlo_divide(g, hlo_negate(g, sum), differences(g, state[2], row, how));
  hlo_t here = hlo_and(g, hlo_compare(g, HLO_EQ, linalg_numbers(g, x, 1), row),
                       hlo_compare(g, HLO_GT, linalg_numbers(g, x, 2), row));
  x = hlo_select(g, here, linalg_over(g, entry, x, 2), x);
  hlo_t size = linalg_size(g, entry);
  if (hlo_graph_failed(g))
    return;
  hlo_t one = hlo_const(g, hlo_dtype(g, size), 1);
  hlo_t large = hlo_and(g, right, hlo_compare_f(g, HLO_GT, size, kLarge));
  hlo_t factor = hlo_divide(g, one, hlo_select(g, large, size, one));
  out_state[0] = linalg_times_real(g, linalg_over(g, factor, x, 2), x);
}

static hlo_t triangular_vectors(hlo_graph_t *g, hlo_t t, hlo_t values) {
  if (hlo_graph_failed(g))
    return HLO_NONE;
  torus_dtype_t dtype = hlo_dtype(g, t);
  int64_t batch = hlo_dim(g, t, 0), size = hlo_dim(g, t, 1);
  double epsilon = linalg_epsilon(dtype);
  double least = torus_dtype_real(dtype) == TORUS_DTYPE_F64 ? 0x1p-1022 : 0x1p-126;
  substitution_t how = {size, epsilon, least * (double)size / epsilon};
  hlo_t state[3] = {linalg_identity(g, dtype, batch, size, size), t, values};
  linalg_for(g, size, 3, substitute_step, &how, state);
  return state[0];
}

/* Columns of length 1. */
static hlo_t unit_columns(hlo_graph_t *g, hlo_t x) {
  hlo_t size = hlo_reduce(g, HLO_REDUCE_MAXIMUM, linalg_size(g, x), 1, (const int[]){1}, false);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t one = hlo_const(g, hlo_dtype(g, size), 1);
  x = linalg_times_real(g, linalg_over(g, safe_divide(g, one, size), x, 2), x);
  hlo_t length = hlo_sqrt(g, linalg_square_sum(g, x));
  return linalg_times_real(g, linalg_over(g, safe_divide(g, one, length), x, 2), x);
}

/* Columns turned so that their largest element is real. */
static hlo_t turn_columns(hlo_graph_t *g, hlo_t x) {
  hlo_t size, place;
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_reduce_arg(g, true, hlo_abs(g, x), 1, &size, &place);
  hlo_t largest = hlo_compare(g, HLO_EQ, linalg_numbers(g, x, 1),
                              linalg_over(g, hlo_convert(g, place, TORUS_DTYPE_I32), x, 2));
  hlo_t picked = hlo_select(g, largest, x, zero_of(g, x));
  hlo_t unit = hlo_reduce(g, HLO_REDUCE_ADD, picked, 1, (const int[]){1}, false);
  hlo_t inverse = safe_divide(g, hlo_const(g, hlo_dtype(g, size), 1), size);
  unit = linalg_times_real(g, inverse, hlo_conj(g, unit));
  x = times(g, linalg_over(g, unit, x, 2), x);
  hlo_t real = hlo_convert(g, hlo_real(g, x), hlo_dtype(g, x));
  return hlo_select(g, largest, real, x);
}

/* Of a real matrix the vectors of real values are real, and those of conjugate ones conjugate, to
 * the last bit. */
static hlo_t real_or_conjugate(hlo_graph_t *g, hlo_t x, hlo_t turned, hlo_t values) {
  hlo_t imag = hlo_imag(g, values);
  hlo_t is_real = linalg_over(g, hlo_compare_f(g, HLO_EQ, imag, 0), x, 2);
  hlo_t is_lower = linalg_over(g, hlo_compare_f(g, HLO_LT, imag, 0), x, 2);
  if (hlo_graph_failed(g))
    return HLO_NONE;
  hlo_t real = unit_columns(g, hlo_real(g, x)), other = linalg_shift(g, turned, 2, 1);
  turned = hlo_select(g, is_lower, hlo_conj(g, other), turned);
  return hlo_select(g, is_real, hlo_convert(g, real, hlo_dtype(g, x)), turned);
}

/* ---- operators ---- */

typedef struct eigen {
  hlo_t values, vectors, failed;
} eigen_t;

/* Values, and vectors if wanted, from a Schur form. */
static eigen_t from_schur(hlo_graph_t *g, linalg_schur_t schur, bool real) {
  eigen_t e = {HLO_NONE, HLO_NONE, schur.failed};
  hlo_t t = schur.t, z = schur.z;
  bool vectors = z != HLO_NONE;
  blocks_t blocks = {0};
  if (hlo_graph_failed(g))
    return e;
  if (real)
    blocks = read_blocks(g, t);
  e.values = real ? block_values(g, t, &blocks) : linalg_diagonal(g, t);
  if (!vectors || hlo_graph_failed(g))
    return e;
  if (real) {
    torus_dtype_t dtype = hlo_dtype(g, e.values);
    hlo_t u = block_rotations(g, t, &blocks);
    t = hlo_matmul(g, linalg_adjoint(g, u), hlo_matmul(g, hlo_convert(g, t, dtype), u));
    z = hlo_matmul(g, hlo_convert(g, z, dtype), u);
  }
  hlo_t x = unit_columns(g, hlo_matmul(g, z, triangular_vectors(g, t, e.values)));
  hlo_t turned = turn_columns(g, x);
  e.vectors = real ? real_or_conjugate(g, x, turned, e.values) : turned;
  return e;
}

static eigen_t eigen(hlo_graph_t *g, hlo_t x, bool vectors) {
  hlo_t scale = linalg_scale(g, x);
  if (hlo_graph_failed(g))
    return (eigen_t){HLO_NONE, HLO_NONE, HLO_NONE};
  torus_dtype_t dtype = hlo_dtype(g, x);
  hlo_t inverse = hlo_divide(g, hlo_const(g, torus_dtype_real(dtype), 1), scale);
  x = linalg_times_real(g, linalg_over(g, inverse, x, 1), x);
  eigen_t e = from_schur(g, linalg_schur(g, x, vectors), !torus_dtype_is_complex(dtype));
  if (!hlo_graph_failed(g))
    e.values = linalg_times_real(g, linalg_over(g, scale, e.values, 1), e.values);
  return e;
}

static torus_dtype_t complex_of(torus_dtype_t dtype) {
  return torus_dtype_real(dtype) == TORUS_DTYPE_F64 ? TORUS_DTYPE_C128 : TORUS_DTYPE_C64;
}

static void give_eigen(torus_call_t *call, hlo_graph_t *g, bool vectors) {
  hlo_t x = op_tensor(call, 0);
  int64_t dims[TORUS_MAX_RANK];
  if (!linalg_require_matrix(call, g, x, true))
    return;
  int rank = hlo_shape(g, x, dims);
  torus_dtype_t type = complex_of(hlo_dtype(g, x));
  if (hlo_numel(g, x) == 0) {
    op_return(call, 0, hlo_zeros(g, type, rank - 1, dims));
    if (vectors)
      op_return(call, 1, hlo_zeros(g, type, rank, dims));
    return;
  }
  hlo_t wrong = linalg_any_not_finite(g, x);
  op_check(call, wrong, TORUS_STATUS_INVALID_ARGUMENT,
           "torch.linalg.eig: input tensor should not contain infs or NaNs.");
  /* Loops that end when numbers are small enough would run on with NaN. */
  x = hlo_select(g, wrong, zero_of(g, x), x);
  eigen_t e = eigen(g, linalg_stack(g, x, 2), vectors);
  if (linalg_failed(call, g))
    return;
  op_check(call, e.failed, TORUS_STATUS_INVALID_ARGUMENT,
           "linalg.eig: The algorithm failed to converge because the input matrix is "
           "ill-conditioned or has too many repeated eigenvalues.");
  op_return(call, 0, linalg_unstack(g, e.values, rank - 2, dims));
  if (vectors)
    op_return(call, 1, linalg_unstack(g, e.vectors, rank - 2, dims));
}

TORUS_OP(linalg_eig, "linalg_eig", 0) { give_eigen(call, g, true); }

TORUS_OP(linalg_eigvals, "_linalg_eigvals", 0) { give_eigen(call, g, false); }

/* PyTorch has no kernel per backend for the functional form of this one. */
TORUS_OP(linalg_eigvals_out, "linalg_eigvals.out", 0) { give_eigen(call, g, false); }
