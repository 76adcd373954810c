// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Random numbers of the device: Philox 4x32, which needs a seed and a counter and no state there.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <optional>

namespace torus {

// The offset counts blocks of four 32-bit numbers. As in every generator of PyTorch, callers of
// the inherited functions hold the mutex; reserve() takes it itself.
class TpuGenerator final : public c10::GeneratorImpl {
public:
  explicit TpuGenerator(c10::DeviceIndex device, uint64_t seed = c10::default_rng_seed_val);
  static c10::DeviceType device_type();

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  // 16 bytes on the CPU: seed, offset; the layout that DTensor's random number tracker edits.
  void set_state(const c10::TensorImpl &state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // Hands out |count| 32-bit numbers: those that start at block |out_offset|.
  void reserve(uint64_t count, uint64_t *out_seed, uint64_t *out_offset);

private:
  TpuGenerator *clone_impl() const override;

  uint64_t seed_;
  uint64_t offset_ = 0;
};

// Lives as long as the process.
const at::Generator &default_generator(int device);

// Seeds the default generators, those not made yet included; works before the plugin is loaded.
void manual_seed_all(uint64_t seed);

// The given generator, or the default one of the device; throws for one of another device type.
TpuGenerator *resolve_generator(const std::optional<at::Generator> &generator, int device);

} // namespace torus
