// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Which kernel F.scaled_dot_product_attention uses on this device. "Flash" means for any device but
// CUDA _scaled_dot_product_flash_attention_for_cpu, which takes an additive mask and is lowered in
// src/ops/attention.c; dropout and a mask that wants a gradient take the composite route. Distributed
// tensors know how to shard, and context parallelism how to rotate, the "memory-efficient" kernel and
// not that of the CPU: here it is the same computation under another name.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include <string_view>

namespace torus {
namespace {

bool heads_fit(const at::Tensor &query, const at::Tensor &key, bool grouped) {
  if (query.dim() == 3) return true;
  const int64_t heads = query.size(-3), shared = key.size(-3);
  return heads == shared || (grouped && shared > 0 && heads % shared == 0);
}

bool leading_sizes_agree(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value) {
  const int64_t last = query.dim() == 3 ? 1 : query.dim() - 3;
  for (int64_t i = 0; i < last; ++i) {
    if (query.size(i) != key.size(i) || query.size(i) != value.size(i)) return false;
  }
  return query.dim() == 3 || key.size(-3) == value.size(-3);
}

bool lowered(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
             const std::optional<at::Tensor> &mask, double dropout, bool grouped) {
  if (query.is_nested() || key.is_nested() || value.is_nested()) return false;
  if (query.dim() < 3 || key.dim() != query.dim() || value.dim() != query.dim()) return false;
  const bool mask_wants_gradient =
      mask.has_value() && mask->requires_grad() && c10::GradMode::is_enabled();
  return dropout == 0.0 && !mask_wants_gradient && at::isFloatingType(query.scalar_type()) &&
         leading_sizes_agree(query, key, value) && heads_fit(query, key, grouped);
}

bool is_dtensor(const at::Tensor &t) {
  if (!t.unsafeGetTensorImpl()->is_python_dispatch()) return false;
  const pybind11::gil_scoped_acquire gil;
  const auto object = pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(t));
  return std::string_view(Py_TYPE(object.ptr())->tp_name) == "DTensor";
}

int64_t choose(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
               const std::optional<at::Tensor> &mask, double dropout, bool /*causal*/,
               std::optional<double> /*scale*/, bool grouped) {
  const at::Context &context = at::globalContext();
  const bool is_lowered = lowered(query, key, value, mask, dropout, grouped);
  auto chosen = at::SDPBackend::math;
  if (is_lowered && is_dtensor(query)) {
    const bool wanted = context.userEnabledFlashSDP() || context.userEnabledMemEfficientSDP();
    if (wanted && !grouped) chosen = at::SDPBackend::efficient_attention;
  } else if (is_lowered && context.userEnabledFlashSDP()) {
    chosen = at::SDPBackend::flash_attention;
  }
  return static_cast<int64_t>(chosen);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
efficient(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
          const std::optional<at::Tensor> &bias, bool /*compute_log_sumexp*/, double dropout,
          bool causal, std::optional<double> scale) {
  TORCH_CHECK(dropout == 0.0, "_scaled_dot_product_efficient_attention: device \"tpu\" has no "
                              "dropout in it; use SDPBackend.MATH");
  auto [out, log_sumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, dropout, causal, bias, scale);
  const at::Tensor unused = at::zeros({}, query.options().dtype(at::kLong));
  return {out, log_sumexp, unused, unused.clone()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
efficient_backward(const at::Tensor &grad, const at::Tensor &query, const at::Tensor &key,
                   const at::Tensor &value, const at::Tensor &bias, const at::Tensor &out,
                   const at::Tensor &log_sumexp, const at::Tensor & /*seed*/,
                   const at::Tensor & /*offset*/, double dropout, std::array<bool, 4> wanted,
                   bool causal, std::optional<double> scale) {
  TORCH_CHECK(!(bias.defined() && wanted[3]),
              "_scaled_dot_product_efficient_attention: device \"tpu\" gives the bias no gradient; "
              "use SDPBackend.MATH");
  const auto mask = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  auto [to_query, to_key, to_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, query, key, value, out, log_sumexp, dropout, causal, mask, scale);
  return {to_query, to_key, to_value, at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_scaled_dot_product_efficient_attention", efficient);
  library.impl("_scaled_dot_product_efficient_attention_backward", efficient_backward);
}

} // namespace
} // namespace torus

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torus::choose)
} // namespace at::native
