// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "export.h"

#include <c10/util/strides.h>

#include <algorithm>

#include "generator.h"
#include "runtime.h"
#include "tensor.h"
#include "torus/capture.h"
#include "torus/memory.h"

namespace py = pybind11;

namespace torus {
namespace {

// An array as Python describes it: dtype, shape, the result it gives its memory to (-1: none),
// whether it is seed and offset of random numbers.
using Type = std::tuple<c10::ScalarType, std::vector<int64_t>, int, bool>;

std::vector<torus_capture_slot_t> slots_of(const std::vector<Type> &types) {
  std::vector<torus_capture_slot_t> slots;
  for (const auto &[dtype, shape, result, is_random] : types) {
    torus_capture_slot_t slot{};
    slot.kind = is_random ? TORUS_SOURCE_RANDOM : TORUS_SOURCE_STORAGE;
    slot.result = result;
    slot.dtype = to_dtype(dtype);
    slot.rank = static_cast<int>(shape.size());
    slot.dims = shape.data();
    slots.push_back(slot);
  }
  return slots;
}

class Executable {
public:
  Executable(const py::bytes &program, bool is_serialized, std::vector<Type> arguments,
             std::vector<Type> results)
      : arguments_(std::move(arguments)), results_(std::move(results)) {
    const std::string_view bytes(program);
    const torus_program_bytes_t given{bytes.data(), bytes.size(), is_serialized};
    const auto from = slots_of(arguments_), to = slots_of(results_);
    py::gil_scoped_release no_gil;
    device_ = current_device();
    check(torus_capture_load(engine(), device_, &given, from.data(), from.size(), to.data(),
                             to.size(), &capture_));
  }
  Executable(const Executable &) = delete;
  Executable &operator=(const Executable &) = delete;
  ~Executable() {
    if (!is_in_bad_fork()) torus_capture_release(capture_);
  }

  py::bytes serialize() const {
    char *bytes = nullptr;
    size_t size = 0;
    check(torus_capture_serialize(capture_, &bytes, &size));
    py::bytes copy(bytes, size);
    torus_free(bytes);
    return copy;
  }

  int device() const { return device_; }

  // |tensors| are dense, in order of the arguments that are no random numbers. Those that give their
  // memory to a result hold it afterwards. |drawn| blocks of random numbers are used up.
  std::vector<at::Tensor> run(const std::vector<at::Tensor> &tensors, uint64_t drawn) const {
    std::vector<torus_storage_t *> owners(results_.size(), nullptr);
    std::vector<torus_capture_content_t> contents = contents_of(tensors, owners);
    Results results(results_.size());
    Recording recording(device_);
    uint64_t seed = 0, offset = 0;
    if (drawn > 0) resolve_generator(std::nullopt, device_)->reserve(4 * drawn, &seed, &offset);
    check(torus_capture_apply(capture_, contents.data(), seed, offset, results.values.data()));
    std::vector<at::Tensor> returned;
    for (size_t k = 0; k < results_.size(); ++k) {
      torus_value_t *const value = results.values[k];
      if (owners[k] != nullptr) torus_storage_set(owners[k], value);
      const auto &shape = std::get<1>(results_[k]);
      returned.push_back(tensor_from_value(torus_value_retain(value), device_,
                                           to_dtype(std::get<0>(results_[k])), shape,
                                           c10::contiguous_strides(at::IntArrayRef(shape))));
    }
    recording.commit();
    return returned;
  }

private:
  torus_capture_t *capture_ = nullptr;
  int device_ = 0;
  std::vector<Type> arguments_, results_;

  // What the program takes; |owners| receives, for results that take an argument's place, its storage.
  std::vector<torus_capture_content_t> contents_of(const std::vector<at::Tensor> &tensors,
                                                   std::vector<torus_storage_t *> &owners) const {
    std::vector<torus_capture_content_t> contents(arguments_.size() + 1);
    size_t next = 0;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto &[dtype, shape, result, is_random] = arguments_[i];
      if (is_random) continue;
      TORCH_CHECK_VALUE(next < tensors.size(), "this program takes more than ", tensors.size(),
                        " tensors");
      contents[i].storage = storage_for(tensors[next++], dtype, shape);
      if (result >= 0) owners.at(static_cast<size_t>(result)) = contents[i].storage;
    }
    return contents;
  }

  torus_storage_t *storage_for(const at::Tensor &t, c10::ScalarType dtype,
                               const std::vector<int64_t> &shape) const {
    const at::Device device(kTpu, static_cast<c10::DeviceIndex>(device_));
    TORCH_CHECK_VALUE(t.device() == device && t.scalar_type() == dtype &&
                          t.numel() == c10::multiply_integers(shape) && t.storage_offset() == 0 &&
                          t.nbytes() == t.storage().nbytes(),
                      "a program takes a dense tensor of ", dtype, " and shape ",
                      at::IntArrayRef(shape), " on ", device, ", got ", t.scalar_type(), " ",
                      t.sizes(), " on ", t.device());
    return storage_behind(t);
  }
};

} // namespace

void define_export(py::module_ &m) {
  py::class_<Executable>(m, "_Executable")
      .def(py::init<const py::bytes &, bool, std::vector<Type>, std::vector<Type>>())
      .def("serialize", &Executable::serialize)
      .def("device", &Executable::device)
      .def("run", &Executable::run, py::call_guard<py::gil_scoped_release>());
}

} // namespace torus
