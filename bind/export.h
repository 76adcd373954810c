// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torus {

// Programs that come as text or as a serialized executable.
void define_export(pybind11::module_ &m);

} // namespace torus
