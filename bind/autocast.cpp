// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Autocast with the lists of operators that PyTorch keeps for its own devices.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "hooks.h"
#include "runtime.h"

namespace torus {
namespace {

at::Tensor refuse_binary_cross_entropy(const at::Tensor &, const at::Tensor &,
                                       const std::optional<at::Tensor> &, int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
              "autocast: the logarithm of a probability in low precision overflows. Use "
              "torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss "
              "on what goes into the sigmoid; they are safe to autocast.");
}

// Depth of autocast contexts in this thread; PyTorch only tells it when it changes.
int autocast_depth() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting();
}

} // namespace

// PyTorch keeps the dtype per thread and starts every thread with float16 for this device type;
// nothing tells a backend of a new thread. Inside a context the dtype is the user's.
void prepare_thread() {
  thread_local bool is_ready = false;
  if (C10_LIKELY(is_ready)) return;
  if (autocast_depth() > 0 || at::autocast::is_autocast_enabled(kTpu)) return;
  at::autocast::set_autocast_dtype(kTpu, at::kBFloat16);
  is_ready = true;
}

} // namespace torus

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

#define TORUS_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TORUS_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define TORUS_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define TORUS_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using at::Scalar, at::ScalarType, at::Tensor, at::IntArrayRef; // the lists name them bare
  AT_FORALL_LOWER_PRECISION_FP(TORUS_LOWER_PRECISION)
  AT_FORALL_FP32(TORUS_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TORUS_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(TORUS_PROMOTE)
  m.impl("binary_cross_entropy", TORCH_FN(torus::refuse_binary_cross_entropy));
}
