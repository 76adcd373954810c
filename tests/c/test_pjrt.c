/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Plugins, buffers and programs, on the PJRT plugin whose path is in TORUS_TEST_PLUGIN. */
#include "test.h"

#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "torus/pjrt.h"

#define DEVICE_COUNT 8

static torus_client_t *client; /* shared by the tests */
static const char *plugin_path;
static bool plugin_is_cpu;

static const char add_text[] =
    "func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {\n"
    "  %0 = stablehlo.add %a, %b : tensor<4xf32>\n"
    "  return %0 : tensor<4xf32>\n"
    "}\n";

static const char two_results_text[] =
    "func.func public @main(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xi1>) {\n"
    "  %0 = stablehlo.negate %a : tensor<4xf32>\n"
    "  %1 = stablehlo.compare LT, %a, %0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>\n"
    "  return %0, %1 : tensor<4xf32>, tensor<4xi1>\n"
    "}\n";

static const char constant_text[] =
    "func.func public @main() -> tensor<f32> {\n"
    "  %0 = stablehlo.constant dense<2.5> : tensor<f32>\n"
    "  return %0 : tensor<f32>\n"
    "}\n";

static const char donating_text[] =
    "func.func public @main(%a: tensor<4xf32> {tf.aliasing_output = 0 : i32},\n"
    "                       %b: tensor<4xf32>) -> tensor<4xf32> {\n"
    "  %0 = stablehlo.add %a, %b : tensor<4xf32>\n"
    "  return %0 : tensor<4xf32>\n"
    "}\n";

static const char min_max_text[] =
    "func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>)\n"
    "    -> (tensor<4xf32>, tensor<4xf32>) {\n"
    "  %0 = stablehlo.minimum %a, %b : tensor<4xf32>\n"
    "  %1 = stablehlo.maximum %a, %b : tensor<4xf32>\n"
    "  return %0, %1 : tensor<4xf32>, tensor<4xf32>\n"
    "}\n";

/* 1 + 2^-9 is no bfloat16: it rounds to 1, and 1 - 1 is 0. */
static const char rounding_text[] =
    "func.func public @main(%a: tensor<4xbf16>, %b: tensor<4xbf16>) -> tensor<4xbf16> {\n"
    "  %0 = stablehlo.add %a, %b : tensor<4xbf16>\n"
    "  %1 = stablehlo.subtract %0, %a : tensor<4xbf16>\n"
    "  return %1 : tensor<4xbf16>\n"
    "}\n";

static const char transposing_text[] =
    "func.func public @main(%a: tensor<2x3xf32>) -> tensor<3x2xf32> {\n"
    "  %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>\n"
    "  return %0 : tensor<3x2xf32>\n"
    "}\n";

static torus_status_t compile(const char *text, torus_effort_t effort,
                              torus_executable_t **out_executable) {
  return torus_executable_compile(client, 0, text, strlen(text), effort, out_executable);
}

static torus_status_t upload(int device, const float values[4], torus_buffer_t **out_buffer) {
  return torus_buffer_from_host(client, device, values, TORUS_DTYPE_F32, 1, (int64_t[]){4},
                                out_buffer);
}

static const float ones[4] = {1, 1, 1, 1};
static const float counts[4] = {1, 2, 3, 4};

/* ---- client ---- */

static torus_status_t open_plugin(const char *path) {
  torus_client_t *other;
  torus_client_options_t options = {.plugin_path = path};
  torus_status_t status = torus_client_create(&options, &other);
  torus_client_destroy(other);
  return status;
}

TEST(client_tells_about_itself) {
  ASSERT_STR_EQ(torus_client_plugin_path(client), plugin_path);
  ASSERT_TRUE(torus_client_platform(client)[0] != 0);
  ASSERT_TRUE(torus_client_device_kind(client, 0)[0] != 0);
  ASSERT_STR_EQ(torus_client_device_kind(client, 1000), "");
  int major, minor;
  torus_client_api_version(client, &major, &minor);
  ASSERT_EQ(major, 0);
  ASSERT_TRUE(minor > 0);
  if (plugin_is_cpu) ASSERT_STR_EQ(torus_client_platform(client), "cpu");
  if (plugin_is_cpu) ASSERT_EQ(torus_client_device_count(client), DEVICE_COUNT);
  int64_t in_use, limit;
  ASSERT_EQ(torus_client_memory_stats(client, -1, &in_use, &limit), false);
  if (torus_client_memory_stats(client, 0, &in_use, &limit)) ASSERT_TRUE(in_use >= 0);
}

TEST(client_names_the_path_of_what_is_no_plugin) {
  ASSERT_STATUS(open_plugin("/nowhere/plugin.so"), TORUS_STATUS_NOT_FOUND, "/nowhere/plugin.so");
  ASSERT_STATUS(open_plugin("/nowhere/plugin.so"), TORUS_STATUS_NOT_FOUND, "pip install");
  ASSERT_STATUS(open_plugin("plugin.so"), TORUS_STATUS_INVALID_ARGUMENT, "not absolute");
  ASSERT_STATUS(open_plugin(""), TORUS_STATUS_INVALID_ARGUMENT, "not absolute");
  ASSERT_STATUS(open_plugin(NULL), TORUS_STATUS_INVALID_ARGUMENT, "not absolute");
  ASSERT_STATUS(open_plugin("/"), TORUS_STATUS_INVALID_ARGUMENT, "cannot be loaded");
}

TEST(client_refuses_a_text_file) {
  char path[] = P_tmpdir "/torus-test-XXXXXX";
  int file = mkstemp(path);
  ASSERT_TRUE(file >= 0);
  ASSERT_EQ(write(file, "not a library\n", 14), 14);
  close(file);
  torus_status_t status = open_plugin(path);
  unlink(path);
  ASSERT_CONTAINS(torus_status_message(status), path);
  ASSERT_STATUS(status, TORUS_STATUS_INVALID_ARGUMENT, "cannot be loaded as a PJRT plugin");
}

TEST(client_refuses_a_library_that_is_no_plugin) {
  const char *const paths[] = {"/lib/x86_64-linux-gnu/libm.so.6",
                               "/lib/aarch64-linux-gnu/libm.so.6", "/lib64/libm.so.6"};
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
    if (access(paths[i], R_OK) != 0) continue;
    ASSERT_STATUS(open_plugin(paths[i]), TORUS_STATUS_INVALID_ARGUMENT, "no function GetPjrtApi");
    return;
  }
  fprintf(stderr, "skipped: no such library on this machine\n");
}

/* ---- buffer ---- */

TEST(buffer_copies_there_and_back) {
  torus_buffer_t *buffer;
  ASSERT_OK(upload(0, counts, &buffer));
  ASSERT_EQ(torus_buffer_size_bytes(buffer), 16);
  float back[4] = {0};
  ASSERT_OK(torus_buffer_to_host(buffer, back, sizeof back));
  ASSERT_EQ(memcmp(back, counts, sizeof back), 0);
  ASSERT_OK(torus_buffer_await(buffer));
  ASSERT_TRUE(torus_buffer_is_ready(buffer));
  ASSERT_STATUS(torus_buffer_to_host(buffer, back, 12), TORUS_STATUS_INVALID_ARGUMENT,
                "16 bytes, but the destination has 12");
  char large[32];
  ASSERT_STATUS(torus_buffer_to_host(buffer, large, 32), TORUS_STATUS_INVALID_ARGUMENT, "32");
  ASSERT_TRUE(torus_buffer_retain(buffer) == buffer);
  torus_buffer_release(buffer);
  ASSERT_OK(torus_buffer_to_host(buffer, back, sizeof back));
  torus_buffer_release(buffer);
  torus_buffer_release(NULL);
  ASSERT_TRUE(torus_buffer_retain(NULL) == NULL);
}

TEST(buffer_does_not_keep_the_host_data) {
  enum { COUNT = 1 << 18 };
  int64_t *data = malloc(COUNT * sizeof *data);
  for (int64_t i = 0; i < COUNT; i++) data[i] = i;
  torus_buffer_t *buffer;
  int64_t dims[2] = {512, COUNT / 512};
  ASSERT_OK(torus_buffer_from_host(client, 0, data, TORUS_DTYPE_I64, 2, dims, &buffer));
  memset(data, 0xff, COUNT * sizeof *data);
  ASSERT_OK(torus_buffer_to_host(buffer, data, COUNT * sizeof *data));
  for (int64_t i = 0; i < COUNT; i++) ASSERT_EQ(data[i], i);
  torus_buffer_release(buffer);
  free(data);
}

TEST(buffer_takes_every_type_scalars_and_nothing) {
  for (int d = 0; d < TORUS_DTYPE_COUNT; d++) {
    torus_dtype_t dtype = (torus_dtype_t)d;
    /* Bytes of 1: true for bool, some number for the others. */
    unsigned char data[6 * 16], back[6 * 16] = {0};
    memset(data, 1, sizeof data);
    size_t size_bytes = 6 * torus_dtype_bytes(dtype);
    torus_buffer_t *buffer;
    ASSERT_OK(torus_buffer_from_host(client, 0, data, dtype, 2, (int64_t[]){2, 3}, &buffer));
    ASSERT_EQ(torus_buffer_size_bytes(buffer), size_bytes);
    ASSERT_OK(torus_buffer_to_host(buffer, back, size_bytes));
    ASSERT_EQ(memcmp(data, back, size_bytes), 0);
    torus_buffer_release(buffer);

    ASSERT_OK(torus_buffer_from_host(client, 0, data, dtype, 0, NULL, &buffer));
    ASSERT_OK(torus_buffer_to_host(buffer, back, torus_dtype_bytes(dtype)));
    torus_buffer_release(buffer);

    ASSERT_OK(torus_buffer_from_host(client, 0, NULL, dtype, 3, (int64_t[]){2, 0, 3}, &buffer));
    ASSERT_EQ(torus_buffer_size_bytes(buffer), 0);
    ASSERT_OK(torus_buffer_to_host(buffer, NULL, 0));
    torus_buffer_release(buffer);
  }
}

TEST(buffer_refuses_impossible_arrays) {
  torus_buffer_t *buffer;
  int64_t dims[65] = {1};
  ASSERT_STATUS(torus_buffer_from_host(client, 0, ones, TORUS_DTYPE_F32, 65, dims, &buffer),
                TORUS_STATUS_INVALID_ARGUMENT, "rank 65");
  dims[0] = -1;
  ASSERT_STATUS(torus_buffer_from_host(client, 0, ones, TORUS_DTYPE_F32, 1, dims, &buffer),
                TORUS_STATUS_INVALID_ARGUMENT, "size -1");
  dims[0] = INT64_MAX / 2;
  ASSERT_STATUS(torus_buffer_from_host(client, 0, ones, TORUS_DTYPE_F32, 1, dims, &buffer),
                TORUS_STATUS_INVALID_ARGUMENT, "bytes");
  ASSERT_STATUS(torus_buffer_from_host(client, 0, ones, TORUS_DTYPE_INVALID, 0, NULL, &buffer),
                TORUS_STATUS_INVALID_ARGUMENT, "element type");
  ASSERT_STATUS(upload(1000, ones, &buffer), TORUS_STATUS_INVALID_ARGUMENT, "device 1000");
  ASSERT_STATUS(upload(-1, ones, &buffer), TORUS_STATUS_INVALID_ARGUMENT, "device -1");
  ASSERT_TRUE(buffer == NULL);
}

TEST(buffer_moves_between_devices) {
  int count = torus_client_device_count(client);
  torus_buffer_t *buffer, *copy;
  ASSERT_OK(upload(0, counts, &buffer));
  for (int device = 1; device < count; device++) {
    ASSERT_OK(torus_buffer_copy_to_device(buffer, device, &copy));
    torus_buffer_release(buffer);
    buffer = copy;
  }
  float back[4];
  ASSERT_OK(torus_buffer_to_host(buffer, back, sizeof back));
  ASSERT_EQ(memcmp(back, counts, sizeof back), 0);
  ASSERT_STATUS(torus_buffer_copy_to_device(buffer, count, &copy), TORUS_STATUS_INVALID_ARGUMENT,
                "does not exist");
  torus_buffer_release(buffer);
}

/* ---- executable ---- */

static void check_add(torus_executable_t *executable, int device) {
  torus_buffer_t *arguments[2], *result;
  ASSERT_OK(upload(device, counts, &arguments[0]));
  ASSERT_OK(upload(device, ones, &arguments[1]));
  ASSERT_OK(torus_executable_run(executable, arguments, 2, 1, &result));
  float back[4];
  ASSERT_OK(torus_buffer_to_host(result, back, sizeof back));
  for (int i = 0; i < 4; i++) ASSERT_FLOAT_EQ(back[i], counts[i] + 1);
  torus_buffer_release(result);
  torus_buffer_release(arguments[0]);
  torus_buffer_release(arguments[1]);
}

TEST(executable_adds) {
  for (int effort = TORUS_EFFORT_DEFAULT; effort <= TORUS_EFFORT_FAST; effort++) {
    torus_executable_t *executable;
    ASSERT_OK(compile(add_text, (torus_effort_t)effort, &executable));
    check_add(executable, 0);
    ASSERT_PASSED();
    torus_executable_release(torus_executable_retain(executable));
    torus_executable_release(executable);
  }
}

TEST(executable_serves_every_device) {
  torus_executable_t *executable;
  ASSERT_OK(compile(add_text, TORUS_EFFORT_DEFAULT, &executable));
  for (int device = torus_client_device_count(client) - 1; device >= 0; device--) {
    check_add(executable, device);
    ASSERT_PASSED();
  }
  torus_executable_release(executable);
}

TEST(executable_keeps_results_on_its_device) {
  int last = torus_client_device_count(client) - 1;
  torus_executable_t *constant, *add;
  ASSERT_OK(torus_executable_compile(client, last, constant_text, strlen(constant_text),
                                     TORUS_EFFORT_DEFAULT, &constant));
  ASSERT_OK(compile(add_text, TORUS_EFFORT_DEFAULT, &add));
  torus_buffer_t *scalar;
  ASSERT_OK(torus_executable_run(constant, NULL, 0, 1, &scalar));
  float value;
  ASSERT_OK(torus_buffer_to_host(scalar, &value, sizeof value));
  ASSERT_FLOAT_EQ(value, 2.5);
  torus_buffer_release(scalar);
  ASSERT_OK(torus_executable_run_on(constant, 0, NULL, 0, 1, &scalar));
  torus_buffer_release(scalar);
  ASSERT_STATUS(torus_executable_run_on(constant, last + 1, NULL, 0, 1, &scalar),
                TORUS_STATUS_INVALID_ARGUMENT, "does not exist");

  torus_buffer_t *arguments[2], *result;
  ASSERT_OK(upload(0, ones, &arguments[0]));
  ASSERT_OK(upload(last, ones, &arguments[1]));
  if (last > 0) {
    ASSERT_STATUS(torus_executable_run(add, arguments, 2, 1, &result),
                  TORUS_STATUS_INVALID_ARGUMENT, "argument 1 is on device");
  }
  torus_buffer_release(arguments[0]);
  torus_buffer_release(arguments[1]);
  torus_executable_release(add);
  torus_executable_release(constant);
}

TEST(executable_chains_results) {
  torus_executable_t *executable;
  ASSERT_OK(compile(add_text, TORUS_EFFORT_DEFAULT, &executable));
  torus_buffer_t *one, *sum, *next;
  ASSERT_OK(upload(0, ones, &one));
  sum = torus_buffer_retain(one);
  for (int i = 0; i < 1000; i++) {
    ASSERT_OK(torus_executable_run(executable, (torus_buffer_t *[]){sum, one}, 2, 1, &next));
    torus_buffer_release(sum);
    sum = next;
  }
  float back[4];
  ASSERT_OK(torus_buffer_to_host(sum, back, sizeof back));
  for (int i = 0; i < 4; i++) ASSERT_FLOAT_EQ(back[i], 1001);
  ASSERT_OK(torus_buffer_await(sum));
  torus_buffer_release(sum);
  torus_buffer_release(one);
  torus_executable_release(executable);
}

TEST(executable_gives_several_results) {
  torus_executable_t *executable;
  ASSERT_OK(compile(two_results_text, TORUS_EFFORT_FAST, &executable));
  torus_buffer_t *argument, *results[2];
  ASSERT_OK(upload(0, (float[]){-1, 0, 1, -2}, &argument));
  ASSERT_OK(torus_executable_run(executable, &argument, 1, 2, results));
  bool less[4];
  ASSERT_EQ(torus_buffer_size_bytes(results[0]), 16);
  ASSERT_EQ(torus_buffer_size_bytes(results[1]), 4);
  ASSERT_OK(torus_buffer_to_host(results[1], less, sizeof less));
  ASSERT_TRUE(less[0] && !less[1] && !less[2] && less[3]);
  torus_buffer_release(results[0]);
  torus_buffer_release(results[1]);
  torus_buffer_release(argument);
  torus_executable_release(executable);
}

TEST(executable_uses_up_donated_arguments) {
  torus_executable_t *executable;
  ASSERT_OK(compile(donating_text, TORUS_EFFORT_DEFAULT, &executable));
  torus_buffer_t *arguments[2], *result;
  ASSERT_OK(upload(0, counts, &arguments[0]));
  ASSERT_OK(upload(0, ones, &arguments[1]));
  ASSERT_OK(torus_executable_run(executable, arguments, 2, 1, &result));
  float back[4];
  ASSERT_OK(torus_buffer_to_host(result, back, sizeof back));
  for (int i = 0; i < 4; i++) ASSERT_FLOAT_EQ(back[i], counts[i] + 1);
  torus_buffer_release(result);

  /* Reading what is gone is an error, not a crash. */
  torus_status_t status = torus_buffer_to_host(arguments[0], back, sizeof back);
  ASSERT_TRUE(status != TORUS_OK);
  torus_status_free(status);
  torus_buffer_is_ready(arguments[0]);
  torus_status_ignore(torus_buffer_await(arguments[0]));
  torus_buffer_size_bytes(arguments[0]);
  status = torus_executable_run(executable, arguments, 2, 1, &result);
  ASSERT_TRUE(status != TORUS_OK && result == NULL);
  torus_status_free(status);
  torus_buffer_release(arguments[0]);

  /* One buffer in both places cannot be donated. */
  arguments[0] = arguments[1];
  status = torus_executable_run(executable, arguments, 2, 1, &result);
  ASSERT_TRUE(status != TORUS_OK && result == NULL);
  torus_status_free(status);
  torus_buffer_release(arguments[1]);
  torus_executable_release(executable);
}

TEST(executable_passes_nan_through_min_and_max) {
  for (int effort = TORUS_EFFORT_DEFAULT; effort <= TORUS_EFFORT_FAST; effort++) {
    torus_executable_t *executable;
    ASSERT_OK(compile(min_max_text, (torus_effort_t)effort, &executable));
    torus_buffer_t *arguments[2], *results[2];
    ASSERT_OK(upload(0, (float[]){NAN, 1, NAN, 2}, &arguments[0]));
    ASSERT_OK(upload(0, (float[]){1, NAN, NAN, 3}, &arguments[1]));
    ASSERT_OK(torus_executable_run(executable, arguments, 2, 2, results));
    for (int i = 0; i < 2; i++) {
      float back[4];
      ASSERT_OK(torus_buffer_to_host(results[i], back, sizeof back));
      ASSERT_TRUE(isnan(back[0]) && isnan(back[1]) && isnan(back[2]));
      ASSERT_FLOAT_EQ(back[3], 2 + i);
      torus_buffer_release(results[i]);
      torus_buffer_release(arguments[i]);
    }
    torus_executable_release(executable);
  }
}

TEST(executable_rounds_every_result) {
  if (!plugin_is_cpu) return;
  for (int effort = TORUS_EFFORT_DEFAULT; effort <= TORUS_EFFORT_FAST; effort++) {
    torus_executable_t *executable;
    ASSERT_OK(compile(rounding_text, (torus_effort_t)effort, &executable));
    const uint16_t one[4] = {0x3f80, 0x3f80, 0x3f80, 0x3f80};
    const uint16_t small[4] = {0x3b00, 0x3b00, 0x3b00, 0x3b00};
    torus_buffer_t *arguments[2], *result;
    int64_t dims[1] = {4};
    ASSERT_OK(
        torus_buffer_from_host(client, 0, one, TORUS_DTYPE_BF16, 1, dims, &arguments[0]));
    ASSERT_OK(
        torus_buffer_from_host(client, 0, small, TORUS_DTYPE_BF16, 1, dims, &arguments[1]));
    ASSERT_OK(torus_executable_run(executable, arguments, 2, 1, &result));
    uint16_t back[4];
    ASSERT_OK(torus_buffer_to_host(result, back, sizeof back));
    for (int i = 0; i < 4; i++) ASSERT_EQ(back[i], 0);
    torus_buffer_release(result);
    torus_buffer_release(arguments[0]);
    torus_buffer_release(arguments[1]);
    torus_executable_release(executable);
  }
}

TEST(executable_results_read_row_major) {
  torus_executable_t *executable;
  ASSERT_OK(compile(transposing_text, TORUS_EFFORT_DEFAULT, &executable));
  const float data[6] = {1, 2, 3, 4, 5, 6}, expected[6] = {1, 4, 2, 5, 3, 6};
  torus_buffer_t *argument, *result;
  ASSERT_OK(torus_buffer_from_host(client, 0, data, TORUS_DTYPE_F32, 2, (int64_t[]){2, 3},
                                   &argument));
  ASSERT_OK(torus_executable_run(executable, &argument, 1, 1, &result));
  float back[6];
  ASSERT_OK(torus_buffer_to_host(result, back, sizeof back));
  for (int i = 0; i < 6; i++) ASSERT_FLOAT_EQ(back[i], expected[i]);
  torus_buffer_release(result);
  torus_buffer_release(argument);
  torus_executable_release(executable);
}

/* Writes a program that adds 1 to each of |count| scalars. */
static void write_wide_program(FILE *file, int count) {
  fprintf(file, "func.func public @main(");
  for (int i = 0; i < count; i++) fprintf(file, "%s%%a%d: tensor<f32>", i ? ", " : "", i);
  fprintf(file, ") -> (");
  for (int i = 0; i < count; i++) fprintf(file, "%stensor<f32>", i ? ", " : "");
  fprintf(file, ") {\n  %%one = stablehlo.constant dense<1.0> : tensor<f32>\n");
  for (int i = 0; i < count; i++) {
    fprintf(file, "  %%r%d = stablehlo.add %%a%d, %%one : tensor<f32>\n", i, i);
  }
  fprintf(file, "  return ");
  for (int i = 0; i < count; i++) fprintf(file, "%s%%r%d", i ? ", " : "", i);
  fprintf(file, " : ");
  for (int i = 0; i < count; i++) fprintf(file, "%stensor<f32>", i ? ", " : "");
  fprintf(file, "\n}\n");
}

TEST(executable_takes_many_arguments) {
  enum { COUNT = 100 };
  char *text;
  size_t text_bytes;
  FILE *file = open_memstream(&text, &text_bytes);
  write_wide_program(file, COUNT);
  fclose(file);
  torus_executable_t *executable;
  ASSERT_OK(torus_executable_compile(client, 0, text, text_bytes, TORUS_EFFORT_FAST, &executable));
  free(text);
  torus_buffer_t *arguments[COUNT], *results[COUNT];
  for (int i = 0; i < COUNT; i++) {
    float value = (float)i;
    ASSERT_OK(torus_buffer_from_host(client, 0, &value, TORUS_DTYPE_F32, 0, NULL, &arguments[i]));
  }
  ASSERT_OK(torus_executable_run(executable, arguments, COUNT, COUNT, results));
  for (int i = 0; i < COUNT; i++) {
    float value;
    ASSERT_OK(torus_buffer_to_host(results[i], &value, sizeof value));
    ASSERT_FLOAT_EQ(value, i + 1);
    torus_buffer_release(results[i]);
    torus_buffer_release(arguments[i]);
  }
  torus_executable_release(executable);
}

TEST(executable_serializes_and_loads) {
  torus_executable_t *executable, *loaded;
  ASSERT_OK(compile(add_text, TORUS_EFFORT_DEFAULT, &executable));
  char *bytes;
  size_t size;
  ASSERT_OK(torus_executable_serialize(executable, &bytes, &size));
  ASSERT_TRUE(size > 0);
  torus_executable_release(executable);
  ASSERT_OK(torus_executable_load(client, bytes, size, &loaded));
  for (int device = 0; device < torus_client_device_count(client); device++) {
    check_add(loaded, device);
    ASSERT_PASSED();
  }
  torus_executable_release(loaded);

  torus_status_t status = torus_executable_load(client, bytes, size / 2, &loaded);
  ASSERT_TRUE(status != TORUS_OK && loaded == NULL);
  torus_status_free(status);
  torus_free(bytes);
  status = torus_executable_load(client, "rubbish", 7, &loaded);
  ASSERT_TRUE(status != TORUS_OK && loaded == NULL);
  torus_status_free(status);
}

TEST(executable_reports_errors_in_texts_and_calls) {
  torus_executable_t *executable;
  torus_status_t status = compile("func.func public @main( {", TORUS_EFFORT_DEFAULT, &executable);
  ASSERT_TRUE(status != TORUS_OK && executable == NULL);
  ASSERT_CONTAINS(torus_status_message(status), "compilation: ");
  torus_status_free(status);
  ASSERT_STATUS(torus_executable_compile(client, 99, add_text, strlen(add_text),
                                         TORUS_EFFORT_DEFAULT, &executable),
                TORUS_STATUS_INVALID_ARGUMENT, "device 99");

  ASSERT_OK(compile(add_text, TORUS_EFFORT_FAST, &executable));
  torus_buffer_t *buffer, *results[2];
  ASSERT_OK(upload(0, ones, &buffer));
  torus_buffer_t *arguments[3] = {buffer, buffer, buffer};
  ASSERT_STATUS(torus_executable_run(executable, arguments, 2, 2, results),
                TORUS_STATUS_INVALID_ARGUMENT, "has 1 results, but 2");
  ASSERT_STATUS(torus_executable_run(executable, arguments, 1, 1, results),
                TORUS_STATUS_INVALID_ARGUMENT, "execution: ");
  ASSERT_STATUS(torus_executable_run(executable, arguments, 3, 1, results),
                TORUS_STATUS_INVALID_ARGUMENT, "execution: ");
  ASSERT_STATUS(torus_executable_run(executable, NULL, 0, 1, results),
                TORUS_STATUS_INVALID_ARGUMENT, "execution: ");
  torus_buffer_t *scalar;
  ASSERT_OK(torus_buffer_from_host(client, 0, ones, TORUS_DTYPE_F32, 0, NULL, &scalar));
  arguments[1] = scalar;
  status = torus_executable_run(executable, arguments, 2, 1, results);
  ASSERT_TRUE(status != TORUS_OK && results[0] == NULL);
  torus_status_free(status);
  torus_buffer_release(scalar);
  torus_buffer_release(buffer);
  torus_executable_release(executable);
}

TEST(executable_fingerprints_differ_by_effort) {
  const char *normal = torus_executable_options_fingerprint(client, TORUS_EFFORT_DEFAULT);
  const char *fast = torus_executable_options_fingerprint(client, TORUS_EFFORT_FAST);
  ASSERT_TRUE(normal && fast);
  if (plugin_is_cpu) ASSERT_TRUE(strcmp(normal, fast) != 0);
}

/* ---- threads ---- */

typedef struct worker {
  torus_executable_t *executable;
  int device;
  bool failed;
} worker_t;

static torus_status_t add_often(worker_t *worker) {
  torus_buffer_t *one, *sum, *next;
  TORUS_TRY(upload(worker->device, ones, &one));
  sum = torus_buffer_retain(one);
  for (int i = 0; i < 500; i++) {
    torus_buffer_t *arguments[2] = {sum, one};
    TORUS_TRY(torus_executable_run(worker->executable, arguments, 2, 1, &next));
    torus_buffer_release(sum);
    sum = next;
  }
  float back[4];
  TORUS_TRY(torus_buffer_to_host(sum, back, sizeof back));
  worker->failed = back[3] != 501.0f;
  torus_buffer_release(sum);
  torus_buffer_release(one);
  return TORUS_OK;
}

static void *worker_main(void *context) {
  worker_t *worker = context;
  torus_status_t status = add_often(worker);
  if (status) worker->failed = true;
  torus_status_ignore(status);
  return NULL;
}

TEST(executable_runs_from_several_threads) {
  enum { COUNT = 6 };
  torus_executable_t *executable;
  ASSERT_OK(compile(add_text, TORUS_EFFORT_DEFAULT, &executable));
  pthread_t threads[COUNT];
  worker_t workers[COUNT];
  for (int i = 0; i < COUNT; i++) {
    /* Two threads a device. */
    int device = i / 2 % torus_client_device_count(client);
    workers[i] = (worker_t){.executable = executable, .device = device};
    ASSERT_EQ(pthread_create(&threads[i], NULL, worker_main, &workers[i]), 0);
  }
  for (int i = 0; i < COUNT; i++) {
    ASSERT_EQ(pthread_join(threads[i], NULL), 0);
    ASSERT_EQ(workers[i].failed, false);
  }
  torus_executable_release(executable);
}

/* ---- failing allocations ---- */

static torus_status_t create_and_destroy(void) {
  torus_client_t *other;
  torus_client_options_t options = {plugin_path, 2, plugin_is_cpu};
  torus_status_t status = torus_client_create(&options, &other);
  torus_client_destroy(other);
  return status;
}

static torus_status_t compile_and_release(void) {
  torus_executable_t *executable;
  torus_status_t status = compile(constant_text, TORUS_EFFORT_FAST, &executable);
  torus_executable_release(executable);
  return status;
}

static torus_status_t upload_and_run(torus_executable_t *executable) {
  torus_buffer_t *argument, *results[2] = {NULL, NULL}, *copy = NULL;
  TORUS_TRY(upload(0, ones, &argument));
  torus_status_t status = torus_executable_run(executable, &argument, 1, 2, results);
  if (!status) status = torus_buffer_copy_to_device(results[0],
                                                    torus_client_device_count(client) - 1, &copy);
  if (!status) status = torus_buffer_await(copy);
  torus_buffer_release(copy);
  torus_buffer_release(results[0]);
  torus_buffer_release(results[1]);
  torus_buffer_release(argument);
  return status;
}

static torus_status_t serialize_and_load(torus_executable_t *executable) {
  char *bytes;
  size_t size;
  TORUS_TRY(torus_executable_serialize(executable, &bytes, &size));
  torus_executable_t *loaded;
  torus_status_t status = torus_executable_load(client, bytes, size, &loaded);
  torus_executable_release(loaded);
  torus_free(bytes);
  return status;
}

TEST(failing_allocations_are_reported) {
  if (plugin_is_cpu) ASSERT_SURVIVES_FAILING_ALLOCATIONS(create_and_destroy());
  ASSERT_SURVIVES_FAILING_ALLOCATIONS(compile_and_release());
  torus_executable_t *executable;
  ASSERT_OK(compile(two_results_text, TORUS_EFFORT_FAST, &executable));
  if (torus_client_device_count(client) > 1) {
    ASSERT_SURVIVES_FAILING_ALLOCATIONS(upload_and_run(executable));
  }
  ASSERT_SURVIVES_FAILING_ALLOCATIONS(serialize_and_load(executable));
  torus_executable_release(executable);
}

static int run_tests(int argc, char **argv) {
  const test_case_t tests[] = {
      TEST_ENTRY(client_tells_about_itself),
      TEST_ENTRY(client_names_the_path_of_what_is_no_plugin),
      TEST_ENTRY(client_refuses_a_text_file),
      TEST_ENTRY(client_refuses_a_library_that_is_no_plugin),
      TEST_ENTRY(buffer_copies_there_and_back),
      TEST_ENTRY(buffer_does_not_keep_the_host_data),
      TEST_ENTRY(buffer_takes_every_type_scalars_and_nothing),
      TEST_ENTRY(buffer_refuses_impossible_arrays),
      TEST_ENTRY(buffer_moves_between_devices),
      TEST_ENTRY(executable_adds),
      TEST_ENTRY(executable_serves_every_device),
      TEST_ENTRY(executable_keeps_results_on_its_device),
      TEST_ENTRY(executable_chains_results),
      TEST_ENTRY(executable_gives_several_results),
      TEST_ENTRY(executable_uses_up_donated_arguments),
      TEST_ENTRY(executable_passes_nan_through_min_and_max),
      TEST_ENTRY(executable_rounds_every_result),
      TEST_ENTRY(executable_results_read_row_major),
      TEST_ENTRY(executable_takes_many_arguments),
      TEST_ENTRY(executable_serializes_and_loads),
      TEST_ENTRY(executable_reports_errors_in_texts_and_calls),
      TEST_ENTRY(executable_fingerprints_differ_by_effort),
      TEST_ENTRY(executable_runs_from_several_threads),
      TEST_ENTRY(failing_allocations_are_reported),
  };
  return test_run_all(tests, sizeof tests / sizeof tests[0], argc, argv);
}

int main(int argc, char **argv) {
  plugin_path = getenv("TORUS_TEST_PLUGIN");
  if (!plugin_path || !plugin_path[0]) {
    fprintf(stderr, "skipped: TORUS_TEST_PLUGIN does not name a PJRT plugin\n");
    return TEST_SKIPPED;
  }
  plugin_is_cpu = strstr(plugin_path, "cpu") != NULL;
  torus_client_options_t options = {plugin_path, DEVICE_COUNT, plugin_is_cpu};
  torus_status_t status = torus_client_create(&options, &client);
  if (status) {
    fprintf(stderr, "%s\n", torus_status_message(status));
    torus_status_free(status);
    return EXIT_FAILURE;
  }
  int exit_code = run_tests(argc, argv);
  torus_client_destroy(client);
  if (torus_memory_stats().live_count != 0) {
    fprintf(stderr, "%lld blocks are left\n", (long long)torus_memory_stats().live_count);
    return EXIT_FAILURE;
  }
  return exit_code;
}
