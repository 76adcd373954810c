/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Loads a PJRT plugin, compiles a program, and runs it: the whole of libtorus' lowest layer.
 *
 *   cc -std=c17 -I include examples/c/run_program.c -L FOLDER_OF_LIBTORUS -ltorus -o run_program
 *   ./run_program /path/to/xla_cpu_pjrt.so
 */
#include <stdio.h>
#include <string.h>

#include "torus/pjrt.h"

/* A program is StableHLO text; its function @main takes and returns arrays. */
static const char program_text[] =
    "func.func public @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> {\n"
    "  %sum = stablehlo.add %a, %b : tensor<2x3xf32>\n"
    "  return %sum : tensor<2x3xf32>\n"
    "}\n";

static const float a[6] = {1, 2, 3, 4, 5, 6};
static const float b[6] = {10, 20, 30, 40, 50, 60};
static const int64_t dims[2] = {2, 3};

/* Arrays go to the device, the program runs there, and its result comes back. Running returns as
 * soon as the work is enqueued; only the copy to the host waits. */
static torus_status_t run(torus_client_t *client, torus_executable_t *executable) {
  torus_buffer_t *arguments[2] = {NULL, NULL}, *sum = NULL;
  float result[6];
  torus_status_t status =
      torus_buffer_from_host(client, 0, a, TORUS_DTYPE_F32, 2, dims, &arguments[0]);
  if (!status) {
    status = torus_buffer_from_host(client, 0, b, TORUS_DTYPE_F32, 2, dims, &arguments[1]);
  }
  if (!status) status = torus_executable_run(executable, arguments, 2, 1, &sum);
  if (!status) status = torus_buffer_to_host(sum, result, sizeof result);
  if (!status) {
    for (int i = 0; i < 6; i++) printf("%g%c", (double)result[i], i % 3 == 2 ? '\n' : ' ');
  }
  /* Releasing NULL is fine, so that one way out serves success and failure. */
  torus_buffer_release(sum);
  torus_buffer_release(arguments[1]);
  torus_buffer_release(arguments[0]);
  return status;
}

static torus_status_t compile_and_run(const char *plugin_path) {
  torus_client_options_t options = {.plugin_path = plugin_path};
  torus_client_t *client;
  TORUS_TRY(torus_client_create(&options, &client));
  printf("%d device(s) of kind %s\n", torus_client_device_count(client),
         torus_client_device_kind(client, 0));
  torus_executable_t *executable;
  torus_status_t status = torus_executable_compile(client, 0, program_text, strlen(program_text),
                                                   TORUS_EFFORT_DEFAULT, &executable);
  if (!status) status = run(client, executable);
  torus_executable_release(executable);
  torus_client_destroy(client);
  return status;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s PLUGIN\n", argv[0]);
    return 2;
  }
  torus_status_t status = compile_and_run(argv[1]);
  if (!status) return 0;
  fprintf(stderr, "%s: %s\n", torus_status_code_name(torus_status_code(status)),
          torus_status_message(status));
  torus_status_free(status);
  return 1;
}
