/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Fused optimizer steps and gradient scaling: one operator updates all parameters in place.
 *
 * The formulas are those of torch.optim's documentation. Half parameters are updated in float32.
 * With |found_inf| set the step is computed and thrown away, so that nothing has to wait for it. */
#include <math.h>

#include "ops/math.h"

/* ---- what all of them share ---- */

/* Places of the arguments that the optimizers have in common; -1: none. */
typedef struct places {
  int lr, weight_decay, maximize, grad_scale, found_inf;
} places_t;

enum { ARGUMENTS = 16 };

/* One step over a list of parameters. Numbers become nodes once and not per parameter: a learning
 * rate that changes is then one run-time argument, not hundreds. */
typedef struct step {
  torus_call_t *call;
  hlo_graph_t *g;
  places_t at;
  torus_dtype_t wide;     /* type that the current parameter is computed in */
  hlo_t plain[ARGUMENTS]; /* arguments as they are */
  hlo_t rest[ARGUMENTS];  /* 1 - argument */
  hlo_t log[ARGUMENTS];   /* natural logarithms of arguments */
} step_t;

static hlo_t argument(step_t *s, int i) {
  if (s->plain[i] == HLO_NONE) s->plain[i] = op_scalar(s->call, i, s->wide);
  return s->plain[i];
}

/* 1 - argument, from the number in double precision. */
static hlo_t rest_of(step_t *s, int i) {
  if (s->rest[i] == HLO_NONE) s->rest[i] = hlo_soft(s->g, s->wide, 1 - op_double(s->call, i));
  return s->rest[i];
}

static hlo_t log_of(step_t *s, int i) {
  if (s->log[i] == HLO_NONE) s->log[i] = hlo_soft(s->g, s->wide, log(op_double(s->call, i)));
  return s->log[i];
}

static hlo_t read(step_t *s, int list, int k) {
  return hlo_convert(s->g, op_list_tensor(s->call, list, k), s->wide);
}

/* Stores |x| in element k of |list| unless the step is to be skipped. */
static void write(step_t *s, int list, int k, hlo_t x) {
  x = hlo_convert(s->g, x, op_list_dtype(s->call, list, k));
  if (op_has(s->call, s->at.found_inf)) {
    hlo_t found = hlo_reshape(s->g, op_tensor(s->call, s->at.found_inf), 0, NULL);
    hlo_t skip = hlo_compare_f(s->g, HLO_EQ, found, 1);
    x = hlo_select(s->g, skip, op_list_tensor(s->call, list, k), x);
  }
  op_write_list(s->call, list, k, x);
}

/* Gradient k, divided by the scale of the loss (and stored so), negated to maximize. */
static hlo_t read_gradient(step_t *s, int k) {
  hlo_t gradient = read(s, 1, k);
  if (op_has(s->call, s->at.grad_scale)) {
    hlo_t scale = op_tensor_as(s->call, s->at.grad_scale, s->wide);
    gradient = hlo_divide(s->g, gradient, hlo_reshape(s->g, scale, 0, NULL));
    write(s, 1, k, gradient);
  }
  return op_bool(s->call, s->at.maximize) ? hlo_negate(s->g, gradient) : gradient;
}

/* gradient + weight_decay * parameter. */
static hlo_t decayed(step_t *s, hlo_t gradient, hlo_t parameter) {
  if (op_double(s->call, s->at.weight_decay) == 0) return gradient;
  hlo_t decay = argument(s, s->at.weight_decay);
  return hlo_add(s->g, gradient, hlo_multiply(s->g, parameter, decay));
}

static bool begin(step_t *s, torus_call_t *call, hlo_graph_t *g, places_t at, int lists) {
  *s = (step_t){.call = call, .g = g, .at = at, .wide = TORUS_DTYPE_INVALID};
  for (int i = 1; i < lists; i++) {
    if (op_list_size(call, i) == op_list_size(call, 0)) continue;
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "lists of %d and %d tensors",
             op_list_size(call, 0), op_list_size(call, i));
    return false;
  }
  return true;
}

/* Turns to parameter k. */
static void select_parameter(step_t *s, int k) {
  torus_dtype_t wide = op_accumulate_type(op_list_dtype(s->call, 0, k));
  if (wide == s->wide) return;
  s->wide = wide;
  for (int i = 0; i < ARGUMENTS; i++)
    s->plain[i] = s->rest[i] = s->log[i] = HLO_NONE;
}

/* ---- Adam and AdamW ---- */

enum { ADAM_AVG = 2, ADAM_SQ, ADAM_MAX_SQ, ADAM_STEPS, ADAM_LR, ADAM_BETA1, ADAM_BETA2 };
enum { ADAM_DECAY = 9, ADAM_EPS, ADAM_AMSGRAD, ADAM_MAXIMIZE, ADAM_SCALE, ADAM_FOUND };

/* 1 - beta^step. In float32 the power would lose what the difference needs in the first steps, so
 * the logarithm is taken in double precision and the difference by expm1. */
static hlo_t bias_correction(step_t *s, int beta, hlo_t step) {
  hlo_t power = hlo_multiply(s->g, step, log_of(s, beta));
  return hlo_negate(s->g, hlo_expm1(s->g, power));
}

static hlo_t average(step_t *s, int list, int k, int beta, hlo_t x) {
  hlo_t kept = hlo_multiply(s->g, read(s, list, k), argument(s, beta));
  hlo_t fresh = hlo_multiply(s->g, x, rest_of(s, beta));
  hlo_t mean = hlo_add(s->g, kept, fresh);
  write(s, list, k, mean);
  return mean;
}

static hlo_t adam_denominator(step_t *s, int k, hlo_t gradient, hlo_t step) {
  hlo_graph_t *g = s->g;
  hlo_t square = average(s, ADAM_SQ, k, ADAM_BETA2, math_square(g, gradient));
  if (op_bool(s->call, ADAM_AMSGRAD)) {
    square = hlo_maximum(g, read(s, ADAM_MAX_SQ, k), square);
    write(s, ADAM_MAX_SQ, k, square);
  }
  hlo_t correction = hlo_sqrt(g, bias_correction(s, ADAM_BETA2, step));
  hlo_t root = hlo_divide(g, hlo_sqrt(g, square), correction);
  return hlo_add(g, root, argument(s, ADAM_EPS));
}

static void adam_update(step_t *s, int k, bool is_decoupled) {
  hlo_graph_t *g = s->g;
  hlo_t parameter = read(s, 0, k), gradient = read_gradient(s, k), lr = argument(s, ADAM_LR);
  hlo_t step = hlo_reshape(g, read(s, ADAM_STEPS, k), 0, NULL);
  if (!is_decoupled) {
    gradient = decayed(s, gradient, parameter);
  } else if (op_double(s->call, ADAM_DECAY) != 0) {
    hlo_t shrink = hlo_multiply(g, lr, argument(s, ADAM_DECAY));
    parameter = hlo_subtract(g, parameter, hlo_multiply(g, parameter, shrink));
  }
  hlo_t mean = average(s, ADAM_AVG, k, ADAM_BETA1, gradient);
  hlo_t denominator = adam_denominator(s, k, gradient, step);
  hlo_t size = hlo_divide(g, lr, bias_correction(s, ADAM_BETA1, step));
  hlo_t change = hlo_divide(g, hlo_multiply(g, mean, size), denominator);
  write(s, 0, k, hlo_subtract(g, parameter, change));
}

static void adam(torus_call_t *call, hlo_graph_t *g, bool is_decoupled) {
  const places_t at = {ADAM_LR, ADAM_DECAY, ADAM_MAXIMIZE, ADAM_SCALE, ADAM_FOUND};
  step_t s;
  if (!begin(&s, call, g, at, ADAM_MAX_SQ)) return;
  for (int k = 0; k < op_list_size(call, 0) && !op_failed(call); k++) {
    select_parameter(&s, k);
    adam_update(&s, k, is_decoupled);
  }
}

TORUS_OP(fused_adam, "_fused_adam_", 0) {
  adam(call, g, false);
}
TORUS_OP(fused_adam_tensor_lr, "_fused_adam_.tensor_lr", 0) {
  adam(call, g, false);
}
TORUS_OP(fused_adamw, "_fused_adamw_", 0) {
  adam(call, g, true);
}
TORUS_OP(fused_adamw_tensor_lr, "_fused_adamw_.tensor_lr", 0) {
  adam(call, g, true);
}

/* ---- SGD ---- */

enum { SGD_BUFFER = 2, SGD_DECAY, SGD_MOMENTUM, SGD_LR, SGD_DAMPENING, SGD_NESTEROV };
enum { SGD_MAXIMIZE = 8, SGD_IS_FIRST, SGD_SCALE, SGD_FOUND };

static hlo_t with_momentum(step_t *s, int k, hlo_t gradient) {
  hlo_graph_t *g = s->g;
  hlo_t momentum = argument(s, SGD_MOMENTUM), buffer = gradient;
  if (!op_bool(s->call, SGD_IS_FIRST)) {
    hlo_t fresh = hlo_multiply(g, gradient, rest_of(s, SGD_DAMPENING));
    buffer = hlo_add(g, hlo_multiply(g, read(s, SGD_BUFFER, k), momentum), fresh);
  }
  write(s, SGD_BUFFER, k, buffer);
  if (!op_bool(s->call, SGD_NESTEROV)) return buffer;
  return hlo_add(g, gradient, hlo_multiply(g, buffer, momentum));
}

static void sgd(torus_call_t *call, hlo_graph_t *g) {
  const places_t at = {SGD_LR, SGD_DECAY, SGD_MAXIMIZE, SGD_SCALE, SGD_FOUND};
  bool has_momentum = op_double(call, SGD_MOMENTUM) != 0;
  step_t s;
  if (!begin(&s, call, g, at, has_momentum ? SGD_BUFFER + 1 : SGD_BUFFER)) return;
  for (int k = 0; k < op_list_size(call, 0) && !op_failed(call); k++) {
    select_parameter(&s, k);
    hlo_t parameter = read(&s, 0, k);
    hlo_t gradient = decayed(&s, read_gradient(&s, k), parameter);
    if (has_momentum) gradient = with_momentum(&s, k, gradient);
    hlo_t change = hlo_multiply(g, gradient, argument(&s, SGD_LR));
    write(&s, 0, k, hlo_subtract(g, parameter, change));
  }
}

TORUS_OP(fused_sgd, "_fused_sgd_", 0) {
  sgd(call, g);
}
TORUS_OP(fused_sgd_tensor_lr, "_fused_sgd_.tensor_lr", 0) {
  sgd(call, g);
}

/* ---- Adagrad ---- */

enum { ADAGRAD_SUM = 2, ADAGRAD_STEPS, ADAGRAD_LR, ADAGRAD_LR_DECAY, ADAGRAD_DECAY, ADAGRAD_EPS };
enum { ADAGRAD_MAXIMIZE = 8, ADAGRAD_SCALE, ADAGRAD_FOUND };

static void adagrad_update(step_t *s, int k) {
  hlo_graph_t *g = s->g;
  hlo_t parameter = read(s, 0, k);
  hlo_t gradient = decayed(s, read_gradient(s, k), parameter);
  hlo_t step = hlo_reshape(g, read(s, ADAGRAD_STEPS, k), 0, NULL);
  hlo_t slowdown = hlo_multiply(g, hlo_add_f(g, step, -1), argument(s, ADAGRAD_LR_DECAY));
  hlo_t lr = hlo_divide(g, argument(s, ADAGRAD_LR), hlo_add_f(g, slowdown, 1));
  hlo_t sum = hlo_add(g, read(s, ADAGRAD_SUM, k), math_square(g, gradient));
  write(s, ADAGRAD_SUM, k, sum);
  hlo_t root = hlo_add(g, hlo_sqrt(g, sum), argument(s, ADAGRAD_EPS));
  hlo_t change = hlo_divide(g, hlo_multiply(g, gradient, lr), root);
  write(s, 0, k, hlo_subtract(g, parameter, change));
}

static void adagrad(torus_call_t *call, hlo_graph_t *g) {
  const places_t at = {ADAGRAD_LR, ADAGRAD_DECAY, ADAGRAD_MAXIMIZE, ADAGRAD_SCALE, ADAGRAD_FOUND};
  step_t s;
  if (!begin(&s, call, g, at, ADAGRAD_STEPS + 1)) return;
  for (int k = 0; k < op_list_size(call, 0) && !op_failed(call); k++) {
    select_parameter(&s, k);
    adagrad_update(&s, k);
  }
}

TORUS_OP(fused_adagrad, "_fused_adagrad_", 0) {
  adagrad(call, g);
}
TORUS_OP(fused_adagrad_tensor_lr, "_fused_adagrad_.tensor_lr", 0) {
  adagrad(call, g);
}

/* ---- gradient scaling ---- */

TORUS_OP(amp_unscale, "_amp_foreach_non_finite_check_and_unscale_", 0) {
  hlo_t found = op_tensor(call, 1);
  hlo_t bad = hlo_const(g, TORUS_DTYPE_BOOL, 0);
  for (int k = 0; k < op_list_size(call, 0); k++) {
    hlo_t x = op_list_tensor(call, 0, k);
    torus_dtype_t dtype = hlo_dtype(g, x), wide = op_accumulate_type(dtype);
    hlo_t endless = hlo_not(g, hlo_is_finite(g, x));
    if (hlo_rank(g, x) > 0) endless = hlo_reduce_all(g, HLO_REDUCE_OR, endless);
    bad = hlo_or(g, bad, endless);
    hlo_t scale = hlo_reshape(g, op_tensor_as(call, 2, wide), 0, NULL);
    x = hlo_multiply(g, hlo_convert(g, x, wide), scale);
    op_write_list(call, 0, k, hlo_convert(g, x, dtype));
  }
  op_write(call, 1, hlo_select(g, bad, hlo_const(g, hlo_dtype(g, found), 1), found));
}

/* Doubles (or so) the scale after |interval| steps without an infinity, shrinks it at one. */
TORUS_OP(amp_update_scale, "_amp_update_scale_", 0) {
  hlo_t scale = op_tensor(call, 0), tracker = op_tensor(call, 1);
  hlo_t found = hlo_compare_f(g, HLO_NE, op_tensor(call, 2), 0);
  hlo_t zero = hlo_const(g, hlo_dtype(g, tracker), 0);
  hlo_t count = hlo_add_f(g, tracker, 1);
  hlo_t due = hlo_compare(g, HLO_EQ, count, hlo_soft_int(g, hlo_dtype(g, count), op_int(call, 5)));
  hlo_t grown = hlo_multiply(g, scale, op_scalar(call, 3, hlo_dtype(g, scale)));
  hlo_t grows = hlo_and(g, due, hlo_is_finite(g, grown));
  hlo_t shrunk = hlo_multiply(g, scale, op_scalar(call, 4, hlo_dtype(g, scale)));
  grown = hlo_select(g, grows, grown, scale);
  op_write(call, 0, hlo_select(g, found, shrunk, grown));
  op_write(call, 1, hlo_select(g, hlo_or(g, found, due), zero, count));
}
