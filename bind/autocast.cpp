// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Autocast with the lists of operators that PyTorch keeps for its own devices.
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
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

// PyTorch keeps the dtype per thread and starts every thread with float16 for this device type.
// Inside a context the dtype is the user's.
bool choose_bfloat16() {
  if (autocast_depth() > 0 || at::autocast::is_autocast_enabled(kTpu)) return false;
  at::autocast::set_autocast_dtype(kTpu, at::kBFloat16);
  return true;
}

// Autograd gives each device type a thread for backward, so that one device need not wait for
// another. Recording waits for nothing: the two switches of thread would only cost. Where another
// accelerator is in the process, its backward keeps its threads.
void record_backward_here() {
  const at::Context &context = at::globalContext();
  if (context.hasCUDA() || context.hasXPU() || context.hasMPS() || context.hasMTIA()) return;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

} // namespace

// Nothing tells a backend of a new thread.
void prepare_thread() {
  thread_local bool has_dtype = false, has_backward = false;
  if (C10_LIKELY(has_dtype)) return;
  if (!has_backward) record_backward_here();
  has_backward = true;
  has_dtype = choose_bfloat16();
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
