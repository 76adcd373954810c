// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "tensor.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/StorageImpl.h>

#include "aot.h"

namespace torus {

torus_storage_t *storage_behind(const at::Tensor &tensor) {
  TORCH_CHECK(tensor.device().type() == kTpu, "expected a tensor on device \"tpu\", got one on ",
              tensor.device());
  return storage_of(*tensor.storage().unsafeGetStorageImpl());
}

torus_view_t view_of(const at::Tensor &tensor) {
  const c10::TensorImpl *impl = tensor.unsafeGetTensorImpl();
  torus_view_t view{};
  view.storage = storage_of(*impl->unsafe_storage().unsafeGetStorageImpl());
  view.dtype = to_dtype(tensor.scalar_type());
  view.rank = static_cast<int>(impl->dim());
  TORCH_CHECK(view.rank <= 32, "device \"tpu\" takes tensors of at most 32 dimensions, got ",
              view.rank);
  view.sizes = impl->sizes().data();
  view.strides = impl->strides().data();
  view.offset = impl->storage_offset();
  view.is_number = impl->is_wrapped_number();
  view.is_conj = impl->is_conj();
  view.is_neg = impl->is_neg();
  return view;
}

torus_number_t number_of(const at::Scalar &scalar) {
  torus_number_t number{};
  if (scalar.isBoolean()) {
    number.kind = torus_number_t::TORUS_NUMBER_BOOL;
    number.i = scalar.toBool();
  } else if (scalar.isIntegral(false)) {
    number.kind = torus_number_t::TORUS_NUMBER_INT;
    number.i =
        scalar.type() == at::kUInt64 ? static_cast<int64_t>(scalar.toUInt64()) : scalar.toLong();
  } else if (scalar.isComplex()) {
    number.kind = torus_number_t::TORUS_NUMBER_COMPLEX;
    number.re = scalar.toComplexDouble().real();
    number.im = scalar.toComplexDouble().imag();
  } else {
    number.kind = torus_number_t::TORUS_NUMBER_DOUBLE;
    number.re = scalar.toDouble();
  }
  return number;
}

static c10::Storage wrap(torus_storage_t *storage, size_t bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                            bytes, wrap_storage(storage),
                                                            c10::GetAllocator(kTpu), true));
}

c10::Storage storage_with_value(torus_value_t *value, int device) {
  const size_t bytes = torus_value_size_bytes(value);
  torus_storage_t *storage = nullptr;
  torus_status_t status = torus_storage_create(engine(), device, bytes, &storage);
  if (status == TORUS_OK) torus_storage_set(storage, value);
  torus_value_release(value);
  check(status);
  return wrap(storage, bytes);
}

at::Tensor tensor_over(c10::Storage storage, c10::ScalarType dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

at::Tensor tensor_from_value(torus_value_t *value, int device, torus_dtype_t dtype,
                             at::IntArrayRef sizes, at::IntArrayRef strides) {
  return tensor_over(storage_with_value(value, device), from_dtype(dtype), sizes, strides, 0);
}

at::Tensor empty_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype,
                        int device) {
  const size_t bytes =
      at::detail::computeStorageNbytes(sizes, strides, torus_dtype_bytes(to_dtype(dtype)));
  torus_storage_t *storage = nullptr;
  check(torus_storage_create(engine(), device, bytes, &storage));
  at::Tensor tensor = tensor_over(wrap(storage, bytes), dtype, sizes, strides, 0);
  if (is_content_free(device)) make_abstract(tensor);
  return tensor;
}

} // namespace torus
