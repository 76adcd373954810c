/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Status, memory, texts, hashes, threads and element types. */
#include "test.h"

#include "base/hash.h"
#include "base/strbuf.h"
#include "base/thread.h"
#include "torus/dtype.h"

/* ---- status ---- */

TEST(status_carries_code_and_message) {
  torus_status_t status = torus_status_make(TORUS_STATUS_NOT_FOUND, "no %s number %d", "file", 7);
  ASSERT_EQ(torus_status_code(status), TORUS_STATUS_NOT_FOUND);
  ASSERT_STR_EQ(torus_status_message(status), "no file number 7");
  status = torus_status_annotate(status, "reading %d", 3);
  ASSERT_STR_EQ(torus_status_message(status), "reading 3: no file number 7");
  torus_status_t copy = torus_status_clone(status);
  torus_status_free(status);
  ASSERT_EQ(torus_status_code(copy), TORUS_STATUS_NOT_FOUND);
  ASSERT_STR_EQ(torus_status_message(copy), "reading 3: no file number 7");
  torus_status_ignore(copy);
}

TEST(status_success_is_null) {
  ASSERT_TRUE(torus_status_make(TORUS_STATUS_OK, "unused") == TORUS_OK);
  ASSERT_TRUE(torus_status_annotate(TORUS_OK, "unused") == TORUS_OK);
  ASSERT_TRUE(torus_status_clone(TORUS_OK) == TORUS_OK);
  ASSERT_EQ(torus_status_code(TORUS_OK), TORUS_STATUS_OK);
  ASSERT_STR_EQ(torus_status_message(TORUS_OK), "");
  torus_status_free(TORUS_OK);
}

TEST(status_names_follow_the_list) {
  ASSERT_STR_EQ(torus_status_code_name(TORUS_STATUS_OK), "OK");
  ASSERT_STR_EQ(torus_status_code_name(TORUS_STATUS_UNAUTHENTICATED), "UNAUTHENTICATED");
  ASSERT_STR_EQ(torus_status_code_name((torus_status_code_t)99), "UNKNOWN");
}

TEST(status_keeps_long_messages) {
  char text[3000];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = 0;
  torus_status_t status = torus_status_make(TORUS_STATUS_ABORTED, "%s", text);
  ASSERT_EQ(strlen(torus_status_message(status)), sizeof text - 1);
  status = torus_status_annotate(status, "%s", text);
  ASSERT_EQ(strlen(torus_status_message(status)), 2 * (sizeof text - 1) + 2);
  torus_status_free(status);
}

TEST(status_needs_no_memory_to_report_its_lack) {
  torus_memory_fail_after(1);
  torus_status_t status = torus_status_make(TORUS_STATUS_ABORTED, "lost");
  ASSERT_EQ(torus_status_code(status), TORUS_STATUS_RESOURCE_EXHAUSTED);
  ASSERT_TRUE(torus_status_clone(status) == status);
  torus_status_free(status);

  status = torus_status_make(TORUS_STATUS_ABORTED, "kept");
  torus_memory_fail_after(1);
  status = torus_status_annotate(status, "prefix");
  ASSERT_STR_EQ(torus_status_message(status), "kept");
  torus_status_free(status);
}

/* ---- memory ---- */

TEST(memory_is_counted) {
  torus_memory_stats_t before = torus_memory_stats();
  char *block = torus_alloc(1000);
  for (int i = 0; i < 1000; i++) ASSERT_EQ(block[i], 0);
  ASSERT_EQ(torus_memory_stats().used_bytes, before.used_bytes + 1000);
  ASSERT_EQ(torus_memory_stats().live_count, before.live_count + 1);
  block[999] = 9;
  block = torus_realloc(block, 5000);
  ASSERT_EQ(block[999], 9);
  ASSERT_EQ(torus_memory_stats().used_bytes, before.used_bytes + 5000);
  ASSERT_TRUE(torus_memory_stats().peak_bytes >= before.used_bytes + 5000);
  torus_free(block);
  ASSERT_EQ(torus_memory_stats().used_bytes, before.used_bytes);
  ASSERT_EQ(torus_memory_stats().live_count, before.live_count);
  ASSERT_EQ(torus_memory_stats().allocation_count, before.allocation_count + 2);
}

TEST(memory_takes_edge_sizes) {
  void *a = torus_alloc(0), *b = torus_alloc(0);
  ASSERT_TRUE(a && b && a != b);
  torus_free(a);
  torus_free(b);
  torus_free(NULL);
  ASSERT_TRUE(torus_alloc(SIZE_MAX) == NULL);
  void *block;
  ASSERT_STATUS(torus_try_alloc(SIZE_MAX - 8, &block), TORUS_STATUS_RESOURCE_EXHAUSTED, "bytes");
  ASSERT_TRUE(block == NULL);
  char *text = torus_strdup("text");
  ASSERT_STR_EQ(text, "text");
  ASSERT_TRUE(torus_realloc(text, SIZE_MAX) == NULL);
  ASSERT_STR_EQ(text, "text");
  torus_free(text);
}

TEST(memory_fails_on_demand) {
  torus_memory_fail_after(2);
  void *first = torus_alloc(8);
  ASSERT_TRUE(first != NULL);
  ASSERT_TRUE(torus_realloc(first, 16) == NULL);
  void *second = torus_alloc(8);
  ASSERT_TRUE(second != NULL);
  torus_memory_fail_after(1);
  torus_memory_fail_after(0);
  void *third = torus_alloc(8);
  ASSERT_TRUE(third != NULL);
  torus_free(first);
  torus_free(second);
  torus_free(third);
}

/* ---- texts ---- */

TEST(strbuf_builds_text) {
  torus_strbuf_t buf = {0};
  ASSERT_STR_EQ(torus_strbuf_text(&buf), "");
  torus_strbuf_append(&buf, "");
  torus_strbuf_append(&buf, "a");
  torus_strbuf_int(&buf, 0);
  torus_strbuf_char(&buf, ' ');
  torus_strbuf_int(&buf, INT64_MIN);
  torus_strbuf_append(&buf, " ");
  torus_strbuf_int(&buf, INT64_MAX);
  torus_strbuf_printf(&buf, "<%s|%d>", "x", -5);
  ASSERT_STR_EQ(torus_strbuf_text(&buf), "a0 -9223372036854775808 9223372036854775807<x|-5>");
  ASSERT_EQ(buf.size, strlen(buf.data));
  torus_strbuf_reset(&buf);
  ASSERT_STR_EQ(torus_strbuf_text(&buf), "");
  for (int i = 0; i < 10000; i++) torus_strbuf_int(&buf, i % 10);
  torus_strbuf_printf(&buf, "%0300d", 1);
  ASSERT_EQ(buf.size, 10300);
  ASSERT_EQ(buf.data[9999], '9');
  ASSERT_EQ(buf.data[10299], '1');
  ASSERT_OK(torus_strbuf_status(&buf));
  torus_strbuf_deinit(&buf);
}

TEST(strbuf_hands_its_text_over) {
  torus_strbuf_t buf = {0};
  ASSERT_TRUE(torus_strbuf_take(&buf) == NULL);
  torus_strbuf_append(&buf, "text");
  char *text = torus_strbuf_take(&buf);
  ASSERT_STR_EQ(text, "text");
  ASSERT_STR_EQ(torus_strbuf_text(&buf), "");
  torus_strbuf_append(&buf, "lost");
  buf.failed = true;
  ASSERT_TRUE(torus_strbuf_take(&buf) == NULL);
  ASSERT_OK(torus_strbuf_status(&buf));
  torus_free(text);
}

static torus_status_t build_long_text(void) {
  torus_strbuf_t buf = {0};
  for (int i = 0; i < 100; i++) {
    torus_strbuf_append(&buf, "some text ");
    torus_strbuf_printf(&buf, "%0200d", i);
  }
  torus_status_t status = torus_strbuf_status(&buf);
  if (!status && buf.size != 100 * 210) {
    status = torus_status_make(TORUS_STATUS_INTERNAL, "%zu bytes", buf.size);
  }
  torus_strbuf_deinit(&buf);
  return status;
}

TEST(strbuf_failure_sticks) { ASSERT_SURVIVES_FAILING_ALLOCATIONS(build_long_text()); }

/* ---- hashes ---- */

TEST(hash_depends_on_every_byte) {
  unsigned char bytes[64];
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37);
  for (size_t size = 0; size <= sizeof bytes; size++) {
    uint64_t hash = torus_hash_bytes(bytes, size, 1);
    ASSERT_EQ(hash, torus_hash_bytes(bytes, size, 1));
    ASSERT_TRUE(hash != torus_hash_bytes(bytes, size, 2));
    for (size_t bit = 0; bit < size * 8; bit++) {
      bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
      uint64_t other = torus_hash_bytes(bytes, size, 1);
      bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
      int changed = __builtin_popcountll(hash ^ other);
      ASSERT_TRUE(changed >= 10 && changed <= 54);
    }
  }
}

TEST(hash_tells_lengths_and_orders_apart) {
  const char zeros[40] = {0};
  for (size_t a = 0; a < sizeof zeros; a++) {
    for (size_t b = 0; b < a; b++) {
      ASSERT_TRUE(torus_hash_bytes(zeros, a, 0) != torus_hash_bytes(zeros, b, 0));
    }
  }
  ASSERT_TRUE(torus_hash_combine(1, 2) != torus_hash_combine(2, 1));
  ASSERT_TRUE(torus_hash_combine(0, 0) != torus_hash_combine(0, 1));
}

/* ---- threads ---- */

static void *store_answer(void *context) {
  *(int *)context = 42;
  return NULL;
}

TEST(thread_runs_and_joins) {
  int answer = 0;
  pthread_t thread;
  ASSERT_OK(torus_thread_start("torus-a-rather-long-name", store_answer, &answer, &thread));
  ASSERT_EQ(pthread_join(thread, NULL), 0);
  ASSERT_EQ(answer, 42);
}

/* ---- element types ---- */

static torus_dtype_t dtype_named(const char *name) {
  for (int d = 0; d < TORUS_DTYPE_COUNT; d++) {
    if (strcmp(name, torus_dtype_name((torus_dtype_t)d)) == 0) return (torus_dtype_t)d;
  }
  return TORUS_DTYPE_INVALID;
}

/* Row by row what torch.promote_types gives for the list in dtype.h; "-" where it raises. */
static const char *const promotions[TORUS_DTYPE_COUNT] = {
    "bool uint8 int8 - int16 - int32 - int64 - - - - float16 bfloat16 float32 float64 "
    "complex64 complex128",
    "uint8 uint8 int16 - int16 - int32 - int64 - - - - float16 bfloat16 float32 float64 "
    "complex64 complex128",
    "int8 int16 int8 - int16 - int32 - int64 - - - - float16 bfloat16 float32 float64 "
    "complex64 complex128",
    "- - - uint16 - - - - - - - - - float16 bfloat16 float32 float64 - -",
    "int16 int16 int16 - int16 - int32 - int64 - - - - float16 bfloat16 float32 float64 "
    "complex64 complex128",
    "- - - - - uint32 - - - - - - - float16 bfloat16 float32 float64 - -",
    "int32 int32 int32 - int32 - int32 - int64 - - - - float16 bfloat16 float32 float64 "
    "complex64 complex128",
    "- - - - - - - uint64 - - - - - float16 bfloat16 float32 float64 - -",
    "int64 int64 int64 - int64 - int64 - int64 - - - - float16 bfloat16 float32 float64 "
    "complex64 complex128",
    "- - - - - - - - - float8_e5m2 - - - - - - - - -",
    "- - - - - - - - - - float8_e4m3fn - - - - - - - -",
    "- - - - - - - - - - - float8_e5m2fnuz - - - - - - -",
    "- - - - - - - - - - - - float8_e4m3fnuz - - - - - -",
    "float16 float16 float16 float16 float16 float16 float16 float16 float16 - - - - float16 "
    "float32 float32 float64 complex64 complex128",
    "bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 - - - - "
    "float32 bfloat16 float32 float64 complex64 complex128",
    "float32 float32 float32 float32 float32 float32 float32 float32 float32 - - - - float32 "
    "float32 float32 float64 complex64 complex128",
    "float64 float64 float64 float64 float64 float64 float64 float64 float64 - - - - float64 "
    "float64 float64 float64 complex128 complex128",
    "complex64 complex64 complex64 - complex64 - complex64 - complex64 - - - - complex64 "
    "complex64 complex64 complex128 complex64 complex128",
    "complex128 complex128 complex128 - complex128 - complex128 - complex128 - - - - "
    "complex128 complex128 complex128 complex128 complex128 complex128",
};

TEST(dtype_promotion_is_torchs) {
  for (int a = 0; a < TORUS_DTYPE_COUNT; a++) {
    char row[512];
    snprintf(row, sizeof row, "%s", promotions[a]);
    char *rest = NULL, *name = strtok_r(row, " ", &rest);
    for (int b = 0; b < TORUS_DTYPE_COUNT; b++, name = strtok_r(NULL, " ", &rest)) {
      ASSERT_TRUE(name != NULL);
      torus_dtype_t promoted = torus_dtype_promote((torus_dtype_t)a, (torus_dtype_t)b);
      ASSERT_EQ(promoted, dtype_named(name));
    }
    ASSERT_TRUE(name == NULL);
  }
}

TEST(dtype_answers_for_invalid_ones) {
  ASSERT_EQ(torus_dtype_promote(TORUS_DTYPE_INVALID, TORUS_DTYPE_F32), TORUS_DTYPE_INVALID);
  ASSERT_EQ(torus_dtype_promote(TORUS_DTYPE_F32, (torus_dtype_t)1000), TORUS_DTYPE_INVALID);
  ASSERT_EQ(torus_dtype_bytes((torus_dtype_t)1000), 0);
  ASSERT_STR_EQ(torus_dtype_name(TORUS_DTYPE_INVALID), "invalid");
}

TEST(dtype_table_follows_the_list) {
  ASSERT_STR_EQ(torus_dtype_hlo(TORUS_DTYPE_BOOL), "i1");
  ASSERT_STR_EQ(torus_dtype_hlo(TORUS_DTYPE_C64), "complex<f32>");
  ASSERT_EQ(torus_dtype_bytes(TORUS_DTYPE_C128), 16);
  ASSERT_TRUE(torus_dtype_is_integral(TORUS_DTYPE_BOOL));
  ASSERT_TRUE(torus_dtype_is_integral(TORUS_DTYPE_U64));
  ASSERT_TRUE(torus_dtype_is_float(TORUS_DTYPE_F8E5M2) && !torus_dtype_is_float(TORUS_DTYPE_C64));
  ASSERT_EQ(torus_dtype_real(TORUS_DTYPE_C64), TORUS_DTYPE_F32);
  ASSERT_EQ(torus_dtype_real(TORUS_DTYPE_C128), TORUS_DTYPE_F64);
  ASSERT_EQ(torus_dtype_real(TORUS_DTYPE_I8), TORUS_DTYPE_I8);
  ASSERT_EQ(torus_dtype_complex(TORUS_DTYPE_F64), TORUS_DTYPE_C128);
  ASSERT_EQ(torus_dtype_complex(TORUS_DTYPE_BF16), TORUS_DTYPE_C64);
  ASSERT_EQ(torus_dtype_complex(TORUS_DTYPE_C128), TORUS_DTYPE_C128);
}

int main(int argc, char **argv) {
  const test_case_t tests[] = {
      TEST_ENTRY(status_carries_code_and_message),
      TEST_ENTRY(status_success_is_null),
      TEST_ENTRY(status_names_follow_the_list),
      TEST_ENTRY(status_keeps_long_messages),
      TEST_ENTRY(status_needs_no_memory_to_report_its_lack),
      TEST_ENTRY(memory_is_counted),
      TEST_ENTRY(memory_takes_edge_sizes),
      TEST_ENTRY(memory_fails_on_demand),
      TEST_ENTRY(strbuf_builds_text),
      TEST_ENTRY(strbuf_hands_its_text_over),
      TEST_ENTRY(strbuf_failure_sticks),
      TEST_ENTRY(hash_depends_on_every_byte),
      TEST_ENTRY(hash_tells_lengths_and_orders_apart),
      TEST_ENTRY(thread_runs_and_joins),
      TEST_ENTRY(dtype_promotion_is_torchs),
      TEST_ENTRY(dtype_answers_for_invalid_ones),
      TEST_ENTRY(dtype_table_follows_the_list),
  };
  return test_run_all(tests, sizeof tests / sizeof tests[0], argc, argv);
}
