/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* What programs have in common whether they are loaded or not. */
#include <string.h>

#include "pjrt/internal.h"
#include "torus/memory.h"

PJRT_Program torus_pjrt_program(const char *text, size_t text_bytes) {
  static const char format[] = "mlir";
  /* The field is not const, but the text is only read. */
  return (PJRT_Program){
      .struct_size = PJRT_Program_STRUCT_SIZE,
      .code = (char *)text,
      .code_size = text_bytes,
      .format = format,
      .format_size = sizeof format - 1,
  };
}

void torus_pjrt_executable_destroy(const PJRT_Api *api, PJRT_Executable *executable) {
  TORUS_PJRT_ARGS(PJRT_Executable_Destroy, args);
  args.executable = executable;
  torus_status_ignore(torus_pjrt_status(api, api->PJRT_Executable_Destroy(&args)));
}

torus_status_t torus_pjrt_executable_serialize(const PJRT_Api *api, PJRT_Executable *executable,
                                               char **out_bytes, size_t *out_size) {
  TORUS_PJRT_ARGS(PJRT_Executable_Serialize, args);
  args.executable = executable;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_Executable_Serialize(&args)));
  void *copy;
  torus_status_t status = torus_try_alloc(args.serialized_bytes_size, &copy);
  if (!status) {
    memcpy(copy, args.serialized_bytes, args.serialized_bytes_size);
    *out_bytes = copy;
    *out_size = args.serialized_bytes_size;
  }
  if (args.serialized_executable_deleter) {
    args.serialized_executable_deleter(args.serialized_executable);
  }
  return status;
}

/* Asks twice: without a place for the program the plugin tells its size. */
torus_status_t torus_pjrt_executable_optimized(const PJRT_Api *api, PJRT_Executable *executable,
                                               char **out_bytes, size_t *out_size) {
  *out_bytes = NULL;
  *out_size = 0;
  if (!TORUS_PJRT_HAS(api, PJRT_Executable_OptimizedProgram)) {
    return torus_status_make(TORUS_STATUS_UNIMPLEMENTED,
                             "the plugin does not show the programs it makes");
  }
  PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE};
  TORUS_PJRT_ARGS(PJRT_Executable_OptimizedProgram, args);
  args.executable = executable;
  args.program = &program;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_Executable_OptimizedProgram(&args)));
  void *block;
  TORUS_TRY(torus_try_alloc(program.code_size, &block));
  program.code = block;
  torus_status_t status =
      torus_pjrt_status(api, api->PJRT_Executable_OptimizedProgram(&args));
  if (!status) {
    *out_bytes = block;
    *out_size = program.code_size;
    block = NULL;
  }
  torus_free(block);
  return status;
}
