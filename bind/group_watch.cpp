// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "group_watch.h"

#include <chrono>
#include <sstream>

namespace torus {
namespace {

constexpr std::chrono::milliseconds kBeat{300};
constexpr std::chrono::milliseconds kGrace{1000}; // three beats: a live process has written
constexpr std::chrono::milliseconds kStoreReply{1500};

std::string key_of(int rank) { return "torus/position/" + std::to_string(rank); }

void append(std::string &text, const std::string &part) {
  text += text.empty() ? part : "; " + part;
}

std::string joined(const std::vector<std::string> &parts) {
  std::string text;
  for (const std::string &part : parts) text += text.empty() ? part : ", " + part;
  return text;
}

} // namespace

GroupWatch::GroupWatch(const c10::intrusive_ptr<c10d::Store> &store, int rank,
                       std::vector<int64_t> ranks)
    : rank_(rank), size_(static_cast<int>(ranks.size())), ranks_(std::move(ranks)) {
  if (size_ <= 1) return;
  try {
    store_ = store->clone();
    store_->setTimeout(kStoreReply);
  } catch (const std::exception &) {
    store_.reset(); // a store that cannot be shared: errors then name no rank
  }
}

GroupWatch::~GroupWatch() { stop(); }

void GroupWatch::enter(uint64_t number, const std::string &what) {
  if (!store_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_stopped_) return;
  number_ = number;
  what_ = what;
  ++pending_;
  has_news_ = true;
  if (!thread_.joinable()) thread_ = std::thread(&GroupWatch::run, this);
  changed_.notify_one();
}

void GroupWatch::leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pending_ > 0) --pending_;
}

void GroupWatch::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_stopped_) return;
    is_stopped_ = true;
    changed_.notify_one();
  }
  if (!thread_.joinable()) return;
  thread_.join();
  if (!has_failed_) publish("left " + own_text());
}

std::string GroupWatch::own_text() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::ostringstream text;
  text << ++beat_ << ' ' << number_ << ' ' << what_;
  has_news_ = false;
  return (has_failed_ ? "failed " : "at ") + text.str();
}

bool GroupWatch::publish(const std::string &text) {
  try {
    const std::lock_guard<std::mutex> lock(store_mutex_);
    store_->set(key_of(rank_), std::vector<uint8_t>(text.begin(), text.end()));
    return true;
  } catch (const std::exception &) {
    return false; // the store is gone; explain() says so
  }
}

// At most one write each beat, and none while nothing is pending.
void GroupWatch::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_stopped_) {
    if (!has_news_ && pending_ == 0) {
      changed_.wait(lock, [this] { return is_stopped_ || has_news_ || pending_ > 0; });
      continue;
    }
    lock.unlock();
    const bool is_written = publish(own_text());
    lock.lock();
    if (!is_written) return;
    changed_.wait_for(lock, kBeat, [this] { return is_stopped_; });
  }
}

GroupWatch::Position GroupWatch::read_one(int rank, bool &out_unreachable) {
  Position position;
  try {
    const std::lock_guard<std::mutex> lock(store_mutex_);
    if (!store_->check({key_of(rank)})) return position;
    const std::vector<uint8_t> bytes = store_->get(key_of(rank));
    std::istringstream text(std::string(bytes.begin(), bytes.end()));
    std::string state;
    text >> state;
    position.has_left = state == "left";
    if (position.has_left) text >> state;
    position.has_failed = state == "failed";
    text >> position.beat >> position.number >> std::ws;
    std::getline(text, position.what);
    position.is_known = true;
  } catch (const std::exception &) {
    out_unreachable = true;
  }
  return position;
}

std::vector<GroupWatch::Position> GroupWatch::read_all(std::string &out_error) {
  std::vector<Position> positions(size_);
  for (int rank = 0; rank < size_; ++rank) {
    bool is_unreachable = false;
    if (rank != rank_) positions[rank] = read_one(rank, is_unreachable);
    if (is_unreachable) {
      out_error = "the store of the group does not answer: the process that keeps it (usually rank "
                  "0) is gone or stopped";
      break;
    }
  }
  return positions;
}

std::string GroupWatch::explain(uint64_t number) {
  if (!store_) return "";
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    has_failed_ = has_news_ = true;
    changed_.notify_one();
  }
  std::string error, text;
  const std::vector<Position> before = read_all(error);
  if (!error.empty()) return error;
  std::this_thread::sleep_for(kGrace);
  std::vector<Position> after = read_all(error);
  if (!error.empty()) after = before; // whoever kept the store may have failed, and left, by now
  std::vector<std::string> silent, failed;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    const Position &now = after[rank];
    const std::string name = "rank " + std::to_string(ranks_[rank]);
    const std::string last = now.number > 0 ? " (last seen in collective " +
                                                  std::to_string(now.number) + ", " + now.what + ")"
                                            : "";
    if (now.has_left) {
      append(text, name + " has left the group" + last);
    } else if (!now.is_known || now.number < number) {
      append(text, name + " had not entered it" + last);
    } else if (error.empty() && now.beat == before[rank].beat && !now.has_failed) {
      silent.push_back(name);
    } else if (now.has_failed) {
      failed.push_back(name);
    } else if (now.number > number) {
      append(text, name + " had passed it" + last);
    }
  }
  if (!silent.empty())
    append(text, joined(silent) + " had entered it but shows no sign of life since: killed, "
                                  "stopped, or no longer waiting");
  if (!failed.empty()) append(text, joined(failed) + " failed in it too");
  return text.empty() ? error : text;
}

} // namespace torus
