// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// The clock by which DistributedDataParallel measures its steps.
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace torus {
namespace {

// Recording is asynchronous, so the times are those at which the host had recorded.
class HostTimer final : public c10d::Timer {
public:
  explicit HostTimer(c10::Device) {}

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const int64_t from = getTimeRef(start), to = getTimeRef(end);
    if (to < from) return std::nullopt; // the end was not reached in this iteration
    return to - from;
  }
};

} // namespace
} // namespace torus

namespace c10d {
namespace {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, torus::HostTimer)
} // namespace
} // namespace c10d
