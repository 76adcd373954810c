// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include "aot.h"
#include "generator.h"
#include "quantized.h"
#include "runtime.h"

namespace torus {
namespace {

int64_t bytes_of(const at::Tensor &t) {
  return t.defined() && t.device().type() == kTpu ? static_cast<int64_t>(t.nbytes()) : 0;
}

int64_t bytes_moved(at::ArrayRef<c10::IValue> arguments, int *out_device) {
  int64_t bytes = 0;
  const auto count = [&](const at::Tensor &t) {
    bytes += bytes_of(t);
    if (t.defined() && t.device().type() == kTpu && *out_device < 0)
      *out_device = t.device().index();
  };
  for (const c10::IValue &v : arguments) {
    if (v.isTensor()) count(v.toTensor());
    if (v.isList()) {
      for (const c10::IValue &e : v.toListRef()) {
        if (e.isTensor()) count(e.toTensor());
      }
    }
  }
  return bytes;
}

// A CPU generator seeded from the device's: the CPU's own stream of numbers is left alone, and a
// seed set for the device makes the result repeatable.
at::Generator cpu_stand_in(const c10::IValue &argument, int device) {
  std::optional<at::Generator> own;
  if (!argument.isNone()) own = argument.toGenerator();
  if (own && own->device().is_cpu()) return *own;
  uint64_t seed = 0, offset = 0;
  resolve_generator(own, device < 0 ? current_device() : device)->reserve(4, &seed, &offset);
  return at::detail::createCPUGenerator(seed * 0x9E3779B97F4A7C15ull + offset);
}

void replace_generators(const c10::OperatorHandle &op, torch::jit::Stack *stack, int device) {
  const auto &arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "generator")
      (*stack)[first + i] = cpu_stand_in((*stack)[first + i], device);
  }
}

void boxed_fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  cpu_fallback(op, stack, "");
}

} // namespace

void cpu_fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack, const char *reason) {
  const auto &name = op.operator_name();
  refuse_quantized_types(op, *stack);
  if (is_abstract()) {
    abstract_fallback(op, stack, reason);
    return;
  }
  int device = -1;
  const int64_t bytes =
      bytes_moved(torch::jit::last(*stack, op.schema().arguments().size()), &device);
  report_fallback(name.name + (name.overload_name.empty() ? "" : "." + name.overload_name), bytes,
                  reason);
  replace_generators(op, stack, device);
  at::native::cpu_fallback(op, stack);
}

void register_fallback() {
  static torch::Library *const library = new torch::Library(
      torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}

} // namespace torus
