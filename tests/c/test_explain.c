/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The log, the comparison of keys, marks and places. What the engine makes of them is tested from
 * Python. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/explain.h"
#include "hlo/compare.h"
#include "test.h"
#include "torus/log.h"
#include "torus/memory.h"

/* ---- the log ---- */

static char log_text[8192];

/* What the log wrote to a file while |body| ran. */
static void capture_log(const char *categories, void (*body)(void)) {
  char path[] = "/tmp/torus-log-XXXXXX";
  const int file = mkstemp(path);
  ASSERT_TRUE(file >= 0);
  torus_log_configure(categories, path);
  body();
  torus_log_configure(NULL, NULL);
  const ssize_t size = read(file, log_text, sizeof log_text - 1);
  log_text[size > 0 ? size : 0] = '\0';
  close(file);
  unlink(path);
}

static void log_each(void) {
  torus_log(TORUS_LOG_COMPILE, "number %d", 1);
  torus_log(TORUS_LOG_WINDOW, "number %d", 2);
}

static void log_long(void) {
  char text[4096];
  memset(text, 'x', sizeof text);
  text[sizeof text - 1] = '\0';
  torus_log(TORUS_LOG_COMPILE, "%s", text);
  torus_log(TORUS_LOG_COMPILE, "next");
}

TEST(log_writes_what_is_on) {
  capture_log("compile", log_each);
  ASSERT_CONTAINS(log_text, "[torus 0.");
  ASSERT_CONTAINS(log_text, " compile] number 1\n");
  ASSERT_TRUE(strstr(log_text, "number 2") == NULL);
  capture_log("all", log_each);
  ASSERT_CONTAINS(log_text, " window] number 2\n");
  capture_log("", log_each);
  ASSERT_STR_EQ(log_text, "");
  ASSERT_TRUE(!torus_log_is_on(TORUS_LOG_COMPILE));
}

TEST(log_cuts_long_lines) {
  capture_log("compile,", log_long);
  const char *end = strchr(log_text, '\n');
  ASSERT_TRUE(end != NULL && end - log_text < 2048);
  ASSERT_CONTAINS(end, "compile] next\n");
}

/* ---- keys ---- */

typedef struct program {
  hlo_graph_t *graph;
  hlo_encoding_t encoding;
} program_t;

/* (x + x) * -x of the type, marked; with |both|, x + x is a result too. */
static program_t make_program(torus_dtype_t dtype, int64_t rows, bool both) {
  program_t p = {0};
  torus_status_t status = hlo_graph_create(&p.graph);
  if (status) abort();
  hlo_graph_mark(p.graph, "add.Tensor", NULL, 0);
  const hlo_t x = hlo_parameter(p.graph, 0, dtype, 2, (int64_t[]){rows, 8});
  const hlo_t sum = hlo_add(p.graph, x, x);
  hlo_graph_mark(p.graph, "dropout", NULL, 0);
  hlo_graph_mark(p.graph, "mul.Tensor", "code", 7);
  const hlo_t outputs[] = {hlo_multiply(p.graph, sum, hlo_negate(p.graph, x)), sum};
  status = hlo_encode(p.graph, outputs, both ? 2 : 1, &p.encoding);
  if (status) abort();
  return p;
}

static void free_program(program_t *p) {
  hlo_encoding_deinit(&p->encoding);
  hlo_graph_destroy(p->graph);
}

static hlo_difference_t compare(const program_t *a, const program_t *b) {
  hlo_difference_t d;
  hlo_key_compare(a->encoding.key, a->encoding.key_bytes, b->encoding.key, b->encoding.key_bytes, &d);
  return d;
}

TEST(keys_are_compared) {
  program_t four = make_program(TORUS_DTYPE_F32, 4, false);
  program_t seven = make_program(TORUS_DTYPE_F32, 7, false);
  program_t half = make_program(TORUS_DTYPE_F16, 4, false);
  program_t both = make_program(TORUS_DTYPE_F32, 4, true);
  char text[HLO_KEY_NODE_TEXT];
  hlo_difference_t d = compare(&four, &four);
  ASSERT_EQ(d.kind, HLO_DIFFERENCE_NONE);
  d = compare(&four, &seven);
  ASSERT_EQ(d.kind, HLO_DIFFERENCE_SIZES);
  ASSERT_EQ(d.dim, 0);
  ASSERT_EQ(d.other_count, 0);
  ASSERT_STR_EQ(hlo_key_node_text(&d.old_node, text), "parameter float32[4, 8]");
  ASSERT_STR_EQ(hlo_key_node_text(&d.new_node, text), "parameter float32[7, 8]");
  d = compare(&four, &half);
  ASSERT_EQ(d.kind, HLO_DIFFERENCE_TYPES);
  ASSERT_TRUE(!d.has_other_nodes);
  ASSERT_STR_EQ(hlo_key_node_text(&d.new_node, text), "parameter float16[4, 8]");
  d = compare(&four, &both);
  ASSERT_EQ(d.kind, HLO_DIFFERENCE_RESULTS);
  ASSERT_EQ(d.new_results, 2);
  free_program(&four);
  free_program(&seven);
  free_program(&half);
  free_program(&both);
}

/* Cut anywhere, or with any byte changed, a key is compared without reading past its end. */
TEST(spoilt_keys_are_compared) {
  program_t p = make_program(TORUS_DTYPE_F32, 4, true);
  const size_t size = p.encoding.key_bytes;
  for (size_t i = 0; i < size; ++i) {
    hlo_difference_t d;
    char *copy = malloc(size); /* of the exact size, for the address sanitizer */
    memcpy(copy, p.encoding.key, i);
    hlo_key_compare(copy, i, p.encoding.key, size, &d);
    memcpy(copy, p.encoding.key, size);
    copy[i] = (char)~copy[i];
    hlo_key_compare(p.encoding.key, size, copy, size, &d);
    hlo_key_compare(copy, size, p.encoding.key, size, &d);
    ASSERT_TRUE(d.kind != HLO_DIFFERENCE_NONE);
    free(copy);
  }
  free_program(&p);
}

/* ---- marks and places ---- */

TEST(operators_are_told) {
  program_t p = make_program(TORUS_DTYPE_F32, 4, false);
  torus_strbuf_t text = {0};
  torus_place_t first, last;
  ASSERT_EQ(torus_operators_text(p.graph, &text), 2);
  ASSERT_STR_EQ(torus_strbuf_text(&text), "add, mul");
  torus_operators_places(p.graph, &first, &last);
  ASSERT_EQ(first.instruction, 7);
  ASSERT_EQ(last.instruction, 7);
  ASSERT_STR_EQ(hlo_graph_mark_of(p.graph, 0)->name, "add.Tensor");
  ASSERT_STR_EQ(hlo_graph_mark_of(p.graph, 3)->name, "mul.Tensor");
  hlo_graph_clear(p.graph);
  torus_strbuf_reset(&text);
  ASSERT_EQ(torus_operators_text(p.graph, &text), 0);
  ASSERT_STR_EQ(torus_strbuf_text(&text), "copy");
  ASSERT_TRUE(hlo_graph_mark_of(p.graph, 0) == NULL);
  torus_strbuf_deinit(&text);
  free_program(&p);
}

static const char *name_place(torus_place_t place, int *out_line) {
  *out_line = place.instruction;
  return "train.py";
}

static torus_status_t failure(torus_place_t first, torus_place_t last) {
  return torus_status_with_places(torus_status_make(TORUS_STATUS_OUT_OF_RANGE, "bad"), first, last);
}

TEST(errors_name_their_places) {
  const torus_place_t a = {&a, 12}, b = {&b, 14}, none = {0};
  ASSERT_STATUS(failure(a, b), TORUS_STATUS_OUT_OF_RANGE, "bad");
  torus_set_place_namer(name_place);
  ASSERT_STATUS(failure(a, b), TORUS_STATUS_OUT_OF_RANGE,
                "bad (recorded at train.py:12 to train.py:14)");
  ASSERT_STATUS(failure(a, a), TORUS_STATUS_OUT_OF_RANGE, "bad (recorded at train.py:12)");
  torus_status_t status = failure(none, none);
  ASSERT_STR_EQ(torus_status_message(status), "bad");
  torus_status_free(status);
  torus_set_place_namer(NULL);
  ASSERT_OK(torus_status_with_places(TORUS_OK, a, b));
}

int main(int argc, char **argv) {
  const test_case_t tests[] = {
      TEST_ENTRY(log_writes_what_is_on),    TEST_ENTRY(log_cuts_long_lines),
      TEST_ENTRY(keys_are_compared),        TEST_ENTRY(spoilt_keys_are_compared),
      TEST_ENTRY(operators_are_told),       TEST_ENTRY(errors_name_their_places),
  };
  return test_run_all(tests, sizeof tests / sizeof tests[0], argc, argv);
}
