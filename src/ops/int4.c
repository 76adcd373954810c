/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Products with weights of four bits.
 *
 * Weights are (N, K) numbers from 0 to 15 that stand for -8 to 7, with a scale and a zero point for
 * each row and group of columns. Two formats, as in PyTorch: bytes of shape (N, K / 2), which have
 * the layout of PyTorch's CPU kernels on this machine, so that weights packed on either side serve
 * on both; and words of shape (N / 8, K / 16 t, 32, t / 2), opaque in PyTorch too, which here hold
 * the numbers in order. */
#include <stdlib.h>
#include <string.h>

#include "ops/op.h"

static const torus_dtype_t U8 = TORUS_DTYPE_U8;

/* ---- two numbers to a byte ---- */

static hlo_t join_nibbles(hlo_graph_t *g, hlo_t low, hlo_t high) {
  hlo_t four = hlo_const_int(g, U8, 4), mask = hlo_const_int(g, U8, 15);
  return hlo_or(g, hlo_and(g, low, mask), hlo_shift_left(g, high, four));
}

static hlo_t low_nibble(hlo_graph_t *g, hlo_t x) {
  return hlo_and(g, x, hlo_const_int(g, U8, 15));
}

static hlo_t high_nibble(hlo_graph_t *g, hlo_t x) {
  return hlo_shift_right_logical(g, x, hlo_const_int(g, U8, 4));
}

/* ---- the layout of the CPU ---- */

/* Blocks of rows; a byte holds one column of two rows of its block: neighbours, or half a block
 * apart. What is left of the rows is a smaller block of neighbours. */
typedef struct int4_layout {
  int64_t block;
  bool neighbours;
} int4_layout_t;

/* The instructions that PyTorch chooses its kernels by. */
static int4_layout_t host_layout(void) {
  const char *wanted = getenv("ATEN_CPU_CAPABILITY");
  bool wide = false, vectors = false;
#if defined(__x86_64__)
  wide = __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
  vectors = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  if (wanted && strcmp(wanted, "default") == 0) wide = vectors = false;
  if (wanted && strcmp(wanted, "avx2") == 0) wide = false;
  return (int4_layout_t){wide ? 64 : 32, !wide && !vectors};
}

/* (N, K) numbers to N K / 2 bytes; N is a multiple of the block. */
static hlo_t pack_rows(hlo_graph_t *g, hlo_t x, int64_t block, bool neighbours) {
  if (hlo_graph_failed(g)) return HLO_NONE;
  int64_t count = hlo_dim(g, x, 0) / block, half = block / 2, columns = hlo_dim(g, x, 1);
  int64_t dims[4] = {count, neighbours ? half : 2, neighbours ? 2 : half, columns};
  x = hlo_reshape(g, x, 4, dims);
  int pair = neighbours ? 2 : 1;
  hlo_t bytes = join_nibbles(g, hlo_index_dim(g, x, pair, 0), hlo_index_dim(g, x, pair, 1));
  return hlo_flatten(g, hlo_transpose(g, bytes, (const int[]){0, 2, 1}));
}

/* The reverse. */
static hlo_t unpack_rows(hlo_graph_t *g, hlo_t bytes, int64_t rows, int64_t columns, int64_t block,
                         bool neighbours) {
  int64_t dims[3] = {rows / block, columns, block / 2}, whole[2] = {rows, columns};
  bytes = hlo_transpose(g, hlo_reshape(g, bytes, 3, dims), (const int[]){0, 2, 1});
  int pair = neighbours ? 2 : 1;
  hlo_t halves[2] = {hlo_unsqueeze(g, low_nibble(g, bytes), pair),
                     hlo_unsqueeze(g, high_nibble(g, bytes), pair)};
  return hlo_reshape(g, hlo_concatenate(g, halves, 2, pair), 2, whole);
}

static hlo_t pack(hlo_graph_t *g, hlo_t x) {
  if (hlo_graph_failed(g)) return HLO_NONE;
  int4_layout_t layout = host_layout();
  int64_t dims[2] = {hlo_dim(g, x, 0), hlo_dim(g, x, 1) / 2};
  int64_t rest = dims[0] % layout.block, main = dims[0] - rest;
  hlo_t first = hlo_slice_dim(g, x, 0, 0, main), last = hlo_slice_dim(g, x, 0, main, rest);
  hlo_t parts[2];
  size_t count = 0;
  if (main > 0) parts[count++] = pack_rows(g, first, layout.block, layout.neighbours);
  if (rest > 0) parts[count++] = pack_rows(g, last, rest, true);
  return hlo_reshape(g, hlo_concatenate(g, parts, count, 0), 2, dims);
}

static hlo_t unpack(hlo_graph_t *g, hlo_t bytes) {
  if (hlo_graph_failed(g)) return HLO_NONE;
  int4_layout_t layout = host_layout();
  int64_t rows = hlo_dim(g, bytes, 0), columns = 2 * hlo_dim(g, bytes, 1);
  int64_t rest = rows % layout.block, main = rows - rest;
  hlo_t parts[2], flat = hlo_flatten(g, bytes);
  hlo_t first = hlo_slice_dim(g, flat, 0, 0, main * columns / 2);
  hlo_t last = hlo_slice_dim(g, flat, 0, main * columns / 2, rest * columns / 2);
  size_t count = 0;
  if (main > 0)
    parts[count++] = unpack_rows(g, first, main, columns, layout.block, layout.neighbours);
  if (rest > 0) parts[count++] = unpack_rows(g, last, rest, columns, rest, true);
  return hlo_concatenate(g, parts, count, 0);
}

/* ---- products ---- */

/* (groups, N, 2) to the scale (0) or zero point (1) of each weight, (N, K). */
static hlo_t over_groups(hlo_graph_t *g, hlo_t x, int64_t which, int64_t group) {
  if (hlo_graph_failed(g)) return HLO_NONE;
  int64_t groups = hlo_dim(g, x, 0), rows = hlo_dim(g, x, 1);
  int64_t dims[3] = {rows, groups, group}, whole[2] = {rows, groups * group};
  x = hlo_transpose(g, hlo_index_dim(g, x, 2, which), (const int[]){1, 0});
  return hlo_reshape(g, hlo_broadcast_in_dim(g, x, 3, dims, (const int[]){0, 1}), 2, whole);
}

static bool group_fits(torus_call_t *call, int64_t rows, int64_t columns, int64_t group) {
  bool fits = op_tensor_rank(call, 0) == 2 && op_tensor_dim(call, 0, 1) == columns && group > 0 &&
              columns % group == 0 && op_tensor_rank(call, 3) == 3 &&
              op_tensor_dim(call, 3, 0) == columns / group && op_tensor_dim(call, 3, 1) == rows &&
              op_tensor_dim(call, 3, 2) == 2;
  if (!fits)
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "the sizes of input, weight and scales differ");
  return fits;
}

/* Arguments: input (M, K), packed weight, group size, (K / group, N, 2) scales and zero points. */
static void give_product(torus_call_t *call, hlo_graph_t *g, hlo_t weight) {
  if (op_failed(call) || hlo_graph_failed(g)) return;
  torus_dtype_t f32 = TORUS_DTYPE_F32;
  int64_t group = op_int(call, 2);
  if (!group_fits(call, hlo_dim(g, weight, 0), hlo_dim(g, weight, 1), group)) return;
  hlo_t scales = op_tensor_as(call, 3, f32);
  hlo_t w = hlo_add_f(g, hlo_convert(g, weight, f32), -8);
  w = hlo_multiply(g, w, over_groups(g, scales, 0, group));
  w = hlo_add(g, w, over_groups(g, scales, 1, group));
  hlo_t y = hlo_matmul(g, op_tensor_as(call, 0, f32), hlo_transpose(g, w, (const int[]){1, 0}));
  op_return(call, 0, hlo_convert(g, y, op_tensor_dtype(call, 0)));
}

static bool is_packable(torus_call_t *call, torus_dtype_t dtype) {
  bool fits = op_tensor_rank(call, 0) == 2 && op_tensor_dtype(call, 0) == dtype;
  if (!fits) op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "expected a matrix of numbers");
  return fits;
}

TORUS_OP(pack_for_cpu, "_convert_weight_to_int4pack_for_cpu", 0) {
  if (!is_packable(call, TORUS_DTYPE_I32)) return;
  if (op_tensor_dim(call, 0, 0) % 16 || op_tensor_dim(call, 0, 1) % 2) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "expected rows in sixteens and columns in pairs");
    return;
  }
  if (op_tensor_numel(call, 0) > 0) op_return(call, 0, pack(g, op_tensor_as(call, 0, U8)));
  else op_fallback(call, "a weight without elements");
}

TORUS_OP(int4_mm_for_cpu, "_weight_int4pack_mm_for_cpu", 0) {
  bool fits = op_tensor_rank(call, 1) == 2 && op_tensor_dtype(call, 1) == U8 &&
              op_tensor_numel(call, 1) > 0 && op_tensor_dim(call, 1, 0) % 16 == 0;
  if (fits) give_product(call, g, unpack(g, op_tensor(call, 1)));
  else op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "expected a packed weight of bytes");
}

/* Bytes (N, K / 2), the even column in the upper half. */
TORUS_OP(pack_words, "_convert_weight_to_int4pack", 0) {
  if (!is_packable(call, U8)) return;
  int64_t tiles = op_int(call, 1), rows = op_tensor_dim(call, 0, 0);
  int64_t columns = 2 * op_tensor_dim(call, 0, 1);
  bool fits = (tiles == 2 || tiles == 4 || tiles == 8) && rows % 8 == 0 &&
              columns % (16 * tiles) == 0 && rows * columns > 0;
  if (!fits) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT,
             "expected rows in eights and columns in tiles of 16");
    return;
  }
  int64_t words[2] = {rows * columns / 8, 4};
  int64_t dims[4] = {rows / 8, columns / (16 * tiles), 32, tiles / 2};
  hlo_t flat = hlo_bitcast(g, hlo_reshape(g, op_tensor(call, 0), 2, words), TORUS_DTYPE_I32);
  op_return(call, 0, hlo_reshape(g, flat, 4, dims));
}

TORUS_OP(int4_mm, "_weight_int4pack_mm", 0) {
  bool fits = op_tensor_rank(call, 1) == 4 && op_tensor_dtype(call, 1) == TORUS_DTYPE_I32 &&
              op_tensor_numel(call, 1) > 0;
  if (!fits) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "expected a packed weight of words");
    return;
  }
  int64_t rows = 8 * op_tensor_dim(call, 1, 0), count = 8 * op_tensor_numel(call, 1);
  int64_t dims[2] = {rows, count / rows};
  hlo_t bytes = hlo_flatten(g, hlo_bitcast(g, hlo_flatten(g, op_tensor(call, 1)), U8));
  hlo_t halves[2] = {hlo_unsqueeze(g, high_nibble(g, bytes), 1),
                     hlo_unsqueeze(g, low_nibble(g, bytes), 1)};
  give_product(call, g, hlo_reshape(g, hlo_concatenate(g, halves, 2, 1), 2, dims));
}
