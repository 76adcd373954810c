// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "stand_in.h"

#include <ATen/ops/empty_strided.h>

namespace torus {

static at::Tensor stand_in(const at::Tensor &t, at::Device device) {
  if (!t.defined() || t.is_cpu()) return t;
  at::Tensor other = at::empty_strided(t.sizes(), t.strides(), t.options().device(device));
  if (device.is_cpu()) other.zero_();
  if (t.unsafeGetTensorImpl()->is_wrapped_number())
    other.unsafeGetTensorImpl()->set_wrapped_number(true);
  return other;
}

c10::IValue stand_in(const c10::IValue &v, at::Device device) {
  if (v.isTensor()) return stand_in(v.toTensor(), device);
  if (v.isDevice()) return device;
  if (v.isGenerator()) return {};
  if (v.isTensorList()) {
    std::vector<at::Tensor> list;
    for (const at::Tensor &t : v.toTensorVector()) list.push_back(stand_in(t, device));
    return list;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> &t : v.toOptionalTensorVector()) {
      list.push_back(t ? std::optional<at::Tensor>(stand_in(*t, device)) : std::nullopt);
    }
    return list;
  }
  return v;
}

} // namespace torus
