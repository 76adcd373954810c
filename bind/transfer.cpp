// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Copies between host and device, between devices, and within one.
#include "transfer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <numeric>

#include "aot.h"
#include "tensor.h"

namespace torus {
namespace {

// A released value at the end of the scope.
struct ValueHolder {
  torus_value_t *value = nullptr;
  ~ValueHolder() { torus_value_release(value); }
};

// Dimensions from the largest stride to the smallest: the order of memory.
std::vector<int64_t> memory_order(const at::Tensor &t) {
  std::vector<int64_t> order(t.dim());
  std::iota(order.begin(), order.end(), 0);
  // Where a dimension of size 1 goes does not matter, but it must be comparable with all others.
  const auto step = [&](int64_t d) { return t.size(d) == 1 ? 0 : t.stride(d); };
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return step(a) > step(b); });
  return order;
}

// Whether the tensor takes every byte of its storage exactly once.
bool covers_storage(const at::Tensor &t) {
  return t.storage_offset() == 0 && t.is_non_overlapping_and_dense() &&
         t.nbytes() == t.storage().nbytes();
}

torus_value_t *value_from_dense(const at::Tensor &host, int device) {
  torus_value_t *value = nullptr;
  check(torus_value_from_host(engine(), device, host.const_data_ptr(), to_dtype(host.scalar_type()),
                              static_cast<int>(host.dim()), host.sizes().data(), &value));
  return value;
}

void assign(const at::Tensor &dst, torus_value_t *value, at::IntArrayRef sizes) {
  const auto strides = c10::contiguous_strides(sizes);
  const torus_view_t view = view_of(dst);
  check(torus_view_assign(engine(), &view, value, static_cast<int>(sizes.size()), sizes.data(),
                          strides.data()));
}

void upload(const at::Tensor &src, const at::Tensor &dst) {
  const int device = dst.device().index();
  if (dst.numel() == 0 || is_content_free(device)) return;
  const at::Tensor host =
      src.expand(dst.sizes()).to(dst.scalar_type()).resolve_conj().resolve_neg();
  if (covers_storage(dst) && !dst.is_conj() && !dst.is_neg()) {
    ValueHolder holder{value_from_dense(host.permute(memory_order(dst)).contiguous(), device)};
    Recording recording(device);
    torus_storage_set(storage_of(*dst.storage().unsafeGetStorageImpl()), holder.value);
    recording.commit();
    return;
  }
  ValueHolder holder{value_from_dense(host.contiguous(), device)};
  Recording recording(device);
  assign(dst, holder.value, dst.sizes());
  recording.commit();
}

// Below this a whole storage is fetched rather than compiling a program that cuts a piece out.
constexpr int64_t kSmallStorage = 1 << 16;

bool prefers_whole_storage(const at::Tensor &t) {
  const auto whole = static_cast<int64_t>(t.storage().nbytes());
  return whole <= kSmallStorage || whole <= 2 * static_cast<int64_t>(t.nbytes());
}

torus_value_t *storage_value(const at::Tensor &t) {
  Recording recording(t.device().index());
  torus_value_t *value = torus_storage_get(storage_of(*t.storage().unsafeGetStorageImpl()));
  // Leaves the window open: reading it closes it.
  return value;
}

torus_value_t *view_value(const at::Tensor &t) {
  const torus_view_t view = view_of(t);
  Recording recording(t.device().index());
  torus_value_t *value = nullptr;
  check(torus_view_read(engine(), &view, &value));
  return value;
}

// The tensor's elements on the host, strided as on the device.
at::Tensor fetch_whole(const at::Tensor &t) {
  const ValueHolder holder{storage_value(t)};
  const auto bytes = static_cast<int64_t>(t.storage().nbytes());
  const auto raw = at::TensorOptions().dtype(at::kByte).device(at::kCPU);
  at::Tensor host = holder.value != nullptr ? at::empty({bytes}, raw) : at::zeros({bytes}, raw);
  if (holder.value != nullptr)
    check(torus_value_to_host(holder.value, host.mutable_data_ptr(), bytes));
  at::Tensor typed = at::empty({0}, at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
  typed.set_(host.storage(), t.storage_offset(), t.sizes(), t.strides());
  typed._set_conj(t.is_conj());
  typed._set_neg(t.is_neg());
  return typed;
}

at::Tensor fetch_view(const at::Tensor &t) {
  const ValueHolder holder{view_value(t)};
  at::Tensor host =
      at::empty(t.sizes(), at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
  check(torus_value_to_host(holder.value, host.mutable_data_ptr(), host.nbytes()));
  return host;
}

void download(const at::Tensor &src, const at::Tensor &dst) {
  if (dst.numel() == 0) return;
  dst.copy_(fetch(src));
}

void copy_on_device(const at::Tensor &src, const at::Tensor &dst) {
  if (dst.numel() == 0) return;
  const torus_view_t from = view_of(src);
  Recording recording(dst.device().index());
  ValueHolder holder;
  check(torus_view_read(engine(), &from, &holder.value));
  assign(dst, holder.value, src.sizes());
  recording.commit();
}

void copy_across(const at::Tensor &src, const at::Tensor &dst) {
  if (dst.numel() == 0) return;
  const int device = dst.device().index();
  const ValueHolder here{view_value(src)};
  ValueHolder there;
  check(torus_value_to_device(here.value, device, &there.value));
  Recording recording(device);
  assign(dst, there.value, src.sizes());
  recording.commit();
}

} // namespace

at::Tensor fetch(const at::Tensor &tensor) {
  note_missing_if_abstract("aten::_local_scalar_dense", "values are read on the host");
  return prefers_whole_storage(tensor) ? fetch_whole(tensor) : fetch_view(tensor);
}

at::Tensor copy_from(const at::Tensor &src, const at::Tensor &dst, bool /*non_blocking*/) {
  if (src.device().type() != kTpu) {
    upload(src.is_cpu() ? src : src.cpu(), dst);
  } else if (dst.device().type() != kTpu) {
    download(src, dst);
  } else if (src.device() == dst.device()) {
    copy_on_device(src, dst);
  } else {
    copy_across(src, dst);
  }
  return dst;
}

} // namespace torus
