// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torus {

// Collectives as programs, as torch_tpu.distributed.programs uses them.
void define_collectives(py::module_ &m);

} // namespace torus
