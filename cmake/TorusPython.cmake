# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#
# Asks the interpreter where PyTorch and the PJRT header are. find_package(Torch) is not used: it
# searches for every optional dependency of the libtorch build, and none is needed here.

# Runs `code` with Python and stores its output, a semicolon-separated list, in `out_result`.
# A failure is not reported here: the result is then empty. The backend's own entry point is kept
# out, so that a half-built torch_tpu cannot stop its own build.
function(torus_ask_python code out_result)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env TORCH_DEVICE_BACKEND_AUTOLOAD=0
            ${Python_EXECUTABLE} -c "${code}"
    OUTPUT_VARIABLE answer
    ERROR_VARIABLE complaint
    RESULT_VARIABLE failed
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed)
    message(STATUS "${Python_EXECUTABLE}: ${complaint}")
    set(answer "")
  endif()
  set(${out_result} "${answer}" PARENT_SCOPE)
endfunction()

# Sets TORUS_PJRT_INCLUDE_DIR (unless given) and TORUS_TEST_PLUGIN (may stay empty).
macro(torus_find_pjrt)
  torus_ask_python("\
import importlib.util as u
print(list(u.find_spec('xla_plugins.xla_cpu_pjrt').submodule_search_locations)[0])"
    TORUS_PLUGIN_DIR)
  if(TORUS_PLUGIN_DIR AND NOT TORUS_PJRT_INCLUDE_DIR)
    set(TORUS_PJRT_INCLUDE_DIR ${TORUS_PLUGIN_DIR}/include)
  endif()
  if(NOT EXISTS "${TORUS_PJRT_INCLUDE_DIR}/pjrt_c_api.h")
    message(FATAL_ERROR
      "pjrt_c_api.h not found: install the package xla-cpu-pjrt for ${Python_EXECUTABLE}, "
      "or pass -DTORUS_PJRT_INCLUDE_DIR=<folder of pjrt_c_api.h>")
  endif()
  set(TORUS_TEST_PLUGIN "${TORUS_PLUGIN_DIR}/xla_cpu_pjrt.so")
  message(STATUS "PJRT header: ${TORUS_PJRT_INCLUDE_DIR}")
endmacro()

# Sets TORUS_TORCH_VERSION, TORUS_TORCH_CXX11_ABI, TORUS_TORCH_LIBRARY_DIR and
# TORUS_TORCH_INCLUDE_DIRS.
macro(torus_find_torch)
  torus_ask_python("\
import os, torch
root = os.path.dirname(torch.__file__)
include = os.path.join(root, 'include')
print(torch.__version__, int(torch._C._GLIBCXX_USE_CXX11_ABI), os.path.join(root, 'lib'),
      include, os.path.join(include, 'torch', 'csrc', 'api', 'include'), sep=chr(59))"
    TORUS_TORCH_FACTS)
  list(LENGTH TORUS_TORCH_FACTS count)
  if(count LESS 5)
    message(FATAL_ERROR
      "PyTorch not found by ${Python_EXECUTABLE}: build with --no-build-isolation in an "
      "environment that has torch, or use `make build`")
  endif()
  list(POP_FRONT TORUS_TORCH_FACTS
       TORUS_TORCH_VERSION TORUS_TORCH_CXX11_ABI TORUS_TORCH_LIBRARY_DIR)
  set(TORUS_TORCH_INCLUDE_DIRS ${TORUS_TORCH_FACTS})
  message(STATUS "PyTorch: ${TORUS_TORCH_VERSION} in ${TORUS_TORCH_LIBRARY_DIR}")
endmacro()
