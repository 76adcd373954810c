/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Programs for all sizes under a bound: each rule is built with several sizes, rebuilt with bounds,
 * run by the PJRT plugin in TORUS_TEST_PLUGIN with NaN for garbage, and compared with the program
 * for the exact size. */
#include "test.h"

#include <math.h>

#include "hlo/bound.h"
#include "hlo/encode.h"
#include "hlo/shapes.h"
#include "torus/pjrt.h"

enum { MOST_INPUTS = 4, MOST_SIZES = 4096 };

static torus_client_t *client; /* shared by the tests */

#define DIMS(...) ((const int64_t[]){__VA_ARGS__})
#define INTS(...) ((const int[]){__VA_ARGS__})

typedef hlo_t (*rule_fn)(hlo_graph_t *g, int64_t n);

/* ---- inputs ---- */

typedef struct input {
  int rank;
  int64_t dims[8], held[8];
  bool is_held;
} input_t;

static input_t inputs[MOST_INPUTS];
static int input_count;

/* The next float32 parameter. */
static hlo_t input(hlo_graph_t *g, int rank, const int64_t *dims) {
  input_t *in = &inputs[input_count];
  *in = (input_t){.rank = rank};
  memcpy(in->dims, dims, (size_t)rank * sizeof *dims);
  return hlo_parameter(g, input_count++, TORUS_DTYPE_F32, rank, dims);
}

static const int64_t *hold(void *context, int index, const int64_t *bounds) {
  (void)context;
  input_t *in = &inputs[index];
  memcpy(in->held, bounds, (size_t)in->rank * sizeof *bounds);
  in->is_held = true;
  return in->held;
}

static int64_t product(int rank, const int64_t *dims) {
  int64_t n = 1;
  for (int i = 0; i < rank; i++) n *= dims[i];
  return n;
}

/* Element |flat| of an array as an element of one with larger dimensions, or back; -1: garbage. */
static int64_t place(int64_t flat, int rank, const int64_t *from, const int64_t *to) {
  int64_t at = 0, stride = 1;
  for (int d = rank; d-- > 0; flat /= from[d], stride *= to[d]) {
    if (flat % from[d] >= to[d]) return -1;
    at += flat % from[d] * stride;
  }
  return at;
}

static float number(int which, int64_t flat) {
  return (float)((flat * 7 + which * 3) % 11 - 5) + 0.25f * (float)(flat % 3);
}

static torus_status_t upload(int which, torus_buffer_t **out_buffer) {
  const input_t *in = &inputs[which];
  const int64_t *dims = in->is_held ? in->held : in->dims;
  const int64_t count = product(in->rank, dims);
  float *values = torus_alloc((size_t)count * sizeof *values + 1);
  for (int64_t i = 0; i < count; i++) {
    const int64_t flat = place(i, in->rank, dims, in->dims);
    values[i] = flat < 0 ? NAN : number(which, flat);
  }
  torus_status_t status = torus_buffer_from_host(client, 0, values, TORUS_DTYPE_F32, in->rank, dims,
                                                 out_buffer);
  torus_free(values);
  return status;
}

/* ---- running ---- */

static torus_status_t run_text(const torus_strbuf_t *text, const hlo_encoding_t *encoding,
                               torus_buffer_t **out_result) {
  torus_executable_t *executable;
  torus_buffer_t *arguments[MOST_INPUTS + 1] = {0};
  uint32_t words[64];
  const int64_t word_count = (int64_t)hlo_soft_words(encoding, NULL);
  size_t count = 0;
  TORUS_TRY(torus_executable_compile(client, 0, text->data, text->size, TORUS_EFFORT_FAST,
                                     &executable));
  torus_status_t status = TORUS_OK;
  for (; count < encoding->parameter_count && !status; count++) {
    status = upload(encoding->parameters[count], &arguments[count]);
  }
  if (word_count && !status) {
    hlo_pack_softs(encoding, NULL, words);
    status = torus_buffer_from_host(client, 0, words, TORUS_DTYPE_U32, 1, &word_count,
                                    &arguments[count++]);
  }
  if (!status) status = torus_executable_run(executable, arguments, count, 1, out_result);
  for (size_t i = 0; i < count; i++) torus_buffer_release(arguments[i]);
  torus_executable_release(executable);
  return status;
}

/* The output as floats, which must be released with torus_free, and the key of the program. */
static torus_status_t run_graph(hlo_graph_t *g, hlo_t output, float **out_values,
                                hlo_encoding_t *encoding) {
  torus_strbuf_t text = {0};
  torus_buffer_t *result = NULL;
  const size_t bytes = (size_t)hlo_numel(g, output) * sizeof(float);
  *out_values = NULL;
  *encoding = (hlo_encoding_t){0};
  TORUS_TRY(hlo_graph_take_error(g));
  TORUS_TRY(hlo_encode(g, &output, 1, encoding));
  torus_status_t status = hlo_print(g, &output, 1, NULL, NULL, &text);
  if (!status) status = run_text(&text, encoding, &result);
  if (status) fprintf(stderr, "%s\n", torus_strbuf_text(&text));
  *out_values = torus_alloc(bytes + 1);
  if (!status) status = torus_buffer_to_host(result, *out_values, bytes);
  torus_buffer_release(result);
  torus_strbuf_deinit(&text);
  return status;
}

/* ---- rules ---- */

/* Builds the rule in a new graph; the result is a float32 array. */
static hlo_graph_t *build(rule_fn rule, int64_t n, hlo_t *out_output) {
  hlo_graph_t *g;
  torus_status_ignore(hlo_graph_create(&g));
  input_count = 0;
  *out_output = hlo_convert(g, rule(g, n), TORUS_DTYPE_F32);
  return g;
}

/* Sizes that differ between |n| and |other| are dynamic; equal pairs are one class. */
static torus_status_t classify(rule_fn rule, int64_t n, int64_t other, int *classes,
                               int *out_count) {
  hlo_shapes_t a, b;
  hlo_t output;
  hlo_graph_t *g = build(rule, other, &output);
  TORUS_TRY(hlo_shapes_of(g, &output, 1, &b));
  hlo_graph_destroy(g);
  g = build(rule, n, &output);
  TORUS_TRY(hlo_shapes_of(g, &output, 1, &a));
  hlo_graph_destroy(g);
  const bool same = a.key_bytes == b.key_bytes && !memcmp(a.key, b.key, a.key_bytes);
  *out_count = 0;
  for (size_t i = 0; same && i < a.size_count; i++) {
    classes[i] = 0;
    if (a.sizes[i] == b.sizes[i]) continue;
    for (size_t k = 0; k < i && !classes[i]; k++) {
      if (a.sizes[k] == a.sizes[i] && b.sizes[k] == b.sizes[i]) classes[i] = classes[k];
    }
    if (!classes[i]) classes[i] = ++*out_count;
  }
  hlo_shapes_deinit(&a);
  hlo_shapes_deinit(&b);
  return same ? TORUS_OK : torus_status_make(TORUS_STATUS_INTERNAL, "the structures differ");
}

static bool agree(float a, float b) {
  return (isnan(a) && isnan(b)) || fabsf(a - b) <= 1e-5f * (1 + fabsf(b)) || a == b;
}

static torus_status_t compare(const float *bounded, const int64_t *held, const float *exact, int rank,
                              const int64_t *dims) {
  for (int64_t i = 0; i < product(rank, dims); i++) {
    const float own = bounded[place(i, rank, dims, held)];
    if (!agree(own, exact[i])) {
      return torus_status_make(TORUS_STATUS_DATA_LOSS, "element %lld is %g, not %g", (long long)i,
                               (double)own, (double)exact[i]);
    }
  }
  return TORUS_OK;
}

/* Runs the rule for |n| both ways. |out_key| receives the hash of the bounded program, and
 * |out_reason| why there is none. */
static torus_status_t try_rule(rule_fn rule, int64_t n, int64_t other, uint64_t *out_key,
                               char *out_reason) {
  static int classes[MOST_SIZES];
  int class_count;
  int64_t dims[TORUS_MAX_RANK], held[TORUS_MAX_RANK];
  float *exact = NULL, *bounded = NULL;
  hlo_encoding_t encoding = {0}, bounded_encoding = {0};
  hlo_t output, bounded_output;
  hlo_graph_t *to;
  TORUS_TRY(classify(rule, n, other, classes, &class_count));
  TORUS_TRY(hlo_graph_create(&to));
  hlo_graph_t *g = build(rule, n, &output);
  const int rank = hlo_shape(g, output, dims);
  const hlo_bounding_t how = {.graph = g,
                              .outputs = &output,
                              .output_count = 1,
                              .classes = classes,
                              .class_count = class_count,
                              .held = hold};
  torus_status_t status = run_graph(g, output, &exact, &encoding);
  if (!status) status = hlo_bound(&how, to, &bounded_output, out_reason);
  if (!status && !out_reason[0]) {
    status = run_graph(to, bounded_output, &bounded, &bounded_encoding);
    hlo_shape(to, bounded_output, held);
    if (!status) status = compare(bounded, held, exact, rank, dims);
    *out_key = bounded_encoding.hash;
  }
  torus_free(exact);
  torus_free(bounded);
  hlo_encoding_deinit(&encoding);
  hlo_encoding_deinit(&bounded_encoding);
  hlo_graph_destroy(g);
  hlo_graph_destroy(to);
  return status;
}

/* Sizes 9 and 10 have the same bounds in every rule; 40 has others. */
static void check_rule(const char *name, rule_fn rule) {
  static const int64_t sizes[] = {9, 10, 40};
  uint64_t keys[3] = {0};
  char reason[HLO_REASON_BYTES];
  for (int i = 0; i < 3; i++) {
    torus_status_t status = try_rule(rule, sizes[i], sizes[(i + 1) % 3], &keys[i], reason);
    if (status || reason[0]) fprintf(stderr, "%s, size %d: %s\n", name, (int)sizes[i], reason);
    ASSERT_OK(status);
    ASSERT_STR_EQ(reason, "");
  }
  if (keys[0] != keys[1] || keys[0] == keys[2]) fprintf(stderr, "%s\n", name);
  ASSERT_TRUE(keys[0] == keys[1]);
  ASSERT_TRUE(keys[0] != keys[2]);
}

#define RULE(name) static hlo_t rule_##name(hlo_graph_t *g, int64_t n)
#define CHECK_RULE(name) check_rule(#name, rule_##name)

/* ---- sources and elements ---- */

RULE(parameter) { return hlo_negate(g, input(g, 2, DIMS(n, 3))); }

RULE(sources) {
  hlo_t x = hlo_add(g, hlo_iota(g, TORUS_DTYPE_F32, 2, DIMS(n, 3), 0),
                    hlo_iota(g, TORUS_DTYPE_F32, 2, DIMS(n, 3), 1));
  return hlo_add(g, x, hlo_splat(g, hlo_soft(g, TORUS_DTYPE_F32, 2), 2, DIMS(n, 3)));
}

RULE(broadcast) {
  hlo_t column = hlo_broadcast_in_dim(g, input(g, 1, DIMS(n)), 2, DIMS(n, n + 1), INTS(0));
  hlo_t row = hlo_broadcast_in_dim(g, input(g, 2, DIMS(1, n + 1)), 2, DIMS(n, n + 1), INTS(0, 1));
  return hlo_multiply(g, column, row);
}

RULE(select_and_compare) {
  hlo_t x = input(g, 1, DIMS(n)), y = input(g, 1, DIMS(n));
  return hlo_select(g, hlo_compare(g, HLO_LT, x, y), x, y);
}

RULE(types) {
  hlo_t x = input(g, 1, DIMS(n));
  hlo_t bits = hlo_bitcast(g, hlo_bitcast(g, x, TORUS_DTYPE_U8), TORUS_DTYPE_F32);
  return hlo_imag(g, hlo_conj(g, hlo_complex(g, hlo_convert(g, hlo_convert(g, x, TORUS_DTYPE_I32),
                                                            TORUS_DTYPE_F32), bits)));
}

TEST(sources_and_elements) {
  CHECK_RULE(parameter);
  CHECK_RULE(sources);
  CHECK_RULE(broadcast);
  CHECK_RULE(select_and_compare);
  CHECK_RULE(types);
}

/* ---- shapes ---- */

RULE(transpose) { return hlo_transpose(g, input(g, 3, DIMS(n, 2, n + 1)), INTS(2, 0, 1)); }
RULE(merge) { return hlo_reshape(g, input(g, 2, DIMS(n, 6)), 1, DIMS(n * 6)); }
RULE(split) { return hlo_reshape(g, input(g, 1, DIMS(n * 6)), 3, DIMS(n, 2, 3)); }
RULE(regroup) { return hlo_reshape(g, input(g, 2, DIMS(n * 3, 4)), 2, DIMS(n, 12)); }
RULE(ones) { return hlo_reshape(g, input(g, 3, DIMS(1, n, 3)), 4, DIMS(n, 1, 3, 1)); }
RULE(merge_inner) { return hlo_reshape(g, input(g, 3, DIMS(2, n, 3)), 2, DIMS(2 * n, 3)); }
RULE(split_inner) { return hlo_reshape(g, input(g, 2, DIMS(2 * n, 3)), 3, DIMS(2, n, 3)); }
RULE(merge_two) { return hlo_reshape(g, input(g, 2, DIMS(n, n + 1)), 1, DIMS(n * (n + 1))); }
RULE(merged_operands) {
  hlo_t x = hlo_reshape(g, input(g, 2, DIMS(n, 3)), 1, DIMS(n * 3));
  return hlo_add(g, x, input(g, 1, DIMS(n * 3)));
}
RULE(reverse) { return hlo_reverse(g, input(g, 2, DIMS(n, 3)), 2, INTS(0, 1)); }

static hlo_t three(hlo_graph_t *g) { return hlo_const(g, TORUS_DTYPE_F32, 3); }
RULE(pad) { return hlo_pad(g, input(g, 2, DIMS(n, 3)), three(g), DIMS(2, 1), DIMS(3, 0), DIMS(0, 1)); }
RULE(crop) { return hlo_pad(g, input(g, 1, DIMS(n)), three(g), DIMS(-1), DIMS(-1), NULL); }
RULE(pad_to) { return hlo_pad(g, input(g, 1, DIMS(n)), three(g), DIMS(1), DIMS(63 - n), NULL); }

RULE(concatenate) {
  hlo_t xs[] = {input(g, 2, DIMS(n, 2)), input(g, 2, DIMS(1, 2)), input(g, 2, DIMS(n + 2, 2))};
  return hlo_concatenate(g, xs, 3, 0);
}
RULE(concatenate_rows) {
  hlo_t xs[] = {input(g, 2, DIMS(n, 2)), input(g, 2, DIMS(n, 3))};
  return hlo_concatenate(g, xs, 2, 1);
}

TEST(shapes) {
  CHECK_RULE(transpose);
  CHECK_RULE(merge);
  CHECK_RULE(split);
  CHECK_RULE(regroup);
  CHECK_RULE(ones);
  CHECK_RULE(merge_inner);
  CHECK_RULE(split_inner);
  CHECK_RULE(merge_two);
  CHECK_RULE(merged_operands);
  CHECK_RULE(reverse);
  CHECK_RULE(pad);
  CHECK_RULE(crop);
  CHECK_RULE(pad_to);
  CHECK_RULE(concatenate);
  CHECK_RULE(concatenate_rows);
}

/* ---- slices ---- */

RULE(prefix) { return hlo_slice(g, input(g, 2, DIMS(64, 3)), DIMS(2, 0), DIMS(n, 3), NULL); }
RULE(last) { return hlo_slice(g, input(g, 2, DIMS(n, 3)), DIMS(2, 1), DIMS(2, 2), NULL); }
RULE(drop_first) { return hlo_slice(g, input(g, 1, DIMS(n)), DIMS(1), DIMS(n - 1), NULL); }
RULE(every_second) { return hlo_slice(g, input(g, 1, DIMS(2 * n)), DIMS(1), DIMS(n), DIMS(2)); }
RULE(write_prefix) {
  return hlo_update_slice(g, input(g, 2, DIMS(64, 3)), input(g, 2, DIMS(n, 3)), DIMS(3, 0));
}
RULE(write_row) {
  return hlo_update_slice(g, input(g, 2, DIMS(n, 3)), input(g, 2, DIMS(2, 3)), DIMS(1, 0));
}
RULE(write_column) {
  return hlo_update_slice(g, input(g, 2, DIMS(n, 3)), input(g, 2, DIMS(n, 1)), DIMS(0, 1));
}
RULE(computed_column) {
  const hlo_t places[] = {hlo_const_int(g, TORUS_DTYPE_I32, 0), hlo_const_int(g, TORUS_DTYPE_I32, 1)};
  return hlo_dynamic_slice(g, input(g, 2, DIMS(n, 3)), places, DIMS(n, 1));
}

TEST(slices) {
  CHECK_RULE(prefix);
  CHECK_RULE(last);
  CHECK_RULE(drop_first);
  CHECK_RULE(every_second);
  CHECK_RULE(write_prefix);
  CHECK_RULE(write_row);
  CHECK_RULE(write_column);
  CHECK_RULE(computed_column);
}

/* ---- reductions ---- */

static hlo_t reduce_first(hlo_graph_t *g, hlo_reduction_t how, hlo_t x) {
  return hlo_reduce(g, how, x, 1, INTS(0), false);
}
RULE(sum) { return reduce_first(g, HLO_REDUCE_ADD, input(g, 2, DIMS(n, 3))); }
RULE(product) { return reduce_first(g, HLO_REDUCE_MULTIPLY, input(g, 2, DIMS(n, 3))); }
RULE(maximum) { return reduce_first(g, HLO_REDUCE_MAXIMUM, hlo_add_f(g, input(g, 2, DIMS(n, 3)), -90)); }
RULE(minimum) { return reduce_first(g, HLO_REDUCE_MINIMUM, hlo_add_f(g, input(g, 2, DIMS(n, 3)), 90)); }
RULE(any) {
  return reduce_first(g, HLO_REDUCE_OR, hlo_compare_f(g, HLO_NE, input(g, 2, DIMS(n, 3)), -5));
}
RULE(all) {
  return reduce_first(g, HLO_REDUCE_AND, hlo_compare_f(g, HLO_LT, input(g, 2, DIMS(n, 3)), 5));
}
RULE(sum_rows) { return hlo_reduce(g, HLO_REDUCE_ADD, input(g, 2, DIMS(n, 3)), 1, INTS(1), true); }
RULE(sum_all) { return hlo_reduce_all(g, HLO_REDUCE_ADD, input(g, 3, DIMS(n, 3, n + 1))); }
RULE(arg_max) {
  hlo_t value, index;
  hlo_reduce_arg(g, true, hlo_add_f(g, input(g, 2, DIMS(n, 3)), -90), 0, &value, &index);
  return hlo_add(g, value, hlo_convert(g, index, TORUS_DTYPE_F32));
}
RULE(arg_min_of_infinities) {
  hlo_t x = hlo_divide(g, input(g, 2, DIMS(n, 3)), hlo_zeros(g, TORUS_DTYPE_F32, 2, DIMS(n, 3)));
  hlo_t value, index;
  hlo_reduce_arg(g, false, hlo_abs(g, x), 0, &value, &index);
  return hlo_convert(g, index, TORUS_DTYPE_F32);
}
RULE(sort) {
  hlo_t x = input(g, 2, DIMS(n, 3)), sorted[2], xs[] = {x, hlo_iota(g, TORUS_DTYPE_I32, 2, DIMS(n, 3), 0)};
  hlo_sort(g, xs, 2, 0, true, false, sorted);
  return sorted[0];
}
RULE(sort_rows) {
  hlo_t x = input(g, 2, DIMS(n, 3)), sorted;
  hlo_sort(g, &x, 1, 1, false, true, &sorted);
  return sorted;
}
RULE(scan) { return hlo_scan(g, HLO_REDUCE_ADD, input(g, 2, DIMS(n % 30 + 2, 3)), 0); }
RULE(long_scan) { return hlo_scan(g, HLO_REDUCE_ADD, input(g, 1, DIMS(n + 60)), 0); }
RULE(pool_rows) {
  hlo_window_t window = hlo_window_identity();
  window.size[1] = 2;
  return hlo_reduce_window(g, HLO_REDUCE_MAXIMUM, input(g, 2, DIMS(n, 4)), &window);
}

TEST(reductions) {
  CHECK_RULE(sum);
  CHECK_RULE(product);
  CHECK_RULE(maximum);
  CHECK_RULE(minimum);
  CHECK_RULE(any);
  CHECK_RULE(all);
  CHECK_RULE(sum_rows);
  CHECK_RULE(sum_all);
  CHECK_RULE(arg_max);
  CHECK_RULE(arg_min_of_infinities);
  CHECK_RULE(sort);
  CHECK_RULE(sort_rows);
  CHECK_RULE(pool_rows);
}

TEST(running_reductions) {
  uint64_t key;
  char reason[HLO_REASON_BYTES];
  for (int64_t n = 5; n < 80; n += 23) {
    ASSERT_OK(try_rule(rule_scan, n, n + 1, &key, reason));
    ASSERT_STR_EQ(reason, "");
    ASSERT_OK(try_rule(rule_long_scan, n, n + 1, &key, reason));
    ASSERT_STR_EQ(reason, "");
  }
}

/* ---- products ---- */

RULE(free_size) { return hlo_matmul(g, input(g, 2, DIMS(n, 3)), input(g, 2, DIMS(3, n + 1))); }
RULE(contracted_size) { return hlo_matmul(g, input(g, 2, DIMS(2, n)), input(g, 2, DIMS(n, 3))); }
RULE(batch_size) { return hlo_matmul(g, input(g, 3, DIMS(n, 2, 3)), input(g, 3, DIMS(n, 3, 2))); }
RULE(attention) {
  hlo_t q = input(g, 2, DIMS(2, 4)), k = input(g, 2, DIMS(n, 4)), v = input(g, 2, DIMS(n, 4));
  hlo_t scores = hlo_matmul(g, q, hlo_transpose(g, k, INTS(1, 0)));
  hlo_t most = hlo_reduce(g, HLO_REDUCE_MAXIMUM, scores, 1, INTS(1), false);
  hlo_t e = hlo_exp(g, hlo_subtract(g, scores, hlo_broadcast_back(g, most, scores, 1, INTS(1))));
  hlo_t sum = hlo_reduce(g, HLO_REDUCE_ADD, e, 1, INTS(1), false);
  return hlo_matmul(g, hlo_divide(g, e, hlo_broadcast_back(g, sum, e, 1, INTS(1))), v);
}

static hlo_conv_t plain_conv(void) {
  return (hlo_conv_t){.spatial = 1,
                      .stride = {1},
                      .lhs_dilation = {1},
                      .rhs_dilation = {1},
                      .feature_groups = 1,
                      .batch_groups = 1};
}
RULE(conv_batch) {
  const hlo_conv_t conv = plain_conv();
  return hlo_convolution(g, input(g, 3, DIMS(n, 2, 5)), input(g, 3, DIMS(3, 2, 2)), &conv);
}
RULE(conv_features) {
  const hlo_conv_t conv = plain_conv();
  return hlo_convolution(g, input(g, 3, DIMS(2, n, 5)), input(g, 3, DIMS(3, n, 2)), &conv);
}

TEST(products) {
  CHECK_RULE(free_size);
  CHECK_RULE(contracted_size);
  CHECK_RULE(batch_size);
  CHECK_RULE(attention);
  CHECK_RULE(conv_batch);
  CHECK_RULE(conv_features);
}

/* ---- gather and scatter ---- */

static hlo_t places(hlo_graph_t *g, int64_t n, int64_t most) {
  hlo_t x = hlo_convert(g, hlo_abs(g, input(g, 1, DIMS(n))), TORUS_DTYPE_I32);
  return hlo_minimum(g, x, hlo_const_int(g, TORUS_DTYPE_I32, most - 1));
}
RULE(take) { return hlo_take(g, input(g, 2, DIMS(9, 3)), 0, places(g, n, 9)); }
RULE(take_from) { return hlo_take(g, input(g, 2, DIMS(3, n)), 0, places(g, 4, 3)); }
RULE(take_along) {
  hlo_t index = hlo_broadcast_in_dim(g, places(g, n, 3), 2, DIMS(n, 2), INTS(0));
  return hlo_take_along(g, input(g, 2, DIMS(n, 3)), 1, index);
}
RULE(put) {
  return hlo_put_along(g, HLO_SCATTER_ADD, input(g, 1, DIMS(9)), 0, places(g, n, 9),
                       input(g, 1, DIMS(n)));
}
RULE(put_rows) {
  const hlo_gather_dims_t dims = {.offset_count = 1,
                                  .offset = {1},
                                  .collapsed_count = 1,
                                  .collapsed = {0},
                                  .map_count = 1,
                                  .map = {0},
                                  .index_vector_dim = 1};
  return hlo_scatter(g, HLO_SCATTER_ADD, input(g, 2, DIMS(9, n)), places(g, n + 1, 9),
                     input(g, 2, DIMS(n + 1, n)), &dims);
}

TEST(gather_and_scatter) {
  CHECK_RULE(take);
  CHECK_RULE(take_from);
  CHECK_RULE(take_along);
  CHECK_RULE(put);
  CHECK_RULE(put_rows);
}

/* ---- what has no rule ---- */

RULE(random) {
  hlo_t seed = hlo_volatile_int(g, TORUS_DTYPE_U64, 1), offset = hlo_volatile_int(g, TORUS_DTYPE_U64, 2);
  return hlo_random_bits(g, TORUS_DTYPE_U32, seed, offset, 1, DIMS(n));
}
RULE(pool) {
  hlo_window_t window = hlo_window_identity();
  window.size[0] = 2;
  return hlo_reduce_window(g, HLO_REDUCE_MAXIMUM, input(g, 2, DIMS(n, 4)), &window);
}
RULE(conv_space) {
  const hlo_conv_t conv = plain_conv();
  return hlo_convolution(g, input(g, 3, DIMS(2, 2, n)), input(g, 3, DIMS(3, 2, 2)), &conv);
}
static hlo_t counts(hlo_graph_t *g, const hlo_t *state, void *context) {
  (void)context;
  return hlo_compare_f(g, HLO_LT, state[0], 3);
}
static void doubles(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  (void)context;
  out_state[0] = hlo_add_f(g, state[0], 1);
  out_state[1] = hlo_add(g, state[1], state[1]);
}
static hlo_t doubled(hlo_graph_t *g, hlo_t x) {
  const hlo_t initial[] = {hlo_const_int(g, TORUS_DTYPE_I32, 0), x};
  hlo_t results[2];
  hlo_while(g, initial, 2, counts, doubles, NULL, results);
  return results[1];
}
RULE(loop) { return doubled(g, input(g, 1, DIMS(n))); }
RULE(loop_beside) {
  hlo_t sum = hlo_reduce_all(g, HLO_REDUCE_ADD, doubled(g, input(g, 1, DIMS(3))));
  return hlo_multiply(g, input(g, 1, DIMS(n)), sum);
}

static void check_refused(rule_fn rule, const char *part) {
  uint64_t key;
  char reason[HLO_REASON_BYTES];
  ASSERT_OK(try_rule(rule, 5, 7, &key, reason));
  ASSERT_CONTAINS(reason, part);
}

TEST(the_rest_is_refused) {
  check_refused(rule_random, "rng_bit_generator: the result depends on the size");
  check_refused(rule_pool, "reduce_window: along a size that changes");
  check_refused(rule_conv_space, "convolution: along a size that changes");
  check_refused(rule_loop, "loop");
  CHECK_RULE(loop_beside);
}

TEST(bounds_are_powers_of_two) {
  ASSERT_EQ(hlo_bound_size(2), 16);
  ASSERT_EQ(hlo_bound_size(16), 16);
  ASSERT_EQ(hlo_bound_size(17), 32);
  ASSERT_EQ(hlo_bound_size(1 << 20), 1 << 20);
}

/* Memory may run out anywhere. */
static torus_status_t bound_attention(void) {
  static int classes[MOST_SIZES];
  char reason[HLO_REASON_BYTES];
  hlo_t output, bounded;
  hlo_graph_t *to = NULL;
  hlo_graph_t *g = NULL;
  hlo_shapes_t shapes = {0};
  TORUS_TRY(hlo_graph_create(&g));
  input_count = 0;
  output = rule_attention(g, 5);
  torus_status_t status = hlo_graph_take_error(g);
  if (!status) status = hlo_shapes_of(g, &output, 1, &shapes);
  for (size_t i = 0; i < shapes.size_count; i++) classes[i] = shapes.sizes[i] == 5;
  const hlo_bounding_t how = {g, &output, 1, classes, 1, hold, NULL};
  if (!status) status = hlo_graph_create(&to);
  if (!status) status = hlo_bound(&how, to, &bounded, reason);
  hlo_shapes_deinit(&shapes);
  hlo_graph_destroy(g);
  hlo_graph_destroy(to);
  return status;
}

TEST(memory_may_run_out) { ASSERT_SURVIVES_FAILING_ALLOCATIONS(bound_attention()); }

int main(int argc, char **argv) {
  static const test_case_t tests[] = {
      TEST_ENTRY(sources_and_elements), TEST_ENTRY(shapes),
      TEST_ENTRY(slices),               TEST_ENTRY(reductions),
      TEST_ENTRY(running_reductions),   TEST_ENTRY(products),
      TEST_ENTRY(gather_and_scatter),   TEST_ENTRY(the_rest_is_refused),
      TEST_ENTRY(bounds_are_powers_of_two), TEST_ENTRY(memory_may_run_out),
  };
  const char *path = getenv("TORUS_TEST_PLUGIN");
  if (!path || !path[0]) {
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
