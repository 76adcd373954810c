// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "torus/sharding.h"

namespace torus {

struct ReleaseSharding {
  void operator()(torus_sharding_t *sharding) const { torus_sharding_release(sharding); }
};
using ShardingPtr = std::unique_ptr<torus_sharding_t, ReleaseSharding>;

// How the storage behind a tensor lies; null on a single device. Waits where only a program that is
// still to run will tell.
ShardingPtr sharding_behind(const at::Tensor &tensor);
// All of a row of elements on each device of |mesh|.
ShardingPtr replicated_row(const torus_sharding_t *mesh);

// Tensors on several devices, as torch_tpu.distributed.spmd uses them.
void define_shardings(py::module_ &m);

} // namespace torus
