/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Arrays and programs on eight virtual devices of the CPU plugin. */
#include "test.h"

#include "torus/pjrt.h"

#define DEVICE_COUNT 8

static torus_client_t *client;
static const int all[DEVICE_COUNT] = {0, 1, 2, 3, 4, 5, 6, 7};

static torus_status_t make(int rank, const int64_t *parts, const int *placement,
                           torus_sharding_t **out) {
  torus_sharding_layout_t layout = {DEVICE_COUNT, all, rank, parts, placement};
  return torus_sharding_create(&layout, out);
}

static torus_sharding_t *rows(void) {
  torus_sharding_t *sharding;
  torus_status_ignore(make(2, (int64_t[]){8, 1}, NULL, &sharding));
  return sharding;
}

/* ---- shardings ---- */

static void refuses(torus_sharding_layout_t layout, const char *part) {
  torus_sharding_t *sharding;
  ASSERT_STATUS(torus_sharding_create(&layout, &sharding), TORUS_STATUS_INVALID_ARGUMENT, part);
  ASSERT_TRUE(sharding == NULL);
}

TEST(sharding_refuses_what_cannot_be) {
  const int twice[2] = {1, 1}, wrong[2] = {0, 2};
  refuses((torus_sharding_layout_t){0, all, 0, NULL, NULL}, "no devices");
  refuses((torus_sharding_layout_t){8, all, 1, (int64_t[]){9}, NULL}, "cannot hold");
  refuses((torus_sharding_layout_t){8, all, 1, (int64_t[]){0}, NULL}, "cannot hold");
  refuses((torus_sharding_layout_t){8, all, 2, (int64_t[]){4, 4}, NULL}, "more pieces");
  refuses((torus_sharding_layout_t){8, all, 1, (int64_t[]){3}, NULL}, "do not divide");
  refuses((torus_sharding_layout_t){2, twice, 1, (int64_t[]){2}, NULL}, "listed twice");
  refuses((torus_sharding_layout_t){2, all, 1, (int64_t[]){2}, twice}, "on one partition");
  refuses((torus_sharding_layout_t){2, all, 1, (int64_t[]){2}, wrong}, "does not exist");
}

static void has_text(const int64_t *parts, const int *placement, const char *text) {
  torus_sharding_t *sharding;
  ASSERT_OK(make(2, parts, placement, &sharding));
  char *own = torus_sharding_text(sharding);
  torus_sharding_release(sharding);
  ASSERT_STR_EQ(own, text);
  torus_free(own);
}

TEST(sharding_has_the_compilers_spelling) {
  const int swapped[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  has_text((int64_t[]){1, 1}, NULL, "{replicated}");
  has_text((int64_t[]){8, 1}, NULL, "{devices=[8,1]0,1,2,3,4,5,6,7}");
  has_text((int64_t[]){2, 4}, swapped, "{devices=[2,4]0,2,4,6,1,3,5,7}");
  has_text((int64_t[]){1, 4}, NULL, "{devices=[1,4,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}");
}

TEST(shardings_compare_by_where_things_lie) {
  const int other[8] = {1, 0, 2, 3, 4, 5, 6, 7};
  torus_sharding_t *a = rows(), *b = rows(), *c, *d, *e;
  ASSERT_OK(make(2, (int64_t[]){8, 1}, other, &c));
  ASSERT_OK(make(2, (int64_t[]){1, 1}, NULL, &d));
  ASSERT_OK(make(2, (int64_t[]){1, 1}, other, &e));
  ASSERT_TRUE(torus_sharding_equal(a, b) && torus_sharding_equal(NULL, NULL));
  ASSERT_TRUE(!torus_sharding_equal(a, c) && !torus_sharding_equal(a, NULL));
  ASSERT_TRUE(torus_sharding_equal(d, e) && torus_sharding_is_replicated(e));
  ASSERT_TRUE(!torus_sharding_is_replicated(a) && torus_sharding_shares_mesh(a, d));
  torus_sharding_t *const list[] = {a, b, c, d, e};
  for (size_t i = 0; i < 5; i++) torus_sharding_release(list[i]);
  torus_sharding_release(NULL);
}

/* ---- buffers ---- */

static float numbers[128];

static void goes_there_and_back(int rank, const int64_t *dims, const int64_t *parts,
                                const int *placement) {
  torus_sharding_t *sharding;
  torus_buffer_t *buffer, *alone;
  size_t bytes = sizeof(float);
  for (int i = 0; i < rank; i++) bytes *= (size_t)dims[i];
  ASSERT_OK(make(rank, parts, placement, &sharding));
  ASSERT_OK(torus_buffer_from_host_sharded(client, numbers, TORUS_DTYPE_F32, rank, dims, sharding,
                                           &buffer));
  ASSERT_TRUE(torus_sharding_equal(torus_buffer_sharding(buffer), sharding));
  torus_sharding_release(sharding);
  ASSERT_EQ(torus_buffer_size_bytes(buffer), bytes);
  ASSERT_OK(torus_buffer_await(buffer));
  ASSERT_TRUE(torus_buffer_is_ready(buffer));
  float back[128] = {0};
  ASSERT_OK(torus_buffer_to_host(buffer, back, bytes));
  ASSERT_EQ(memcmp(back, numbers, bytes), 0);
  ASSERT_STATUS(torus_buffer_to_host(buffer, back, bytes + 1), TORUS_STATUS_INVALID_ARGUMENT,
                "bytes");
  ASSERT_OK(torus_buffer_copy_to_device(buffer, 3, &alone));
  memset(back, 0, sizeof back);
  ASSERT_OK(torus_buffer_to_host(alone, back, bytes));
  ASSERT_EQ(memcmp(back, numbers, bytes), 0);
  ASSERT_TRUE(torus_buffer_sharding(alone) == NULL);
  torus_buffer_release(alone);
  torus_buffer_release(buffer);
}

TEST(arrays_are_cut_and_put_together) {
  const int mixed[8] = {3, 1, 4, 0, 5, 2, 6, 7};
  goes_there_and_back(2, (int64_t[]){16, 8}, (int64_t[]){8, 1}, NULL);
  goes_there_and_back(2, (int64_t[]){16, 8}, (int64_t[]){2, 4}, mixed);
  goes_there_and_back(2, (int64_t[]){16, 8}, (int64_t[]){1, 4}, mixed);
  goes_there_and_back(2, (int64_t[]){16, 8}, (int64_t[]){1, 1}, NULL);
  goes_there_and_back(3, (int64_t[]){4, 4, 8}, (int64_t[]){2, 2, 2}, mixed);
  goes_there_and_back(1, (int64_t[]){13}, (int64_t[]){8}, NULL);
  goes_there_and_back(2, (int64_t[]){3, 5}, (int64_t[]){2, 4}, NULL);
  goes_there_and_back(0, NULL, NULL, NULL);
  goes_there_and_back(2, (int64_t[]){0, 5}, (int64_t[]){2, 1}, NULL);
}

TEST(arrays_are_laid_out_anew) {
  const int64_t dims[2] = {16, 8};
  torus_sharding_t *by_rows = rows(), *everywhere, *vector;
  torus_buffer_t *alone, *spread, *copies;
  ASSERT_OK(make(2, (int64_t[]){1, 1}, NULL, &everywhere));
  ASSERT_OK(make(1, (int64_t[]){8}, NULL, &vector));
  ASSERT_OK(torus_buffer_from_host(client, 2, numbers, TORUS_DTYPE_F32, 2, dims, &alone));
  ASSERT_OK(torus_buffer_lay_out(alone, by_rows, 0, &spread));
  ASSERT_OK(torus_buffer_lay_out(alone, everywhere, 0, &copies));
  float back[128] = {0};
  ASSERT_OK(torus_buffer_to_host(spread, back, sizeof back));
  ASSERT_EQ(memcmp(back, numbers, sizeof back), 0);
  memset(back, 0, sizeof back);
  ASSERT_OK(torus_buffer_to_host(copies, back, sizeof back));
  ASSERT_EQ(memcmp(back, numbers, sizeof back), 0);
  torus_buffer_t *none;
  ASSERT_STATUS(torus_buffer_lay_out(alone, vector, 0, &none), TORUS_STATUS_INVALID_ARGUMENT,
                "rank");
  torus_buffer_release(alone);
  torus_buffer_release(spread);
  torus_buffer_release(copies);
  torus_sharding_release(by_rows);
  torus_sharding_release(everywhere);
  torus_sharding_release(vector);
}

/* ---- programs ---- */

/* Sums of the columns, and %x with them added: the sums need every device's rows. */
static const char sum_text[] =
    "module @torus {\n"
    "func.func public @main(%x: tensor<16x8xf32> {mhlo.sharding = \"{devices=[8,1]<=[8]}\"},\n"
    "                       %s: tensor<f32>) -> (tensor<8xf32>, tensor<16x8xf32>) {\n"
    "  %z = stablehlo.constant dense<0.0> : tensor<f32>\n"
    "  %0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0] : "
    "(tensor<16x8xf32>, tensor<f32>) -> tensor<8xf32>\n"
    "  %1 = stablehlo.broadcast_in_dim %0, dims = [1] : (tensor<8xf32>) -> tensor<16x8xf32>\n"
    "  %2 = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<16x8xf32>\n"
    "  %3 = stablehlo.add %x, %1 : tensor<16x8xf32>\n"
    "  %4 = stablehlo.multiply %3, %2 : tensor<16x8xf32>\n"
    "  return %0, %4 : tensor<8xf32>, tensor<16x8xf32>\n"
    "}\n"
    "}\n";

static const torus_array_t sum_results[2] = {
    {TORUS_DTYPE_F32, 1, (const int64_t[]){8}}, {TORUS_DTYPE_F32, 2, (const int64_t[]){16, 8}}};

static torus_partitioning_t sum_partitioning(torus_sharding_t *const *arguments,
                                             torus_sharding_t *const *wanted) {
  return (torus_partitioning_t){.mesh = arguments[0],
                                .argument_count = 2,
                                .arguments = arguments,
                                .result_count = 2,
                                .results = sum_results,
                                .wanted = wanted};
}

static torus_status_t compile_sum(torus_sharding_t *const *arguments,
                                  torus_sharding_t *const *wanted, torus_executable_t **out) {
  torus_partitioning_t partitioning = sum_partitioning(arguments, wanted);
  return torus_executable_compile_partitioned(client, sum_text, strlen(sum_text),
                                              TORUS_EFFORT_DEFAULT, &partitioning, out);
}

static void check_results(torus_buffer_t *const results[2]) {
  float sums[8], rest[128];
  ASSERT_OK(torus_buffer_to_host(results[0], sums, sizeof sums));
  ASSERT_OK(torus_buffer_to_host(results[1], rest, sizeof rest));
  for (int c = 0; c < 8; c++) {
    float sum = 0;
    for (int r = 0; r < 16; r++) sum += numbers[r * 8 + c];
    ASSERT_FLOAT_EQ(sums[c], sum);
    for (int r = 0; r < 16; r++) ASSERT_FLOAT_EQ(rest[r * 8 + c], 2 * (numbers[r * 8 + c] + sum));
  }
}

/* With the array laid out as |sharding|, or, if that is NULL, on device 5 alone. */
static void run_sum(torus_executable_t *executable, torus_sharding_t *sharding) {
  const int64_t dims[2] = {16, 8};
  const float two = 2;
  torus_buffer_t *arguments[2], *results[2];
  if (sharding) {
    ASSERT_OK(torus_buffer_from_host_sharded(client, numbers, TORUS_DTYPE_F32, 2, dims, sharding,
                                             &arguments[0]));
  } else {
    ASSERT_OK(torus_buffer_from_host(client, 5, numbers, TORUS_DTYPE_F32, 2, dims, &arguments[0]));
  }
  ASSERT_OK(torus_buffer_from_host(client, 0, &two, TORUS_DTYPE_F32, 0, NULL, &arguments[1]));
  ASSERT_OK(torus_executable_run(executable, arguments, 2, 2, results));
  check_results(results);
  torus_buffer_release(arguments[0]);
  torus_buffer_release(arguments[1]);
  torus_buffer_release(results[0]);
  torus_buffer_release(results[1]);
}

TEST(one_run_uses_all_devices) {
  torus_sharding_t *arguments[2] = {rows(), NULL}, *nothing[2] = {NULL, NULL}, *columns;
  torus_executable_t *executable;
  ASSERT_OK(compile_sum(arguments, nothing, &executable));
  ASSERT_TRUE(torus_sharding_equal(torus_executable_argument_sharding(executable, 0),
                                   arguments[0]));
  torus_sharding_t *second = torus_executable_result_sharding(executable, 1);
  ASSERT_TRUE(second && torus_sharding_equal(second, arguments[0]));
  run_sum(executable, arguments[0]);
  ASSERT_PASSED();
  run_sum(executable, NULL);
  ASSERT_PASSED();
  ASSERT_OK(make(2, (int64_t[]){1, 8}, NULL, &columns));
  run_sum(executable, columns);
  torus_sharding_release(columns);
  torus_sharding_release(arguments[0]);
  torus_executable_release(executable);
}

TEST(results_lie_as_wanted) {
  const int mixed[8] = {3, 1, 4, 0, 5, 2, 6, 7};
  torus_sharding_t *arguments[2] = {rows(), NULL}, *wanted[2] = {NULL, NULL};
  torus_executable_t *executable;
  char text[2048];
  ASSERT_OK(make(2, (int64_t[]){2, 4}, mixed, &wanted[1]));
  char *spelling = torus_sharding_text(wanted[1]);
  const char *cut = strstr(sum_text, "tensor<16x8xf32>) {\n");
  snprintf(text, sizeof text, "%.*stensor<16x8xf32> {mhlo.sharding = \"%s\"}) {\n%s",
           (int)(cut - sum_text), sum_text, spelling, cut + strlen("tensor<16x8xf32>) {\n"));
  torus_free(spelling);
  torus_partitioning_t partitioning = sum_partitioning(arguments, wanted);
  ASSERT_OK(torus_executable_compile_partitioned(client, text, strlen(text), TORUS_EFFORT_DEFAULT,
                                                 &partitioning, &executable));
  ASSERT_TRUE(torus_sharding_equal(torus_executable_result_sharding(executable, 1), wanted[1]));
  run_sum(executable, arguments[0]);
  torus_executable_release(executable);
  torus_sharding_release(arguments[0]);
  torus_sharding_release(wanted[1]);
}

TEST(programs_are_kept_and_loaded) {
  torus_sharding_t *arguments[2] = {rows(), NULL}, *nothing[2] = {NULL, NULL};
  torus_executable_t *executable, *again;
  char *bytes;
  size_t size;
  ASSERT_OK(compile_sum(arguments, nothing, &executable));
  ASSERT_OK(torus_executable_serialize(executable, &bytes, &size));
  torus_executable_release(executable);
  torus_partitioning_t partitioning = sum_partitioning(arguments, nothing);
  ASSERT_OK(torus_executable_load_partitioned(client, bytes, size, &partitioning, &again));
  torus_free(bytes);
  run_sum(again, arguments[0]);
  torus_executable_release(again);
  torus_sharding_release(arguments[0]);
}

TEST(meshes_may_be_any_devices_in_any_order) {
  const int some[2] = {6, 3};
  torus_sharding_layout_t layout = {2, some, 2, (int64_t[]){2, 1}, NULL};
  torus_sharding_t *arguments[2] = {NULL, NULL}, *nothing[2] = {NULL, NULL};
  torus_executable_t *executable;
  char text[sizeof sum_text];
  memcpy(text, sum_text, sizeof text);
  memcpy(strstr(text, "[8,1]<=[8]"), "[2,1]<=[2]", 10);
  ASSERT_OK(torus_sharding_create(&layout, &arguments[0]));
  torus_partitioning_t partitioning = sum_partitioning(arguments, nothing);
  ASSERT_OK(torus_executable_compile_partitioned(client, text, strlen(text), TORUS_EFFORT_DEFAULT,
                                                 &partitioning, &executable));
  run_sum(executable, arguments[0]);
  torus_executable_release(executable);
  torus_sharding_release(arguments[0]);
}

TEST(different_meshes_are_refused) {
  const int some[2] = {0, 1};
  torus_sharding_layout_t layout = {2, some, 0, NULL, NULL};
  torus_sharding_t *arguments[2] = {rows(), NULL}, *nothing[2] = {NULL, NULL};
  torus_executable_t *executable;
  ASSERT_OK(torus_sharding_create(&layout, &arguments[1]));
  ASSERT_STATUS(compile_sum(arguments, nothing, &executable), TORUS_STATUS_INVALID_ARGUMENT,
                "different meshes");
  torus_sharding_release(arguments[0]);
  torus_sharding_release(arguments[1]);
}

static torus_status_t upload_and_run(void) {
  const int64_t dims[2] = {16, 8};
  torus_sharding_t *arguments[2] = {NULL, NULL}, *nothing[2] = {NULL, NULL};
  torus_executable_t *executable = NULL;
  torus_buffer_t *inputs[2] = {NULL, NULL}, *results[2] = {NULL, NULL};
  const float two = 2;
  torus_status_t status = make(2, (int64_t[]){8, 1}, NULL, &arguments[0]);
  if (!status) status = compile_sum(arguments, nothing, &executable);
  if (!status) {
    status = torus_buffer_from_host_sharded(client, numbers, TORUS_DTYPE_F32, 2, dims,
                                            arguments[0], &inputs[0]);
  }
  if (!status) {
    status = torus_buffer_from_host(client, 0, &two, TORUS_DTYPE_F32, 0, NULL, &inputs[1]);
  }
  if (!status) status = torus_executable_run(executable, inputs, 2, 2, results);
  for (int i = 0; i < 2; i++) torus_buffer_release(inputs[i]);
  for (int i = 0; i < 2; i++) torus_buffer_release(results[i]);
  torus_executable_release(executable);
  torus_sharding_release(arguments[0]);
  return status;
}

TEST(failing_allocations_are_reported) { ASSERT_SURVIVES_FAILING_ALLOCATIONS(upload_and_run()); }

int main(int argc, char **argv) {
  const char *plugin = getenv("TORUS_TEST_PLUGIN");
  if (!plugin || !strstr(plugin, "cpu")) {
    fprintf(stderr, "skipped: TORUS_TEST_PLUGIN does not name a CPU plugin\n");
    return TEST_SKIPPED;
  }
  for (int i = 0; i < 128; i++) numbers[i] = (float)(i % 17);
  torus_client_options_t options = {plugin, DEVICE_COUNT, true};
  torus_status_t status = torus_client_create(&options, &client);
  if (status) {
    fprintf(stderr, "%s\n", torus_status_message(status));
    torus_status_free(status);
    return EXIT_FAILURE;
  }
  static const test_case_t tests[] = {
      TEST_ENTRY(sharding_refuses_what_cannot_be),
      TEST_ENTRY(sharding_has_the_compilers_spelling),
      TEST_ENTRY(shardings_compare_by_where_things_lie),
      TEST_ENTRY(arrays_are_cut_and_put_together),
      TEST_ENTRY(arrays_are_laid_out_anew),
      TEST_ENTRY(one_run_uses_all_devices),
      TEST_ENTRY(results_lie_as_wanted),
      TEST_ENTRY(programs_are_kept_and_loaded),
      TEST_ENTRY(meshes_may_be_any_devices_in_any_order),
      TEST_ENTRY(different_meshes_are_refused),
      TEST_ENTRY(failing_allocations_are_reported),
  };
  int exit_code = test_run_all(tests, sizeof tests / sizeof tests[0], argc, argv);
  torus_client_destroy(client);
  return exit_code;
}
