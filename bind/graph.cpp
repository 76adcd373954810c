// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "graph.h"

#include <ATen/core/GraphImplInterface.h>

#include <fstream>
#include <mutex>

#include "generator.h"
#include "runtime.h"
#include "torus/capture.h"
#include "torus/memory.h"

namespace py = pybind11;

namespace torus {
namespace {

// One captured graph: nothing, being captured, or ready to be run.
class Graph {
public:
  Graph() = default;
  Graph(const Graph &) = delete;
  Graph &operator=(const Graph &) = delete;
  ~Graph() {
    if (!is_in_bad_fork()) drop();
  }

  void begin() {
    TORCH_CHECK(!is_capturing_, "this graph is being captured already");
    drop();
    const int device = current_device();
    const auto [seed, offset] = position(device);
    check(torus_capture_begin(engine(), device, seed, offset));
    device_ = device;
    first_offset_ = offset;
    is_capturing_ = true;
  }

  // The generator goes back to where it was: only runs use up random numbers.
  void end() {
    TORCH_CHECK(is_capturing_, "this graph is not being captured");
    is_capturing_ = false;
    rewind();
    torus_capture_t *capture = nullptr;
    check(torus_capture_end(engine(), device_, &capture));
    capture_ = capture;
    text_ = last_program();
  }

  void replay() {
    TORCH_CHECK(capture_ != nullptr, "this graph has not been captured");
    uint64_t seed = 0, offset = 0;
    if (drawn_ > 0) resolve_generator(std::nullopt, device_)->reserve(4 * drawn_, &seed, &offset);
    check(torus_capture_replay(capture_, seed, offset));
  }

  void drop() {
    if (is_capturing_) {
      torus_capture_abort(engine(), device_);
      is_capturing_ = false;
      rewind();
    }
    torus_capture_release(capture_);
    capture_ = nullptr;
    text_.clear();
  }

  bool is_empty() const { return capture_ == nullptr || torus_capture_output_count(capture_) == 0; }
  const std::string &text() const { return text_; }
  std::pair<size_t, size_t> sizes() const {
    TORCH_CHECK(capture_ != nullptr, "this graph has not been captured");
    return {torus_capture_input_count(capture_), torus_capture_output_count(capture_)};
  }

private:
  torus_capture_t *capture_ = nullptr;
  std::string text_;
  int device_ = 0;
  bool is_capturing_ = false;
  uint64_t first_offset_ = 0;
  uint64_t drawn_ = 0; // blocks of random numbers that a run uses up

  static std::pair<uint64_t, uint64_t> position(int device) {
    TpuGenerator *generator = resolve_generator(std::nullopt, device);
    std::lock_guard<std::mutex> guard(generator->mutex_);
    return {generator->current_seed(), generator->get_offset()};
  }

  void rewind() {
    TpuGenerator *generator = resolve_generator(std::nullopt, device_);
    std::lock_guard<std::mutex> guard(generator->mutex_);
    const uint64_t now = generator->get_offset();
    drawn_ = now > first_offset_ ? now - first_offset_ : 0;
    if (drawn_ > 0) generator->set_offset(first_offset_);
  }

  static std::string last_program() {
    char *text = torus_engine_last_program(engine());
    std::string copy = text != nullptr ? text : "";
    torus_free(text);
    return copy;
  }
};

// The same behind torch.accelerator.Graph. Values have no addresses, so that memory pools mean
// nothing.
struct AcceleratorGraph final : at::GraphImplInterface {
  explicit AcceleratorGraph(const at::GraphImplArgs &) {}
  void capture_begin(at::MempoolId_t, at::GraphCaptureMode) override { graph.begin(); }
  void capture_end() override { graph.end(); }
  void instantiate() override {}
  void replay() override { graph.replay(); }
  void reset() override { graph.drop(); }
  at::MempoolId_t pool() const override { return {0, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string &path) override { std::ofstream(path) << graph.text(); }

  Graph graph;
};

} // namespace
} // namespace torus

// The key is the device's name in capitals.
namespace at {
REGISTER_GRAPH_IMPL(TPU, torus::AcceleratorGraph)
} // namespace at

namespace torus {

void define_graphs(py::module_ &m) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<Graph>(m, "_Graph")
      .def(py::init<>())
      .def("begin", &Graph::begin, release)
      .def("end", &Graph::end, release)
      .def("replay", &Graph::replay, release)
      .def("drop", &Graph::drop, release)
      .def("is_empty", &Graph::is_empty)
      .def("sizes", &Graph::sizes)
      .def("text", &Graph::text);
  m.def("_is_capturing", [](int device) {
    return is_initialized() &&
           torus_capture_is_active(engine(), resolve_device(static_cast<c10::DeviceIndex>(device)));
  });
}

} // namespace torus
