// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "allocator.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <array>
#include <map>
#include <mutex>
#include <vector>

#include "hooks.h"
#include "runtime.h"

namespace torus {
namespace {

// Outside what a process can map on the machines that have the plugins, so that a stray
// dereference faults and no host pointer is ever taken for one of ours.
constexpr uintptr_t kFirstAddress = uintptr_t{1} << 54;
// Each live storage has a slot of addresses larger than any tensor, so that finding the storage of
// an address is a shift, and no storage outgrows its addresses.
constexpr int kSlotBits = 40;

// What a DataPtr owns: one reference to a storage, and its slot.
struct Block {
  torus_storage_t *storage = nullptr;
  int device = 0;
  uint32_t slot = 0;
};

// Never destroyed: tensors may outlive every static object.
struct Registry {
  std::mutex mutex;
  std::vector<Block *> blocks; // by slot; nullptr: free
  std::vector<uint32_t> free_slots;
};

Registry &registry() {
  static Registry *const r = new Registry;
  return *r;
}

uintptr_t address_of(const Block &block) {
  return kFirstAddress + (static_cast<uintptr_t>(block.slot) << kSlotBits);
}

Block *insert_block(torus_storage_t *storage) {
  Registry &r = registry();
  auto *block = new Block{storage, torus_storage_device(storage), 0};
  std::lock_guard<std::mutex> guard(r.mutex);
  if (r.free_slots.empty()) {
    block->slot = static_cast<uint32_t>(r.blocks.size());
    r.blocks.push_back(block);
  } else {
    block->slot = r.free_slots.back();
    r.free_slots.pop_back();
    r.blocks[block->slot] = block;
  }
  return block;
}

void report_to_profiler(const Block &block, int64_t size_bytes) {
  torus_engine_t *started = engine_if_started();
  if (started == nullptr) return;
  torus_device_memory_t memory{};
  torus_engine_memory(started, block.device, &memory);
  const auto used = static_cast<size_t>(memory.used_bytes);
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void *>(address_of(block)), size_bytes, used,
                                   used, c10::Device(kTpu, block.device));
}

// In a forked child the locks may be held by threads that are not there: the block is left alone.
void release_block(void *context) {
  if (is_in_bad_fork()) return;
  Block *block = static_cast<Block *>(context);
  torus_storage_t *storage = block->storage;
  if (c10::memoryProfilingEnabled()) {
    report_to_profiler(*block, -static_cast<int64_t>(torus_storage_size_bytes(storage)));
  }
  {
    Registry &r = registry();
    std::lock_guard<std::mutex> guard(r.mutex);
    r.blocks[block->slot] = nullptr;
    r.free_slots.push_back(block->slot);
  }
  delete block;
  torus_storage_release(storage);
}

// Call with the mutex held.
const Block *find_block(const Registry &r, const void *address) {
  const auto where = reinterpret_cast<uintptr_t>(address);
  if (where < kFirstAddress) return nullptr;
  const uintptr_t slot = (where - kFirstAddress) >> kSlotBits;
  return slot < r.blocks.size() ? r.blocks[slot] : nullptr;
}

const Block *own_block(const c10::DataPtr &data) {
  return data.get_deleter() == &release_block ? static_cast<Block *>(data.get_context()) : nullptr;
}

// Stands behind empty memory that another owner holds: it has no address to find it by.
torus_storage_t *empty_storage(int device) {
  static std::mutex mutex;
  static std::map<int, torus_storage_t *> *const storages = new std::map<int, torus_storage_t *>;
  std::lock_guard<std::mutex> guard(mutex);
  torus_storage_t *&storage = (*storages)[device];
  if (storage == nullptr) check(torus_storage_create(engine(), device, 0, &storage));
  return storage;
}

void fill(c10::CachingAllocator::StatArray &out, int64_t current, int64_t peak, int64_t allocated,
          int64_t freed) {
  auto &all = out[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  all.current = current;
  all.peak = peak;
  all.allocated = allocated;
  all.freed = freed;
}

class TpuAllocator final : public c10::DeviceAllocator {
public:
  c10::DataPtr allocate(size_t size_bytes) override {
    prepare_thread();
    torus_storage_t *storage = nullptr;
    check(torus_storage_create(engine(), current_device(), size_bytes, &storage));
    c10::DataPtr data = wrap_storage(storage);
    if (c10::memoryProfilingEnabled()) {
      report_to_profiler(*own_block(data), static_cast<int64_t>(size_bytes));
    }
    return data;
  }

  // Values are immutable, so that a copy of a whole storage is one more reference to its value.
  void copy_data(void *dest, const void *src, std::size_t count) const override {
    if (count == 0) return;
    torus_storage_t *to = storage_at(dest), *from = storage_at(src);
    TORCH_CHECK(to != nullptr && from != nullptr && torus_storage_size_bytes(to) == count &&
                    torus_storage_size_bytes(from) == count &&
                    torus_storage_device(to) == torus_storage_device(from),
                "copy_data copies whole storages of one tpu device");
    const int device = torus_storage_device(from);
    torus_device_lock(engine(), device);
    torus_value_t *value = torus_storage_get(from);
    if (value != nullptr) torus_storage_set(to, value);
    torus_value_release(value);
    check(torus_device_unlock(engine(), device, mode()));
  }

  bool initialized() override { return is_initialized(); }
  void emptyCache(c10::MempoolId_t) override {} // nothing is held back: there is no cache here
  void recordStream(const c10::DataPtr &, c10::Stream) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    torus_device_memory_t m{};
    const int device = resolve_device(index);
    if (torus_engine_t *started = engine_if_started()) torus_engine_memory(started, device, &m);
    for (auto *counts : {&stats.allocation, &stats.active, &stats.segment}) {
      fill(*counts, m.used_count, m.peak_count, m.total_allocated_count, m.total_freed_count);
    }
    for (auto *bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                        &stats.requested_bytes}) {
      fill(*bytes, m.used_bytes, m.peak_bytes, m.total_allocated_bytes, m.total_freed_bytes);
    }
    stats.num_device_alloc = m.total_allocated_count;
    stats.num_device_free = m.total_freed_count;
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex index) override {
    const int device = resolve_device(index);
    if (torus_engine_t *started = engine_if_started()) torus_engine_reset_totals(started, device);
  }

  void resetPeakStats(c10::DeviceIndex index) override {
    const int device = resolve_device(index);
    if (torus_engine_t *started = engine_if_started()) torus_engine_reset_peak(started, device);
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    torus_device_memory_t m{};
    torus_engine_t *started = engine();
    torus_engine_memory(started, resolve_device(index), &m);
    const int64_t free_bytes = std::max<int64_t>(m.limit_bytes - m.used_bytes, 0);
    return {static_cast<size_t>(free_bytes), static_cast<size_t>(m.limit_bytes)};
  }
};

} // namespace

torus_storage_t *storage_at(const void *address) {
  Registry &r = registry();
  std::lock_guard<std::mutex> guard(r.mutex);
  const Block *block = find_block(r, address);
  return block != nullptr ? block->storage : nullptr;
}

std::optional<int> device_of_pointer(const void *address) {
  Registry &r = registry();
  std::lock_guard<std::mutex> guard(r.mutex);
  const Block *block = find_block(r, address);
  return block != nullptr ? std::optional<int>(block->device) : std::nullopt;
}

torus_storage_t *storage_of(const c10::StorageImpl &impl) {
  const c10::DataPtr &data = impl.data_ptr();
  if (const Block *block = own_block(data)) return block->storage;
  if (torus_storage_t *storage = storage_at(data.get())) return storage;
  TORCH_CHECK(data.device().type() == kTpu && impl.nbytes() == 0,
              "expected the storage of a tpu tensor, got memory of device ", data.device());
  return empty_storage(resolve_device(data.device().index()));
}

c10::DataPtr wrap_storage(torus_storage_t *storage) {
  Block *block = insert_block(storage);
  const bool is_empty = torus_storage_size_bytes(storage) == 0;
  void *address = is_empty ? nullptr : reinterpret_cast<void *>(address_of(*block));
  return {address, block, &release_block,
          c10::Device(kTpu, static_cast<c10::DeviceIndex>(block->device))};
}

void resize_storage(c10::StorageImpl &impl, size_t size_bytes) {
  TORCH_CHECK(impl.resizable(), "Trying to resize storage that is not resizable");
  const Block *block = own_block(impl.data_ptr());
  TORCH_CHECK(block != nullptr, "cannot resize tpu memory that another library owns");
  const size_t before = torus_storage_size_bytes(block->storage);
  check(torus_storage_resize(block->storage, size_bytes));
  if (before == 0 || size_bytes == 0) {
    impl.set_data_ptr_noswap(wrap_storage(torus_storage_retain(block->storage)));
  }
  impl.set_nbytes(size_bytes);
}

void register_allocator() {
  static TpuAllocator *const allocator = new TpuAllocator;
  c10::SetAllocator(kTpu, allocator);
}

} // namespace torus
