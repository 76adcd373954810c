// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torus {

// Tensors on several devices, as torch_tpu.distributed.spmd uses them.
void define_shardings(py::module_ &m);

} // namespace torus
