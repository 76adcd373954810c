/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Joining, turning and cutting tensors: cat, roll, tril, and the backward of views. */
#include "ops/indexing.h"
#include "torus/memory.h"

/* ---- joining ---- */

/* The common type of a tensor list whose members all have dimensions. */
static torus_dtype_t list_dtype(torus_call_t *call, int list) {
  torus_dtype_t dtype = op_list_dtype(call, list, 0);
  for (int k = 1; k < op_list_size(call, list); ++k)
    dtype = torus_dtype_promote(dtype, op_list_dtype(call, list, k));
  return dtype;
}

/* torch.cat still accepts tensors of shape [0] next to any others. */
static bool is_legacy_empty(const hlo_graph_t *g, hlo_t x) {
  return hlo_rank(g, x) == 1 && hlo_dim(g, x, 0) == 0;
}

static bool check_joinable(torus_call_t *call, hlo_graph_t *g, hlo_t x, hlo_t y, int dim) {
  if (hlo_graph_failed(g))
    return false;
  bool fits = hlo_rank(g, x) == hlo_rank(g, y);
  for (int d = 0; fits && d < hlo_rank(g, x); ++d)
    fits = d == dim || hlo_dim(g, x, d) == hlo_dim(g, y, d);
  if (!fits)
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "Sizes of tensors must match except in dimension %d", dim);
  return fits;
}

/* Concatenates in balanced groups: compilers slow down on operations of thousands of operands. */
static hlo_t join(hlo_graph_t *g, hlo_t *xs, size_t count, int dim) {
  enum { GROUP = 64 };
  while (count > 1) {
    size_t kept = 0;
    for (size_t k = 0; k < count; k += GROUP) {
      size_t size = count - k < GROUP ? count - k : GROUP;
      xs[kept++] = size == 1 ? xs[k] : hlo_concatenate(g, xs + k, size, dim);
    }
    count = kept;
  }
  return xs[0];
}

static hlo_t *list_nodes(torus_call_t *call, hlo_graph_t *g, int list, torus_dtype_t dtype) {
  size_t count = (size_t)op_list_size(call, list);
  hlo_t *xs = torus_alloc(count * sizeof *xs);
  if (!xs) {
    op_error(call, TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
    return NULL;
  }
  for (size_t k = 0; k < count; ++k)
    xs[k] = hlo_convert(g, op_list_tensor(call, list, (int)k), dtype);
  return xs;
}

/* Drops the tensors without elements to join, keeping one: the first that is not of shape [0]. */
static size_t drop_legacy_empty(const hlo_graph_t *g, hlo_t *xs, size_t count) {
  size_t kept = 0;
  for (size_t k = 0; k < count; ++k)
    if (!is_legacy_empty(g, xs[k]))
      xs[kept++] = xs[k];
  return kept > 0 ? kept : 1;
}

static bool require_list(torus_call_t *call, int list) {
  if (op_list_size(call, list) > 0)
    return true;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "expected a non-empty list of Tensors");
  return false;
}

TORUS_OP(cat, "cat", TORUS_OP_KEEP_FORMAT) {
  if (!require_list(call, 0))
    return;
  hlo_t *xs = list_nodes(call, g, 0, list_dtype(call, 0));
  if (!xs)
    return;
  if (!hlo_graph_failed(g)) {
    size_t count = drop_legacy_empty(g, xs, (size_t)op_list_size(call, 0));
    int rank = hlo_rank(g, xs[0]), dim = op_dim(call, 1, rank);
    bool fits = !op_failed(call) && rank > 0;
    if (rank == 0)
      op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
               "zero-dimensional tensor cannot be concatenated");
    for (size_t k = 1; fits && k < count; ++k)
      fits = check_joinable(call, g, xs[0], xs[k], dim);
    if (fits)
      op_return(call, 0, join(g, xs, count, dim));
  }
  torus_free(xs);
}

static void stack(torus_call_t *call, hlo_graph_t *g) {
  if (!require_list(call, 0))
    return;
  hlo_t *xs = list_nodes(call, g, 0, list_dtype(call, 0));
  if (!xs)
    return;
  int dim = hlo_graph_failed(g) ? 0 : op_dim(call, 1, hlo_rank(g, xs[0]) + 1);
  bool fits = !op_failed(call) && !hlo_graph_failed(g);
  for (int k = 1; fits && k < op_list_size(call, 0); ++k)
    fits = check_joinable(call, g, xs[0], xs[k], -1);
  for (int k = 0; fits && k < op_list_size(call, 0); ++k)
    xs[k] = hlo_unsqueeze(g, xs[k], dim);
  if (fits)
    op_return(call, 0, join(g, xs, (size_t)op_list_size(call, 0), dim));
  torus_free(xs);
}

TORUS_OP(stack, "stack", 0) {
  stack(call, g);
}
TORUS_OP(stack_kernel, "_stack", 0) {
  stack(call, g);
}

/* ---- turning ---- */

TORUS_OP(flip, "flip", TORUS_OP_POINTWISE) {
  int dims[TORUS_MAX_RANK], given = 0;
  hlo_t x = op_tensor(call, 0);
  op_ints(call, 1, &given);
  int count = given > 0 ? op_dims(call, 1, hlo_rank(g, x), dims) : 0;
  if (op_failed(call) || hlo_graph_failed(g))
    return;
  bool turns = count > 0 && hlo_rank(g, x) > 0 && hlo_numel(g, x) > 0;
  op_return(call, 0, turns ? hlo_reverse(g, x, count, dims) : x);
}

/* Two copies end to end hold every rotation as a slice, whose start may change freely. */
static hlo_t roll_dim(hlo_graph_t *g, hlo_t x, int dim, int64_t shift) {
  int64_t size = hlo_dim(g, x, dim);
  if (hlo_graph_failed(g) || size <= 1 || hlo_numel(g, x) == 0)
    return x;
  int64_t start = (size - shift % size) % size;
  return hlo_slice_dim(g, hlo_concatenate(g, (hlo_t[]){x, x}, 2, dim), dim, start, size);
}

TORUS_OP(roll, "roll", 0) {
  int shift_count = 0, dim_count = 0;
  int64_t dims[TORUS_MAX_RANK];
  const int64_t *shifts = op_ints(call, 1, &shift_count);
  const int64_t *along = op_ints(call, 2, &dim_count);
  hlo_t x = op_tensor(call, 0);
  int rank = hlo_shape(g, x, dims);
  if (shift_count == 0 || (dim_count == 0 ? shift_count != 1 : shift_count != dim_count)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "shifts and dimensions must align");
    return;
  }
  if (dim_count == 0) {
    x = hlo_reshape(g, roll_dim(g, hlo_flatten(g, x), 0, shifts[0]), rank, dims);
  } else {
    for (int k = 0; k < dim_count && !op_failed(call); ++k) {
      int dim = op_wrap_dim(call, along[k], rank);
      if (rank > 0 && !op_failed(call))
        x = roll_dim(g, x, dim, shifts[k]);
    }
  }
  op_return(call, 0, x);
}

TORUS_OP(repeat, "repeat", 0) {
  int count = 0, rank = 0, places[TORUS_MAX_RANK];
  const int64_t *repeats = op_ints(call, 1, &count);
  int64_t own[TORUS_MAX_RANK], wide[2 * TORUS_MAX_RANK], result[TORUS_MAX_RANK];
  hlo_t x = op_tensor(call, 0);
  int own_rank = hlo_shape(g, x, own), lead = count - own_rank;
  if (lead < 0 || lead > TORUS_MAX_RANK || count + own_rank > TORUS_MAX_RANK) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "Number of dimensions of repeat dims can not be smaller than number of dimensions of "
             "tensor");
    return;
  }
  for (int d = 0; d < count; ++d) { /* each dimension as (repeats, size) */
    if (repeats[d] < 0) {
      op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "repeats must not be negative");
      return;
    }
    int64_t size = d < lead ? 1 : own[d - lead];
    result[d] = repeats[d] * size;
    wide[rank++] = repeats[d];
    if (d < lead)
      continue;
    places[d - lead] = rank;
    wide[rank++] = size;
  }
  x = hlo_broadcast_in_dim(g, x, rank, wide, places);
  op_return(call, 0, hlo_reshape(g, x, count, result));
}

/* ---- triangles and diagonals ---- */

static void keep_triangle(torus_call_t *call, hlo_graph_t *g, hlo_comparison_t how) {
  int64_t dims[TORUS_MAX_RANK];
  hlo_t x = op_tensor(call, 0);
  int rank = hlo_shape(g, x, dims);
  if (rank < 2) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "input tensor must have at least 2 dimensions");
    return;
  }
  hlo_t mask = index_diagonal_mask(g, how, rank, dims, rank - 2, rank - 1, op_int(call, 1));
  op_return(call, 0, hlo_select(g, mask, x, hlo_const(g, hlo_dtype(g, x), 0)));
}

TORUS_OP(tril, "tril", 0) {
  keep_triangle(call, g, HLO_LE);
}
TORUS_OP(triu, "triu", 0) {
  keep_triangle(call, g, HLO_GE);
}

/* Elements of the lower triangle (column - row <= offset) of a matrix. */
static int64_t lower_count(int64_t rows, int64_t columns, int64_t offset) {
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t width = row + offset + 1;
    count += width < 0 ? 0 : width > columns ? columns : width;
  }
  return count;
}

static void triangle_indices(torus_call_t *call, hlo_graph_t *g, hlo_comparison_t how) {
  int64_t dims[2] = {op_int(call, 0), op_int(call, 1)}, offset = op_int(call, 2);
  torus_dtype_t dtype = op_dtype_or(call, 3, TORUS_DTYPE_I64);
  if (dims[0] < 0 || dims[1] < 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "row and col must not be negative");
    return;
  }
  int64_t count = how == HLO_LE ? lower_count(dims[0], dims[1], offset)
                                : dims[0] * dims[1] - lower_count(dims[0], dims[1], offset - 1);
  if (count == 0) {
    op_return(call, 0, hlo_zeros(g, dtype, 2, (int64_t[]){2, 0}));
    return;
  }
  hlo_t mask = hlo_flatten(g, index_diagonal_mask(g, how, 2, dims, 0, 1, offset));
  hlo_t flat = index_true_positions(g, mask, count, 0);
  hlo_t width = hlo_soft_int(g, TORUS_DTYPE_I64, dims[1]);
  hlo_t pair[2] = {hlo_unsqueeze(g, hlo_divide(g, flat, width), 0),
                   hlo_unsqueeze(g, hlo_remainder(g, flat, width), 0)};
  op_return(call, 0, hlo_convert(g, hlo_concatenate(g, pair, 2, 0), dtype));
}

TORUS_OP(tril_indices, "tril_indices", 0) {
  triangle_indices(call, g, HLO_LE);
}
TORUS_OP(triu_indices, "triu_indices", 0) {
  triangle_indices(call, g, HLO_GE);
}

/* x with the diagonal over (dim1, dim2) replaced by |source|, whose last dimension runs along it.
 */
static hlo_t put_diagonal(torus_call_t *call, hlo_graph_t *g, hlo_t x, hlo_t source, int64_t offset,
                          int dim1, int dim2) {
  int64_t dims[TORUS_MAX_RANK], wide[TORUS_MAX_RANK];
  int rank = hlo_shape(g, x, dims), source_rank = hlo_rank(g, source), places[TORUS_MAX_RANK],
      n = 0;
  if (op_failed(call) || hlo_graph_failed(g))
    return HLO_NONE;
  int along = offset >= 0 ? dim1 : dim2; /* element k lies at index k of this dimension */
  int64_t high[TORUS_MAX_RANK] = {0}, none[TORUS_MAX_RANK] = {0};
  int64_t limit1 = dims[dim1] + (offset < 0 ? offset : 0);
  int64_t limit2 = dims[dim2] - (offset > 0 ? offset : 0);
  int64_t length = limit1 < limit2 ? limit1 : limit2;
  if (length < 0)
    length = 0;
  for (int d = 0; d < rank; ++d)
    if (d != dim1 && d != dim2)
      wide[n] = dims[d], places[n++] = d;
  wide[n] = length;
  places[n++] = along;
  bool fits = dim1 != dim2 && source_rank == rank - 1;
  for (int d = 0; fits && d < n; ++d)
    fits = hlo_dim(g, source, d) == wide[d];
  if (!fits) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "the source does not have the diagonal's shape");
    return HLO_NONE;
  }
  if (hlo_numel(g, source) == 0)
    return x;
  high[n - 1] = dims[along] - length;
  source = hlo_pad(g, source, hlo_const(g, hlo_dtype(g, source), 0), none, high, NULL);
  source = hlo_broadcast_in_dim(g, source, rank, dims, places);
  hlo_t mask = index_diagonal_mask(g, HLO_EQ, rank, dims, dim1, dim2, offset);
  return hlo_select(g, mask, source, x);
}

TORUS_OP(diagonal_backward, "diagonal_backward", 0) {
  int rank = 0;
  const int64_t *dims = op_ints(call, 1, &rank);
  hlo_t grad = op_tensor(call, 0), zeros = hlo_zeros(g, hlo_dtype(g, grad), rank, dims);
  op_return(call, 0,
            put_diagonal(call, g, zeros, grad, op_int(call, 2), op_dim(call, 3, rank),
                         op_dim(call, 4, rank)));
}

TORUS_OP(diagonal_scatter, "diagonal_scatter", 0) {
  hlo_t x = op_tensor(call, 0), source = op_tensor_as(call, 1, hlo_dtype(g, x));
  int rank = hlo_rank(g, x);
  op_return(call, 0,
            put_diagonal(call, g, x, source, op_int(call, 2), op_dim(call, 3, rank),
                         op_dim(call, 4, rank)));
}

TORUS_OP(diag_embed, "diag_embed", 0) {
  hlo_t x = op_tensor(call, 0);
  int rank = hlo_rank(g, x) + 1, n = 0;
  int64_t offset = op_int(call, 1), dims[TORUS_MAX_RANK];
  int dim1 = op_dim(call, 2, rank), dim2 = op_dim(call, 3, rank);
  if (op_failed(call) || hlo_graph_failed(g))
    return;
  if (dim1 == dim2 || rank < 2 || rank > TORUS_MAX_RANK) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "diagonal dimensions cannot be identical");
    return;
  }
  int64_t size = hlo_dim(g, x, rank - 2) + (offset < 0 ? -offset : offset);
  for (int d = 0; d < rank; ++d)
    dims[d] = d == dim1 || d == dim2 ? size : hlo_dim(g, x, n++);
  hlo_t zeros = hlo_zeros(g, hlo_dtype(g, x), rank, dims);
  op_return(call, 0, put_diagonal(call, g, zeros, x, offset, dim1, dim2));
}

/* ---- writing into views, and the backward of views ---- */

/* x with |source| written at |start|, |start| + step, ... of |dim|. */
static hlo_t put_slice(torus_call_t *call, hlo_graph_t *g, hlo_t x, hlo_t source, int dim,
                       int64_t start, int64_t step) {
  int64_t starts[TORUS_MAX_RANK] = {0}, none[TORUS_MAX_RANK] = {0}, gaps[TORUS_MAX_RANK] = {0};
  if (op_failed(call) || hlo_graph_failed(g))
    return HLO_NONE;
  if (hlo_numel(g, source) == 0)
    return x;
  starts[dim] = start;
  if (step == 1 || hlo_dim(g, source, dim) == 1)
    return hlo_update_slice(g, x, source, starts);
  gaps[dim] = step - 1;
  hlo_t zero = hlo_const(g, hlo_dtype(g, source), 0);
  hlo_t truth = hlo_full_like(g, source, TORUS_DTYPE_BOOL, 1);
  source = hlo_pad(g, source, zero, none, none, gaps);
  truth = hlo_pad(g, truth, hlo_const(g, TORUS_DTYPE_BOOL, 0), none, none, gaps);
  hlo_t values = hlo_update_slice(g, hlo_full_like(g, x, TORUS_DTYPE_INVALID, 0), source, starts);
  hlo_t written = hlo_full_like(g, x, TORUS_DTYPE_BOOL, 0);
  written = hlo_update_slice(g, written, truth, starts);
  return hlo_select(g, written, values, x);
}

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

/* A slice bound as Python means it. */
static int64_t slice_bound(int64_t bound, int64_t size) {
  return clamp(bound < 0 ? bound + size : bound, 0, size);
}

/* The number of elements of start:end:step, -1 for a bad step. */
static int64_t slice_length(torus_call_t *call, int64_t start, int64_t end, int64_t step) {
  if (step > 0)
    return end > start ? (end - start - 1) / step + 1 : 0;
  op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "slice step must be positive");
  return -1;
}

/* |source| must have x's shape with |dim| of size |length|. */
static bool check_part(torus_call_t *call, hlo_graph_t *g, hlo_t x, hlo_t source, int dim,
                       int64_t length) {
  if (op_failed(call) || hlo_graph_failed(g))
    return false;
  bool fits = hlo_rank(g, x) == hlo_rank(g, source);
  for (int d = 0; fits && d < hlo_rank(g, x); ++d)
    fits = hlo_dim(g, source, d) == (d == dim ? length : hlo_dim(g, x, d));
  if (!fits)
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "expected src to have a size equal to the slice");
  return fits;
}

TORUS_OP(select_backward, "select_backward", 0) {
  int rank = 0;
  const int64_t *dims = op_ints(call, 1, &rank);
  int dim = op_dim(call, 2, rank);
  if (op_failed(call) || rank == 0)
    return;
  hlo_t grad = hlo_unsqueeze(g, op_tensor(call, 0), dim);
  hlo_t zeros = hlo_zeros(g, hlo_dtype(g, grad), rank, dims);
  if (!check_part(call, g, zeros, grad, dim, 1))
    return;
  int64_t start = op_int(call, 3);
  if (start < 0)
    start += dims[dim];
  op_return(call, 0, put_slice(call, g, zeros, grad, dim, start, 1));
}

TORUS_OP(select_scatter, "select_scatter", 0) {
  hlo_t x = op_tensor(call, 0);
  int dim = op_dim(call, 2, hlo_rank(g, x));
  if (op_failed(call) || hlo_graph_failed(g) || hlo_rank(g, x) == 0) {
    op_error(call, TORUS_STATUS_OUT_OF_RANGE, "select_scatter: bad dimension");
    return;
  }
  hlo_t source = hlo_unsqueeze(g, op_tensor_as(call, 1, hlo_dtype(g, x)), dim);
  int64_t size = hlo_dim(g, x, dim), start = op_int(call, 3);
  if (start < 0)
    start += size;
  if (start < 0 || start >= size) {
    op_error(call, TORUS_STATUS_OUT_OF_RANGE, "select_scatter: index out of range");
    return;
  }
  if (check_part(call, g, x, source, dim, 1))
    op_return(call, 0, put_slice(call, g, x, source, dim, start, 1));
}

TORUS_OP(slice_backward, "slice_backward", 0) {
  int rank = 0;
  const int64_t *dims = op_ints(call, 1, &rank);
  int dim = op_dim(call, 2, rank);
  if (op_failed(call) || rank == 0)
    return;
  hlo_t grad = op_tensor(call, 0), zeros = hlo_zeros(g, hlo_dtype(g, grad), rank, dims);
  int64_t start = slice_bound(op_int(call, 3), dims[dim]);
  int64_t end = slice_bound(op_int(call, 4), dims[dim]), step = op_int(call, 5);
  if (check_part(call, g, zeros, grad, dim, slice_length(call, start, end, step)))
    op_return(call, 0, put_slice(call, g, zeros, grad, dim, start, step));
}

TORUS_OP(slice_scatter, "slice_scatter", 0) {
  hlo_t x = op_tensor(call, 0), source = op_tensor_as(call, 1, hlo_dtype(g, x));
  int dim = op_dim(call, 2, hlo_rank(g, x));
  if (op_failed(call) || hlo_graph_failed(g) || hlo_rank(g, x) == 0) {
    op_error(call, TORUS_STATUS_OUT_OF_RANGE, "slice_scatter: bad dimension");
    return;
  }
  int64_t dims[TORUS_MAX_RANK], size = hlo_dim(g, x, dim);
  int64_t start = slice_bound(op_int_or(call, 3, 0), size);
  int64_t end = slice_bound(op_int_or(call, 4, size), size), step = op_int(call, 5);
  int64_t length = slice_length(call, start, end, step);
  if (op_failed(call))
    return;
  int rank = hlo_shape(g, x, dims);
  dims[dim] = length;
  if (hlo_rank(g, source) <= rank)
    source = hlo_expand(g, source, rank, dims);
  if (check_part(call, g, x, source, dim, length))
    op_return(call, 0, put_slice(call, g, x, source, dim, start, step));
}

/* ---- complex numbers from two parts ---- */

static bool complex_parts(torus_call_t *call, hlo_graph_t *g, hlo_t *out_x, hlo_t *out_y) {
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  if (dtype == op_tensor_dtype(call, 1) && dtype == TORUS_DTYPE_F16) {
    op_fallback(call, "complex numbers of half parts");
    return false;
  }
  if (dtype != op_tensor_dtype(call, 1) || (dtype != TORUS_DTYPE_F32 && dtype != TORUS_DTYPE_F64)) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "Expected both inputs to be Float or Double");
    return false;
  }
  op_binary_operands(call, 0, 1, dtype, out_x, out_y);
  return !op_failed(call) && !hlo_graph_failed(g);
}

TORUS_OP(complex, "complex", 0) {
  hlo_t x, y;
  if (complex_parts(call, g, &x, &y))
    op_return(call, 0, hlo_complex(g, x, y));
}

TORUS_OP(polar, "polar", 0) {
  hlo_t r, angle;
  if (!complex_parts(call, g, &r, &angle))
    return;
  op_return(call, 0,
            hlo_complex(g, hlo_multiply(g, r, hlo_cosine(g, angle)),
                        hlo_multiply(g, r, hlo_sine(g, angle))));
}
