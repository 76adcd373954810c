// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Between at::Tensor and the plain records of libtorus.
#pragma once

#include <ATen/core/Tensor.h>

#include "allocator.h"
#include "runtime.h"

namespace torus {

// A tpu tensor as a view; sizes and strides are borrowed from the tensor.
torus_view_t view_of(const at::Tensor &tensor);
// A number as Scalar holds it.
torus_number_t number_of(const at::Scalar &scalar);
// A new storage with |value| (taken over) as its content.
c10::Storage storage_with_value(torus_value_t *value, int device);
at::Tensor tensor_over(c10::Storage storage, c10::ScalarType dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset);
// A tensor over a new storage with |value| (taken over) as its content.
at::Tensor tensor_from_value(torus_value_t *value, int device, torus_dtype_t dtype,
                             at::IntArrayRef sizes, at::IntArrayRef strides);
at::Tensor empty_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype,
                        int device);

// What the tensor's storage points to; an error for tensors of other devices.
torus_storage_t *storage_behind(const at::Tensor &tensor);

// The values of a run until tensors hold them.
struct Results {
  std::vector<torus_value_t *> values;
  explicit Results(size_t count) : values(count, nullptr) {}
  Results(const Results &) = delete;
  Results &operator=(const Results &) = delete;
  ~Results() {
    for (torus_value_t *value : values) torus_value_release(value);
  }
};

// Locks a device for recording; commit() applies the mode and reports its error.
class Recording {
public:
  explicit Recording(int device) : engine_(engine()), device_(device) {
    torus_device_lock(engine_, device_);
  }
  Recording(const Recording &) = delete;
  Recording &operator=(const Recording &) = delete;
  void commit() {
    is_open_ = false;
    check(torus_device_unlock(engine_, device_, mode()));
  }
  ~Recording() {
    if (is_open_) torus_status_ignore(torus_device_unlock(engine_, device_, TORUS_MODE_FUSED));
  }

private:
  torus_engine_t *engine_;
  int device_;
  bool is_open_ = true;
};

} // namespace torus
