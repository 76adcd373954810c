// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "kernels.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/util/strides.h>
#include <torch/library.h>

#include "tensor.h"
#include "transfer.h"

namespace torus {
namespace {

int device_of(std::optional<at::Device> device) {
  return resolve_device(device ? device->index() : static_cast<c10::DeviceIndex>(-1));
}

void reject_layout(std::optional<at::Layout> layout) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == at::Layout::Strided,
                              "device \"tpu\" has only strided tensors here, got layout ", *layout);
}

// ---- factories ----

std::vector<int64_t> strides_for(at::IntArrayRef sizes, at::MemoryFormat format) {
  if (format == at::MemoryFormat::ChannelsLast) return c10::get_channels_last_strides_2d(sizes);
  if (format == at::MemoryFormat::ChannelsLast3d) return c10::get_channels_last_strides_3d(sizes);
  const auto strides = c10::contiguous_strides(sizes);
  return {strides.begin(), strides.end()};
}

at::Tensor empty_memory_format(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> layout, std::optional<at::Device> device,
                               std::optional<bool> pin_memory,
                               std::optional<at::MemoryFormat> format) {
  reject_layout(layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  for (const int64_t s : sizes)
    TORCH_CHECK(s >= 0, "Trying to create tensor with negative dimension ", s, ": ", sizes);
  const auto strides = strides_for(sizes, format.value_or(at::MemoryFormat::Contiguous));
  return empty_tensor(sizes, strides, at::dtype_or_default(dtype), device_of(device));
}

// Zeros without memory are an optimisation of PyTorch's; plain ones mean the same.
at::Tensor efficient_zeros(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout> layout, std::optional<at::Device> device,
                           std::optional<bool> pin_memory) {
  return empty_memory_format(sizes, dtype, layout, device, pin_memory, std::nullopt).zero_();
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool>) {
  reject_layout(layout);
  at::detail::check_size_nonnegative(sizes);
  return empty_tensor(sizes, strides, at::dtype_or_default(dtype), device_of(device));
}

// ---- resizing ----

void reserve_storage(const at::Tensor &self, size_t bytes) {
  c10::StorageImpl *storage = self.storage().unsafeGetStorageImpl();
  if (bytes <= storage->nbytes()) return;
  resize_storage(*storage, bytes);
}

const at::Tensor &resize_(const at::Tensor &self, at::IntArrayRef sizes,
                          std::optional<at::MemoryFormat> format) {
  c10::TensorImpl *impl = self.unsafeGetTensorImpl();
  if (self.sizes() != sizes) {
    impl->set_sizes_contiguous(sizes);
    reserve_storage(self, at::detail::computeStorageNbytes(sizes, impl->strides(), self.itemsize(),
                                                           self.storage_offset()));
  }
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  return self;
}

// ---- set_ ----

at::Tensor &set_storage_offset(at::Tensor &self, at::Storage source, int64_t offset,
                               at::IntArrayRef sizes, at::IntArrayRef strides) {
  c10::TensorImpl *impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  const auto contiguous = strides_for(sizes, at::MemoryFormat::Contiguous);
  const at::IntArrayRef chosen =
      strides.size() == sizes.size() ? strides : at::IntArrayRef(contiguous);
  impl->set_sizes_and_strides(sizes, chosen, offset);
  reserve_storage(self, at::detail::computeStorageNbytes(sizes, chosen, self.itemsize(), offset));
  return self;
}

at::Tensor &set_storage(at::Tensor &self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage_offset(self, std::move(source), 0, {count}, {});
}

at::Tensor &set_tensor(at::Tensor &self, const at::Tensor &source) {
  return set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(),
                            source.strides());
}

at::Tensor &set_nothing(at::Tensor &self) {
  const at::Tensor none = empty_tensor({0}, {1}, self.scalar_type(), self.device().index());
  return set_tensor(self, none);
}

bool is_set_to(const at::Tensor &self, const at::Tensor &other) {
  return self.storage().is_alias_of(other.storage()) &&
         self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() &&
         self.strides() == other.strides();
}

// ---- views ----

at::Tensor as_strided(const at::Tensor &self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

at::Tensor view(const at::Tensor &self, at::IntArrayRef sizes) {
  return at::native::view(self, sizes);
}

at::Tensor reshape_alias(const at::Tensor &self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::_reshape_alias(self, sizes, strides);
}

// ---- reading ----

at::Scalar local_scalar_dense(const at::Tensor &self) { return fetch(self).item(); }

bool equal(const at::Tensor &self, const at::Tensor &other) {
  if (self.sizes() != other.sizes()) return false;
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "Expected object of data type ",
              self.scalar_type(), " but got data type ", other.scalar_type(),
              " for argument #2 'other' in call to equal");
  return self.numel() == 0 || at::eq(self, other).all().item<bool>();
}

// ---- copies ----

at::Tensor copy_from_and_resize(const at::Tensor &src, const at::Tensor &dst) {
  if (dst.sizes() != src.sizes()) dst.resize_(src.sizes());
  return copy_from(src, dst, false);
}

// Tied weights stay tied when a module moves: the same Parameter takes the new device's tensor.
bool has_compatible_shallow_copy_type(const at::Tensor &self, const at::Tensor &other) {
  const auto is_ours = [](const at::Tensor &t) { return t.is_cpu() || t.device().type() == kTpu; };
  const bool is_dense = self.layout() == at::kStrided && other.layout() == at::kStrided;
  return (is_dense && is_ours(self) && is_ours(other)) ||
         self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(other.key_set());
}

void record_stream(at::Tensor &, at::Stream) {} // one queue in order: nothing is reused early

} // namespace

// Copies read the lazy conj and neg bits themselves: the generic kernels of those keys would
// resolve them by a copy and come back here without end.
void register_lazy_bits() {
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    auto *const m = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    m->impl("_copy_from", torch::CppFunction::makeFallthrough());
    m->impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
  }
}

void register_tensor_kernels() {
  register_lazy_bits();
  static torch::Library *const m = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  m->impl("empty.memory_format", &empty_memory_format);
  m->impl("empty_strided", &empty_strided);
  m->impl("_efficientzerotensor", &efficient_zeros);
  m->impl("resize_", &resize_);
  m->impl("set_.source_Storage", &set_storage);
  m->impl("set_.source_Storage_storage_offset", &set_storage_offset);
  m->impl("set_.source_Tensor", &set_tensor);
  m->impl("set_", &set_nothing);
  m->impl("is_set_to", &is_set_to);
  m->impl("as_strided", &as_strided);
  m->impl("view", &view);
  m->impl("_reshape_alias", &reshape_alias);
  m->impl("unfold", &at::native::unfold);
  m->impl("view_as_real", &at::native::view_as_real);
  m->impl("view_as_complex", &at::native::view_as_complex);
  m->impl("_local_scalar_dense", &local_scalar_dense);
  m->impl("equal", &equal);
  m->impl("_copy_from", &copy_from);
  m->impl("_copy_from_and_resize", &copy_from_and_resize);
  m->impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  m->impl("record_stream", &record_stream);
}

} // namespace torus
