// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// The extension module torch_tpu._C: what Python asks of the engine.
#include <ATen/ops/empty.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/utils/pybind.h>

#include "allocator.h"
#include "aot.h"
#include "collective.h"
#include "dispatch.h"
#include "export.h"
#include "fallback.h"
#include "generator.h"
#include "graph.h"
#include "group.h"
#include "group_work.h"
#include "hooks.h"
#include "kernels.h"
#include "places.h"
#include "compiled_graph.h"
#include "runtime.h"
#include "sharding.h"
#include "torus/explain.h"
#include "torus/log.h"
#include "torus/memory.h"

namespace py = pybind11;

namespace torus {
namespace {

py::dict metrics() {
  torus_metrics_t m{};
  if (torus_engine_t *e = engine_if_started()) torus_engine_metrics(e, &m);
  py::dict fallbacks, bytes;
  for (const auto &[op, count] : fallback_counts()) {
    fallbacks[py::str(op)] = count.first;
    bytes[py::str(op)] = count.second;
  }
  py::dict d;
  d["compilations"] = m.compilations;
  d["launches"] = m.launches;
  d["bounded_launches"] = m.bounded_launches;
  d["cache_hits"] = m.cache_hits;
  d["disk_hits"] = m.disk_hits;
  d["evictions"] = m.evictions;
  d["windows"] = m.windows;
  d["operators"] = m.operators;
  d["bytes_to_device"] = m.bytes_to_device;
  d["bytes_to_host"] = m.bytes_to_host;
  d["transfers_to_device"] = m.transfers_to_device;
  d["transfers_to_host"] = m.transfers_to_host;
  d["compile_seconds"] = m.compile_seconds;
  d["fallbacks"] = fallbacks;
  d["fallback_bytes"] = bytes;
  return d;
}

void reset_metrics() {
  if (torus_engine_t *e = engine_if_started()) torus_engine_reset_metrics(e);
  reset_fallback_counts();
}

void put_stat(py::dict &d, const std::string &name, int64_t current, int64_t peak,
              int64_t allocated, int64_t freed) {
  for (const char *pool : {"all", "large_pool", "small_pool"}) {
    const bool is_all = std::string(pool) == "all";
    const std::string prefix = name + "." + pool + ".";
    d[py::str(prefix + "current")] = is_all ? current : 0;
    d[py::str(prefix + "peak")] = is_all ? peak : 0;
    d[py::str(prefix + "allocated")] = is_all ? allocated : 0;
    d[py::str(prefix + "freed")] = is_all ? freed : 0;
  }
}

py::dict memory_stats(int device) {
  torus_device_memory_t m{};
  torus_engine_memory(engine(), resolve_device(static_cast<c10::DeviceIndex>(device)), &m);
  py::dict d;
  for (const char *name :
       {"allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"}) {
    put_stat(d, name, m.used_bytes, m.peak_bytes, m.total_allocated_bytes, m.total_freed_bytes);
  }
  for (const char *name : {"allocation", "active", "segment"}) {
    put_stat(d, name, m.used_count, m.peak_count, m.total_allocated_count, m.total_freed_count);
  }
  d["limit_bytes"] = m.limit_bytes;
  return d;
}

std::pair<int64_t, int64_t> mem_get_info(int device) {
  torus_device_memory_t m{};
  torus_engine_memory(engine(), resolve_device(static_cast<c10::DeviceIndex>(device)), &m);
  return {m.limit_bytes - m.used_bytes, m.limit_bytes};
}

std::vector<std::pair<std::string, std::string>> operators() {
  std::vector<std::pair<std::string, std::string>> list;
  for (size_t i = 0; i < torus_op_count(); ++i) {
    std::string family = torus_op_family(torus_op_at(i));
    list.emplace_back(torus_op_name(torus_op_at(i)), family.substr(0, family.rfind('.')));
  }
  return list;
}

std::string last_program_text() {
  torus_engine_t *e = engine_if_started();
  char *text = e != nullptr ? torus_engine_last_program(e) : nullptr;
  std::string copy = text != nullptr ? text : "";
  torus_free(text);
  return copy;
}

std::string place_text(torus_place_t place) {
  int line = 0;
  const char *file = torus_place_name(place, &line);
  return file != nullptr ? std::string(file) + ":" + std::to_string(line) : std::string();
}

// Plain data first: no Python object is made under the engine's locks.
struct Compilation {
  torus_compilation_t event;
  std::string reason, operators, error;
};

py::dict to_dict(const Compilation &c) {
  static const char *const modes[] = {"debug", "strict", "fused"};
  py::dict d;
  d["serial"] = c.event.serial;
  d["trigger"] = torus_trigger_name(c.event.trigger);
  d["reason"] = c.reason;
  d["operators"] = c.operators;
  d["operator_count"] = c.event.operator_count;
  d["node_count"] = c.event.node_count;
  d["text_bytes"] = c.event.text_bytes;
  d["seconds"] = c.event.seconds;
  d["from_disk"] = c.event.from_disk;
  d["mode"] = modes[c.event.mode];
  d["device"] = c.event.device;
  d["first_line"] = place_text(c.event.first);
  d["last_line"] = place_text(c.event.last);
  d["error"] = c.error;
  return d;
}

// The newest serial, and the events after |after| as far as they are kept.
std::pair<uint64_t, py::list> compilations(uint64_t after) {
  std::vector<Compilation> events;
  uint64_t newest = 0;
  {
    py::gil_scoped_release no_gil;
    const auto visit = [](void *context, const torus_compilation_t *event) {
      static_cast<std::vector<Compilation> *>(context)->push_back(
          {*event, event->reason, event->operators, event->error});
    };
    if (torus_engine_t *e = engine_if_started())
      newest = torus_engine_compilations(e, after, visit, &events);
  }
  py::list list;
  for (const Compilation &c : events) list.append(to_dict(c));
  return {newest, list};
}

Fallback parse_policy(const std::string &text) {
  if (text == "warn") return Fallback::Warn;
  if (text == "error") return Fallback::Error;
  TORCH_CHECK_VALUE(text == "silent",
                    "the fallback policy is \"warn\", \"error\" or \"silent\", got \"", text, "\"");
  return Fallback::Silent;
}

std::string policy_name() {
  static const char *const names[] = {"warn", "error", "silent"};
  return names[static_cast<int>(fallback_policy())];
}

torus_mode_t parse_mode(int value) {
  TORCH_CHECK_VALUE(value >= 0 && value <= 2,
                    "the eager mode is 0 (debug), 1 (strict) or 2 (fused), got ", value);
  return static_cast<torus_mode_t>(value);
}

// The autograd thread of a device drops what the last backward held after the caller has gone on.
// If that meets a finalising interpreter the process aborts; work of our own behind it, which holds
// no Python object, shows that it is done.
void drain_autograd() {
  const auto options = at::TensorOptions().device(at::Device(kTpu, 0));
  at::Tensor leaf = at::empty({1}, options).requires_grad_();
  torch::autograd::grad({leaf.view({1})}, {leaf}, {at::empty({1}, options)});
}

void shutdown_at_exit() {
  if (is_in_bad_fork()) return;
  wait_for_dropped_works();
  if (!is_initialized()) return;
  try {
    drain_autograd();
  } catch (const std::exception &) {
    // Nothing can be reported any more.
  }
  shutdown();
}

void define_devices(py::module_ &m) {
  m.def("_configure", &configure);
  m.def("_init", [] { engine(); }, py::call_guard<py::gil_scoped_release>());
  m.def("_shutdown", &shutdown_at_exit, py::call_guard<py::gil_scoped_release>());
  m.def("_prepare_thread", &prepare_thread);
  m.def("_is_initialized", &is_initialized);
  m.def("_is_configured", &is_configured);
  m.def("_is_in_bad_fork", &is_in_bad_fork);
  m.def("_device_count", &device_count, py::call_guard<py::gil_scoped_release>());
  m.def("_current_device", &current_device);
  m.def("_set_device", [](int i) { set_current_device(i); });
  m.def("_exchange_device", &exchange_current_device);
  m.def(
      "_synchronize",
      [](int i) {
        check(torus_engine_synchronize(engine(), resolve_device(static_cast<c10::DeviceIndex>(i))));
      },
      py::call_guard<py::gil_scoped_release>());
  m.def("_platform", [] { return std::string(torus_client_platform(client())); });
  m.def("_platform_version", [] { return std::string(torus_client_platform_version(client())); });
  m.def("_device_kind", [](int i) {
    return std::string(
        torus_client_device_kind(client(), resolve_device(static_cast<c10::DeviceIndex>(i))));
  });
  m.def("_api_version", [] {
    int major = 0, minor = 0;
    torus_client_api_version(client(), &major, &minor);
    return std::make_pair(major, minor);
  });
  m.def("_plugin_path", &plugin_path);
}

void define_modes(py::module_ &m) {
  m.def("_get_mode", [] { return static_cast<int>(mode()); });
  m.def("_set_mode", [](int value) { set_mode(parse_mode(value)); });
  m.def("_set_thread_mode",
        [](int value) { return exchange_thread_mode(value < 0 ? -1 : parse_mode(value)); });
  m.def("_set_fallback", [](const std::string &text) { set_fallback_policy(parse_policy(text)); });
  m.def("_get_fallback", &policy_name);
}

void define_figures(py::module_ &m) {
  m.def("_metrics", &metrics);
  m.def("_reset_metrics", &reset_metrics);
  m.def("_memory_stats", &memory_stats);
  m.def("_mem_get_info", &mem_get_info);
  m.def("_empty_cache", [] {});
  m.def("_reset_peak_memory_stats", [](int i) {
    torus_engine_reset_peak(engine(), resolve_device(static_cast<c10::DeviceIndex>(i)));
  });
  m.def("_reset_accumulated_memory_stats", [](int i) {
    torus_engine_reset_totals(engine(), resolve_device(static_cast<c10::DeviceIndex>(i)));
  });
  m.def("_operators", &operators);
  m.def(
      "_clear_program_cache", [] { torus_engine_clear_programs(engine()); },
      py::call_guard<py::gil_scoped_release>());
  m.def("_cache_only", [](bool on) { torus_engine_set_cache_only(engine(), on); });
  m.def("_last_program_text", &last_program_text);
}

void define_explanations(py::module_ &m) {
  m.def("_compilations", &compilations);
  m.def("_want_places", &want_places);
  m.def("_set_library_folders", &set_library_folders);
  m.def("_configure_log", [](const std::string &categories, const std::string &path) {
    torus_log_configure(categories.c_str(), path.c_str());
  });
}

void define_random(py::module_ &m) {
  m.def("_default_generator",
        [](int i) { return default_generator(resolve_device(static_cast<c10::DeviceIndex>(i))); });
  m.def("_manual_seed_all", [](uint64_t seed) { manual_seed_all(seed); });
}

} // namespace
} // namespace torus

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native part of torch_tpu.";
  m.attr("_torch_version") = TORUS_TORCH_VERSION;
  torus::register_allocator();
  torus::register_hooks();
  torus::register_tensor_kernels();
  torus::register_operators();
  torus::register_fallback();
  torus::register_places();
  torus::define_devices(m);
  torus::define_modes(m);
  torus::define_figures(m);
  torus::define_explanations(m);
  torus::define_random(m);
  torus::define_groups(m);
  torus::define_graphs(m);
  torus::define_aot(m);
  torus::define_compiled_graphs(m);
  torus::define_shardings(m);
  torus::define_collectives(m);
  torus::define_export(m);
}
