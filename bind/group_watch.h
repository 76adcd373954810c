// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Where each rank of a process group is, so that an error can name the rank that is missing.
//
// While work is pending a thread writes this rank's position to the group's store. When a
// collective fails, the ranks' positions tell who had not entered it, who had left, and whose
// process has stopped writing.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace torus {

class GroupWatch {
public:
  // |ranks| are the members' ranks in the whole job, which is how messages name them.
  GroupWatch(const c10::intrusive_ptr<c10d::Store> &store, int rank, std::vector<int64_t> ranks);
  ~GroupWatch();
  GroupWatch(const GroupWatch &) = delete;
  GroupWatch &operator=(const GroupWatch &) = delete;

  // This rank enters its |number|-th collective.
  void enter(uint64_t number, const std::string &what);
  // One unit of work has ended.
  void leave();
  // The group is taken down in good order.
  void stop();
  // What is known of the ranks that keep collective |number| from ending. Waits a moment to see
  // whose process still writes.
  std::string explain(uint64_t number);

private:
  struct Position {
    bool is_known = false;
    bool has_left = false;
    bool has_failed = false;
    uint64_t beat = 0;
    uint64_t number = 0;
    std::string what;
  };

  void run();
  bool publish(const std::string &text);
  std::string own_text();
  std::vector<Position> read_all(std::string &out_error);
  Position read_one(int rank, bool &out_unreachable);

  const int rank_;
  const int size_;
  const std::vector<int64_t> ranks_;
  c10::intrusive_ptr<c10d::Store> store_; // own connection; null when it cannot be had
  std::mutex store_mutex_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  bool is_stopped_ = false;
  bool has_news_ = false;
  bool has_failed_ = false;
  int pending_ = 0;
  uint64_t beat_ = 0;
  uint64_t number_ = 0;
  std::string what_;
};

} // namespace torus
