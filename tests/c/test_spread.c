/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The engine on values that lie on several devices. */
#include "engine_fixture.h"

#include <unistd.h>

#include "torus/sharding.h"

enum { DEVICE_COUNT = 4 };

static torus_engine_t *engine; /* of the running test */
static const int all[DEVICE_COUNT] = {0, 1, 2, 3};
static float numbers[32];

static torus_sharding_t *cut(const int *devices, int64_t rows, int64_t columns) {
  torus_sharding_t *sharding;
  const torus_sharding_layout_t layout = {
      .device_count = DEVICE_COUNT, .devices = devices, .rank = 2,
      .parts = (int64_t[]){rows, columns}};
  torus_status_ignore(torus_sharding_create(&layout, &sharding));
  return sharding;
}

/* numbers[8][4] as a tensor that lies as |sharding|. */
static torus_status_t spread(torus_sharding_t *sharding, tensor_t *out_tensor) {
  const int64_t sizes[2] = {8, 4};
  torus_value_t *value;
  TORUS_TRY(tensor_empty(engine, 0, TORUS_DTYPE_F32, 2, sizes, out_tensor));
  torus_status_t status = torus_value_from_host_sharded(engine, numbers, TORUS_DTYPE_F32, 2,
                                                        sizes, sharding, &value);
  if (status) {
    tensor_free(out_tensor);
    return status;
  }
  torus_device_lock(engine, 0);
  torus_storage_set(out_tensor->storage, value);
  status = torus_device_unlock(engine, 0, TORUS_MODE_FUSED);
  torus_value_release(value);
  return status;
}

static torus_sharding_t *sharding_of(const tensor_t *t) {
  torus_sharding_t *sharding = NULL;
  torus_device_lock(engine, 0);
  torus_value_t *value = torus_storage_get(t->storage);
  torus_status_ignore(torus_device_unlock(engine, 0, TORUS_MODE_FUSED));
  torus_status_ignore(torus_value_sharding(value, &sharding));
  torus_value_release(value);
  return sharding;
}

static void lies_as(const tensor_t *t, const torus_sharding_t *expected) {
  torus_sharding_t *own = sharding_of(t);
  const bool is_equal = torus_sharding_equal(own, expected);
  torus_sharding_release(own);
  ASSERT_TRUE(is_equal);
}

TEST(computation_follows_data) {
  torus_sharding_t *rows = cut(all, 4, 1);
  tensor_t x, y;
  float back[32];
  ASSERT_OK(spread(rows, &x));
  ASSERT_OK(tensor_add(engine, TORUS_MODE_STRICT, &x, 5, &y));
  ASSERT_OK(tensor_read(engine, &y, back));
  for (int i = 0; i < 32; i++) ASSERT_FLOAT_EQ(back[i], numbers[i] + 5);
  lies_as(&y, rows);
  ASSERT_PASSED();
  ASSERT_EQ(fixture_metrics(engine).launches, 1);
  tensor_free(&x);
  tensor_free(&y);
  torus_sharding_release(rows);
}

TEST(programs_are_kept_for_each_layout) {
  torus_sharding_t *rows = cut(all, 4, 1), *columns = cut(all, 1, 4);
  torus_sharding_t *const order[4] = {rows, columns, rows, columns};
  for (int i = 0; i < 4; i++) {
    tensor_t x, y;
    ASSERT_OK(spread(order[i], &x));
    ASSERT_OK(tensor_multiply(engine, TORUS_MODE_STRICT, &x, &x, &y));
    lies_as(&y, order[i]);
    ASSERT_PASSED();
    tensor_free(&x);
    tensor_free(&y);
  }
  ASSERT_EQ(fixture_metrics(engine).compilations, 2);
  torus_sharding_release(rows);
  torus_sharding_release(columns);
}

TEST(what_is_written_stays_where_it_was) {
  torus_sharding_t *rows = cut(all, 4, 1);
  const int64_t sizes[2] = {8, 4};
  tensor_t x, y;
  float back[32];
  ASSERT_OK(spread(rows, &x));
  ASSERT_OK(tensor_from(engine, 0, TORUS_DTYPE_F32, 2, sizes, numbers, &y));
  ASSERT_OK(tensor_assign(engine, TORUS_MODE_STRICT, &x, &y));
  lies_as(&x, rows);
  ASSERT_PASSED();
  lies_as(&y, NULL);
  ASSERT_PASSED();
  ASSERT_OK(tensor_read(engine, &x, back));
  ASSERT_EQ(memcmp(back, numbers, sizeof back), 0);
  tensor_free(&x);
  tensor_free(&y);
  torus_sharding_release(rows);
}

TEST(meshes_do_not_mix) {
  const int other[DEVICE_COUNT] = {0, 2, 1, 3};
  torus_sharding_t *rows = cut(all, 4, 1), *elsewhere = cut(other, 4, 1);
  tensor_t x, y, sum;
  float back[32];
  ASSERT_OK(spread(rows, &x));
  ASSERT_OK(spread(elsewhere, &y));
  ASSERT_OK(tensor_multiply(engine, TORUS_MODE_STRICT, &x, &y, &sum));
  ASSERT_STATUS(tensor_read(engine, &sum, back), TORUS_STATUS_INVALID_ARGUMENT,
                "different meshes");
  tensor_free(&x);
  tensor_free(&y);
  tensor_free(&sum);
  torus_sharding_release(rows);
  torus_sharding_release(elsewhere);
}

TEST(values_are_laid_out_anew) {
  torus_sharding_t *rows = cut(all, 4, 1), *own;
  torus_value_t *alone, *spread_value, *again;
  float back[32];
  ASSERT_OK(torus_value_from_host(engine, 1, numbers, TORUS_DTYPE_F32, 2, (int64_t[]){8, 4},
                                  &alone));
  ASSERT_OK(torus_value_lay_out(alone, rows, 0, &spread_value));
  ASSERT_OK(torus_value_sharding(spread_value, &own));
  ASSERT_TRUE(torus_sharding_equal(own, rows));
  ASSERT_OK(torus_value_lay_out(spread_value, NULL, 3, &again));
  torus_sharding_release(own);
  ASSERT_OK(torus_value_sharding(again, &own));
  ASSERT_TRUE(own == NULL);
  ASSERT_OK(torus_value_to_host(again, back, sizeof back));
  ASSERT_EQ(memcmp(back, numbers, sizeof back), 0);
  torus_value_release(alone);
  torus_value_release(spread_value);
  torus_value_release(again);
  torus_sharding_release(rows);
}

TEST(memory_of_a_mesh_counts_together) {
  torus_device_memory_t before, after;
  torus_sharding_t *rows = cut(all, 4, 1);
  tensor_t x;
  torus_engine_memory(engine, 0, &before);
  ASSERT_OK(spread(rows, &x));
  torus_engine_memory(engine, 0, &after);
  ASSERT_EQ(after.limit_bytes, before.limit_bytes * DEVICE_COUNT);
  tensor_free(&x);
  torus_sharding_release(rows);
}

static void in_an_engine(void (*body)(void), const char *folder) {
  const torus_engine_options_t options = {
      .cache_folder = folder, .cache_limit_bytes = 1 << 26, .memory_limit_bytes = 1 << 20};
  ASSERT_OK(fixture_open(DEVICE_COUNT, &options, &engine));
  body();
  torus_engine_destroy(engine);
}

#define IN_AN_ENGINE(name)                                                                         \
  TEST(run_##name) { in_an_engine(name, NULL); }
IN_AN_ENGINE(computation_follows_data)
IN_AN_ENGINE(programs_are_kept_for_each_layout)
IN_AN_ENGINE(what_is_written_stays_where_it_was)
IN_AN_ENGINE(meshes_do_not_mix)
IN_AN_ENGINE(values_are_laid_out_anew)
IN_AN_ENGINE(memory_of_a_mesh_counts_together)

static void finds_programs(void) {
  computation_follows_data();
  ASSERT_PASSED();
  const torus_metrics_t m = fixture_metrics(engine);
  ASSERT_EQ(m.compilations + m.disk_hits, 1);
}

static int64_t disk_hits;
static void counts_disk_hits(void) {
  finds_programs();
  disk_hits = fixture_metrics(engine).disk_hits;
}

TEST(programs_are_kept_on_disk) {
  char folder[] = P_tmpdir "/torus-test-XXXXXX", command[64];
  ASSERT_TRUE(mkdtemp(folder) != NULL);
  in_an_engine(finds_programs, folder);
  ASSERT_PASSED();
  in_an_engine(counts_disk_hits, folder);
  snprintf(command, sizeof command, "rm -r %s", folder);
  ASSERT_EQ(system(command), 0);
  ASSERT_PASSED();
  ASSERT_EQ(disk_hits, 1);
}

int main(int argc, char **argv) {
  for (int i = 0; i < 32; i++) numbers[i] = (float)i;
  static const test_case_t tests[] = {
      TEST_ENTRY(run_computation_follows_data),
      TEST_ENTRY(run_programs_are_kept_for_each_layout),
      TEST_ENTRY(run_what_is_written_stays_where_it_was),
      TEST_ENTRY(run_meshes_do_not_mix),
      TEST_ENTRY(run_values_are_laid_out_anew),
      TEST_ENTRY(run_memory_of_a_mesh_counts_together),
      TEST_ENTRY(programs_are_kept_on_disk),
  };
  return fixture_main(tests, sizeof tests / sizeof tests[0], argc, argv);
}
