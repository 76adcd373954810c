/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Nodes without operands: parameters, numbers, ramps; and numbers repeated to a shape. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "hlo/graph_internal.h"

int64_t hlo_double_bits(double value) {
  int64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

double hlo_bits_double(int64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* attrs: the input number. */
hlo_t hlo_parameter(hlo_graph_t *g, int index, torus_dtype_t dtype, int rank, const int64_t *dims) {
  if (index < 0) {
    return hlo_fail(g, TORUS_STATUS_INTERNAL, "parameter: the index %d is negative", index);
  }
  return hlo_append(g, &(hlo_spec_t){.op = HLO_OP_PARAMETER,
                                     .dtype = dtype,
                                     .rank = rank,
                                     .dims = dims,
                                     .attrs = (int64_t[]){index},
                                     .attr_count = 1});
}

/* ---- numbers ---- */

/* Outside of the type's range the nearest value; NaN is 0. */
static int64_t double_to_int(torus_dtype_t dtype, double value) {
  if (isnan(value)) return 0;
  if (dtype == TORUS_DTYPE_U64 && value >= 0x1p63) {
    return value >= 0x1p64 ? -1 : (int64_t)(uint64_t)value;
  }
  if (value >= 0x1p63) return INT64_MAX;
  if (value < -0x1p63) return INT64_MIN;
  return (int64_t)value;
}

/* Wraps to the width of the type, as a C conversion does. */
static int64_t wrap_int(torus_dtype_t dtype, int64_t value) {
  switch (dtype) {
  case TORUS_DTYPE_BOOL:
    return value != 0;
  case TORUS_DTYPE_U8:
    return (uint8_t)value;
  case TORUS_DTYPE_I8:
    return (int8_t)value;
  case TORUS_DTYPE_U16:
    return (uint16_t)value;
  case TORUS_DTYPE_I16:
    return (int16_t)value;
  case TORUS_DTYPE_U32:
    return (uint32_t)value;
  case TORUS_DTYPE_I32:
    return (int32_t)value;
  default:
    return value;
  }
}

static int64_t number_bits(torus_dtype_t dtype, double value) {
  if (!torus_dtype_is_integral(dtype)) return hlo_double_bits(value);
  if (dtype == TORUS_DTYPE_BOOL) return value != 0;
  return wrap_int(dtype, double_to_int(dtype, value));
}

static int64_t number_bits_int(torus_dtype_t dtype, int64_t value) {
  if (!torus_dtype_is_integral(dtype)) return hlo_double_bits((double)value);
  return wrap_int(dtype, value);
}

/* attrs: the bits. */
hlo_t hlo_append_constant(hlo_graph_t *g, torus_dtype_t dtype, int64_t bits, int rank,
                          const int64_t *dims) {
  return hlo_append(g, &(hlo_spec_t){.op = HLO_OP_CONSTANT,
                                     .dtype = dtype,
                                     .rank = rank,
                                     .dims = dims,
                                     .attrs = &bits,
                                     .attr_count = 1});
}

hlo_t hlo_const(hlo_graph_t *g, torus_dtype_t dtype, double value) {
  return hlo_append_constant(g, dtype, number_bits(dtype, value), 0, NULL);
}

hlo_t hlo_const_int(hlo_graph_t *g, torus_dtype_t dtype, int64_t value) {
  return hlo_append_constant(g, dtype, number_bits_int(dtype, value), 0, NULL);
}

static hlo_t append_soft(hlo_graph_t *g, torus_dtype_t dtype, int mode, int64_t bits) {
  hlo_soft_number_t soft = {.bits = bits, .dtype = (uint8_t)dtype};
  return hlo_append(g, &(hlo_spec_t){.op = HLO_OP_SOFT,
                                     .dtype = dtype,
                                     .mode = mode,
                                     .softs = &soft,
                                     .soft_count = 1});
}

hlo_t hlo_soft(hlo_graph_t *g, torus_dtype_t dtype, double value) {
  if (torus_dtype_is_complex(dtype)) {
    torus_dtype_t real = torus_dtype_real(dtype);
    return hlo_complex(g, hlo_soft(g, real, value), hlo_const(g, real, 0));
  }
  return append_soft(g, dtype, HLO_SOFT_STEADY, number_bits(dtype, value));
}

hlo_t hlo_soft_int(hlo_graph_t *g, torus_dtype_t dtype, int64_t value) {
  if (torus_dtype_is_complex(dtype)) return hlo_soft(g, dtype, (double)value);
  return append_soft(g, dtype, HLO_SOFT_STEADY, number_bits_int(dtype, value));
}

/* Whole numbers that every step of a conversion through double keeps. */
static bool is_exact_double(int64_t value) {
  return value >= -(INT64_C(1) << 53) && value <= INT64_C(1) << 53;
}

hlo_t hlo_soft_as(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype) {
  const hlo_node_t node = *hlo_node(g, x);
  if (node.op != HLO_OP_SOFT || node.mode != HLO_SOFT_STEADY) return HLO_NONE;
  const int64_t bits = g->softs[node.softs].bits;
  if (node.dtype == TORUS_DTYPE_F64 && torus_dtype_is_float(dtype)) {
    return hlo_soft(g, dtype, hlo_bits_double(bits));
  }
  const bool is_kept = torus_dtype_is_float(dtype) ? is_exact_double(bits)
                                                   : torus_dtype_kind(dtype) == TORUS_KIND_INT;
  return node.dtype == TORUS_DTYPE_I64 && is_kept ? hlo_soft_int(g, dtype, bits) : HLO_NONE;
}

hlo_t hlo_volatile_int(hlo_graph_t *g, torus_dtype_t dtype, int64_t value) {
  if (!torus_dtype_is_integral(dtype)) {
    return hlo_fail(g, TORUS_STATUS_INTERNAL, "number: %s is no integer type",
                    torus_dtype_name(dtype));
  }
  return append_soft(g, dtype, HLO_SOFT_VOLATILE, number_bits_int(dtype, value));
}

size_t hlo_graph_soft_count(const hlo_graph_t *g) { return g->soft_count; }

int64_t hlo_graph_soft_bits(const hlo_graph_t *g, size_t index) { return g->softs[index].bits; }

bool hlo_graph_soft_is_real(const hlo_graph_t *g, size_t index) {
  return torus_dtype_is_float((torus_dtype_t)g->softs[index].dtype);
}

void hlo_graph_expect_change(hlo_graph_t *g, size_t index) { g->softs[index].changes = true; }

/* Types without infinities have a largest number instead. */
static double largest_float(torus_dtype_t dtype) {
  switch (dtype) {
  case TORUS_DTYPE_F8E4M3FN:
    return 448;
  case TORUS_DTYPE_F8E5M2FNUZ:
    return 57344;
  case TORUS_DTYPE_F8E4M3FNUZ:
    return 240;
  default:
    return INFINITY;
  }
}

static bool refuse_complex(hlo_graph_t *g, torus_dtype_t dtype) {
  if (!torus_dtype_is_complex(dtype)) return false;
  hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "constant: %s has no lowest or highest value",
           torus_dtype_name(dtype));
  return true;
}

hlo_t hlo_lowest(hlo_graph_t *g, torus_dtype_t dtype) {
  if (refuse_complex(g, dtype)) return HLO_NONE;
  if (torus_dtype_is_float(dtype)) return hlo_const(g, dtype, -largest_float(dtype));
  int64_t lowest = 0;
  if (torus_dtype_kind(dtype) == TORUS_KIND_INT) {
    lowest = INT64_MIN >> (64 - 8 * torus_dtype_bytes(dtype));
  }
  return hlo_const_int(g, dtype, lowest);
}

hlo_t hlo_highest(hlo_graph_t *g, torus_dtype_t dtype) {
  if (refuse_complex(g, dtype)) return HLO_NONE;
  if (torus_dtype_is_float(dtype)) return hlo_const(g, dtype, largest_float(dtype));
  int64_t highest = -1;
  if (torus_dtype_kind(dtype) == TORUS_KIND_INT) {
    highest = INT64_MAX >> (64 - 8 * torus_dtype_bytes(dtype));
  }
  return hlo_const_int(g, dtype, highest);
}

/* ---- repeated numbers ---- */

hlo_t hlo_splat(hlo_graph_t *g, hlo_t scalar, int rank, const int64_t *dims) {
  if (!hlo_usable(g, HLO_OP_BROADCAST, scalar)) return HLO_NONE;
  if (hlo_rank(g, scalar) != 0) {
    return hlo_fail_types(g, HLO_OP_BROADCAST, "a single number is wanted", scalar, HLO_NONE);
  }
  if (rank == 0) return scalar;
  torus_dtype_t dtype = hlo_dtype(g, scalar);
  if (hlo_node(g, scalar)->op == HLO_OP_CONSTANT) {
    return hlo_append_constant(g, dtype, hlo_attrs(g, scalar)[0], rank, dims);
  }
  return hlo_append(g, &(hlo_spec_t){.op = HLO_OP_BROADCAST,
                                     .dtype = dtype,
                                     .rank = rank,
                                     .dims = dims,
                                     .operands = &scalar,
                                     .operand_count = 1});
}

hlo_t hlo_splat_like(hlo_graph_t *g, hlo_t scalar, hlo_t like) {
  hlo_node_t source = *hlo_node(g, scalar);
  torus_dtype_t dtype = (torus_dtype_t)source.dtype;
  if (hlo_rank(g, like) == 0) return scalar;
  if (source.op != HLO_OP_CONSTANT) {
    return hlo_append_like(g, HLO_OP_BROADCAST, dtype, 0, like, &scalar, 1);
  }
  hlo_t x = hlo_append_like(g, HLO_OP_CONSTANT, dtype, 0, like, NULL, 0);
  if (x == HLO_NONE) return HLO_NONE;
  g->nodes[x].attrs = source.attrs;
  g->nodes[x].attr_count = 1;
  return x;
}

hlo_t hlo_zeros_like(hlo_graph_t *g, hlo_t like) {
  return hlo_full_like(g, like, TORUS_DTYPE_INVALID, 0);
}

hlo_t hlo_full_like(hlo_graph_t *g, hlo_t x, torus_dtype_t dtype, double value) {
  if (!hlo_usable(g, HLO_OP_CONSTANT, x)) return HLO_NONE;
  if (dtype == TORUS_DTYPE_INVALID) dtype = hlo_dtype(g, x);
  hlo_t scalar = hlo_const(g, dtype, value);
  return scalar == HLO_NONE ? HLO_NONE : hlo_splat_like(g, scalar, x);
}

hlo_t hlo_zeros(hlo_graph_t *g, torus_dtype_t dtype, int rank, const int64_t *dims) {
  return hlo_append_constant(g, dtype, number_bits_int(dtype, 0), rank, dims);
}

/* attrs: the dimension. */
hlo_t hlo_iota(hlo_graph_t *g, torus_dtype_t dtype, int rank, const int64_t *dims, int dim) {
  if (rank == 0) return hlo_const_int(g, dtype, 0);
  if (dim < 0 || dim >= rank) {
    return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "iota: no dimension %d among %d", dim, rank);
  }
  if (dims[dim] == 1) return hlo_zeros(g, dtype, rank, dims);
  if (dtype == TORUS_DTYPE_BOOL) {
    return hlo_convert(g, hlo_iota(g, TORUS_DTYPE_I32, rank, dims, dim), dtype);
  }
  return hlo_append(g, &(hlo_spec_t){.op = HLO_OP_IOTA,
                                     .dtype = dtype,
                                     .rank = rank,
                                     .dims = dims,
                                     .attrs = (int64_t[]){dim},
                                     .attr_count = 1});
}
