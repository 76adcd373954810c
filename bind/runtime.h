// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// The process-wide state behind device "tpu": where the plugin is, the engine once it is started,
// the current device and mode of each thread. Everything else in bind/ goes through it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/Export.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "torus/engine.h"

namespace torus {

constexpr auto kTpu = c10::DeviceType::PrivateUse1;

// ---- errors ----

// Throws the exception PyTorch uses for the status code and frees the status:
// RESOURCE_EXHAUSTED -> torch.OutOfMemoryError, OUT_OF_RANGE -> IndexError,
// UNIMPLEMENTED -> NotImplementedError, others -> RuntimeError. Success returns.
void check(torus_status_t status);

// ---- start ----

// Remembers where the plugin is; nothing is loaded. A non-empty error is raised at first use.
void configure(std::string plugin_path, bool is_cpu, int cpu_device_count, std::string error);
// Whether a plugin was found.
bool is_configured();
bool is_initialized();
// A forked child of a process that had started the engine: every use raises.
bool is_in_bad_fork();
// The engine, started on first use. Throws when there is no plugin or after a fork.
torus_engine_t *engine();
// Without starting it: nullptr.
torus_engine_t *engine_if_started();
torus_client_t *client();
std::string plugin_path();
// Waits for queued work and stops the worker; for interpreter exit.
void shutdown();

// ---- devices ----

// On the CPU plugin known without starting it. 0 when there is no plugin.
int device_count() noexcept;
int current_device() noexcept;          // of this thread; does not start the engine
void set_current_device(int index);     // throws for an index that does not exist
int exchange_current_device(int index); // -1 changes nothing
// index -1 -> current device; throws for an index that does not exist. In a process that a launcher
// started with one device, the process's own number (LOCAL_RANK) stands for that device.
int resolve_device(c10::DeviceIndex index);

// ---- modes ----

torus_mode_t mode(); // the thread's override, else the process's
void set_mode(torus_mode_t mode);
int exchange_thread_mode(int mode); // -1: no override; returns the previous one

// ---- types ----

torus_dtype_t to_dtype(c10::ScalarType type); // throws TypeError for a type without device form
c10::ScalarType from_dtype(torus_dtype_t dtype);

// ---- fallback figures ----

enum class Fallback { Warn, Error, Silent };
Fallback fallback_policy();
void set_fallback_policy(Fallback policy);
// Counts one fallback and warns once per operator, or throws under Fallback::Error.
void report_fallback(const std::string &op, int64_t bytes, const char *reason);
std::unordered_map<std::string, std::pair<int64_t, int64_t>> fallback_counts();
void reset_fallback_counts();

} // namespace torus
