// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Nested tensors of the strided layout, which the jagged layout goes through for attention. Their
// buffer is a dense tensor of the device; PyTorch's own functions work on it, or on one component
// after the other, through operators.
#include <ATen/NativeFunctions.h>
#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/unbind.h>
#include <torch/library.h>

namespace torus {
namespace {

using at::Tensor;
namespace native = at::native;

// X(operator, function)
#define TORUS_NESTED_LIST(X)                                                                       \
  X("native_dropout", native_dropout_nested)                                                       \
  X("abs", NestedTensor_abs)                                                                       \
  X("abs_", NestedTensor_abs_)                                                                     \
  X("sgn", NestedTensor_sgn)                                                                       \
  X("sgn_", NestedTensor_sgn_)                                                                     \
  X("add.Tensor", NestedTensor_add_Tensor)                                                         \
  X("add_.Tensor", NestedTensor_add__Tensor)                                                       \
  X("all.dim", NestedTensor_all)                                                                   \
  X("logical_not", NestedTensor_logical_not)                                                       \
  X("logical_not_", NestedTensor_logical_not_)                                                     \
  X("bmm", bmm_nested)                                                                             \
  X("cat", cat_nested)                                                                             \
  X("chunk", chunk_nested_tensor)                                                                  \
  X("copy_", copy_nested_)                                                                         \
  X("cos", NestedTensor_cos)                                                                       \
  X("div.Tensor", NestedTensor_div_Tensor)                                                         \
  X("div.Scalar", NestedTensor_div_Scalar)                                                         \
  X("embedding", NestedTensor_embedding)                                                           \
  X("empty_like", empty_like_nested)                                                               \
  X("isnan", NestedTensor_isnan)                                                                   \
  X("is_same_size", nested_is_same_size)                                                           \
  X("native_layer_norm", nested_layer_norm)                                                        \
  X("native_layer_norm_backward", layer_norm_backward_nested)                                      \
  X("linear", nested_linear)                                                                       \
  X("linear_backward", nested_linear_backward)                                                     \
  X("matmul_backward", matmul_backward_nested)                                                     \
  X("value_selecting_reduction_backward", value_selecting_reduction_backward_nested_symint)        \
  X("mul.Tensor", NestedTensor_mul_Tensor)                                                         \
  X("mul_.Tensor", NestedTensor_mul__Tensor)                                                       \
  X("mul.Scalar", NestedTensor_mul_Scalar)                                                         \
  X("mul_.Scalar", NestedTensor_mul__Scalar)                                                       \
  X("narrow", narrow_nested_symint)                                                                \
  X("neg", NestedTensor_neg)                                                                       \
  X("neg_", NestedTensor_neg_)                                                                     \
  X("relu", NestedTensor_relu)                                                                     \
  X("relu_", NestedTensor_relu_)                                                                   \
  X("gelu_", NestedTensor_gelu_)                                                                   \
  X("gelu", NestedTensor_gelu)                                                                     \
  X("gelu_backward", gelu_backwards_nested)                                                        \
  X("select.int", select_nested)                                                                   \
  X("_nested_select_backward", _nested_select_backward_symint)                                     \
  X("silu", NestedTensor_silu)                                                                     \
  X("silu_", NestedTensor_silu_)                                                                   \
  X("silu_backward", silu_backward_nested)                                                         \
  X("sin", NestedTensor_sin)                                                                       \
  X("_softmax", softmax_nested)                                                                    \
  X("_softmax_backward_data", nested_softmax_backward)                                             \
  X("split_with_sizes", split_with_sizes_nested)                                                   \
  X("squeeze", squeeze_nested)                                                                     \
  X("sum.dim_IntList", NestedTensor_sum_dim_CPU)                                                   \
  X("_nested_sum_backward", _nested_sum_backward_cpu)                                              \
  X("sqrt", NestedTensor_sqrt)                                                                     \
  X("tanh", NestedTensor_tanh)                                                                     \
  X("tanh_", NestedTensor_tanh_)                                                                   \
  X("threshold_backward", threshold_backwards_nested)                                              \
  X("transpose.int", transpose_nested)                                                             \
  X("_nested_tensor_size", _nested_tensor_size)                                                    \
  X("_nested_tensor_strides", _nested_tensor_strides)                                              \
  X("_nested_tensor_storage_offsets", _nested_tensor_storage_offsets)                              \
  X("_nested_from_padded_and_nested_example", NestedTensor_from_padded_and_nested_example)         \
  X("unsqueeze", unsqueeze_nested)                                                                 \
  X("where.self", NestedTensor_where)                                                              \
  X("clone", clone_nested)                                                                         \
  X("zero_", zero_nested_)                                                                         \
  X("sub.Tensor", NestedTensor_sub_Tensor)                                                         \
  X("values", values_nested)                                                                       \
  X("unbind.int", NestedTensor_unbind)                                                             \
  X("_to_copy", _to_copy_nested)                                                                   \
  X("masked_fill.Scalar", NestedTensor_masked_fill)                                                \
  X("view", view_nested)                                                                           \
  X("eq.Scalar", eq_scalar_nested)                                                                 \
  X("eq.Tensor", eq_tensor_nested)                                                                 \
  X("ge.Scalar", ge_scalar_nested)                                                                 \
  X("gt.Scalar", gt_scalar_nested)                                                                 \
  X("normal_", normal_nested_)                                                                     \
  X("alias", alias_nested)                                                                         \
  X("isinf", NestedTensor_isinf)                                                                   \
  X("isposinf", NestedTensor_isposinf)                                                             \
  X("isneginf", NestedTensor_isneginf)                                                             \
  X("to_padded_tensor", NestedTensor_to_padded_tensor_generic)                                     \
  X("_nested_tensor_softmax_with_shape", NestedTensor_softmax_dropout)

// Component by component: PyTorch's kernel joins the products of a batch in memory it addresses
// itself.
Tensor multiply(const Tensor &self, const Tensor &other) {
  if (!self.is_nested() || !other.is_nested()) return native::matmul_nested(self, other);
  const std::vector<Tensor> xs = self.unbind(), ys = other.unbind();
  TORCH_CHECK(xs.size() == ys.size(),
              "matmul: Expected size for the 1st dimension of 2nd input tensor to be: ", xs.size(),
              " but got: ", ys.size(), ".");
  std::vector<Tensor> products;
  for (size_t k = 0; k < xs.size(); ++k) products.push_back(at::matmul(xs[k], ys[k]));
  return at::_nested_tensor_from_tensor_list(products);
}

// 0 is PyTorch's number for attention by products and softmax, the only kind for nested tensors
// here.
int64_t choose_attention(const Tensor &, const Tensor &, const Tensor &,
                         const std::optional<Tensor> &, double, bool, std::optional<double>, bool) {
  return 0;
}

} // namespace

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
#define TORUS_ONE(name, function) m.impl(name, TORCH_FN(native::function));
  TORUS_NESTED_LIST(TORUS_ONE)
#undef TORUS_ONE
  m.impl("matmul", TORCH_FN(multiply));
  m.impl("where.self_out", TORCH_FN(native::NestedTensor_where_out));
  m.impl("matmul.out", TORCH_FN(native::matmul_out_nested));
  m.impl("detach", static_cast<Tensor (*)(const Tensor &)>(&native::detach));
  m.impl("ones_like", TORCH_FN(native::ones_like));
  m.impl("_safe_softmax", TORCH_FN(native::_safe_softmax));
  m.impl("fill_.Scalar",
         static_cast<Tensor &(*)(Tensor &, const at::Scalar &)>(&native::fill_nested_));
  m.impl("fill_.Tensor", static_cast<Tensor &(*)(Tensor &, const Tensor &)>(&native::fill_nested_));
  m.impl("squeeze.dim",
         static_cast<Tensor (*)(const Tensor &, int64_t)>(&native::squeeze_dim_nested));
  m.impl("squeeze.dims",
         static_cast<Tensor (*)(const Tensor &, at::IntArrayRef)>(&native::squeeze_dim_nested));
  m.impl("_fused_sdp_choice", TORCH_FN(choose_attention));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_view_from_buffer", TORCH_FN(native::_nested_view_from_buffer));
  m.impl("_nested_from_padded", TORCH_FN(native::nested_from_padded_generic));
}

} // namespace torus
