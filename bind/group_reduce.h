// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// How a reduction of any type is done by one that Gloo has.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>

namespace torus {

class Reduction {
public:
  // Throws for an operation that the type does not have.
  Reduction(const c10d::ReduceOp &op, c10::ScalarType type, int size);

  c10d::ReduceOp host_op() const { return host_op_; }
  // A host tensor (it may be changed in place) in the form that is reduced.
  at::Tensor encode(at::Tensor host) const;
  // The reduced form as the result.
  at::Tensor decode(at::Tensor wire) const;

private:
  c10d::ReduceOp::RedOpType host_op_;
  c10::ScalarType type_;
  c10::ScalarType wire_;
  bool is_average_;
  int size_;
  std::optional<double> factor_;
};

} // namespace torus
