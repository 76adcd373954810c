// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// The questions generic PyTorch code asks an accelerator, and its pinned host memory.
#include "hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "allocator.h"
#include "generator.h"
#include "runtime.h"
#include "torus/memory.h"

namespace torus {
namespace {

// Page-aligned host memory. The plugins stage their own transfers, so nothing is locked in memory;
// what counts is that PyTorch recognises the blocks again.
class PinnedAllocator final : public c10::Allocator {
public:
  c10::DataPtr allocate(size_t size_bytes) override {
    if (size_bytes == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    TORCH_CHECK_WITH(OutOfMemoryError, size_bytes < SIZE_MAX - page, "cannot allocate ", size_bytes,
                     " bytes of pinned memory");
    void *block = torus_alloc(size_bytes + page);
    TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr, "cannot allocate ", size_bytes,
                     " bytes of pinned memory");
    const uintptr_t start = (reinterpret_cast<uintptr_t>(block) + page - 1) / page * page;
    std::lock_guard<std::mutex> guard(mutex_);
    blocks_[start] = {size_bytes, block};
    return {reinterpret_cast<void *>(start), reinterpret_cast<void *>(start), &release,
            c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void *dest, const void *src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }

  bool contains(const void *address) {
    const auto where = reinterpret_cast<uintptr_t>(address);
    std::lock_guard<std::mutex> guard(mutex_);
    auto after = blocks_.upper_bound(where);
    if (after == blocks_.begin()) return false;
    const auto &[start, block] = *std::prev(after);
    return where - start < block.size_bytes;
  }

  static PinnedAllocator &instance() {
    static PinnedAllocator *const allocator = new PinnedAllocator;
    return *allocator;
  }

private:
  struct Block {
    size_t size_bytes = 0;
    void *memory = nullptr;
  };

  static void release(void *start) {
    PinnedAllocator &self = instance();
    void *memory = nullptr;
    {
      std::lock_guard<std::mutex> guard(self.mutex_);
      auto found = self.blocks_.find(reinterpret_cast<uintptr_t>(start));
      if (found == self.blocks_.end()) return;
      memory = found->second.memory;
      self.blocks_.erase(found);
    }
    torus_free(memory);
  }

  std::mutex mutex_;
  std::map<uintptr_t, Block> blocks_;
};

class TpuHooks final : public at::PrivateUse1HooksInterface {
public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return is_configured(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return is_initialized(); }
  void init() const override { engine(); }

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  c10::DeviceIndex getCurrentDevice() const override {
    prepare_thread();
    return static_cast<c10::DeviceIndex>(current_device());
  }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return static_cast<c10::DeviceIndex>(exchange_current_device(index));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }

  const at::Generator &getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(resolve_device(index));
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    const int device = resolve_device(index);
    return at::make_generator<TpuGenerator>(static_cast<c10::DeviceIndex>(device));
  }

  at::Device getDeviceFromPtr(void *data) const override {
    const std::optional<int> device = device_of_pointer(data);
    TORCH_CHECK(device.has_value(), "the pointer is not an address of tpu memory");
    return {kTpu, static_cast<c10::DeviceIndex>(*device)};
  }
  bool isPinnedPtr(const void *data) const override {
    return PinnedAllocator::instance().contains(data);
  }
  c10::Allocator *getPinnedMemoryAllocator() const override { return &PinnedAllocator::instance(); }

  void resizePrivateUse1Bytes(const c10::Storage &storage, size_t size_bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), size_bytes);
  }
};

} // namespace

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new TpuHooks); }

} // namespace torus
