/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Small captures have no program: a run appends what was recorded to the open window, so that it
 * shares a launch with what comes before and after. With few nodes a launch of its own costs
 * several times as much; with some hundred it costs nothing in comparison, and a program that does
 * not depend on its neighbours is compiled once. */
#include <string.h>

#include "engine/capture_internal.h"
#include "hlo/block.h"

/* Nodes up to which a capture joins the window. */
enum { MOST_JOINED = 256 };

struct torus_block {
  hlo_graph_t *graph;
  torus_stretch_t stretch;
  hlo_t *outputs; /* the results, then each check's condition and, if there is one, culprit */
  size_t output_count;
};

void torus_block_destroy(torus_block_t *block) {
  if (block == NULL) return;
  hlo_graph_destroy(block->graph);
  torus_free(block->outputs);
  torus_free(block);
}

bool torus_capture_is_joined(const torus_capture_t *capture) { return capture->block != NULL; }

/* ---- at the end of the capture ---- */

static void list_outputs(const torus_job_t *job, torus_block_t *block) {
  const torus_window_t *window = &job->window;
  for (size_t i = 0; i < window->value_count; ++i) {
    block->outputs[block->output_count++] = job->outputs[i];
  }
  for (size_t i = 0; i < window->check_count; ++i) {
    const torus_check_t *check = &window->checks[i];
    block->outputs[block->output_count++] = check->failed;
    if (check->culprit != HLO_NONE) block->outputs[block->output_count++] = check->culprit;
  }
}

/* The job's nodes as a block, with what the capture's arguments are. */
static torus_status_t fill_block(torus_capture_t *capture, const torus_job_t *job,
                                 torus_block_t *block) {
  hlo_encoding_t encoding;
  const torus_window_t *window = &job->window;
  hlo_graph_t *g = window->graph;
  const size_t room = window->value_count + 2 * window->check_count + 1;
  block->outputs = torus_alloc(room * sizeof *block->outputs);
  if (block->outputs == NULL) return torus_capture_no_memory();
  list_outputs(job, block);
  TORUS_TRY(hlo_encode(g, block->outputs, block->output_count, &encoding));
  block->stretch =
      (torus_stretch_t){encoding.hash, window->op_count > 0 ? window->op_count : 1,
                        window->heavy_count};
  torus_status_t status = torus_capture_keep_sources(capture, job, &encoding);
  hlo_encoding_deinit(&encoding);
  if (status != TORUS_OK) return status;
  return hlo_block_extract(g, block->outputs, block->output_count, &block->graph, block->outputs);
}

torus_status_t torus_capture_keep_block(torus_capture_t *capture, const torus_job_t *job) {
  torus_block_t *block = torus_alloc(sizeof *block);
  if (block == NULL) return torus_capture_no_memory();
  torus_status_t status = fill_block(capture, job, block);
  if (status == TORUS_OK) {
    capture->block = block;
  } else {
    torus_block_destroy(block);
  }
  return status;
}

bool torus_job_may_join(const torus_job_t *job) {
  return hlo_graph_node_count(job->window.graph) <= MOST_JOINED && !torus_job_is_spread(job);
}

/* ---- runs ---- */

static hlo_t random_node(torus_device_t *device, uint64_t seed, uint64_t offset) {
  hlo_graph_t *g = device->window.graph;
  const int64_t one = 1;
  hlo_t pair[2];
  if (device->capture != NULL) {
    torus_capture_random(device, seed, offset, &pair[0], &pair[1]);
  } else {
    pair[0] = hlo_volatile_int(g, TORUS_DTYPE_U64, (int64_t)seed);
    pair[1] = hlo_volatile_int(g, TORUS_DTYPE_U64, (int64_t)offset);
  }
  for (int k = 0; k < 2; ++k) pair[k] = hlo_reshape(g, pair[k], 1, &one);
  return hlo_concatenate(g, pair, 2, 0);
}

/* |node| as an array of the captured type, which has as many bytes. */
static hlo_t node_as(hlo_graph_t *g, hlo_t node, const torus_value_t *type) {
  if (node == HLO_NONE) return HLO_NONE;
  const bool is_same =
      hlo_dtype(g, node) == type->dtype && hlo_rank(g, node) == type->rank &&
      (type->rank == 0 ||
       memcmp(hlo_dims(g, node), type->dims, (size_t)type->rank * sizeof *type->dims) == 0);
  if (is_same) return node;
  const hlo_t flat = torus_view_bitcast(g, hlo_flatten(g, node), type->dtype);
  return hlo_reshape(g, flat, type->rank, type->dims);
}

static hlo_t storage_node(torus_device_t *device, torus_storage_t *storage,
                          const torus_value_t *type) {
  hlo_graph_t *g = device->window.graph;
  const int64_t flat = (int64_t)(storage->size_bytes / torus_dtype_bytes(type->dtype)), one = 1;
  const torus_view_t view = {
      .storage = storage, .dtype = type->dtype, .rank = 1, .sizes = &flat, .strides = &one};
  if (storage->size_bytes != torus_value_size_bytes(type)) {
    return hlo_fail_with(g, torus_capture_refuse_bytes(storage->size_bytes, type));
  }
  if (storage->value == NULL) return node_as(g, torus_view_node(device, &view), type);
  return node_as(g, torus_storage_node(device, storage), type);
}

static hlo_t argument(torus_device_t *device, const torus_capture_source_t *source,
                      const torus_capture_content_t *content, const uint64_t random[2]) {
  switch (source->kind) {
  case TORUS_SOURCE_CONSTANT:
    return torus_window_node(device, source->value);
  case TORUS_SOURCE_RANDOM:
    return random_node(device, random[0], random[1]);
  case TORUS_SOURCE_STORAGE:
    break;
  }
  if (content->storage != NULL) return storage_node(device, content->storage, source->value);
  return node_as(device->window.graph, torus_window_node(device, content->value), source->value);
}

/* Nodes for the block's parameters; false with an error in the graph. */
static bool find_arguments(const torus_capture_t *capture, torus_device_t *device,
                           const torus_capture_content_t *contents, const uint64_t random[2],
                           hlo_t *out_arguments) {
  for (size_t i = 0; i < capture->source_count; ++i) {
    out_arguments[i] = argument(device, &capture->sources[i], &contents[i], random);
    if (out_arguments[i] == HLO_NONE) return false;
  }
  return true;
}

static torus_status_t add_checks(const torus_capture_t *capture, torus_device_t *device,
                                 const hlo_t *nodes) {
  for (size_t i = 0; i < capture->check_count; ++i) {
    torus_check_t check = capture->checks[i];
    check.failed = *nodes++;
    if (check.culprit != HLO_NONE) check.culprit = *nodes++;
    TORUS_TRY(torus_window_add_check(device, &check));
  }
  return TORUS_OK;
}

static torus_status_t join(const torus_capture_t *capture, const torus_capture_content_t *contents,
                           const uint64_t random[2], hlo_t *work, torus_value_t **out_results) {
  const torus_block_t *block = capture->block;
  torus_device_t *device = &capture->engine->devices[capture->device];
  hlo_t *outputs = work, *arguments = work + block->output_count;
  TORUS_TRY(torus_window_expect(capture->engine, capture->device, &block->stretch));
  hlo_graph_t *g = device->window.graph;
  memcpy(outputs, block->outputs, block->output_count * sizeof *outputs);
  if (find_arguments(capture, device, contents, random, arguments)) {
    hlo_block_append(g, block->graph, arguments, capture->source_count, outputs,
                     block->output_count);
  }
  TORUS_TRY(hlo_graph_take_error(g));
  for (size_t i = 0; i < capture->result_count; ++i) {
    TORUS_TRY(torus_window_value(capture->engine, capture->device, outputs[i], &out_results[i]));
  }
  return add_checks(capture, device, outputs + capture->result_count);
}

torus_status_t torus_capture_join(const torus_capture_t *capture,
                                  const torus_capture_content_t *contents, uint64_t seed,
                                  uint64_t offset, torus_value_t **out_results) {
  enum { FEW = 256 };
  hlo_t few[FEW], *work = few;
  const uint64_t random[2] = {seed, offset};
  const size_t room = capture->block->output_count + capture->source_count;
  if (room > FEW) work = torus_alloc(room * sizeof *work);
  if (work == NULL) return torus_capture_no_memory();
  torus_status_t status = join(capture, contents, random, work, out_results);
  if (work != few) torus_free(work);
  return status;
}
