/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The floor under every round trip: one add on the device, awaited, again and again, from C. Reads a
 * count per line and answers with the seconds that one add took. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "torus/pjrt.h"

static const char program[] =
    "module { func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {\n"
    "  %one = stablehlo.constant dense<1.0> : tensor<8x8xf32>\n"
    "  %y = stablehlo.add %x, %one : tensor<8x8xf32>\n"
    "  return %y : tensor<8x8xf32> } }\n";

static void require(torus_status_t status) {
  if (status == TORUS_OK) return;
  fprintf(stderr, "%s\n", torus_status_message(status));
  exit(1);
}

static double seconds_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double time_adds(torus_executable_t *add, torus_buffer_t *x, long count) {
  const double begin = seconds_now();
  for (long i = 0; i < count; ++i) {
    torus_buffer_t *y;
    require(torus_executable_run(add, &x, 1, 1, &y));
    require(torus_buffer_await(y));
    torus_buffer_release(y);
  }
  return (seconds_now() - begin) / (double)count;
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  const torus_client_options_t options = {argv[1], 1, strstr(argv[1], "cpu") != NULL};
  torus_client_t *client;
  torus_executable_t *add;
  torus_buffer_t *x;
  const float zeros[64] = {0};
  const int64_t dims[] = {8, 8};
  require(torus_client_create(&options, &client));
  require(torus_executable_compile(client, 0, program, strlen(program), TORUS_EFFORT_DEFAULT, &add));
  require(torus_buffer_from_host(client, 0, zeros, TORUS_DTYPE_F32, 2, dims, &x));
  char line[32];
  while (fgets(line, sizeof line, stdin) != NULL) {
    const long count = strtol(line, NULL, 10);
    printf("%.9f\n", time_adds(add, x, count > 0 ? count : 1));
    fflush(stdout);
  }
  torus_buffer_release(x);
  torus_executable_release(add);
  torus_client_destroy(client);
  return 0;
}
