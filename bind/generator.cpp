// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstring>
#include <limits>
#include <mutex>

#include "runtime.h"

namespace torus {
namespace {

constexpr size_t kStateBytes = 2 * sizeof(uint64_t);

// Never destroyed: generators may be asked for while the interpreter exits.
struct Defaults {
  std::mutex mutex;
  uint64_t seed = c10::default_rng_seed_val;
  std::array<at::Generator, std::numeric_limits<c10::DeviceIndex>::max() + 1> generators;
};

Defaults &defaults() {
  static Defaults *const d = new Defaults;
  return *d;
}

} // namespace

TpuGenerator::TpuGenerator(c10::DeviceIndex device, uint64_t seed)
    : c10::GeneratorImpl(c10::Device(kTpu, device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      seed_(seed) {}

c10::DeviceType TpuGenerator::device_type() { return kTpu; }

void TpuGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t TpuGenerator::current_seed() const { return seed_; }

uint64_t TpuGenerator::seed() {
  const uint64_t fresh = c10::detail::getNonDeterministicRandom();
  set_current_seed(fresh);
  return fresh;
}

void TpuGenerator::set_offset(uint64_t offset) { offset_ = offset; }

uint64_t TpuGenerator::get_offset() const { return offset_; }

void TpuGenerator::set_state(const c10::TensorImpl &state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == static_cast<int64_t>(kStateBytes), "RNG state is wrong size");
  const auto *bytes = static_cast<const uint8_t *>(state.data());
  std::memcpy(&seed_, bytes, sizeof seed_);
  std::memcpy(&offset_, bytes + sizeof seed_, sizeof offset_);
}

c10::intrusive_ptr<c10::TensorImpl> TpuGenerator::get_state() const {
  const at::Tensor state = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, at::kByte);
  auto *bytes = state.mutable_data_ptr<uint8_t>();
  std::memcpy(bytes, &seed_, sizeof seed_);
  std::memcpy(bytes + sizeof seed_, &offset_, sizeof offset_);
  return state.getIntrusivePtr();
}

void TpuGenerator::reserve(uint64_t count, uint64_t *out_seed, uint64_t *out_offset) {
  std::lock_guard<std::mutex> guard(mutex_);
  *out_seed = seed_;
  *out_offset = offset_;
  offset_ += count / 4 + (count % 4 != 0);
}

TpuGenerator *TpuGenerator::clone_impl() const {
  auto *copy = new TpuGenerator(device().index(), seed_);
  copy->offset_ = offset_;
  return copy;
}

const at::Generator &default_generator(int device) {
  Defaults &d = defaults();
  std::lock_guard<std::mutex> guard(d.mutex);
  at::Generator &generator = d.generators.at(static_cast<size_t>(device));
  if (!generator.defined()) {
    generator = at::make_generator<TpuGenerator>(static_cast<c10::DeviceIndex>(device), d.seed);
  }
  return generator;
}

void manual_seed_all(uint64_t seed) {
  Defaults &d = defaults();
  std::lock_guard<std::mutex> guard(d.mutex);
  d.seed = seed;
  for (at::Generator &generator : d.generators) {
    if (!generator.defined()) continue;
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

TpuGenerator *resolve_generator(const std::optional<at::Generator> &generator, int device) {
  return at::get_generator_or_default<TpuGenerator>(generator, default_generator(device));
}

} // namespace torus
