/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* What lowerings are given: their arguments as nodes and numbers, their results, their errors. */
#include "ops/op.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "ops/call_internal.h"

/* ---- the table ---- */

extern const torus_op_t *const __start_torus_ops[];
extern const torus_op_t *const __stop_torus_ops[];

size_t torus_op_count(void) { return (size_t)(__stop_torus_ops - __start_torus_ops); }

const torus_op_t *torus_op_at(size_t index) { return __start_torus_ops[index]; }

const torus_op_t *torus_op_find(const char *name) {
  for (size_t i = 0; i < torus_op_count(); ++i) {
    if (strcmp(torus_op_at(i)->name, name) == 0) return torus_op_at(i);
  }
  return NULL;
}

const char *torus_op_name(const torus_op_t *op) { return op->name; }

const char *torus_op_family(const torus_op_t *op) {
  const char *slash = strrchr(op->family, '/');
  return slash != NULL ? slash + 1 : op->family;
}

/* Operators in front of which a window may end: what they do outweighs a launch. */
static bool is_heavy(const char *name) {
  static const char *const heavy[] = {"mm", "addmm", "bmm", "baddbmm", "convolution_overrideable"};
  for (size_t i = 0; i < sizeof heavy / sizeof *heavy; ++i) {
    if (strcmp(name, heavy[i]) == 0) return true;
  }
  return false;
}

/* The families of matrix products and convolutions. Decompositions are always exact. */
static bool is_precise(const torus_op_t *op) {
  static const char *const files[] = {"matmul.c", "conv.c", "attention.c", "grouped.c", "rnn.c"};
  for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
    if (strcmp(torus_op_family(op), files[i]) == 0) return true;
  }
  return false;
}

torus_op_traits_t torus_op_traits(const torus_op_t *op) {
  return (torus_op_traits_t){.hash = torus_hash_bytes(op->name, strlen(op->name), 0),
                             .is_heavy = is_heavy(op->name),
                             .is_precise = is_precise(op)};
}

bool torus_op_is_random(const torus_op_t *op) { return (op->flags & TORUS_OP_RANDOM) != 0; }

/* ---- errors ---- */

void op_error(torus_call_t *call, torus_status_code_t code, const char *format, ...) {
  if (call->error != TORUS_OK) return;
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  call->error = torus_status_make(code, "%s", text);
}

void op_fallback(torus_call_t *call, const char *reason) {
  op_error(call, TORUS_STATUS_UNIMPLEMENTED, "%s", reason);
}

bool op_failed(const torus_call_t *call) {
  return call->error != TORUS_OK || hlo_graph_failed(call->graph);
}

/* ---- arguments ---- */

static const torus_arg_t *arg(const torus_call_t *call, int i) { return &call->request->args[i]; }

bool op_has(const torus_call_t *call, int i) {
  return i < call->request->arg_count && arg(call, i)->tag != TORUS_ARG_NONE;
}

static const torus_view_t *view_of(const torus_call_t *call, int i) {
  return arg(call, i)->tag == TORUS_ARG_TENSOR ? arg(call, i)->as.views : NULL;
}

static torus_dtype_t number_dtype(const torus_call_t *call, const torus_number_t *n) {
  const torus_dtype_t real = call->request->default_dtype;
  if (n->kind == TORUS_NUMBER_BOOL) return TORUS_DTYPE_BOOL;
  if (n->kind == TORUS_NUMBER_INT) return TORUS_DTYPE_I64;
  return n->kind == TORUS_NUMBER_DOUBLE ? real : torus_dtype_complex(real);
}

hlo_t op_tensor(torus_call_t *call, int i) {
  if (!op_has(call, i)) return HLO_NONE;
  if (arg(call, i)->tag == TORUS_ARG_NUMBER) {
    return op_scalar(call, i, number_dtype(call, &arg(call, i)->as.number));
  }
  return torus_view_node(call->device, view_of(call, i));
}

hlo_t op_tensor_as(torus_call_t *call, int i, torus_dtype_t dtype) {
  if (!op_has(call, i)) return HLO_NONE;
  if (arg(call, i)->tag == TORUS_ARG_NUMBER) return op_scalar(call, i, dtype);
  return hlo_convert(call->graph, op_tensor(call, i), dtype);
}

torus_dtype_t op_tensor_dtype(const torus_call_t *call, int i) {
  if (!op_has(call, i)) return TORUS_DTYPE_INVALID;
  const torus_view_t *view = view_of(call, i);
  return view != NULL ? view->dtype : number_dtype(call, &arg(call, i)->as.number);
}

int op_tensor_rank(const torus_call_t *call, int i) {
  const torus_view_t *view = op_has(call, i) ? view_of(call, i) : NULL;
  return view != NULL ? view->rank : 0;
}

int64_t op_tensor_dim(const torus_call_t *call, int i, int dim) {
  return view_of(call, i)->sizes[dim];
}

int64_t op_tensor_numel(const torus_call_t *call, int i) {
  int64_t n = 1;
  for (int d = 0; d < op_tensor_rank(call, i); ++d) n *= op_tensor_dim(call, i, d);
  return n;
}

bool op_is_contiguous(const torus_call_t *call, int i) {
  const torus_view_t *view = view_of(call, i);
  int64_t expected = 1;
  bool dense = true;
  for (int d = view->rank; d-- > 0; expected *= view->sizes[d])
    dense &= view->sizes[d] == 1 || view->strides[d] == expected;
  return dense || op_tensor_numel(call, i) == 0;
}

int op_list_size(const torus_call_t *call, int i) { return op_has(call, i) ? arg(call, i)->count : 0; }

bool op_list_has(const torus_call_t *call, int i, int k) {
  return k < op_list_size(call, i) && arg(call, i)->as.views[k].rank >= 0;
}

hlo_t op_list_tensor(torus_call_t *call, int i, int k) {
  return op_list_has(call, i, k) ? torus_view_node(call->device, &arg(call, i)->as.views[k]) : HLO_NONE;
}

torus_dtype_t op_list_dtype(const torus_call_t *call, int i, int k) {
  return op_list_has(call, i, k) ? arg(call, i)->as.views[k].dtype : TORUS_DTYPE_INVALID;
}

/* The number in a Scalar, int, float or bool argument, or in a 0-dim CPU tensor. */
static torus_number_t number_of(const torus_call_t *call, int i) {
  const torus_arg_t *a = arg(call, i);
  if (a->tag == TORUS_ARG_NUMBER) return a->as.number;
  if (a->tag == TORUS_ARG_TENSOR && a->as.views->storage == NULL) return a->as.views->number;
  return (torus_number_t){.kind = TORUS_NUMBER_INT};
}

int64_t op_int(const torus_call_t *call, int i) {
  const torus_number_t n = number_of(call, i);
  return n.kind <= TORUS_NUMBER_INT ? n.i : (int64_t)n.re;
}

double op_double(const torus_call_t *call, int i) {
  const torus_number_t n = number_of(call, i);
  return n.kind <= TORUS_NUMBER_INT ? (double)n.i : n.re;
}

bool op_bool(const torus_call_t *call, int i) { return op_double(call, i) != 0; }

int64_t op_int_or(const torus_call_t *call, int i, int64_t otherwise) {
  return op_has(call, i) ? op_int(call, i) : otherwise;
}

double op_double_or(const torus_call_t *call, int i, double otherwise) {
  return op_has(call, i) ? op_double(call, i) : otherwise;
}

bool op_bool_or(const torus_call_t *call, int i, bool otherwise) {
  return op_has(call, i) ? op_bool(call, i) : otherwise;
}

const char *op_string(const torus_call_t *call, int i) {
  return op_has(call, i) ? arg(call, i)->as.string : NULL;
}

torus_dtype_t op_dtype_or(const torus_call_t *call, int i, torus_dtype_t otherwise) {
  return op_has(call, i) ? arg(call, i)->as.dtype : otherwise;
}

const int64_t *op_ints(const torus_call_t *call, int i, int *out_count) {
  *out_count = op_has(call, i) ? arg(call, i)->count : 0;
  return *out_count > 0 ? arg(call, i)->as.ints : NULL;
}

int64_t op_ints_at(const torus_call_t *call, int i, int k) {
  int count;
  const int64_t *ints = op_ints(call, i, &count);
  return count == 0 ? 0 : ints[k < count ? k : count - 1];
}

const double *op_doubles(const torus_call_t *call, int i, int *out_count) {
  *out_count = op_has(call, i) ? arg(call, i)->count : 0;
  return *out_count > 0 ? arg(call, i)->as.doubles : NULL;
}

const torus_number_t *op_numbers(const torus_call_t *call, int i, int *out_count) {
  *out_count = op_has(call, i) ? arg(call, i)->count : 0;
  return *out_count > 0 ? arg(call, i)->as.numbers : NULL;
}

hlo_t op_number(torus_call_t *call, const torus_number_t *n, torus_dtype_t dtype) {
  hlo_graph_t *const g = call->graph;
  const double re = n->kind <= TORUS_NUMBER_INT ? (double)n->i : n->re;
  const double im = n->kind == TORUS_NUMBER_COMPLEX ? n->im : 0;
  if (torus_dtype_is_complex(dtype)) {
    const torus_dtype_t real = torus_dtype_real(dtype);
    return hlo_complex(g, hlo_soft(g, real, re), hlo_soft(g, real, im));
  }
  if (!torus_dtype_is_integral(dtype)) return hlo_soft(g, dtype, re);
  if (dtype == TORUS_DTYPE_BOOL) return hlo_soft_int(g, dtype, re != 0);
  return hlo_soft_int(g, dtype, n->kind <= TORUS_NUMBER_INT ? n->i : (int64_t)n->re);
}

hlo_t op_scalar(torus_call_t *call, int i, torus_dtype_t dtype) {
  if (!op_has(call, i)) return HLO_NONE;
  if (arg(call, i)->tag == TORUS_ARG_TENSOR && arg(call, i)->as.views->storage != NULL) {
    return op_tensor_as(call, i, dtype);
  }
  const torus_number_t n = number_of(call, i);
  return op_number(call, &n, dtype);
}

torus_dtype_t op_number_dtype(const torus_number_t *n) {
  static const torus_dtype_t dtypes[] = {TORUS_DTYPE_BOOL, TORUS_DTYPE_I64, TORUS_DTYPE_F64,
                                         TORUS_DTYPE_C128};
  return dtypes[n->kind];
}

torus_dtype_t op_scalar_dtype(const torus_call_t *call, int i) {
  const torus_number_t n = number_of(call, i);
  return op_number_dtype(&n);
}

bool op_scalar_is(const torus_call_t *call, int i, double value) {
  if (!op_has(call, i)) return false;
  const torus_number_t n = number_of(call, i);
  if (n.kind == TORUS_NUMBER_COMPLEX && n.im != 0) return false;
  return op_double(call, i) == value;
}

/* ---- dimensions ---- */

int op_wrap_dim(torus_call_t *call, int64_t dim, int rank) {
  const int64_t range = rank == 0 ? 1 : rank;
  if (dim < -range || dim >= range) {
    op_error(call, TORUS_STATUS_OUT_OF_RANGE,
             "Dimension out of range (expected to be in range of [%lld, %lld], but got %lld)",
             (long long)-range, (long long)range - 1, (long long)dim);
    return 0;
  }
  return (int)(dim < 0 ? dim + range : dim);
}

int op_dim(torus_call_t *call, int i, int rank) { return op_wrap_dim(call, op_int(call, i), rank); }

int op_dims(torus_call_t *call, int i, int rank, int *out_dims) {
  int count;
  const int64_t *dims = op_ints(call, i, &count);
  uint64_t seen = 0;
  if (count == 0) {
    for (int d = 0; d < rank; ++d) out_dims[d] = d;
    return rank;
  }
  for (int k = 0; k < count; ++k) {
    const int d = op_wrap_dim(call, dims[k], rank);
    if (call->error != TORUS_OK) return -1;
    if (seen >> d & 1) {
      op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "dim %d appears multiple times in the list of dims", d);
      return -1;
    }
    seen |= UINT64_C(1) << d;
    out_dims[k] = d;
  }
  return rank == 0 ? 0 : count;
}

/* ---- type promotion (c10/core/ScalarType, ATen/native/TypeProperties) ---- */

static torus_dtype_t promote_known(torus_dtype_t a, torus_dtype_t b) {
  if (a == TORUS_DTYPE_INVALID) return b;
  return b == TORUS_DTYPE_INVALID ? a : torus_dtype_promote(a, b);
}

static torus_dtype_t combine_categories(torus_dtype_t higher, torus_dtype_t lower) {
  if (higher != TORUS_DTYPE_INVALID && torus_dtype_is_complex(higher)) return higher;
  if (higher != TORUS_DTYPE_INVALID && torus_dtype_is_float(higher)) {
    const bool is_complex = lower != TORUS_DTYPE_INVALID && torus_dtype_is_complex(lower);
    return is_complex ? torus_dtype_complex(higher) : higher;
  }
  const bool lower_is_wide = lower != TORUS_DTYPE_INVALID && !torus_dtype_is_integral(lower);
  if (higher == TORUS_DTYPE_BOOL || lower_is_wide) return promote_known(higher, lower);
  return higher != TORUS_DTYPE_INVALID ? higher : lower;
}

enum { CATEGORY_DIMENSIONED, CATEGORY_ZERO_DIM, CATEGORY_NUMBER, CATEGORY_COUNT };

static torus_dtype_t wrapped_dtype(const torus_call_t *call, torus_dtype_t dtype) {
  if (torus_dtype_is_complex(dtype)) return torus_dtype_complex(call->request->default_dtype);
  return torus_dtype_is_float(dtype) ? call->request->default_dtype : dtype;
}

static void add_to_category(const torus_call_t *call, int i, torus_dtype_t *categories) {
  const torus_view_t *view = view_of(call, i);
  torus_dtype_t dtype = op_tensor_dtype(call, i);
  int category = CATEGORY_NUMBER;
  if (view != NULL && !view->is_number) {
    category = view->rank > 0 ? CATEGORY_DIMENSIONED : CATEGORY_ZERO_DIM;
  } else {
    dtype = wrapped_dtype(call, dtype);
  }
  categories[category] = promote_known(categories[category], dtype);
}

torus_dtype_t op_result_type(torus_call_t *call, const int *args, int count) {
  torus_dtype_t categories[CATEGORY_COUNT] = {TORUS_DTYPE_INVALID, TORUS_DTYPE_INVALID,
                                              TORUS_DTYPE_INVALID};
  for (int k = 0; k < count; ++k) {
    if (op_has(call, args[k])) add_to_category(call, args[k], categories);
  }
  torus_dtype_t result =
      combine_categories(categories[CATEGORY_DIMENSIONED],
                         combine_categories(categories[CATEGORY_ZERO_DIM], categories[CATEGORY_NUMBER]));
  if (result == TORUS_DTYPE_INVALID) {
    op_error(call, TORUS_STATUS_INVALID_ARGUMENT, "the argument types have no common type");
  }
  return result;
}

void op_binary_operands(torus_call_t *call, int i, int j, torus_dtype_t dtype, hlo_t *out_x,
                        hlo_t *out_y) {
  const int args[2] = {i, j};
  *out_x = *out_y = HLO_NONE;
  if (dtype == TORUS_DTYPE_INVALID) dtype = op_result_type(call, args, 2);
  if (dtype == TORUS_DTYPE_INVALID) return;
  hlo_graph_t *g = call->graph;
  hlo_t x = op_tensor_as(call, i, dtype), y = op_tensor_as(call, j, dtype);
  if (x == HLO_NONE || y == HLO_NONE) return;
  int64_t a[TORUS_MAX_RANK], b[TORUS_MAX_RANK], shape[TORUS_MAX_RANK];
  const int rank_a = hlo_shape(g, x, a), rank_b = hlo_shape(g, y, b);
  const int rank = hlo_broadcast_shape(g, rank_a, a, rank_b, b, shape);
  if (rank < 0) return;
  *out_x = hlo_expand(g, x, rank, shape);
  *out_y = hlo_expand(g, y, rank, shape);
}

torus_dtype_t op_float_type(const torus_call_t *call, torus_dtype_t dtype) {
  return torus_dtype_is_integral(dtype) ? call->request->default_dtype : dtype;
}

torus_dtype_t op_accumulate_type(torus_dtype_t dtype) {
  return torus_dtype_is_float(dtype) && torus_dtype_bytes(dtype) < 4 ? TORUS_DTYPE_F32 : dtype;
}

torus_dtype_t op_default_dtype(const torus_call_t *call) { return call->request->default_dtype; }

/* ---- random numbers ---- */

void op_random(torus_call_t *call, int64_t count, hlo_t *out_seed, hlo_t *out_offset) {
  uint64_t seed = 0, offset = 0;
  call->request->reserve_random(call->request->random_context, count, &seed, &offset);
  if (call->device->capture != NULL) {
    torus_capture_random(call->device, seed, offset, out_seed, out_offset);
    return;
  }
  *out_seed = hlo_volatile_int(call->graph, TORUS_DTYPE_U64, (int64_t)seed);
  *out_offset = hlo_volatile_int(call->graph, TORUS_DTYPE_U64, (int64_t)offset);
}

/* ---- results ---- */

static bool grow(void *array, int wanted, int *capacity, size_t element_bytes) {
  void **slot = array;
  if (wanted <= *capacity) return true;
  const int bigger = wanted < 16 ? 16 : wanted * 2;
  void *block = torus_realloc(*slot, (size_t)bigger * element_bytes);
  if (block == NULL) return false;
  memset((char *)block + (size_t)*capacity * element_bytes, 0,
         (size_t)(bigger - *capacity) * element_bytes);
  *slot = block;
  *capacity = bigger;
  return true;
}

static void set_result(torus_call_t *call, int k, hlo_t x, int64_t prefix) {
  if (!grow(&call->results, k + 1, &call->result_capacity, sizeof *call->results)) {
    op_error(call, TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
    return;
  }
  for (int i = call->result_count; i < k; ++i) {
    call->results[i] = (torus_call_result_t){.node = HLO_NONE};
  }
  if (k + 1 > call->result_count) call->result_count = k + 1;
  call->results[k] = (torus_call_result_t){.node = x, .prefix = prefix, .is_set = true};
}

void op_return(torus_call_t *call, int k, hlo_t x) {
  if (x == HLO_NONE && !op_failed(call)) {
    op_error(call, TORUS_STATUS_INTERNAL, "the lowering made no result %d", k);
  }
  set_result(call, k, x, -1);
}

void op_return_none(torus_call_t *call, int k) { set_result(call, k, HLO_NONE, -1); }

void op_return_prefix(torus_call_t *call, int k, hlo_t x, int64_t size) {
  set_result(call, k, x, size);
}

void op_write_list(torus_call_t *call, int i, int k, hlo_t x) {
  if (x == HLO_NONE || op_failed(call)) return;
  if (!grow(&call->writes, call->write_count + 1, &call->write_capacity, sizeof *call->writes)) {
    op_error(call, TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
    return;
  }
  call->writes[call->write_count++] = (torus_call_write_t){.arg = i, .element = k, .node = x};
}

void op_write(torus_call_t *call, int i, hlo_t x) { op_write_list(call, i, 0, x); }

bool op_is_inplace(const torus_call_t *call) { return call->request->is_inplace; }

/* ---- checks ---- */

static void add_check(torus_call_t *call, torus_check_t check) {
  if (op_failed(call)) return;
  check.op_name = call->request->op->name;
  check.place = call->request->place;
  torus_status_t status = torus_window_add_check(call->device, &check);
  if (status != TORUS_OK && call->error == TORUS_OK) {
    call->error = status;
  } else {
    torus_status_free(status);
  }
}

void op_check(torus_call_t *call, hlo_t failed, torus_status_code_t code, const char *message) {
  add_check(call, (torus_check_t){.failed = failed, .culprit = HLO_NONE, .code = code, .format = message});
}

/* One reduction finds whether any index is bad and which: as unsigned distance from |low|, the
 * indices below it are the largest of all. */
static void add_index_check(torus_call_t *call, hlo_t index, int64_t low, int64_t size, int dim) {
  hlo_graph_t *g = call->graph;
  hlo_t lowest = hlo_soft_int(g, TORUS_DTYPE_I64, low);
  hlo_t distance = hlo_subtract(g, hlo_convert(g, index, TORUS_DTYPE_I64), lowest);
  distance = hlo_bitcast(g, distance, TORUS_DTYPE_U64);
  hlo_t worst = hlo_reduce_all(g, HLO_REDUCE_MAXIMUM, distance);
  hlo_t limit = hlo_soft_int(g, TORUS_DTYPE_U64, size - low);
  hlo_t culprit = hlo_add(g, hlo_bitcast(g, worst, TORUS_DTYPE_I64), lowest);
  add_check(call, (torus_check_t){
                      .failed = hlo_compare(g, HLO_GE, worst, limit),
                      .culprit = culprit,
                      .code = TORUS_STATUS_OUT_OF_RANGE,
                      .format = "index %lld is out of bounds for dimension %d with size %lld",
                      .size = size,
                      .dim = dim});
}

hlo_t op_check_index(torus_call_t *call, hlo_t index, int64_t low, int64_t size, int dim) {
  hlo_graph_t *g = call->graph;
  if (index == HLO_NONE) return HLO_NONE;
  const torus_dtype_t dtype = hlo_dtype(g, index);
  if (hlo_numel(g, index) > 0) add_index_check(call, index, low, size, dim);
  if (low >= 0 || torus_dtype_kind(dtype) == TORUS_KIND_UINT) return index;
  hlo_t is_negative = hlo_compare(g, HLO_LT, index, hlo_const_int(g, dtype, 0));
  return hlo_select(g, is_negative, hlo_add(g, index, hlo_soft_int(g, dtype, size)), index);
}

/* ---- data-dependent sizes ---- */

/* The lowering holds on to its graph across a read. So the window takes the nodes along in another
 * one, and gets the lowering's, empty, when it has reopened. */
static torus_status_t close_window(torus_call_t *call) {
  torus_window_t *window = &call->device->window;
  hlo_graph_t *recorded;
  TORUS_TRY(hlo_graph_create(&recorded));
  hlo_graph_swap(recorded, call->graph);
  window->graph = recorded;
  torus_status_t status = torus_window_close(call->engine, call->request->device);
  if (status != TORUS_OK && window->graph == recorded) hlo_graph_swap(recorded, call->graph);
  hlo_graph_destroy(window->graph);
  window->graph = call->graph;
  const torus_place_t place = call->request->place;
  hlo_graph_mark(call->graph, call->request->op->name, place.code, place.instruction);
  return status;
}

static torus_status_t read_int(torus_call_t *call, hlo_t x, int64_t *out) {
  torus_value_t *value;
  hlo_t wide = hlo_convert(call->graph, x, TORUS_DTYPE_I64);
  TORUS_TRY(hlo_graph_take_error(call->graph));
  TORUS_TRY(torus_window_value(call->engine, call->request->device, wide, &value));
  torus_status_t status = close_window(call);
  if (status == TORUS_OK) status = torus_value_to_host(value, out, sizeof *out);
  torus_value_release(value);
  return status;
}

hlo_graph_t *op_graph(torus_call_t *call) { return call->graph; }

int64_t op_read_int(torus_call_t *call, hlo_t x) {
  int64_t result = 0;
  if (op_failed(call)) return 0;
  torus_status_t status = read_int(call, x, &result);
  if (status != TORUS_OK) call->error = status;
  return result;
}
