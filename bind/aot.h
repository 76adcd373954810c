// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Abstract tensors, and programs made without running them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

#include <string>

namespace torus {

// Whether what is recorded now will never run.
bool is_abstract();
// The same outside of a capture: new tensors have no content, and none is copied to them.
bool is_content_free(int device);
// Gives |tensor|, which is new, abstract content of its own shape.
void make_abstract(const at::Tensor &tensor);
// Where nothing runs, notes that |op| cannot be lowered; the caller raises.
void note_missing_if_abstract(const std::string &op, const std::string &reason);
// Stands in for the CPU fallback where nothing runs: an error, or results with a shape only.
void abstract_fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack,
                       const char *reason);

void define_aot(pybind11::module_ &m);

} // namespace torus
