// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#pragma once

#include <ATen/core/Tensor.h>

namespace torus {

// The elements of a tpu tensor on the host; strides as convenient. Waits.
at::Tensor fetch(const at::Tensor &tensor);
// aten::_copy_from: any of the two may be on the host; broadcasts and converts.
at::Tensor copy_from(const at::Tensor &src, const at::Tensor &dst, bool non_blocking);

} // namespace torus
