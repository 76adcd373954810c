// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torus {

// Graphs of torch.compile as programs, and their fast call.
void define_programs(pybind11::module_ &m);

} // namespace torus
