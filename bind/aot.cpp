// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "aot.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "generator.h"
#include "places.h"
#include "stand_in.h"
#include "tensor.h"
#include "torus/capture.h"
#include "torus/explain.h"
#include "torus/memory.h"

namespace py = pybind11;

namespace torus {
namespace {

// ---- what cannot be lowered ----

struct Missing {
  std::string op, reason;
  torus_place_t place;
};

struct MissingList {
  std::mutex mutex;
  std::vector<Missing> entries;
  bool is_collecting = false; // go on with a shape instead of raising
};

MissingList &missing() {
  static MissingList *const list = new MissingList;
  return *list;
}

void note_missing(const std::string &op, const std::string &reason) {
  const torus_place_t place = current_place();
  std::lock_guard<std::mutex> guard(missing().mutex);
  missing().entries.push_back({op, reason, place});
}

std::string place_name(torus_place_t place) {
  int line = 0;
  const char *file = torus_place_name(place, &line);
  return file != nullptr ? std::string(file) + ":" + std::to_string(line) : std::string();
}

std::vector<std::tuple<std::string, std::string, std::string>> take_missing() {
  std::vector<Missing> entries;
  {
    std::lock_guard<std::mutex> guard(missing().mutex);
    entries.swap(missing().entries);
  }
  std::vector<std::tuple<std::string, std::string, std::string>> list;
  for (const Missing &m : entries) list.emplace_back(m.op, m.reason, place_name(m.place));
  return list;
}

void collect_missing(bool on) {
  std::lock_guard<std::mutex> guard(missing().mutex);
  missing().is_collecting = on;
}

// ---- results with a shape only ----

at::Tensor shaped_like(const at::Tensor &meta) {
  if (!meta.defined()) return meta;
  const at::Device device(kTpu, static_cast<c10::DeviceIndex>(current_device()));
  return at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(device));
}

c10::IValue shaped_like(const c10::IValue &meta) {
  if (meta.isTensor()) return shaped_like(meta.toTensor());
  if (!meta.isTensorList()) return meta;
  std::vector<at::Tensor> list;
  for (const at::Tensor &t : meta.toTensorVector()) list.push_back(shaped_like(t));
  return list;
}

// The argument that a returned value is, for schemas that write one.
int argument_of(const c10::FunctionSchema &schema, const c10::Argument &returned) {
  if (returned.alias_info() == nullptr || !returned.alias_info()->isWrite()) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto *info = schema.arguments()[i].alias_info();
    if (info != nullptr && *info == *returned.alias_info()) return static_cast<int>(i);
  }
  return -1;
}

// ---- tensors ----

std::vector<int64_t> dims_in_memory(const at::Tensor &t) {
  if (!t.is_non_overlapping_and_dense()) {
    return {static_cast<int64_t>(t.storage().nbytes() / t.itemsize())};
  }
  std::vector<int64_t> order(t.dim()), dims;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return (t.size(a) == 1 ? 0 : t.stride(a)) > (t.size(b) == 1 ? 0 : t.stride(b));
  });
  for (const int64_t d : order) dims.push_back(t.size(d));
  return dims;
}

bool has_no_content(const at::Tensor &t) {
  torus_storage_t *storage = storage_behind(t);
  torus_device_lock(engine(), t.device().index());
  const bool is = torus_storage_is_abstract(storage);
  check(torus_device_unlock(engine(), t.device().index(), TORUS_MODE_FUSED));
  return is;
}

uintptr_t storage_key(const at::Tensor &t) {
  return reinterpret_cast<uintptr_t>(storage_behind(t));
}

at::Tensor tensor_of_constant(torus_value_t *value, int device, const torus_capture_slot_t &slot) {
  const std::vector<int64_t> dims(slot.dims, slot.dims + slot.rank);
  Recording recording(device);
  at::Tensor tensor = tensor_from_value(torus_value_retain(value), device, slot.dtype, dims,
                                        c10::contiguous_strides(at::IntArrayRef(dims)));
  recording.commit();
  return tensor;
}

// ---- lowering ----

// One function on its way to text: begin, run it, end.
class Lowering {
public:
  Lowering() = default;
  Lowering(const Lowering &) = delete;
  Lowering &operator=(const Lowering &) = delete;
  ~Lowering() {
    if (is_in_bad_fork()) return;
    abort();
    torus_capture_release(capture_);
  }

  void begin(bool collect, bool for_tpu) {
    for_tpu_ = for_tpu;
    TORCH_CHECK(!is_recording_ && capture_ == nullptr, "this lowering was begun already");
    device_ = current_device();
    check(torus_abstract_begin(engine()));
    TpuGenerator *const generator = resolve_generator(std::nullopt, device_);
    uint64_t seed = 0;
    {
      std::lock_guard<std::mutex> guard(generator->mutex_);
      seed = generator->current_seed();
      first_offset_ = generator->get_offset();
    }
    torus_status_t status = torus_capture_begin(engine(), device_, seed, first_offset_);
    if (status != TORUS_OK) torus_abstract_end(engine());
    check(status);
    is_recording_ = true;
    want_places(true);
    take_missing();
    collect_missing(collect);
  }

  void end(const std::vector<at::Tensor> &wanted) {
    TORCH_CHECK(is_recording_, "this lowering was not begun");
    std::vector<torus_storage_t *> storages;
    for (const at::Tensor &t : wanted) storages.push_back(storage_behind(t));
    char *text = nullptr;
    size_t bytes = 0;
    if (for_tpu_) torus_capture_set_mixed_products(engine(), device_, true);
    torus_status_t status = torus_capture_lower(engine(), device_, storages.data(),
                                                storages.size(), &capture_, &text, &bytes);
    leave();
    check(status);
    text_.assign(text, bytes);
    torus_free(text);
  }

  // Does nothing after the end.
  void abort() {
    if (!is_recording_) return;
    torus_capture_abort(engine(), device_);
    leave();
  }

  const std::string &text() const { return text_; }
  uint64_t drawn() const { return drawn_; }

  py::list arguments() const {
    static const char *const kinds[] = {"storage", "constant", "random"};
    py::list list;
    for (size_t i = 0; i < torus_capture_argument_count(capture()); ++i) {
      const torus_capture_slot_t slot = torus_capture_argument(capture(), i);
      py::dict d = describe(slot);
      d["kind"] = kinds[slot.kind];
      if (slot.kind == TORUS_SOURCE_CONSTANT)
        d["tensor"] = tensor_of_constant(slot.value, device_, slot);
      list.append(d);
    }
    return list;
  }

  py::list outputs() const {
    py::list list;
    for (size_t i = 0; i < torus_capture_output_count(capture()); ++i)
      list.append(describe(torus_capture_output(capture(), i)));
    return list;
  }

private:
  torus_capture_t *capture_ = nullptr;
  std::string text_;
  int device_ = 0;
  bool is_recording_ = false;
  bool for_tpu_ = false;
  uint64_t first_offset_ = 0, drawn_ = 0; // blocks of random numbers that a run uses up

  torus_capture_t *capture() const {
    TORCH_CHECK(capture_ != nullptr, "this lowering has not ended");
    return capture_;
  }

  // The generator goes back to where it was: nothing has been drawn.
  void leave() {
    is_recording_ = false;
    torus_abstract_end(engine());
    want_places(false);
    collect_missing(false);
    TpuGenerator *const generator = resolve_generator(std::nullopt, device_);
    std::lock_guard<std::mutex> guard(generator->mutex_);
    const uint64_t now = generator->get_offset();
    drawn_ = now > first_offset_ ? now - first_offset_ : 0;
    if (drawn_ > 0) generator->set_offset(first_offset_);
  }

  static py::dict describe(const torus_capture_slot_t &slot) {
    py::dict d;
    d["key"] = reinterpret_cast<uintptr_t>(slot.storage);
    d["result"] = slot.result;
    d["dtype"] = from_dtype(slot.dtype);
    d["shape"] = py::tuple(py::cast(std::vector<int64_t>(slot.dims, slot.dims + slot.rank)));
    return d;
  }
};

} // namespace

bool is_abstract() {
  torus_engine_t *const started = engine_if_started();
  return started != nullptr && torus_engine_is_abstract(started);
}

bool is_content_free(int device) {
  return is_abstract() && !torus_capture_is_active(engine(), device);
}

void make_abstract(const at::Tensor &tensor) {
  const std::vector<int64_t> dims = dims_in_memory(tensor);
  const int device = tensor.device().index();
  torus_device_lock(engine(), device);
  torus_status_t status =
      torus_storage_set_abstract(storage_behind(tensor), to_dtype(tensor.scalar_type()),
                                 static_cast<int>(dims.size()), dims.data());
  torus_status_t unlocked = torus_device_unlock(engine(), device, TORUS_MODE_FUSED);
  if (status == TORUS_OK) {
    status = unlocked;
  } else {
    torus_status_ignore(unlocked);
  }
  check(status);
}

void note_missing_if_abstract(const std::string &op, const std::string &reason) {
  if (is_abstract()) note_missing(op, reason);
}

void abstract_fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack,
                       const char *reason) {
  const c10::FunctionSchema &schema = op.schema();
  const auto &name = op.operator_name();
  const std::string full =
      name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
  const bool is_lowering = torus_capture_is_active(engine(), current_device());
  if (is_lowering) note_missing(full, *reason != '\0' ? reason : "it has no lowering");
  TORCH_CHECK_NOT_IMPLEMENTED(!is_lowering || missing().is_collecting, full,
                              " cannot be lowered for device \"tpu\"",
                              *reason != '\0' ? ": " : "", reason);
  torch::jit::Stack shapes;
  const std::vector<c10::IValue> arguments =
      torch::jit::pop(*stack, schema.arguments().size());
  for (const c10::IValue &v : arguments) shapes.push_back(stand_in(v, at::Device(at::kMeta)));
  op.callBoxed(&shapes);
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const int written = argument_of(schema, schema.returns()[i]);
    stack->push_back(written >= 0 ? arguments[static_cast<size_t>(written)]
                                  : shaped_like(shapes[i]));
  }
}

void define_aot(py::module_ &m) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<Lowering>(m, "_Lowering")
      .def(py::init<>())
      .def("begin", &Lowering::begin, release)
      .def("end", &Lowering::end, release)
      .def("abort", &Lowering::abort, release)
      .def("text", &Lowering::text)
      .def("drawn", &Lowering::drawn)
      .def("arguments", &Lowering::arguments)
      .def("outputs", &Lowering::outputs);
  m.def("_abstract_begin", [] { check(torus_abstract_begin(engine())); }, release);
  m.def("_abstract_end", [] { torus_abstract_end(engine()); }, release);
  m.def("_is_recording", &is_abstract);
  m.def("_is_abstract", &has_no_content);
  m.def("_make_abstract", &make_abstract);
  m.def("_storage_key", &storage_key);
  m.def("_take_missing", &take_missing);
  m.def(
      "_hold",
      [](int device) {
        torus_device_hold(engine(), resolve_device(static_cast<c10::DeviceIndex>(device)));
      },
      release);
  m.def(
      "_release",
      [](int device) {
        check(torus_device_release(engine(), resolve_device(static_cast<c10::DeviceIndex>(device))));
      },
      release);
}

} // namespace torus
