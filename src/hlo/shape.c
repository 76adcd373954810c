/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The same elements in another shape: reshape, transpose, broadcast, concatenate, reverse, pad. */
#include <string.h>

#include "hlo/graph_internal.h"

/* A node of one operand with attributes. */
static hlo_t append_moved(hlo_graph_t *g, hlo_op_t op, hlo_t x, int rank, const int64_t *dims,
                          size_t attr_count, const int64_t *attrs) {
  return hlo_append(g, &(hlo_spec_t){.op = op,
                                     .dtype = hlo_dtype(g, x),
                                     .rank = rank,
                                     .dims = dims,
                                     .operands = &x,
                                     .operand_count = 1,
                                     .attrs = attrs,
                                     .attr_count = attr_count});
}

/* Every element of a constant is the same, so moving them makes a constant of another shape. */
static bool is_constant(const hlo_graph_t *g, hlo_t x) {
  return hlo_node(g, x)->op == HLO_OP_CONSTANT;
}

static hlo_t constant_as(hlo_graph_t *g, hlo_t x, int rank, const int64_t *dims) {
  return hlo_append_constant(g, hlo_dtype(g, x), hlo_attrs(g, x)[0], rank, dims);
}

static bool has_dims(const hlo_graph_t *g, hlo_t x, int rank, const int64_t *dims) {
  return rank == hlo_rank(g, x) &&
         (rank == 0 || memcmp(hlo_dims(g, x), dims, (size_t)rank * sizeof *dims) == 0);
}

/* ---- reshape ---- */

hlo_t hlo_reshape(hlo_graph_t *g, hlo_t x, int rank, const int64_t *dims) {
  if (!hlo_usable(g, HLO_OP_RESHAPE, x)) return HLO_NONE;
  if (has_dims(g, x, rank, dims)) return x;
  if (hlo_product(rank, dims) != hlo_numel(g, x)) {
    char from[HLO_TYPE_TEXT], to[HLO_TYPE_TEXT];
    return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "reshape: %s has not as many elements as %s",
                    hlo_type_text(g, x, from), hlo_shape_text(hlo_dtype(g, x), rank, dims, to));
  }
  if (is_constant(g, x)) return constant_as(g, x, rank, dims);
  if (hlo_node(g, x)->op == HLO_OP_RESHAPE) {
    x = hlo_operand(g, x, 0);
    if (has_dims(g, x, rank, dims)) return x;
  }
  return append_moved(g, HLO_OP_RESHAPE, x, rank, dims, 0, NULL);
}

hlo_t hlo_flatten(hlo_graph_t *g, hlo_t x) {
  return hlo_reshape(g, x, 1, (int64_t[]){hlo_numel(g, x)});
}

hlo_t hlo_unsqueeze(hlo_graph_t *g, hlo_t x, int dim) {
  if (!hlo_usable(g, HLO_OP_RESHAPE, x)) return HLO_NONE;
  int64_t dims[TORUS_MAX_RANK + 1];
  int rank = hlo_shape(g, x, dims);
  if (dim < 0 || dim > rank) {
    hlo_check_dim(g, HLO_OP_RESHAPE, x, rank);
    return HLO_NONE;
  }
  memmove(dims + dim + 1, dims + dim, (size_t)(rank - dim) * sizeof *dims);
  dims[dim] = 1;
  return hlo_reshape(g, x, rank + 1, dims);
}

hlo_t hlo_squeeze(hlo_graph_t *g, hlo_t x, int dim) {
  if (!hlo_usable(g, HLO_OP_RESHAPE, x) || !hlo_check_dim(g, HLO_OP_RESHAPE, x, dim)) {
    return HLO_NONE;
  }
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, x, dims);
  memmove(dims + dim, dims + dim + 1, (size_t)(rank - dim - 1) * sizeof *dims);
  return hlo_reshape(g, x, rank - 1, dims);
}

/* ---- transpose ---- */

static bool is_permutation(const int *permutation, int rank) {
  uint32_t seen = 0;
  for (int i = 0; i < rank; i++) {
    if (permutation[i] < 0 || permutation[i] >= rank) return false;
    seen |= UINT32_C(1) << permutation[i];
  }
  return rank == 0 || seen == UINT32_MAX >> (32 - rank);
}

/* attrs: result dimension i is operand dimension attrs[i]. */
hlo_t hlo_transpose(hlo_graph_t *g, hlo_t x, const int *permutation) {
  if (!hlo_usable(g, HLO_OP_TRANSPOSE, x)) return HLO_NONE;
  int rank = hlo_rank(g, x);
  if (!is_permutation(permutation, rank)) {
    return hlo_fail_types(g, HLO_OP_TRANSPOSE, "not a permutation of the dimensions", x, HLO_NONE);
  }
  int64_t places[TORUS_MAX_RANK], dims[TORUS_MAX_RANK];
  bool again = hlo_node(g, x)->op == HLO_OP_TRANSPOSE;
  hlo_t source = again ? hlo_operand(g, x, 0) : x;
  bool same = true;
  for (int i = 0; i < rank; i++) {
    places[i] = again ? hlo_attrs(g, x)[permutation[i]] : permutation[i];
    dims[i] = hlo_dims(g, x)[permutation[i]];
    same &= places[i] == i;
  }
  if (same) return source;
  if (is_constant(g, x)) return constant_as(g, x, rank, dims);
  return append_moved(g, HLO_OP_TRANSPOSE, source, rank, dims, (size_t)rank, places);
}

hlo_t hlo_swap_dims(hlo_graph_t *g, hlo_t x, int a, int b) {
  if (!hlo_usable(g, HLO_OP_TRANSPOSE, x) || !hlo_check_dim(g, HLO_OP_TRANSPOSE, x, a) ||
      !hlo_check_dim(g, HLO_OP_TRANSPOSE, x, b)) {
    return HLO_NONE;
  }
  int permutation[TORUS_MAX_RANK];
  for (int i = 0; i < TORUS_MAX_RANK; i++) permutation[i] = i;
  permutation[a] = b;
  permutation[b] = a;
  return hlo_transpose(g, x, permutation);
}

/* ---- broadcast ---- */

static bool fits_places(const hlo_graph_t *g, hlo_t x, int rank, const int64_t *dims,
                        const int *places) {
  for (int i = 0; i < hlo_rank(g, x); i++) {
    if (places[i] < 0 || places[i] >= rank) return false;
    for (int k = 0; k < i; k++) {
      if (places[k] == places[i]) return false;
    }
    int64_t size = hlo_dims(g, x)[i];
    if (size != 1 && size != dims[places[i]]) return false;
  }
  return true;
}

/* attrs: result dimension of each operand dimension. */
hlo_t hlo_broadcast_in_dim(hlo_graph_t *g, hlo_t x, int rank, const int64_t *dims,
                           const int *places) {
  if (!hlo_usable(g, HLO_OP_BROADCAST, x)) return HLO_NONE;
  if (!fits_places(g, x, rank, dims, places)) {
    char from[HLO_TYPE_TEXT], to[HLO_TYPE_TEXT];
    return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "broadcast_in_dim: %s does not stretch to %s",
                    hlo_type_text(g, x, from), hlo_shape_text(hlo_dtype(g, x), rank, dims, to));
  }
  bool same = has_dims(g, x, rank, dims);
  int64_t attrs[TORUS_MAX_RANK];
  for (int i = 0; i < hlo_rank(g, x); i++) {
    attrs[i] = places[i];
    same &= places[i] == i;
  }
  if (same) return x;
  if (is_constant(g, x)) return constant_as(g, x, rank, dims);
  return append_moved(g, HLO_OP_BROADCAST, x, rank, dims, (size_t)hlo_rank(g, x), attrs);
}

hlo_t hlo_expand(hlo_graph_t *g, hlo_t x, int rank, const int64_t *dims) {
  if (!hlo_usable(g, HLO_OP_BROADCAST, x)) return HLO_NONE;
  int places[TORUS_MAX_RANK];
  int old_rank = hlo_rank(g, x);
  for (int i = 0; i < old_rank; i++) places[i] = rank - old_rank + i;
  return hlo_broadcast_in_dim(g, x, rank, dims, places);
}

int hlo_broadcast_shape(hlo_graph_t *g, int rank_a, const int64_t *dims_a, int rank_b,
                        const int64_t *dims_b, int64_t *out_dims) {
  int rank = rank_a > rank_b ? rank_a : rank_b;
  for (int i = 0; i < rank; i++) {
    int from_a = i - (rank - rank_a), from_b = i - (rank - rank_b);
    int64_t a = from_a < 0 ? 1 : dims_a[from_a], b = from_b < 0 ? 1 : dims_b[from_b];
    if (a != b && a != 1 && b != 1) {
      hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT,
               "broadcast: sizes %lld and %lld differ at dimension %d of %d", (long long)a,
               (long long)b, i, rank);
      return -1;
    }
    out_dims[i] = a == 1 ? b : a;
  }
  return rank;
}

hlo_t hlo_broadcast_back(hlo_graph_t *g, hlo_t x, hlo_t like, int dim_count, const int *dims) {
  if (!hlo_usable(g, HLO_OP_BROADCAST, x) || !hlo_usable(g, HLO_OP_BROADCAST, like)) {
    return HLO_NONE;
  }
  uint32_t gone = 0;
  for (int i = 0; i < dim_count; i++) {
    if (!hlo_check_dim(g, HLO_OP_BROADCAST, like, dims[i])) return HLO_NONE;
    gone |= UINT32_C(1) << dims[i];
  }
  int64_t shape[TORUS_MAX_RANK];
  int rank = hlo_shape(g, like, shape), kept = 0, places[TORUS_MAX_RANK];
  for (int i = 0; i < rank; i++) {
    if (!(gone >> i & 1)) places[kept++] = i;
  }
  if (kept != hlo_rank(g, x)) {
    return hlo_fail_types(g, HLO_OP_BROADCAST, "the first is not a reduction of the second", x,
                          like);
  }
  return hlo_broadcast_in_dim(g, x, rank, shape, places);
}

/* ---- pad, concatenate, reverse ---- */

static bool pad_dims(hlo_graph_t *g, hlo_t x, const int64_t *attrs, int64_t *out_dims) {
  int rank = hlo_shape(g, x, out_dims);
  for (int i = 0; i < rank; i++) {
    int64_t inner = attrs[2 * rank + i], n = out_dims[i];
    int64_t size = n + (n > 1 ? (n - 1) * inner : 0) + attrs[i] + attrs[rank + i];
    if (inner < 0 || size < 0) {
      hlo_fail_types(g, HLO_OP_PAD, "the padding leaves a negative size", x, HLO_NONE);
      return false;
    }
    out_dims[i] = size;
  }
  return true;
}

/* attrs: low, high, interior, one number each per dimension. */
hlo_t hlo_pad(hlo_graph_t *g, hlo_t x, hlo_t value, const int64_t *low, const int64_t *high,
              const int64_t *interior) {
  if (!hlo_usable(g, HLO_OP_PAD, x) || !hlo_usable(g, HLO_OP_PAD, value)) return HLO_NONE;
  if (hlo_dtype(g, x) != hlo_dtype(g, value) || hlo_rank(g, value) != 0) {
    return hlo_fail_types(g, HLO_OP_PAD, "the filling must be one number of the same type", x,
                          value);
  }
  int rank = hlo_rank(g, x);
  int64_t attrs[3 * TORUS_MAX_RANK], dims[TORUS_MAX_RANK];
  bool same = true;
  for (int i = 0; i < rank; i++) {
    attrs[i] = low[i];
    attrs[rank + i] = high[i];
    attrs[2 * rank + i] = interior ? interior[i] : 0;
    same &= !low[i] && !high[i] && (!attrs[2 * rank + i] || hlo_dims(g, x)[i] < 2);
  }
  if (same) return x;
  if (!pad_dims(g, x, attrs, dims)) return HLO_NONE;
  if (hlo_numel(g, x) == 0) return hlo_splat(g, value, rank, dims);
  return hlo_append(g, &(hlo_spec_t){.op = HLO_OP_PAD,
                                     .dtype = hlo_dtype(g, x),
                                     .rank = rank,
                                     .dims = dims,
                                     .operands = (hlo_t[]){x, value},
                                     .operand_count = 2,
                                     .attrs = attrs,
                                     .attr_count = 3 * (size_t)rank});
}

static bool concatenates(const hlo_graph_t *g, hlo_t x, hlo_t y, int dim) {
  int rank = hlo_rank(g, x);
  if (hlo_dtype(g, x) != hlo_dtype(g, y) || rank != hlo_rank(g, y)) return false;
  for (int i = 0; i < rank; i++) {
    if (i != dim && hlo_dims(g, x)[i] != hlo_dims(g, y)[i]) return false;
  }
  return true;
}

/* Appends only the operands that have elements, straight from the caller's list. */
static hlo_t append_concatenate(hlo_graph_t *g, const hlo_t *xs, size_t count, int dim, int rank,
                                const int64_t *dims) {
  hlo_t y = hlo_append(g, &(hlo_spec_t){.op = HLO_OP_CONCATENATE,
                                        .dtype = hlo_dtype(g, xs[0]),
                                        .rank = rank,
                                        .dims = dims,
                                        .operands = xs,
                                        .operand_count = count,
                                        .attrs = (int64_t[]){dim},
                                        .attr_count = 1});
  if (y == HLO_NONE) return HLO_NONE;
  hlo_t *operands = g->operands + g->nodes[y].operands;
  uint32_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    if (hlo_dims(g, xs[i])[dim] > 0) operands[kept++] = xs[i];
  }
  g->nodes[y].operand_count = kept;
  return y;
}

/* attrs: the dimension. */
hlo_t hlo_concatenate(hlo_graph_t *g, const hlo_t *xs, size_t count, int dim) {
  if (count == 0) {
    return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "concatenate: there are no operands");
  }
  if (!hlo_usable_all(g, HLO_OP_CONCATENATE, xs, count) ||
      !hlo_check_dim(g, HLO_OP_CONCATENATE, xs[0], dim)) {
    return HLO_NONE;
  }
  int64_t dims[TORUS_MAX_RANK];
  int rank = hlo_shape(g, xs[0], dims);
  hlo_t only = xs[0];
  size_t with_elements = 0;
  dims[dim] = 0;
  for (size_t i = 0; i < count; i++) {
    if (!concatenates(g, xs[0], xs[i], dim)) {
      return hlo_fail_types(g, HLO_OP_CONCATENATE, "types or other sizes differ", xs[0], xs[i]);
    }
    int64_t size = hlo_dims(g, xs[i])[dim];
    dims[dim] += size;
    if (size > 0) {
      only = xs[i];
      with_elements++;
    }
  }
  if (with_elements <= 1) return only;
  if (hlo_product(rank, dims) == 0) return hlo_zeros(g, hlo_dtype(g, xs[0]), rank, dims);
  return append_concatenate(g, xs, count, dim, rank, dims);
}

/* attrs: the dimensions that have more than one element. */
hlo_t hlo_reverse(hlo_graph_t *g, hlo_t x, int dim_count, const int *dims) {
  if (!hlo_usable(g, HLO_OP_REVERSE, x)) return HLO_NONE;
  int64_t attrs[TORUS_MAX_RANK], shape[TORUS_MAX_RANK];
  size_t count = 0;
  uint32_t seen = 0;
  for (int i = 0; i < dim_count; i++) {
    if (!hlo_check_dim(g, HLO_OP_REVERSE, x, dims[i])) return HLO_NONE;
    if (seen >> dims[i] & 1) {
      return hlo_fail_types(g, HLO_OP_REVERSE, "a dimension appears twice", x, HLO_NONE);
    }
    seen |= UINT32_C(1) << dims[i];
    if (hlo_dims(g, x)[dims[i]] > 1) attrs[count++] = dims[i];
  }
  if (count == 0 || is_constant(g, x)) return x;
  int rank = hlo_shape(g, x, shape);
  return append_moved(g, HLO_OP_REVERSE, x, rank, shape, count, attrs);
}
