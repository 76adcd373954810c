// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torus {

// A forward and a backward graph of torch.compile as one function of autograd.
void define_trained_graphs(pybind11::module_ &m);

} // namespace torus
