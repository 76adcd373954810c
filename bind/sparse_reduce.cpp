// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Products of a sparse CSR matrix and a dense one whose rows are reduced by sum, mean, maximum or
// minimum (torch.sparse.mm with `reduce`), and their gradients.
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <torch/library.h>

namespace torus {
namespace {

using at::Tensor;

// The elements of a CSR matrix one by one, values in the type to compute in.
struct Elements {
  Tensor rows, columns, values; // [nnz]
  int64_t height, width;
};

Elements elements_of(const Tensor &sparse, const Tensor &dense) {
  TORCH_CHECK(sparse.layout() == at::kSparseCsr && sparse.dim() == 2 && dense.dim() == 2 &&
                  dense.layout() == at::kStrided && sparse.size(1) == dense.size(0),
              "sparse_mm_reduce: expected a sparse CSR matrix and a dense one that can be "
              "multiplied, got ",
              sparse.sizes(), " and ", dense.sizes());
  TORCH_CHECK(sparse.scalar_type() == dense.scalar_type(),
              "sparse_mm_reduce: expected both matrices in the same type, got ",
              sparse.scalar_type(), " and ", dense.scalar_type());
  const Tensor crow = sparse.crow_indices(), columns = sparse.col_indices();
  const Tensor rows = at::_convert_indices_from_csr_to_coo(crow, columns).select(0, 0);
  return {rows.to(at::kLong), columns.to(at::kLong),
          sparse.values().to(at::toOpMathType(dense.scalar_type())), sparse.size(0),
          dense.size(1)};
}

bool is_extreme(std::string_view reduce) {
  TORCH_CHECK(reduce == "sum" || reduce == "mean" || reduce == "amax" || reduce == "amin",
              "sparse_mm_reduce: reduce must be sum, mean, amax or amin, got ", reduce);
  return reduce == "amax" || reduce == "amin";
}

// How many elements each element's row has, [nnz, 1].
Tensor row_lengths(const Tensor &sparse, const Elements &e) {
  const Tensor crow = sparse.crow_indices();
  const Tensor lengths = crow.slice(0, 1) - crow.slice(0, 0, e.height);
  return lengths.index_select(0, e.rows).unsqueeze(1);
}

// For each place of the result the number of the first element that has its value; nnz for empty
// rows.
Tensor chosen_elements(const Elements &e, const Tensor &parts, const Tensor &result) {
  const int64_t count = e.values.size(0);
  const Tensor number = at::arange(count, e.rows.options()).unsqueeze(1).expand_as(parts);
  const Tensor hit = at::eq(parts, result.index_select(0, e.rows)).logical_or_(at::isnan(parts));
  const Tensor none = at::full({e.height, e.width}, count, e.rows.options());
  const Tensor candidates = at::where(hit, number, at::scalar_tensor(count, e.rows.options()));
  return none.index_reduce(0, e.rows, candidates, "amin");
}

std::tuple<Tensor, Tensor> mm_reduce(const Tensor &self, const Tensor &other,
                                     std::string_view reduce) {
  const bool extreme = is_extreme(reduce);
  const Elements e = elements_of(self, other);
  Tensor parts = e.values.unsqueeze(1) * other.index_select(0, e.columns);
  Tensor chosen = at::empty({0}, e.rows.options());
  Tensor result = at::zeros({e.height, e.width}, parts.options());
  if (reduce == "mean") parts = parts / row_lengths(self, e);
  result = extreme ? result.index_reduce(0, e.rows, parts, reduce, /*include_self=*/false)
                   : result.index_add(0, e.rows, parts);
  if (extreme && at::GradMode::is_enabled() && (self.requires_grad() || other.requires_grad()))
    chosen = chosen_elements(e, parts, result);
  return {result.to(other.scalar_type()), chosen};
}

Tensor with_values(const Tensor &sparse, const Tensor &values) {
  return at::_sparse_compressed_tensor_unsafe(
      sparse.crow_indices(), sparse.col_indices(), values.to(sparse.scalar_type()), sparse.sizes(),
      sparse.options().layout(at::kSparseCsr));
}

// Gradients of a sum or mean: every element takes part.
std::tuple<Tensor, Tensor> sum_backward(const Tensor &self, const Elements &e, const Tensor &grad,
                                        const Tensor &other, bool is_mean) {
  Tensor share = grad.to(e.values.scalar_type()).index_select(0, e.rows);
  if (is_mean) share = share / row_lengths(self, e);
  const Tensor values = (share * other.index_select(0, e.columns)).sum(1);
  const Tensor dense = at::zeros(other.sizes(), share.options())
                           .index_add(0, e.columns, share * e.values.unsqueeze(1));
  return {values, dense};
}

// Gradients of a maximum or minimum: each place goes to the element that was chosen.
std::tuple<Tensor, Tensor> extreme_backward(const Elements &e, const Tensor &grad,
                                            const Tensor &other, const Tensor &chosen) {
  const int64_t count = e.values.size(0);
  const Tensor dense = at::zeros({other.numel()}, e.values.options());
  const Tensor values = at::zeros({count}, e.values.options());
  if (count == 0) return {values, dense.view(other.sizes())};
  const Tensor flat = chosen.reshape({-1}), place = flat.clamp_max(count - 1);
  const Tensor share =
      at::where(flat < count, grad.to(e.values.scalar_type()).reshape({-1}), at::Scalar(0));
  const Tensor column = at::arange(e.width, flat.options()).repeat({e.height});
  const Tensor target = e.columns.index_select(0, place) * e.width + column;
  const Tensor factor = other.reshape({-1}).index_select(0, target);
  return {values.index_add(0, place, share * factor),
          dense.index_add(0, target, share * e.values.index_select(0, place)).view(other.sizes())};
}

std::tuple<Tensor, Tensor> mm_reduce_backward(const Tensor &self, const Tensor &grad,
                                              const Tensor &other, std::string_view reduce,
                                              const Tensor &chosen, std::array<bool, 2> wanted) {
  const bool extreme = is_extreme(reduce);
  const Elements e = elements_of(self, other);
  const auto [values, dense] = extreme ? extreme_backward(e, grad, other, chosen)
                                       : sum_backward(self, e, grad, other, reduce == "mean");
  return {wanted[0] ? with_values(self, values) : Tensor(),
          wanted[1] ? dense.to(other.scalar_type()) : Tensor()};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, library) {
  library.impl("_sparse_mm_reduce_impl", TORCH_FN(mm_reduce));
  library.impl("_sparse_mm_reduce_impl_backward", TORCH_FN(mm_reduce_backward));
}

} // namespace torus
