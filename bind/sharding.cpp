// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "sharding.h"

#include <ATen/ops/empty_like_native.h>
#include <c10/util/strides.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "tensor.h"
#include "torus/memory.h"

namespace py = pybind11;

namespace torus {
namespace {

struct Release {
  void operator()(torus_value_t *value) const { torus_value_release(value); }
};
using ValuePtr = std::unique_ptr<torus_value_t, Release>;

// Devices, parts of each dimension, and the partitions that hold the pieces.
using Layout = std::tuple<std::vector<int>, std::vector<int64_t>, std::vector<int>>;

ShardingPtr make_sharding(const Layout &lists) {
  const auto &[devices, parts, placement] = lists;
  for (const int device : devices) {
    TORCH_CHECK_INDEX(device >= 0 && device < device_count(), "there is no device tpu:", device,
                      "; this process has ", device_count());
  }
  TORCH_CHECK_VALUE(placement.empty() || placement.size() == devices.size(), "placement has ",
                    placement.size(), " entries for ", devices.size(), " devices");
  const torus_sharding_layout_t layout{static_cast<int>(devices.size()), devices.data(),
                                       static_cast<int>(parts.size()), parts.data(),
                                       placement.empty() ? nullptr : placement.data()};
  torus_sharding_t *sharding = nullptr;
  check(torus_sharding_create(&layout, &sharding));
  return ShardingPtr(sharding);
}

// The elements, dense and row-major.
ValuePtr read(const at::Tensor &t) {
  const torus_view_t view = view_of(t);
  Recording recording(t.device().index());
  torus_value_t *value = nullptr;
  check(torus_view_read(engine(), &view, &value));
  return ValuePtr(value);
}

torus_value_t *spread_host(const at::Tensor &tensor, torus_sharding_t *sharding) {
  const at::Tensor host = tensor.cpu().resolve_conj().resolve_neg().contiguous();
  torus_value_t *value = nullptr;
  check(torus_value_from_host_sharded(engine(), host.const_data_ptr(),
                                      to_dtype(host.scalar_type()), static_cast<int>(host.dim()),
                                      host.sizes().data(), sharding, &value));
  return value;
}

torus_value_t *spread_device(const at::Tensor &tensor, torus_sharding_t *sharding) {
  const ValuePtr own = read(tensor);
  torus_value_t *value = nullptr;
  check(torus_value_lay_out(own.get(), sharding, 0, &value));
  return value;
}

// A new tensor with the same elements; the caller sees to gradients.
at::Tensor distribute(const at::Tensor &tensor, const Layout &lists) {
  const ShardingPtr sharding = make_sharding(lists);
  const int home = std::get<0>(lists)[0];
  TORCH_CHECK_VALUE(std::get<1>(lists).size() == static_cast<size_t>(tensor.dim()),
                    "a layout of ", std::get<1>(lists).size(), " dimensions for a tensor of ",
                    tensor.dim());
  torus_value_t *value = tensor.device().type() == kTpu ? spread_device(tensor, sharding.get())
                                                        : spread_host(tensor, sharding.get());
  return tensor_from_value(value, home, to_dtype(tensor.scalar_type()), tensor.sizes(),
                           c10::contiguous_strides(tensor.sizes()));
}

std::optional<Layout> layout_of(const at::Tensor &tensor) {
  TORCH_CHECK_TYPE(tensor.device().type() == kTpu, "expected a tensor on device \"tpu\", got one on ",
                   tensor.device());
  if (tensor.numel() == 0) return std::nullopt;
  const ValuePtr value = read(tensor);
  torus_sharding_t *found = nullptr;
  check(torus_value_sharding(value.get(), &found));
  if (found == nullptr) return std::nullopt;
  const ShardingPtr sharding(found);
  const torus_sharding_layout_t layout = torus_sharding_layout(found);
  return Layout{{layout.devices, layout.devices + layout.device_count},
                {layout.parts, layout.parts + layout.rank},
                {layout.placement, layout.placement + layout.device_count}};
}

// zeros_like and its kin begin here: what they make lies as what it is like, so that an optimizer's
// states lie as its parameters.
at::Tensor empty_like(const at::Tensor &self, std::optional<at::ScalarType> dtype,
                      std::optional<at::Layout> layout, std::optional<at::Device> device,
                      std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  at::Tensor made = at::native::empty_like(self, dtype, layout, device, pin_memory, format);
  // A fake tensor says that it is on the device, and its storage is of none.
  const bool is_real = self.layout() == at::kStrided && self.storage().device().type() == kTpu;
  if (is_real && made.device() == self.device() && made.numel() > 0) {
    torus_storage_lie_like(view_of(made).storage, view_of(self).storage);
  }
  return made;
}

py::bytes last_optimized() {
  char *bytes = nullptr;
  size_t size = 0;
  {
    py::gil_scoped_release no_gil;
    check(torus_engine_last_optimized(engine(), &bytes, &size));
  }
  py::bytes copy(bytes, size);
  torus_free(bytes);
  return copy;
}

} // namespace

ShardingPtr sharding_behind(const at::Tensor &tensor) {
  torus_sharding_t *found = nullptr;
  check(torus_storage_sharding(storage_behind(tensor), &found));
  return ShardingPtr(found);
}

ShardingPtr replicated_row(const torus_sharding_t *mesh) {
  torus_sharding_t *made = nullptr;
  check(torus_sharding_replicated(mesh, 1, &made));
  return ShardingPtr(made);
}

void define_shardings(py::module_ &m) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  m.def("_distribute", &distribute, release);
  m.def("_layout", &layout_of, release);
  m.def("_last_program_optimized", &last_optimized);
}

} // namespace torus

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("empty_like", TORCH_FN(torus::empty_like)); }
