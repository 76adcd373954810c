/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Captures: what a run reads and writes, random numbers, refusals, failing allocations. */
#include "engine_fixture.h"

#include "torus/capture.h"

static torus_engine_t *engine; /* of the running test */

static const float numbers[4] = {1, 2, 3, 4};

static torus_status_t vector(tensor_t *out_tensor) {
  return tensor_from(engine, 0, TORUS_DTYPE_F32, 1, (int64_t[]){4}, numbers, out_tensor);
}

/* Every element must be numbers[i] + offset. */
static void check_offset(const tensor_t *t, float offset) {
  float back[4] = {0};
  ASSERT_OK(tensor_read(engine, t, back));
  for (int i = 0; i < 4; i++) ASSERT_FLOAT_EQ(back[i], numbers[i] + offset);
}

/* x += number, and y = x. */
static torus_status_t capture_add(const tensor_t *x, double number, tensor_t *y,
                                  torus_capture_t **out_capture) {
  *y = (tensor_t){0};
  TORUS_TRY(torus_capture_begin(engine, 0, 7, 0));
  torus_status_t status = tensor_add(engine, TORUS_MODE_STRICT, x, number, y);
  if (!status) status = tensor_assign(engine, TORUS_MODE_STRICT, x, y);
  if (!status) return torus_capture_end(engine, 0, out_capture);
  torus_capture_abort(engine, 0);
  return status;
}

TEST(runs_take_what_storages_hold_then) {
  tensor_t x, y;
  torus_capture_t *capture;
  ASSERT_OK(vector(&x));
  ASSERT_OK(capture_add(&x, 1, &y, &capture));
  ASSERT_EQ(torus_capture_input_count(capture), 1);
  ASSERT_EQ(torus_capture_output_count(capture), 2);
  check_offset(&x, 0);
  torus_engine_reset_metrics(engine);
  ASSERT_OK(torus_capture_replay(capture, 0, 0));
  check_offset(&x, 1);
  ASSERT_OK(torus_capture_replay(capture, 0, 0));
  ASSERT_OK(torus_capture_replay(capture, 0, 0));
  check_offset(&x, 3);
  check_offset(&y, 3);
  torus_capture_release(capture);
  tensor_free(&x);
  tensor_free(&y);
}

TEST(contents_that_others_hold_are_kept) {
  tensor_t x, y, copy;
  torus_capture_t *capture;
  ASSERT_OK(vector(&x));
  ASSERT_OK(capture_add(&x, 1, &y, &capture));
  ASSERT_OK(tensor_empty(engine, 0, TORUS_DTYPE_F32, 1, (int64_t[]){4}, &copy));
  ASSERT_OK(tensor_assign(engine, TORUS_MODE_FUSED, &copy, &x));
  ASSERT_OK(torus_capture_replay(capture, 0, 0));
  check_offset(&copy, 0);
  check_offset(&x, 1);
  torus_capture_release(capture);
  tensor_free(&x);
  tensor_free(&y);
  tensor_free(&copy);
}

TEST(waiting_is_refused_and_aborting_restores) {
  tensor_t x, y;
  float back[4];
  ASSERT_OK(vector(&x));
  ASSERT_OK(torus_capture_begin(engine, 0, 7, 0));
  ASSERT_TRUE(torus_capture_is_active(engine, 0));
  ASSERT_OK(tensor_add(engine, TORUS_MODE_DEBUG, &x, 1, &y));
  ASSERT_OK(tensor_assign(engine, TORUS_MODE_DEBUG, &x, &y));
  ASSERT_STATUS(tensor_read(engine, &x, back), TORUS_STATUS_FAILED_PRECONDITION, "captured");
  ASSERT_STATUS(torus_engine_synchronize(engine, 0), TORUS_STATUS_FAILED_PRECONDITION, "captured");
  ASSERT_STATUS(torus_capture_begin(engine, 0, 7, 0), TORUS_STATUS_FAILED_PRECONDITION, "already");
  ASSERT_STATUS(torus_storage_resize(x.storage, 64), TORUS_STATUS_FAILED_PRECONDITION, "size");
  torus_capture_abort(engine, 0);
  ASSERT_TRUE(!torus_capture_is_active(engine, 0));
  check_offset(&x, 0);
  torus_capture_t *capture;
  ASSERT_STATUS(torus_capture_end(engine, 0, &capture), TORUS_STATUS_FAILED_PRECONDITION, "no graph");
  torus_capture_abort(engine, 0);
  tensor_free(&x);
  tensor_free(&y);
}

TEST(what_dies_in_a_capture_is_no_result) {
  tensor_t x, y, z;
  torus_capture_t *capture;
  ASSERT_OK(vector(&x));
  ASSERT_OK(torus_capture_begin(engine, 0, 7, 0));
  ASSERT_OK(tensor_add(engine, TORUS_MODE_FUSED, &x, 1, &y));
  ASSERT_OK(tensor_add(engine, TORUS_MODE_FUSED, &y, 1, &z));
  tensor_free(&y);
  ASSERT_OK(torus_capture_end(engine, 0, &capture));
  ASSERT_EQ(torus_capture_output_count(capture), 1);
  tensor_free(&x); /* the capture keeps what it reads */
  ASSERT_OK(torus_capture_replay(capture, 0, 0));
  check_offset(&z, 2);
  torus_capture_release(capture);
  tensor_free(&z);
}

TEST(a_capture_of_nothing_runs_nothing) {
  torus_capture_t *capture;
  ASSERT_OK(torus_capture_begin(engine, 0, 7, 0));
  ASSERT_OK(torus_capture_end(engine, 0, &capture));
  ASSERT_EQ(torus_capture_output_count(capture), 0);
  ASSERT_OK(torus_capture_replay(capture, 0, 0));
  ASSERT_EQ(fixture_metrics(engine).launches, 0);
  torus_capture_release(capture);
}

/* ---- small captures without a program ---- */

/* x + number, for any x. */
static torus_status_t capture_joined(const tensor_t *x, double number, torus_capture_t **out_capture) {
  tensor_t y = {0};
  *out_capture = NULL;
  TORUS_TRY(torus_capture_begin(engine, 0, 7, 0));
  torus_status_t status = tensor_add(engine, TORUS_MODE_FUSED, x, number, &y);
  if (status == TORUS_OK) {
    status = torus_capture_compile(engine, 0, &y.storage, 1, NULL, 0, true, out_capture);
  } else {
    torus_capture_abort(engine, 0);
  }
  tensor_free(&y);
  return status;
}

/* x becomes the capture's result for x, |turns| times, with nothing launched in between. */
static torus_status_t join(torus_capture_t *capture, const tensor_t *x, int turns) {
  torus_status_t status = TORUS_OK;
  torus_device_lock(engine, 0);
  for (int i = 0; i < turns && !status; i++) {
    torus_capture_content_t content = {.storage = x->storage};
    torus_value_t *result;
    status = torus_capture_apply(capture, &content, 0, 0, &result);
    if (!status) torus_storage_set(x->storage, result);
    torus_value_release(result);
  }
  torus_status_t closed = torus_device_unlock(engine, 0, TORUS_MODE_FUSED);
  if (!status) return closed;
  torus_status_ignore(closed);
  return status;
}

TEST(small_captures_join_the_open_window) {
  tensor_t x, y;
  torus_capture_t *capture;
  ASSERT_OK(vector(&x));
  ASSERT_OK(capture_joined(&x, 1, &capture));
  ASSERT_TRUE(torus_capture_is_joined(capture));
  ASSERT_EQ(torus_capture_argument_count(capture), 1);
  torus_engine_reset_metrics(engine);
  ASSERT_OK(tensor_add(engine, TORUS_MODE_FUSED, &x, 10, &y));
  ASSERT_OK(join(capture, &y, 3));
  check_offset(&y, 13);
  check_offset(&x, 0);
  ASSERT_EQ(fixture_metrics(engine).launches, 1);
  ASSERT_EQ(fixture_metrics(engine).compilations, 1);
  torus_capture_release(capture);
  tensor_free(&x);
  tensor_free(&y);
}

TEST(small_captures_run_while_another_is_recorded) {
  tensor_t x;
  torus_capture_t *inner, *outer;
  ASSERT_OK(vector(&x));
  ASSERT_OK(capture_joined(&x, 1, &inner));
  ASSERT_OK(torus_capture_begin(engine, 0, 7, 0));
  ASSERT_OK(join(inner, &x, 2));
  ASSERT_OK(torus_capture_end(engine, 0, &outer));
  check_offset(&x, 0);
  ASSERT_OK(torus_capture_replay(outer, 0, 0));
  ASSERT_OK(torus_capture_replay(outer, 0, 0));
  check_offset(&x, 4);
  torus_capture_release(inner);
  torus_capture_release(outer);
  tensor_free(&x);
}

TEST(contents_of_another_size_are_refused) {
  tensor_t x, longer;
  torus_capture_t *capture;
  ASSERT_OK(vector(&x));
  ASSERT_OK(tensor_empty(engine, 0, TORUS_DTYPE_F32, 1, (int64_t[]){5}, &longer));
  ASSERT_OK(capture_joined(&x, 1, &capture));
  ASSERT_STATUS(join(capture, &longer, 1), TORUS_STATUS_INVALID_ARGUMENT, "20 bytes instead of 16");
  ASSERT_OK(join(capture, &x, 1));
  check_offset(&x, 1);
  torus_capture_release(capture);
  tensor_free(&x);
  tensor_free(&longer);
}

/* ---- memory ---- */

static torus_status_t session_on(torus_engine_t *e) {
  tensor_t x, y = {0};
  torus_capture_t *capture = NULL;
  float back[4] = {0};
  engine = e;
  TORUS_TRY(vector(&x));
  torus_status_t status = capture_add(&x, 1, &y, &capture);
  if (!status) status = torus_capture_replay(capture, 0, 0);
  if (!status) status = torus_capture_replay(capture, 0, 0);
  if (!status) status = tensor_read(e, &x, back);
  torus_capture_t *joined = NULL;
  if (!status) status = capture_joined(&x, 1, &joined);
  if (!status) status = join(joined, &x, 2);
  if (!status) status = tensor_read(e, &x, back);
  torus_capture_release(joined);
  if (!status && back[0] != 5) status = torus_status_make(TORUS_STATUS_INTERNAL, "wrong number");
  torus_status_ignore(torus_engine_synchronize(e, 0));
  torus_capture_release(capture);
  tensor_free(&x);
  tensor_free(&y);
  return status;
}

static torus_status_t session(void) {
  const torus_engine_options_t options = {0};
  torus_engine_t *e;
  TORUS_TRY(fixture_open(1, &options, &e));
  torus_status_t status = session_on(e);
  torus_engine_destroy(e);
  return status;
}

TEST(failing_allocations_are_reported) { ASSERT_SURVIVES_FAILING_ALLOCATIONS(session()); }

/* ---- each test on an engine of its own ---- */

#define CAPTURE_TESTS(X)                                                                           \
  X(runs_take_what_storages_hold_then)                                                             \
  X(contents_that_others_hold_are_kept)                                                            \
  X(waiting_is_refused_and_aborting_restores)                                                      \
  X(what_dies_in_a_capture_is_no_result)                                                           \
  X(a_capture_of_nothing_runs_nothing)                                                             \
  X(small_captures_join_the_open_window)                                                           \
  X(small_captures_run_while_another_is_recorded)                                                  \
  X(contents_of_another_size_are_refused)                                                          \
  X(failing_allocations_are_reported)

static void on_engine(void (*test)(void)) {
  const torus_engine_options_t options = {.memory_limit_bytes = 1 << 20};
  torus_engine_t *own;
  ASSERT_OK(fixture_open(1, &options, &own));
  engine = own;
  test();
  /* What a failed test still holds would be used after its engine. */
  if (!test_failed) torus_engine_destroy(own);
}

#define CAPTURE_TEST(name)                                                                         \
  static void name##_on_engine(void) { on_engine(name); }
CAPTURE_TESTS(CAPTURE_TEST)

int main(int argc, char **argv) {
#define CAPTURE_ENTRY(name) {#name, name##_on_engine},
  const test_case_t tests[] = {CAPTURE_TESTS(CAPTURE_ENTRY)};
  return fixture_main(tests, sizeof tests / sizeof tests[0], argc, argv);
}
