/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Collectives among devices of one client. */
#include "torus/collective.h"

#include <string.h>

#include "torus/memory.h"

torus_status_t torus_collective_sharding(const int *devices, int size,
                                         torus_sharding_t **out_sharding) {
  const int64_t parts = size;
  return torus_sharding_create(&(torus_sharding_layout_t){size, devices, 1, &parts, NULL},
                               out_sharding);
}

static torus_status_t compile(torus_client_t *client, torus_sharding_t *sharding,
                              const torus_collective_t *collective, const char *text,
                              torus_executable_t **out_executable) {
  const int64_t count = collective->size * torus_collective_result_count(collective);
  const torus_array_t result = {collective->dtype, 1, &count};
  const torus_partitioning_t partitioning = {
      .mesh = sharding,
      .argument_count = 1,
      .arguments = &sharding,
      .result_count = 1,
      .results = &result,
      .wanted = &sharding,
      .has_replicas = true,
  };
  return torus_executable_compile_partitioned(client, text, strlen(text), TORUS_EFFORT_DEFAULT,
                                              &partitioning, out_executable);
}

torus_status_t torus_collective_compile(torus_client_t *client, const int *devices,
                                        const torus_collective_t *collective,
                                        torus_executable_t **out_executable) {
  char *text;
  torus_sharding_t *sharding;
  *out_executable = NULL;
  TORUS_TRY(torus_collective_text(collective, &text));
  torus_status_t status = torus_collective_sharding(devices, collective->size, &sharding);
  if (status == TORUS_OK) {
    status = compile(client, sharding, collective, text, out_executable);
    torus_sharding_release(sharding);
  }
  torus_free(text);
  return status;
}
