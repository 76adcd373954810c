/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The bounding transform's rule for reshapes.
 *
 * Dimensions fall into groups with equal numbers of elements before and after. A size that changes
 * and is alone in its group on both sides, ones left aside, stays what it is. One that is the
 * outermost of its group is merged or split as if it were exact, for the elements that count stay
 * the first ones in memory. Every other group is rearranged by a gather whose places are computed
 * from the run-time sizes. */
#include <string.h>

#include "hlo/bound_internal.h"

typedef struct group {
  int in, in_end, out, out_end; /* dimensions before and after */
  bool changes;
  bool gathers;
} group_t;

typedef struct regrouping {
  hlo_t old, source;
  int count;
  group_t groups[TORUS_MAX_RANK];
  int in_rank, out_rank;
  int64_t in[TORUS_MAX_RANK], out[TORUS_MAX_RANK];           /* exact */
  int64_t held_in[TORUS_MAX_RANK], held_out[TORUS_MAX_RANK]; /* bounds */
} regrouping_t;

/* ---- groups ---- */

static group_t next_group(const regrouping_t *r, int in, int out) {
  group_t group = {.in = in, .in_end = in, .out = out, .out_end = out};
  int64_t before = 1, after = 1;
  do {
    const bool can_in = group.in_end < r->in_rank, can_out = group.out_end < r->out_rank;
    if (can_in && (before <= after || !can_out)) {
      before *= r->in[group.in_end++];
    } else if (can_out) {
      after *= r->out[group.out_end++];
    }
  } while (before != after && (group.in_end < r->in_rank || group.out_end < r->out_rank));
  return group;
}

/* Ones at the end of a group belong to it. */
static void take_ones(const regrouping_t *r, group_t *group) {
  while (group->in_end < r->in_rank && r->in[group->in_end] == 1) group->in_end++;
  while (group->out_end < r->out_rank && r->out[group->out_end] == 1) group->out_end++;
}

/* The first dimension of several elements, or |end|. */
static int outermost(const int64_t *dims, int first, int end) {
  while (first < end && dims[first] == 1) first++;
  return first;
}

static bool is_fixed(const hlo_binder_t *b, hlo_t x, int first, int end) {
  for (int d = first; d < end; d++) {
    if (hlo_class_of(b, x, d)) return false;
  }
  return true;
}

/* Whether only the outermost dimensions change on both sides, so that order in memory suffices. */
static bool keeps_prefix(const hlo_binder_t *b, const regrouping_t *r, const group_t *g) {
  const int in = outermost(r->in, g->in, g->in_end), out = outermost(r->out, g->out, g->out_end);
  return in < g->in_end && out < g->out_end && hlo_class_of(b, r->source, in) &&
         hlo_class_of(b, r->old, out) && is_fixed(b, r->source, in + 1, g->in_end) &&
         is_fixed(b, r->old, out + 1, g->out_end);
}

/* The outermost dimensions are made large enough that both sides hold equally many elements. */
static void hold_prefix(regrouping_t *r, const group_t *g) {
  const int in = outermost(r->in, g->in, g->in_end), out = outermost(r->out, g->out, g->out_end);
  const int64_t before = hlo_product(g->in_end - in - 1, r->held_in + in + 1);
  const int64_t after = hlo_product(g->out_end - out - 1, r->held_out + out + 1);
  while (r->held_in[in] * before % after) r->held_in[in]++;
  r->held_out[out] = r->held_in[in] * before / after;
}

/* A single dimension that changes after a gather holds as much as came in, rather than a bound of its
 * own, on which the program would depend as well. */
static void hold_gathered(const hlo_binder_t *b, regrouping_t *r, const group_t *g) {
  int64_t before = hlo_product(g->in_end - g->in, r->held_in + g->in), others = 1;
  int changing = -1;
  for (int d = g->out; d < g->out_end; d++) {
    const bool changes = hlo_class_of(b, r->old, d) != 0;
    if (changes && changing >= 0) return;
    if (changes) changing = d;
    if (!changes) others *= r->out[d];
  }
  if (changing >= 0) r->held_out[changing] = (before + others - 1) / others;
}

static void group_dims(hlo_binder_t *b, regrouping_t *r) {
  int in = 0, out = 0;
  while ((in < r->in_rank || out < r->out_rank) && r->count < TORUS_MAX_RANK) {
    group_t g = next_group(r, in, out);
    take_ones(r, &g);
    g.changes = !is_fixed(b, r->source, in, g.in_end) || !is_fixed(b, r->old, out, g.out_end);
    g.gathers = g.changes && !keeps_prefix(b, r, &g);
    if (g.changes && !g.gathers) hold_prefix(r, &g);
    if (g.gathers) hold_gathered(b, r, &g);
    r->groups[r->count++] = g;
    in = g.in_end;
    out = g.out_end;
  }
}

/* ---- places ---- */

/* The size of a dimension as a number, exact at run time. */
static hlo_t multiply_size(hlo_binder_t *b, hlo_t x, hlo_t old, int dim) {
  return hlo_multiply(b->to, x, hlo_size_node(b, old, dim));
}

/* For each held element of the group after: which element it is, counted without garbage. */
static hlo_t element_numbers(hlo_binder_t *b, const regrouping_t *r, const group_t *g) {
  const int rank = g->out_end - g->out;
  const int64_t *dims = r->held_out + g->out;
  hlo_t stride = hlo_const_int(b->to, TORUS_DTYPE_I32, 1), sum = HLO_NONE;
  for (int d = rank; d-- > 0;) {
    hlo_t part = hlo_multiply(b->to, hlo_iota(b->to, TORUS_DTYPE_I32, rank, dims, d), stride);
    sum = sum == HLO_NONE ? part : hlo_add(b->to, sum, part);
    stride = multiply_size(b, stride, r->old, g->out + d);
  }
  return sum == HLO_NONE ? hlo_zeros(b->to, TORUS_DTYPE_I32, 1, (int64_t[]){1})
                         : hlo_flatten(b->to, sum);
}

/* Where those elements are held in the group before. */
static hlo_t held_places(hlo_binder_t *b, const regrouping_t *r, const group_t *g) {
  hlo_t rest = element_numbers(b, r, g), sum = HLO_NONE;
  int64_t stride = 1;
  for (int d = g->in_end; d-- > g->in;) {
    hlo_t size = hlo_size_node(b, r->source, d), next = hlo_divide(b->to, rest, size);
    hlo_t part = hlo_subtract(b->to, rest, hlo_multiply(b->to, next, size));
    part = hlo_multiply(b->to, part, hlo_const_int(b->to, TORUS_DTYPE_I32, stride));
    sum = sum == HLO_NONE ? part : hlo_add(b->to, sum, part);
    stride *= r->held_in[d];
    rest = next;
  }
  return sum;
}

/* One dimension per group, those that gather rearranged. */
static hlo_t rearrange(hlo_binder_t *b, const regrouping_t *r, hlo_t x) {
  int64_t dims[TORUS_MAX_RANK];
  for (int i = 0; i < r->count; i++) {
    const group_t *g = &r->groups[i];
    dims[i] = hlo_product(g->in_end - g->in, r->held_in + g->in);
  }
  x = hlo_reshape(b->to, x, r->count, dims);
  for (int i = 0; i < r->count; i++) {
    if (r->groups[i].gathers) x = hlo_take(b->to, x, i, held_places(b, r, &r->groups[i]));
  }
  return x;
}

hlo_t hlo_bind_reshape(hlo_binder_t *b, hlo_t old) {
  regrouping_t r = {.old = old, .source = hlo_operand(b->from, old, 0)};
  r.in_rank = hlo_shape(b->from, r.source, r.in);
  r.out_rank = hlo_shape(b->from, old, r.out);
  if (hlo_numel(b->from, old) == 0) return hlo_refuse(b, old, "of no elements");
  hlo_t x = b->map[r.source];
  hlo_shape(b->to, x, r.held_in);
  hlo_target_dims(b, old, r.held_out);
  group_dims(b, &r);
  bool gathers = false;
  for (int i = 0; i < r.count; i++) gathers |= r.groups[i].gathers;
  x = hlo_fit(b, x, r.held_in);
  if (gathers) x = rearrange(b, &r, x);
  return hlo_reshape(b->to, x, r.out_rank, r.held_out);
}
