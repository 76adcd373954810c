/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The harness of the C tests. A test program is a list of TEST functions and a TEST_MAIN; it exits
 * with 0 when all passed, 1 when one failed, 77 when it had to skip. A test ends at its first
 * failed assertion, and must leave no block of torus_alloc behind. */
#ifndef TORUS_TESTS_TEST_H_
#define TORUS_TESTS_TEST_H_

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "torus/memory.h"
#include "torus/status.h"

#define TEST_SKIPPED 77

typedef struct test_case {
  const char *name;
  void (*run)(void);
} test_case_t;

static bool test_failed; /* of the running test */

#define TEST(name) static void name(void)
#define TEST_ENTRY(name)                                                                           \
  { #name, name }

#define TEST_FAIL(...)                                                                             \
  do {                                                                                             \
    fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                \
    fprintf(stderr, __VA_ARGS__);                                                                  \
    fprintf(stderr, "\n");                                                                         \
    test_failed = true;                                                                            \
    return;                                                                                        \
  } while (0)

/* Ends a test whose helper has failed. */
#define ASSERT_PASSED()                                                                            \
  do {                                                                                             \
    if (test_failed) return;                                                                       \
  } while (0)

#define ASSERT_TRUE(condition)                                                                     \
  do {                                                                                             \
    if (!(condition)) TEST_FAIL("not true: %s", #condition);                                       \
  } while (0)

/* For integers, enumerations and booleans. */
#define ASSERT_EQ(actual, expected)                                                                \
  do {                                                                                             \
    long long actual_ = (long long)(actual), expected_ = (long long)(expected);                    \
    if (actual_ != expected_) {                                                                    \
      TEST_FAIL("%s is %lld, not %s, which is %lld", #actual, actual_, #expected, expected_);      \
    }                                                                                              \
  } while (0)

#define ASSERT_FLOAT_EQ(actual, expected)                                                          \
  do {                                                                                             \
    double actual_ = (double)(actual), expected_ = (double)(expected);                             \
    if (!(actual_ == expected_)) {                                                                 \
      TEST_FAIL("%s is %.9g, not %s, which is %.9g", #actual, actual_, #expected, expected_);      \
    }                                                                                              \
  } while (0)

#define ASSERT_STR_EQ(actual, expected)                                                            \
  do {                                                                                             \
    const char *actual_ = (actual), *expected_ = (expected);                                       \
    if (strcmp(actual_, expected_) != 0) {                                                         \
      TEST_FAIL("%s is \"%s\", not \"%s\"", #actual, actual_, expected_);                          \
    }                                                                                              \
  } while (0)

#define ASSERT_CONTAINS(text, part)                                                                \
  do {                                                                                             \
    const char *text_ = (text), *part_ = (part);                                                   \
    if (!strstr(text_, part_)) {                                                                   \
      TEST_FAIL("%s is \"%s\", without \"%s\"", #text, text_, part_);                              \
    }                                                                                              \
  } while (0)

#define ASSERT_OK(expr)                                                                            \
  do {                                                                                             \
    torus_status_t status_ = (expr);                                                               \
    if (status_) {                                                                                 \
      fprintf(stderr, "%s: %s\n", torus_status_code_name(torus_status_code(status_)),              \
              torus_status_message(status_));                                                      \
      torus_status_free(status_);                                                                  \
      TEST_FAIL("not OK: %s", #expr);                                                              \
    }                                                                                              \
  } while (0)

/* |expr| must fail with |expected_code| and a message that contains |part|. */
#define ASSERT_STATUS(expr, expected_code, part)                                                   \
  do {                                                                                             \
    torus_status_t status_ = (expr);                                                               \
    char text_[1024];                                                                              \
    torus_status_code_t code_ = torus_status_code(status_);                                        \
    snprintf(text_, sizeof text_, "%s", torus_status_message(status_));                            \
    torus_status_free(status_);                                                                    \
    if (code_ != (expected_code) || !strstr(text_, part)) {                                        \
      TEST_FAIL("%s gives %s \"%s\", not %s \"%s\"", #expr, torus_status_code_name(code_), text_,  \
                torus_status_code_name(expected_code), part);                                      \
    }                                                                                              \
  } while (0)

/* Runs |body|, an expression of type torus_status_t, with the 1st, 2nd, ... allocation failing
 * until it succeeds undisturbed. Each failure must be RESOURCE_EXHAUSTED and leave no block. */
#define ASSERT_SURVIVES_FAILING_ALLOCATIONS(body)                                                  \
  do {                                                                                             \
    for (int64_t nth_ = 1;; nth_++) {                                                              \
      int64_t live_ = torus_memory_stats().live_count;                                             \
      torus_memory_fail_after(nth_);                                                               \
      int64_t before_ = torus_memory_stats().allocation_count;                                     \
      torus_status_t status_ = (body);                                                             \
      bool undisturbed_ = torus_memory_stats().allocation_count - before_ < nth_;                  \
      torus_memory_fail_after(0);                                                                  \
      torus_status_code_t code_ = torus_status_code(status_);                                      \
      torus_status_free(status_);                                                                  \
      ASSERT_EQ(torus_memory_stats().live_count, live_);                                           \
      if (code_ == TORUS_STATUS_OK && undisturbed_) break;                                         \
      if (code_ != TORUS_STATUS_OK) ASSERT_EQ(code_, TORUS_STATUS_RESOURCE_EXHAUSTED);             \
      ASSERT_TRUE(nth_ < 1000);                                                                    \
    }                                                                                              \
  } while (0)

static inline bool test_run(const test_case_t *test) {
  int64_t live_count = torus_memory_stats().live_count;
  test_failed = false;
  test->run();
  int64_t left = torus_memory_stats().live_count - live_count;
  if (!test_failed && left != 0) {
    fprintf(stderr, "%s leaves %lld blocks\n", test->name, (long long)left);
    test_failed = true;
  }
  fprintf(stderr, "%s %s\n", test_failed ? "FAILED" : "passed", test->name);
  return !test_failed;
}

/* Runs all tests, or the one whose name is the program's argument. */
static inline int test_run_all(const test_case_t *tests, size_t count, int argc, char **argv) {
  size_t failed = 0, run = 0;
  for (size_t i = 0; i < count; i++) {
    if (argc > 1 && strcmp(argv[1], tests[i].name) != 0) continue;
    run++;
    if (!test_run(&tests[i])) failed++;
  }
  fprintf(stderr, "%zu of %zu tests failed\n", failed, run);
  return failed || !run ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif /* TORUS_TESTS_TEST_H_ */
