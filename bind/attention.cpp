// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Which kernel F.scaled_dot_product_attention uses on this device. "Flash" means for any device but
// CUDA _scaled_dot_product_flash_attention_for_cpu, which takes an additive mask and is lowered in
// src/ops/attention.c; dropout and a mask that wants a gradient take the composite route.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/GradMode.h>

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

int64_t choose(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
               const std::optional<at::Tensor> &mask, double dropout, bool /*causal*/,
               std::optional<double> /*scale*/, bool grouped) {
  const bool wanted = at::globalContext().userEnabledFlashSDP();
  const bool native = wanted && lowered(query, key, value, mask, dropout, grouped);
  return static_cast<int64_t>(native ? at::SDPBackend::flash_attention : at::SDPBackend::math);
}

} // namespace
} // namespace torus

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torus::choose)
} // namespace at::native
