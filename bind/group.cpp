// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Every collective takes its inputs to the host, lets Gloo move them, and puts the results back
// when Gloo is done. What is only moved travels as bytes, so that every type works; what is reduced
// travels in a type that Gloo can add.
#include "group.h"

#include <ATen/ATen.h>
#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <map>
#include <numeric>
#include <sstream>

#include "group_reduce.h"
#include "group_work.h"
#include "runtime.h"
#include "transfer.h"

namespace torus {
namespace {

// Joining a group's threads with Python's lock held could wait for one that waits for the lock.
template <typename T> class HolderWithoutGil {
public:
  HolderWithoutGil() = default;
  explicit HolderWithoutGil(T *raw) : held_(c10::intrusive_ptr<T>::unsafe_steal_from_new(raw)) {}
  HolderWithoutGil(c10::intrusive_ptr<T> held) : held_(std::move(held)) {}
  HolderWithoutGil(const HolderWithoutGil &) = default;
  HolderWithoutGil(HolderWithoutGil &&) noexcept = default;
  HolderWithoutGil &operator=(const HolderWithoutGil &) = default;
  HolderWithoutGil &operator=(HolderWithoutGil &&) noexcept = default;
  ~HolderWithoutGil() {
    if (!held_ || !PyGILState_Check()) return;
    pybind11::gil_scoped_release released;
    held_.reset();
  }
  T *get() const { return held_.get(); }

private:
  c10::intrusive_ptr<T> held_;
};

} // namespace
} // namespace torus

PYBIND11_DECLARE_HOLDER_TYPE(T, torus::HolderWithoutGil<T>, true)

namespace torus {
namespace {

using at::Tensor;
using c10d::OpType;
using Tensors = std::vector<Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// ---- tensors on the host ----

// Contiguous, and never the caller's own memory.
Tensor host_copy(const Tensor &t) {
  TORCH_CHECK(t.layout() == at::kStrided,
              "the process group moves dense tensors only, got one of layout ", t.layout());
  if (t.device().type() == kTpu) return fetch(t.detach()).resolve_conj().resolve_neg().contiguous();
  return t.detach().clone(at::MemoryFormat::Contiguous).resolve_conj().resolve_neg();
}

// Of a contiguous tensor. A single element may have any stride, which reshape keeps and bytes must not.
Tensor bytes_of(const Tensor &host) {
  return host.as_strided({host.numel()}, {1}).view(at::kByte);
}

Tensor empty_bytes(int64_t count) {
  return at::empty({count}, at::TensorOptions().dtype(at::kByte));
}

int64_t byte_count(const Tensor &t) { return t.numel() * static_cast<int64_t>(t.element_size()); }

int64_t byte_count(const Tensors &tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), int64_t{0},
                         [](int64_t sum, const Tensor &t) { return sum + byte_count(t); });
}

std::vector<int64_t> byte_counts(const Tensors &tensors) {
  std::vector<int64_t> counts;
  for (const Tensor &t : tensors) counts.push_back(byte_count(t));
  return counts;
}

void deliver(const Tensor &host, const Tensor &t) {
  if (t.numel() == 0) return;
  if (t.device().type() == kTpu) {
    copy_from(host.view(t.sizes()), t.detach(), false);
  } else {
    t.detach().copy_(host.view(t.sizes()));
  }
}

// Bytes that hold the tensors one after the other.
void deliver_bytes(const Tensor &bytes, const Tensors &tensors) {
  int64_t at = 0;
  for (const Tensor &t : tensors) {
    const int64_t count = byte_count(t);
    // A copy: a piece may start where its type must not.
    if (count > 0) deliver(bytes.slice(0, at, at + count).clone().view(t.scalar_type()), t);
    at += count;
  }
}

Tensor packed_bytes(const Tensors &tensors) {
  Tensors parts;
  for (const Tensor &t : tensors) parts.push_back(bytes_of(host_copy(t)));
  if (parts.empty()) return empty_bytes(0);
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

bool have_one_size(const Tensors &tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const Tensor &t) { return byte_count(t) == byte_count(tensors[0]); });
}

// ---- names ----

std::string shape_text(const Tensors &tensors) {
  std::ostringstream text;
  if (!tensors.empty()) text << c10::toString(tensors[0].scalar_type()) << tensors[0].sizes();
  if (tensors.size() > 1) text << " and " << tensors.size() - 1 << " more";
  return text.str();
}

void check_single(const Tensors &tensors, const char *what) {
  TORCH_CHECK_VALUE(tensors.size() == 1, what, " takes one tensor, got ", tensors.size());
}

// Row counts as byte counts; no counts means equal parts.
std::vector<int64_t> split_bytes(const Tensor &t, const std::vector<int64_t> &rows, int size) {
  if (rows.empty()) {
    TORCH_CHECK_VALUE(t.dim() > 0 && t.size(0) % size == 0, "all_to_all: the first dimension of ",
                      t.sizes(), " does not divide equally among ", size, " ranks");
    return std::vector<int64_t>(size, byte_count(t) / size);
  }
  TORCH_CHECK_VALUE(static_cast<int>(rows.size()) == size, "all_to_all: ", rows.size(),
                    " split sizes for ", size, " ranks");
  const int64_t sum = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  TORCH_CHECK_VALUE(sum == t.size(0), "all_to_all: split sizes add up to ", sum,
                    ", the first dimension is ", t.size(0));
  const int64_t row = t.size(0) > 0 ? byte_count(t) / t.size(0) : 0;
  std::vector<int64_t> counts;
  for (const int64_t n : rows) counts.push_back(n * row);
  return counts;
}

// ---- the backend ----

// What a group was made with; the host's group has options of its own.
struct HostOptions final : c10d::Backend::Options {
  explicit HostOptions(std::chrono::milliseconds wait) : Options("tpu_dist", wait) {}
  HostOptions(const HostOptions &) = default;
};

// Lets other threads of Python run for its lifetime, if this thread holds the GIL.
class GilRelease {
public:
  GilRelease() : held_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  GilRelease(const GilRelease &) = delete;
  GilRelease &operator=(const GilRelease &) = delete;
  ~GilRelease() {
    if (held_ != nullptr) PyEval_RestoreThread(held_);
  }

private:
  PyThreadState *held_;
};

class HostGroup final : public c10d::Backend {
public:
  // |aside| serves tensors of the host, so that a thread that exchanges objects does not get in
  // between the collectives of the device; null in that group itself.
  HostGroup(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<HostGroup> aside,
            const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, std::string name,
            std::vector<int64_t> ranks)
      : Backend(rank, size), host_(std::move(host)), aside_(std::move(aside)),
        name_(std::move(name)), ranks_(std::move(ranks)),
        watch_(std::make_shared<GroupWatch>(store, rank, ranks_)) {
    init();
  }
  // Gloo joins its threads, and those may be dropping tensors that Python objects stand for: they
  // need the GIL, which a group that dies with its last Python owner holds.
  ~HostGroup() override {
    watch_->stop();
    const GilRelease released;
    aside_.reset();
    host_.reset();
  }

  const std::string getBackendName() const override { return "tpu_dist"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options(); }
  c10::intrusive_ptr<HostOptions> options() const {
    auto own = c10::make_intrusive<HostOptions>(host_->getBackendOptions()->timeout);
    own->group_name = name_;
    own->global_ranks_in_group.assign(ranks_.begin(), ranks_.end());
    return own;
  }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    host_->setTimeout(timeout);
    if (aside_) aside_->setTimeout(timeout);
  }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return number_; }
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }
  void abort() override {
    host_->abort();
    if (aside_) aside_->abort();
  }
  void shutdown() override {
    watch_->stop();
    host_->shutdown();
    if (aside_) aside_->shutdown();
  }

  WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) override;
  WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) override;
  WorkPtr allreduce_coalesced(Tensors &tensors,
                              const c10d::AllreduceCoalescedOptions &opts) override {
    return allreduce(tensors, opts);
  }
  WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &opts) override;
  WorkPtr allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                    const c10d::AllgatherOptions &opts) override;
  WorkPtr _allgather_base(Tensor &output, Tensor &input,
                          const c10d::AllgatherOptions &opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                              const c10d::AllgatherOptions &opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                          const c10d::AllgatherOptions &opts) override;
  WorkPtr gather(std::vector<Tensors> &outputs, Tensors &inputs,
                 const c10d::GatherOptions &opts) override;
  WorkPtr scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                  const c10d::ScatterOptions &opts) override;
  WorkPtr reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                         const c10d::ReduceScatterOptions &opts) override;
  WorkPtr _reduce_scatter_base(Tensor &output, Tensor &input,
                               const c10d::ReduceScatterOptions &opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                          const c10d::ReduceScatterOptions &opts) override;
  WorkPtr alltoall_base(Tensor &output, Tensor &input, std::vector<int64_t> &output_splits,
                        std::vector<int64_t> &input_splits,
                        const c10d::AllToAllOptions &opts) override;
  WorkPtr alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts) override;
  WorkPtr send(Tensors &tensors, int peer, int tag) override;
  WorkPtr recv(Tensors &tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors &tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions &opts) override;
  void monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all_ranks) override {
    host_->monitoredBarrier(opts, wait_all_ranks);
  }

  void startCoalescing() override {
    TORCH_CHECK(!coalesced_, "startCoalescing: the group is coalescing already");
    coalesced_.emplace();
    if (aside_) aside_->startCoalescing();
  }
  WorkPtr endCoalescing() override {
    TORCH_CHECK(coalesced_, "endCoalescing without startCoalescing");
    Works works = std::move(*coalesced_);
    coalesced_.reset();
    if (aside_) works.push_back(aside_->endCoalescing());
    return c10::make_intrusive<WorkList>(std::move(works));
  }
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store> &store,
                                    const std::vector<int> &ranks,
                                    const c10::intrusive_ptr<Options> &opts) override;

private:
  // The group that serves these tensors, if it is not this one.
  HostGroup *other_for(const Tensor &t) const {
    return aside_ && t.is_cpu() ? aside_.get() : nullptr;
  }
  HostGroup *other_for(const Tensors &tensors) const {
    return tensors.empty() ? nullptr : other_for(tensors[0]);
  }
  WorkPtr started(WorkPtr work) {
    if (coalesced_) coalesced_->push_back(work);
    return work;
  }
  template <typename Launch>
  WorkPtr collective(OpType op, const char *what, const Tensors &shown, const Tensors &outputs,
                     Launch launch, Deliver after);
  // Each rank sends |send_counts| bytes of |input| to the others and gets |receive_counts|.
  WorkPtr exchange(OpType op, const char *what, const Tensors &outputs, const Tensor &packed,
                   std::vector<int64_t> receive_counts, std::vector<int64_t> send_counts,
                   std::chrono::milliseconds timeout);
  WorkPtr gather_uneven(Tensors &outputs, const Tensor &input, std::chrono::milliseconds timeout);
  WorkPtr scatter_reduced(OpType op, const char *what, const Tensors &outputs,
                          const std::vector<Tensors> &inputs,
                          const c10d::ReduceScatterOptions &opts);
  WorkPtr with_peer(OpType op, const std::string &what, Tensors &tensors, WorkPtr host,
                    Deliver after);
  WorkLabel label(OpType op, const std::string &what, const Tensors &tensors,
                  uint64_t number) const;

  c10::intrusive_ptr<c10d::Backend> host_;
  c10::intrusive_ptr<HostGroup> aside_;
  std::string name_;
  std::vector<int64_t> ranks_;
  std::shared_ptr<GroupWatch> watch_;
  std::atomic<uint64_t> number_{0};
  std::optional<Works> coalesced_;
  std::map<std::string, int> parts_;
};

WorkLabel HostGroup::label(OpType op, const std::string &what, const Tensors &tensors,
                           uint64_t number) const {
  WorkLabel label;
  label.op = op;
  label.number = number;
  label.rank = static_cast<int>(ranks_[rank_]);
  label.name = what + "(" + shape_text(tensors) + ")";
  label.group = label.name;
  if (number > 0) label.group += ", collective " + std::to_string(number);
  label.group += " of group '" + name_ + "' on rank " + std::to_string(label.rank) + " (" +
                 std::to_string(size_) + " ranks)";
  return label;
}

template <typename Launch>
WorkPtr HostGroup::collective(OpType op, const char *what, const Tensors &shown,
                              const Tensors &outputs, Launch launch, Deliver after) {
  WorkLabel about = label(op, what, shown, ++number_);
  watch_->enter(about.number, about.name);
  Works works;
  try {
    works = launch();
  } catch (...) {
    watch_->leave();
    throw;
  }
  return started(
      HostWork::start(std::move(about), std::move(works), outputs, std::move(after), watch_));
}

// ---- moving ----

WorkPtr HostGroup::broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) {
  if (HostGroup *other = other_for(tensors)) return other->broadcast(tensors, opts);
  const PlainDispatch plain;
  check_single(tensors, "broadcast");
  const bool is_root = opts.rootRank == rank_;
  Tensors bytes{is_root ? packed_bytes(tensors) : empty_bytes(byte_count(tensors))};
  c10d::BroadcastOptions own = opts;
  own.rootTensor = 0;
  return collective(
      OpType::BROADCAST, "broadcast", tensors, tensors,
      [&] { return bytes[0].numel() > 0 ? Works{host_->broadcast(bytes, own)} : Works{}; },
      is_root ? Deliver{} : [bytes, tensors] { deliver_bytes(bytes[0], tensors); });
}

WorkPtr HostGroup::gather_uneven(Tensors &outputs, const Tensor &input,
                                 std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(byte_count(outputs[rank_]) == byte_count(input),
                    "all_gather: this rank's output ", outputs[rank_].sizes(),
                    " does not fit its input ", input.sizes());
  Tensors parts;
  for (int r = 0; r < size_; ++r) {
    parts.push_back(r == rank_ ? bytes_of(host_copy(input)) : empty_bytes(byte_count(outputs[r])));
  }
  const auto launch = [&] {
    Works works;
    for (int r = 0; r < size_; ++r) {
      if (parts[r].numel() == 0) continue;
      Tensors one{parts[r]};
      c10d::BroadcastOptions opts;
      opts.rootRank = r;
      opts.timeout = timeout;
      works.push_back(host_->broadcast(one, opts));
    }
    return works;
  };
  return collective(OpType::ALLGATHER, "all_gather", {input}, outputs, launch, [parts, outputs] {
    for (size_t r = 0; r < parts.size(); ++r) deliver_bytes(parts[r], {outputs[r]});
  });
}

WorkPtr HostGroup::allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                             const c10d::AllgatherOptions &opts) {
  if (HostGroup *other = other_for(inputs)) return other->allgather(outputs, inputs, opts);
  const PlainDispatch plain;
  check_single(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_,
                    "all_gather needs one output for each of the ", size_, " ranks");
  Tensors list = outputs[0];
  if (!have_one_size(list)) return gather_uneven(list, inputs[0], opts.timeout);
  TORCH_CHECK_VALUE(byte_count(list[0]) == byte_count(inputs[0]), "all_gather: outputs of ",
                    list[0].sizes(), " for an input of ", inputs[0].sizes());
  Tensor from = packed_bytes(inputs), to = empty_bytes(byte_count(list));
  return collective(
      OpType::ALLGATHER, "all_gather", inputs, list,
      [&] { return to.numel() > 0 ? Works{host_->_allgather_base(to, from, opts)} : Works{}; },
      [to, list] { deliver_bytes(to, list); });
}

WorkPtr HostGroup::_allgather_base(Tensor &output, Tensor &input,
                                   const c10d::AllgatherOptions &opts) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr HostGroup::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                   const c10d::AllgatherOptions &opts) {
  if (HostGroup *other = other_for(inputs))
    return other->allgather_into_tensor_coalesced(outputs, inputs, opts);
  const PlainDispatch plain;
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "all_gather_into_tensor: ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  Tensors from, to;
  for (size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK_VALUE(byte_count(outputs[i]) == size_ * byte_count(inputs[i]),
                      "all_gather_into_tensor: an output of ", outputs[i].sizes(),
                      " for inputs of ", inputs[i].sizes(), " from ", size_, " ranks");
    from.push_back(bytes_of(host_copy(inputs[i])));
    to.push_back(empty_bytes(byte_count(outputs[i])));
  }
  const auto launch = [&] {
    Works works;
    for (size_t i = 0; i < to.size(); ++i) {
      if (to[i].numel() > 0) works.push_back(host_->_allgather_base(to[i], from[i], opts));
    }
    return works;
  };
  return collective(OpType::_ALLGATHER_BASE, "all_gather_into_tensor", inputs, outputs, launch,
                    [to, outputs] {
                      for (size_t i = 0; i < to.size(); ++i) deliver_bytes(to[i], {outputs[i]});
                    });
}

// |outputs| holds one list of all inputs for each rank.
WorkPtr HostGroup::allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                       const c10d::AllgatherOptions &opts) {
  if (HostGroup *other = other_for(inputs))
    return other->allgather_coalesced(outputs, inputs, opts);
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == size_,
                    "all_gather_coalesced needs one list of outputs for each rank");
  Works works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Tensors> lists(1);
    for (const Tensors &of_rank : outputs) lists[0].push_back(of_rank.at(i));
    Tensors one{inputs[i]};
    works.push_back(allgather(lists, one, opts));
  }
  return c10::make_intrusive<WorkList>(std::move(works));
}

WorkPtr HostGroup::exchange(OpType op, const char *what, const Tensors &outputs,
                            const Tensor &packed, std::vector<int64_t> receive_counts,
                            std::vector<int64_t> send_counts, std::chrono::milliseconds timeout) {
  Tensor from = packed;
  Tensor to =
      empty_bytes(std::accumulate(receive_counts.begin(), receive_counts.end(), int64_t{0}));
  c10d::AllToAllOptions opts;
  opts.timeout = timeout;
  return collective(
      op, what, outputs, outputs,
      [&] { return Works{host_->alltoall_base(to, from, receive_counts, send_counts, opts)}; },
      [to, outputs] { deliver_bytes(to, outputs); });
}

WorkPtr HostGroup::alltoall_base(Tensor &output, Tensor &input, std::vector<int64_t> &output_splits,
                                 std::vector<int64_t> &input_splits,
                                 const c10d::AllToAllOptions &opts) {
  if (HostGroup *other = other_for(input))
    return other->alltoall_base(output, input, output_splits, input_splits, opts);
  const PlainDispatch plain;
  return exchange(OpType::ALLTOALL_BASE, "all_to_all_single", {output}, packed_bytes({input}),
                  split_bytes(output, output_splits, size_),
                  split_bytes(input, input_splits, size_), opts.timeout);
}

WorkPtr HostGroup::alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts) {
  if (HostGroup *other = other_for(inputs)) return other->alltoall(outputs, inputs, opts);
  const PlainDispatch plain;
  TORCH_CHECK_VALUE(static_cast<int>(inputs.size()) == size_ &&
                        static_cast<int>(outputs.size()) == size_,
                    "all_to_all needs one input and one output for each of the ", size_, " ranks");
  return exchange(OpType::ALLTOALL, "all_to_all", outputs, packed_bytes(inputs),
                  byte_counts(outputs), byte_counts(inputs), opts.timeout);
}

WorkPtr HostGroup::gather(std::vector<Tensors> &outputs, Tensors &inputs,
                          const c10d::GatherOptions &opts) {
  if (HostGroup *other = other_for(inputs)) return other->gather(outputs, inputs, opts);
  const PlainDispatch plain;
  check_single(inputs, "gather");
  const bool is_root = opts.rootRank == rank_;
  TORCH_CHECK_VALUE(!is_root ||
                        (outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_),
                    "gather: the destination needs one output for each of the ", size_, " ranks");
  std::vector<int64_t> send(size_, 0), receive(size_, 0);
  send[opts.rootRank] = byte_count(inputs[0]);
  if (is_root) receive = byte_counts(outputs[0]);
  return exchange(OpType::GATHER, "gather", is_root ? outputs[0] : Tensors{}, packed_bytes(inputs),
                  receive, send, opts.timeout);
}

WorkPtr HostGroup::scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                           const c10d::ScatterOptions &opts) {
  if (HostGroup *other = other_for(outputs)) return other->scatter(outputs, inputs, opts);
  const PlainDispatch plain;
  check_single(outputs, "scatter");
  const bool is_root = opts.rootRank == rank_;
  TORCH_CHECK_VALUE(!is_root || (inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_),
                    "scatter: the source needs one input for each of the ", size_, " ranks");
  std::vector<int64_t> send(size_, 0), receive(size_, 0);
  receive[opts.rootRank] = byte_count(outputs[0]);
  if (is_root) send = byte_counts(inputs[0]);
  return exchange(OpType::SCATTER, "scatter", outputs,
                  is_root ? packed_bytes(inputs[0]) : empty_bytes(0), receive, send, opts.timeout);
}

// ---- reducing ----

WorkPtr HostGroup::allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) {
  if (HostGroup *other = other_for(tensors)) return other->allreduce(tensors, opts);
  const PlainDispatch plain;
  std::vector<Reduction> plans;
  Tensors wires;
  for (const Tensor &t : tensors) {
    plans.emplace_back(opts.reduceOp, t.scalar_type(), size_);
    wires.push_back(plans.back().encode(host_copy(t)));
  }
  const auto launch = [&] {
    Works works;
    for (size_t i = 0; i < wires.size(); ++i) {
      if (wires[i].numel() == 0) continue;
      c10d::AllreduceOptions own = opts;
      own.reduceOp = plans[i].host_op();
      Tensors one{wires[i]};
      works.push_back(host_->allreduce(one, own));
    }
    return works;
  };
  return collective(OpType::ALLREDUCE, "all_reduce", tensors, tensors, launch,
                    [plans, wires, tensors] {
                      for (size_t i = 0; i < wires.size(); ++i)
                        deliver(plans[i].decode(wires[i]), tensors[i]);
                    });
}

WorkPtr HostGroup::reduce(Tensors &tensors, const c10d::ReduceOptions &opts) {
  if (HostGroup *other = other_for(tensors)) return other->reduce(tensors, opts);
  const PlainDispatch plain;
  check_single(tensors, "reduce");
  const Reduction plan(opts.reduceOp, tensors[0].scalar_type(), size_);
  Tensors wire{plan.encode(host_copy(tensors[0]))};
  c10d::ReduceOptions own = opts;
  own.reduceOp = plan.host_op();
  own.rootTensor = 0;
  Deliver after;
  if (opts.rootRank == rank_)
    after = [plan, wire, tensors] { deliver(plan.decode(wire[0]), tensors[0]); };
  return collective(
      OpType::REDUCE, "reduce", tensors, tensors,
      [&] { return wire[0].numel() > 0 ? Works{host_->reduce(wire, own)} : Works{}; },
      std::move(after));
}

// |inputs[i]| are the parts for the ranks, in order, of the reduction whose own part is
// |outputs[i]|. All parts are reduced everywhere: Gloo has nothing better for uneven ones.
WorkPtr HostGroup::scatter_reduced(OpType op, const char *what, const Tensors &outputs,
                                   const std::vector<Tensors> &inputs,
                                   const c10d::ReduceScatterOptions &opts) {
  std::vector<Reduction> plans;
  Tensors wires;
  std::vector<int64_t> starts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors parts;
    for (const Tensor &t : inputs[i]) parts.push_back(host_copy(t).reshape({-1}));
    int64_t start = 0;
    if (parts.size() == 1) start = outputs[i].numel() * rank_;
    for (int r = 0; parts.size() > 1 && r < rank_; ++r) start += parts[r].numel();
    starts.push_back(start);
    plans.emplace_back(opts.reduceOp, outputs[i].scalar_type(), size_);
    wires.push_back(plans.back().encode(parts.size() == 1 ? parts[0] : at::cat(parts)));
  }
  const auto launch = [&] {
    Works works;
    for (size_t i = 0; i < wires.size(); ++i) {
      if (wires[i].numel() == 0) continue;
      c10d::AllreduceOptions own;
      own.reduceOp = plans[i].host_op();
      own.timeout = opts.timeout;
      Tensors one{wires[i]};
      works.push_back(host_->allreduce(one, own));
    }
    return works;
  };
  return collective(op, what, outputs, outputs, launch, [plans, wires, starts, outputs] {
    for (size_t i = 0; i < wires.size(); ++i) {
      deliver(plans[i].decode(wires[i].slice(0, starts[i], starts[i] + outputs[i].numel())),
              outputs[i]);
    }
  });
}

WorkPtr HostGroup::reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                  const c10d::ReduceScatterOptions &opts) {
  if (HostGroup *other = other_for(outputs)) return other->reduce_scatter(outputs, inputs, opts);
  const PlainDispatch plain;
  check_single(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_,
                    "reduce_scatter needs one input for each of the ", size_, " ranks");
  TORCH_CHECK_VALUE(inputs[0][rank_].numel() == outputs[0].numel(),
                    "reduce_scatter: this rank's input ", inputs[0][rank_].sizes(),
                    " does not fit its output ", outputs[0].sizes());
  return scatter_reduced(OpType::REDUCE_SCATTER, "reduce_scatter", outputs, inputs, opts);
}

WorkPtr HostGroup::_reduce_scatter_base(Tensor &output, Tensor &input,
                                        const c10d::ReduceScatterOptions &opts) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr HostGroup::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                   const c10d::ReduceScatterOptions &opts) {
  if (HostGroup *other = other_for(outputs))
    return other->reduce_scatter_tensor_coalesced(outputs, inputs, opts);
  const PlainDispatch plain;
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "reduce_scatter_tensor: ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  std::vector<Tensors> lists;
  for (size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK_VALUE(inputs[i].numel() == size_ * outputs[i].numel(),
                      "reduce_scatter_tensor: an input of ", inputs[i].sizes(), " for outputs of ",
                      outputs[i].sizes(), " on ", size_, " ranks");
    lists.push_back({inputs[i]});
  }
  return scatter_reduced(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", outputs, lists,
                         opts);
}

// ---- peers ----

WorkPtr HostGroup::with_peer(OpType op, const std::string &what, Tensors &tensors, WorkPtr host,
                             Deliver after) {
  return started(c10::make_intrusive<PeerWork>(label(op, what, tensors, 0), std::move(host),
                                               tensors, std::move(after)));
}

WorkPtr HostGroup::send(Tensors &tensors, int peer, int tag) {
  if (HostGroup *other = other_for(tensors)) return other->send(tensors, peer, tag);
  const PlainDispatch plain;
  check_single(tensors, "send");
  Tensors bytes{packed_bytes(tensors)};
  return with_peer(OpType::SEND, "send to rank " + std::to_string(ranks_.at(peer)) + " ", tensors,
                   host_->send(bytes, peer, tag), [bytes] {});
}

WorkPtr HostGroup::recv(Tensors &tensors, int peer, int tag) {
  if (HostGroup *other = other_for(tensors)) return other->recv(tensors, peer, tag);
  const PlainDispatch plain;
  check_single(tensors, "recv");
  Tensors bytes{empty_bytes(byte_count(tensors))};
  return with_peer(OpType::RECV, "receive from rank " + std::to_string(ranks_.at(peer)) + " ",
                   tensors, host_->recv(bytes, peer, tag),
                   [bytes, tensors] { deliver_bytes(bytes[0], tensors); });
}

WorkPtr HostGroup::recvAnysource(Tensors &tensors, int tag) {
  if (HostGroup *other = other_for(tensors)) return other->recvAnysource(tensors, tag);
  const PlainDispatch plain;
  check_single(tensors, "recv");
  Tensors bytes{empty_bytes(byte_count(tensors))};
  return with_peer(OpType::RECVANYSOURCE, "receive from any rank ", tensors,
                   host_->recvAnysource(bytes, tag),
                   [bytes, tensors] { deliver_bytes(bytes[0], tensors); });
}

// ---- the group ----

WorkPtr HostGroup::barrier(const c10d::BarrierOptions &opts) {
  if (aside_ && opts.device && opts.device->is_cpu()) return aside_->barrier(opts);
  const PlainDispatch plain;
  return collective(
      OpType::BARRIER, "barrier", {}, {}, [&] { return Works{host_->barrier(opts)}; }, Deliver{});
}

using Timeout = std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

c10::intrusive_ptr<HostGroup> create_lane(const StorePtr &parent, const char *prefix, int rank,
                                          int size, Timeout timeout,
                                          const std::vector<int64_t> &ranks,
                                          const std::string &name,
                                          c10::intrusive_ptr<HostGroup> aside) {
  const StorePtr store = c10::make_intrusive<c10d::PrefixStore>(prefix, parent);
  c10::intrusive_ptr<c10d::Backend> host;
  {
    const pybind11::gil_scoped_acquire gil;
    const auto make = pybind11::module_::import("torch_tpu.distributed").attr("_host_transport");
    host = make(store, rank, size, timeout, ranks, name).cast<c10::intrusive_ptr<c10d::Backend>>();
  }
  return c10::make_intrusive<HostGroup>(std::move(host), std::move(aside), store, rank, size, name,
                                        ranks);
}

c10::intrusive_ptr<HostGroup> create(const StorePtr &store, int rank, int size, Timeout timeout,
                                     std::vector<int64_t> ranks, const std::string &name) {
  if (ranks.empty()) {
    ranks.resize(size);
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  auto aside = create_lane(store, "cpu", rank, size, timeout, ranks, name, nullptr);
  return create_lane(store, "tpu", rank, size, timeout, ranks, name, std::move(aside));
}

c10::intrusive_ptr<c10d::Backend> HostGroup::split(const StorePtr &store,
                                                   const std::vector<int> &ranks,
                                                   const c10::intrusive_ptr<Options> &opts) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return nullptr;
  std::vector<int64_t> global;
  for (const int r : ranks) global.push_back(ranks_.at(r));
  // One new group asks once for each of its devices, always through the same store.
  const std::string part = "part" + std::to_string(parts_[opts->group_name]++);
  return create(c10::make_intrusive<c10d::PrefixStore>(part, store),
                static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
                opts->timeout, global, opts->group_name);
}

HolderWithoutGil<HostOptions> copied(const HostOptions &options) {
  return {c10::make_intrusive<HostOptions>(options)};
}

} // namespace

void define_groups(pybind11::module_ &m) {
  namespace py = pybind11;
  if (!py::hasattr(py::module_::import("torch._C"), "_distributed_c10d")) return;
  using GroupHolder = HolderWithoutGil<HostGroup>;
  using OptionsHolder = HolderWithoutGil<HostOptions>;
  py::class_<HostOptions, c10d::Backend::Options, OptionsHolder>(m, "HostGroupOptions")
      .def("__copy__", &copied)
      .def("__deepcopy__", [](const HostOptions &self, const py::dict &) { return copied(self); });
  py::class_<HostGroup, c10d::Backend, GroupHolder>(m, "HostGroup")
      .def_property_readonly("options",
                             [](const HostGroup &self) { return OptionsHolder(self.options()); });
  m.def("_create_host_group", [](const StorePtr &store, int rank, int size, Timeout timeout,
                                 std::vector<int64_t> ranks, const std::string &name) {
    return GroupHolder(create(store, rank, size, timeout, std::move(ranks), name));
  });
}

} // namespace torus
