// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// The c10d backend of device "tpu" where the plugin has no transport of its own between processes.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torus {

// Adds _create_host_group to the extension module.
void define_groups(pybind11::module_ &m);

} // namespace torus
