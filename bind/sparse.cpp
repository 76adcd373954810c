// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Sparse tensors. Indices and values are dense tensors of the device; PyTorch's own functions work
// on them through operators, and what they leave to each backend is put together here. The rest
// runs on the CPU, reported like any other fallback.
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/SparseTensorUtils.h>
#include <torch/library.h>

#include "runtime.h"

namespace torus {
namespace {

using at::Scalar;
using at::Tensor;
namespace native = at::native;

// ---- parts ----

// Number of positions that the sparse dimensions span, then the dense dimensions.
std::vector<int64_t> flat_sizes(const Tensor &like, int64_t sparse_dim) {
  std::vector<int64_t> sizes{1};
  for (int64_t d = 0; d < like.dim(); ++d) {
    if (d < sparse_dim)
      sizes[0] *= like.size(d);
    else
      sizes.push_back(like.size(d));
  }
  return sizes;
}

// Row-major positions within the sparse dimensions.
Tensor flat_indices(const Tensor &sparse) {
  const Tensor indices = sparse._indices();
  Tensor flat = at::zeros({sparse._nnz()}, indices.options());
  for (int64_t d = 0; d < sparse.sparse_dim(); ++d)
    flat = flat * sparse.size(d) + indices.select(0, d);
  return flat;
}

// The reverse of flat_indices, [sparse_dim, nnz].
Tensor unflattened(const Tensor &flat, const Tensor &like) {
  std::vector<Tensor> rows(like.sparse_dim());
  Tensor rest = flat;
  for (int64_t d = like.sparse_dim() - 1; d >= 0; --d) {
    const int64_t size = std::max<int64_t>(like.size(d), 1);
    rows[d] = at::remainder(rest, size);
    rest = at::floor_divide(rest, size);
  }
  return rows.empty() ? at::empty({0, flat.size(0)}, flat.options()) : at::stack(rows);
}

Tensor make_sparse(const Tensor &like, const Tensor &indices, const Tensor &values,
                   bool is_coalesced) {
  return at::_sparse_coo_tensor_with_dims_and_tensors(
      like.sparse_dim(), like.dense_dim(), like.sizes(), indices, values,
      values.options().layout(at::kSparse), is_coalesced);
}

// |out| takes the content of |result|, in its own type.
Tensor &give(const Tensor &result, Tensor &out) {
  TORCH_CHECK(at::canCast(result.scalar_type(), out.scalar_type()), "Can't convert result type ",
              result.scalar_type(), " to output ", out.scalar_type());
  if (!out.is_sparse()) {
    if (out.sizes() != result.sizes()) out.resize_(result.sizes());
    return out.copy_(result);
  }
  out.sparse_resize_and_clear_(result.sizes(), result.sparse_dim(), result.dense_dim());
  at::sparse::alias_into_sparse(out, result._indices(), result._values().to(out.scalar_type()));
  return out._coalesced_(result.is_coalesced());
}

// ---- coalescing ----

Tensor coalesce(const Tensor &self) {
  if (self.is_coalesced()) return self;
  if (self._nnz() < 2) return self.clone()._coalesced_(true);
  const Tensor values = self._values();
  const auto [flat, inverse, counts] = at::_unique2(flat_indices(self), true, true, false);
  std::vector<int64_t> sizes = values.sizes().vec();
  sizes[0] = flat.size(0);
  const Tensor sums = at::zeros(sizes, values.options()).index_add_(0, inverse, values);
  return make_sparse(self, unflattened(flat, self), sums, true);
}

// ---- sums ----

Tensor add_to_dense(const Tensor &dense, const Tensor &sparse, const Scalar &alpha) {
  TORCH_CHECK(dense.sizes() == sparse.sizes(),
              "add: expected 'self' and 'other' to have same size, but self has size ",
              dense.sizes(), " while other has size ", sparse.sizes());
  const auto type = at::result_type(dense, sparse);
  Tensor values = sparse._values().to(type);
  if (alpha.toComplexDouble() != 1.0) values = values * alpha;
  const auto sizes = flat_sizes(dense, sparse.sparse_dim());
  const Tensor flat = dense.to(type).contiguous().view(sizes);
  return at::index_add(flat, 0, flat_indices(sparse), values).view(dense.sizes());
}

Tensor add_sparse(const Tensor &self, const Tensor &other, const Scalar &alpha) {
  TORCH_CHECK(self.sizes() == other.sizes(),
              "add: expected sizes of 'self' and 'other' to match, but ", self.sizes(),
              " != ", other.sizes());
  TORCH_CHECK(self.sparse_dim() == other.sparse_dim(),
              "add: expected 'self' and 'other' to have same number of sparse dims");
  const auto type = at::result_type(self, other);
  Tensor values = other._values().to(type);
  if (alpha.toComplexDouble() != 1.0) values = values * alpha;
  const Tensor sum = make_sparse(self, at::cat({self._indices(), other._indices()}, 1),
                                 at::cat({self._values().to(type), values}), false);
  return self.is_coalesced() && other.is_coalesced() ? sum.coalesce() : sum;
}

Tensor &add_out(const Tensor &self, const Tensor &other, const Scalar &alpha, Tensor &out) {
  if (self.is_sparse() && other.is_sparse()) return give(add_sparse(self, other, alpha), out);
  TORCH_CHECK(other.is_sparse(),
              "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  return give(add_to_dense(self, other, alpha), out);
}

// ---- products ----

Tensor mul_by_dense(const Tensor &sparse, const Tensor &dense) {
  if (dense.dim() == 0)
    return make_sparse(sparse, sparse._indices(), sparse._values() * dense, sparse.is_coalesced());
  const auto sizes = flat_sizes(sparse, sparse.sparse_dim());
  const Tensor picked =
      dense.expand(sparse.sizes()).reshape(sizes).index_select(0, flat_indices(sparse));
  return make_sparse(sparse, sparse._indices(), sparse._values() * picked, sparse.is_coalesced());
}

// Both are sorted by position once coalesced: each of one is looked up in the other.
Tensor mul_sparse(const Tensor &self, const Tensor &other) {
  TORCH_CHECK(self.sizes() == other.sizes(),
              "mul: expected 'self' and 'other' to have same sizes when both are sparse, but ",
              self.sizes(), " != ", other.sizes());
  const Tensor x = self.coalesce(), y = other.coalesce();
  const auto type = at::result_type(self, other);
  if (x._nnz() == 0 || y._nnz() == 0) {
    return make_sparse(x, x._indices().narrow(1, 0, 0), x._values().narrow(0, 0, 0).to(type), true);
  }
  const Tensor places = flat_indices(x), sequence = flat_indices(y);
  const Tensor found = at::searchsorted(sequence, places).clamp_max(y._nnz() - 1);
  const Tensor kept = at::nonzero(sequence.index_select(0, found) == places).squeeze(1);
  const Tensor values =
      x._values().index_select(0, kept) * y._values().index_select(0, found.index_select(0, kept));
  return make_sparse(x, x._indices().index_select(1, kept), values.to(type), true);
}

// The values of |self| where |mask| has elements: 0 where |self| has none.
Tensor mask_sparse(const Tensor &self, const Tensor &mask) {
  const Tensor x = self.coalesce();
  std::vector<int64_t> sizes = x._values().sizes().vec();
  sizes[0] = mask._nnz();
  if (x._nnz() == 0 || mask._nnz() == 0) {
    return make_sparse(mask, mask._indices(), at::zeros(sizes, x._values().options()),
                       mask.is_coalesced());
  }
  const Tensor places = flat_indices(mask), sequence = flat_indices(x);
  const Tensor found = at::searchsorted(sequence, places).clamp_max(x._nnz() - 1);
  std::vector<int64_t> column(sizes.size(), 1);
  column[0] = sizes[0];
  const Tensor hit = (sequence.index_select(0, found) == places).view(column);
  const Tensor values = at::where(hit, x._values().index_select(0, found), Scalar(0));
  return make_sparse(mask, mask._indices(), values.to(x.scalar_type()), mask.is_coalesced());
}

Tensor sparse_mask(const Tensor &self, const Tensor &mask) {
  TORCH_CHECK(self.sizes() == mask.sizes(),
              "sparse_mask(): operands have incompatible sizes; self has size ", self.sizes(),
              " but mask has size ", mask.sizes());
  return self.is_sparse() ? mask_sparse(self, mask) : native::sparse_mask(self, mask);
}

Tensor sparse_mask_projection(const Tensor &self, const Tensor &mask, bool /*accumulate_matches*/) {
  return mask_sparse(self, mask);
}

Tensor &mul_out(const Tensor &self, const Tensor &other, Tensor &out) {
  if (self.is_sparse() && other.is_sparse()) {
    if (self.dim() == 0 || other.dim() == 0) {
      return give(self.dim() == 0 ? mul_by_dense(other, self.to_dense())
                                  : mul_by_dense(self, other.to_dense()),
                  out);
    }
    return give(mul_sparse(self, other), out);
  }
  return give(self.is_sparse() ? mul_by_dense(self, other) : mul_by_dense(other, self), out);
}

// |rows| and |columns| name places of a matrix with |height| rows that holds |values|; times
// |dense|.
Tensor product(const Tensor &rows, const Tensor &columns, const Tensor &values, int64_t height,
               const Tensor &dense) {
  const Tensor parts = values.unsqueeze(1) * dense.index_select(0, columns);
  return at::zeros({height, dense.size(1)}, parts.options()).index_add_(0, rows, parts);
}

Tensor matrix_product(const Tensor &sparse, const Tensor &dense) {
  TORCH_CHECK(sparse.sparse_dim() == 2 && sparse.dense_dim() == 0,
              "addmm: expected first two dims to be sparse (indices has size 2 "
              "at first dim), but got ",
              sparse.sparse_dim(), " sparse dims");
  TORCH_CHECK(dense.dim() == 2 && sparse.size(1) == dense.size(0),
              "addmm: Argument #3 (dense): Expected dim 0 size ", sparse.size(1), ", got ",
              dense.size(0));
  const Tensor indices = sparse._indices();
  return product(indices.select(0, 0), indices.select(0, 1), sparse._values(), sparse.size(0),
                 dense);
}

Tensor as_coo(const Tensor &x) { return x.is_sparse() ? x : x.to_sparse(); }

Tensor add_product(const Tensor &self, const Tensor &mat1, const Tensor &mat2, const Scalar &beta,
                   const Scalar &alpha) {
  const bool is_left = mat1.layout() != at::kStrided;
  TORCH_CHECK(is_left != (mat2.layout() != at::kStrided) && self.layout() == at::kStrided,
              "addmm: the product of a dense and a sparse matrix and a dense one to add are needed "
              "on device \"tpu\"");
  Tensor result =
      is_left ? matrix_product(as_coo(mat1), mat2) : matrix_product(as_coo(mat2).t(), mat1.t()).t();
  if (alpha.toComplexDouble() != 1.0) result = result * alpha;
  if (beta.toComplexDouble() != 0.0) result = result + self * beta;
  return result;
}

Tensor &add_product_out(const Tensor &self, const Tensor &mat1, const Tensor &mat2,
                        const Scalar &beta, const Scalar &alpha, Tensor &out) {
  return give(add_product(self, mat1, mat2, beta, alpha), out);
}

Tensor &add_product_(Tensor &self, const Tensor &mat1, const Tensor &mat2, const Scalar &beta,
                     const Scalar &alpha) {
  return give(add_product(self, mat1, mat2, beta, alpha), self);
}

// The batch as one matrix with the samples along its diagonal.
Tensor batch_product(const Tensor &self, const Tensor &mat2) {
  TORCH_CHECK(self.is_sparse() && !mat2.is_sparse(), "bmm_sparse: Tensor 'mat2' must be dense");
  TORCH_CHECK(self.dim() == 3 && mat2.dim() == 3 && self.sparse_dim() == 3,
              "bmm_sparse: expected 3D tensors");
  TORCH_CHECK(self.size(0) == mat2.size(0) && self.size(2) == mat2.size(1),
              "bmm_sparse: sizes of 'self' and 'mat2' do not fit");
  const Tensor indices = self._indices(), sample = indices.select(0, 0);
  const Tensor rows = sample * self.size(1) + indices.select(0, 1),
               columns = sample * self.size(2) + indices.select(0, 2);
  const Tensor dense = mat2.reshape({mat2.size(0) * mat2.size(1), mat2.size(2)});
  const Tensor result = product(rows, columns, self._values(), self.size(0) * self.size(1), dense);
  return result.view({self.size(0), self.size(1), mat2.size(2)});
}

// Each element (i, k) of |self| meets row k of |mat2|, whose elements stand one after the other.
Tensor sparse_product(const Tensor &self, const Tensor &mat2) {
  TORCH_CHECK(self.dim() == 2 && mat2.dim() == 2 && self.size(1) == mat2.size(0) &&
                  self.dense_dim() == 0 && mat2.dense_dim() == 0,
              "mat1 and mat2 shapes cannot be multiplied (", self.sizes(), " and ", mat2.sizes(),
              ")");
  const Tensor x = self.coalesce(), y = mat2.coalesce(), k = x._indices().select(0, 1);
  const Tensor rows = at::_convert_indices_from_coo_to_csr(y._indices().select(0, 0), mat2.size(0));
  const Tensor begin = rows.index_select(0, k), counts = rows.index_select(0, k + 1) - begin;
  const Tensor owner = at::repeat_interleave(counts);
  const Tensor first = begin - (counts.cumsum(0) - counts);
  const Tensor place = at::arange(owner.size(0), owner.options()) + first.index_select(0, owner);
  const Tensor indices = at::stack({x._indices().select(0, 0).index_select(0, owner),
                                    y._indices().select(0, 1).index_select(0, place)});
  const Tensor values = x._values().index_select(0, owner) * y._values().index_select(0, place);
  return at::_sparse_coo_tensor_with_dims_and_tensors(2, 0, {self.size(0), mat2.size(1)}, indices,
                                                      values, values.options().layout(at::kSparse),
                                                      false)
      .coalesce();
}

// The row of each element of a compressed matrix, [..., nnz].
Tensor element_rows(const Tensor &rows, const Tensor &columns) {
  if (rows.dim() == 1) return at::_convert_indices_from_csr_to_coo(rows, columns).select(0, 0);
  const Tensor ends = rows.slice(-1, 1), place = at::arange(columns.size(-1), rows.options());
  return at::le(ends.unsqueeze(-2), place.unsqueeze(-1)).sum(-1);
}

Tensor sampled_addmm(const Tensor &self, const Tensor &mat1, const Tensor &mat2, const Scalar &beta,
                     const Scalar &alpha) {
  TORCH_CHECK(self.layout() == at::kSparseCsr && mat1.layout() == at::kStrided &&
                  mat2.layout() == at::kStrided,
              "sampled_addmm: Expected self in CSR and both matrices dense");
  TORCH_CHECK(mat1.dim() >= 2 && mat1.size(-1) == mat2.size(-2) && self.size(-2) == mat1.size(-2) &&
                  self.size(-1) == mat2.size(-1),
              "sampled_addmm: mat1 and mat2 shapes cannot be multiplied (", mat1.sizes(), " and ",
              mat2.sizes(), ")");
  const Tensor rows = element_rows(self.crow_indices(), self.col_indices()).to(at::kLong),
               columns = self.col_indices().to(at::kLong);
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes.push_back(mat1.size(-1));
  const Tensor x = mat1.gather(-2, rows.unsqueeze(-1).expand(sizes));
  const Tensor y = mat2.transpose(-2, -1).gather(-2, columns.unsqueeze(-1).expand(sizes));
  Tensor values = (x * y).sum(-1) * alpha;
  if (beta.toComplexDouble() != 0.0) values = values + self.values() * beta;
  return at::_sparse_compressed_tensor_unsafe(self.crow_indices(), self.col_indices(), values,
                                              self.sizes(),
                                              values.options().layout(at::kSparseCsr));
}

Tensor &add_vector_out(const Tensor &self, const Tensor &mat, const Tensor &vector,
                       const Scalar &beta, const Scalar &alpha, Tensor &out) {
  const Tensor column = self.dim() == 0 ? self : self.unsqueeze(1);
  return give(add_product(column, mat, vector.unsqueeze(1), beta, alpha).squeeze(1), out);
}

Tensor &batch_product_out(const Tensor &self, const Tensor &mat2, Tensor &out) {
  return give(batch_product(self, mat2), out);
}

// Each wanted index meets the elements that have it.
Tensor index_select(const Tensor &self, int64_t dim, const Tensor &index) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[dim] = index.numel();
  const auto options = self._values().options().layout(at::kSparse);
  if (dim >= self.sparse_dim()) {
    const Tensor values = self._values().index_select(dim - self.sparse_dim() + 1, index);
    return at::_sparse_coo_tensor_with_dims_and_tensors(self.sparse_dim(), self.dense_dim(), sizes,
                                                        self._indices(), values, options,
                                                        self.is_coalesced());
  }
  const Tensor wanted = at::where(index < 0, index + self.size(dim), index).reshape({-1, 1});
  const Tensor hits = at::nonzero(wanted == self._indices().select(0, dim).unsqueeze(0));
  Tensor indices = self._indices().index_select(1, hits.select(1, 1));
  indices.select(0, dim).copy_(hits.select(1, 0));
  const Tensor values = self._values().index_select(0, hits.select(1, 1));
  return at::_sparse_coo_tensor_with_dims_and_tensors(self.sparse_dim(), self.dense_dim(), sizes,
                                                      indices, values, options, false);
}

// Invariants are read where they are checked.
void validate_compressed(bool is_crow, const Tensor &compressed, const Tensor &plain, int64_t dim,
                         int64_t ndim, int64_t nnz) {
  at::_validate_compressed_sparse_indices(is_crow, compressed.cpu(), plain.cpu(), dim, ndim, nnz);
}

// ---- the rest on the CPU ----

bool is_ours(const c10::IValue &v) {
  return v.isTensor() && v.toTensor().defined() && v.toTensor().device().type() == kTpu;
}

int64_t bytes_of(const Tensor &t) {
  if (t.layout() == at::kStrided) return static_cast<int64_t>(t.nbytes());
  const Tensor values = t.is_sparse() ? t._values() : t.values();
  return static_cast<int64_t>(values.nbytes());
}

// Brings the tensors of a call to the host.
class HostCall {
public:
  c10::IValue to_host(const c10::IValue &v) {
    if (is_ours(v)) return take(v.toTensor());
    if (!v.isTensorList()) return v;
    std::vector<Tensor> list;
    for (const Tensor &t : v.toTensorVector()) list.push_back(is_ours(t) ? take(t) : t);
    return list;
  }
  c10::IValue to_device(const c10::IValue &v) const {
    if (v.isTensor() && v.toTensor().defined() && v.toTensor().is_cpu())
      return v.toTensor().to(*device_);
    if (!v.isTensorList()) return v;
    std::vector<Tensor> list;
    for (const Tensor &t : v.toTensorVector()) list.push_back(to_device(t).toTensor());
    return list;
  }
  int64_t bytes() const { return bytes_; }

private:
  std::optional<at::Device> device_;
  int64_t bytes_ = 0;

  Tensor take(const Tensor &t) {
    device_ = t.device();
    bytes_ += bytes_of(t);
    return t.cpu();
  }
};

std::string name_of(const c10::OperatorHandle &op) {
  const auto &name = op.operator_name();
  return name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
}

bool is_written(const c10::Argument &argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

void run_on_host(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  const auto &schema = op.schema();
  const size_t count = schema.arguments().size();
  const std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count),
                                           stack->end());
  HostCall host;
  torch::jit::Stack on_host;
  for (const c10::IValue &v : arguments) on_host.push_back(host.to_host(v));
  report_fallback(name_of(op), host.bytes(), "sparse tensors");
  const std::vector<c10::IValue> copies = on_host;
  op.callBoxed(&on_host);
  torch::jit::drop(*stack, count);
  std::vector<c10::IValue> written;
  for (size_t i = 0; i < count; ++i) {
    if (!is_written(schema.arguments()[i]) || !arguments[i].isTensor()) continue;
    Tensor target = arguments[i].toTensor();
    give(host.to_device(copies[i]).toTensor(), target);
    written.push_back(arguments[i]);
  }
  for (size_t k = 0; k < schema.returns().size(); ++k) {
    stack->push_back(k < written.size() ? written[k] : host.to_device(on_host[k]));
  }
}

// ---- PyTorch's own functions ----

#define TORUS_SPARSE_UNARY(X)                                                                      \
  X(abs)                                                                                           \
  X(asin) X(asinh) X(atan) X(atanh) X(ceil) X(deg2rad) X(erf) X(erfinv) X(expm1) X(floor) X(frac)  \
      X(log1p) X(rad2deg) X(round) X(sgn) X(sign) X(sin) X(sinh) X(sqrt) X(tan) X(tanh) X(trunc)

void register_unary(torch::Library &m) {
#define TORUS_ONE(name)                                                                            \
  m.impl(#name, TORCH_FN(native::name##_sparse));                                                  \
  m.impl(#name "_", TORCH_FN(native::name##_sparse_));                                             \
  m.impl(#name ".out", TORCH_FN(native::name##_sparse_out));
  TORUS_SPARSE_UNARY(TORUS_ONE)
#undef TORUS_ONE
  m.impl("neg", TORCH_FN(native::neg_sparse));
  m.impl("neg_", TORCH_FN(native::neg_sparse_));
  m.impl("neg.out", TORCH_FN(native::neg_out_sparse));
  m.impl("relu", TORCH_FN(native::relu_sparse));
  m.impl("relu_", TORCH_FN(native::relu_sparse_));
  m.impl("isnan", TORCH_FN(native::isnan_sparse));
  m.impl("isinf", TORCH_FN(native::isinf_sparse));
  m.impl("signbit", TORCH_FN(native::signbit_sparse));
  m.impl("nan_to_num", TORCH_FN(native::nan_to_num_sparse));
  m.impl("any", TORCH_FN(native::any_sparse));
  m.impl("pow.Tensor_Scalar", TORCH_FN(native::pow_sparse_scalar));
  m.impl("pow.Tensor_Scalar_out", TORCH_FN(native::pow_out_sparse_scalar));
}

void register_structure(torch::Library &m) {
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(native::new_with_dims_sparse));
  m.impl("_sparse_coo_tensor_with_dims_and_tensors",
         TORCH_FN(native::new_with_dims_and_tensor_sparse_symint));
  m.impl("empty.memory_format", TORCH_FN(native::empty_sparse_symint));
  m.impl("empty_like", TORCH_FN(native::empty_like_sparse_coo));
  m.impl("zeros.out", TORCH_FN(native::zeros_sparse_out));
  m.impl("sparse_resize_", TORCH_FN(native::sparse_resize_));
  m.impl("sparse_resize_and_clear_", TORCH_FN(native::sparse_resize_and_clear_));
  m.impl("resize_as_sparse_", TORCH_FN(native::resize_as_sparse_));
  m.impl("sparse_dim", TORCH_FN(native::sparse_dim_sparse));
  m.impl("_dimI", TORCH_FN(native::sparse_dim_sparse));
  m.impl("dense_dim", TORCH_FN(native::dense_dim_sparse));
  m.impl("_dimV", TORCH_FN(native::dense_dim_sparse));
  m.impl("_nnz", TORCH_FN(native::_nnz_sparse));
  m.impl("is_coalesced", TORCH_FN(native::is_coalesced_sparse));
  m.impl("_coalesced_", TORCH_FN(native::_coalesced_sparse_));
  m.impl("_indices", TORCH_FN(native::_indices_sparse));
  m.impl("_values", TORCH_FN(native::_values_sparse));
  m.impl("indices", TORCH_FN(native::indices_sparse));
  m.impl("values", TORCH_FN(native::values_sparse));
  m.impl("is_pinned", TORCH_FN(native::is_pinned_sparse_coo));
}

void register_copies(torch::Library &m) {
  m.impl("copy_", TORCH_FN(native::copy_sparse_wrapper_));
  m.impl("copy_sparse_to_sparse_", TORCH_FN(native::copy_sparse_));
  m.impl("clone", TORCH_FN(native::clone_sparse));
  m.impl("zero_", TORCH_FN(native::zero_sparse_));
  m.impl("_to_dense", TORCH_FN(native::sparse_to_dense));
  m.impl("_to_sparse_csr", TORCH_FN(native::coo_to_sparse_csr));
  m.impl("_to_sparse_csc", TORCH_FN(native::coo_to_sparse_csc));
  m.impl("sparse_mask", TORCH_FN(sparse_mask));
  m.impl("_sparse_mask_projection", TORCH_FN(sparse_mask_projection));
  m.impl("cat", TORCH_FN(native::cat_sparse));
  m.impl("permute", TORCH_FN(native::permute_sparse_coo));
  m.impl("unsqueeze", TORCH_FN(native::unsqueeze_sparse));
  m.impl("narrow_copy", TORCH_FN(native::narrow_copy_sparse));
  m.impl("_sparse_broadcast_to", TORCH_FN(native::sparse_broadcast_to));
}

using NormOver = Tensor (*)(const Tensor &, const std::optional<Scalar> &, at::IntArrayRef, bool,
                            std::optional<at::ScalarType>);

void register_arithmetic(torch::Library &m) {
  m.impl("_coalesce", TORCH_FN(coalesce));
  m.impl("add.Tensor", TORCH_FN(native::add_sparse));
  m.impl("add_.Tensor", TORCH_FN(native::add_sparse_));
  m.impl("add.out", TORCH_FN(add_out));
  m.impl("sub.Tensor", TORCH_FN(native::sub_sparse));
  m.impl("sub_.Tensor", TORCH_FN(native::sub_sparse_));
  m.impl("sub.out", TORCH_FN(native::sub_out_sparse));
  m.impl("mul.Tensor", TORCH_FN(native::mul_sparse));
  m.impl("mul_.Tensor", TORCH_FN(native::mul_sparse_));
  m.impl("mul.out", TORCH_FN(mul_out));
  m.impl("div.Tensor",
         static_cast<Tensor (*)(const Tensor &, const Tensor &)>(&native::div_sparse));
  m.impl("div_.Tensor", static_cast<Tensor &(*)(Tensor &, const Tensor &)>(&native::div_sparse_));
  m.impl("div.out", static_cast<Tensor &(*)(const Tensor &, const Tensor &, Tensor &)>(
                        &native::div_out_sparse_zerodim));
  m.impl("floor_divide", TORCH_FN(native::floor_divide_sparse));
  m.impl("mm", static_cast<Tensor (*)(const Tensor &, const Tensor &)>(&native::_sparse_mm));
  m.impl("mm.out", TORCH_FN(native::_sparse_mm_out));
  m.impl("mv", TORCH_FN(native::mv_sparse));
  m.impl("addmm", TORCH_FN(add_product));
  m.impl("addmm.out", TORCH_FN(add_product_out));
  m.impl("addmm_", TORCH_FN(add_product_));
  m.impl("_sparse_sparse_matmul", TORCH_FN(sparse_product));
  m.impl("index_select", TORCH_FN(index_select));
  m.impl("bmm", TORCH_FN(batch_product));
  m.impl("bmm.out", TORCH_FN(batch_product_out));
  m.impl("sum", TORCH_FN(native::sum_coo));
  m.impl("sum.dim_IntList", TORCH_FN(native::sum_sparse_coo));
  m.impl("norm.ScalarOpt_dim_dtype", TORCH_FN(native::sparse_dtype_norm));
  m.impl("norm.ScalarOpt_dim", TORCH_FN(native::sparse_norm));
  m.impl("native_norm",
         static_cast<Tensor (*)(const Tensor &, const Scalar &)>(&native::norm_sparse));
  m.impl("native_norm.ScalarOpt_dim_dtype", static_cast<NormOver>(&native::norm_sparse));
}

using Blocksize = at::OptionalIntArrayRef;
using OptionalLayout = std::optional<at::Layout>;
using OptionalInt = std::optional<int64_t>;
using ToSparse = Tensor (*)(const Tensor &, OptionalLayout, Blocksize, OptionalInt);
using ToSparseDim = Tensor (*)(const Tensor &, int64_t);

void register_dense(torch::Library &m) {
  m.impl("_to_sparse", static_cast<ToSparse>(&native::dense_to_sparse));
  m.impl("_to_sparse.sparse_dim", static_cast<ToSparseDim>(&native::dense_to_sparse));
  m.impl("_to_sparse_csr", TORCH_FN(native::dense_to_sparse_csr));
  m.impl("_to_sparse_csc", TORCH_FN(native::dense_to_sparse_csc));
  m.impl("_to_sparse_bsr", TORCH_FN(native::dense_to_sparse_bsr));
  m.impl("_to_sparse_bsc", TORCH_FN(native::dense_to_sparse_bsc));
  m.impl("_validate_compressed_sparse_indices", TORCH_FN(validate_compressed));
}

void register_compressed(torch::Library &m) {
  m.impl("empty.memory_format", TORCH_FN(native::empty_sparse_compressed_symint));
  m.impl("empty_like", TORCH_FN(native::empty_like_sparse_csr));
  m.impl("copy_", TORCH_FN(native::copy_sparse_compressed_));
  m.impl("clone", TORCH_FN(native::clone_sparse_compressed));
  m.impl("zero_", TORCH_FN(native::zero_sparse_csr_));
  m.impl("resize_", TORCH_FN(native::resize_sparse_csr_));
  m.impl("resize_as_sparse_", TORCH_FN(native::resize_as_sparse_compressed_));
  m.impl("sparse_dim", TORCH_FN(native::sparse_dim_sparse_csr));
  m.impl("dense_dim", TORCH_FN(native::dense_dim_sparse_csr));
  m.impl("_nnz", TORCH_FN(native::_nnz_sparse_csr));
  m.impl("values", TORCH_FN(native::values_sparse_csr));
  m.impl("crow_indices", TORCH_FN(native::crow_indices_sparse_csr));
  m.impl("col_indices", TORCH_FN(native::col_indices_sparse_csr));
  m.impl("ccol_indices", TORCH_FN(native::ccol_indices_sparse_csr));
  m.impl("row_indices", TORCH_FN(native::row_indices_sparse_csr));
  m.impl("_to_dense", TORCH_FN(native::sparse_compressed_to_dense));
  m.impl("_to_sparse", static_cast<ToSparse>(&native::sparse_compressed_to_sparse));
  m.impl("_to_sparse.sparse_dim", static_cast<ToSparseDim>(&native::sparse_compressed_to_sparse));
#define TORUS_ONE(name)                                                                            \
  m.impl(#name, TORCH_FN(native::name##_sparse_csr));                                              \
  m.impl(#name "_", TORCH_FN(native::name##_sparse_csr_));                                         \
  m.impl(#name ".out", TORCH_FN(native::name##_sparse_csr_out));
  TORUS_SPARSE_UNARY(TORUS_ONE)
  TORUS_ONE(neg)
#undef TORUS_ONE
  m.impl("relu", TORCH_FN(native::relu_sparse_csr));
  m.impl("add.Tensor", TORCH_FN(native::add_sparse_csr));
  m.impl("add_.Tensor", TORCH_FN(native::add_sparse_csr_));
  m.impl("mul.Tensor", TORCH_FN(native::mul_sparse_csr));
  m.impl("mul_.Tensor", TORCH_FN(native::mul_sparse_csr_));
  m.impl("mul.out", TORCH_FN(native::mul_out_sparse_csr));
  m.impl("mul_.Scalar", TORCH_FN(native::mul__scalar_sparse_csr));
  m.impl("sum", TORCH_FN(native::sum_csr));
  m.impl("sum.dim_IntList", TORCH_FN(native::sum_sparse_compressed));
  m.impl("sparse_mask", TORCH_FN(native::sparse_mask_sparse_compressed));
  m.impl("sparse_sampled_addmm", TORCH_FN(sampled_addmm));
  m.impl("addmv.out", TORCH_FN(add_vector_out));
  m.impl("mul.Scalar", TORCH_FN(native::mul_scalar_sparse_csr));
  m.impl("mm", TORCH_FN(native::_sparse_csr_mm));
  m.impl("mm.out", TORCH_FN(native::_sparse_csr_mm_out));
  m.impl("addmm", TORCH_FN(add_product));
  m.impl("addmm.out", TORCH_FN(add_product_out));
}

} // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, library) {
  register_structure(library);
  register_copies(library);
  register_unary(library);
  register_arithmetic(library);
  library.impl("_to_sparse", static_cast<ToSparse>(&native::sparse_coo_to_sparse));
  library.impl("_to_sparse.sparse_dim", static_cast<ToSparseDim>(&native::sparse_coo_to_sparse));
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, library) { register_compressed(library); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) { register_dense(library); }

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

} // namespace torus
