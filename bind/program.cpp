// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// A function of tensors as one program: recorded once on abstract stand-ins for its arguments, then
// called with tensors of the same shapes. A call checks the arguments, hands the contents of their
// storages to the engine and wraps the results; nothing of it runs Python.
#include "program.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "aot.h"
#include "generator.h"
#include "places.h"
#include "sharding.h"
#include "tensor.h"
#include "torus/capture.h"

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

  explicit Argument(const at::Tensor &t)
      : dtype(t.scalar_type()), sizes(t.sizes().vec()), strides(t.strides().vec()),
        bytes(bytes_of(t)), is_conj(t.is_conj()), is_neg(t.is_neg()),
        layout(layout_for(t, bytes)) {}

  bool accepts(const at::Tensor &t) const {
    return t.scalar_type() == dtype && t.sizes() == sizes && t.strides() == strides &&
           t.is_conj() == is_conj && t.is_neg() == is_neg;
  }

  bool lies_as(const at::Tensor &t) const {
    return torus_sharding_equal(layout.get(), layout_for(t, bytes).get());
  }
};

// How a returned tensor comes about.
struct Output {
  enum class From { Object, Result, Argument, Tensor } from = From::Object;
  py::object object; // None, numbers
  size_t index = 0;  // of the result's storage, or of the argument
  at::Tensor tensor; // that was there before
  c10::ScalarType dtype{};
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  bool is_conj = false, is_neg = false;
};

// PyTorch orders effects by passing on empty tensors of the host.
bool is_token(const at::Tensor &t) { return t.is_cpu() && t.numel() == 0; }

at::Tensor view_over(const c10::Storage &storage, const Output &o, int64_t offset) {
  at::Tensor tensor = tensor_over(storage, o.dtype, o.sizes, o.strides, offset);
  if (o.is_conj) tensor._set_conj(true);
  if (o.is_neg) tensor._set_neg(true);
  return tensor;
}

class Program {
public:
  Program() = default;
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;
  ~Program() {
    if (is_in_bad_fork()) return;
    abort();
    torus_capture_release(capture_);
  }

  // ---- recording ----

  // Returns stand-ins for |tensors|; what is done to them until the end becomes the program. A run
  // may use up the memory of those flagged in |given|.
  std::vector<at::Tensor> begin(const std::vector<at::Tensor> &tensors,
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

  // |outputs| are what the function returned for the stand-ins.
  void end(const py::list &outputs) {
    TORCH_CHECK(is_recording_, "this program was not begun");
    std::vector<torus_storage_t *> wanted, given;
    std::vector<at::Tensor> results;
    for (const py::handle o : outputs) add_output(o, wanted, results);
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (arguments_[i].is_given) given.push_back(arguments_[i].stand_in);
    }
    torus_status_t status;
    {
      py::gil_scoped_release no_gil;
      status = torus_capture_compile(engine(), device_, wanted.data(), wanted.size(), given.data(),
                                     given.size(), &capture_);
      is_recording_ = false;
      leave();
    }
    check(status);
    bind(wanted);
    stand_ins_.clear();
  }

  void abort() {
    if (!is_recording_) return;
    is_recording_ = false;
    torus_capture_abort(engine(), device_);
    leave();
    stand_ins_.clear();
  }

  // ---- calling ----

  const std::vector<Argument> &arguments() const { return arguments_; }

  // Whether arguments of the right shapes lie as those did for which the program was compiled.
  bool takes_layouts(const std::vector<at::Tensor> &tensors) const {
    if (!torus_engine_is_spread(engine())) return true;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!arguments_[i].lies_as(tensors[i])) return false;
    }
    return true;
  }

  // Tensors are taken over, so that the last user of a given one lets go of it.
  py::list run(std::vector<at::Tensor> tensors) const {
    std::vector<at::Tensor> returned;
    {
      py::gil_scoped_release no_gil;
      returned = run_without_lock(tensors);
    }
    py::list list(outputs_.size());
    for (size_t i = 0; i < outputs_.size(); ++i) {
      list[i] = outputs_[i].from == Output::From::Object ? outputs_[i].object
                                                         : py::cast(std::move(returned[i]));
    }
    return list;
  }

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

  torus_status_t start(const std::vector<at::Tensor> &tensors) {
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
  void take_type(const Argument &a, const at::Tensor &t) const {
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

  at::Tensor make_stand_in(const Argument &a) const {
    const at::Device device(kTpu, static_cast<c10::DeviceIndex>(device_));
    const auto options = at::TensorOptions().dtype(a.dtype).device(device);
    at::Tensor t = at::empty_strided(a.sizes, a.strides, options);
    if (a.is_conj) t._set_conj(true);
    if (a.is_neg) t._set_neg(true);
    return t;
  }

  void leave() {
    torus_abstract_end(engine());
    TpuGenerator *const generator = resolve_generator(std::nullopt, device_);
    std::lock_guard<std::mutex> guard(generator->mutex_);
    const uint64_t now = generator->get_offset();
    drawn_ = now > first_offset_ ? now - first_offset_ : 0;
    if (drawn_ > 0) generator->set_offset(first_offset_);
  }

  int argument_with(const torus_storage_t *storage) const {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (arguments_[i].stand_in == storage) return static_cast<int>(i);
    }
    return -1;
  }

  void add_output(py::handle object, std::vector<torus_storage_t *> &wanted,
                  std::vector<at::Tensor> &results) {
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

  static void describe(const at::Tensor &t, Output &o) {
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
  void bind(const std::vector<torus_storage_t *> &wanted) {
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

  // ---- calling ----

  // The tensor itself, or one that holds what is needed of its storage.
  static at::Tensor plain(const at::Tensor &t, const Argument &a) {
    if (is_plain(t, a.bytes)) return t;
    at::Tensor row = at::empty({static_cast<int64_t>(a.bytes / t.itemsize())}, t.options());
    if (a.layout != nullptr) torus_storage_pin(storage_behind(row), a.layout.get());
    row.copy_(stretch_of(t, a.bytes));
    return row;
  }

  std::vector<at::Tensor> run_without_lock(std::vector<at::Tensor> &tensors) const {
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
  void launch(std::vector<at::Tensor> &whole, std::vector<torus_value_t *> &results) const {
    std::vector<torus_capture_content_t> contents(sources_.size() + 1);
    for (size_t k = 0; k < sources_.size(); ++k) {
      if (sources_[k] < 0) {
        contents[k].storage = held_[k];
        continue;
      }
      const auto i = static_cast<size_t>(sources_[k]);
      torus_storage_t *const storage = storage_behind(whole[i]);
      if (arguments_[i].is_given && !arguments_[i].is_written) {
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

  std::vector<at::Tensor> wrap(const std::vector<at::Tensor> &tensors,
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
      switch (o.from) {
      case Output::From::Object: returned.emplace_back(); break;
      case Output::From::Tensor: returned.push_back(o.tensor); break;
      case Output::From::Result:
        returned.push_back(view_over(storages[o.index], o, o.offset));
        break;
      case Output::From::Argument:
        returned.push_back(view_over(tensors[o.index].storage(), o,
                                     tensors[o.index].storage_offset() + o.offset));
        break;
      }
    }
    return returned;
  }

  // Views of larger storages were copied; what was written goes back.
  void write_back(const std::vector<at::Tensor> &tensors,
                  const std::vector<at::Tensor> &whole) const {
    for (const Store &store : stores_) {
      const auto i = static_cast<size_t>(store.argument);
      if (whole[i].is_same(tensors[i])) continue;
      stretch_of(tensors[i], arguments_[i].bytes).copy_(whole[i]);
    }
  }
};

// A graph of torch.compile: the programs that were made of it, tried newest first, and what is
// called when none fits.
class CompiledGraph {
public:
  explicit CompiledGraph(py::object otherwise) : otherwise_(std::move(otherwise)) {}

  // |constants| has the arguments that are no tensors on the device, None in place of those.
  void add(std::shared_ptr<Program> program, const py::list &constants) {
    Entry entry{std::move(program), {}};
    for (const py::handle c : constants)
      entry.constants.push_back(py::reinterpret_borrow<py::object>(c));
    entries_.insert(entries_.begin(), std::move(entry));
    if (entries_.size() > kMostPrograms) entries_.pop_back();
  }

  void clear() { entries_.clear(); }
  size_t size() const { return entries_.size(); }

  // Empties |args|, as boxed calls do.
  py::object call(py::list args) {
    for (Entry &entry : entries_) {
      std::vector<at::Tensor> tensors;
      if (!match(entry, args, tensors)) continue;
      const std::shared_ptr<Program> program = entry.program;
      if (!takes_layouts(*program, tensors)) continue;
      PyList_SetSlice(args.ptr(), 0, PyList_GET_SIZE(args.ptr()), nullptr);
      return program->run(std::move(tensors));
    }
    return otherwise_(args);
  }

private:
  static constexpr size_t kMostPrograms = 8;
  struct Entry {
    std::shared_ptr<Program> program;
    std::vector<py::object> constants;
  };
  py::object otherwise_;
  std::vector<Entry> entries_;

  // A tensor of the host counts as the number in it.
  static bool is_equal(PyObject *arg, const py::object &constant) {
    if (arg == constant.ptr()) return true;
    if (THPVariable_Check(arg)) {
      const at::Tensor &t = THPVariable_Unpack(arg);
      if (is_token(t)) return true;
      return t.dim() == 0 && is_equal(py::handle(arg).attr("item")().ptr(), constant);
    }
    if (Py_TYPE(arg) != Py_TYPE(constant.ptr())) return false;
    return PyObject_RichCompareBool(arg, constant.ptr(), Py_EQ) == 1;
  }

  // Waiting for a layout is not to keep other threads from Python.
  static bool takes_layouts(const Program &program, const std::vector<at::Tensor> &tensors) {
    if (!torus_engine_is_spread(engine())) return true;
    py::gil_scoped_release no_gil;
    return program.takes_layouts(tensors);
  }

  static bool match(const Entry &entry, const py::list &args, std::vector<at::Tensor> &tensors) {
    const std::vector<Argument> &wanted = entry.program->arguments();
    const auto count = static_cast<size_t>(PyList_GET_SIZE(args.ptr()));
    if (count != entry.constants.size()) return false;
    tensors.reserve(wanted.size());
    for (size_t i = 0; i < count; ++i) {
      PyObject *const arg = PyList_GET_ITEM(args.ptr(), static_cast<Py_ssize_t>(i));
      if (THPVariable_Check(arg) && THPVariable_Unpack(arg).device().type() == kTpu) {
        const at::Tensor &t = THPVariable_Unpack(arg);
        if (tensors.size() == wanted.size() || !wanted[tensors.size()].accepts(t)) return false;
        tensors.push_back(t);
      } else if (!is_equal(arg, entry.constants[i])) {
        return false;
      }
    }
    return tensors.size() == wanted.size();
  }
};

// For the tensors on the device in a list, in order: whether nothing but the list holds them.
std::vector<bool> sole_owned(const py::list &args) {
  std::vector<bool> flags;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args.ptr()); ++i) {
    PyObject *const arg = PyList_GET_ITEM(args.ptr(), i);
    if (!THPVariable_Check(arg) || THPVariable_Unpack(arg).device().type() != kTpu) continue;
    const at::Tensor &t = THPVariable_Unpack(arg);
    flags.push_back(Py_REFCNT(arg) == 1 && t.use_count() == 1 && t.storage().use_count() == 1);
  }
  return flags;
}

} // namespace

void define_programs(py::module_ &m) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<Program, std::shared_ptr<Program>>(m, "_Program")
      .def(py::init<>())
      .def("begin", &Program::begin, release)
      .def("end", &Program::end)
      .def("abort", &Program::abort, release);
  py::class_<CompiledGraph>(m, "_CompiledGraph", py::dynamic_attr())
      .def(py::init<py::object>())
      .def("add", &CompiledGraph::add)
      .def("clear", &CompiledGraph::clear)
      .def("size", &CompiledGraph::size)
      .def("__call__", &CompiledGraph::call);
  m.def("_sole_owned", &sole_owned);
}

} // namespace torus
