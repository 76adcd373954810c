/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Strided views: every read and write is compared with a loop over the storage's bytes. Many views
 * share one window, so that one compilation serves them all. */
#include "engine_fixture.h"

enum { BATCH = 48, MOST_BYTES = 512, MOST_ELEMENTS = 4096 };

static torus_engine_t *engine;

/* ---- random numbers that are the same in every run ---- */

static uint64_t random_state;

static int64_t pick(int64_t below) {
  random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (int64_t)(random_state >> 33) % below;
}

/* ---- a view and the bytes under it ---- */

typedef struct sample {
  tensor_t tensor;
  bool is_conj, is_neg;
  torus_dtype_t stored;           /* type of the storage's value */
  unsigned char bytes[MOST_BYTES];
  size_t byte_count;
  torus_value_t *value;           /* of a read */
} sample_t;

static torus_view_t sample_view(const sample_t *s) {
  torus_view_t view = tensor_view(&s->tensor);
  view.is_conj = s->is_conj;
  view.is_neg = s->is_neg;
  return view;
}

/* Position in the storage, in elements, of element |k| of the view. */
static int64_t position(const tensor_t *t, int64_t k) {
  int64_t at = t->offset;
  for (int d = t->rank; d-- > 0; k /= t->sizes[d]) at += k % t->sizes[d] * t->strides[d];
  return at;
}

static void print_sample(const sample_t *s) {
  const tensor_t *t = &s->tensor;
  fprintf(stderr, "%s view of %zu bytes of %s, offset %lld:", torus_dtype_name(t->dtype),
          s->byte_count, torus_dtype_name(s->stored), (long long)t->offset);
  for (int d = 0; d < t->rank; d++) {
    fprintf(stderr, " %lld/%lld", (long long)t->sizes[d], (long long)t->strides[d]);
  }
  fprintf(stderr, "\n");
}

/* Fills the storage of |s| with |count| distinct elements of |dtype| in a random shape. */
static torus_status_t fill(sample_t *s, torus_dtype_t dtype, int64_t count, bool only_bools) {
  const size_t width = torus_dtype_bytes(dtype);
  *s = (sample_t){.stored = dtype, .byte_count = (size_t)count * width};
  for (size_t i = 0; i < s->byte_count; i++) {
    s->bytes[i] = only_bools ? (unsigned char)pick(2) : (unsigned char)(i * 7 + i / 256 + 3);
  }
  int64_t sizes[3] = {1, 1, count};
  for (int d = 0; d < 2; d++) {
    for (int64_t factor = 2 + pick(4); factor > 1; factor--) {
      if (sizes[2] % factor != 0) continue;
      sizes[d] = factor;
      sizes[2] /= factor;
      break;
    }
  }
  return tensor_from(engine, 0, dtype, 3, sizes, s->bytes, &s->tensor);
}

/* ---- view operators, as PyTorch makes them ---- */

static void drop_dim(tensor_t *t, int d) {
  for (t->rank--; d < t->rank; d++) {
    t->sizes[d] = t->sizes[d + 1];
    t->strides[d] = t->strides[d + 1];
  }
}

static void add_dim(tensor_t *t, int64_t size, int64_t stride) {
  if (t->rank == FIXTURE_MAX_RANK) return;
  t->sizes[t->rank] = size;
  t->strides[t->rank++] = stride;
}

static void swap_dims(tensor_t *t, int a, int b) {
  const int64_t size = t->sizes[a], stride = t->strides[a];
  t->sizes[a] = t->sizes[b];
  t->strides[a] = t->strides[b];
  t->sizes[b] = size;
  t->strides[b] = stride;
}

static void narrow(tensor_t *t, int d, bool with_step) {
  if (t->sizes[d] == 0) return;
  const int64_t start = pick(t->sizes[d]), step = with_step ? 1 + pick(3) : 1;
  const int64_t most = (t->sizes[d] - start + step - 1) / step;
  t->offset += start * t->strides[d];
  t->sizes[d] = 1 + pick(most);
  t->strides[d] *= step;
}

static void unfold(tensor_t *t, int d) {
  if (t->sizes[d] < 2) return;
  const int64_t size = 1 + pick(t->sizes[d]), step = 1 + pick(3);
  const int64_t stride = t->strides[d];
  t->sizes[d] = (t->sizes[d] - size) / step + 1;
  t->strides[d] *= step;
  add_dim(t, size, stride);
}

static void diagonal(tensor_t *t, int a, int b) {
  if (a == b) return;
  const int64_t size = t->sizes[a] < t->sizes[b] ? t->sizes[a] : t->sizes[b];
  const int64_t stride = t->strides[a] + t->strides[b];
  drop_dim(t, a > b ? a : b);
  drop_dim(t, a > b ? b : a);
  add_dim(t, size, stride);
}

static void expand(tensor_t *t, int d, bool may_repeat) {
  if (may_repeat && t->sizes[d] == 1) {
    t->sizes[d] = 2 + pick(2);
    t->strides[d] = 0;
  } else {
    add_dim(t, 1, pick(9));
  }
}

/* Any strides at all that stay inside |count| elements. */
static void as_strided(tensor_t *t, int64_t count) {
  t->offset = pick(count);
  int64_t room = count - 1 - t->offset;
  t->rank = 0;
  for (int64_t dims = pick(4); dims > 0; dims--) {
    const int64_t stride = 1 + pick(room + 1);
    const int64_t size = 1 + pick(room / stride + 1);
    room -= (size - 1) * stride;
    add_dim(t, size, stride);
  }
}

static void transform(tensor_t *t, bool may_repeat) {
  if (t->rank == 0) return;
  const int a = (int)pick(t->rank), b = (int)pick(t->rank);
  switch (pick(7)) {
  case 0: swap_dims(t, a, b); break;
  case 1: narrow(t, a, false); break;
  case 2: narrow(t, a, true); break;
  case 3: unfold(t, a); break;
  case 4: diagonal(t, a, b); break;
  case 5: expand(t, a, may_repeat); break;
  default:
    if (t->sizes[a] == 0) break;
    t->offset += pick(t->sizes[a]) * t->strides[a];
    drop_dim(t, a);
  }
}

static void randomize(sample_t *s, bool may_repeat) {
  const int64_t count = (int64_t)(s->byte_count / torus_dtype_bytes(s->tensor.dtype));
  if (pick(4) == 0) {
    as_strided(&s->tensor, count);
    return;
  }
  for (int64_t steps = pick(6); steps > 0; steps--) transform(&s->tensor, may_repeat);
}

/* ---- reading ---- */

static void free_samples(sample_t *samples, int count) {
  for (int i = 0; i < count; i++) {
    torus_value_release(samples[i].value);
    tensor_free(&samples[i].tensor);
  }
}

static void check_read(const sample_t *s) {
  static unsigned char got[MOST_ELEMENTS * 16];
  const size_t width = torus_dtype_bytes(s->tensor.dtype);
  const int64_t count = tensor_numel(&s->tensor);
  ASSERT_TRUE(count <= MOST_ELEMENTS);
  ASSERT_OK(torus_value_to_host(s->value, got, (size_t)count * width));
  for (int64_t k = 0; k < count; k++) {
    const size_t at = (size_t)position(&s->tensor, k) * width;
    if (memcmp(got + (size_t)k * width, s->bytes + at, width) == 0) continue;
    print_sample(s);
    TEST_FAIL("element %lld was read wrongly", (long long)k);
  }
}

static void check_reads(sample_t *samples, int count) {
  torus_device_lock(engine, 0);
  for (int i = 0; i < count; i++) {
    const torus_view_t view = sample_view(&samples[i]);
    torus_status_t status = torus_view_read(engine, &view, &samples[i].value);
    if (status) {
      print_sample(&samples[i]);
      torus_status_ignore(torus_device_unlock(engine, 0, TORUS_MODE_FUSED));
      ASSERT_OK(status);
    }
  }
  ASSERT_OK(torus_device_unlock(engine, 0, TORUS_MODE_FUSED));
  for (int i = 0; i < count && !test_failed; i++) check_read(&samples[i]);
}

TEST(reads_random_views) {
  random_state = 1;
  for (int round = 0; round < 5 && !test_failed; round++) {
    sample_t samples[BATCH] = {0};
    for (int i = 0; i < BATCH; i++) {
      ASSERT_OK(fill(&samples[i], TORUS_DTYPE_I32, 12 + pick(100), false));
      randomize(&samples[i], true);
    }
    check_reads(samples, BATCH);
    free_samples(samples, BATCH);
  }
}

TEST(reads_empty_and_unwritten_views) {
  sample_t s = {.stored = TORUS_DTYPE_F32, .byte_count = 24};
  ASSERT_OK(tensor_empty(engine, 0, TORUS_DTYPE_F32, 2, (int64_t[]){2, 3}, &s.tensor));
  check_reads(&s, 1);
  torus_value_release(s.value);
  s.tensor.sizes[1] = 0;
  check_reads(&s, 1);
  free_samples(&s, 1);
}

/* ---- writing ---- */

/* Where the view overlaps itself one of the elements wins; everything else must be exact. */
static void check_written(sample_t *s, const unsigned char *update) {
  unsigned char got[MOST_BYTES];
  bool touched[MOST_BYTES] = {false}, right[MOST_BYTES] = {false};
  const size_t width = torus_dtype_bytes(s->tensor.dtype);
  tensor_t whole = {.storage = s->tensor.storage, .dtype = TORUS_DTYPE_U8};
  tensor_set_shape(&whole, 1, (int64_t[]){(int64_t)s->byte_count});
  ASSERT_OK(tensor_read(engine, &whole, got));
  for (int64_t k = 0; k < tensor_numel(&s->tensor); k++) {
    const size_t at = (size_t)position(&s->tensor, k);
    touched[at] = true;
    right[at] |= memcmp(got + at * width, update + (size_t)k * width, width) == 0;
  }
  for (size_t at = 0; at < s->byte_count / width; at++) {
    if (!touched[at]) right[at] = memcmp(got + at * width, s->bytes + at * width, width) == 0;
    if (right[at]) continue;
    print_sample(s);
    TEST_FAIL("element %zu of the storage is wrong after a write", at);
  }
}

/* Writes counted bytes through each view, all in one window. */
static void check_writes(sample_t *samples, int count, bool only_bools) {
  static unsigned char updates[BATCH][MOST_ELEMENTS * 4];
  for (int i = 0; i < count; i++) {
    const tensor_t *t = &samples[i].tensor;
    const size_t bytes = (size_t)tensor_numel(t) * torus_dtype_bytes(t->dtype);
    ASSERT_TRUE(bytes <= sizeof updates[i]);
    for (size_t b = 0; b < bytes; b++) {
      updates[i][b] = only_bools ? (unsigned char)pick(2) : (unsigned char)(b * 11 + b / 256 + 101);
    }
    tensor_t source;
    ASSERT_OK(tensor_from(engine, 0, t->dtype, t->rank, t->sizes, updates[i], &source));
    torus_status_t status = tensor_assign(engine, TORUS_MODE_FUSED, t, &source);
    tensor_free(&source);
    if (status) print_sample(&samples[i]);
    ASSERT_OK(status);
  }
  for (int i = 0; i < count && !test_failed; i++) check_written(&samples[i], updates[i]);
}

TEST(writes_random_views) {
  random_state = 2;
  for (int round = 0; round < 5 && !test_failed; round++) {
    sample_t samples[BATCH] = {0};
    for (int i = 0; i < BATCH; i++) {
      ASSERT_OK(fill(&samples[i], TORUS_DTYPE_I32, 12 + pick(100), false));
      randomize(&samples[i], false);
    }
    check_writes(samples, BATCH, false);
    free_samples(samples, BATCH);
  }
}

TEST(writes_into_storages_without_content) {
  random_state = 3;
  sample_t samples[BATCH] = {0};
  for (int i = 0; i < BATCH; i++) {
    const int64_t sizes[3] = {2 + pick(3), 1 + pick(3), 2 + pick(4)};
    samples[i].stored = TORUS_DTYPE_I32;
    ASSERT_OK(tensor_empty(engine, 0, TORUS_DTYPE_I32, 3, sizes, &samples[i].tensor));
    samples[i].byte_count = torus_storage_size_bytes(samples[i].tensor.storage);
    randomize(&samples[i], false);
  }
  check_writes(samples, BATCH, false);
  free_samples(samples, BATCH);
}

TEST(writes_refuse_repeated_elements) {
  sample_t s;
  random_state = 4;
  ASSERT_OK(fill(&s, TORUS_DTYPE_I32, 4, false));
  tensor_t source;
  ASSERT_OK(tensor_from(engine, 0, TORUS_DTYPE_I32, 1, (int64_t[]){4}, s.bytes, &source));
  tensor_set_shape(&s.tensor, 1, (int64_t[]){4});
  s.tensor.strides[0] = 0;
  ASSERT_STATUS(tensor_assign(engine, TORUS_MODE_FUSED, &s.tensor, &source),
                TORUS_STATUS_INVALID_ARGUMENT, "single memory location");
  tensor_free(&source);
  free_samples(&s, 1);
}

/* Base, alias and alias of the alias see a write through any of them. */
TEST(writes_are_seen_through_every_alias) {
  float back[6], numbers[6] = {0, 1, 2, 3, 4, 5}, two[2] = {10, 20};
  tensor_t base, source;
  ASSERT_OK(tensor_from(engine, 0, TORUS_DTYPE_F32, 2, (int64_t[]){2, 3}, numbers, &base));
  ASSERT_OK(tensor_from(engine, 0, TORUS_DTYPE_F32, 1, (int64_t[]){2}, two, &source));
  tensor_t column = base;
  column.offset = 1;
  drop_dim(&column, 1);
  ASSERT_OK(tensor_assign(engine, TORUS_MODE_FUSED, &column, &source));
  ASSERT_OK(tensor_read(engine, &base, back));
  const float expected[6] = {0, 10, 2, 3, 20, 5};
  ASSERT_EQ(memcmp(back, expected, sizeof back), 0);
  ASSERT_OK(tensor_read(engine, &column, back));
  ASSERT_EQ(memcmp(back, two, sizeof two), 0);
  tensor_free(&source);
  tensor_free(&base);
}

/* ---- other types over the same bytes ---- */

static const torus_dtype_t all_types[] = {
    TORUS_DTYPE_BOOL, TORUS_DTYPE_U8,  TORUS_DTYPE_I16, TORUS_DTYPE_U32, TORUS_DTYPE_I64,
    TORUS_DTYPE_BF16, TORUS_DTYPE_F32, TORUS_DTYPE_F64, TORUS_DTYPE_C64, TORUS_DTYPE_C128,
};
enum { TYPE_COUNT = sizeof all_types / sizeof all_types[0] };

static torus_status_t fill_for_bitcast(sample_t *s, torus_dtype_t from, torus_dtype_t to) {
  const bool has_bools = from == TORUS_DTYPE_BOOL || to == TORUS_DTYPE_BOOL;
  TORUS_TRY(fill(s, from, 96 / (int64_t)torus_dtype_bytes(from), has_bools));
  const int64_t count = 96 / (int64_t)torus_dtype_bytes(to);
  s->tensor.dtype = to;
  tensor_set_shape(&s->tensor, 2, (int64_t[]){2, count / 2});
  swap_dims(&s->tensor, 0, 1);
  narrow(&s->tensor, 0, true);
  return TORUS_OK;
}

static torus_status_t fill_pairs(sample_t *samples, torus_dtype_t from) {
  for (int i = 0; i < TYPE_COUNT; i++) {
    TORUS_TRY(fill_for_bitcast(&samples[i], from, all_types[i]));
  }
  return TORUS_OK;
}

TEST(reads_bytes_as_any_type) {
  random_state = 5;
  for (int i = 0; i < TYPE_COUNT && !test_failed; i++) {
    sample_t samples[TYPE_COUNT] = {0};
    ASSERT_OK(fill_pairs(samples, all_types[i]));
    check_reads(samples, TYPE_COUNT);
    free_samples(samples, TYPE_COUNT);
  }
}

TEST(writes_bytes_as_any_type) {
  random_state = 6;
  for (int i = 0; i < TYPE_COUNT && !test_failed; i++) {
    sample_t samples[TYPE_COUNT] = {0};
    ASSERT_OK(fill_pairs(samples, all_types[i]));
    check_writes(samples, TYPE_COUNT, true);
    free_samples(samples, TYPE_COUNT);
  }
}

/* view_as_real of a transposed complex matrix. */
TEST(reads_and_writes_complex_as_real) {
  random_state = 7;
  for (int part = 0; part < 2 && !test_failed; part++) {
    sample_t s;
    ASSERT_OK(fill(&s, TORUS_DTYPE_C64, 12, false));
    s.tensor.dtype = TORUS_DTYPE_F32;
    tensor_set_shape(&s.tensor, 3, (int64_t[]){3, 4, 2});
    swap_dims(&s.tensor, 0, 1);
    if (part == 1) {
      s.tensor.offset = 1;
      drop_dim(&s.tensor, 2);
    }
    check_reads(&s, 1);
    check_writes(&s, 1, true);
    free_samples(&s, 1);
  }
}

TEST(applies_conj_and_neg_bits) {
  const float numbers[4] = {1, 2, 3, -4};
  float back[4];
  sample_t s = {.is_conj = true, .is_neg = true};
  ASSERT_OK(tensor_from(engine, 0, TORUS_DTYPE_C64, 1, (int64_t[]){2}, numbers, &s.tensor));
  const torus_view_t view = sample_view(&s);
  torus_device_lock(engine, 0);
  ASSERT_OK(torus_view_read(engine, &view, &s.value));
  ASSERT_OK(torus_view_assign(engine, &view, s.value, 1, s.tensor.sizes, s.tensor.strides));
  ASSERT_OK(torus_device_unlock(engine, 0, TORUS_MODE_FUSED));
  ASSERT_OK(torus_value_to_host(s.value, back, sizeof back));
  const float expected[4] = {-1, 2, -3, -4};
  ASSERT_EQ(memcmp(back, expected, sizeof back), 0);
  ASSERT_OK(tensor_read(engine, &s.tensor, back));
  ASSERT_EQ(memcmp(back, numbers, sizeof back), 0);
  free_samples(&s, 1);
}

/* A write converts to the type of the view and repeats sizes 1. */
TEST(writes_convert_and_broadcast) {
  int32_t back[6];
  const float two[2] = {7.75f, -8.5f};
  tensor_t target, source;
  ASSERT_OK(tensor_empty(engine, 0, TORUS_DTYPE_I32, 2, (int64_t[]){2, 3}, &target));
  ASSERT_OK(tensor_from(engine, 0, TORUS_DTYPE_F32, 2, (int64_t[]){2, 1}, two, &source));
  ASSERT_OK(tensor_assign(engine, TORUS_MODE_FUSED, &target, &source));
  ASSERT_OK(tensor_read(engine, &target, back));
  const int32_t expected[6] = {7, 7, 7, -8, -8, -8};
  ASSERT_EQ(memcmp(back, expected, sizeof back), 0);
  tensor_free(&source);
  tensor_free(&target);
}

/* Each test gets an engine of its own, so that the harness can see what it leaves behind. */
static void (*running)(void);

static void with_engine(void) {
  const torus_engine_options_t options = {0};
  ASSERT_OK(fixture_open(1, &options, &engine));
  running();
  if (!test_failed) torus_engine_destroy(engine);
}

#define VIEW_TEST(name)                                                                            \
  static void name##_on_engine(void) {                                                             \
    running = name;                                                                                \
    with_engine();                                                                                 \
  }
#define VIEW_TESTS(X)                                                                              \
  X(reads_random_views)                                                                            \
  X(reads_empty_and_unwritten_views)                                                               \
  X(writes_random_views)                                                                           \
  X(writes_into_storages_without_content)                                                          \
  X(writes_refuse_repeated_elements)                                                               \
  X(writes_are_seen_through_every_alias)                                                           \
  X(reads_bytes_as_any_type)                                                                       \
  X(writes_bytes_as_any_type)                                                                      \
  X(reads_and_writes_complex_as_real)                                                              \
  X(applies_conj_and_neg_bits)                                                                     \
  X(writes_convert_and_broadcast)
VIEW_TESTS(VIEW_TEST)

int main(int argc, char **argv) {
#define VIEW_ENTRY(name) {#name, name##_on_engine},
  const test_case_t tests[] = {VIEW_TESTS(VIEW_ENTRY)};
  return fixture_main(tests, sizeof tests / sizeof tests[0], argc, argv);
}
