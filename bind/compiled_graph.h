// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Graphs of torch.compile as they are called.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "program.h"

namespace torus {

// The programs that were made of a graph, tried newest first, and what is called when none fits.
class CompiledGraph {
public:
  explicit CompiledGraph(pybind11::object otherwise) : otherwise_(std::move(otherwise)) {}

  // |constants| has the arguments that are no tensors on the device, None in place of those.
  void add(std::shared_ptr<Program> program, const pybind11::list &constants);
  void clear();
  size_t size() const;

  // Empties |args|, as boxed calls do.
  pybind11::object call(pybind11::list args) const;

  // The program for arguments that all are tensors on the device, if it is joined; else nullptr. This
  // alone may be called without the interpreter's lock.
  std::shared_ptr<Program> find_joined(const std::vector<at::Tensor> &tensors) const;

private:
  static constexpr size_t kMostPrograms = 8;
  struct Entry {
    std::shared_ptr<Program> program;
    std::vector<pybind11::object> constants;
  };
  pybind11::object otherwise_;
  mutable std::mutex lock_; // guards the entries against find_joined
  std::vector<Entry> entries_;

  static bool match(const Entry &entry, const pybind11::list &args,
                    std::vector<at::Tensor> &tensors);
};

void define_compiled_graphs(pybind11::module_ &m);

} // namespace torus
