/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Connectionist temporal classification: Graves et al., ICML 2006, sections 4.1 and 4.2.
 *
 * Both recursions run in the logarithmic domain as loops over time on all samples at once. The labels
 * of a sample are stretched to 2S + 1 places, with a blank in front, between and behind. alpha and
 * beta both contain the emission of their own time step, as PyTorch's. */
#include <math.h>

#include "ops/math.h"
#include "torus/memory.h"

typedef struct ctc {
  int64_t time, samples, classes, places; /* T, N, C, 2S + 1 */
  torus_dtype_t dtype;
  hlo_t input_lengths, target_lengths; /* I64 (N) */
  hlo_t labels;                        /* I64 (N, P) */
  hlo_t log_probs;                     /* (T, N, C) */
  hlo_t emission;                      /* (T, N, P): log probability of each place's label */
  hlo_t can_skip;                      /* BOOL (N, P): reached from two places before */
} ctc_t;

/* ---- arguments ---- */

/* The int[] argument |i| as I64 (N). */
static hlo_t lengths_of(torus_call_t *call, hlo_graph_t *g, int i, int64_t samples) {
  int count = 0;
  const int64_t *lengths = op_ints(call, i, &count);
  hlo_t *nodes = torus_alloc((size_t)(count + 1) * sizeof *nodes);
  if (nodes == NULL) return hlo_fail(g, TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
  for (int k = 0; k < count; k++)
    nodes[k] = hlo_reshape(g, hlo_soft_int(g, TORUS_DTYPE_I64, lengths[k]), 1, (int64_t[]){1});
  hlo_t joined = count > 0 ? hlo_concatenate(g, nodes, (size_t)count, 0)
                           : hlo_zeros(g, TORUS_DTYPE_I64, 1, &samples);
  torus_free(nodes);
  return joined;
}

static int64_t largest_of(const torus_call_t *call, int i, int64_t *out_sum) {
  int count = 0;
  const int64_t *lengths = op_ints(call, i, &count);
  int64_t largest = 0;
  *out_sum = 0;
  for (int k = 0; k < count; k++) {
    if (lengths[k] > largest) largest = lengths[k];
    *out_sum += lengths[k];
  }
  return largest;
}

static bool lengths_fit(const torus_call_t *call, int i, int64_t samples, int64_t most) {
  int count = 0;
  const int64_t *lengths = op_ints(call, i, &count);
  for (int k = 0; k < count; k++)
    if (lengths[k] < 0 || lengths[k] > most) return false;
  return count == samples;
}

/* log_probs, targets and the lengths stand at |first| and after; |blank| is an argument too. */
static bool arguments_fit(torus_call_t *call, int first, int blank) {
  bool fits = op_tensor_rank(call, first) == 3 && op_tensor_rank(call, first + 1) <= 2 &&
              op_tensor_rank(call, first + 1) > 0 &&
              torus_dtype_is_float(op_tensor_dtype(call, first));
  if (fits) {
    int64_t samples = op_tensor_dim(call, first, 1), classes = op_tensor_dim(call, first, 2), sum;
    bool is_flat = op_tensor_rank(call, first + 1) == 1;
    largest_of(call, first + 3, &sum);
    int64_t most = is_flat ? sum : op_tensor_dim(call, first + 1, 1);
    fits = op_int(call, blank) >= 0 && op_int(call, blank) < classes &&
           lengths_fit(call, first + 2, samples, op_tensor_dim(call, first, 0)) &&
           lengths_fit(call, first + 3, samples, most) && samples > 0 &&
           (is_flat ? sum == op_tensor_numel(call, first + 1)
                    : op_tensor_dim(call, first + 1, 0) == samples);
  }
  if (!fits) op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "ctc_loss: sizes do not fit together");
  return fits;
}

/* ---- labels ---- */

/* Concatenated targets as (N, S): row n starts where the lengths before it end. */
static hlo_t unpack_targets(hlo_graph_t *g, const ctc_t *c, hlo_t targets, int64_t longest) {
  const int64_t dims[2] = {c->samples, longest};
  hlo_t ends = hlo_scan(g, HLO_REDUCE_ADD, c->target_lengths, 0);
  hlo_t starts = hlo_subtract(g, ends, c->target_lengths);
  starts = hlo_broadcast_in_dim(g, starts, 2, dims, (const int[]){0});
  hlo_t place = hlo_add(g, starts, hlo_iota(g, TORUS_DTYPE_I64, 2, dims, 1));
  hlo_t last = hlo_const_int(g, TORUS_DTYPE_I64, hlo_numel(g, targets) - 1);
  return hlo_take(g, targets, 0, hlo_minimum(g, place, last));
}

/* (N, S) -> (N, 2S + 1). What stands behind a sample's targets may be anything: it is brought into
 * range, and never counts. */
static hlo_t stretch(hlo_graph_t *g, const ctc_t *c, hlo_t targets, hlo_t blank) {
  hlo_t last = math_size(g, TORUS_DTYPE_I64, c->classes - 1);
  targets = hlo_minimum(g, hlo_maximum(g, targets, hlo_const(g, TORUS_DTYPE_I64, 0)), last);
  if (c->places == 1) return hlo_splat(g, blank, 2, (int64_t[]){c->samples, 1});
  return hlo_pad(g, targets, blank, (int64_t[]){0, 1}, (int64_t[]){0, 1}, (int64_t[]){0, 1});
}

/* x with every place moved |by| places on; |fill| comes in. */
static hlo_t moved(hlo_graph_t *g, hlo_t x, int64_t by, hlo_t fill) {
  return hlo_pad(g, x, fill, (int64_t[]){0, by}, (int64_t[]){0, -by}, NULL);
}

static void read_labels(torus_call_t *call, hlo_graph_t *g, int first, int blank, ctc_t *c) {
  int64_t sum, longest = largest_of(call, first + 3, &sum);
  hlo_t targets = op_tensor_as(call, first + 1, TORUS_DTYPE_I64);
  bool is_flat = op_tensor_rank(call, first + 1) == 1;
  if (!is_flat) longest = op_tensor_dim(call, first + 1, 1);
  c->places = 2 * longest + 1;
  if (is_flat && longest > 0) targets = unpack_targets(g, c, targets, longest);
  hlo_t blank_node = hlo_soft_int(g, TORUS_DTYPE_I64, op_int(call, blank));
  c->labels = stretch(g, c, targets, blank_node);
  /* A label follows the one before it without a blank unless they are equal. */
  hlo_t before = moved(g, c->labels, 2, hlo_const_int(g, TORUS_DTYPE_I64, -1));
  c->can_skip = hlo_and(g, hlo_compare(g, HLO_NE, c->labels, before),
                        hlo_compare(g, HLO_NE, c->labels, blank_node));
}

static bool read_ctc(torus_call_t *call, hlo_graph_t *g, int first, int blank, ctc_t *c) {
  if (!arguments_fit(call, first, blank)) return false;
  c->dtype = op_accumulate_type(op_tensor_dtype(call, first));
  c->time = op_tensor_dim(call, first, 0);
  c->samples = op_tensor_dim(call, first, 1);
  c->classes = op_tensor_dim(call, first, 2);
  c->input_lengths = lengths_of(call, g, first + 2, c->samples);
  c->target_lengths = lengths_of(call, g, first + 3, c->samples);
  c->log_probs = op_tensor_as(call, first, c->dtype);
  read_labels(call, g, first, blank, c);
  const int64_t dims[3] = {c->time, c->samples, c->places};
  hlo_t labels = hlo_broadcast_in_dim(g, c->labels, 3, dims, (const int[]){1, 2});
  c->emission = hlo_take_along(g, c->log_probs, 2, labels);
  return !op_failed(call) && !hlo_graph_failed(g);
}

/* ---- recursions ---- */

/* log(exp x + exp y + exp z); -inf when all are. */
static hlo_t log_sum(hlo_graph_t *g, hlo_t x, hlo_t y, hlo_t z) {
  hlo_t top = hlo_maximum(g, hlo_maximum(g, x, y), z);
  hlo_t none = hlo_compare_f(g, HLO_EQ, top, -INFINITY);
  hlo_t safe = hlo_select(g, none, hlo_const(g, hlo_dtype(g, top), 0), top);
  hlo_t sum = hlo_add(g, hlo_exp(g, hlo_subtract(g, x, safe)),
                      hlo_exp(g, hlo_subtract(g, y, safe)));
  sum = hlo_add(g, sum, hlo_exp(g, hlo_subtract(g, z, safe)));
  return hlo_select(g, none, top, hlo_add(g, hlo_log(g, sum), safe));
}

/* What a loop carries: the time step, the present row (N, P), all rows (T, N, P), and constants. */
enum { STEP, ROW, ROWS, EMISSION, SKIP, START, LAST, STATE_COUNT };

static hlo_t row_at(hlo_graph_t *g, hlo_t rows, hlo_t step) {
  const int64_t sizes[3] = {1, hlo_dim(g, rows, 1), hlo_dim(g, rows, 2)};
  hlo_t zero = hlo_const(g, TORUS_DTYPE_I64, 0);
  hlo_t row = hlo_dynamic_slice(g, rows, (hlo_t[]){step, zero, zero}, sizes);
  return hlo_squeeze(g, row, 0);
}

static hlo_t with_row(hlo_graph_t *g, hlo_t rows, hlo_t row, hlo_t step) {
  hlo_t zero = hlo_const(g, TORUS_DTYPE_I64, 0);
  return hlo_dynamic_update_slice(g, rows, hlo_unsqueeze(g, row, 0), (hlo_t[]){step, zero, zero});
}

static hlo_t is_before_end(hlo_graph_t *g, const hlo_t *state, void *context) {
  const ctc_t *c = context;
  return hlo_compare(g, HLO_LT, state[STEP], hlo_const_int(g, TORUS_DTYPE_I64, c->time));
}

static hlo_t is_from_start(hlo_graph_t *g, const hlo_t *state,
                           void *context __attribute__((unused))) {
  return hlo_compare_f(g, HLO_GE, state[STEP], 0);
}

static void keep_constants(const hlo_t *state, hlo_t *out_state) {
  for (int k = EMISSION; k < STATE_COUNT; k++)
    out_state[k] = state[k];
}

static void forward_step(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state,
                         void *context __attribute__((unused))) {
  hlo_t row = state[ROW], lowest = hlo_const(g, hlo_dtype(g, row), -INFINITY);
  hlo_t skipped = hlo_select(g, state[SKIP], moved(g, row, 2, lowest), lowest);
  hlo_t next = log_sum(g, row, moved(g, row, 1, lowest), skipped);
  next = hlo_add(g, next, row_at(g, state[EMISSION], state[STEP]));
  out_state[STEP] = hlo_add_f(g, state[STEP], 1);
  out_state[ROW] = next;
  out_state[ROWS] = with_row(g, state[ROWS], next, state[STEP]);
  keep_constants(state, out_state);
}

/* Samples end at different times: each starts from |START| at its own last step. */
static void backward_step(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state,
                          void *context __attribute__((unused))) {
  hlo_t row = state[ROW], lowest = hlo_const(g, hlo_dtype(g, row), -INFINITY);
  hlo_t skipped = moved(g, hlo_select(g, state[SKIP], row, lowest), -2, lowest);
  hlo_t next = log_sum(g, row, moved(g, row, -1, lowest), skipped);
  hlo_t starts = hlo_compare(g, HLO_EQ, state[LAST], state[STEP]);
  next = hlo_select(g, starts, state[START], next);
  next = hlo_add(g, next, row_at(g, state[EMISSION], state[STEP]));
  out_state[STEP] = hlo_add_f(g, state[STEP], -1);
  out_state[ROW] = next;
  out_state[ROWS] = with_row(g, state[ROWS], next, state[STEP]);
  keep_constants(state, out_state);
}

/* (N) as (N, P). */
static hlo_t over_places(hlo_graph_t *g, const ctc_t *c, hlo_t x) {
  return hlo_broadcast_in_dim(g, x, 2, (int64_t[]){c->samples, c->places}, (const int[]){0});
}

static hlo_t place_numbers(hlo_graph_t *g, const ctc_t *c) {
  return hlo_iota(g, TORUS_DTYPE_I64, 2, (int64_t[]){c->samples, c->places}, 1);
}

/* BOOL (N, P): the two places in which a path may end. */
static hlo_t is_final(hlo_graph_t *g, const ctc_t *c) {
  hlo_t place = place_numbers(g, c);
  hlo_t last = over_places(g, c, hlo_multiply_f(g, c->target_lengths, 2));
  return hlo_or(g, hlo_compare(g, HLO_EQ, place, last),
                hlo_compare(g, HLO_EQ, place, hlo_add_f(g, last, -1)));
}

static hlo_t zero_where(hlo_graph_t *g, hlo_t is_zero, torus_dtype_t dtype) {
  return hlo_select(g, is_zero, hlo_const(g, dtype, 0), hlo_const(g, dtype, -INFINITY));
}

/* 0 in the final places, -inf elsewhere. */
static hlo_t final_row(hlo_graph_t *g, const ctc_t *c) {
  return zero_where(g, is_final(g, c), c->dtype);
}

/* 0 in the places in which a path may begin. Before the first step a path stands in front of them:
 * one application of the recursion to -inf gives nothing, so the first row is made here. */
static hlo_t first_row(hlo_graph_t *g, const ctc_t *c) {
  hlo_t place = place_numbers(g, c);
  hlo_t most = hlo_minimum(g, c->target_lengths, hlo_const(g, TORUS_DTYPE_I64, 1));
  hlo_t begins = hlo_compare(g, HLO_LE, place, over_places(g, c, most));
  hlo_t row = zero_where(g, begins, c->dtype);
  return hlo_add(g, row, hlo_index_dim(g, c->emission, 0, 0));
}

static hlo_t all_alpha(hlo_graph_t *g, ctc_t *c) {
  const int64_t dims[3] = {c->time, c->samples, c->places};
  hlo_t results[STATE_COUNT], row = first_row(g, c);
  hlo_t rows = hlo_splat(g, hlo_const(g, c->dtype, -INFINITY), 3, dims);
  rows = hlo_update_slice(g, rows, hlo_unsqueeze(g, row, 0), (int64_t[]){0, 0, 0});
  hlo_t step = hlo_const(g, TORUS_DTYPE_I64, 1);
  const hlo_t state[STATE_COUNT] = {step, row, rows, c->emission, c->can_skip, row, c->labels};
  hlo_while(g, state, STATE_COUNT, is_before_end, forward_step, c, results);
  return results[ROWS];
}

static hlo_t all_beta(hlo_graph_t *g, ctc_t *c) {
  const int64_t dims[3] = {c->time, c->samples, c->places};
  hlo_t results[STATE_COUNT], lowest = hlo_const(g, c->dtype, -INFINITY);
  hlo_t rows = hlo_splat(g, lowest, 3, dims), row = hlo_splat(g, lowest, 2, dims + 1);
  hlo_t last = over_places(g, c, hlo_add_f(g, c->input_lengths, -1));
  hlo_t step = hlo_const_int(g, TORUS_DTYPE_I64, c->time - 1);
  const hlo_t state[STATE_COUNT] = {step,        row,             rows, c->emission,
                                    c->can_skip, final_row(g, c), last};
  hlo_while(g, state, STATE_COUNT, is_from_start, backward_step, c, results);
  return results[ROWS];
}

/* ---- loss ---- */

/* The row of alpha at each sample's last step. */
static hlo_t last_alpha(hlo_graph_t *g, const ctc_t *c, hlo_t alpha) {
  const int64_t dims[3] = {1, c->samples, c->places};
  hlo_t last = hlo_maximum(g, hlo_add_f(g, c->input_lengths, -1),
                           hlo_const(g, TORUS_DTYPE_I64, 0));
  last = hlo_broadcast_in_dim(g, last, 3, dims, (const int[]){1});
  return hlo_squeeze(g, hlo_take_along(g, alpha, 0, last), 0);
}

static hlo_t loss_of(hlo_graph_t *g, const ctc_t *c, hlo_t alpha) {
  hlo_t row = hlo_add(g, last_alpha(g, c, alpha), final_row(g, c));
  hlo_t zero = hlo_const(g, c->dtype, 0), infinite = hlo_const(g, c->dtype, INFINITY);
  hlo_t top = hlo_reduce(g, HLO_REDUCE_MAXIMUM, row, 1, (const int[]){1}, false);
  hlo_t safe = hlo_select(g, hlo_compare_f(g, HLO_EQ, top, -INFINITY), zero, top);
  hlo_t sum = hlo_exp(g, hlo_subtract(g, row, over_places(g, c, safe)));
  sum = hlo_reduce(g, HLO_REDUCE_ADD, sum, 1, (const int[]){1}, false);
  hlo_t loss = hlo_negate(g, hlo_add(g, hlo_log(g, sum), safe));
  /* A sample without input has no targets to account for, or no path at all. */
  hlo_t no_input = hlo_compare_f(g, HLO_EQ, c->input_lengths, 0);
  hlo_t no_target = hlo_compare_f(g, HLO_EQ, c->target_lengths, 0);
  return hlo_select(g, no_input, hlo_select(g, no_target, zero, infinite), loss);
}

/* (log_probs, targets, input_lengths, target_lengths, blank, zero_infinity) */
TORUS_OP(ctc_loss, "_ctc_loss", 0) {
  ctc_t c;
  if (!read_ctc(call, g, 0, 4, &c)) return;
  torus_dtype_t dtype = op_tensor_dtype(call, 0);
  if (c.time == 0) {
    op_fallback(call, "no time steps");
    return;
  }
  hlo_t alpha = all_alpha(g, &c);
  op_return(call, 0, hlo_convert(g, loss_of(g, &c, alpha), dtype));
  op_return(call, 1, hlo_convert(g, hlo_transpose(g, alpha, (const int[]){1, 0, 2}), dtype));
}

/* ---- gradient ---- */

/* (N) as (T, N, last). */
static hlo_t over_time(hlo_graph_t *g, const ctc_t *c, hlo_t x, int64_t last) {
  const int64_t dims[3] = {c->time, c->samples, last};
  return hlo_broadcast_in_dim(g, x, 3, dims, (const int[]){1});
}

/* The probability that a path is in each place at each time, given the targets. Where a place
 * cannot be reached it is 0, also if its emission is impossible. */
static hlo_t occupancy(hlo_graph_t *g, const ctc_t *c, hlo_t alpha, hlo_t beta, hlo_t loss) {
  hlo_t both = hlo_add(g, alpha, beta);
  hlo_t log_p = hlo_subtract(g, hlo_add(g, both, over_time(g, c, loss, c->places)), c->emission);
  hlo_t never = hlo_compare_f(g, HLO_EQ, both, -INFINITY);
  return hlo_select(g, never, hlo_const(g, c->dtype, 0), hlo_exp(g, log_p));
}

/* The places' probabilities added up by label: (T, N, C). */
static hlo_t by_class(hlo_graph_t *g, const ctc_t *c, hlo_t p) {
  const int64_t dims[3] = {c->time, c->samples, c->classes};
  const int64_t places[3] = {c->time, c->samples, c->places};
  hlo_t labels = hlo_broadcast_in_dim(g, c->labels, 3, places, (const int[]){1, 2});
  return hlo_put_along(g, HLO_SCATTER_ADD, hlo_zeros(g, c->dtype, 3, dims), 2, labels, p);
}

/* (grad, log_probs, targets, input_lengths, target_lengths, loss, log_alpha, blank, zero_infinity) */
TORUS_OP(ctc_loss_backward, "_ctc_loss_backward", 0) {
  ctc_t c;
  if (!read_ctc(call, g, 1, 7, &c)) return;
  hlo_t grad = op_tensor_as(call, 0, c.dtype), loss = op_tensor_as(call, 5, c.dtype);
  hlo_t alpha = hlo_transpose(g, op_tensor_as(call, 6, c.dtype), (const int[]){1, 0, 2});
  hlo_t zero = hlo_const(g, c.dtype, 0);
  hlo_t p = by_class(g, &c, occupancy(g, &c, alpha, all_beta(g, &c), loss));
  hlo_t dx = hlo_subtract(g, hlo_exp(g, c.log_probs), p);
  dx = hlo_multiply(g, dx, over_time(g, &c, hlo_expand(g, grad, 1, &c.samples), c.classes));
  hlo_t lost = over_time(g, &c, hlo_compare_f(g, HLO_EQ, loss, INFINITY), c.classes);
  dx = hlo_select(g, lost, op_bool(call, 8) ? zero : hlo_const(g, c.dtype, NAN), dx);
  const int64_t dims[3] = {c.time, c.samples, c.classes};
  hlo_t step = hlo_iota(g, TORUS_DTYPE_I64, 3, dims, 0);
  hlo_t counts = hlo_compare(g, HLO_LT, step, over_time(g, &c, c.input_lengths, c.classes));
  op_return(call, 0, hlo_convert(g, hlo_select(g, counts, dx, zero), op_tensor_dtype(call, 1)));
}
