// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// The handle of one collective that moves through host memory.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <functional>
#include <memory>

#include "group_watch.h"

namespace torus {

// What a work is, for messages and for those who ask its number.
struct WorkLabel {
  c10d::OpType op = c10d::OpType::UNKNOWN;
  uint64_t number = 0; // of the collective in its group, from 1; 0 for send and receive
  std::string name;    // "allreduce(float32[3, 4])"
  std::string group;   // "allreduce 12 of group '0' on rank 0 of 2"
  int rank = 0;
};

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;
using Deliver = std::function<void()>;

// Inside a backend the caller's dispatch modes and autograd have had their say. What a collective
// does on the host, often on another thread, is none of their business, and must not run Python.
class PlainDispatch {
public:
  PlainDispatch();

private:
  c10::impl::ForceDispatchKeyGuard guard_;
};

// Waits until Gloo's threads hold no work that has ended. Dropping the last reference to a work may
// drop tensors that Python objects stand for: on a thread other than Python's own that ends the
// process when the interpreter is on its way out. Gives up after a while: a work may never end.
void wait_for_dropped_works();

// Ends when all host works have ended and |deliver| has put the results on the device; it runs on
// the thread that ends the last of them.
class HostWork final : public c10d::Work {
public:
  static c10::intrusive_ptr<HostWork> start(WorkLabel label, Works host,
                                            std::vector<at::Tensor> outputs, Deliver deliver,
                                            std::shared_ptr<GroupWatch> watch);
  HostWork(WorkLabel label, std::vector<at::Tensor> outputs, Deliver deliver,
           std::shared_ptr<GroupWatch> watch, size_t pending);

  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return label_.number; }
  bool wait(std::chrono::milliseconds timeout) override;

private:
  void host_ended(c10::ivalue::Future &future);
  void conclude();

  WorkLabel label_;
  std::vector<at::Tensor> outputs_;
  Deliver deliver_;
  std::shared_ptr<GroupWatch> watch_;
  std::atomic<size_t> pending_;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// A send or a receive: Gloo drives these only inside wait().
class PeerWork final : public c10d::Work {
public:
  PeerWork(WorkLabel label, c10::intrusive_ptr<c10d::Work> host, std::vector<at::Tensor> outputs,
           Deliver deliver);
  bool wait(std::chrono::milliseconds timeout) override;
  int sourceRank() const override { return host_->sourceRank(); }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  void abort() override { host_->abort(); }

private:
  WorkLabel label_;
  c10::intrusive_ptr<c10d::Work> host_;
  std::vector<at::Tensor> outputs_;
  Deliver deliver_;
  std::mutex wait_mutex_;
  bool is_over_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// What was started between startCoalescing and endCoalescing.
class WorkList final : public c10d::Work {
public:
  explicit WorkList(Works works) : works_(std::move(works)) {}
  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

private:
  Works works_;
};

} // namespace torus
