// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Operators that only hand their arguments on to another form of themselves.
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/_ctc_loss_backward.h>
#include <ATen/ops/tensor_split.h>
#include <torch/library.h>

namespace torus {
namespace {

using at::Tensor;

// Lengths decide sizes: they are read.
std::vector<int64_t> numbers_of(const Tensor &lengths) {
  const Tensor host = lengths.to(at::kCPU, at::kLong).contiguous();
  const int64_t *const first = host.const_data_ptr<int64_t>();
  return {first, first + host.numel()};
}

std::tuple<Tensor, Tensor> ctc_loss(const Tensor &log_probs, const Tensor &targets,
                                    const Tensor &input_lengths, const Tensor &target_lengths,
                                    int64_t blank, bool zero_infinity) {
  return at::_ctc_loss(log_probs, targets, numbers_of(input_lengths), numbers_of(target_lengths),
                       blank, zero_infinity);
}

Tensor ctc_loss_backward(const Tensor &grad, const Tensor &log_probs, const Tensor &targets,
                         const Tensor &input_lengths, const Tensor &target_lengths,
                         const Tensor &loss, const Tensor &log_alpha, int64_t blank,
                         bool zero_infinity) {
  return at::_ctc_loss_backward(grad, log_probs, targets, numbers_of(input_lengths),
                                numbers_of(target_lengths), loss, log_alpha, blank, zero_infinity);
}

// PyTorch wants the places on the CPU, because they decide sizes; ours are read first. One
// computation serves autograd too: it is made of differentiable operators.
std::vector<Tensor> tensor_split(const Tensor &self, const Tensor &places, int64_t dim) {
  TORCH_CHECK(places.scalar_type() == at::kLong && places.dim() <= 1,
              "tensor_split expected tensor_indices_or_sections to be a zero-dimensional or "
              "one-dimensional tensor of dtype long, got ",
              places.scalar_type(), " with ", places.dim(), " dimensions");
  if (places.dim() == 0) return at::tensor_split(self, places.item<int64_t>(), dim);
  return at::tensor_split(self, numbers_of(places), dim);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("tensor_split.tensor_indices_or_sections", tensor_split);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("tensor_split.tensor_indices_or_sections", tensor_split);
  library.impl("_ctc_loss.Tensor", ctc_loss);
  library.impl("_ctc_loss_backward.Tensor", ctc_loss_backward);
}

} // namespace torus
