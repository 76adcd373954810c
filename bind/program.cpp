// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "program.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "aot.h"
#include "generator.h"
#include "sharding.h"

namespace py = pybind11;

namespace torus {
namespace {

size_t bytes_of(const at::Tensor &t) {
  return at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.itemsize());
}

// Whether a tensor is its storage from the beginning to the end, in whatever order.
bool is_plain(const at::Tensor &t, size_t bytes) {
  return t.storage_offset() == 0 && t.storage().nbytes() == bytes;
}

// The stretch of the storage that a tensor is in, as a row; lazy bits are left out.
at::Tensor stretch_of(const at::Tensor &t, size_t bytes) {
  const auto count = static_cast<int64_t>(bytes / t.itemsize());
  at::Tensor row = t.as_strided({count}, {1}, t.storage_offset());
  row._set_conj(false);
  row._set_neg(false);
  return row;
}

// How an argument lies on several devices; null on one. What is in the middle of a storage is copied
// for each call, and that copy lies on all of them.
ShardingPtr layout_for(const at::Tensor &t, size_t bytes) {
  if (!torus_engine_is_spread(engine())) return nullptr;
  ShardingPtr found = sharding_behind(t);
  if (found == nullptr || is_plain(t, bytes)) return found;
  return replicated_row(found.get());
}

at::Tensor view_over(const c10::Storage &storage, const Output &o, int64_t offset) {
  at::Tensor tensor = tensor_over(storage, o.dtype, o.sizes, o.strides, offset);
  if (o.is_conj) tensor._set_conj(true);
  if (o.is_neg) tensor._set_neg(true);
  return tensor;
}

bool is_whole(const Output &o, const Argument &a) {
  return o.dtype == a.dtype && o.sizes == a.sizes && o.strides == a.strides && o.offset == 0 &&
         o.is_conj == a.is_conj && o.is_neg == a.is_neg;
}

void share_version(const at::Tensor &t, const at::Tensor &with) {
  if (t.is_inference() || with.is_inference()) return;
  t.unsafeGetTensorImpl()->set_version_counter(with.unsafeGetTensorImpl()->version_counter());
}

// The output before the last that is over the same storage made anew, or -1.
int sibling_of_last(const std::vector<Output> &outputs) {
  for (size_t i = 0; i + 1 < outputs.size(); ++i) {
    const bool is_same = outputs[i].from == outputs.back().from &&
                         outputs[i].from == Output::From::Result &&
                         outputs[i].index == outputs.back().index;
    if (is_same) return static_cast<int>(i);
  }
  return -1;
}

// Where |object| is in |list| before |end|, or -1.
int first_place(const py::list &list, py::handle object, size_t end) {
  for (size_t i = 0; i < end; ++i) {
    if (PyList_GET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i)) == object.ptr())
      return static_cast<int>(i);
  }
  return -1;
}

} // namespace

Argument::Argument(const at::Tensor &t)
    : dtype(t.scalar_type()), sizes(t.sizes().vec()), strides(t.strides().vec()),
      bytes(bytes_of(t)), is_conj(t.is_conj()), is_neg(t.is_neg()), layout(layout_for(t, bytes)) {}

bool Argument::lies_as(const at::Tensor &t) const {
  return torus_sharding_equal(layout.get(), layout_for(t, bytes).get());
}

Program::~Program() {
  if (is_in_bad_fork()) return;
  abort();
  torus_capture_release(capture_);
}

std::vector<at::Tensor> Program::begin(const std::vector<at::Tensor> &tensors,
                                       const std::vector<bool> &given) {
  TORCH_CHECK(!is_recording_ && capture_ == nullptr, "this program was begun already");
  device_ = tensors.empty() ? current_device() : tensors[0].device().index();
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK(tensors[i].device() == at::Device(kTpu, static_cast<c10::DeviceIndex>(device_)),
                "all arguments of a program are on one tpu device");
    arguments_.emplace_back(tensors[i]);
    arguments_.back().is_given = given[i];
  }
  check(torus_abstract_begin(engine()));
  torus_status_t status = start(tensors);
  if (status != TORUS_OK) torus_abstract_end(engine());
  is_recording_ = status == TORUS_OK;
  check(status);
  return stand_ins_;
}

void Program::end(const py::list &outputs) {
  TORCH_CHECK(is_recording_, "this program was not begun");
  std::vector<torus_storage_t *> wanted, given;
  for (const py::handle o : outputs) {
    add_output(o, wanted);
    outputs_.back().twin = first_place(outputs, o, outputs_.size() - 1);
    outputs_.back().sibling = sibling_of_last(outputs_);
  }
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (arguments_[i].is_given) given.push_back(arguments_[i].stand_in);
  }
  torus_status_t status;
  {
    py::gil_scoped_release no_gil;
    const bool may_join = mode() == TORUS_MODE_FUSED && !torus_engine_is_spread(engine());
    status = torus_capture_compile(engine(), device_, wanted.data(), wanted.size(), given.data(),
                                   given.size(), may_join, &capture_);
    is_recording_ = false;
    leave();
  }
  check(status);
  bind(wanted);
  stand_ins_.clear();
}

void Program::abort() {
  if (!is_recording_) return;
  is_recording_ = false;
  torus_capture_abort(engine(), device_);
  leave();
  stand_ins_.clear();
}

bool Program::takes_layouts(const std::vector<at::Tensor> &tensors) const {
  if (!torus_engine_is_spread(engine())) return true;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!arguments_[i].lies_as(tensors[i])) return false;
  }
  return true;
}

bool Program::is_joined() const { return torus_capture_is_joined(capture_); }

py::list Program::call(std::vector<at::Tensor> tensors) const {
  std::vector<at::Tensor> returned;
  {
    py::gil_scoped_release no_gil;
    returned = run(std::move(tensors));
  }
  py::list list(outputs_.size());
  for (size_t i = 0; i < outputs_.size(); ++i) {
    list[i] = outputs_[i].from == Output::From::Object ? outputs_[i].object
                                                       : py::cast(std::move(returned[i]));
  }
  return list;
}

torus_status_t Program::start(const std::vector<at::Tensor> &tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    stand_ins_.push_back(make_stand_in(arguments_[i]));
    arguments_[i].stand_in = storage_behind(stand_ins_[i]);
    take_type(arguments_[i], tensors[i]);
  }
  TpuGenerator *const generator = resolve_generator(std::nullopt, device_);
  uint64_t seed = 0;
  {
    std::lock_guard<std::mutex> guard(generator->mutex_);
    seed = generator->current_seed();
    first_offset_ = generator->get_offset();
  }
  TORUS_TRY(torus_capture_begin(engine(), device_, seed, first_offset_));
  torus_capture_expect_change(engine(), device_);
  return TORUS_OK;
}

// What stands in is seen as the value that later calls will bring, so that those need no reshape.
void Program::take_type(const Argument &a, const at::Tensor &t) const {
  torus_device_lock(engine(), device_);
  torus_status_t status = TORUS_OK;
  if (is_plain(t, a.bytes)) {
    status = torus_storage_set_abstract_like(a.stand_in, storage_behind(t));
  } else if (a.layout != nullptr) {
    const auto count = static_cast<int64_t>(a.bytes / t.itemsize());
    status = torus_storage_set_abstract(a.stand_in, to_dtype(a.dtype), 1, &count);
  }
  if (status == TORUS_OK && a.layout != nullptr) {
    torus_storage_lay_abstract(a.stand_in, a.layout.get());
  }
  torus_status_ignore(torus_device_unlock(engine(), device_, TORUS_MODE_FUSED));
  check(status);
}

at::Tensor Program::make_stand_in(const Argument &a) const {
  const at::Device device(kTpu, static_cast<c10::DeviceIndex>(device_));
  const auto options = at::TensorOptions().dtype(a.dtype).device(device);
  at::Tensor t = at::empty_strided(a.sizes, a.strides, options);
  if (a.is_conj) t._set_conj(true);
  if (a.is_neg) t._set_neg(true);
  return t;
}

void Program::leave() {
  torus_abstract_end(engine());
  TpuGenerator *const generator = resolve_generator(std::nullopt, device_);
  std::lock_guard<std::mutex> guard(generator->mutex_);
  const uint64_t now = generator->get_offset();
  drawn_ = now > first_offset_ ? now - first_offset_ : 0;
  if (drawn_ > 0) generator->set_offset(first_offset_);
}

int Program::argument_with(const torus_storage_t *storage) const {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (arguments_[i].stand_in == storage) return static_cast<int>(i);
  }
  return -1;
}

void Program::add_output(py::handle object, std::vector<torus_storage_t *> &wanted) {
  Output o;
  o.object = py::reinterpret_borrow<py::object>(object);
  if (THPVariable_Check(object.ptr()) && !is_token(THPVariable_Unpack(object.ptr()))) {
    const at::Tensor &t = THPVariable_Unpack(object.ptr());
    describe(t, o);
    torus_storage_t *const storage = storage_behind(t);
    const int argument = argument_with(storage);
    if (argument >= 0) {
      o.from = Output::From::Argument;
      o.index = static_cast<size_t>(argument);
      arguments_[o.index].is_given = false;
      o.is_whole = is_whole(o, arguments_[o.index]);
    } else {
      o.from = Output::From::Result;
      o.tensor = t;
      const auto known = std::find(wanted.begin(), wanted.end(), storage);
      o.index = static_cast<size_t>(known - wanted.begin());
      if (known == wanted.end()) wanted.push_back(storage);
    }
    o.object = py::none();
  }
  outputs_.push_back(std::move(o));
}

void Program::describe(const at::Tensor &t, Output &o) {
  TORCH_CHECK(t.device().type() == kTpu, "a program returns tensors on \"tpu\", got one on ",
              t.device());
  o.dtype = t.scalar_type();
  o.sizes = t.sizes().vec();
  o.strides = t.strides().vec();
  o.offset = t.storage_offset();
  o.is_conj = t.is_conj();
  o.is_neg = t.is_neg();
}

// From storages of the recording to arguments and results.
void Program::bind(const std::vector<torus_storage_t *> &wanted) {
  for (size_t k = 0; k < torus_capture_argument_count(capture_); ++k) {
    const torus_capture_slot_t slot = torus_capture_argument(capture_, k);
    const bool is_storage = slot.kind == TORUS_SOURCE_STORAGE;
    sources_.push_back(is_storage ? argument_with(slot.storage) : -1);
    held_.push_back(is_storage && sources_.back() < 0 ? slot.storage : nullptr);
  }
  std::unordered_map<const torus_storage_t *, size_t> made;
  for (size_t k = 0; k < torus_capture_output_count(capture_); ++k) {
    const torus_capture_slot_t slot = torus_capture_output(capture_, k);
    const auto result = static_cast<size_t>(slot.result);
    const int argument = argument_with(slot.storage);
    if (argument >= 0) {
      stores_.push_back({result, argument});
      arguments_[static_cast<size_t>(argument)].is_written = true;
    } else {
      made[slot.storage] = result;
    }
  }
  for (torus_storage_t *storage : wanted) {
    const auto found = made.find(storage);
    storage_results_.push_back(found != made.end() ? found->second : SIZE_MAX);
  }
  for (Output &o : outputs_) {
    if (o.from != Output::From::Result) continue;
    if (storage_results_[o.index] == SIZE_MAX) {
      o.from = Output::From::Tensor; // it was there before and does not change
    } else {
      o.tensor = at::Tensor();
    }
  }
}

// The tensor itself, or one that holds what is needed of its storage.
at::Tensor Program::plain(const at::Tensor &t, const Argument &a) {
  if (is_plain(t, a.bytes)) return t;
  at::Tensor row = at::empty({static_cast<int64_t>(a.bytes / t.itemsize())}, t.options());
  if (a.layout != nullptr) torus_storage_pin(storage_behind(row), a.layout.get());
  row.copy_(stretch_of(t, a.bytes));
  return row;
}

std::vector<at::Tensor> Program::run(std::vector<at::Tensor> tensors) const {
  std::vector<at::Tensor> whole(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    whole[i] = plain(tensors[i], arguments_[i]);
    if (arguments_[i].is_given && !arguments_[i].is_written) tensors[i].reset();
  }
  Results results(torus_capture_result_count(capture_));
  Recording recording(device_);
  launch(whole, results.values);
  std::vector<at::Tensor> returned = wrap(tensors, results.values);
  recording.commit();
  write_back(tensors, whole);
  return returned;
}

// Everything that must not fail afterwards: the results replace what was given away.
void Program::launch(std::vector<at::Tensor> &whole, std::vector<torus_value_t *> &results) const {
  std::vector<torus_capture_content_t> contents(sources_.size() + 1);
  const bool is_captured = torus_capture_is_active(engine(), device_);
  for (size_t k = 0; k < sources_.size(); ++k) {
    if (sources_[k] < 0) {
      contents[k].storage = held_[k];
      continue;
    }
    const auto i = static_cast<size_t>(sources_[k]);
    torus_storage_t *const storage = storage_behind(whole[i]);
    if (arguments_[i].is_given && !arguments_[i].is_written && !is_captured) {
      contents[k].value = torus_storage_get(storage);
      whole[i].reset();
    } else {
      contents[k].storage = storage;
    }
  }
  uint64_t seed = 0, offset = 0;
  if (drawn_ > 0) resolve_generator(std::nullopt, device_)->reserve(4 * drawn_, &seed, &offset);
  check(torus_capture_apply(capture_, contents.data(), seed, offset, results.data()));
  for (const Store &store : stores_) {
    torus_storage_set(storage_behind(whole[static_cast<size_t>(store.argument)]),
                      results[store.result]);
  }
}

// Tensors that are the same object in the graph stay so, and those that share a storage share the
// count of writes: autograd knows them by that.
at::Tensor Program::wrap_one(const Output &o, const std::vector<at::Tensor> &tensors,
                             const std::vector<c10::Storage> &storages,
                             const std::vector<at::Tensor> &before) const {
  switch (o.from) {
  case Output::From::Object: break;
  case Output::From::Tensor: return o.tensor;
  case Output::From::Result: {
    at::Tensor made = view_over(storages[o.index], o, o.offset);
    if (o.sibling >= 0) share_version(made, before[static_cast<size_t>(o.sibling)]);
    return made;
  }
  case Output::From::Argument: {
    const at::Tensor &t = tensors[o.index];
    if (o.is_whole) return t;
    at::Tensor made = view_over(t.storage(), o, t.storage_offset() + o.offset);
    share_version(made, t);
    return made;
  }
  }
  return {};
}

std::vector<at::Tensor> Program::wrap(const std::vector<at::Tensor> &tensors,
                                      const std::vector<torus_value_t *> &results) const {
  std::vector<c10::Storage> storages;
  for (const size_t result : storage_results_) {
    storages.emplace_back(result == SIZE_MAX
                              ? c10::Storage()
                              : storage_with_value(torus_value_retain(results[result]), device_));
  }
  std::vector<at::Tensor> returned;
  returned.reserve(outputs_.size());
  for (const Output &o : outputs_) {
    returned.push_back(o.twin >= 0 ? returned[static_cast<size_t>(o.twin)]
                                   : wrap_one(o, tensors, storages, returned));
  }
  return returned;
}

// Views of larger storages were copied; what was written goes back.
void Program::write_back(const std::vector<at::Tensor> &tensors,
                         const std::vector<at::Tensor> &whole) const {
  for (const Store &store : stores_) {
    const auto i = static_cast<size_t>(store.argument);
    if (whole[i].is_same(tensors[i])) continue;
    stretch_of(tensors[i], arguments_[i].bytes).copy_(whole[i]);
  }
}

} // namespace torus
