/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Random bits, Fourier transforms and matrix decompositions. */
#include "hlo/graph_internal.h"

/* ---- random bits ---- */

/* Result 1 of two; the advanced state, result 0, is not used: callers advance their own offset. */
hlo_t hlo_random_bits(hlo_graph_t *g, torus_dtype_t dtype, hlo_t seed, hlo_t offset, int rank,
                      const int64_t *dims) {
  hlo_op_t op = HLO_OP_RANDOM_BITS;
  if (!hlo_usable(g, op, seed) || !hlo_usable(g, op, offset)) return HLO_NONE;
  if (hlo_dtype(g, seed) != TORUS_DTYPE_U64 || hlo_dtype(g, offset) != TORUS_DTYPE_U64 ||
      hlo_rank(g, seed) != 0 || hlo_rank(g, offset) != 0) {
    return hlo_fail_types(g, op, "seed and offset must be single uint64 numbers", seed, offset);
  }
  if (dtype != TORUS_DTYPE_U32 && dtype != TORUS_DTYPE_U64) {
    return hlo_fail(g, TORUS_STATUS_INVALID_ARGUMENT, "rng_bit_generator: no random bits of %s",
                    torus_dtype_name(dtype));
  }
  if (hlo_product(rank, dims) == 0) return hlo_zeros(g, dtype, rank, dims);
  const int64_t one = 1;
  hlo_t state[] = {hlo_reshape(g, seed, 1, &one), hlo_reshape(g, offset, 1, &one)};
  hlo_t both = hlo_concatenate(g, state, 2, 0);
  hlo_t node = hlo_append(g, &(hlo_spec_t){.op = op,
                                           .dtype = dtype,
                                           .rank = rank,
                                           .dims = dims,
                                           .operands = &both,
                                           .operand_count = 1});
  return hlo_append_result(g, node, 1, dtype, rank, dims);
}

/* ---- Fourier transforms ---- */

static bool is_fft_type(hlo_fft_t how, torus_dtype_t dtype) {
  if (how == HLO_RFFT) return dtype == TORUS_DTYPE_F32 || dtype == TORUS_DTYPE_F64;
  return torus_dtype_is_complex(dtype);
}

static torus_dtype_t fft_result_type(hlo_fft_t how, torus_dtype_t dtype) {
  if (how == HLO_RFFT) return torus_dtype_complex(dtype);
  return how == HLO_IRFFT ? torus_dtype_real(dtype) : dtype;
}

/* Fills the result's shape; false when the operand has not the sizes that |lengths| ask for. */
static bool fft_shape(const hlo_graph_t *g, hlo_fft_t how, hlo_t x, int count,
                      const int64_t *lengths, int64_t *out_dims) {
  int rank = hlo_shape(g, x, out_dims);
  if (count < 1 || count > 3 || rank < count) return false;
  for (int i = 0; i < count; i++) {
    int64_t *size = &out_dims[rank - count + i], length = lengths[i], half = length / 2 + 1;
    bool last = i == count - 1;
    if (length < 1 || *size != (last && how == HLO_IRFFT ? half : length)) return false;
    *size = last && how == HLO_RFFT ? half : length;
  }
  return true;
}

/* mode: hlo_fft_t; attrs: the lengths. */
hlo_t hlo_fft(hlo_graph_t *g, hlo_fft_t how, hlo_t x, int length_count, const int64_t *lengths) {
  if (!hlo_usable(g, HLO_OP_FFT, x)) return HLO_NONE;
  int64_t dims[TORUS_MAX_RANK];
  torus_dtype_t dtype = hlo_dtype(g, x);
  if (!is_fft_type(how, dtype) || !fft_shape(g, how, x, length_count, lengths, dims)) {
    return hlo_fail_types(g, HLO_OP_FFT, "type or sizes do not fit the transform", x, HLO_NONE);
  }
  int rank = hlo_rank(g, x);
  torus_dtype_t result = fft_result_type(how, dtype);
  if (hlo_numel(g, x) == 0) return hlo_zeros(g, result, rank, dims);
  return hlo_append(g, &(hlo_spec_t){.op = HLO_OP_FFT,
                                     .dtype = result,
                                     .mode = (int)how,
                                     .rank = rank,
                                     .dims = dims,
                                     .operands = &x,
                                     .operand_count = 1,
                                     .attrs = lengths,
                                     .attr_count = (size_t)length_count});
}

/* ---- matrices ---- */

static bool are_square(hlo_graph_t *g, hlo_op_t op, hlo_t x) {
  if (!hlo_usable(g, op, x)) return false;
  int rank = hlo_rank(g, x);
  torus_dtype_t dtype = hlo_dtype(g, x);
  if (rank >= 2 && hlo_dims(g, x)[rank - 1] == hlo_dims(g, x)[rank - 2] &&
      !torus_dtype_is_integral(dtype) && torus_dtype_bytes(dtype) >= 4) {
    return true;
  }
  hlo_fail_types(g, op, "square matrices of single or double precision are wanted", x, HLO_NONE);
  return false;
}

/* mode: lower. */
hlo_t hlo_cholesky(hlo_graph_t *g, hlo_t x, bool lower) {
  if (!are_square(g, HLO_OP_CHOLESKY, x)) return HLO_NONE;
  if (hlo_numel(g, x) == 0) return x;
  return hlo_append_like(g, HLO_OP_CHOLESKY, hlo_dtype(g, x), lower, x, &x, 1);
}

static bool solves(const hlo_graph_t *g, hlo_t a, hlo_t b, bool left) {
  int rank = hlo_rank(g, a);
  bool fits = hlo_dtype(g, a) == hlo_dtype(g, b) && rank == hlo_rank(g, b);
  for (int i = 0; fits && i < rank - 2; i++) fits = hlo_dims(g, a)[i] == hlo_dims(g, b)[i];
  return fits && hlo_dims(g, a)[rank - 1] == hlo_dims(g, b)[left ? rank - 2 : rank - 1];
}

/* mode: 1 left, 2 lower, 4 unit diagonal, 8 transpose. */
hlo_t hlo_triangular_solve(hlo_graph_t *g, hlo_t a, hlo_t b, bool left, bool lower, bool unit,
                           bool transpose) {
  hlo_op_t op = HLO_OP_TRIANGULAR_SOLVE;
  if (!are_square(g, op, a) || !hlo_usable(g, op, b)) return HLO_NONE;
  if (!solves(g, a, b, left)) return hlo_fail_types(g, op, "the shapes do not fit", a, b);
  if (hlo_numel(g, b) == 0) return b;
  int mode = (left ? 1 : 0) | (lower ? 2 : 0) | (unit ? 4 : 0) | (transpose ? 8 : 0);
  return hlo_append_like(g, op, hlo_dtype(g, b), mode, b, (hlo_t[]){a, b}, 2);
}
