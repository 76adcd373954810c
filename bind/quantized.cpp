// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Quantized tensors (torch.qint8 and its kin) do not live on the device: PyTorch has deprecated
// them, and what replaced them, torchao, keeps integers and scales in plain tensors. Every way to
// one ends here.
#include "quantized.h"

#include <torch/library.h>

namespace torus {
namespace {

bool names_quantized_type(const c10::Argument &argument, const c10::IValue &value) {
  const auto type = argument.real_type();
  const bool is_type = type->str() == "ScalarType" || type->str() == "ScalarType?";
  return is_type && value.isInt() && c10::isQIntType(static_cast<at::ScalarType>(value.toInt()));
}

[[noreturn]] void refuse(const c10::OperatorHandle &op) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.operator_name().name,
      ": quantized tensors (torch.qint8, torch.quint8, torch.qint32) cannot live on device "
      "\"tpu\", and PyTorch has deprecated them. Quantize weights with torchao.quantization, "
      "simulate with torch.fake_quantize_per_tensor_affine, or call .dequantize() on the CPU "
      "first");
}

void refuse_boxed(const c10::OperatorHandle &op, torch::jit::Stack * /*stack*/) { refuse(op); }

} // namespace

void refuse_quantized_types(const c10::OperatorHandle &op, const torch::jit::Stack &stack) {
  const auto &arguments = op.schema().arguments();
  const size_t first = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (names_quantized_type(arguments[i], stack[first + i])) refuse(op);
  }
}

TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_boxed>());
}

} // namespace torus
