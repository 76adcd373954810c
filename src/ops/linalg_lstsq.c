/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Least squares, in what LAPACK's four drivers give back: gels, for full rank, by QR; gelsy, gelsd
 * and gelss, for any rank, by the singular values. */
#include <string.h>

#include "ops/axes.h"
#include "ops/linalg.h"

typedef struct lstsq {
  hlo_t a, b; /* stacks */
  int leading;
  int64_t dims[TORUS_MAX_RANK];
  int64_t rows, columns, sides;
  bool is_vector, has_rank, has_values;
  double cutoff; /* singular values up to this part of the largest count as zero */
} lstsq_t;

typedef struct lstsq_answer {
  hlo_t x, residual, rank, values; /* residual: [batch, rows, sides]; HLO_NONE: not computed */
} lstsq_answer_t;

/* ---- arguments ---- */

static bool read_driver(torus_call_t *call, lstsq_t *s) {
  const char *driver = op_string(call, 3);
  if (driver == NULL)
    driver = "gelsy";
  s->has_values = strcmp(driver, "gelsd") == 0 || strcmp(driver, "gelss") == 0;
  s->has_rank = s->has_values || strcmp(driver, "gelsy") == 0;
  if (s->has_rank || strcmp(driver, "gels") == 0)
    return true;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "torch.linalg.lstsq: unknown driver");
  return false;
}

/* Whether b holds a vector for each matrix of a. */
static bool is_vector_side(const hlo_graph_t *g, hlo_t a, hlo_t b) {
  int rank = hlo_rank(g, b);
  if (rank == 1)
    return hlo_rank(g, a) == 2;
  if (rank != hlo_rank(g, a) - 1)
    return false;
  for (int d = 0; d < rank; ++d)
    if (hlo_dim(g, a, d) != hlo_dim(g, b, d))
      return false;
  return true;
}

static bool read_operands(torus_call_t *call, hlo_graph_t *g, lstsq_t *s) {
  hlo_t a = op_tensor(call, 0), b = op_tensor(call, 1);
  if (!linalg_require_matrix(call, g, a, false))
    return false;
  s->is_vector = is_vector_side(g, a, b);
  if (s->is_vector)
    b = hlo_unsqueeze(g, b, hlo_rank(g, b));
  if (!linalg_require_matrix(call, g, b, false))
    return false;
  int rank = hlo_rank(g, a);
  if (rank != hlo_rank(g, b) || hlo_dim(g, a, rank - 2) != hlo_dim(g, b, rank - 2) ||
      hlo_dtype(g, a) != hlo_dtype(g, b)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "torch.linalg.lstsq: the operands do not fit");
    return false;
  }
  if (!linalg_broadcast_batches(call, g, &a, &b))
    return false;
  s->leading = hlo_shape(g, a, s->dims) - 2;
  s->rows = s->dims[rank - 2];
  s->columns = s->dims[rank - 1];
  s->sides = hlo_dim(g, b, rank - 1);
  s->a = linalg_stack(g, a, 2);
  s->b = linalg_stack(g, b, 2);
  int64_t longest = s->rows > s->columns ? s->rows : s->columns;
  s->cutoff = op_double_or(call, 2, linalg_epsilon(hlo_dtype(g, a)) * (double)longest);
  return true;
}

/* ---- solutions ---- */

static lstsq_answer_t solve_nothing(hlo_graph_t *g, const lstsq_t *s) {
  int64_t batch = hlo_dim(g, s->a, 0), smallest = s->rows < s->columns ? s->rows : s->columns;
  torus_dtype_t dtype = hlo_dtype(g, s->a);
  return (lstsq_answer_t){
      hlo_zeros(g, dtype, 3, (const int64_t[]){batch, s->columns, s->sides}), s->b,
      hlo_zeros(g, TORUS_DTYPE_I64, 1, &batch),
      hlo_zeros(g, torus_dtype_real(dtype), 2, (const int64_t[]){batch, smallest})};
}

/* R x = the first rows of adjoint(Q) b; the others are what remains. */
static lstsq_answer_t solve_tall(hlo_graph_t *g, const lstsq_t *s) {
  lstsq_answer_t answer = {HLO_NONE, HLO_NONE, HLO_NONE, HLO_NONE};
  hlo_t packed, tau;
  linalg_geqrf(g, s->a, &packed, &tau);
  hlo_t rotated = linalg_reflect(g, packed, tau, s->b, true);
  hlo_t r = linalg_part(g, packed, 1, 0, s->columns);
  answer.residual = linalg_part(g, rotated, 1, s->columns, s->rows - s->columns);
  answer.x = linalg_solve_triangle(g, r, linalg_part(g, rotated, 1, 0, s->columns), true, false,
                                   false, false);
  return answer;
}

/* adjoint(a) = Q R: the shortest solution is Q y with adjoint(R) y = b. */
static lstsq_answer_t solve_wide(hlo_graph_t *g, const lstsq_t *s) {
  hlo_t packed, tau;
  linalg_geqrf(g, linalg_adjoint(g, s->a), &packed, &tau);
  hlo_t lower = linalg_adjoint(g, linalg_part(g, packed, 1, 0, s->rows));
  hlo_t y = linalg_solve_triangle(g, lower, s->b, true, true, false, false);
  y = linalg_part(g, y, 1, 0, s->columns); /* zeros below */
  return (lstsq_answer_t){linalg_reflect(g, packed, tau, y, false), HLO_NONE, HLO_NONE, HLO_NONE};
}

static lstsq_answer_t solve_any_rank(hlo_graph_t *g, const lstsq_t *s) {
  lstsq_answer_t answer = {HLO_NONE, HLO_NONE, HLO_NONE, HLO_NONE};
  linalg_svd_t svd = linalg_svd(g, s->a, true, false);
  if (hlo_graph_failed(g))
    return answer;
  torus_dtype_t real = hlo_dtype(g, svd.s);
  hlo_t largest = hlo_reduce(g, HLO_REDUCE_MAXIMUM, svd.s, 1, (const int[]){1}, false);
  hlo_t limit = hlo_multiply(g, largest, hlo_soft(g, real, s->cutoff));
  hlo_t counts = hlo_compare(g, HLO_GT, svd.s, linalg_over(g, limit, svd.s, 1));
  hlo_t inverse = hlo_divide(g, hlo_const(g, real, 1), svd.s);
  inverse = hlo_select(g, counts, inverse, hlo_const(g, real, 0));
  hlo_t y = hlo_matmul(g, linalg_adjoint(g, svd.u), s->b);
  y = linalg_times_real(g, linalg_over(g, inverse, y, 1), y);
  answer.x = hlo_matmul(g, svd.v, y);
  answer.residual = hlo_subtract(g, s->b, hlo_matmul(g, s->a, answer.x));
  answer.rank = hlo_reduce(g, HLO_REDUCE_ADD, hlo_convert(g, counts, TORUS_DTYPE_I64), 1,
                           (const int[]){1}, false);
  answer.values = svd.s;
  return answer;
}

static lstsq_answer_t answer_of(hlo_graph_t *g, const lstsq_t *s) {
  if (hlo_numel(g, s->a) == 0)
    return solve_nothing(g, s);
  if (s->has_rank)
    return solve_any_rank(g, s);
  return s->rows >= s->columns ? solve_tall(g, s) : solve_wide(g, s);
}

/* ---- results ---- */

/* gelsd and gelss give residuals only when every matrix has full rank, which decides the shape of
 * the result: the ranks are waited for, and the graph begins anew. */
static bool has_residuals(torus_call_t *call, hlo_graph_t *g, const lstsq_t *s,
                          const lstsq_answer_t *answer) {
  if (s->rows <= s->columns)
    return false;
  if (!s->has_rank)
    return true;
  if (!s->has_values)
    return false;
  if (hlo_numel(g, answer->rank) == 0 || s->columns == 0)
    return true;
  int64_t least = op_read_int(call, hlo_reduce_all(g, HLO_REDUCE_MINIMUM, answer->rank));
  return !op_failed(call) && least == s->columns;
}

TORUS_OP(linalg_lstsq, "linalg_lstsq", 0) {
  lstsq_t s;
  if (!read_driver(call, &s) || !read_operands(call, g, &s))
    return;
  lstsq_answer_t answer = answer_of(g, &s);
  if (linalg_failed(call, g))
    return;
  bool residuals = has_residuals(call, g, &s, &answer);
  if (op_graph(call) != g || s.has_values) {
    g = op_graph(call);
    if (!read_operands(call, g, &s))
      return;
    answer = answer_of(g, &s);
  }
  if (linalg_failed(call, g))
    return;
  torus_dtype_t real = torus_dtype_real(hlo_dtype(g, s.a));
  hlo_t x = linalg_unstack(g, answer.x, s.leading, s.dims);
  op_return(call, 0, s.is_vector ? hlo_squeeze(g, x, hlo_rank(g, x) - 1) : x);
  hlo_t sum = residuals ? linalg_square_sum(g, answer.residual) : HLO_NONE;
  op_return(call, 1, residuals ? linalg_unstack(g, sum, s.leading, s.dims) : op_nothing(g, real));
  op_return(call, 2,
            s.has_rank ? linalg_unstack(g, answer.rank, s.leading, s.dims)
                       : op_nothing(g, TORUS_DTYPE_I64));
  op_return(call, 3,
            s.has_values ? linalg_unstack(g, answer.values, s.leading, s.dims)
                         : op_nothing(g, real));
}
