/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* What the matrix factorisations share.
 *
 * Algorithms work on stacks, [batch, rows, columns], and run as loops in the program: a body that
 * handles every matrix of the stack at once, so that neither the batch nor the size of the matrices
 * makes the program longer. Vectors of a stack are [batch, length], numbers [batch]. */
#ifndef TORUS_OPS_LINALG_H_
#define TORUS_OPS_LINALG_H_

#include "ops/op.h"

/* ---- operands ---- */

bool linalg_failed(const torus_call_t *call, const hlo_graph_t *g);
/* False, and an error, unless x is a batch of (square) matrices of a float or complex type. */
bool linalg_require_matrix(torus_call_t *call, hlo_graph_t *g, hlo_t x, bool square);
/* Leading dimensions of two batches of matrices broadcast against each other. */
bool linalg_broadcast_batches(torus_call_t *call, hlo_graph_t *g, hlo_t *a, hlo_t *b);
/* Relative distance of two neighbouring numbers of the type. */
double linalg_epsilon(torus_dtype_t dtype);

/* ---- stacks ---- */

/* All dimensions before the last |own| as one. */
hlo_t linalg_stack(hlo_graph_t *g, hlo_t x, int own);
/* The first dimension becomes the |rank| leading |dims| again. */
hlo_t linalg_unstack(hlo_graph_t *g, hlo_t x, int rank, const int64_t *dims);
/* x over the shape of the stack |like|: numbers, or vectors with an entry for each row (place 1) or
 * column (place 2). */
hlo_t linalg_over(hlo_graph_t *g, hlo_t x, hlo_t like, int place);
/* The row (1) or column (2) number of each element of a stack, I32; of a vector's entries (1). */
hlo_t linalg_numbers(hlo_graph_t *g, hlo_t like, int place);
hlo_t linalg_identity(hlo_graph_t *g, torus_dtype_t dtype, int64_t batch, int64_t rows,
                      int64_t columns);
/* The main diagonals, and a stack with other ones. */
hlo_t linalg_diagonal(hlo_graph_t *g, hlo_t x);
hlo_t linalg_set_diagonal(hlo_graph_t *g, hlo_t x, hlo_t diagonal);
/* Column |k|, a rank-0 node, of every matrix: [batch, rows]. */
hlo_t linalg_column(hlo_graph_t *g, hlo_t x, hlo_t k);
/* |size| entries of dimension |place|, from |start| on. Unlike the places of hlo_slice these never
 * become arguments of the program: they follow from the shape, and loops are faster without. */
hlo_t linalg_part(hlo_graph_t *g, hlo_t x, int place, int64_t start, int64_t size);
/* Entries moved by |count| places to higher numbers (negative: lower) along |place|, zeros behind
 * them. */
hlo_t linalg_shift(hlo_graph_t *g, hlo_t x, int place, int64_t count);
/* Rows (1) or columns (2) in another order: |order| is [batch, count], I32. */
hlo_t linalg_take(hlo_graph_t *g, hlo_t x, int place, hlo_t order);

/* Rows (1) or columns (2), or entries of vectors (1), |a| and |b| of each matrix exchanged: I32
 * [batch]. */
hlo_t linalg_exchange(hlo_graph_t *g, hlo_t x, int place, hlo_t a, hlo_t b);
/* Row (1) or column (2), or entry of a vector (1), number |index| of each: I32 [batch]. Zeros where
 * there is none. */
hlo_t linalg_pick(hlo_graph_t *g, hlo_t x, int place, hlo_t index);

/* ---- any number of leading dimensions ---- */

hlo_t linalg_adjoint(hlo_graph_t *g, hlo_t x);
/* The elements with column - row >= |offset| (upper) or <= |offset|; zeros elsewhere. */
hlo_t linalg_triangle(hlo_graph_t *g, hlo_t x, bool upper, int64_t offset);
/* hlo_triangular_solve that takes empty systems. */
hlo_t linalg_solve_triangle(hlo_graph_t *g, hlo_t a, hlo_t b, bool left, bool lower, bool unit,
                            bool transpose);

/* ---- numbers ---- */

/* The power of two next below the largest magnitude of each matrix (1 for zeros), real [batch]:
 * divided by it, squares of the elements stay in range and no digit is lost. */
hlo_t linalg_scale(hlo_graph_t *g, hlo_t x);
/* LAPACK's measure of a number: |re| + |im|, real. */
hlo_t linalg_size(hlo_graph_t *g, hlo_t x);
/* Sum of the squared magnitudes over dimension 1: real. */
hlo_t linalg_square_sum(hlo_graph_t *g, hlo_t x);
/* A real node times one of its real or complex type. */
hlo_t linalg_times_real(hlo_graph_t *g, hlo_t real, hlo_t x);
/* Rank-0 BOOL: whether some element is infinite or NaN. */
hlo_t linalg_any_not_finite(hlo_graph_t *g, hlo_t x);

/* ---- loops ---- */

enum { LINALG_MAX_STATE = 12 };

/* One step. |out_state| holds |state| on entry: only what changes is written. */
typedef void (*linalg_step_fn)(hlo_graph_t *g, hlo_t k, const hlo_t *state, hlo_t *out_state,
                               void *context);
/* Steps k = 0 .. count - 1 (a rank-0 I32 node) over |state|, which receives the outcome. */
void linalg_for(hlo_graph_t *g, int64_t count, size_t state_count, linalg_step_fn step,
                void *context, hlo_t *state);

/* ---- factorisations ---- */

/* LU with row exchanges (none unless |pivot|) of a stack: L and U in one matrix, and the exchanges
 * as LAPACK writes them, from 1, I32 [batch, min(rows, columns)]. */
void linalg_lu(hlo_graph_t *g, hlo_t x, bool pivot, hlo_t *out_factors, hlo_t *out_pivots);
/* The order of |rows| rows that the exchanges lead to: row i of the result was row order[i]. */
hlo_t linalg_pivot_order(hlo_graph_t *g, hlo_t pivots, int64_t rows);
/* x with A x = b, or adjoint(A) x = b, from the factors of A. */
hlo_t linalg_lu_apply(hlo_graph_t *g, hlo_t factors, hlo_t order, hlo_t b, bool adjoint);

/* I - tau v adjoint(v), which takes a column to a multiple of one unit vector below a row. */
typedef struct linalg_reflector {
  hlo_t v;    /* [batch, rows] */
  hlo_t beta; /* [batch]: what the column becomes in that row */
  hlo_t tau;  /* [batch] */
} linalg_reflector_t;
/* For the columns [batch, rows] and row |k|, a rank-0 node. The adjoint reflector does it. */
linalg_reflector_t linalg_make_reflector(hlo_graph_t *g, hlo_t column, hlo_t k);
/* x - factor v (adjoint(v) x): the reflector with |factor| for its tau times a stack. */
hlo_t linalg_apply_reflector(hlo_graph_t *g, hlo_t x, hlo_t v, hlo_t factor);
/* x - factor (x v) adjoint(v). */
hlo_t linalg_apply_reflector_right(hlo_graph_t *g, hlo_t x, hlo_t v, hlo_t factor);
/* Householder QR of a stack as LAPACK's geqrf: R above, the reflectors below the diagonal. */
void linalg_geqrf(hlo_graph_t *g, hlo_t x, hlo_t *out_packed, hlo_t *out_tau);
/* Q x, or adjoint(Q) x, for the reflectors in the columns of |packed|. */
hlo_t linalg_reflect(hlo_graph_t *g, hlo_t packed, hlo_t tau, hlo_t x, bool adjoint);
/* The first |columns| columns of Q. */
hlo_t linalg_form_q(hlo_graph_t *g, hlo_t packed, hlo_t tau, int64_t columns);

typedef struct linalg_svd {
  hlo_t u, s, v; /* x = u diag(s) adjoint(v); s is real and descending */
} linalg_svd_t;
/* Of a stack without empty dimensions. u and v are HLO_NONE unless |vectors|, square if |full|. */
linalg_svd_t linalg_svd(hlo_graph_t *g, hlo_t x, bool vectors, bool full);

/* Balances a stack of square matrices and reduces them to upper Hessenberg form. Rows below the
 * square matrix take part in what happens to its columns: those of an identity become the basis z
 * with x z = z h. Balancing permutes and scales the rows of z. */
hlo_t linalg_hessenberg(hlo_graph_t *g, hlo_t x);
typedef struct linalg_schur {
  hlo_t t;      /* what x becomes: triangular, of a real x with blocks of size 2 on the diagonal */
  hlo_t z;      /* its basis, x z = z t; HLO_NONE unless wanted */
  hlo_t failed; /* rank-0 BOOL: the iteration did not come to an end */
} linalg_schur_t;
/* Of a stack of square matrices without empty dimensions. */
linalg_schur_t linalg_schur(hlo_graph_t *g, hlo_t x, bool vectors);

/* ---- Jacobi rotations ----
 *
 * Columns are paired as in a tournament: the left half against the right half, then all but the
 * first move on one seat, so that after one round fewer than there are columns each pair has met
 * once and the columns are back in their order (Brent and Luk, "The solution of singular-value and
 * symmetric eigenvalue problems on multiprocessor arrays", SIAM J. Sci. Stat. Comput. 6, 1985). */
typedef struct linalg_rotation {
  hlo_t cosine, sine; /* real, [batch, pairs] */
  hlo_t phase;        /* multiplies the right column first, which makes the product real */
  hlo_t tangent;
} linalg_rotation_t;
/* Diagonalises [[a, x], [conj(x), b]]; a and b real. The identity where |active| is false. */
linalg_rotation_t linalg_rotation(hlo_graph_t *g, hlo_t a, hlo_t b, hlo_t x, hlo_t active);
/* Rotates columns (place 2) or, by the adjoint, rows (place 1). */
void linalg_rotate(hlo_graph_t *g, const linalg_rotation_t *rotation, int place, hlo_t *left,
                   hlo_t *right);
/* The next pairing, along dimension |place|. */
void linalg_next_round(hlo_graph_t *g, int place, hlo_t *left, hlo_t *right);
/* A dimension as two halves, a zero entry added to an odd one. */
void linalg_halves(hlo_graph_t *g, hlo_t x, int place, hlo_t *out_left, hlo_t *out_right);
/* The halves joined, |size| entries. */
hlo_t linalg_join(hlo_graph_t *g, hlo_t left, hlo_t right, int place, int64_t size);
/* Sorts |values| [batch, count]; |out_order| is I32. */
hlo_t linalg_sort(hlo_graph_t *g, hlo_t values, bool descending, hlo_t *out_order);

#endif /* TORUS_OPS_LINALG_H_ */
