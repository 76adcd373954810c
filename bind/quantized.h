// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace torus {

// NotImplementedError with the remedy when an argument of the call names a quantized type.
void refuse_quantized_types(const c10::OperatorHandle &op, const torch::jit::Stack &stack);

} // namespace torus
