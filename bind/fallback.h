// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace torus {

// Runs the operator on the CPU and brings results back; counted, warned about once per operator.
void cpu_fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack, const char *reason);
// Sends every operator without a kernel there.
void register_fallback();

} // namespace torus
