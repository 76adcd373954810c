// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "collective.h"

#include <ATen/ops/empty.h>

#include <memory>
#include <vector>

#include "runtime.h"
#include "sharding.h"
#include "torus/collective.h"
#include "torus/memory.h"

namespace py = pybind11;

namespace torus {
namespace {

struct Release {
  void operator()(torus_buffer_t *buffer) const { torus_buffer_release(buffer); }
  void operator()(torus_executable_t *executable) const { torus_executable_release(executable); }
};
using BufferPtr = std::unique_ptr<torus_buffer_t, Release>;
using ExecutablePtr = std::unique_ptr<torus_executable_t, Release>;

// A torus_collective_t and the lists that it points to.
struct Collective {
  int kind = 0, reduction = 0;
  c10::ScalarType dtype{};
  int64_t count = 0;
  int size = 0, root = 0;
  std::vector<int> sources, targets;

  torus_collective_t get() const {
    return {static_cast<torus_collective_kind_t>(kind),
            static_cast<torus_reduction_t>(reduction),
            to_dtype(dtype),
            count,
            size,
            root,
            sources.data(),
            targets.data(),
            static_cast<int>(sources.size())};
  }
};

Collective make(int kind, int reduction, c10::ScalarType dtype, int64_t count, int size, int root,
                std::vector<int> sources, std::vector<int> targets) {
  TORCH_CHECK_VALUE(sources.size() == targets.size(), "as many sources as targets");
  return {kind, reduction, dtype, count, size, root, std::move(sources), std::move(targets)};
}

std::string text_of(const Collective &collective) {
  const torus_collective_t c = collective.get();
  char *text = nullptr;
  torus_status_t status = torus_collective_text(&c, &text);
  if (torus_status_code(status) == TORUS_STATUS_INVALID_ARGUMENT) {
    const std::string message = torus_status_message(status);
    torus_status_free(status);
    TORCH_CHECK_VALUE(false, message);
  }
  check(status);
  std::string copy(text);
  torus_free(text);
  return copy;
}

BufferPtr upload(const at::Tensor &rows, torus_sharding_t *sharding) {
  torus_buffer_t *buffer = nullptr;
  const int64_t count = rows.numel();
  check(torus_buffer_from_host_sharded(torus_engine_client(engine()), rows.const_data_ptr(),
                                       to_dtype(rows.scalar_type()), 1, &count, sharding, &buffer));
  return BufferPtr(buffer);
}

// |rows| has the members' arguments one after the other, on the host, as the result has theirs.
at::Tensor run(const Collective &collective, const at::Tensor &rows,
               const std::vector<int> &devices) {
  const torus_collective_t c = collective.get();
  TORCH_CHECK_VALUE(devices.size() == static_cast<size_t>(c.size) && rows.is_cpu() &&
                        rows.is_contiguous() && rows.scalar_type() == collective.dtype &&
                        rows.numel() == c.size * torus_collective_argument_count(&c),
                    "the rows of all members on the host, and a device for each");
  torus_sharding_t *sharding = nullptr;
  check(torus_collective_sharding(devices.data(), c.size, &sharding));
  const ShardingPtr held(sharding);
  torus_executable_t *compiled = nullptr;
  check(torus_collective_compile(torus_engine_client(engine()), devices.data(), &c, &compiled));
  const ExecutablePtr executable(compiled);
  const BufferPtr argument = upload(rows, sharding);
  torus_buffer_t *const arguments[] = {argument.get()};
  torus_buffer_t *out = nullptr;
  check(torus_executable_run(compiled, arguments, 1, 1, &out));
  const BufferPtr result(out);
  at::Tensor host =
      at::empty({c.size * torus_collective_result_count(&c)}, rows.options());
  check(torus_buffer_to_host(out, host.mutable_data_ptr(), host.nbytes()));
  return host;
}

} // namespace

void define_collectives(py::module_ &m) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<Collective>(m, "_Collective")
      .def(py::init(&make))
      .def("text", &text_of)
      .def("run", &run, release);
}

} // namespace torus
