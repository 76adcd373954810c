// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "compiled_graph.h"

#include <torch/csrc/autograd/python_variable.h>

#include "trained_graph.h"

namespace py = pybind11;

namespace torus {
namespace {

// A tensor of the host counts as the number in it.
bool is_equal(PyObject *arg, const py::object &constant) {
  if (arg == constant.ptr()) return true;
  if (THPVariable_Check(arg)) {
    const at::Tensor &t = THPVariable_Unpack(arg);
    if (is_token(t)) return true;
    return t.dim() == 0 && is_equal(py::handle(arg).attr("item")().ptr(), constant);
  }
  if (Py_TYPE(arg) != Py_TYPE(constant.ptr())) return false;
  return PyObject_RichCompareBool(arg, constant.ptr(), Py_EQ) == 1;
}

bool accepts_all(const std::vector<Argument> &wanted, const std::vector<at::Tensor> &tensors) {
  if (wanted.size() != tensors.size()) return false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!wanted[i].accepts(tensors[i])) return false;
  }
  return true;
}

// Waiting for a layout is not to keep other threads from Python.
bool takes_layouts(const Program &program, const std::vector<at::Tensor> &tensors) {
  if (!torus_engine_is_spread(engine())) return true;
  py::gil_scoped_release no_gil;
  return program.takes_layouts(tensors);
}

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

void CompiledGraph::add(std::shared_ptr<Program> program, const py::list &constants) {
  Entry entry{std::move(program), {}};
  for (const py::handle c : constants)
    entry.constants.push_back(py::reinterpret_borrow<py::object>(c));
  std::vector<Entry> dropped; // after the lock: their objects may run Python
  const std::lock_guard<std::mutex> guard(lock_);
  entries_.insert(entries_.begin(), std::move(entry));
  if (entries_.size() <= kMostPrograms) return;
  dropped.push_back(std::move(entries_.back()));
  entries_.pop_back();
}

void CompiledGraph::clear() {
  std::vector<Entry> dropped;
  const std::lock_guard<std::mutex> guard(lock_);
  dropped.swap(entries_);
}

size_t CompiledGraph::size() const { return entries_.size(); }

bool CompiledGraph::match(const Entry &entry, const py::list &args,
                          std::vector<at::Tensor> &tensors) {
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

py::object CompiledGraph::call(py::list args) const {
  for (const Entry &entry : entries_) {
    std::vector<at::Tensor> tensors;
    if (!match(entry, args, tensors)) continue;
    const std::shared_ptr<Program> program = entry.program;
    if (!takes_layouts(*program, tensors)) continue;
    PyList_SetSlice(args.ptr(), 0, PyList_GET_SIZE(args.ptr()), nullptr);
    return program->call(std::move(tensors));
  }
  return otherwise_(args);
}

std::shared_ptr<Program> CompiledGraph::find_joined(const std::vector<at::Tensor> &tensors) const {
  if (torus_engine_is_spread(engine())) return nullptr;
  const std::lock_guard<std::mutex> guard(lock_);
  for (const Entry &entry : entries_) {
    const bool fits = entry.constants.size() == tensors.size() && entry.program->is_joined() &&
                      accepts_all(entry.program->arguments(), tensors);
    if (fits) return entry.program;
  }
  return nullptr;
}

void define_compiled_graphs(py::module_ &m) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<Program, std::shared_ptr<Program>>(m, "_Program")
      .def(py::init<>())
      .def("begin", &Program::begin, release)
      .def("end", &Program::end)
      .def("abort", &Program::abort, release);
  py::class_<CompiledGraph, std::shared_ptr<CompiledGraph>>(m, "_CompiledGraph", py::dynamic_attr())
      .def(py::init<py::object>())
      .def("add", &CompiledGraph::add)
      .def("clear", &CompiledGraph::clear)
      .def("size", &CompiledGraph::size)
      .def("__call__", &CompiledGraph::call);
  m.def("_sole_owned", &sole_owned);
  define_trained_graphs(m);
}

} // namespace torus
