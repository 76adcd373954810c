/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Tensors from numbers: arange, linspace, eye, randperm. They exist as out= overloads only. */
#include <math.h>

#include "ops/op.h"

/* Half types are computed in float32 and rounded once; integers in the type of their numbers. */
static hlo_t counted(hlo_graph_t *g, torus_dtype_t dtype, int64_t size) {
  return hlo_iota(g, dtype, 1, &size, 0);
}

/* start + i * step. */
static hlo_t progression(hlo_graph_t *g, torus_dtype_t dtype, int64_t size, hlo_t start,
                         hlo_t step) {
  return hlo_add(g, hlo_multiply(g, counted(g, dtype, size), step), start);
}

/* ---- arange and range ---- */

/* float32 arithmetic is exact for whole numbers that float32 holds; PyTorch computes the others
 * in double. */
static torus_dtype_t float_progression_dtype(torus_dtype_t dtype, double start, double end,
                                             double step) {
  const double exact = 16777216.0; /* 2^24 */
  bool whole = start == floor(start) && step == floor(step) && fabs(start) <= exact &&
               fabs(end) <= exact && fabs(step) <= exact;
  return whole && dtype != TORUS_DTYPE_F64 ? TORUS_DTYPE_F32 : TORUS_DTYPE_F64;
}

static void return_progression(torus_call_t *call, hlo_graph_t *g, int64_t size) {
  torus_dtype_t dtype = op_tensor_dtype(call, 3), wide = TORUS_DTYPE_I64;
  if (!torus_dtype_is_integral(dtype))
    wide =
        float_progression_dtype(dtype, op_double(call, 0), op_double(call, 1), op_double(call, 2));
  hlo_t x = progression(g, wide, size, op_scalar(call, 0, wide), op_scalar(call, 2, wide));
  op_return(call, 0, hlo_convert(g, x, dtype));
}

/* The step must be a number other than 0 that leads from start to end. */
static bool check_step(torus_call_t *call) {
  double start = op_double(call, 0), end = op_double(call, 1), step = op_double(call, 2);
  bool valid = isfinite(start) && isfinite(end) &&
               ((step > 0 && end >= start) || (step < 0 && end <= start));
  if (!valid)
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "upper bound and lower bound inconsistent with step sign");
  return valid;
}

/* Numbers that are integers count exactly; others as doubles. */
static int64_t arange_size(const torus_call_t *call, torus_dtype_t dtype) {
  if (torus_dtype_is_integral(dtype)) {
    int64_t start = op_int(call, 0), end = op_int(call, 1), step = op_int(call, 2);
    int64_t sign = step > 0 ? 1 : -1;
    return step == 0 ? -1 : (end - start + step - sign) / step;
  }
  return (int64_t)ceil((op_double(call, 1) - op_double(call, 0)) / op_double(call, 2));
}

TORUS_OP(arange, "arange.start_out", 0) {
  if (!check_step(call))
    return;
  int64_t size = arange_size(call, op_tensor_dtype(call, 3));
  if (size < 0)
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "step must be nonzero");
  else
    return_progression(call, g, size);
}

TORUS_OP(range, "range.out", 0) {
  if (!check_step(call))
    return;
  double span = op_double(call, 1) - op_double(call, 0);
  return_progression(call, g, (int64_t)floor(span / op_double(call, 2)) + 1);
}

/* ---- linspace and logspace ---- */

/* Integers are cut from doubles, half types rounded from float32. */
static torus_dtype_t spacing_dtype(torus_dtype_t dtype) {
  return torus_dtype_is_integral(dtype) ? TORUS_DTYPE_F64 : op_accumulate_type(dtype);
}

/* Both ends are exact: the first half counts up from start, the second down from end. */
static hlo_t evenly_spaced(torus_call_t *call, hlo_graph_t *g, torus_dtype_t dtype, int64_t steps) {
  hlo_t start = op_scalar(call, 0, dtype), end = op_scalar(call, 1, dtype);
  if (steps == 1)
    return hlo_splat(g, start, 1, &steps);
  torus_dtype_t real = torus_dtype_real(dtype);
  hlo_t last = hlo_soft_int(g, TORUS_DTYPE_I64, steps - 1);
  hlo_t i = counted(g, TORUS_DTYPE_I64, steps), rest = hlo_subtract(g, last, i);
  hlo_t step =
      hlo_divide(g, hlo_subtract(g, end, start), hlo_convert(g, hlo_convert(g, last, real), dtype));
  hlo_t up = hlo_add(g, start, hlo_multiply(g, step, hlo_convert(g, i, dtype)));
  hlo_t down = hlo_subtract(g, end, hlo_multiply(g, step, hlo_convert(g, rest, dtype)));
  hlo_t half = hlo_soft_int(g, TORUS_DTYPE_I64, steps / 2);
  return hlo_select(g, hlo_compare(g, HLO_LT, i, half), up, down);
}

static bool check_steps(torus_call_t *call, int64_t steps) {
  if (steps < 0)
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "number of steps must be non-negative");
  return steps >= 0;
}

TORUS_OP(linspace, "linspace.out", 0) {
  int64_t steps = op_int(call, 2);
  torus_dtype_t dtype = op_tensor_dtype(call, 3);
  if (!check_steps(call, steps))
    return;
  hlo_t x = steps == 0 ? hlo_zeros(g, dtype, 1, &steps)
                       : evenly_spaced(call, g, spacing_dtype(dtype), steps);
  op_return(call, 0, hlo_convert(g, x, dtype));
}

TORUS_OP(logspace, "logspace.out", 0) {
  int64_t steps = op_int(call, 2);
  torus_dtype_t dtype = op_tensor_dtype(call, 4), wide = spacing_dtype(dtype);
  if (!check_steps(call, steps))
    return;
  if (steps == 0) {
    op_return(call, 0, hlo_zeros(g, dtype, 1, &steps));
    return;
  }
  hlo_t base = hlo_soft(g, wide, op_double(call, 3));
  base = hlo_splat(g, base, 1, &steps);
  hlo_t x = hlo_power(g, base, evenly_spaced(call, g, wide, steps));
  op_return(call, 0, hlo_convert(g, x, dtype));
}

/* ---- matrices and permutations ---- */

static void eye(torus_call_t *call, hlo_graph_t *g, int64_t rows, int64_t columns,
                torus_dtype_t dtype) {
  int64_t dims[2] = {rows, columns};
  if (rows < 0 || columns < 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "eye: sizes must not be negative");
    return;
  }
  hlo_t i = hlo_iota(g, TORUS_DTYPE_I32, 2, dims, 0), j = hlo_iota(g, TORUS_DTYPE_I32, 2, dims, 1);
  op_return(call, 0, hlo_convert(g, hlo_compare(g, HLO_EQ, i, j), dtype));
}

TORUS_OP(eye, "eye.out", 0) {
  eye(call, g, op_int(call, 0), op_int(call, 0), op_tensor_dtype(call, 1));
}

TORUS_OP(eye_m, "eye.m_out", 0) {
  eye(call, g, op_int(call, 0), op_int(call, 1), op_tensor_dtype(call, 2));
}

/* Numbers in the order of random keys. 64-bit keys repeat too rarely to matter. */
TORUS_OP(randperm, "randperm.generator_out", TORUS_OP_RANDOM) {
  int64_t size = op_int(call, 0);
  torus_dtype_t dtype = op_tensor_dtype(call, 2);
  if (size < 0) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "n must be non-negative");
    return;
  }
  hlo_t pair[2], sorted[2], seed, offset;
  pair[1] = counted(g, TORUS_DTYPE_I64, size);
  if (size > 1) {
    op_random(call, 2 * size, &seed, &offset);
    pair[0] = hlo_random_bits(g, TORUS_DTYPE_U64, seed, offset, 1, &size);
    hlo_sort(g, pair, 2, 0, false, true, sorted);
    pair[1] = sorted[1];
  }
  op_return(call, 0, hlo_convert(g, pair[1], dtype));
}
