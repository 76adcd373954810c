// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "runtime.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <string>

#include "places.h"
#include "torus/explain.h"
#include "torus/log.h"

namespace torus {
namespace {

struct State {
  std::mutex mutex;
  std::string plugin_path, error;
  bool is_cpu = true;
  int cpu_device_count = 1;
  std::atomic<bool> configured{false};
  std::atomic<torus_engine_t *> engine{nullptr};
  std::atomic<bool> bad_fork{false};
  std::atomic<int> mode{TORUS_MODE_FUSED};
  std::atomic<int> fallback{static_cast<int>(Fallback::Warn)};
  std::mutex fallback_mutex;
  std::unordered_map<std::string, std::pair<int64_t, int64_t>> fallbacks, warned;
};

// Never destroyed: tensors may outlive every static object.
State &state() {
  static State *const s = new State;
  return *s;
}

thread_local int t_device = 0;
thread_local int t_mode = -1;

void after_fork_in_child() {
  if (state().engine.load() != nullptr) state().bad_fork = true;
}

[[noreturn]] void raise_bad_fork() {
  TORCH_CHECK(
      false, "Cannot use device \"tpu\" in a forked child of a process that has used it. To use it "
             "with multiprocessing, use the 'spawn' start method "
             "(torch.multiprocessing.set_start_method('spawn')).");
}

int64_t physical_memory() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

// TORUS_CACHE=0 turns the disk cache off; TORUS_CACHE_DIR, else the user's cache folder.
std::string cache_folder() {
  const char *off = std::getenv("TORUS_CACHE");
  if (off != nullptr && std::string(off) == "0") return "";
  if (const char *dir = std::getenv("TORUS_CACHE_DIR")) return dir;
  if (const char *xdg = std::getenv("XDG_CACHE_HOME")) return std::string(xdg) + "/torus/programs";
  if (const char *home = std::getenv("HOME")) return std::string(home) + "/.cache/torus/programs";
  return "";
}

int64_t limit_from(const char *variable, int64_t otherwise) {
  const char *text = std::getenv(variable);
  const int64_t asked = text != nullptr ? std::atoll(text) : 0;
  return asked > 0 ? asked : otherwise;
}

torus_engine_t *start() {
  State &s = state();
  TORCH_CHECK(s.configured, "torch_tpu was not loaded");
  TORCH_CHECK(s.error.empty(), s.error);
  torus_client_options_t client_options{};
  client_options.plugin_path = s.plugin_path.c_str();
  client_options.cpu_device_count = s.cpu_device_count;
  client_options.is_cpu = s.is_cpu;
  torus_client_t *client = nullptr;
  check(torus_client_create(&client_options, &client));
  const std::string folder = cache_folder();
  torus_engine_options_t options{};
  options.cache_folder = folder.empty() ? nullptr : folder.c_str();
  options.cache_limit_bytes = limit_from("TORUS_CACHE_LIMIT", int64_t{4} << 30);
  options.program_limit = limit_from("TORUS_PROGRAM_LIMIT", 0);
  options.memory_limit_bytes = physical_memory();
  torus_engine_t *engine = nullptr;
  check(torus_engine_create(client, &options, &engine));
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
  return engine;
}

} // namespace

void check(torus_status_t status) {
  if (status == TORUS_OK) return;
  const torus_status_code_t code = torus_status_code(status);
  const std::string text = torus_status_message(status);
  torus_status_free(status);
  switch (code) {
  case TORUS_STATUS_RESOURCE_EXHAUSTED: TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  case TORUS_STATUS_OUT_OF_RANGE: TORCH_CHECK_INDEX(false, text);
  case TORUS_STATUS_UNIMPLEMENTED: TORCH_CHECK_NOT_IMPLEMENTED(false, text);
  default: TORCH_CHECK(false, text);
  }
}

void configure(std::string plugin_path, bool is_cpu, int cpu_device_count, std::string error) {
  State &s = state();
  std::lock_guard<std::mutex> guard(s.mutex);
  if (s.engine.load() != nullptr) return;
  s.plugin_path = std::move(plugin_path);
  s.is_cpu = is_cpu;
  s.cpu_device_count = cpu_device_count > 0 ? cpu_device_count : 1;
  s.error = std::move(error);
  s.configured = true;
}

bool is_configured() { return state().configured && state().error.empty(); }
bool is_initialized() { return state().engine.load() != nullptr; }
bool is_in_bad_fork() { return state().bad_fork; }
std::string plugin_path() { return state().plugin_path; }
torus_engine_t *engine_if_started() { return state().engine.load(); }
torus_client_t *client() { return torus_engine_client(engine()); }

torus_engine_t *engine() {
  State &s = state();
  torus_engine_t *started = s.engine.load(std::memory_order_acquire);
  if (s.bad_fork.load(std::memory_order_relaxed)) raise_bad_fork();
  if (started != nullptr) return started;
  std::lock_guard<std::mutex> guard(s.mutex);
  if (s.engine.load() == nullptr) s.engine = start();
  return s.engine.load();
}

void shutdown() {
  torus_engine_t *started = engine_if_started();
  if (started != nullptr && !is_in_bad_fork()) torus_engine_shutdown(started);
}

int device_count() noexcept {
  State &s = state();
  if (torus_engine_t *started = s.engine.load()) {
    return torus_client_device_count(torus_engine_client(started));
  }
  if (!is_configured()) return 0;
  if (s.is_cpu) return s.cpu_device_count;
  try {
    return torus_client_device_count(client());
  } catch (const std::exception &) {
    return 0;
  }
}

int current_device() noexcept { return t_device; }

void set_current_device(int index) {
  t_device = resolve_device(static_cast<c10::DeviceIndex>(index));
}

int exchange_current_device(int index) {
  const int before = t_device;
  if (index >= 0) set_current_device(index);
  return before;
}

namespace {

// A launcher gives each process a number and, as a rule, one device. Programs name that device by
// the number of the process, as they do where every process sees all devices.
bool names_own_device(int index, int count) {
  const char *rank = count == 1 ? std::getenv("LOCAL_RANK") : nullptr;
  return rank && std::to_string(index) == rank;
}

} // namespace

int resolve_device(c10::DeviceIndex index) {
  if (index < 0) return t_device;
  if (index == 0) return 0;
  const int count = device_count();
  if (names_own_device(index, count)) return 0;
  TORCH_CHECK(index < count, "device tpu:", static_cast<int>(index),
              " does not exist: this process has ", count,
              count == 1 ? " TPU device (tpu:0)" : " TPU devices",
              ". On the CPU plugin TORUS_CPU_DEVICES=N gives N devices.");
  return index;
}

torus_mode_t mode() {
  return static_cast<torus_mode_t>(t_mode >= 0 ? t_mode
                                               : state().mode.load(std::memory_order_relaxed));
}

void set_mode(torus_mode_t mode) { state().mode = mode; }

int exchange_thread_mode(int mode) {
  const int before = t_mode;
  t_mode = mode;
  return before;
}

// ---- types ----

#define TORUS_TYPE_PAIRS(X)                                                                        \
  X(Bool, BOOL)                                                                                    \
  X(Byte, U8) X(Char, I8) X(UInt16, U16) X(Short, I16) X(UInt32, U32) X(Int, I32) X(UInt64, U64)   \
      X(Long, I64) X(Float8_e5m2, F8E5M2) X(Float8_e4m3fn, F8E4M3FN)                               \
          X(Float8_e5m2fnuz, F8E5M2FNUZ) X(Float8_e4m3fnuz, F8E4M3FNUZ) X(Half, F16)               \
              X(BFloat16, BF16) X(Float, F32) X(Double, F64) X(ComplexFloat, C64)                  \
                  X(ComplexDouble, C128)

torus_dtype_t to_dtype(c10::ScalarType type) {
  switch (type) {
#define X(torch_name, torus_name)                                                                  \
  case c10::ScalarType::torch_name: return TORUS_DTYPE_##torus_name;
    TORUS_TYPE_PAIRS(X)
#undef X
  default: break;
  }
  TORCH_CHECK_TYPE(false, "device \"tpu\" has no tensors of dtype ", c10::toString(type),
                   "; convert to a supported dtype first");
}

c10::ScalarType from_dtype(torus_dtype_t dtype) {
  switch (dtype) {
#define X(torch_name, torus_name)                                                                  \
  case TORUS_DTYPE_##torus_name: return c10::ScalarType::torch_name;
    TORUS_TYPE_PAIRS(X)
#undef X
  default: return c10::ScalarType::Undefined;
  }
}

// ---- fallback figures ----

Fallback fallback_policy() { return static_cast<Fallback>(state().fallback.load()); }
void set_fallback_policy(Fallback policy) { state().fallback = static_cast<int>(policy); }

static void log_fallback(const std::string &op, int64_t bytes, const char *reason) {
  if (!torus_log_is_on(TORUS_LOG_FALLBACK)) return;
  int line = 0;
  const char *file = torus_place_name(current_place(), &line);
  const std::string at =
      file != nullptr ? std::string(", at ") + file + ":" + std::to_string(line) : "";
  torus_log(TORUS_LOG_FALLBACK, "%s on the CPU, %lld bytes moved%s; %s", op.c_str(),
            static_cast<long long>(bytes), at.c_str(), *reason != '\0' ? reason : "no lowering");
}

void report_fallback(const std::string &op, int64_t bytes, const char *reason) {
  State &s = state();
  const Fallback policy = fallback_policy();
  TORCH_CHECK_NOT_IMPLEMENTED(policy != Fallback::Error, op,
                              " is not implemented on device \"tpu\"",
                              *reason != '\0' ? " for this case: " : "", reason,
                              " (TORUS_FALLBACK=error forbids running it on the CPU)");
  log_fallback(op, bytes, reason);
  bool is_first;
  {
    std::lock_guard<std::mutex> guard(s.fallback_mutex);
    auto &entry = s.fallbacks[op];
    entry.first += 1;
    entry.second += bytes;
    is_first = s.warned[op].first++ == 0;
  }
  if (is_first && policy == Fallback::Warn) {
    TORCH_WARN(op, " runs on the CPU: it is not implemented on device \"tpu\"",
               *reason != '\0' ? " for this case (" : "", reason, *reason != '\0' ? ")" : "", "; ",
               bytes, " bytes were moved. TORUS_FALLBACK=silent hides this, =error forbids it.");
  }
}

std::unordered_map<std::string, std::pair<int64_t, int64_t>> fallback_counts() {
  State &s = state();
  std::lock_guard<std::mutex> guard(s.fallback_mutex);
  return s.fallbacks;
}

void reset_fallback_counts() {
  State &s = state();
  std::lock_guard<std::mutex> guard(s.fallback_mutex);
  s.fallbacks.clear();
}

} // namespace torus
