/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Values, storages, windows, programs, modes, checks, errors and threads of the engine. */
#include "engine_fixture.h"

#include <pthread.h>
#include <unistd.h>

static torus_engine_t *engine; /* of the running test */

static const float numbers[4] = {1, 2, 3, 4};

static torus_status_t vector(int device, tensor_t *out_tensor) {
  return tensor_from(engine, device, TORUS_DTYPE_F32, 1, (int64_t[]){4}, numbers, out_tensor);
}

/* The tensor must hold numbers[i] + offset. */
static void check_offset(torus_engine_t *e, const tensor_t *t, float offset) {
  float back[4] = {0};
  ASSERT_OK(tensor_read(e, t, back));
  for (int i = 0; i < 4; i++) ASSERT_FLOAT_EQ(back[i], numbers[i] + offset);
}

/* ---- values ---- */

TEST(values_of_every_type_come_back) {
  unsigned char bytes[6 * 16], back[6 * 16];
  for (int dtype = 0; dtype < TORUS_DTYPE_COUNT; dtype++) {
    const size_t size = 6 * torus_dtype_bytes((torus_dtype_t)dtype);
    torus_value_t *value;
    for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)(dtype == TORUS_DTYPE_BOOL ? i % 2 : i);
    ASSERT_OK(torus_value_from_host(engine, 0, bytes, (torus_dtype_t)dtype, 2, (int64_t[]){2, 3},
                                    &value));
    ASSERT_EQ(torus_value_size_bytes(value), size);
    ASSERT_OK(torus_value_to_host(value, back, size));
    ASSERT_EQ(memcmp(bytes, back, size), 0);
    torus_value_release(value);
  }
  const torus_metrics_t m = fixture_metrics(engine);
  ASSERT_EQ(m.transfers_to_device, TORUS_DTYPE_COUNT);
  ASSERT_EQ(m.transfers_to_host, TORUS_DTYPE_COUNT);
  ASSERT_EQ(m.bytes_to_host, m.bytes_to_device);
  ASSERT_EQ(m.launches, 0);
  torus_engine_reset_metrics(engine);
  ASSERT_EQ(fixture_metrics(engine).transfers_to_host, 0);
}

TEST(values_may_be_scalar_or_empty) {
  torus_value_t *scalar, *empty;
  float back = 0;
  ASSERT_OK(torus_value_from_host(engine, 0, &numbers[2], TORUS_DTYPE_F32, 0, NULL, &scalar));
  ASSERT_OK(torus_value_from_host(engine, 0, NULL, TORUS_DTYPE_F32, 2, (int64_t[]){3, 0}, &empty));
  ASSERT_EQ(torus_value_size_bytes(empty), 0);
  ASSERT_OK(torus_value_to_host(scalar, &back, sizeof back));
  ASSERT_FLOAT_EQ(back, 3);
  ASSERT_OK(torus_value_to_host(empty, NULL, 0));
  ASSERT_STATUS(torus_value_to_host(scalar, &back, 3), TORUS_STATUS_INVALID_ARGUMENT, "4 bytes");
  torus_value_release(torus_value_retain(scalar));
  torus_value_release(scalar);
  torus_value_release(empty);
  torus_value_release(NULL);
}

TEST(values_move_between_devices) {
  torus_value_t *here, *there;
  float back[4];
  ASSERT_OK(torus_value_from_host(engine, 0, numbers, TORUS_DTYPE_F32, 1, (int64_t[]){4}, &here));
  ASSERT_OK(torus_value_to_device(here, 1, &there));
  torus_value_release(here);
  ASSERT_OK(torus_value_to_host(there, back, sizeof back));
  ASSERT_EQ(memcmp(back, numbers, sizeof back), 0);
  ASSERT_STATUS(torus_value_to_device(there, 9, &here), TORUS_STATUS_INVALID_ARGUMENT, "");
  torus_value_release(there);
}

/* ---- storages ---- */

TEST(storages_are_counted) {
  torus_storage_t *a, *b;
  torus_device_memory_t m;
  ASSERT_OK(torus_storage_create(engine, 0, 1000, &a));
  ASSERT_OK(torus_storage_create(engine, 0, 24, &b));
  torus_storage_release(torus_storage_retain(a));
  torus_storage_release(b);
  torus_engine_memory(engine, 0, &m);
  ASSERT_EQ(m.used_bytes, 1000);
  ASSERT_EQ(m.peak_bytes, 1024);
  ASSERT_EQ(m.used_count, 1);
  ASSERT_EQ(m.total_freed_bytes, 24);
  torus_engine_reset_peak(engine, 0);
  torus_engine_reset_totals(engine, 0);
  torus_engine_memory(engine, 0, &m);
  ASSERT_EQ(m.peak_bytes, 1000);
  ASSERT_EQ(m.total_allocated_count, 0);
  torus_engine_memory(engine, 1, &m);
  ASSERT_EQ(m.used_bytes, 0);
  ASSERT_EQ(torus_storage_device(a), 0);
  torus_storage_release(a);
  torus_storage_release(NULL);
}

TEST(storages_keep_the_leading_bytes_when_resized) {
  tensor_t t;
  float back[6];
  const float longer[6] = {1, 2, 3, 4, 0, 0};
  ASSERT_OK(vector(0, &t));
  ASSERT_OK(torus_storage_resize(t.storage, 24));
  tensor_set_shape(&t, 1, (int64_t[]){6});
  ASSERT_OK(tensor_read(engine, &t, back));
  ASSERT_EQ(memcmp(back, longer, sizeof longer), 0);
  ASSERT_OK(torus_storage_resize(t.storage, 8));
  tensor_set_shape(&t, 1, (int64_t[]){2});
  ASSERT_OK(tensor_read(engine, &t, back));
  ASSERT_EQ(memcmp(back, longer, 8), 0);
  ASSERT_OK(torus_storage_resize(t.storage, 0));
  ASSERT_OK(torus_storage_resize(t.storage, 8));
  ASSERT_OK(tensor_read(engine, &t, back));
  ASSERT_FLOAT_EQ(back[0], 0);
  ASSERT_EQ(torus_storage_size_bytes(t.storage), 8);
  tensor_free(&t);
}

TEST(out_of_memory_is_reported_and_passes) {
  torus_storage_t *large, *more = NULL;
  torus_device_memory_t before, after;
  ASSERT_OK(torus_storage_create(engine, 0, 700 << 10, &large));
  torus_engine_memory(engine, 0, &before);
  ASSERT_EQ(before.limit_bytes, 1 << 20);
  torus_status_t status = torus_storage_create(engine, 0, 600 << 10, &more);
  ASSERT_TRUE(more == NULL);
  ASSERT_CONTAINS(torus_status_message(status), "600.00 KiB on tpu:0");
  ASSERT_CONTAINS(torus_status_message(status), "1.00 MiB in all");
  ASSERT_STATUS(status, TORUS_STATUS_RESOURCE_EXHAUSTED, "700.00 KiB are in use by 1 tensors");
  ASSERT_STATUS(torus_storage_create(engine, 0, SIZE_MAX / 2, &more),
                TORUS_STATUS_RESOURCE_EXHAUSTED, "out of memory");
  ASSERT_STATUS(torus_storage_resize(large, 2 << 20), TORUS_STATUS_RESOURCE_EXHAUSTED, "2.00 MiB");
  torus_engine_memory(engine, 0, &after);
  ASSERT_EQ(memcmp(&before, &after, sizeof before), 0);
  torus_storage_release(large);
  ASSERT_OK(torus_storage_create(engine, 0, 600 << 10, &more));
  torus_storage_release(more);
}

/* ---- windows ---- */

static int count_in(const char *text, const char *part) {
  int count = 0;
  for (const char *at = text; at && (at = strstr(at, part)); at += strlen(part)) count++;
  return count;
}

/* Of the program compiled last. */
static int results_of_last(void) {
  char *text = torus_engine_last_program(engine);
  const char *line = text ? strstr(text, "return ") : NULL;
  char *end = line ? strchr(line, '\n') : NULL;
  if (end) *end = 0;
  /* One comma between two results, and as many again between their types. */
  const int results = line ? count_in(line, "tensor<") : -1;
  torus_free(text);
  return results;
}

TEST(dead_values_are_no_results) {
  tensor_t x, dead, live;
  ASSERT_OK(vector(0, &x));
  ASSERT_OK(tensor_add(engine, TORUS_MODE_FUSED, &x, 1, &dead));
  ASSERT_OK(tensor_multiply(engine, TORUS_MODE_FUSED, &dead, &dead, &live));
  tensor_free(&dead);
  ASSERT_OK(torus_engine_synchronize(engine, 0));
  ASSERT_EQ(results_of_last(), 1);
  float back[4];
  ASSERT_OK(tensor_read(engine, &live, back));
  for (int i = 0; i < 4; i++) ASSERT_FLOAT_EQ(back[i], (numbers[i] + 1) * (numbers[i] + 1));
  ASSERT_EQ(fixture_metrics(engine).launches, 1);
  tensor_free(&live);
  tensor_free(&x);
}

TEST(live_values_are_results) {
  tensor_t x, y, z;
  ASSERT_OK(vector(0, &x));
  ASSERT_OK(tensor_add(engine, TORUS_MODE_FUSED, &x, 1, &y));
  ASSERT_OK(tensor_add(engine, TORUS_MODE_FUSED, &y, 1, &z));
  ASSERT_OK(torus_engine_synchronize(engine, 0));
  ASSERT_EQ(results_of_last(), 2);
  check_offset(engine, &y, 1);
  check_offset(engine, &z, 2);
  tensor_free(&x);
  tensor_free(&y);
  tensor_free(&z);
}

TEST(windows_of_nothing_run_nothing) {
  tensor_t x, y;
  ASSERT_OK(vector(0, &x));
  ASSERT_OK(tensor_add(engine, TORUS_MODE_FUSED, &x, 1, &y));
  tensor_free(&y);
  ASSERT_OK(torus_engine_synchronize(engine, 0));
  ASSERT_EQ(fixture_metrics(engine).windows, 0);
  tensor_free(&x);
}

static torus_status_t add_in_place(tensor_t *x, double number) {
  tensor_t sum;
  TORUS_TRY(tensor_add(engine, TORUS_MODE_FUSED, x, number, &sum));
  torus_status_t status = tensor_assign(engine, TORUS_MODE_FUSED, x, &sum);
  tensor_free(&sum);
  return status;
}

static int donations_of_last(void) {
  char *text = torus_engine_last_program(engine);
  const int count = count_in(text, "tf.aliasing_output");
  torus_free(text);
  return count;
}

TEST(inputs_that_nobody_sees_are_donated) {
  tensor_t x;
  ASSERT_OK(vector(0, &x));
  for (int step = 1; step <= 5; step++) {
    ASSERT_OK(add_in_place(&x, 1));
    ASSERT_OK(torus_engine_synchronize(engine, 0));
  }
  ASSERT_EQ(donations_of_last(), 1);
  ASSERT_EQ(fixture_metrics(engine).compilations, 1);
  check_offset(engine, &x, 5);
  tensor_free(&x);
}

TEST(inputs_that_somebody_sees_are_not_donated) {
  tensor_t x, old;
  ASSERT_OK(vector(0, &x));
  ASSERT_OK(tensor_empty(engine, 0, TORUS_DTYPE_F32, 1, (int64_t[]){4}, &old));
  ASSERT_OK(tensor_assign(engine, TORUS_MODE_FUSED, &old, &x));
  ASSERT_OK(add_in_place(&x, 1));
  ASSERT_OK(torus_engine_synchronize(engine, 0));
  ASSERT_EQ(donations_of_last(), 0);
  check_offset(engine, &x, 1);
  check_offset(engine, &old, 0);
  tensor_free(&x);
  tensor_free(&old);
}

TEST(numbers_are_compiled_in_once_and_then_passed) {
  tensor_t x, y;
  const int expected[6] = {1, 2, 2, 2, 2, 2};
  ASSERT_OK(vector(0, &x));
  for (int step = 0; step < 6; step++) {
    ASSERT_OK(tensor_add(engine, TORUS_MODE_FUSED, &x, step * 0.5, &y));
    check_offset(engine, &y, (float)step * 0.5f);
    ASSERT_PASSED();
    ASSERT_EQ(fixture_metrics(engine).compilations, expected[step]);
    tensor_free(&y);
  }
  ASSERT_EQ(fixture_metrics(engine).cache_hits, 4);
  tensor_free(&x);
}

/* Starts of slices are numbers too. */
TEST(offsets_of_views_are_compiled_in_once_and_then_passed) {
  tensor_t x;
  float back;
  ASSERT_OK(vector(0, &x));
  for (int i = 0; i < 4; i++) {
    tensor_t one = x;
    one.sizes[0] = 1;
    one.offset = i;
    ASSERT_OK(tensor_read(engine, &one, &back));
    ASSERT_FLOAT_EQ(back, numbers[i]);
  }
  ASSERT_TRUE(fixture_metrics(engine).compilations <= 2);
  tensor_free(&x);
}

TEST(random_numbers_need_one_program) {
  tensor_t x, y;
  float first[4], second[4];
  ASSERT_OK(vector(0, &x));
  fixture_random_offset = 0;
  for (int step = 0; step < 4; step++) {
    torus_view_t view = tensor_view(&x);
    const torus_arg_t args[4] = {arg_tensor(&view), arg_double(0), arg_double(1), {0}};
    ASSERT_OK(fixture_call(engine, 0, TORUS_MODE_FUSED, "uniform", args, 4, &y));
    ASSERT_OK(tensor_read(engine, &y, step == 0 ? first : second));
    tensor_free(&y);
  }
  ASSERT_TRUE(memcmp(first, second, sizeof first) != 0);
  ASSERT_EQ(fixture_metrics(engine).compilations, 1);
  tensor_free(&x);
}

TEST(long_windows_close_by_themselves) {
  tensor_t x, y;
  ASSERT_OK(vector(0, &x));
  for (int step = 0; step < 3000; step++) {
    ASSERT_OK(tensor_add(engine, TORUS_MODE_FUSED, &x, 1, &y));
    tensor_free(&x);
    x = y;
  }
  ASSERT_TRUE(fixture_metrics(engine).windows >= 1);
  ASSERT_TRUE(fixture_metrics(engine).compilations <= 3);
  check_offset(engine, &x, 3000);
  tensor_free(&x);
}

TEST(programs_can_be_forgotten) {
  tensor_t x, y;
  ASSERT_OK(vector(0, &x));
  for (int round = 1; round <= 2; round++) {
    ASSERT_OK(tensor_add(engine, TORUS_MODE_STRICT, &x, 1, &y));
    ASSERT_OK(torus_engine_synchronize(engine, 0));
    ASSERT_EQ(fixture_metrics(engine).compilations, round);
    torus_engine_clear_programs(engine);
    tensor_free(&y);
  }
  tensor_free(&x);
}

/* ---- modes ---- */

TEST(modes_give_the_same_numbers) {
  for (int mode = TORUS_MODE_DEBUG; mode <= TORUS_MODE_FUSED; mode++) {
    tensor_t x, y, z;
    torus_engine_reset_metrics(engine);
    ASSERT_OK(vector(0, &x));
    ASSERT_OK(tensor_add(engine, (torus_mode_t)mode, &x, 1, &y));
    ASSERT_OK(tensor_multiply(engine, (torus_mode_t)mode, &y, &x, &z));
    float back[4];
    ASSERT_OK(tensor_read(engine, &z, back));
    for (int i = 0; i < 4; i++) ASSERT_FLOAT_EQ(back[i], numbers[i] * (numbers[i] + 1));
    ASSERT_EQ(fixture_metrics(engine).windows, mode == TORUS_MODE_FUSED ? 1 : 2);
    ASSERT_EQ(fixture_metrics(engine).operators, 2);
    tensor_free(&x);
    tensor_free(&y);
    tensor_free(&z);
  }
}

/* ---- checks ---- */

static torus_status_t look_up(torus_mode_t mode, int64_t index, tensor_t *out_rows) {
  tensor_t table, indices;
  TORUS_TRY(tensor_from(engine, 0, TORUS_DTYPE_F32, 2, (int64_t[]){4, 1}, numbers, &table));
  torus_status_t status =
      tensor_from(engine, 0, TORUS_DTYPE_I64, 1, (int64_t[]){2}, (int64_t[]){1, index}, &indices);
  if (!status) {
    torus_view_t views[2] = {tensor_view(&table), tensor_view(&indices)};
    const torus_arg_t args[5] = {arg_tensor(&views[0]), arg_tensor(&views[1]), arg_int(-1)};
    status = fixture_call(engine, 0, mode, "embedding", args, 5, out_rows);
  }
  tensor_free(&table);
  tensor_free(&indices);
  return status;
}

static const char out_of_bounds[] =
    "index 5 is out of bounds for dimension 0 with size 4 (in aten::embedding)";

TEST(bad_indices_are_reported_at_the_wait_and_once) {
  tensor_t rows;
  float back[2];
  ASSERT_OK(look_up(TORUS_MODE_FUSED, 5, &rows));
  ASSERT_STATUS(tensor_read(engine, &rows, back), TORUS_STATUS_OUT_OF_RANGE, out_of_bounds);
  ASSERT_OK(tensor_read(engine, &rows, back));
  ASSERT_FLOAT_EQ(back[0], 2);
  tensor_free(&rows);
  ASSERT_OK(look_up(TORUS_MODE_STRICT, 5, &rows));
  tensor_free(&rows);
  ASSERT_STATUS(torus_engine_synchronize(engine, 0), TORUS_STATUS_OUT_OF_RANGE, out_of_bounds);
  ASSERT_OK(torus_engine_synchronize(engine, 0));
  ASSERT_STATUS(look_up(TORUS_MODE_DEBUG, 5, &rows), TORUS_STATUS_OUT_OF_RANGE, out_of_bounds);
  ASSERT_STATUS(look_up(TORUS_MODE_DEBUG, -1, &rows), TORUS_STATUS_OUT_OF_RANGE, "index -1 ");
  ASSERT_OK(look_up(TORUS_MODE_DEBUG, 3, &rows));
  ASSERT_OK(tensor_read(engine, &rows, back));
  ASSERT_FLOAT_EQ(back[1], 4);
  tensor_free(&rows);
}

/* More windows than may wait with their checks: the worker looks itself, the error is kept. */
TEST(bad_indices_are_kept_while_nobody_waits) {
  tensor_t rows;
  for (int i = 0; i < 600; i++) {
    ASSERT_OK(look_up(TORUS_MODE_STRICT, i == 3 ? 5 : 2, &rows));
    tensor_free(&rows);
  }
  ASSERT_STATUS(torus_engine_synchronize(engine, 0), TORUS_STATUS_OUT_OF_RANGE, out_of_bounds);
  ASSERT_OK(torus_engine_synchronize(engine, 0));
}

/* ---- failures ---- */

TEST(failed_programs_fail_what_depends_on_them) {
  tensor_t x, y, z, other;
  float back[4];
  ASSERT_OK(vector(0, &x));
  ASSERT_OK(tensor_add(engine, TORUS_MODE_FUSED, &x, 1, &other));
  ASSERT_OK(torus_engine_synchronize(engine, 0));
  torus_engine_set_cache_only(engine, true);
  ASSERT_OK(tensor_multiply(engine, TORUS_MODE_STRICT, &x, &x, &y));
  ASSERT_OK(tensor_add(engine, TORUS_MODE_STRICT, &y, 1, &z));
  ASSERT_STATUS(tensor_read(engine, &z, back), TORUS_STATUS_NOT_FOUND, "cache-only");
  ASSERT_STATUS(tensor_read(engine, &y, back), TORUS_STATUS_NOT_FOUND, "cache-only");
  torus_value_t *failed = torus_storage_get(y.storage), *copy;
  ASSERT_STATUS(torus_value_to_device(failed, 1, &copy), TORUS_STATUS_NOT_FOUND, "cache-only");
  torus_value_release(failed);
  torus_engine_set_cache_only(engine, false);
  ASSERT_OK(torus_engine_synchronize(engine, 0));
  check_offset(engine, &x, 0);
  check_offset(engine, &other, 1);
  tensor_free(&x);
  tensor_free(&y);
  tensor_free(&z);
  tensor_free(&other);
}

TEST(failed_programs_are_reported_by_synchronizing_once) {
  tensor_t x, y;
  ASSERT_OK(vector(0, &x));
  torus_engine_set_cache_only(engine, true);
  ASSERT_OK(tensor_add(engine, TORUS_MODE_STRICT, &x, 1, &y));
  ASSERT_STATUS(torus_engine_synchronize(engine, 0), TORUS_STATUS_NOT_FOUND, "cache-only");
  ASSERT_OK(torus_engine_synchronize(engine, 0));
  tensor_free(&y);
  ASSERT_STATUS(tensor_add(engine, TORUS_MODE_DEBUG, &x, 1, &y), TORUS_STATUS_NOT_FOUND, "");
  torus_engine_set_cache_only(engine, false);
  ASSERT_OK(tensor_add(engine, TORUS_MODE_DEBUG, &x, 1, &y));
  check_offset(engine, &y, 1);
  tensor_free(&x);
  tensor_free(&y);
}

TEST(wrong_calls_leave_the_window_as_it_was) {
  tensor_t x, y, z;
  ASSERT_OK(vector(0, &x));
  ASSERT_OK(tensor_add(engine, TORUS_MODE_FUSED, &x, 1, &y));
  tensor_t shorter = x;
  shorter.sizes[0] = 3;
  ASSERT_STATUS(tensor_multiply(engine, TORUS_MODE_FUSED, &x, &shorter, &z),
                TORUS_STATUS_INVALID_ARGUMENT, "");
  check_offset(engine, &y, 1);
  tensor_free(&x);
  tensor_free(&y);
}

TEST(shutdown_runs_what_is_queued_and_refuses_the_rest) {
  tensor_t x, y[20], late;
  ASSERT_OK(vector(0, &x));
  for (int i = 0; i < 20; i++) ASSERT_OK(tensor_add(engine, TORUS_MODE_STRICT, &x, i, &y[i]));
  torus_engine_shutdown(engine);
  torus_engine_shutdown(engine);
  for (int i = 0; i < 20; i++) check_offset(engine, &y[i], (float)i);
  ASSERT_PASSED();
  ASSERT_OK(tensor_add(engine, TORUS_MODE_FUSED, &x, 1, &late));
  float back[4];
  ASSERT_STATUS(tensor_read(engine, &late, back), TORUS_STATUS_FAILED_PRECONDITION, "shut down");
  tensor_free(&late);
  ASSERT_STATUS(tensor_add(engine, TORUS_MODE_STRICT, &x, 1, &late),
                TORUS_STATUS_FAILED_PRECONDITION, "shut down");
  for (int i = 0; i < 20; i++) tensor_free(&y[i]);
  tensor_free(&x);
}

/* ---- threads ---- */

typedef struct worker {
  pthread_t thread;
  torus_engine_t *engine;
  int device, number;
  bool is_wrong;
} worker_t;

static torus_status_t chain(const worker_t *w, int round, float *back) {
  tensor_t x, y;
  TORUS_TRY(tensor_from(w->engine, w->device, TORUS_DTYPE_F32, 1, (int64_t[]){4}, numbers, &x));
  torus_status_t status = TORUS_OK;
  for (int i = 0; i < 6 && !status; i++) {
    const torus_mode_t mode = (torus_mode_t)((round + i + w->number) % 3);
    status = tensor_add(w->engine, mode, &x, w->number, &y);
    if (status) break;
    tensor_free(&x);
    x = y;
  }
  if (!status) status = tensor_read(w->engine, &x, back);
  tensor_free(&x);
  return status;
}

static void *work(void *argument) {
  worker_t *w = argument;
  for (int round = 0; round < 30 && !w->is_wrong; round++) {
    float back[4] = {0};
    torus_status_t status = chain(w, round, back);
    w->is_wrong = status || back[3] != numbers[3] + 6 * (float)w->number;
    torus_status_ignore(status);
    if (round % 10 == 9) torus_engine_clear_programs(w->engine);
    if (round % 10 == 4) torus_status_ignore(torus_engine_synchronize(w->engine, w->device));
  }
  return NULL;
}

static void work_on(int devices) {
  worker_t workers[4] = {0};
  for (int i = 0; i < 4; i++) {
    workers[i] = (worker_t){.engine = engine, .device = i % devices, .number = i + 1};
    ASSERT_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < 4; i++) pthread_join(workers[i].thread, NULL);
  for (int i = 0; i < 4; i++) ASSERT_TRUE(!workers[i].is_wrong);
}

TEST(threads_share_a_device) { work_on(1); }
TEST(threads_use_two_devices) { work_on(2); }

/* ---- programs on disk ---- */

static char folder[256];

static torus_status_t run_with_folder(double number, torus_metrics_t *out_metrics) {
  const torus_engine_options_t options = {.cache_folder = folder, .cache_limit_bytes = 1 << 24};
  torus_engine_t *e;
  tensor_t x, y;
  float back[4];
  TORUS_TRY(fixture_open(1, &options, &e));
  TORUS_TRY(tensor_from(e, 0, TORUS_DTYPE_F32, 1, (int64_t[]){4}, numbers, &x));
  TORUS_TRY(tensor_add(e, TORUS_MODE_FUSED, &x, number, &y));
  TORUS_TRY(tensor_read(e, &y, back));
  *out_metrics = fixture_metrics(e);
  tensor_free(&x);
  tensor_free(&y);
  torus_engine_destroy(e);
  if (back[0] == 1 + (float)number) return TORUS_OK;
  return torus_status_make(TORUS_STATUS_INTERNAL, "%f is wrong", (double)back[0]);
}

static void shell(const char *format) {
  char command[600];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  snprintf(command, sizeof command, format, folder);
#pragma GCC diagnostic pop
  if (system(command) != 0) fprintf(stderr, "failed: %s\n", command);
}

TEST(programs_come_back_from_disk) {
  torus_metrics_t first, second, other, damaged, restored;
  snprintf(folder, sizeof folder, "%s/torus-engine-XXXXXX", P_tmpdir);
  ASSERT_TRUE(mkdtemp(folder) != NULL);
  ASSERT_OK(run_with_folder(1, &first));
  ASSERT_OK(run_with_folder(1, &second));
  ASSERT_OK(run_with_folder(2, &other));
  shell("for f in %s/*.program; do truncate -s -9 $f; done");
  ASSERT_OK(run_with_folder(1, &damaged));
  ASSERT_OK(run_with_folder(1, &restored));
  shell("rm -r %s");
  ASSERT_EQ(first.compilations, 1);
  ASSERT_EQ(first.disk_hits, 0);
  ASSERT_EQ(second.compilations, 0);
  ASSERT_EQ(second.disk_hits, 1);
  ASSERT_EQ(other.compilations, 1);
  ASSERT_EQ(damaged.compilations, 1);
  ASSERT_EQ(restored.disk_hits, 1);
}

/* ---- memory ---- */

static torus_status_t session_on(torus_engine_t *e) {
  tensor_t x, y = {0}, rows = {0};
  float back[4];
  engine = e;
  TORUS_TRY(vector(0, &x));
  torus_status_t status = tensor_add(e, TORUS_MODE_FUSED, &x, 1, &y);
  if (!status) status = tensor_assign(e, TORUS_MODE_STRICT, &x, &y);
  if (!status) status = look_up(TORUS_MODE_FUSED, 2, &rows);
  if (!status) status = tensor_read(e, &rows, back);
  if (!status) status = tensor_read(e, &x, back);
  if (!status) status = torus_engine_synchronize(e, 0);
  if (!status && back[0] != 2) status = torus_status_make(TORUS_STATUS_INTERNAL, "wrong number");
  tensor_free(&x);
  tensor_free(&y);
  tensor_free(&rows);
  return status;
}

/* From the plugin to the last release, so that a block left anywhere is seen. */
static torus_status_t session(void) {
  const torus_engine_options_t options = {0};
  torus_engine_t *e;
  TORUS_TRY(fixture_open(1, &options, &e));
  torus_status_t status = session_on(e);
  torus_engine_destroy(e);
  return status;
}

TEST(failing_allocations_are_reported) { ASSERT_SURVIVES_FAILING_ALLOCATIONS(session()); }

/* A failure for want of host memory passes: the same engine then works. */
TEST(failing_allocations_pass) {
  for (int64_t nth = 1; nth < 60; nth++) {
    torus_memory_fail_after(nth);
    torus_status_t status = session_on(engine);
    torus_memory_fail_after(0);
    torus_status_code_t code = torus_status_code(status);
    torus_status_free(status);
    if (code != TORUS_STATUS_OK) ASSERT_EQ(code, TORUS_STATUS_RESOURCE_EXHAUSTED);
    torus_status_ignore(torus_engine_synchronize(engine, 0));
    ASSERT_OK(session_on(engine));
  }
}

/* ---- each test on an engine of its own ---- */

#define ENGINE_TESTS(X)                                                                            \
  X(values_of_every_type_come_back)                                                                \
  X(values_may_be_scalar_or_empty)                                                                 \
  X(values_move_between_devices)                                                                   \
  X(storages_are_counted)                                                                          \
  X(storages_keep_the_leading_bytes_when_resized)                                                  \
  X(out_of_memory_is_reported_and_passes)                                                          \
  X(dead_values_are_no_results)                                                                    \
  X(live_values_are_results)                                                                       \
  X(windows_of_nothing_run_nothing)                                                                \
  X(inputs_that_nobody_sees_are_donated)                                                           \
  X(inputs_that_somebody_sees_are_not_donated)                                                     \
  X(numbers_are_compiled_in_once_and_then_passed)                                                  \
  X(offsets_of_views_are_compiled_in_once_and_then_passed)                                         \
  X(random_numbers_need_one_program)                                                               \
  X(long_windows_close_by_themselves)                                                              \
  X(programs_can_be_forgotten)                                                                     \
  X(modes_give_the_same_numbers)                                                                   \
  X(bad_indices_are_reported_at_the_wait_and_once)                                                 \
  X(bad_indices_are_kept_while_nobody_waits)                                                       \
  X(failed_programs_fail_what_depends_on_them)                                                     \
  X(failed_programs_are_reported_by_synchronizing_once)                                            \
  X(wrong_calls_leave_the_window_as_it_was)                                                        \
  X(shutdown_runs_what_is_queued_and_refuses_the_rest)                                             \
  X(threads_share_a_device)                                                                        \
  X(threads_use_two_devices)                                                                       \
  X(programs_come_back_from_disk)                                                                  \
  X(failing_allocations_are_reported)                                                              \
  X(failing_allocations_pass)

static void on_engine(void (*test)(void)) {
  const torus_engine_options_t options = {.memory_limit_bytes = 1 << 20};
  torus_engine_t *own;
  ASSERT_OK(fixture_open(2, &options, &own));
  engine = own;
  test();
  /* What a failed test still holds would be used after its engine. */
  if (!test_failed) torus_engine_destroy(own);
}

#define ENGINE_TEST(name)                                                                          \
  static void name##_on_engine(void) { on_engine(name); }
ENGINE_TESTS(ENGINE_TEST)

int main(int argc, char **argv) {
#define ENGINE_ENTRY(name) {#name, name##_on_engine},
  const test_case_t tests[] = {ENGINE_TESTS(ENGINE_ENTRY)};
  return fixture_main(tests, sizeof tests / sizeof tests[0], argc, argv);
}
