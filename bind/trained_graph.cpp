// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// A forward and a backward graph as one function of autograd. AOTAutograd does this in Python, for
// every kind of graph; where a graph is small, that takes several times as long as recording it.
// This does the same for graphs without anything unusual, and calls AOTAutograd's function for the
// rest, and as long as it has not been through both graphs once.
#include "trained_graph.h"

#include <ATen/Context.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable_info.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>

#include "compiled_graph.h"

namespace py = pybind11;
namespace ag = torch::autograd;
namespace dynamo = torch::dynamo::autograd;

namespace torus {
namespace {

// The gradient of a result as the backward graph takes it.
struct Tangent {
  size_t output = 0;
  std::vector<int64_t> strides;                // empty: |format| decides
  std::optional<at::MemoryFormat> format;
};

// What is known when the forward graph is compiled, and the backward graph once there is one.
struct Pair {
  std::shared_ptr<CompiledGraph> forward, backward;
  std::vector<bool> differentiable; // per result
  std::vector<Tangent> tangents;
  std::vector<bool> wanted;         // per argument: whether the backward graph has its gradient
  bool is_deterministic = false;
};

at::Tensor as_expected(const at::Tensor &grad, const Tangent &tangent) {
  if (tangent.format) return grad.contiguous(*tangent.format);
  if (grad.strides() == tangent.strides) return grad;
  at::Tensor moved = at::empty_strided(grad.sizes(), tangent.strides, grad.options());
  return moved.copy_(grad);
}

std::vector<at::Tensor> from_list(const py::object &list) {
  std::vector<at::Tensor> tensors;
  for (const py::handle o : list)
    tensors.push_back(o.is_none() ? at::Tensor() : py::cast<at::Tensor>(o));
  return tensors;
}

// Through Python where this is not a program yet.
std::vector<at::Tensor> call_graph(const CompiledGraph &graph, std::vector<at::Tensor> tensors) {
  const std::shared_ptr<Program> program = graph.find_joined(tensors);
  if (program != nullptr) return program->run(std::move(tensors));
  const py::gil_scoped_acquire gil;
  py::list args = py::cast(tensors);
  tensors.clear();
  return from_list(graph.call(std::move(args)));
}

void check_state(const Pair &pair) {
  using c10::DispatchKey;
  TORCH_CHECK(!c10::impl::tls_is_dispatch_key_included(DispatchKey::FuncTorchDynamicLayerFrontMode),
              "It looks like you're trying to call a compiled backward function within "
              "vmap/grad/vjp, which isn't supported. Try wrapping vmap inside torch.compile, or "
              "skip compiling the backward function.");
  TORCH_CHECK(pair.is_deterministic || !at::globalContext().deterministicAlgorithms(),
              "This compiled backward function is being run with "
              "torch.use_deterministic_algorithms(True), but it was previously generated during "
              "the forward function while torch.use_deterministic_algorithms(False) was set.");
}

// |grads| has a tensor for each tangent.
ag::variable_list run_backward(const Pair &pair, std::vector<at::Tensor> saved,
                               std::vector<at::Tensor> grads) {
  check_state(pair);
  const at::AutoGradMode no_grad(false);
  for (size_t i = 0; i < grads.size(); ++i)
    saved.push_back(as_expected(std::move(grads[i]), pair.tangents[i]));
  grads.clear();
  return call_graph(*pair.backward, std::move(saved));
}

// The same as a function of compiled autograd, which packs what a node has saved.
ag::variable_list run_packed(const Pair &pair, const std::vector<uint32_t> &places,
                             const ag::variable_list &grads,
                             const std::vector<c10::IValue> &args) {
  dynamo::PackedArgs packed(args);
  auto saved = packed.unpack<ag::variable_list>();
  const auto info = packed.unpack<std::vector<ag::VariableInfo>>();
  at::OptionalDeviceGuard guard;
  std::vector<at::Tensor> tangents;
  for (const Tangent &tangent : pair.tangents) {
    const uint32_t place = places[tangent.output];
    tangents.push_back(grads[place].defined() ? grads[place] : info[place].zeros(guard));
  }
  return run_backward(pair, std::move(saved), std::move(tangents));
}

class CompiledFunctionBackward final : public ag::Node {
public:
  CompiledFunctionBackward(std::shared_ptr<const Pair> pair, ag::edge_list edges)
      : Node(std::move(edges)), pair_(std::move(pair)) {}

  std::string name() const override { return "CompiledFunctionBackward"; }

  // After the results have their history.
  void save(const std::vector<at::Tensor> &outputs, size_t results) {
    for (size_t i = results; i < outputs.size(); ++i) {
      const at::Tensor &t = outputs[i];
      bool is_result = false;
      for (size_t k = 0; k < results; ++k) is_result |= outputs[k].is_same(t);
      saved_.emplace_back(t.is_view() ? t.detach() : t, is_result);
    }
  }

  void set_place(size_t output, uint32_t place) {
    if (places_.size() <= output) places_.resize(output + 1);
    places_[output] = place;
  }

  ag::variable_list apply(ag::variable_list &&grads) override {
    const bool is_recorded = at::GradMode::is_enabled();
    std::vector<at::Tensor> tangents;
    for (const Tangent &tangent : pair_->tangents) tangents.push_back(take(tangent, grads));
    ag::variable_list found = run_backward(*pair_, unpack(), std::move(tangents));
    TORCH_CHECK(found.size() == num_outputs(), "a compiled backward graph gave ", found.size(),
                " gradients instead of ", num_outputs());
    return is_recorded ? refuse_twice(std::move(found)) : found;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (ag::SavedVariable &saved : saved_) saved.reset_data();
  }

  // Compiled autograd puts a call of the backward graph into its own graph.

  void compiled_args(dynamo::CompiledNodeArgs &args) const override {
    args.collect(static_cast<uint64_t>(reinterpret_cast<uintptr_t>(pair_.get())));
    args.collect(saved_, true);
    args.collect(input_info());
  }

  ag::variable_list apply_with_saved(const ag::variable_list &grads,
                                     dynamo::SwapSavedVariables &swapped) override {
    std::vector<ag::VariableInfo> info = input_info();
    swapped.before(saved_);
    swapped.before(info);
    ag::variable_list found = call_later(grads, info, swapped.get_py_compiler());
    swapped.after(saved_);
    swapped.after(info);
    return found;
  }

private:
  std::shared_ptr<const Pair> pair_;
  std::vector<ag::SavedVariable> saved_;
  std::vector<uint32_t> places_; // per result that has a gradient: which of the node's inputs it is

  std::vector<at::Tensor> unpack() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<at::Tensor> tensors;
    tensors.reserve(saved_.size() + pair_->tangents.size());
    for (const ag::SavedVariable &saved : saved_) tensors.push_back(saved.unpack(getptr()));
    return tensors;
  }

  at::Tensor take(const Tangent &tangent, ag::variable_list &grads) const {
    const uint32_t place = places_[tangent.output];
    at::Tensor grad = std::move(grads[place]);
    return grad.defined() ? grad : input_metadata(place).zeros_like();
  }

  // What the zeros are like that stand for missing gradients.
  std::vector<ag::VariableInfo> input_info() const {
    std::vector<ag::VariableInfo> all(num_inputs());
    for (uint32_t i = 0; i < all.size(); ++i) {
      const ag::InputMetadata &metadata = input_metadata(i);
      all[i].device = metadata.device();
      all[i].scalar_type = metadata.dtype().toScalarType();
      const auto sizes = metadata.shape_as_dim_vector();
      all[i].size.assign(sizes.begin(), sizes.end());
      all[i].requires_grad = all[i].is_empty = false;
    }
    return all;
  }

  // The results are stand-ins: the call is for the graph that |compiler| makes.
  ag::variable_list call_later(const ag::variable_list &grads,
                               const std::vector<ag::VariableInfo> &info, PyObject *compiler) {
    dynamo::PackedArgs packed;
    packed.pack(unpack());
    packed.pack(info);
    const std::vector<c10::IValue> args = std::move(packed).vec();
    std::vector<at::TypePtr> schema;
    for (const c10::IValue &arg : args)
      schema.push_back(arg.isTensor() ? at::TypePtr(at::TensorType::get()) : arg.type());
    const auto &interface = dynamo::getPyCompilerInterface();
    const std::string function = interface->bind_function(
        compiler, name(),
        [pair = pair_, places = places_](const ag::variable_list &g,
                                         const std::vector<c10::IValue> &a) {
          return run_packed(*pair, places, g, a);
        },
        schema, /*is_custom_function=*/true, /*is_traceable=*/false);
    const auto metadata = dynamo::IValuePacker<std::vector<std::optional<ag::InputMetadata>>>::pack(
        dynamo::get_input_metadata(next_edges()));
    return interface->call_function(compiler, "apply_functional", function, grads, args, metadata);
  }

  // The gradients, which raise where somebody asks for theirs.
  static ag::variable_list refuse_twice(ag::variable_list grads) {
    const auto error = c10::make_intrusive<ag::Error>(
        "torch.compile with aot_autograd does not currently support double backward");
    for (at::Tensor &grad : grads) {
      if (!grad.defined()) continue;
      grad = grad.detach();
      ag::set_history(grad, error);
    }
    return grads;
  }
};

class TrainedGraph {
public:
  TrainedGraph(py::object otherwise, std::shared_ptr<CompiledGraph> forward,
               std::vector<bool> differentiable, bool is_deterministic)
      : otherwise_(std::move(otherwise)), pair_(std::make_shared<Pair>()) {
    pair_->forward = std::move(forward);
    pair_->differentiable = std::move(differentiable);
    pair_->is_deterministic = is_deterministic;
  }

  // In the order of the backward graph's arguments. |format| is None where |strides| count.
  void add_tangent(size_t output, std::vector<int64_t> strides,
                   std::optional<at::MemoryFormat> format) {
    pair_->tangents.push_back({output, std::move(strides), format});
  }

  // |wanted| tells for each argument whether the graph returns a gradient.
  void set_backward(std::shared_ptr<CompiledGraph> backward, std::vector<bool> wanted) {
    pair_->wanted = std::move(wanted);
    pair_->backward = std::move(backward);
  }

  py::object call(const py::args &args) const {
    std::vector<at::Tensor> tensors;
    if (!take(args, tensors)) return otherwise_(*args);
    const std::shared_ptr<Program> program = pair_->forward->find_joined(tensors);
    if (program == nullptr) return otherwise_(*args);
    std::vector<at::Tensor> outputs;
    {
      const py::gil_scoped_release no_gil;
      outputs = run(*program, tensors);
    }
    const size_t results = pair_->differentiable.size();
    py::list list(results);
    for (size_t i = 0; i < results; ++i) { /* None for what is undefined */
      PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i),
                      THPVariable_Wrap(std::move(outputs[i])));
    }
    return list;
  }

private:
  py::object otherwise_;
  std::shared_ptr<Pair> pair_;

  // Whether all is as usual.
  bool take(const py::args &args, std::vector<at::Tensor> &tensors) const {
    if (pair_->backward == nullptr || pair_->backward->size() == 0) return false;
    if (pair_->wanted.size() != args.size()) return false;
    tensors.reserve(args.size());
    for (const py::handle arg : args) {
      if (!THPVariable_Check(arg.ptr())) return false;
      const at::Tensor &t = THPVariable_Unpack(arg.ptr());
      if (t.device().type() != kTpu || t.key_set().has(c10::DispatchKey::Python)) return false;
      tensors.push_back(t);
    }
    return !has_hooks();
  }

  static bool has_hooks() {
    return at::SavedTensorDefaultHooks::is_enabled() &&
           at::SavedTensorDefaultHooks::get_hooks().has_value();
  }

  ag::edge_list edges_of(const std::vector<at::Tensor> &tensors) const {
    ag::edge_list edges(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (pair_->wanted[i] && tensors[i].requires_grad())
        edges[i] = ag::impl::gradient_edge(tensors[i]);
    }
    return edges;
  }

  std::vector<at::Tensor> run(const Program &program,
                              const std::vector<at::Tensor> &tensors) const {
    const at::AutoGradMode no_grad(false);
    std::vector<at::Tensor> outputs = program.run(tensors);
    ag::edge_list edges = edges_of(tensors);
    const bool has_edges = std::any_of(edges.begin(), edges.end(),
                                       [](const ag::Edge &edge) { return edge.is_valid(); });
    if (!has_edges) return outputs;
    const auto node = c10::make_intrusive<CompiledFunctionBackward>(pair_, std::move(edges));
    for (size_t i = 0; i < pair_->differentiable.size(); ++i) {
      if (!pair_->differentiable[i] || !outputs[i].defined()) continue;
      node->set_place(i, static_cast<uint32_t>(node->num_inputs()));
      ag::set_history(outputs[i], node);
    }
    node->save(outputs, pair_->differentiable.size());
    return outputs;
  }
};

} // namespace

void define_trained_graphs(py::module_ &m) {
  py::class_<TrainedGraph>(m, "_TrainedGraph", py::dynamic_attr())
      .def(py::init<py::object, std::shared_ptr<CompiledGraph>, std::vector<bool>, bool>())
      .def("add_tangent", &TrainedGraph::add_tangent)
      .def("set_backward", &TrainedGraph::set_backward)
      .def("__call__", &TrainedGraph::call);
}

} // namespace torus
