// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Captured graphs for Python, and for torch.accelerator.Graph.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torus {

void define_graphs(pybind11::module_ &m);

} // namespace torus
