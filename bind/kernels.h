// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#pragma once

namespace torus {

// Factories, views, resizing, copies and reads of single numbers: the kernels that are not
// lowerings.
void register_tensor_kernels();

} // namespace torus
