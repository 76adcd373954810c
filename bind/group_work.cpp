// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "group_work.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>

#include "runtime.h"

namespace torus {
namespace {

c10::impl::LocalDispatchKeySet plain_dispatch() {
  c10::impl::LocalDispatchKeySet set = c10::impl::tls_local_dispatch_key_set();
  set.included_ = c10::default_included_set;
  set.excluded_ = c10::default_excluded_set | c10::autograd_dispatch_keyset |
                  c10::autocast_dispatch_keyset |
                  c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView) | c10::python_ks |
                  c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot);
  return set;
}

void run_delivery(Deliver &deliver) {
  if (!deliver) return;
  const PlainDispatch plain;
  Deliver once = std::move(deliver);
  deliver = nullptr;
  once();
}

std::string message_of(const std::exception_ptr &error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error &e) {
    return e.what_without_backtrace();
  } catch (const std::exception &e) {
    return e.what();
  } catch (...) {
    return "unknown error";
  }
}

// Gloo starts with a place in its source and may end with advice.
std::string without_ornament(std::string text) {
  if (text.rfind("[/", 0) == 0 && text.find("] ") != std::string::npos)
    text.erase(0, text.find("] ") + 2);
  const size_t advice = text.find(". This is typically");
  if (advice != std::string::npos) text.erase(advice);
  return text;
}

std::exception_ptr explained(const WorkLabel &label, const std::exception_ptr &error,
                             const std::string &reason) {
  std::string text = label.group + " failed: " + without_ornament(message_of(error));
  if (!reason.empty()) text += ". Seen from rank " + std::to_string(label.rank) + ": " + reason;
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, text));
}

c10::intrusive_ptr<c10::ivalue::Future> make_future(const std::vector<at::Tensor> &outputs) {
  std::vector<c10::Device> devices;
  for (const at::Tensor &t : outputs) {
    const bool is_new = std::find(devices.begin(), devices.end(), t.device()) == devices.end();
    if (t.device().type() == kTpu && is_new) devices.push_back(t.device());
  }
  std::sort(devices.begin(), devices.end(), [](auto a, auto b) { return a.index() < b.index(); });
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                  devices);
}

const char *title_of(const WorkLabel &label) {
  switch (label.op) {
  case c10d::OpType::ALLREDUCE: return "tpu:all_reduce";
  case c10d::OpType::BROADCAST: return "tpu:broadcast";
  case c10d::OpType::REDUCE: return "tpu:reduce";
  case c10d::OpType::ALLGATHER: return "tpu:all_gather";
  case c10d::OpType::_ALLGATHER_BASE: return "tpu:_all_gather_base";
  case c10d::OpType::REDUCE_SCATTER: return "tpu:reduce_scatter";
  case c10d::OpType::_REDUCE_SCATTER_BASE: return "tpu:_reduce_scatter_base";
  case c10d::OpType::ALLTOALL: return "tpu:all_to_all";
  case c10d::OpType::ALLTOALL_BASE: return "tpu:all_to_all_base";
  case c10d::OpType::GATHER: return "tpu:gather";
  case c10d::OpType::SCATTER: return "tpu:scatter";
  case c10d::OpType::BARRIER: return "tpu:barrier";
  default: return nullptr;
  }
}

} // namespace

PlainDispatch::PlainDispatch() : guard_(plain_dispatch()) {}

// ---- references that Gloo holds ----

namespace {

constexpr std::chrono::seconds kLongestDrop{2};
std::atomic<int> held_count{0};

// Counted until the work it holds is gone.
class HeldByGloo {
public:
  explicit HeldByGloo(c10::intrusive_ptr<HostWork> held) : work(std::move(held)) { ++held_count; }
  HeldByGloo(const HeldByGloo &) = delete;
  HeldByGloo &operator=(const HeldByGloo &) = delete;
  ~HeldByGloo() {
    work.reset();
    --held_count;
  }

  c10::intrusive_ptr<HostWork> work;
};

} // namespace

void wait_for_dropped_works() {
  const auto deadline = std::chrono::steady_clock::now() + kLongestDrop;
  while (held_count > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// ---- collectives ----

HostWork::HostWork(WorkLabel label, std::vector<at::Tensor> outputs, Deliver deliver,
                   std::shared_ptr<GroupWatch> watch, size_t pending)
    : Work(label.rank, label.op, title_of(label)), label_(std::move(label)),
      outputs_(std::move(outputs)), deliver_(std::move(deliver)), watch_(std::move(watch)),
      pending_(pending), future_(make_future(outputs_)) {}

c10::intrusive_ptr<HostWork> HostWork::start(WorkLabel label, Works host,
                                             std::vector<at::Tensor> outputs, Deliver deliver,
                                             std::shared_ptr<GroupWatch> watch) {
  auto work = c10::make_intrusive<HostWork>(std::move(label), std::move(outputs),
                                            std::move(deliver), std::move(watch), host.size());
  if (host.empty()) work->conclude();
  const auto held = std::make_shared<HeldByGloo>(work);
  for (const auto &one : host) {
    one->getFuture()->addCallback(
        [held](c10::ivalue::Future &future) { held->work->host_ended(future); });
  }
  return work;
}

void HostWork::host_ended(c10::ivalue::Future &future) {
  if (future.hasError()) {
    const std::lock_guard<std::mutex> lock(error_mutex_);
    if (!error_) error_ = future.exception_ptr();
  }
  if (--pending_ == 0) conclude();
}

void HostWork::conclude() {
  try {
    if (!error_) run_delivery(deliver_);
  } catch (...) {
    error_ = std::current_exception();
  }
  deliver_ = nullptr;
  if (error_) error_ = explained(label_, error_, watch_ ? watch_->explain(label_.number) : "");
  if (watch_) watch_->leave();
  watch_.reset();
  // Those who wait on the work must find the future done, and the other way round.
  finish(error_);
  if (error_) {
    future_->setError(error_);
  } else {
    future_->markCompleted(c10::IValue(outputs_));
  }
}

bool HostWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_over = [this] { return completed_; };
  if (timeout == kNoTimeout) {
    cv_.wait(lock, is_over);
  } else if (!cv_.wait_for(lock, timeout, is_over)) {
    C10_THROW_ERROR(DistBackendError, label_.group + " has not ended after the " +
                                          std::to_string(timeout.count()) +
                                          " ms that wait() was given");
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

// ---- one peer ----

PeerWork::PeerWork(WorkLabel label, c10::intrusive_ptr<c10d::Work> host,
                   std::vector<at::Tensor> outputs, Deliver deliver)
    : Work(label.rank, label.op), label_(std::move(label)), host_(std::move(host)),
      outputs_(std::move(outputs)), deliver_(std::move(deliver)), future_(make_future(outputs_)) {}

bool PeerWork::wait(std::chrono::milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(wait_mutex_);
  if (!is_over_) {
    is_over_ = true;
    std::exception_ptr error;
    try {
      host_->wait(timeout);
      run_delivery(deliver_);
    } catch (...) {
      error = explained(label_, std::current_exception(), "");
    }
    deliver_ = nullptr;
    finish(error);
    if (error) {
      future_->setError(error);
    } else {
      future_->markCompleted(c10::IValue(outputs_));
    }
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

// ---- lists ----

bool WorkList::isCompleted() {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto &work) { return work->isCompleted(); });
}

bool WorkList::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto &work) { return work->isSuccess(); });
}

bool WorkList::wait(std::chrono::milliseconds timeout) {
  for (const auto &work : works_) work->wait(timeout);
  return true;
}

std::vector<at::Tensor> WorkList::result() {
  std::vector<at::Tensor> all;
  for (const auto &work : works_) {
    const std::vector<at::Tensor> some = work->result();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkList::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto &work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures);
}

} // namespace torus
