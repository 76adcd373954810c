// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// A function of tensors as one program: recorded once on abstract stand-ins for its arguments, then
// called with tensors of the same shapes. A call checks the arguments, hands the contents of their
// storages to the engine and wraps the results; nothing of it runs Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "sharding.h"
#include "tensor.h"
#include "torus/capture.h"

namespace torus {

// What an argument must look like.
struct Argument {
  c10::ScalarType dtype{};
  std::vector<int64_t> sizes, strides;
  size_t bytes = 0;
  bool is_conj = false, is_neg = false;
  bool is_given = false;    // its memory may be used up
  bool is_written = false;  // the program overwrites it
  ShardingPtr layout;
  torus_storage_t *stand_in = nullptr; // while recording

  explicit Argument(const at::Tensor &t);

  bool accepts(const at::Tensor &t) const {
    return t.scalar_type() == dtype && t.sizes() == sizes && t.strides() == strides &&
           t.is_conj() == is_conj && t.is_neg() == is_neg;
  }

  bool lies_as(const at::Tensor &t) const;
};

// How a returned tensor comes about.
struct Output {
  enum class From { Object, Result, Argument, Tensor } from = From::Object;
  pybind11::object object; // None, numbers
  size_t index = 0;  // of the result's storage, or of the argument
  int twin = -1;     // the output before that is the same tensor
  int sibling = -1;  // the output before that is over the same storage made anew
  bool is_whole = false; // exactly the argument
  at::Tensor tensor; // that was there before
  c10::ScalarType dtype{};
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  bool is_conj = false, is_neg = false;
};

// PyTorch orders effects by passing on empty tensors of the host.
inline bool is_token(const at::Tensor &t) { return t.is_cpu() && t.numel() == 0; }

class Program {
public:
  Program() = default;
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;
  ~Program();

  // ---- recording ----

  // Returns stand-ins for |tensors|; what is done to them until the end becomes the program. A run
  // may use up the memory of those flagged in |given|.
  std::vector<at::Tensor> begin(const std::vector<at::Tensor> &tensors,
                                const std::vector<bool> &given);
  // |outputs| are what the function returned for the stand-ins.
  void end(const pybind11::list &outputs);
  void abort();

  // ---- calling ----

  const std::vector<Argument> &arguments() const { return arguments_; }

  // Whether arguments of the right shapes lie as those did for which the program was compiled.
  bool takes_layouts(const std::vector<at::Tensor> &tensors) const;
  // Whether runs are recorded in the open window. There is no program then.
  bool is_joined() const;
  // Without the interpreter's lock. Tensors are taken over, so that the last user of a given one lets
  // go of it. Returned objects that are no tensors are undefined ones here.
  std::vector<at::Tensor> run(std::vector<at::Tensor> tensors) const;
  // The same from Python, with those objects.
  pybind11::list call(std::vector<at::Tensor> tensors) const;

private:
  torus_capture_t *capture_ = nullptr;
  int device_ = 0;
  bool is_recording_ = false;
  uint64_t first_offset_ = 0, drawn_ = 0;
  std::vector<Argument> arguments_;
  std::vector<at::Tensor> stand_ins_;
  std::vector<Output> outputs_;
  // Per argument of the program, the argument of the call; -1: something else.
  std::vector<int> sources_;
  std::vector<torus_storage_t *> held_; // per argument of the program that is neither: its storage
  // Per stored output of the capture: its result, and the argument that receives it, or -1.
  struct Store {
    size_t result;
    int argument;
  };
  std::vector<Store> stores_;
  std::vector<size_t> storage_results_; // per storage that is made anew: its result

  torus_status_t start(const std::vector<at::Tensor> &tensors);
  void take_type(const Argument &a, const at::Tensor &t) const;
  at::Tensor make_stand_in(const Argument &a) const;
  void leave();
  int argument_with(const torus_storage_t *storage) const;
  void add_output(pybind11::handle object, std::vector<torus_storage_t *> &wanted);
  static void describe(const at::Tensor &t, Output &o);
  void bind(const std::vector<torus_storage_t *> &wanted);

  static at::Tensor plain(const at::Tensor &t, const Argument &a);
  void launch(std::vector<at::Tensor> &whole, std::vector<torus_value_t *> &results) const;
  std::vector<at::Tensor> wrap(const std::vector<at::Tensor> &tensors,
                               const std::vector<torus_value_t *> &results) const;
  at::Tensor wrap_one(const Output &o, const std::vector<at::Tensor> &tensors,
                      const std::vector<c10::Storage> &storages,
                      const std::vector<at::Tensor> &before) const;
  void write_back(const std::vector<at::Tensor> &tensors,
                  const std::vector<at::Tensor> &whole) const;
};

} // namespace torus
