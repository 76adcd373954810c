// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Devices, streams and events. All work of a device runs in order whatever its stream, so that a
// stream is only a name and an event only has to know when the work before it has ended.
#include <Python.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "hooks.h"
#include "runtime.h"

namespace torus {
namespace {

// Waiting with Python's lock held would stop every other thread, also those that feed the device.
class WithoutGil {
public:
  WithoutGil() : saved_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  WithoutGil(const WithoutGil &) = delete;
  WithoutGil &operator=(const WithoutGil &) = delete;
  ~WithoutGil() {
    if (saved_ != nullptr) PyEval_RestoreThread(saved_);
  }

private:
  PyThreadState *saved_;
};

void synchronize(c10::DeviceIndex index) {
  if (!is_initialized()) return; // nothing was ever queued
  torus_engine_t *started = engine();
  const int device = resolve_device(index);
  WithoutGil released;
  check(torus_engine_synchronize(started, device));
}

constexpr int64_t kPending = -1;

struct Event {
  std::atomic<int64_t> ended_at{kPending}; // nanoseconds of the host's clock
  std::atomic<c10::DeviceIndex> device{0};
};

int64_t now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

void finish(Event *event) {
  if (event->ended_at != kPending) return;
  synchronize(event->device);
  int64_t expected = kPending;
  event->ended_at.compare_exchange_strong(expected, now());
}

c10::StreamId &current_stream(int device) {
  thread_local std::vector<c10::StreamId> streams;
  if (streams.size() <= static_cast<size_t>(device)) streams.resize(device + 1, 0);
  return streams[device];
}

c10::Device device_at(int index) { return {kTpu, static_cast<c10::DeviceIndex>(index)}; }

c10::Stream stream_at(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(device), id);
}

class TpuGuard final : public c10::impl::DeviceGuardImplInterface {
public:
  c10::DeviceType type() const override { return kTpu; }

  // ---- devices ----

  c10::Device exchangeDevice(c10::Device device) const override {
    TORCH_CHECK(device.type() == kTpu, "expected a tpu device, got ", device);
    prepare_thread();
    const int before = current_device();
    if (device.has_index() && device.index() != before) set_current_device(device.index());
    return device_at(before);
  }
  c10::Device getDevice() const override {
    prepare_thread();
    return device_at(current_device());
  }
  void setDevice(c10::Device device) const override { exchangeDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    try {
      exchangeDevice(device);
    } catch (const std::exception &) {
      // Called from destructors: the device that was current stays so.
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability all, own;
    own.capability_data.capability_bits = 0;
    all.forEachSupportedScalarType([&own](c10::ScalarType type) {
      try {
        to_dtype(type);
        own.capability_data.capability_bits |= uint64_t{1} << static_cast<int>(type);
      } catch (const c10::Error &) {
        // A type the device has no tensors of.
      }
    });
    return own;
  }

  // ---- streams ----

  c10::Stream getStream(c10::Device device) const override {
    const int index = resolve_device(device.index());
    return stream_at(index, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_at(resolve_device(device.index()), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> next{1};
    return stream_at(resolve_device(device.index()), next++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    TORCH_CHECK(stream.device_type() == kTpu, "expected a tpu stream, got one of ",
                stream.device());
    const int index = resolve_device(stream.device_index());
    c10::StreamId &slot = current_stream(index);
    const c10::StreamId before = slot;
    slot = stream.id();
    return stream_at(index, before);
  }

  // There is no way to look without waiting, and a loop that asks until it is true must end.
  bool queryStream(const c10::Stream &stream) const override {
    synchronize(stream.device_index());
    return true;
  }
  void synchronizeStream(const c10::Stream &stream) const override {
    synchronize(stream.device_index());
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override { synchronize(index); }
  void recordDataPtrOnStream(const c10::DataPtr &, const c10::Stream &) const override {}

  // ---- events ----

  // An event that measures time waits here: later its moment could not be told any more.
  void record(void **slot, const c10::Stream &stream, const c10::DeviceIndex device_index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device_index == -1 || device_index == stream.device_index(), "Event device index ",
                static_cast<int>(device_index), " does not match recording stream's device index ",
                static_cast<int>(stream.device_index()), ".");
    if (*slot == nullptr) *slot = new Event;
    Event *event = static_cast<Event *>(*slot);
    event->device = stream.device_index();
    event->ended_at = kPending;
    if (flag == c10::EventFlag::BACKEND_DEFAULT || !is_initialized()) finish(event);
  }
  // Work of one device is in order already; another device's stream waits on the host.
  void block(void *event, const c10::Stream &stream) const override {
    Event *recorded = static_cast<Event *>(event);
    if (recorded != nullptr && recorded->device != stream.device_index()) finish(recorded);
  }
  bool queryEvent(void *event) const override {
    synchronizeEvent(event);
    return true;
  }
  void synchronizeEvent(void *event) const override {
    if (event != nullptr) finish(static_cast<Event *>(event));
  }
  void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event *>(event);
  }
  double elapsedTime(void *start, void *end, const c10::DeviceIndex) const override {
    Event *first = static_cast<Event *>(start), *second = static_cast<Event *>(end);
    finish(first);
    finish(second);
    return static_cast<double>(second->ended_at - first->ended_at) * 1e-6;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, TpuGuard)

} // namespace
} // namespace torus
