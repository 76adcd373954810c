// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// The same call on other tensors: for error texts, and for shapes without content.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace torus {

// The argument with tpu tensors, and devices, replaced by zeros or meta tensors on |device|.
c10::IValue stand_in(const c10::IValue &v, at::Device device);

} // namespace torus
