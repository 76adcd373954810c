/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The text of operations with attributes. */
#include "hlo/print_internal.h"

/* "%3 = stablehlo.op " */
static void put_head(hlo_printer_t *p, hlo_t x) {
  hlo_put_name(p, x);
  hlo_put(p, " = ");
  hlo_put(p, hlo_op_spelling((hlo_op_t)hlo_node(p->g, x)->op));
  hlo_put(p, " ");
}

static void put_operands(hlo_printer_t *p, hlo_t x) {
  hlo_put_names(p, hlo_operands(p->g, x), hlo_node(p->g, x)->operand_count);
}

/* ", name = [1, 2]" */
static void put_list_attr(hlo_printer_t *p, const char *name, const int64_t *values,
                          size_t count) {
  hlo_put(p, ", ");
  hlo_put(p, name);
  hlo_put(p, " = ");
  hlo_put_list(p, values, count);
}

/* ---- one list of attributes ---- */

static void put_iota(hlo_printer_t *p, hlo_t x) {
  put_head(p, x);
  hlo_put(p, "dim = ");
  torus_strbuf_int(p->text, hlo_attrs(p->g, x)[0]);
  hlo_put(p, " : ");
  hlo_put_type_of(p, x);
}

static void put_listed(hlo_printer_t *p, hlo_t x, const char *name) {
  put_head(p, x);
  put_operands(p, x);
  put_list_attr(p, name, hlo_attrs(p->g, x), hlo_node(p->g, x)->attr_count);
  hlo_put_signature(p, x);
}

static void put_reverse(hlo_printer_t *p, hlo_t x) {
  put_head(p, x);
  put_operands(p, x);
  put_list_attr(p, "dims", hlo_attrs(p->g, x), hlo_node(p->g, x)->attr_count);
  hlo_put(p, " : ");
  hlo_put_type_of(p, x);
}

static void put_concatenate(hlo_printer_t *p, hlo_t x) {
  put_head(p, x);
  put_operands(p, x);
  torus_strbuf_printf(p->text, ", dim = %d", (int)hlo_attrs(p->g, x)[0]);
  hlo_put_signature(p, x);
}

static void put_pad(hlo_printer_t *p, hlo_t x) {
  size_t rank = hlo_node(p->g, x)->rank;
  const int64_t *attrs = hlo_attrs(p->g, x);
  put_head(p, x);
  put_operands(p, x);
  put_list_attr(p, "low", attrs, rank);
  put_list_attr(p, "high", attrs + rank, rank);
  put_list_attr(p, "interior", attrs + 2 * rank, rank);
  hlo_put_signature(p, x);
}

/* ---- slices ---- */

/* Where the slice |x| of |whole| starts: its soft numbers belong to the dimensions of which
 * |part| is not all. */
typedef struct places {
  int64_t start[TORUS_MAX_RANK];
  int slot[TORUS_MAX_RANK]; /* -1: whole */
  const char *type;
  bool promoted; /* any of them */
} places_t;

static places_t find_places(const hlo_printer_t *p, hlo_t x, hlo_t whole, hlo_t part) {
  const hlo_node_t *node = hlo_node(p->g, x);
  places_t places = {.type = "i32"};
  int slot = 0;
  for (int i = 0; i < node->rank; i++) {
    places.slot[i] = -1;
    if (hlo_dims(p->g, whole)[i] == hlo_dims(p->g, part)[i]) continue;
    const hlo_soft_number_t *soft = &p->g->softs[node->softs + (uint32_t)slot];
    places.start[i] = soft->bits;
    places.type = torus_dtype_hlo((torus_dtype_t)soft->dtype);
    places.promoted |= hlo_is_promoted(p, x, (size_t)slot);
    places.slot[i] = slot++;
  }
  return places;
}

static bool is_promoted_place(const hlo_printer_t *p, hlo_t x, const places_t *places, int i) {
  return places->slot[i] >= 0 && hlo_is_promoted(p, x, (size_t)places->slot[i]);
}

/* Starts that stay constants get lines of their own before the operation. */
static void put_place_constants(hlo_printer_t *p, hlo_t x, const places_t *places) {
  for (int i = 0; i < hlo_node(p->g, x)->rank; i++) {
    if (is_promoted_place(p, x, places, i)) continue;
    torus_strbuf_printf(p->text, "%%z%u_%d = stablehlo.constant dense<%lld> : tensor<%s>\n",
                        p->live.number[x], i, (long long)places->start[i], places->type);
  }
}

static void put_place_names(hlo_printer_t *p, hlo_t x, const places_t *places) {
  for (int i = 0; i < hlo_node(p->g, x)->rank; i++) {
    if (is_promoted_place(p, x, places, i)) {
      torus_strbuf_printf(p->text, ", %%s%u", p->live.soft_base[x] + (unsigned)places->slot[i]);
    } else {
      torus_strbuf_printf(p->text, ", %%z%u_%d", p->live.number[x], i);
    }
  }
}

static void put_place_types(hlo_printer_t *p, int rank, const char *type) {
  for (int i = 0; i < rank; i++) torus_strbuf_printf(p->text, ", tensor<%s>", type);
}

static int64_t step_of(const hlo_graph_t *g, hlo_t x, int i) {
  return hlo_node(g, x)->attr_count ? hlo_attrs(g, x)[i] : 1;
}

static int64_t span_of(const hlo_graph_t *g, hlo_t x, int i) {
  return (hlo_dims(g, x)[i] - 1) * step_of(g, x, i) + 1;
}

/* "[0:2, 1:5:2]" */
static void put_ranges(hlo_printer_t *p, hlo_t x, const int64_t *starts) {
  hlo_put(p, " [");
  for (int i = 0; i < hlo_node(p->g, x)->rank; i++) {
    if (i) hlo_put(p, ", ");
    torus_strbuf_int(p->text, starts[i]);
    hlo_put(p, ":");
    torus_strbuf_int(p->text, starts[i] + span_of(p->g, x, i));
    if (step_of(p->g, x, i) == 1) continue;
    hlo_put(p, ":");
    torus_strbuf_int(p->text, step_of(p->g, x, i));
  }
  hlo_put(p, "]");
}

/* A slice at promoted starts; steps are taken in a second slice of the span. */
static void put_moving_slice(hlo_printer_t *p, hlo_t x, const places_t *places) {
  const hlo_node_t *node = hlo_node(p->g, x);
  torus_dtype_t dtype = (torus_dtype_t)node->dtype;
  hlo_t whole = hlo_operand(p->g, x, 0);
  int64_t spans[TORUS_MAX_RANK], zeros[TORUS_MAX_RANK] = {0};
  for (int i = 0; i < node->rank; i++) spans[i] = span_of(p->g, x, i);
  bool strided = node->attr_count > 0;
  put_place_constants(p, x, places);
  torus_strbuf_printf(p->text, "%%%s%u = stablehlo.dynamic_slice ", strided ? "y" : "",
                      p->live.number[x]);
  hlo_put_name(p, whole);
  put_place_names(p, x, places);
  put_list_attr(p, "sizes", spans, node->rank);
  hlo_put(p, " : (");
  hlo_put_type_of(p, whole);
  put_place_types(p, node->rank, places->type);
  hlo_put(p, ") -> ");
  hlo_put_type(p, dtype, node->rank, spans);
  if (!strided) return;
  torus_strbuf_printf(p->text, "\n%%%u = stablehlo.slice %%y%u", p->live.number[x],
                      p->live.number[x]);
  put_ranges(p, x, zeros);
  hlo_put(p, " : (");
  hlo_put_type(p, dtype, node->rank, spans);
  hlo_put(p, ") -> ");
  hlo_put_type_of(p, x);
}

static void put_slice(hlo_printer_t *p, hlo_t x) {
  places_t places = find_places(p, x, hlo_operand(p->g, x, 0), x);
  if (places.promoted) {
    put_moving_slice(p, x, &places);
    return;
  }
  put_head(p, x);
  put_operands(p, x);
  put_ranges(p, x, places.start);
  hlo_put_signature(p, x);
}

static void put_update_slice(hlo_printer_t *p, hlo_t x) {
  places_t places = find_places(p, x, hlo_operand(p->g, x, 0), hlo_operand(p->g, x, 1));
  put_place_constants(p, x, &places);
  put_head(p, x);
  put_operands(p, x);
  put_place_names(p, x, &places);
  hlo_put(p, " : (");
  hlo_put_types(p, hlo_operands(p->g, x), 2);
  put_place_types(p, hlo_node(p->g, x)->rank, places.type);
  hlo_put(p, ") -> ");
  hlo_put_type_of(p, x);
}

static void put_dynamic_slice(hlo_printer_t *p, hlo_t x) {
  put_head(p, x);
  put_operands(p, x);
  put_list_attr(p, "sizes", hlo_dims(p->g, x), hlo_node(p->g, x)->rank);
  hlo_put_signature(p, x);
}

/* ---- products ---- */

static const char *precision_text(const hlo_printer_t *p, hlo_t x) {
  static const char *const names[] = {"DEFAULT", "HIGH", "HIGHEST"};
  bool exact = torus_dtype_is_integral(hlo_dtype(p->g, hlo_operand(p->g, x, 0)));
  int mode = hlo_node(p->g, x)->mode;
  return exact || mode == HLO_PRECISION_DEFAULT ? NULL : names[mode];
}

/* ", name = [0] x [1]" */
static void put_pair_attr(hlo_printer_t *p, const char *name, const int64_t *lhs,
                          const int64_t *rhs, size_t count) {
  put_list_attr(p, name, lhs, count);
  hlo_put(p, " x ");
  hlo_put_list(p, rhs, count);
}

static void put_wide_type(hlo_printer_t *p, hlo_t x, hlo_t operand) {
  hlo_put_type(p, hlo_dtype(p->g, x), hlo_rank(p->g, operand), hlo_dims(p->g, operand));
}

/* "%w7_0 = stablehlo.convert %3 : (narrow) -> wide", for both operands of a product. */
static void put_widened(hlo_printer_t *p, hlo_t x) {
  for (int k = 0; k < 2; k++) {
    hlo_t operand = hlo_operand(p->g, x, (size_t)k);
    torus_strbuf_printf(p->text, "%%w%zu_%d = stablehlo.convert ", (size_t)p->live.number[x], k);
    hlo_put_name(p, operand);
    hlo_put(p, " : (");
    hlo_put_type_of(p, operand);
    hlo_put(p, ") -> ");
    put_wide_type(p, x, operand);
    hlo_put(p, "\n");
  }
}

static bool is_widened(const hlo_printer_t *p, hlo_t x) {
  return p->g->widened_products && hlo_dtype(p->g, x) != hlo_dtype(p->g, hlo_operand(p->g, x, 0));
}

static void put_wide_operands(hlo_printer_t *p, hlo_t x) {
  size_t number = (size_t)p->live.number[x];
  torus_strbuf_printf(p->text, "%%w%zu_0, %%w%zu_1", number, number);
}

static void put_wide_signature(hlo_printer_t *p, hlo_t x) {
  hlo_put(p, " : (");
  put_wide_type(p, x, hlo_operand(p->g, x, 0));
  hlo_put(p, ", ");
  put_wide_type(p, x, hlo_operand(p->g, x, 1));
  hlo_put(p, ") -> ");
  hlo_put_type_of(p, x);
}

static void put_dot_general(hlo_printer_t *p, hlo_t x) {
  const int64_t *attrs = hlo_attrs(p->g, x);
  size_t batch = (size_t)attrs[0], contract = (size_t)attrs[1];
  const int64_t *lists = attrs + 2, *contracts = lists + 2 * batch;
  bool widened = is_widened(p, x);
  if (widened) put_widened(p, x);
  put_head(p, x);
  if (widened) put_wide_operands(p, x);
  else put_operands(p, x);
  if (batch) put_pair_attr(p, "batching_dims", lists, lists + batch, batch);
  put_pair_attr(p, "contracting_dims", contracts, contracts + contract, contract);
  const char *precision = precision_text(p, x);
  if (precision) torus_strbuf_printf(p->text, ", precision = [%s, %s]", precision, precision);
  if (widened) put_wide_signature(p, x);
  else hlo_put_signature(p, x);
}

/* "[b, f, 0, 1]" from the places of two letters and of the spatial dimensions. */
static void put_layout(hlo_printer_t *p, const char *letters, const int64_t *places,
                       int64_t spatial) {
  hlo_put(p, "[");
  for (int64_t i = 0; i < spatial + 2; i++) {
    int64_t k = 0;
    while (places[k] != i) k++;
    if (i) hlo_put(p, ", ");
    if (k < 2) {
      torus_strbuf_append_bytes(p->text, letters + k, 1);
    } else {
      torus_strbuf_int(p->text, k - 2);
    }
  }
  hlo_put(p, "]");
}

static void put_padding(hlo_printer_t *p, const int64_t *low, const int64_t *high, size_t count) {
  hlo_put(p, "[");
  for (size_t i = 0; i < count; i++) {
    torus_strbuf_printf(p->text, "%s[%lld, %lld]", i ? ", " : "", (long long)low[i],
                        (long long)high[i]);
  }
  hlo_put(p, "]");
}

static void put_conv_window(hlo_printer_t *p, const int64_t *fields, size_t spatial,
                            bool reverse) {
  hlo_put(p, ", window = {stride = ");
  hlo_put_list(p, fields, spatial);
  hlo_put(p, ", pad = ");
  put_padding(p, fields + spatial, fields + 2 * spatial, spatial);
  put_list_attr(p, "lhs_dilate", fields + 3 * spatial, spatial);
  put_list_attr(p, "rhs_dilate", fields + 4 * spatial, spatial);
  hlo_put(p, ", reverse = [");
  for (size_t i = 0; i < spatial; i++) {
    if (i) hlo_put(p, ", ");
    hlo_put(p, reverse ? "true" : "false");
  }
  hlo_put(p, "]}");
}

static void put_convolution(hlo_printer_t *p, hlo_t x) {
  const int64_t *attrs = hlo_attrs(p->g, x);
  int64_t spatial = attrs[0];
  const int64_t *lhs = attrs + 4, *rhs = lhs + spatial + 2, *out = rhs + spatial + 2;
  hlo_put_name(p, x);
  hlo_put(p, " = stablehlo.convolution(");
  put_operands(p, x);
  hlo_put(p, ") dim_numbers = ");
  put_layout(p, "bf", lhs, spatial);
  hlo_put(p, "x");
  put_layout(p, "oi", rhs, spatial);
  hlo_put(p, "->");
  put_layout(p, "bf", out, spatial);
  put_conv_window(p, out + spatial + 2, (size_t)spatial, attrs[1] != 0);
  torus_strbuf_printf(p->text,
                      " {batch_group_count = %lld : i64, feature_group_count = %lld : i64",
                      (long long)attrs[3], (long long)attrs[2]);
  const char *precision = precision_text(p, x);
  if (precision) {
    torus_strbuf_printf(p->text,
                        ", precision_config = [#stablehlo<precision %s>, "
                        "#stablehlo<precision %s>]",
                        precision, precision);
  }
  hlo_put(p, "}");
  hlo_put_signature(p, x);
}

/* ---- gather, random bits, linear algebra ---- */

static void put_gather(hlo_printer_t *p, hlo_t x) {
  const int64_t *attrs = hlo_attrs(p->g, x), *lists = attrs + 4;
  size_t offset = (size_t)attrs[0], collapsed = (size_t)attrs[1], map = (size_t)attrs[2];
  hlo_put_name(p, x);
  hlo_put(p, " = \"stablehlo.gather\"(");
  put_operands(p, x);
  hlo_put(p, ") <{dimension_numbers = #stablehlo.gather<offset_dims = ");
  hlo_put_list(p, lists, offset);
  put_list_attr(p, "collapsed_slice_dims", lists + offset, collapsed);
  put_list_attr(p, "start_index_map", lists + offset + collapsed, map);
  torus_strbuf_printf(p->text, ", index_vector_dim = %d>, slice_sizes = array<i64: ",
                      (int)attrs[3]);
  const int64_t *sizes = lists + offset + collapsed + map;
  for (int i = 0; i < hlo_rank(p->g, hlo_operand(p->g, x, 0)); i++) {
    torus_strbuf_printf(p->text, "%s%lld", i ? ", " : "", (long long)sizes[i]);
  }
  hlo_put(p, ">}>");
  hlo_put_signature(p, x);
}

static void put_random_bits(hlo_printer_t *p, hlo_t x) {
  torus_strbuf_printf(p->text, "%%%u:2 = stablehlo.rng_bit_generator ", p->live.number[x]);
  put_operands(p, x);
  hlo_put(p, ", algorithm = PHILOX : (tensor<2xui64>) -> (tensor<2xui64>, ");
  hlo_put_type_of(p, x);
  hlo_put(p, ")");
}

static void put_fft(hlo_printer_t *p, hlo_t x) {
  static const char *const kinds[] = {"FFT", "IFFT", "RFFT", "IRFFT"};
  const hlo_node_t *node = hlo_node(p->g, x);
  put_head(p, x);
  put_operands(p, x);
  hlo_put(p, ", type = ");
  hlo_put(p, kinds[node->mode]);
  put_list_attr(p, "length", hlo_attrs(p->g, x), node->attr_count);
  hlo_put_signature(p, x);
}

static const char *truth(int bit) { return bit ? "true" : "false"; }

static void put_cholesky(hlo_printer_t *p, hlo_t x) {
  put_head(p, x);
  put_operands(p, x);
  torus_strbuf_printf(p->text, ", lower = %s : ", truth(hlo_node(p->g, x)->mode));
  hlo_put_type_of(p, x);
}

static void put_triangular_solve(hlo_printer_t *p, hlo_t x) {
  int mode = hlo_node(p->g, x)->mode;
  hlo_put_name(p, x);
  hlo_put(p, " = \"stablehlo.triangular_solve\"(");
  put_operands(p, x);
  torus_strbuf_printf(p->text,
                      ") <{left_side = %s, lower = %s, unit_diagonal = %s, transpose_a = "
                      "#stablehlo<transpose %s>}>",
                      truth(mode & 1), truth(mode & 2), truth(mode & 4),
                      mode & 8 ? "TRANSPOSE" : "NO_TRANSPOSE");
  hlo_put_signature(p, x);
}

/* ---- choice ---- */

static bool put_shaped(hlo_printer_t *p, hlo_t x) {
  switch ((hlo_op_t)hlo_node(p->g, x)->op) {
  case HLO_OP_IOTA:
    put_iota(p, x);
    return true;
  case HLO_OP_BROADCAST:
  case HLO_OP_TRANSPOSE:
    put_listed(p, x, "dims");
    return true;
  case HLO_OP_REVERSE:
    put_reverse(p, x);
    return true;
  case HLO_OP_CONCATENATE:
    put_concatenate(p, x);
    return true;
  case HLO_OP_PAD:
    put_pad(p, x);
    return true;
  case HLO_OP_SLICE:
    put_slice(p, x);
    return true;
  case HLO_OP_UPDATE_SLICE:
    put_update_slice(p, x);
    return true;
  case HLO_OP_DYNAMIC_SLICE:
    put_dynamic_slice(p, x);
    return true;
  default:
    return false;
  }
}

static bool put_computed(hlo_printer_t *p, hlo_t x) {
  switch ((hlo_op_t)hlo_node(p->g, x)->op) {
  case HLO_OP_DOT_GENERAL:
    put_dot_general(p, x);
    return true;
  case HLO_OP_CONVOLUTION:
    put_convolution(p, x);
    return true;
  case HLO_OP_GATHER:
    put_gather(p, x);
    return true;
  case HLO_OP_RANDOM_BITS:
    put_random_bits(p, x);
    return true;
  case HLO_OP_FFT:
    put_fft(p, x);
    return true;
  case HLO_OP_CHOLESKY:
    put_cholesky(p, x);
    return true;
  case HLO_OP_TRIANGULAR_SOLVE:
    put_triangular_solve(p, x);
    return true;
  default:
    return false;
  }
}

bool hlo_put_structured(hlo_printer_t *p, hlo_t x) {
  if (!put_shaped(p, x) && !put_computed(p, x)) return false;
  hlo_put(p, "\n");
  return true;
}
