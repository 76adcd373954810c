/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* State of one operator call while it is lowered. */
#ifndef TORUS_OPS_CALL_INTERNAL_H_
#define TORUS_OPS_CALL_INTERNAL_H_

#include "engine/engine_internal.h"
#include "ops/op.h"

typedef struct torus_call_result {
  hlo_t node;           /* HLO_NONE: undefined tensor */
  int64_t prefix;       /* leading entries of dimension 0 that count; -1: all */
  bool is_set;
} torus_call_result_t;

typedef struct torus_call_write {
  int arg, element;
  hlo_t node;
} torus_call_write_t;

struct torus_call {
  torus_engine_t *engine;
  torus_device_t *device;
  const torus_request_t *request;
  hlo_graph_t *graph;
  torus_call_result_t *results;
  int result_count, result_capacity;
  torus_call_write_t *writes;
  int write_count, write_capacity;
  torus_status_t error;   /* first one */
};

#endif  /* TORUS_OPS_CALL_INTERNAL_H_ */
