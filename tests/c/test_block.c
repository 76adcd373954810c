/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Blocks: what is taken out of a graph and put into another one is the same program there. */
#include "test.h"

#include "hlo/block.h"
#include "hlo/encode.h"

#define DIMS(...) ((const int64_t[]){__VA_ARGS__})

static bool same_key(const hlo_encoding_t *a, const hlo_encoding_t *b) {
  return a->key_bytes == b->key_bytes && memcmp(a->key, b->key, a->key_bytes) == 0;
}

/* ---- what is recorded ---- */

static hlo_t below(hlo_graph_t *g, const hlo_t *state, void *context) {
  const hlo_t *limit = context;
  return hlo_compare(g, HLO_LT, state[0], *limit);
}

static void add_one(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  (void)context;
  out_state[0] = hlo_add_f(g, state[0], 1);
}

static void count_up(hlo_graph_t *g, const hlo_t *state, hlo_t *out_state, void *context) {
  hlo_t inner = hlo_add(g, state[0], *(const hlo_t *)context);
  hlo_while(g, state, 1, below, add_one, &inner, out_state);
}

/* A loop in a loop, soft numbers, and work that no output needs. */
static void record(hlo_graph_t *g, hlo_t x, hlo_t y, hlo_t *out_outputs) {
  hlo_graph_mark(g, "first", NULL, 0);
  hlo_t limit = hlo_convert(g, hlo_reduce_all(g, HLO_REDUCE_ADD, y), TORUS_DTYPE_F32);
  hlo_negate(g, limit);
  hlo_t scaled = hlo_multiply(g, x, hlo_soft(g, TORUS_DTYPE_F32, 2.5));
  hlo_graph_mark(g, "second", NULL, 0);
  hlo_t start = hlo_const(g, TORUS_DTYPE_F32, 0), end;
  hlo_while(g, &start, 1, below, count_up, &limit, &end);
  out_outputs[0] = hlo_add(g, scaled, end);
  out_outputs[1] = y;
}

static torus_status_t make_graph(hlo_graph_t **out_graph, hlo_t *out_outputs) {
  TORUS_TRY(hlo_graph_create(out_graph));
  hlo_t unused = hlo_parameter(*out_graph, 0, TORUS_DTYPE_F32, 0, NULL);
  hlo_negate(*out_graph, unused);
  hlo_t y = hlo_parameter(*out_graph, 1, TORUS_DTYPE_I32, 1, DIMS(3));
  hlo_t x = hlo_parameter(*out_graph, 2, TORUS_DTYPE_F32, 2, DIMS(2, 2));
  record(*out_graph, x, y, out_outputs);
  return hlo_graph_take_error(*out_graph);
}

/* What is recorded, as a block that has outlived its graph. */
static torus_status_t make_block(hlo_graph_t **out_block, hlo_t *out_outputs) {
  hlo_graph_t *g;
  hlo_t outputs[2];
  TORUS_TRY(make_graph(&g, outputs));
  torus_status_t status = hlo_block_extract(g, outputs, 2, out_block, out_outputs);
  hlo_graph_destroy(g);
  return status;
}

/* ---- tests ---- */

TEST(a_block_alone_is_the_same_program) {
  hlo_graph_t *g, *block;
  hlo_t outputs[2], in_block[2];
  hlo_encoding_t whole, taken;
  ASSERT_OK(make_graph(&g, outputs));
  ASSERT_OK(hlo_block_extract(g, outputs, 2, &block, in_block));
  ASSERT_OK(hlo_encode(g, outputs, 2, &whole));
  ASSERT_OK(hlo_encode(block, in_block, 2, &taken));
  ASSERT_EQ(whole.parameter_count, 2);
  ASSERT_EQ(taken.parameter_count, 2);
  ASSERT_EQ(taken.soft_count, whole.soft_count);
  ASSERT_TRUE(hlo_graph_node_count(block) < hlo_graph_node_count(g));
  hlo_encoding_deinit(&whole);
  hlo_encoding_deinit(&taken);
  hlo_graph_destroy(g);
  hlo_graph_destroy(block);
}

/* Twice behind other nodes, against the same written there by hand. */
TEST(a_block_in_another_graph_is_what_would_be_recorded_there) {
  hlo_graph_t *g, *block, *by_hand, *joined;
  hlo_t outputs[2], in_block[2], ends[2][2];
  ASSERT_OK(make_graph(&g, outputs));
  ASSERT_OK(hlo_block_extract(g, outputs, 2, &block, in_block));
  hlo_graph_t **graphs[2] = {&by_hand, &joined};
  hlo_encoding_t encodings[2];
  for (int k = 0; k < 2; k++) {
    ASSERT_OK(hlo_graph_create(graphs[k]));
    hlo_graph_t *to = *graphs[k];
    hlo_t x = hlo_parameter(to, 0, TORUS_DTYPE_F32, 2, DIMS(2, 2));
    hlo_t y = hlo_parameter(to, 1, TORUS_DTYPE_I32, 1, DIMS(3));
    x = hlo_exp(to, hlo_multiply(to, x, hlo_soft(to, TORUS_DTYPE_F32, 7)));
    for (int turn = 0; turn < 2; turn++) {
      memcpy(ends[k], in_block, sizeof in_block);
      if (k == 0) record(to, x, y, ends[k]);
      else ASSERT_TRUE(hlo_block_append(to, block, (const hlo_t[]){y, x}, 2, ends[k], 2));
      x = hlo_tanh(to, ends[k][0]);
    }
    ASSERT_OK(hlo_graph_take_error(to));
    ASSERT_OK(hlo_encode(to, &x, 1, &encodings[k]));
  }
  ASSERT_TRUE(same_key(&encodings[0], &encodings[1]));
  ASSERT_EQ(encodings[1].soft_count, 3);
  for (int k = 0; k < 2; k++) {
    hlo_encoding_deinit(&encodings[k]);
    hlo_graph_destroy(*graphs[k]);
  }
  hlo_graph_destroy(g);
  hlo_graph_destroy(block);
}

TEST(marks_come_along) {
  hlo_graph_t *block, *to;
  hlo_t in_block[2];
  ASSERT_OK(make_block(&block, in_block));
  ASSERT_OK(hlo_graph_create(&to));
  hlo_t x = hlo_parameter(to, 0, TORUS_DTYPE_F32, 2, DIMS(2, 2));
  hlo_t y = hlo_parameter(to, 1, TORUS_DTYPE_I32, 1, DIMS(3));
  hlo_graph_mark(to, "before", NULL, 0);
  hlo_t between = hlo_negate(to, x);
  ASSERT_TRUE(hlo_block_append(to, block, (const hlo_t[]){y, x}, 2, in_block, 2));
  ASSERT_TRUE(strcmp(hlo_graph_mark_of(to, between)->name, "before") == 0);
  ASSERT_TRUE(strcmp(hlo_graph_mark_of(to, between + 1)->name, "first") == 0);
  ASSERT_TRUE(strcmp(hlo_graph_mark_of(to, in_block[0])->name, "second") == 0);
  ASSERT_EQ(in_block[1], y);
  hlo_graph_destroy(block);
  hlo_graph_destroy(to);
}

TEST(arguments_must_have_the_types_of_the_parameters) {
  hlo_graph_t *block, *to;
  hlo_t in_block[2];
  ASSERT_OK(make_block(&block, in_block));
  ASSERT_OK(hlo_graph_create(&to));
  hlo_t x = hlo_parameter(to, 0, TORUS_DTYPE_F32, 2, DIMS(2, 2));
  ASSERT_TRUE(!hlo_block_append(to, block, (const hlo_t[]){x, x}, 2, in_block, 2));
  ASSERT_STATUS(hlo_graph_take_error(to), TORUS_STATUS_INVALID_ARGUMENT, "another type");
  ASSERT_EQ(hlo_graph_node_count(to), 1);
  hlo_graph_destroy(block);
  hlo_graph_destroy(to);
}

static torus_status_t extract_and_append(hlo_graph_t *g, hlo_t *outputs, hlo_graph_t *to) {
  hlo_graph_t *block;
  hlo_t in_block[2];
  TORUS_TRY(hlo_block_extract(g, outputs, 2, &block, in_block));
  hlo_t x = hlo_parameter(to, 0, TORUS_DTYPE_F32, 2, DIMS(2, 2));
  hlo_t y = hlo_parameter(to, 1, TORUS_DTYPE_I32, 1, DIMS(3));
  hlo_block_append(to, block, (const hlo_t[]){y, x}, 2, in_block, 2);
  hlo_graph_destroy(block);
  return hlo_graph_take_error(to);
}

static torus_status_t session(void) {
  hlo_graph_t *g = NULL, *to = NULL;
  hlo_t outputs[2];
  torus_status_t status = make_graph(&g, outputs);
  if (!status) status = hlo_graph_create(&to);
  if (!status) status = extract_and_append(g, outputs, to);
  hlo_graph_destroy(g);
  hlo_graph_destroy(to);
  return status;
}

TEST(failing_allocations_are_reported) { ASSERT_SURVIVES_FAILING_ALLOCATIONS(session()); }

int main(int argc, char **argv) {
  const test_case_t tests[] = {
      TEST_ENTRY(a_block_alone_is_the_same_program),
      TEST_ENTRY(a_block_in_another_graph_is_what_would_be_recorded_there),
      TEST_ENTRY(marks_come_along),
      TEST_ENTRY(arguments_must_have_the_types_of_the_parameters),
      TEST_ENTRY(failing_allocations_are_reported),
  };
  return test_run_all(tests, sizeof tests / sizeof *tests, argc, argv);
}
