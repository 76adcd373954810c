/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Losses whose target names classes: negative log likelihood and the multi-class margins. */
#include "ops/loss.h"
#include "ops/math.h"

static hlo_t constant(hlo_graph_t *g, hlo_t x, double value) {
  return hlo_const(g, hlo_dtype(g, x), value);
}

/* True where |index| is at least 0 and below |size|. */
static hlo_t is_class(hlo_graph_t *g, hlo_t index, int64_t size) {
  hlo_t limit = math_size(g, hlo_dtype(g, index), size);
  return hlo_and(g, hlo_compare_f(g, HLO_GE, index, 0), hlo_compare(g, HLO_LT, index, limit));
}

static void check_classes(torus_call_t *call, hlo_graph_t *g, hlo_t valid, hlo_t index,
                          int64_t size) {
  hlo_t bad = hlo_and(g, valid, hlo_not(g, is_class(g, index, size)));
  if (hlo_rank(g, bad) > 0) bad = hlo_reduce_all(g, HLO_REDUCE_OR, bad);
  op_check(call, bad, TORUS_STATUS_OUT_OF_RANGE, "Target is out of bounds.");
}

/* ---- negative log likelihood ---- */

typedef struct nll {
  hlo_t x;      /* log probabilities */
  hlo_t valid;  /* BOOL: targets that are not to be ignored */
  hlo_t target; /* I64, 0 where ignored */
  hlo_t weight; /* of each target, 0 where ignored */
  int dim;      /* of the classes in x */
  int64_t reduction;
} nll_t;

/* Weight of every target: its class's weight (argument i), else 1; 0 where it is ignored. */
static hlo_t target_weights(torus_call_t *call, hlo_graph_t *g, int i, const nll_t *n) {
  hlo_t one = hlo_full_like(g, n->target, hlo_dtype(g, n->x), 1);
  if (op_has(call, i)) {
    one = hlo_take(g, op_tensor_as(call, i, hlo_dtype(g, n->x)), 0, n->target);
  }
  return hlo_select(g, n->valid, one, constant(g, n->x, 0));
}

/* self, target, weight, reduction and ignore_index stand at |first| and after. */
static bool read_nll(torus_call_t *call, hlo_graph_t *g, int first, nll_t *out) {
  torus_dtype_t dtype = op_tensor_dtype(call, first);
  int rank = op_tensor_rank(call, first);
  if (!torus_dtype_is_float(dtype) || rank < 1 || op_tensor_rank(call, first + 1) != rank - 1) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "nll_loss of %s, rank %d, with targets of rank %d", torus_dtype_name(dtype), rank,
             op_tensor_rank(call, first + 1));
    return false;
  }
  out->dim = rank == 1 ? 0 : 1;
  out->reduction = op_int(call, first + 3);
  out->x = op_tensor_as(call, first, op_accumulate_type(dtype));
  hlo_t target = op_tensor_as(call, first + 1, TORUS_DTYPE_I64);
  hlo_t ignored = hlo_soft_int(g, TORUS_DTYPE_I64, op_int(call, first + 4));
  out->valid = hlo_compare(g, HLO_NE, target, ignored);
  check_classes(call, g, out->valid, target, op_tensor_dim(call, first, out->dim));
  out->target = hlo_select(g, out->valid, target, constant(g, target, 0));
  out->weight = target_weights(call, g, first + 2, out);
  return !op_failed(call);
}

static void nll_forward(torus_call_t *call, hlo_graph_t *g) {
  nll_t n;
  if (!read_nll(call, g, 0, &n)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  hlo_t picked = hlo_take_along(g, n.x, n.dim, hlo_unsqueeze(g, n.target, n.dim));
  picked = hlo_squeeze(g, picked, n.dim);
  hlo_t loss = hlo_negate(g, hlo_multiply(g, n.weight, picked));
  loss = hlo_select(g, n.valid, loss, constant(g, loss, 0));
  hlo_t total = math_sum(g, n.weight);
  if (n.reduction != LOSS_NONE) loss = math_sum(g, loss);
  if (n.reduction == LOSS_MEAN) loss = hlo_divide(g, loss, total);
  if (n.reduction == LOSS_NONE) total = constant(g, n.x, 0);
  op_return(call, 0, hlo_convert(g, loss, dtype));
  op_return(call, 1, hlo_convert(g, total, dtype));
}

/* A comparison with the class numbers instead of a scatter: it fuses with what follows. */
static void nll_backward(torus_call_t *call, hlo_graph_t *g) {
  nll_t n;
  int64_t dims[TORUS_MAX_RANK];
  if (!read_nll(call, g, 1, &n)) return;
  hlo_t dy = op_tensor_as(call, 0, hlo_dtype(g, n.x));
  if (n.reduction == LOSS_MEAN) dy = hlo_divide(g, dy, op_tensor_as(call, 6, hlo_dtype(g, n.x)));
  hlo_t slope = hlo_negate(g, hlo_multiply(g, n.weight, dy));
  int rank = hlo_shape(g, n.x, dims);
  hlo_t target = hlo_convert(g, n.target, TORUS_DTYPE_I32);
  target = hlo_expand(g, hlo_unsqueeze(g, target, n.dim), rank, dims);
  slope = hlo_expand(g, hlo_unsqueeze(g, slope, n.dim), rank, dims);
  hlo_t valid = hlo_expand(g, hlo_unsqueeze(g, n.valid, n.dim), rank, dims);
  hlo_t classes = hlo_iota(g, TORUS_DTYPE_I32, rank, dims, n.dim);
  hlo_t hit = hlo_and(g, hlo_compare(g, HLO_EQ, classes, target), valid);
  hlo_t dx = hlo_select(g, hit, slope, constant(g, slope, 0));
  op_return(call, 0, hlo_convert(g, dx, op_tensor_dtype(call, 1)));
}

TORUS_OP(nll_loss_forward, "nll_loss_forward", 0) {
  nll_forward(call, g);
}
TORUS_OP(nll_loss2d_forward, "nll_loss2d_forward", 0) {
  nll_forward(call, g);
}
TORUS_OP(nll_loss_backward, "nll_loss_backward", 0) {
  nll_backward(call, g);
}
TORUS_OP(nll_loss2d_backward, "nll_loss2d_backward", 0) {
  nll_backward(call, g);
}

/* ---- samples by classes ---- */

/* Argument i, of shape (N, C) or (C), as (N, C). */
static hlo_t read_rows(torus_call_t *call, hlo_graph_t *g, int i, torus_dtype_t dtype) {
  int rank = op_tensor_rank(call, i);
  if (rank > 2) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "expected one or two dimensions, got %d", rank);
    return HLO_NONE;
  }
  int64_t dims[2] = {rank == 2 ? op_tensor_dim(call, i, 0) : 1,
                     rank > 0 ? op_tensor_dim(call, i, rank - 1) : 1};
  return hlo_reshape(g, op_tensor_as(call, i, dtype), 2, dims);
}

/* x of shape (N, C) in the shape and type of argument i. */
static hlo_t reshape_like(torus_call_t *call, hlo_graph_t *g, hlo_t x, int i) {
  int64_t dims[2] = {0, 0};
  int rank = op_tensor_rank(call, i);
  for (int d = 0; d < rank && d < 2; d++)
    dims[d] = op_tensor_dim(call, i, d);
  return hlo_convert(g, hlo_reshape(g, x, rank, dims), op_tensor_dtype(call, i));
}

/* Column |y| of shape (N) as (N, C). */
static hlo_t over_classes(hlo_graph_t *g, hlo_t y, hlo_t like) {
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, like, dims);
  return hlo_broadcast_in_dim(g, y, rank, dims, (const int[]){0});
}

/* Gradient 0 as (N): one number for reduced losses, one per sample otherwise. */
static hlo_t read_row_share(torus_call_t *call, hlo_graph_t *g, hlo_t x, int64_t reduction) {
  int64_t rows = hlo_dim(g, x, 0), classes = hlo_dim(g, x, 1);
  hlo_t dy = op_tensor_as(call, 0, hlo_dtype(g, x));
  dy = loss_share(g, dy, reduction, rows);
  dy = hlo_divide(g, dy, math_size(g, hlo_dtype(g, x), classes));
  return hlo_rank(g, dy) == 0 ? hlo_splat(g, dy, 1, &rows) : dy;
}

/* Per-sample losses (N) as result 0; a single sample without dimensions gives a number. */
static void return_rows(torus_call_t *call, hlo_graph_t *g, hlo_t loss, int64_t reduction,
                        bool is_single) {
  if (is_single) loss = hlo_reshape(g, loss, 0, NULL);
  loss_return(call, g, loss, reduction, op_tensor_dtype(call, 0));
}

static hlo_t row_sum(hlo_graph_t *g, hlo_t x) {
  return hlo_reduce(g, HLO_REDUCE_ADD, x, 1, (const int[]){1}, false);
}

/* ---- multi-class margin ---- */

typedef struct margin {
  hlo_t x;      /* (N, C) */
  hlo_t hit;    /* (N, C) BOOL: the target class */
  hlo_t slack;  /* (N, C): margin - x[target] + x, 0 at the target and where it is negative */
  hlo_t weight; /* (N) */
  bool squared;
} margin_t;

/* self, target, p, margin and weight stand at |first| and after. */
static bool read_margin(torus_call_t *call, hlo_graph_t *g, int first, margin_t *out) {
  torus_dtype_t dtype = op_accumulate_type(op_tensor_dtype(call, first));
  out->x = read_rows(call, g, first, dtype);
  if (op_failed(call)) return false;
  int64_t dims[2] = {hlo_dim(g, out->x, 0), hlo_dim(g, out->x, 1)};
  hlo_t target = hlo_reshape(g, op_tensor_as(call, first + 1, TORUS_DTYPE_I64), 1, dims);
  if (op_failed(call)) return false;
  check_classes(call, g, hlo_full_like(g, target, TORUS_DTYPE_BOOL, 1), target, dims[1]);
  hlo_t classes = hlo_iota(g, TORUS_DTYPE_I64, 2, dims, 1);
  out->hit = hlo_compare(g, HLO_EQ, classes, over_classes(g, target, classes));
  hlo_t own = row_sum(g, hlo_select(g, out->hit, out->x, constant(g, out->x, 0)));
  hlo_t margin = hlo_soft(g, dtype, op_double(call, first + 3));
  hlo_t slack = hlo_add(g, hlo_subtract(g, margin, over_classes(g, own, out->x)), out->x);
  out->slack = hlo_select(g, out->hit, constant(g, out->x, 0), math_relu(g, slack));
  out->weight = op_has(call, first + 4)
                    ? hlo_take(g, op_tensor_as(call, first + 4, dtype), 0, target)
                    : hlo_full_like(g, target, dtype, 1);
  out->squared = op_double(call, first + 2) == 2.0;
  return !op_failed(call);
}

TORUS_OP(multi_margin_loss, "multi_margin_loss", 0) {
  margin_t m;
  if (!read_margin(call, g, 0, &m)) return;
  hlo_t loss = row_sum(g, m.squared ? math_square(g, m.slack) : m.slack);
  loss = hlo_divide(g, loss, math_size(g, hlo_dtype(g, m.x), hlo_dim(g, m.x, 1)));
  bool is_single = op_tensor_rank(call, 1) == 0;
  return_rows(call, g, hlo_multiply(g, loss, m.weight), op_int(call, 5), is_single);
}

TORUS_OP(multi_margin_loss_backward, "multi_margin_loss_backward", 0) {
  margin_t m;
  if (!read_margin(call, g, 1, &m)) return;
  hlo_t dy = hlo_multiply(g, read_row_share(call, g, m.x, op_int(call, 6)), m.weight);
  hlo_t slope = m.squared ? hlo_multiply_f(g, m.slack, 2) : hlo_sign(g, m.slack);
  slope = hlo_multiply(g, slope, over_classes(g, dy, m.x));
  hlo_t own = hlo_negate(g, row_sum(g, slope));
  hlo_t dx = hlo_select(g, m.hit, over_classes(g, own, m.x), slope);
  op_return(call, 0, reshape_like(call, g, dx, 1));
}

/* ---- multi-label margin ---- */

typedef struct labels {
  hlo_t x;         /* (N, C) */
  hlo_t target;    /* (N, C) I64: classes, in front of the first -1 */
  hlo_t valid;     /* (N, C) BOOL: in front of the first -1 */
  hlo_t is_target; /* (N, C) BOOL: class is among the targets */
  hlo_t slack;     /* (N, K, C): 1 - x[target k] + x[c] where positive and c is no target */
} labels_t;

/* (N, C) as (N, C, C) with the missing dimension at |gap|. */
static hlo_t over_pairs(hlo_graph_t *g, hlo_t x, int gap) {
  int64_t dims[3] = {hlo_dim(g, x, 0), hlo_dim(g, x, 1), hlo_dim(g, x, 1)};
  const int places[2] = {0, gap == 1 ? 2 : 1};
  return hlo_broadcast_in_dim(g, x, 3, dims, places);
}

static hlo_t find_targets(hlo_graph_t *g, const labels_t *l) {
  int64_t dims[3] = {hlo_dim(g, l->x, 0), hlo_dim(g, l->x, 1), hlo_dim(g, l->x, 1)};
  hlo_t classes = hlo_iota(g, TORUS_DTYPE_I64, 3, dims, 2);
  hlo_t hit = hlo_compare(g, HLO_EQ, classes, over_pairs(g, l->target, 2));
  hit = hlo_and(g, hit, over_pairs(g, l->valid, 2));
  return hlo_reduce(g, HLO_REDUCE_OR, hit, 1, (const int[]){1}, false);
}

static bool read_labels(torus_call_t *call, hlo_graph_t *g, int first, labels_t *out) {
  torus_dtype_t dtype = op_accumulate_type(op_tensor_dtype(call, first));
  out->x = read_rows(call, g, first, dtype);
  hlo_t target = read_rows(call, g, first + 1, TORUS_DTYPE_I64);
  if (op_failed(call) || !hlo_same_shape(g, out->x, target)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "inconsistent target size");
    return false;
  }
  hlo_t named = hlo_convert(g, hlo_compare_f(g, HLO_GE, target, 0), TORUS_DTYPE_I32);
  named = hlo_scan(g, HLO_REDUCE_MINIMUM, named, 1);
  out->valid = hlo_convert(g, named, TORUS_DTYPE_BOOL);
  check_classes(call, g, out->valid, target, hlo_dim(g, out->x, 1));
  out->target = hlo_select(g, out->valid, target, constant(g, target, 0));
  out->is_target = find_targets(g, out);
  hlo_t own = hlo_take_along(g, out->x, 1, out->target);
  hlo_t slack = hlo_subtract(g, over_pairs(g, out->x, 1), over_pairs(g, own, 2));
  hlo_t counts =
      hlo_and(g, over_pairs(g, out->valid, 2), hlo_not(g, over_pairs(g, out->is_target, 1)));
  slack = math_relu(g, hlo_add_f(g, slack, 1));
  out->slack = hlo_select(g, counts, slack, constant(g, slack, 0));
  return !op_failed(call);
}

TORUS_OP(multilabel_margin_loss_forward, "multilabel_margin_loss_forward", 0) {
  labels_t l;
  if (!read_labels(call, g, 0, &l)) return;
  hlo_t loss = hlo_reduce(g, HLO_REDUCE_ADD, l.slack, 2, (const int[]){1, 2}, false);
  loss = hlo_divide(g, loss, math_size(g, hlo_dtype(g, l.x), hlo_dim(g, l.x, 1)));
  return_rows(call, g, loss, op_int(call, 2), op_tensor_rank(call, 0) < 2);
  op_return(call, 1, reshape_like(call, g, l.is_target, 0));
}

TORUS_OP(multilabel_margin_loss_backward, "multilabel_margin_loss_backward", 0) {
  labels_t l;
  if (!read_labels(call, g, 1, &l)) return;
  hlo_t dy = over_classes(g, read_row_share(call, g, l.x, op_int(call, 3)), l.x);
  hlo_t active = hlo_sign(g, l.slack);
  hlo_t pushed = hlo_reduce(g, HLO_REDUCE_ADD, active, 1, (const int[]){1}, false);
  hlo_t pulled = hlo_reduce(g, HLO_REDUCE_ADD, active, 1, (const int[]){2}, false);
  hlo_t dx = hlo_put_along(g, HLO_SCATTER_ADD, pushed, 1, l.target, hlo_negate(g, pulled));
  op_return(call, 0, reshape_like(call, g, hlo_multiply(g, dx, dy), 1));
}
