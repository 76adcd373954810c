/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The graph, its key and its text. Every builder function is printed, compiled by the PJRT plugin
 * in TORUS_TEST_PLUGIN and run twice: with soft numbers as constants, and all promoted. */
#include "test.h"

#include <math.h>
#include <time.h>

#include "hlo/encode.h"
#include "hlo/graph.h"
#include "torus/pjrt.h"

enum { MAX_OUTPUTS = 96, MAX_INPUTS = 16 };

static torus_client_t *client; /* shared by the tests */

#define DIMS(...) ((const int64_t[]){__VA_ARGS__})
#define INTS(...) ((const int[]){__VA_ARGS__})
#define NODES(...) ((const hlo_t[]){__VA_ARGS__})

/* ---- scenes: a graph, its inputs, and what came out ---- */

typedef struct scene {
  hlo_graph_t *g;
  int input_count;
  float *inputs[MAX_INPUTS];
  int64_t input_sizes[MAX_INPUTS];
  int ranks[MAX_INPUTS];
  int64_t dims[MAX_INPUTS][8];
  int output_count;
  hlo_t outputs[MAX_OUTPUTS];
  int64_t sizes[MAX_OUTPUTS];
  double *values[MAX_OUTPUTS]; /* of the run with constants */
} scene_t;

static void scene_open(scene_t *s) {
  *s = (scene_t){0};
  torus_status_ignore(hlo_graph_create(&s->g));
}

static void scene_close(scene_t *s) {
  hlo_graph_destroy(s->g);
  for (int i = 0; i < s->input_count; i++) torus_free(s->inputs[i]);
  for (int i = 0; i < s->output_count; i++) torus_free(s->values[i]);
}

/* A float32 parameter with these values, converted to |dtype|. */
static hlo_t scene_values(scene_t *s, torus_dtype_t dtype, int rank, const int64_t *dims,
                          const float *values) {
  int i = s->input_count++;
  s->ranks[i] = rank;
  s->input_sizes[i] = 1;
  for (int k = 0; k < rank; k++) {
    s->dims[i][k] = dims[k];
    s->input_sizes[i] *= dims[k];
  }
  size_t bytes = (size_t)s->input_sizes[i] * sizeof(float);
  s->inputs[i] = torus_alloc(bytes);
  if (bytes) memcpy(s->inputs[i], values, bytes);
  return hlo_convert(s->g, hlo_parameter(s->g, i, TORUS_DTYPE_F32, rank, dims), dtype);
}

/* Values in [-2, 2.5], none twice in a row. */
static hlo_t scene_input(scene_t *s, torus_dtype_t dtype, int rank, const int64_t *dims) {
  static float pattern[4096];
  for (int i = 0; i < 4096; i++) pattern[i] = (float)(i * 7 % 19) * 0.25f - 2.0f;
  return scene_values(s, dtype, rank, dims, pattern);
}

/* All outputs are read as float64; complex ones as two. */
static void scene_output(scene_t *s, hlo_t x) {
  if (torus_dtype_is_complex(hlo_dtype(s->g, x))) {
    scene_output(s, hlo_real(s->g, x));
    scene_output(s, hlo_imag(s->g, x));
    return;
  }
  s->sizes[s->output_count] = hlo_numel(s->g, x);
  s->outputs[s->output_count++] = hlo_convert(s->g, x, TORUS_DTYPE_F64);
}

static torus_status_t make_arguments(const scene_t *s, const hlo_encoding_t *encoding,
                                     const bool *promoted, torus_buffer_t **arguments,
                                     size_t *count) {
  *count = 0;
  for (size_t i = 0; i < encoding->parameter_count; i++) {
    int input = encoding->parameters[i];
    TORUS_TRY(torus_buffer_from_host(client, 0, s->inputs[input], TORUS_DTYPE_F32,
                                     s->ranks[input], s->dims[input], &arguments[(*count)++]));
  }
  int64_t words = (int64_t)hlo_soft_words(encoding, promoted);
  if (!words) return TORUS_OK;
  uint32_t packed[512];
  hlo_pack_softs(encoding, promoted, packed);
  return torus_buffer_from_host(client, 0, packed, TORUS_DTYPE_U32, 1, &words,
                                &arguments[(*count)++]);
}

static torus_status_t run_text(scene_t *s, const torus_strbuf_t *text,
                               torus_buffer_t *const *arguments, size_t count, double **values) {
  torus_executable_t *executable;
  torus_buffer_t *results[MAX_OUTPUTS] = {0};
  TORUS_TRY(torus_executable_compile(client, 0, text->data, text->size, TORUS_EFFORT_FAST,
                                     &executable));
  size_t output_count = (size_t)s->output_count;
  torus_status_t status =
      torus_executable_run(executable, arguments, count, output_count, results);
  for (size_t i = 0; i < output_count; i++) {
    size_t bytes = (size_t)s->sizes[i] * sizeof(double);
    values[i] = torus_alloc(bytes);
    if (!status) status = torus_buffer_to_host(results[i], values[i], bytes);
    torus_buffer_release(results[i]);
  }
  torus_executable_release(executable);
  return status;
}

static torus_status_t run_promoted(scene_t *s, const hlo_encoding_t *encoding,
                                   const bool *promoted, double **values) {
  torus_strbuf_t text = {0};
  torus_buffer_t *arguments[MAX_INPUTS + 1] = {0};
  size_t count = 0;
  torus_status_t status =
      hlo_print(s->g, s->outputs, (size_t)s->output_count, promoted, NULL, &text);
  if (!status) status = make_arguments(s, encoding, promoted, arguments, &count);
  if (!status) status = run_text(s, &text, arguments, count, values);
  for (size_t i = 0; i < count; i++) torus_buffer_release(arguments[i]);
  if (status) fprintf(stderr, "%s\n", torus_strbuf_text(&text));
  torus_strbuf_deinit(&text);
  return status;
}

static bool same_values(const double *a, const double *b, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    if (a[i] != b[i] && !(isnan(a[i]) && isnan(b[i]))) {
      fprintf(stderr, "element %lld: %.17g as a constant, %.17g promoted\n", (long long)i, a[i],
              b[i]);
      return false;
    }
  }
  return true;
}

static torus_status_t run_both(scene_t *s, const hlo_encoding_t *encoding, double **again) {
  bool promoted[512];
  TORUS_TRY(run_promoted(s, encoding, NULL, s->values));
  if (encoding->soft_count == 0) return TORUS_OK;
  for (int i = 0; i < 512; i++) promoted[i] = true;
  TORUS_TRY(run_promoted(s, encoding, promoted, again));
  for (int i = 0; i < s->output_count; i++) {
    if (!same_values(s->values[i], again[i], s->sizes[i])) {
      return torus_status_make(TORUS_STATUS_DATA_LOSS, "output %d differs when promoted", i);
    }
  }
  return TORUS_OK;
}

static torus_status_t scene_run(scene_t *s) {
  hlo_encoding_t encoding;
  double *again[MAX_OUTPUTS] = {0};
  TORUS_TRY(hlo_graph_take_error(s->g));
  TORUS_TRY(hlo_encode(s->g, s->outputs, (size_t)s->output_count, &encoding));
  torus_status_t status = run_both(s, &encoding, again);
  for (int i = 0; i < s->output_count; i++) torus_free(again[i]);
  hlo_encoding_deinit(&encoding);
  return status;
}

/* Compares output |k| with the values that follow. */
#define ASSERT_VALUES(s, k, ...)                                                                   \
  do {                                                                                             \
    const double wanted_[] = {__VA_ARGS__};                                                        \
    ASSERT_EQ((s)->sizes[k], (int64_t)(sizeof wanted_ / sizeof *wanted_));                         \
    for (size_t i_ = 0; i_ < sizeof wanted_ / sizeof *wanted_; i_++) {                             \
      double got_ = (s)->values[k][i_];                                                            \
      if (!(got_ == wanted_[i_] || (isnan(got_) && isnan(wanted_[i_])))) {                         \
        scene_close(s);                                                                            \
        TEST_FAIL("output %d, element %zu is %.17g, not %.17g", k, i_, got_, wanted_[i_]);         \
      }                                                                                            \
    }                                                                                              \
  } while (0)

#define ASSERT_RUNS(s)                                                                             \
  do {                                                                                             \
    torus_status_t run_ = scene_run(s);                                                            \
    if (run_) scene_close(s);                                                                      \
    ASSERT_OK(run_);                                                                               \
  } while (0)

/* ---- elementwise ---- */

static const torus_dtype_t float_types[] = {TORUS_DTYPE_F8E5M2, TORUS_DTYPE_F8E4M3FN,
                                            TORUS_DTYPE_F16,    TORUS_DTYPE_BF16,
                                            TORUS_DTYPE_F32,    TORUS_DTYPE_F64,
                                            TORUS_DTYPE_C64,    TORUS_DTYPE_C128};
enum { FLOAT_TYPES = sizeof float_types / sizeof *float_types };

/* Every operation that takes the type; the others must say so. */
#define TRY_UNARY(name, spelling, allowed)                                                         \
  x = hlo_##name(s->g, a);                                                                         \
  torus_status_free(hlo_graph_take_error(s->g));                                                   \
  if (x != HLO_NONE) scene_output(s, x);
#define TRY_BINARY(name, spelling, allowed)                                                        \
  x = hlo_##name(s->g, a, b);                                                                      \
  torus_status_free(hlo_graph_take_error(s->g));                                                   \
  if (x != HLO_NONE) scene_output(s, x);

static void add_unary(scene_t *s, torus_dtype_t dtype) {
  hlo_t x, a = scene_input(s, dtype, 2, DIMS(2, 3));
  HLO_UNARY_LIST(TRY_UNARY)
}

static void add_binary(scene_t *s, torus_dtype_t dtype) {
  hlo_t x, a = scene_input(s, dtype, 2, DIMS(2, 3)), b = scene_input(s, dtype, 2, DIMS(2, 3));
  HLO_BINARY_LIST(TRY_BINARY)
}

static void run_elementwise(torus_dtype_t dtype) {
  scene_t s;
  scene_open(&s);
  add_unary(&s, dtype);
  ASSERT_RUNS(&s);
  scene_close(&s);
  scene_open(&s);
  add_binary(&s, dtype);
  ASSERT_RUNS(&s);
  scene_close(&s);
}

TEST(every_elementwise_operation_compiles_for_floats) {
  for (int i = 0; i < FLOAT_TYPES; i++) {
    run_elementwise(float_types[i]);
    if (test_failed) TEST_FAIL("for %s", torus_dtype_name(float_types[i]));
  }
}

TEST(every_elementwise_operation_compiles_for_integers) {
  for (torus_dtype_t dtype = TORUS_DTYPE_BOOL; dtype <= TORUS_DTYPE_I64; dtype++) {
    run_elementwise(dtype);
    if (test_failed) TEST_FAIL("for %s", torus_dtype_name(dtype));
  }
}

TEST(every_type_converts_to_every_other) {
  for (int from = 0; from < TORUS_DTYPE_COUNT; from++) {
    scene_t s;
    scene_open(&s);
    hlo_t x = scene_values(&s, (torus_dtype_t)from, 1, DIMS(3), (const float[]){0, 1, 2});
    for (int to = 0; to < TORUS_DTYPE_COUNT; to++) {
      scene_output(&s, hlo_convert(s.g, x, (torus_dtype_t)to));
    }
    ASSERT_RUNS(&s);
    ASSERT_VALUES(&s, TORUS_DTYPE_BOOL, 0, 1, 1);
    ASSERT_VALUES(&s, TORUS_DTYPE_BF16, 0, 1, from == TORUS_DTYPE_BOOL ? 1 : 2);
    scene_close(&s);
  }
}

TEST(comparisons_and_choices) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  hlo_t x = scene_values(&s, TORUS_DTYPE_F32, 1, DIMS(4), (const float[]){1, NAN, INFINITY, -2});
  hlo_t small = hlo_compare_f(g, HLO_LT, x, 0);
  scene_output(&s, small);
  scene_output(&s, hlo_is_nan(g, x));
  scene_output(&s, hlo_is_finite(g, x));
  scene_output(&s, hlo_select(g, small, x, hlo_const(g, TORUS_DTYPE_F32, 7)));
  scene_output(&s, hlo_select(g, hlo_compare_f(g, HLO_EQ, hlo_soft(g, TORUS_DTYPE_F32, 3), 3), x,
                              hlo_const(g, TORUS_DTYPE_F32, 7)));
  scene_output(&s, hlo_select(g, small, hlo_const(g, TORUS_DTYPE_I32, 1),
                              hlo_const(g, TORUS_DTYPE_I32, 2)));
  scene_output(&s, hlo_is_nan(g, hlo_convert(g, small, TORUS_DTYPE_I32)));
  scene_output(&s, hlo_maximum(g, x, hlo_const(g, TORUS_DTYPE_F32, 0)));
  scene_output(&s, hlo_add_f(g, hlo_multiply_f(g, x, 2), 1));
  for (int how = HLO_EQ; how <= HLO_GE; how++) {
    scene_output(&s, hlo_compare(g, (hlo_comparison_t)how, small, hlo_not(g, small)));
  }
  ASSERT_RUNS(&s);
  ASSERT_VALUES(&s, 0, 0, 0, 0, 1);
  ASSERT_VALUES(&s, 1, 0, 1, 0, 0);
  ASSERT_VALUES(&s, 2, 1, 0, 0, 1);
  ASSERT_VALUES(&s, 3, 7, 7, 7, -2);
  ASSERT_VALUES(&s, 4, 1, NAN, INFINITY, -2);
  ASSERT_VALUES(&s, 5, 2, 2, 2, 1);
  ASSERT_VALUES(&s, 6, 0, 0, 0, 0);
  ASSERT_VALUES(&s, 7, 1, NAN, INFINITY, 0);
  ASSERT_VALUES(&s, 8, 3, NAN, INFINITY, -3);
  ASSERT_VALUES(&s, 11, 1, 1, 1, 0); /* LT */
  scene_close(&s);
}

TEST(bits_and_complex_numbers) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  hlo_t x = scene_values(&s, TORUS_DTYPE_F32, 1, DIMS(2), (const float[]){1, -2});
  hlo_t z = hlo_complex(g, x, hlo_const(g, TORUS_DTYPE_F32, 3));
  hlo_t wide = hlo_bitcast(g, x, TORUS_DTYPE_I64);
  scene_output(&s, hlo_bitcast(g, x, TORUS_DTYPE_I32));
  scene_output(&s, hlo_bitcast(g, hlo_bitcast(g, x, TORUS_DTYPE_U8), TORUS_DTYPE_F32));
  scene_output(&s, hlo_bitcast(g, wide, TORUS_DTYPE_F32));
  scene_output(&s, hlo_conj(g, z)); /* two outputs */
  scene_output(&s, hlo_bitcast(g, z, TORUS_DTYPE_F32));
  scene_output(&s, hlo_bitcast(g, hlo_bitcast(g, z, TORUS_DTYPE_I64), TORUS_DTYPE_C64));
  scene_output(&s, hlo_bitcast(g, hlo_bitcast(g, z, TORUS_DTYPE_U8), TORUS_DTYPE_C64));
  scene_output(&s, hlo_abs(g, z));
  scene_output(&s, hlo_imag(g, x));
  scene_output(&s, hlo_bitcast(g, hlo_const(g, TORUS_DTYPE_U8, 2), TORUS_DTYPE_BOOL));
  scene_output(&s, hlo_soft(g, TORUS_DTYPE_C128, 2.5));
  ASSERT_EQ(hlo_rank(g, wide), 0);
  ASSERT_RUNS(&s);
  ASSERT_VALUES(&s, 0, 0x3f800000, -1073741824.0);
  ASSERT_VALUES(&s, 1, 1, -2);
  ASSERT_VALUES(&s, 2, 1, -2);
  ASSERT_VALUES(&s, 3, 1, -2);
  ASSERT_VALUES(&s, 4, -3, -3);
  ASSERT_VALUES(&s, 5, 1, 3, -2, 3);
  ASSERT_VALUES(&s, 7, 3, 3);
  ASSERT_VALUES(&s, 9, 3, 3);
  ASSERT_VALUES(&s, 11, 0, 0);
  ASSERT_VALUES(&s, 12, 1);
  scene_close(&s);
}

/* ---- numbers ---- */

TEST(constants_are_exact) {
  static const double numbers[] = {0,     -0.0,  1,     -1,       0.1,     1e-8, 3.4e38,
                                   1e300, 65504, 65520, INFINITY, -INFINITY, NAN,  1e20, 123456789};
  for (int i = 0; i < 6; i++) {
    scene_t s;
    scene_open(&s);
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
      scene_output(&s, hlo_soft(s.g, float_types[i], numbers[k]));
    }
    ASSERT_RUNS(&s);
    ASSERT_VALUES(&s, 3, -1);
    ASSERT_VALUES(&s, 12, NAN);
    if (float_types[i] == TORUS_DTYPE_F64) ASSERT_VALUES(&s, 4, 0.1);
    if (float_types[i] == TORUS_DTYPE_F32) ASSERT_VALUES(&s, 4, (double)0.1f);
    if (float_types[i] == TORUS_DTYPE_F32) ASSERT_VALUES(&s, 7, INFINITY);
    if (float_types[i] == TORUS_DTYPE_F16) ASSERT_VALUES(&s, 8, 65504);
    if (float_types[i] == TORUS_DTYPE_F16) ASSERT_VALUES(&s, 9, INFINITY);
    scene_close(&s);
  }
}

TEST(integers_are_exact) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  for (torus_dtype_t dtype = TORUS_DTYPE_BOOL; dtype <= TORUS_DTYPE_I64; dtype++) {
    hlo_t low = hlo_lowest(g, dtype), high = hlo_highest(g, dtype);
    scene_output(&s, hlo_soft_int(g, dtype, -1));
    scene_output(&s, hlo_compare(g, HLO_EQ, hlo_soft_int(g, dtype, INT64_MIN + 1),
                                 hlo_const_int(g, dtype, INT64_MIN + 1)));
    scene_output(&s, low);
    scene_output(&s, hlo_compare(g, HLO_GT, high, low));
    scene_output(&s, hlo_volatile_int(g, dtype, 1));
  }
  scene_output(&s, hlo_compare(g, HLO_EQ, hlo_volatile_int(g, TORUS_DTYPE_U64, -2),
                               hlo_const(g, TORUS_DTYPE_U64, 0x1.fp63)));
  scene_output(&s, hlo_soft(g, TORUS_DTYPE_U8, 7.9));
  for (int i = 0; i < 6; i++) {
    scene_output(&s, hlo_lowest(g, float_types[i]));
    scene_output(&s, hlo_highest(g, float_types[i]));
  }
  ASSERT_RUNS(&s);
  ASSERT_VALUES(&s, 0, 1);
  ASSERT_VALUES(&s, 5, 255);
  ASSERT_VALUES(&s, 10, -1);
  ASSERT_VALUES(&s, 12, -128);
  for (int i = 0; i < 9; i++) ASSERT_VALUES(&s, 5 * i + 1, 1);
  for (int i = 0; i < 9; i++) ASSERT_VALUES(&s, 5 * i + 3, 1);
  ASSERT_VALUES(&s, 45, 0);
  ASSERT_VALUES(&s, 46, 7);
  ASSERT_VALUES(&s, 47, -INFINITY);
  ASSERT_VALUES(&s, 50, 448);
  scene_close(&s);
}

TEST(sources) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  for (int dtype = 0; dtype < TORUS_DTYPE_COUNT; dtype++) {
    scene_output(&s, hlo_iota(g, (torus_dtype_t)dtype, 2, DIMS(2, 2), 1));
    scene_output(&s, hlo_zeros(g, (torus_dtype_t)dtype, 1, DIMS(0)));
    scene_output(&s, hlo_splat(g, hlo_const(g, (torus_dtype_t)dtype, 1), 1, DIMS(2)));
  }
  hlo_t soft = hlo_soft(g, TORUS_DTYPE_F32, 2);
  scene_output(&s, hlo_splat(g, soft, 2, DIMS(1, 2)));
  scene_output(&s, hlo_full_like(g, hlo_splat(g, soft, 1, DIMS(2)), TORUS_DTYPE_I8, 3));
  scene_output(&s, hlo_iota(g, TORUS_DTYPE_I32, 0, NULL, 0));
  ASSERT_RUNS(&s);
  ASSERT_VALUES(&s, 3, 0, 1, 0, 1);
  ASSERT_VALUES(&s, s.output_count - 3, 2, 2);
  ASSERT_VALUES(&s, s.output_count - 2, 3, 3);
  ASSERT_VALUES(&s, s.output_count - 1, 0);
  scene_close(&s);
}

/* ---- shape ---- */

TEST(shapes) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  const float numbers[] = {0, 1, 2, 3, 4, 5};
  hlo_t x = scene_values(&s, TORUS_DTYPE_F32, 2, DIMS(2, 3), numbers);
  hlo_t row = hlo_reshape(g, hlo_slice_dim(g, x, 0, 1, 1), 1, DIMS(3));
  hlo_t one = hlo_const(g, TORUS_DTYPE_F32, 9);
  scene_output(&s, hlo_transpose(g, x, INTS(1, 0)));
  scene_output(&s, hlo_flatten(g, hlo_swap_dims(g, x, 0, 1)));
  scene_output(&s, hlo_broadcast_in_dim(g, row, 2, DIMS(3, 2), INTS(0)));
  scene_output(&s, hlo_expand(g, row, 2, DIMS(2, 3)));
  scene_output(&s, hlo_unsqueeze(g, row, 1));
  scene_output(&s, hlo_squeeze(g, hlo_unsqueeze(g, row, 0), 0));
  scene_output(&s, hlo_broadcast_back(g, row, x, 1, INTS(0)));
  scene_output(&s, hlo_pad(g, row, one, DIMS(1), DIMS(-1), DIMS(1)));
  scene_output(&s, hlo_concatenate(g, NODES(row, hlo_zeros(g, TORUS_DTYPE_F32, 1, DIMS(0)), row),
                                   3, 0));
  scene_output(&s, hlo_reverse(g, x, 2, INTS(1, 0)));
  scene_output(&s, hlo_pad(g, hlo_zeros(g, TORUS_DTYPE_F32, 1, DIMS(0)), one, DIMS(1), DIMS(1),
                           NULL));
  ASSERT_RUNS(&s);
  ASSERT_VALUES(&s, 0, 0, 3, 1, 4, 2, 5);
  ASSERT_VALUES(&s, 1, 0, 3, 1, 4, 2, 5);
  ASSERT_VALUES(&s, 2, 3, 3, 4, 4, 5, 5);
  ASSERT_VALUES(&s, 3, 3, 4, 5, 3, 4, 5);
  ASSERT_VALUES(&s, 6, 3, 4, 5, 3, 4, 5);
  ASSERT_VALUES(&s, 7, 9, 3, 9, 4, 9);
  ASSERT_VALUES(&s, 8, 3, 4, 5, 3, 4, 5);
  ASSERT_VALUES(&s, 9, 5, 4, 3, 2, 1, 0);
  ASSERT_VALUES(&s, 10, 9, 9);
  scene_close(&s);
}

TEST(slices) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  hlo_t x = scene_values(&s, TORUS_DTYPE_F32, 2, DIMS(2, 4),
                         (const float[]){0, 1, 2, 3, 4, 5, 6, 7});
  hlo_t i = hlo_soft_int(g, TORUS_DTYPE_I64, 1), zero = hlo_const(g, TORUS_DTYPE_I64, 0);
  hlo_t two = hlo_splat(g, hlo_soft(g, TORUS_DTYPE_F32, -1), 2, DIMS(1, 2));
  scene_output(&s, hlo_slice(g, x, DIMS(0, 1), DIMS(2, 2), DIMS(1, 2)));
  scene_output(&s, hlo_slice(g, x, DIMS(1, 1), DIMS(1, 2), NULL));
  scene_output(&s, hlo_slice(g, x, DIMS(1, 4), DIMS(1, 0), NULL));
  scene_output(&s, hlo_index_dim(g, x, 1, 3));
  scene_output(&s, hlo_update_slice(g, x, two, DIMS(1, 2)));
  scene_output(&s, hlo_dynamic_slice(g, x, NODES(i, i), DIMS(1, 2)));
  scene_output(&s, hlo_dynamic_update_slice(g, x, two, NODES(zero, i)));
  scene_output(&s, hlo_update_slice(g, x, hlo_zeros(g, TORUS_DTYPE_F32, 2, DIMS(0, 4)),
                                    DIMS(1, 0)));
  ASSERT_RUNS(&s);
  ASSERT_VALUES(&s, 0, 1, 3, 5, 7);
  ASSERT_VALUES(&s, 1, 5, 6);
  ASSERT_VALUES(&s, 3, 3, 7);
  ASSERT_VALUES(&s, 4, 0, 1, 2, 3, 4, 5, -1, -1);
  ASSERT_VALUES(&s, 5, 5, 6);
  ASSERT_VALUES(&s, 6, 0, -1, -1, 3, 4, 5, 6, 7);
  ASSERT_VALUES(&s, 7, 0, 1, 2, 3, 4, 5, 6, 7);
  scene_close(&s);
}

/* ---- reductions ---- */

TEST(reductions_of_every_type) {
  for (int dtype = 0; dtype < TORUS_DTYPE_COUNT; dtype++) {
    scene_t s;
    scene_open(&s);
    hlo_t x = scene_values(&s, (torus_dtype_t)dtype, 2, DIMS(2, 2), (const float[]){1, 2, 3, 0});
    hlo_window_t window = hlo_window_identity();
    window.size[1] = 2;
    for (int how = 0; how <= HLO_REDUCE_XOR; how++) {
      hlo_t y = hlo_reduce(s.g, (hlo_reduction_t)how, x, 1, INTS(1), how & 1);
      torus_status_free(hlo_graph_take_error(s.g));
      if (y == HLO_NONE) continue;
      scene_output(&s, y);
      scene_output(&s, hlo_reduce_window(s.g, (hlo_reduction_t)how, x, &window));
    }
    scene_output(&s, hlo_reduce_all(s.g, HLO_REDUCE_ADD, x));
    ASSERT_RUNS(&s);
    if (dtype != TORUS_DTYPE_BOOL) ASSERT_VALUES(&s, 0, 3, 3);
    int last = s.output_count - 1 - (dtype > TORUS_DTYPE_F64);
    if (dtype != TORUS_DTYPE_BOOL) ASSERT_VALUES(&s, last, 6);
    scene_close(&s);
  }
}

TEST(reductions_of_nothing_and_nan) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  hlo_t none = hlo_zeros(g, TORUS_DTYPE_F32, 2, DIMS(0, 2));
  hlo_t x = scene_values(&s, TORUS_DTYPE_F32, 1, DIMS(3), (const float[]){1, NAN, 3});
  scene_output(&s, hlo_reduce(g, HLO_REDUCE_ADD, none, 1, INTS(0), false));
  scene_output(&s, hlo_reduce(g, HLO_REDUCE_MAXIMUM, none, 1, INTS(0), true));
  scene_output(&s, hlo_reduce(g, HLO_REDUCE_ADD, none, 1, INTS(1), false));
  scene_output(&s, hlo_reduce_all(g, HLO_REDUCE_MAXIMUM, x));
  scene_output(&s, hlo_reduce_all(g, HLO_REDUCE_MINIMUM, x));
  scene_output(&s, hlo_reduce_all(g, HLO_REDUCE_ADD, hlo_const(g, TORUS_DTYPE_F32, 4)));
  ASSERT_RUNS(&s);
  ASSERT_VALUES(&s, 0, 0, 0);
  ASSERT_VALUES(&s, 1, -INFINITY, -INFINITY);
  ASSERT_EQ(s.sizes[2], 0);
  ASSERT_VALUES(&s, 3, NAN);
  ASSERT_VALUES(&s, 4, NAN);
  ASSERT_VALUES(&s, 5, 4);
  scene_close(&s);
}

TEST(places_of_the_largest) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  hlo_t x = scene_values(&s, TORUS_DTYPE_F32, 2, DIMS(3, 4),
                         (const float[]){1, 3, 3, 2, 0, NAN, 9, NAN, -INFINITY, -INFINITY,
                                         -INFINITY, -INFINITY});
  hlo_t value, place;
  for (int is_max = 0; is_max < 2; is_max++) {
    hlo_reduce_arg(g, is_max, x, 1, &value, &place);
    ASSERT_EQ(hlo_dtype(g, place), TORUS_DTYPE_I64);
    scene_output(&s, value);
    scene_output(&s, place);
  }
  for (int dtype = 0; dtype <= TORUS_DTYPE_F64; dtype++) {
    hlo_reduce_arg(g, true, hlo_convert(g, x, (torus_dtype_t)dtype), 0, &value, &place);
    scene_output(&s, value);
    scene_output(&s, place);
  }
  hlo_reduce_arg(g, true, hlo_const(g, TORUS_DTYPE_F32, 4), 0, &value, &place);
  ASSERT_EQ(value, HLO_NONE);
  torus_status_free(hlo_graph_take_error(g));
  ASSERT_RUNS(&s);
  ASSERT_VALUES(&s, 0, 1, NAN, -INFINITY);
  ASSERT_VALUES(&s, 1, 0, 1, 0);
  ASSERT_VALUES(&s, 2, 3, NAN, -INFINITY);
  ASSERT_VALUES(&s, 3, 1, 1, 0);
  ASSERT_VALUES(&s, 5, 0, 0, 0, 0);
  scene_close(&s);
}

TEST(windows) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  hlo_t x = scene_values(&s, TORUS_DTYPE_F32, 1, DIMS(6), (const float[]){1, 5, 5, 2, NAN, 3});
  hlo_window_t w = hlo_window_identity();
  w.size[0] = 2, w.stride[0] = 2;
  hlo_t keys, payload;
  scene_output(&s, hlo_reduce_window(g, HLO_REDUCE_MAXIMUM, x, &w));
  hlo_reduce_window_arg(g, x, hlo_iota(g, TORUS_DTYPE_I64, 1, DIMS(6), 0), &w, &keys, &payload);
  scene_output(&s, keys);
  scene_output(&s, payload);
  hlo_t source = scene_values(&s, TORUS_DTYPE_F32, 1, DIMS(3), (const float[]){7, 8, 9});
  scene_output(&s, hlo_select_and_scatter(g, x, source, &w));
  w.low[0] = 1, w.high[0] = 1, w.dilation[0] = 2, w.base_dilation[0] = 2;
  scene_output(&s, hlo_reduce_window(g, HLO_REDUCE_ADD, x, &w));
  w = hlo_window_identity();
  w.size[0] = 2, w.low[0] = 1, w.high[0] = 1;
  scene_output(&s, hlo_reduce_window(g, HLO_REDUCE_ADD, hlo_zeros(g, TORUS_DTYPE_F32, 1, DIMS(0)),
                                     &w));
  ASSERT_RUNS(&s);
  ASSERT_VALUES(&s, 0, 5, 5, NAN);
  ASSERT_VALUES(&s, 1, 5, 5, NAN);
  ASSERT_VALUES(&s, 2, 1, 2, 4);
  ASSERT_VALUES(&s, 3, 0, 7, 8, 0, 9, 0);
  ASSERT_VALUES(&s, 5, 0);
  scene_close(&s);
}

static double running(hlo_reduction_t how, double so_far, double x) {
  switch (how) {
  case HLO_REDUCE_ADD:
    return so_far + x;
  case HLO_REDUCE_MULTIPLY:
    return so_far * x;
  case HLO_REDUCE_MAXIMUM:
    return x > so_far || isnan(x) ? x : so_far;
  default:
    return x < so_far || isnan(x) ? x : so_far;
  }
}

static void check_scan(torus_dtype_t dtype, int64_t size) {
  static float numbers[4096];
  for (int i = 0; i < 4096; i++) numbers[i] = (float)(i * 7 % 19 - 9);
  if (dtype == TORUS_DTYPE_F32) numbers[size / 2] = NAN;
  scene_t s;
  scene_open(&s);
  hlo_t x = scene_values(&s, dtype, 3, DIMS(1, size, 1), numbers);
  for (int how = HLO_REDUCE_ADD; how <= HLO_REDUCE_MINIMUM; how++) {
    if (how == HLO_REDUCE_MULTIPLY) continue;
    scene_output(&s, hlo_scan(s.g, (hlo_reduction_t)how, x, 1));
  }
  ASSERT_RUNS(&s);
  static const hlo_reduction_t hows[] = {HLO_REDUCE_ADD, HLO_REDUCE_MAXIMUM, HLO_REDUCE_MINIMUM};
  for (int k = 0; k < 3; k++) {
    double so_far = (double)numbers[0];
    for (int64_t i = 0; i < size; i++) {
      if (i && !isnan(so_far)) so_far = running(hows[k], so_far, (double)numbers[i]);
      double got = s.values[k][i];
      ASSERT_TRUE(got == so_far || (isnan(got) && isnan(so_far)));
    }
  }
  scene_close(&s);
}

TEST(running_reductions) {
  static const int64_t sizes[] = {1, 2, 31, 33, 1024, 3001};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    check_scan(i & 1 ? TORUS_DTYPE_F32 : TORUS_DTYPE_I64, sizes[i]);
    ASSERT_PASSED();
  }
}

TEST(sorting) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  hlo_t x = scene_values(&s, TORUS_DTYPE_F32, 1, DIMS(6),
                         (const float[]){3, NAN, -0.0f, 0, NAN, -INFINITY});
  hlo_t places = hlo_iota(g, TORUS_DTYPE_I64, 1, DIMS(6), 0), sorted[2];
  for (int descending = 0; descending < 2; descending++) {
    hlo_sort(g, NODES(x, places), 2, 0, descending, true, sorted);
    scene_output(&s, sorted[0]);
    scene_output(&s, sorted[1]);
  }
  for (int dtype = 0; dtype <= TORUS_DTYPE_F64; dtype++) {
    hlo_t y = hlo_convert(g, hlo_reshape(g, x, 2, DIMS(2, 3)), (torus_dtype_t)dtype);
    hlo_sort(g, &y, 1, 1, dtype & 1, dtype & 2, sorted);
    scene_output(&s, sorted[0]);
  }
  ASSERT_RUNS(&s);
  ASSERT_VALUES(&s, 0, -INFINITY, 0, 0, 3, NAN, NAN);
  ASSERT_VALUES(&s, 1, 5, 2, 3, 0, 1, 4);
  ASSERT_VALUES(&s, 2, NAN, NAN, 3, 0, 0, -INFINITY);
  ASSERT_VALUES(&s, 3, 1, 4, 0, 2, 3, 5);
  scene_close(&s);
}

/* ---- products ---- */

TEST(products_of_every_type) {
  for (int dtype = 0; dtype < TORUS_DTYPE_COUNT; dtype++) {
    scene_t s;
    scene_open(&s);
    hlo_graph_t *g = s.g;
    torus_dtype_t type = (torus_dtype_t)dtype;
    hlo_t x = scene_values(&s, type, 2, DIMS(2, 2), (const float[]){1, 2, 3, 0});
    hlo_t y = scene_values(&s, type, 2, DIMS(2, 2), (const float[]){1, 0, 2, 1});
    hlo_conv_t conv = {.spatial = 1, .stride = {1}, .lhs_dilation = {1}, .rhs_dilation = {1},
                       .feature_groups = 1, .batch_groups = 1};
    scene_output(&s, hlo_matmul(g, x, y));
    hlo_dot_dims_t dims = {.contract_count = 1, .lhs_contract = {1}};
    if (!torus_dtype_is_complex(type)) {
      scene_output(&s, hlo_dot_general(g, x, y, &dims, TORUS_DTYPE_F32));
      scene_output(&s, hlo_dot_general(g, x, y, &dims, TORUS_DTYPE_F64));
      scene_output(&s, hlo_dot_general(g, x, y, &dims, TORUS_DTYPE_I32));
    }
    scene_output(&s, hlo_convolution(g, hlo_unsqueeze(g, x, 0), hlo_unsqueeze(g, y, 2), &conv));
    ASSERT_RUNS(&s);
    if (dtype != TORUS_DTYPE_BOOL) ASSERT_VALUES(&s, 0, 5, 2, 3, 0);
    if (dtype == TORUS_DTYPE_BOOL) ASSERT_VALUES(&s, 0, 1, 1, 1, 0);
    scene_close(&s);
  }
}

TEST(products_of_every_shape) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  torus_dtype_t f = TORUS_DTYPE_F32;
  hlo_t x = scene_input(&s, f, 4, DIMS(2, 4, 5, 6)), k = scene_input(&s, f, 4, DIMS(4, 2, 3, 3));
  hlo_t v = scene_input(&s, f, 1, DIMS(6));
  hlo_conv_t conv = {.spatial = 2, .stride = {2, 1}, .low = {1, 0}, .high = {1, 2},
                     .lhs_dilation = {1, 2}, .rhs_dilation = {1, 1}, .feature_groups = 2,
                     .batch_groups = 1, .reverse = true};
  scene_output(&s, hlo_convolution(g, x, k, &conv));
  conv.explicit_layout = true;
  conv.lhs_feature = 3, conv.lhs_spatial[0] = 1, conv.lhs_spatial[1] = 2;
  conv.rhs_output = 3, conv.rhs_input = 2, conv.rhs_spatial[1] = 1;
  conv.out_feature = 3, conv.out_spatial[0] = 1, conv.out_spatial[1] = 2;
  hlo_graph_set_precision(g, HLO_PRECISION_DEFAULT);
  scene_output(&s, hlo_convolution(g, hlo_transpose(g, x, INTS(0, 2, 3, 1)),
                                   hlo_transpose(g, k, INTS(2, 3, 1, 0)), &conv));
  hlo_dot_dims_t outer = {0};
  scene_output(&s, hlo_dot_general(g, v, v, &outer, TORUS_DTYPE_INVALID));
  hlo_dot_dims_t inner = {.contract_count = 1};
  scene_output(&s, hlo_dot_general(g, v, v, &inner, TORUS_DTYPE_INVALID));
  scene_output(&s, hlo_matmul(g, x, hlo_swap_dims(g, x, 2, 3)));
  scene_output(&s, hlo_matmul(g, hlo_zeros(g, f, 2, DIMS(2, 0)), hlo_zeros(g, f, 2, DIMS(0, 3))));
  hlo_conv_t point = {.feature_groups = 1, .batch_groups = 1};
  scene_output(&s, hlo_convolution(g, hlo_reshape(g, v, 2, DIMS(2, 3)),
                                   hlo_reshape(g, v, 2, DIMS(2, 3)), &point));
  ASSERT_RUNS(&s);
  hlo_t nhwc = hlo_dim(g, s.outputs[1], 3) == 4;
  ASSERT_TRUE(nhwc);
  double first = s.values[0][0], second = s.values[1][0];
  ASSERT_TRUE(fabs(first - second) < 1e-4);
  ASSERT_VALUES(&s, 5, 0, 0, 0, 0, 0, 0);
  scene_close(&s);
}

/* ---- gather and scatter ---- */

TEST(gathers) {
  for (int dtype = 0; dtype < TORUS_DTYPE_COUNT; dtype++) {
    scene_t s;
    scene_open(&s);
    hlo_graph_t *g = s.g;
    const float numbers[] = {0, 1, 2, 3, 4, 5};
    hlo_t x = scene_values(&s, (torus_dtype_t)dtype, 2, DIMS(3, 2), numbers);
    hlo_t i = scene_values(&s, TORUS_DTYPE_I64, 2, DIMS(2, 1), (const float[]){2, 0});
    hlo_t scalar = hlo_soft_int(g, TORUS_DTYPE_I32, 1);
    scene_output(&s, hlo_take(g, x, 0, i));
    scene_output(&s, hlo_take(g, x, 1, scalar));
    scene_output(&s, hlo_take_along(g, x, 0, i));
    scene_output(&s, hlo_take_along(g, x, 0, hlo_convert(g, i, TORUS_DTYPE_I8)));
    scene_output(&s, hlo_take(g, hlo_const(g, TORUS_DTYPE_F32, 6), 0, i));
    scene_output(&s, hlo_take(g, hlo_zeros(g, TORUS_DTYPE_F32, 2, DIMS(0, 2)), 0, i));
    scene_output(&s, hlo_take(g, x, 0, hlo_zeros(g, TORUS_DTYPE_I64, 1, DIMS(0))));
    scene_output(&s, hlo_take_along(g, hlo_const(g, TORUS_DTYPE_F32, 6), 0,
                                    hlo_const(g, TORUS_DTYPE_I64, 0)));
    ASSERT_RUNS(&s);
    if (dtype == TORUS_DTYPE_F32) {
      ASSERT_VALUES(&s, 0, 4, 5, 0, 1);
      ASSERT_VALUES(&s, 1, 1, 3, 5);
      ASSERT_VALUES(&s, 2, 4, 0);
      ASSERT_VALUES(&s, 4, 6, 6);
      ASSERT_VALUES(&s, 5, 0, 0, 0, 0);
      ASSERT_VALUES(&s, 7, 6);
    }
    scene_close(&s);
  }
}

TEST(scatters) {
  for (int dtype = 0; dtype < TORUS_DTYPE_COUNT; dtype++) {
    scene_t s;
    scene_open(&s);
    hlo_graph_t *g = s.g;
    torus_dtype_t type = (torus_dtype_t)dtype;
    hlo_t x = scene_values(&s, type, 2, DIMS(3, 2), (const float[]){0, 1, 2, 3, 4, 5});
    hlo_t i = scene_values(&s, TORUS_DTYPE_I64, 2, DIMS(2, 1), (const float[]){2, 2});
    hlo_t u = scene_values(&s, type, 2, DIMS(2, 2), (const float[]){3, 2, 1, 2});
    hlo_gather_dims_t rows = {.offset_count = 1, .offset = {1}, .collapsed_count = 1,
                              .map_count = 1, .index_vector_dim = 1};
    for (int how = 0; how <= HLO_SCATTER_MINIMUM; how++) {
      if (torus_dtype_is_complex(type) && how >= HLO_SCATTER_MAXIMUM) break;
      scene_output(&s, hlo_put_along(g, (hlo_scatter_t)how, x, 0, i, u));
      scene_output(&s, hlo_scatter(g, (hlo_scatter_t)how, x, i, u, &rows));
    }
    scene_output(&s, hlo_put_along(g, HLO_SCATTER_SET, x, 1,
                                   hlo_zeros(g, TORUS_DTYPE_I64, 2, DIMS(0, 1)), u));
    scene_output(&s, hlo_put_along(g, HLO_SCATTER_SET, hlo_const(g, type, 1), 0,
                                   hlo_const(g, TORUS_DTYPE_I64, 0), hlo_const(g, type, 0)));
    ASSERT_RUNS(&s);
    if (dtype == TORUS_DTYPE_F32) {
      ASSERT_VALUES(&s, 2, 0, 1, 2, 3, 8, 5);
      ASSERT_VALUES(&s, 3, 0, 1, 2, 3, 8, 9);
      ASSERT_VALUES(&s, 5, 0, 1, 2, 3, 12, 20);
      ASSERT_VALUES(&s, 9, 0, 1, 2, 3, 1, 2);
      ASSERT_VALUES(&s, 11, 0);
    }
    scene_close(&s);
  }
}

/* ---- the rest ---- */

TEST(random_bits) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  hlo_t seed = hlo_volatile_int(g, TORUS_DTYPE_U64, 42);
  hlo_t offset = hlo_volatile_int(g, TORUS_DTYPE_U64, 7);
  scene_output(&s, hlo_random_bits(g, TORUS_DTYPE_U32, seed, offset, 2, DIMS(2, 3)));
  scene_output(&s, hlo_random_bits(g, TORUS_DTYPE_U64, seed, offset, 0, NULL));
  scene_output(&s, hlo_random_bits(g, TORUS_DTYPE_U32, seed, offset, 1, DIMS(0)));
  ASSERT_RUNS(&s);
  ASSERT_TRUE(s.values[0][0] != s.values[0][1]);
  scene_close(&s);
}

TEST(transforms_and_matrices) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  for (int wide = 0; wide < 2; wide++) {
    torus_dtype_t dtype = wide ? TORUS_DTYPE_F64 : TORUS_DTYPE_F32;
    hlo_t x = scene_values(&s, dtype, 2, DIMS(2, 2), (const float[]){4, 2, 2, 5});
    hlo_t z = hlo_convert(g, x, torus_dtype_complex(dtype));
    scene_output(&s, hlo_cholesky(g, x, true));
    scene_output(&s, hlo_cholesky(g, z, false));
    for (int mode = 0; mode < 16; mode++) {
      scene_output(&s, hlo_triangular_solve(g, x, x, mode & 1, mode & 2, mode & 4, mode & 8));
    }
    hlo_t half = hlo_fft(g, HLO_RFFT, x, 2, DIMS(2, 2));
    scene_output(&s, half);
    scene_output(&s, hlo_fft(g, HLO_IRFFT, half, 2, DIMS(2, 2)));
    scene_output(&s, hlo_fft(g, HLO_IFFT, hlo_fft(g, HLO_FFT, z, 1, DIMS(2)), 1, DIMS(2)));
  }
  ASSERT_RUNS(&s);
  ASSERT_VALUES(&s, 0, 2, 0, 1, 2);
  ASSERT_VALUES(&s, 21, 4, 2, 2, 5);
  scene_close(&s);
}

/* A loop in a loop: adds |step|, which stands outside, until |limit| is reached. */
typedef struct loop {
  hlo_t step, limit;
  bool inside;
} loop_t;

static hlo_t keep_going(hlo_graph_t *g, const hlo_t *state, void *context) {
  const loop_t *loop = context;
  return hlo_compare(g, HLO_LT, state[0], loop->limit);
}

static void inner_step(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  const loop_t *loop = context;
  out_state[0] = hlo_add(g, state[0], loop->step);
  out_state[1] = hlo_add_f(g, state[1], 1);
}

static void outer_step(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  loop_t inner = *(const loop_t *)context;
  inner.limit = hlo_add(g, state[0], hlo_soft_int(g, TORUS_DTYPE_I32, 4));
  hlo_while(g, state, 2, keep_going, inner_step, &inner, out_state);
}

TEST(loops) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  hlo_t step = scene_values(&s, TORUS_DTYPE_I32, 0, NULL, (const float[]){3});
  loop_t loop = {.step = step, .limit = hlo_soft_int(g, TORUS_DTYPE_I32, 20)};
  hlo_t counts = hlo_zeros(g, TORUS_DTYPE_F32, 1, DIMS(2)), results[2];
  hlo_while(g, NODES(hlo_const(g, TORUS_DTYPE_I32, 0), counts), 2, keep_going, outer_step, &loop,
            results);
  scene_output(&s, results[0]);
  scene_output(&s, results[1]);
  ASSERT_RUNS(&s);
  ASSERT_VALUES(&s, 0, 24);
  ASSERT_VALUES(&s, 1, 8, 8);
  scene_close(&s);
}

/* ---- errors ---- */

TEST(mistakes_are_named_and_kept) {
  scene_t s;
  scene_open(&s);
  hlo_graph_t *g = s.g;
  hlo_t x = hlo_zeros(g, TORUS_DTYPE_F32, 2, DIMS(2, 3));
  hlo_t y = hlo_zeros(g, TORUS_DTYPE_F32, 1, DIMS(3));
  hlo_t i = hlo_zeros(g, TORUS_DTYPE_I32, 1, DIMS(3));
  ASSERT_EQ(hlo_add(g, x, y), HLO_NONE);
  ASSERT_TRUE(hlo_graph_failed(g));
  ASSERT_EQ(hlo_negate(g, hlo_add(g, y, i)), HLO_NONE);
  ASSERT_STATUS(hlo_graph_take_error(g), TORUS_STATUS_INVALID_ARGUMENT,
                "add: the shapes differ, got float32[2, 3] and float32[3]");
  ASSERT_TRUE(!hlo_graph_failed(g));
  hlo_add(g, y, i);
  ASSERT_STATUS(hlo_graph_take_error(g), TORUS_STATUS_INVALID_ARGUMENT, "types differ");
  hlo_floor(g, i);
  ASSERT_STATUS(hlo_graph_take_error(g), TORUS_STATUS_INVALID_ARGUMENT, "floor");
  hlo_negate(g, HLO_NONE);
  ASSERT_STATUS(hlo_graph_take_error(g), TORUS_STATUS_INTERNAL, "negate");
  hlo_slice_dim(g, x, 1, 2, 2);
  ASSERT_STATUS(hlo_graph_take_error(g), TORUS_STATUS_INVALID_ARGUMENT, "dimension 1");
  hlo_zeros(g, TORUS_DTYPE_F32, 2, DIMS(INT64_MAX, 2));
  ASSERT_STATUS(hlo_graph_take_error(g), TORUS_STATUS_INVALID_ARGUMENT, "cannot exist");
  hlo_reshape(g, x, 1, DIMS(7));
  ASSERT_STATUS(hlo_graph_take_error(g), TORUS_STATUS_INVALID_ARGUMENT, "reshape");
  int64_t dims[TORUS_MAX_RANK];
  ASSERT_EQ(hlo_broadcast_shape(g, 2, DIMS(2, 1), 1, DIMS(3), dims), 2);
  ASSERT_EQ(dims[0] * 10 + dims[1], 23);
  ASSERT_EQ(hlo_broadcast_shape(g, 1, DIMS(2), 1, DIMS(3), dims), -1);
  ASSERT_STATUS(hlo_graph_take_error(g), TORUS_STATUS_INVALID_ARGUMENT, "sizes 2 and 3");
  ASSERT_EQ(hlo_rank(g, HLO_NONE), 0);
  ASSERT_EQ(hlo_dim(g, HLO_NONE, 3), 0);
  scene_close(&s);
}

static torus_status_t build_something(void) {
  hlo_graph_t *g;
  TORUS_TRY(hlo_graph_create(&g));
  hlo_t x = hlo_parameter(g, 0, TORUS_DTYPE_F32, 2, DIMS(4, 4));
  for (int i = 0; i < 300; i++) x = hlo_add(g, x, hlo_soft(g, TORUS_DTYPE_F32, i));
  hlo_t one = hlo_const(g, TORUS_DTYPE_I32, 1);
  loop_t loop = {.step = one, .limit = one};
  hlo_t results[2];
  hlo_while(g, NODES(hlo_const(g, TORUS_DTYPE_I32, 0), x), 2, keep_going, inner_step, &loop,
            results);
  torus_status_t status = hlo_graph_take_error(g);
  hlo_encoding_t encoding = {0};
  torus_strbuf_t text = {0};
  if (!status) status = hlo_encode(g, results, 2, &encoding);
  if (!status) status = hlo_print(g, results, 2, NULL, NULL, &text);
  torus_strbuf_deinit(&text);
  hlo_encoding_deinit(&encoding);
  hlo_graph_destroy(g);
  return status;
}

TEST(lack_of_memory_is_an_error) { ASSERT_SURVIVES_FAILING_ALLOCATIONS(build_something()); }

/* ---- keys ---- */

static torus_status_t key_of(double soft, double constant, bool with_dead, int input,
                             hlo_encoding_t *out_encoding) {
  hlo_graph_t *g;
  TORUS_TRY(hlo_graph_create(&g));
  hlo_t x = hlo_parameter(g, input, TORUS_DTYPE_F32, 1, DIMS(8));
  if (with_dead) hlo_exp(g, hlo_add(g, x, hlo_parameter(g, 9, TORUS_DTYPE_F32, 1, DIMS(8))));
  if (with_dead) hlo_soft(g, TORUS_DTYPE_F32, 5);
  hlo_t part = hlo_slice_dim(g, x, 0, (int64_t)soft, 4);
  hlo_t y = hlo_add(g, part, hlo_soft(g, TORUS_DTYPE_F32, soft));
  y = hlo_multiply(g, y, hlo_const(g, TORUS_DTYPE_F32, constant));
  torus_status_t status = hlo_graph_take_error(g);
  if (!status) status = hlo_encode(g, &y, 1, out_encoding);
  hlo_graph_destroy(g);
  return status;
}

static bool same_key(const hlo_encoding_t *a, const hlo_encoding_t *b) {
  return a->hash == b->hash && a->key_bytes == b->key_bytes &&
         memcmp(a->key, b->key, a->key_bytes) == 0;
}

TEST(keys_hold_the_program_and_nothing_else) {
  hlo_encoding_t base, soft, other, dead;
  ASSERT_OK(key_of(1, 2, false, 3, &base));
  ASSERT_OK(key_of(2, 2, false, 3, &soft));
  ASSERT_OK(key_of(1, 3, false, 3, &other));
  ASSERT_OK(key_of(1, 2, true, 4, &dead));
  ASSERT_TRUE(same_key(&base, &soft));
  ASSERT_TRUE(!same_key(&base, &other));
  ASSERT_TRUE(same_key(&base, &dead));
  ASSERT_EQ(dead.parameter_count, 1);
  ASSERT_EQ(dead.parameters[0], 4);
  ASSERT_EQ(soft.soft_count, 2);
  ASSERT_EQ(soft.softs[0], 2);
  ASSERT_EQ(soft.soft_dtypes[0], TORUS_DTYPE_I32);
  ASSERT_EQ(soft.soft_dtypes[1], TORUS_DTYPE_F32);
  ASSERT_TRUE(!soft.soft_volatile[0]);
  ASSERT_EQ(hlo_soft_words(&soft, NULL), 0);
  ASSERT_EQ(hlo_soft_words(&soft, (const bool[]){true, false}), 1);
  hlo_encoding_deinit(&base);
  hlo_encoding_deinit(&soft);
  hlo_encoding_deinit(&other);
  hlo_encoding_deinit(&dead);
}

TEST(aliases_are_printed) {
  scene_t s;
  scene_open(&s);
  hlo_t x = scene_input(&s, TORUS_DTYPE_F32, 1, DIMS(2));
  hlo_t y = hlo_negate(s.g, x);
  torus_strbuf_t text = {0};
  ASSERT_OK(hlo_print(s.g, &y, 1, NULL, (const int[]){0}, &text));
  ASSERT_CONTAINS(text.data, "%a0: tensor<2xf32> {tf.aliasing_output = 0 : i32}");
  torus_strbuf_deinit(&text);
  scene_close(&s);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

TEST(long_chains_are_cheap) {
  enum { LENGTH = 100000 };
  scene_t s;
  scene_open(&s);
  double start = now();
  hlo_t x = hlo_parameter(s.g, 0, TORUS_DTYPE_F32, 2, DIMS(4, 4));
  for (int i = 0; i < LENGTH; i++) x = hlo_add(s.g, x, x);
  double built = now();
  hlo_encoding_t encoding;
  ASSERT_OK(hlo_encode(s.g, &x, 1, &encoding));
  double encoded = now();
  hlo_encoding_deinit(&encoding);
  torus_strbuf_t text = {0};
  ASSERT_OK(hlo_print(s.g, &x, 1, NULL, NULL, &text));
  double printed = now();
  fprintf(stderr, "a node: %.0f ns to build, %.0f to encode, %.0f to print (%zu bytes)\n",
          (built - start) * 1e9 / LENGTH, (encoded - built) * 1e9 / LENGTH,
          (printed - encoded) * 1e9 / LENGTH, text.size / LENGTH);
  ASSERT_TRUE(printed - start < 2);
  torus_strbuf_deinit(&text);
  hlo_graph_clear(s.g);
  ASSERT_EQ(hlo_graph_node_count(s.g), 0);
  scene_close(&s);
}

static const test_case_t tests[] = {
    TEST_ENTRY(every_elementwise_operation_compiles_for_floats),
    TEST_ENTRY(every_elementwise_operation_compiles_for_integers),
    TEST_ENTRY(every_type_converts_to_every_other),
    TEST_ENTRY(comparisons_and_choices),
    TEST_ENTRY(bits_and_complex_numbers),
    TEST_ENTRY(constants_are_exact),
    TEST_ENTRY(integers_are_exact),
    TEST_ENTRY(sources),
    TEST_ENTRY(shapes),
    TEST_ENTRY(slices),
    TEST_ENTRY(reductions_of_every_type),
    TEST_ENTRY(reductions_of_nothing_and_nan),
    TEST_ENTRY(places_of_the_largest),
    TEST_ENTRY(windows),
    TEST_ENTRY(running_reductions),
    TEST_ENTRY(sorting),
    TEST_ENTRY(products_of_every_type),
    TEST_ENTRY(products_of_every_shape),
    TEST_ENTRY(gathers),
    TEST_ENTRY(scatters),
    TEST_ENTRY(random_bits),
    TEST_ENTRY(transforms_and_matrices),
    TEST_ENTRY(loops),
    TEST_ENTRY(mistakes_are_named_and_kept),
    TEST_ENTRY(lack_of_memory_is_an_error),
    TEST_ENTRY(keys_hold_the_program_and_nothing_else),
    TEST_ENTRY(aliases_are_printed),
    TEST_ENTRY(long_chains_are_cheap),
};

int main(int argc, char **argv) {
  const char *path = getenv("TORUS_TEST_PLUGIN");
  if (!path || !*path) {
    fprintf(stderr, "TORUS_TEST_PLUGIN names no plugin: skipped\n");
    return TEST_SKIPPED;
  }
  torus_client_options_t options = {.plugin_path = path, .is_cpu = strstr(path, "cpu") != NULL};
  torus_status_t status = torus_client_create(&options, &client);
  if (status) {
    fprintf(stderr, "%s\n", torus_status_message(status));
    torus_status_free(status);
    return EXIT_FAILURE;
  }
  int result = test_run_all(tests, sizeof tests / sizeof *tests, argc, argv);
  torus_client_destroy(client);
  return result;
}
