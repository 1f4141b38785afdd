// SPDX-License-Identifier: Apache-2.0
// The processes of one run, and what they send each other. One process alone opens no connection.
// All processes must make the same calls in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/parallel/place.h"

namespace compact {

// Another process has ended, or did not answer in time.
struct GroupError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Why a process left the others.
struct Failure {
  int rank = 0;
  int code = 0;  // its exit code
  std::string message;
};

// A sum or a copy that has begun; the tensor may be used after wait(). The destructor waits, too,
// but hides failures.
class Pending {
 public:
  Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  virtual ~Pending() = default;
  virtual void wait() = 0;
};
using PendingPtr = std::unique_ptr<Pending>;

// A sum for all ranks or for one; a copy from one to all others, or between two.
enum class Transfer : uint8_t { kSum, kSumTo, kSend, kPass, kReceive };

// Bytes of tensors given to sums and copies so far, without those of texts and numbers. They count
// twice where all ranks get a sum, which is as much as a sum for one rank and a copy of it
// (Rajbhandari et al. 2020). `waited`: seconds in which this process waited for them; `busy`:
// seconds in which any was under way (on the CPU those of texts and numbers, too).
struct GroupTraffic {
  int64_t bytes = 0;
  double waited = 0, busy = 0;
};

class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local() const { return local_; }  // number among those of this machine
  // Whether this rank prints and writes files for all.
  bool leads() const { return rank_ == 0; }

  // t becomes the sum of all ranks' t, or the t of rank `from`: of one shape and type, contiguous.
  // Sums are equal on all ranks; those of more than two ranks may depend on the order of adding.
  // Throw GroupError.
  void all_reduce(const at::Tensor& t);
  void broadcast(const at::Tensor& t, int from = 0);
  // The same, running beside other work until wait(), which throws GroupError. begin_reduce() gives
  // the sum to rank `to` alone; other ranks' tensors are then undefined. Every rank must begin them
  // in the same order.
  PendingPtr begin_all_reduce(const at::Tensor& t);
  PendingPtr begin_reduce(const at::Tensor& t, int to);
  PendingPtr begin_broadcast(const at::Tensor& t, int from);
  void wait(PendingPtr pending);
  // The texts of all ranks, by rank.
  std::vector<std::string> gather(const std::string& text);
  // The same after long work, of which each rank may do up to kWriting.
  std::vector<std::string> gather_patiently(const std::string& text);
  static constexpr std::chrono::hours kWriting{6};
  // The text of rank 0.
  std::string broadcast(const std::string& text);
  void barrier();
  // Sums of numbers; no memory is asked for.
  int64_t sum_of(int64_t value);
  double sum_of(double value);
  // Rank 0 calls `work`, however long it takes; the others wait. Returns whether it succeeded; on
  // rank 0 an exception of `work` is passed on. Throws GroupError where rank 0 has ended.
  virtual bool lead(FunctionRef<void()> work) = 0;

  // From now on sums of more than two ranks are made in a binary tree over neighbours, ((0 + 1) +
  // (2 + 3)), inside wait(). Their order, and so their last bit, is that of
  // OptimizerOptions::tree_sums in one rank. Throws InputError where the number of ranks is not a
  // power of two.
  void sum_in_a_tree();

  // To be called after waiting for a device and before its results are kept: throws GroupError
  // where sums on it were aborted because a rank had ended.
  virtual void check() {}

  GroupTraffic traffic() const;

  // Tells the others why this process leaves; false if another left before, since only the first is
  // recorded. The process that holds the store waits up to that long for the others to read it.
  // failure(): the first recorded, if it can be read.
  virtual bool leave(const Failure&, std::chrono::seconds) noexcept { return true; }
  virtual std::optional<Failure> failure() noexcept { return std::nullopt; }

 protected:
  // Seconds in which anything is under way between begin() and end().
  class Clock {
   public:
    void begin();
    void end();
    double seconds();

   private:
    using Time = std::chrono::steady_clock::time_point;
    std::mutex mutex_;
    int under_way_ = 0;
    Time since_;
    double seconds_ = 0;
  };

  explicit Group(const Place& place);
  // `rank`: the rank that gets a sum or a passed tensor, or that a copy comes from.
  virtual PendingPtr start(Transfer transfer, const at::Tensor& t, int rank) = 0;
  virtual void sum_patiently(const at::Tensor& t) { start(Transfer::kSum, t, 0)->wait(); }
  const std::shared_ptr<Clock>& clock() const { return clock_; }

 private:
  PendingPtr begin(Transfer transfer, const at::Tensor& t, int rank);
  void add(const at::Tensor& t);  // of texts and numbers
  std::vector<std::string> gather(const std::string& text, bool patiently);
  class TreeSum;
  void sum_tree(const at::Tensor& t, int to);

  int rank_, size_, local_;
  bool tree_ = false;
  GroupTraffic traffic_;
  std::shared_ptr<Clock> clock_ = std::make_shared<Clock>();
  at::Tensor count_, number_;  // of sum_of
};

// Waits for all ranks; one that does not answer for `timeout` counts as gone. Throws InputError
// where the place cannot be reached or its port is taken.
std::unique_ptr<Group> join_group(const Place& place, std::chrono::seconds timeout);
// One process.
std::unique_ptr<Group> single_group();
// For plans, one rank of several: moves nothing, and only counts tensors' bytes.
std::unique_ptr<Group> planned_group(int rank, int size);

}  // namespace compact
