// SPDX-License-Identifier: Apache-2.0
// The processes of one run, and what they tell each other. One process alone opens no connection.
// All of them must come to the same calls in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/parallel/place.h"

namespace compact {

// Another process has gone, or did not answer in time.
struct GroupError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Why a process left the others.
struct Failure {
  int rank = 0;
  int code = 0;  // its exit code
  std::string message;
};

class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local() const { return local_; }  // number among those of this machine
  // Whether this is the one that speaks and writes for all.
  bool leads() const { return rank_ == 0; }

  // t becomes the sum of all ranks' t, or that of rank `from`: of one shape and type, contiguous.
  // Sums of two ranks do not depend on their order, of more they may; they are equal on all ranks.
  // Throw GroupError.
  void all_reduce(const at::Tensor& t);
  void broadcast(const at::Tensor& t, int from = 0);
  // The texts of all ranks, by rank; and that of rank 0.
  std::vector<std::string> gather(const std::string& text);
  std::string broadcast(const std::string& text);
  void barrier();
  // Sums of numbers; no memory is asked for.
  int64_t sum_of(int64_t value);
  double sum_of(double value);
  // Rank 0 works, however long; the others wait for it. Whether it ended well: in rank 0 what it
  // throws is passed on. Throws GroupError where rank 0 has gone.
  virtual bool lead(FunctionRef<void()> work) = 0;

  // Tensors' bytes given to all_reduce and broadcast so far, those of texts left out.
  int64_t bytes() const { return bytes_; }

  // Tells the others why this process leaves them; false: another one did before, and only the
  // first is heard. What holds the store stays up to `patience` for the others to hear it. And what
  // the first one said, where that can be known.
  virtual bool leave(const Failure&, std::chrono::seconds) noexcept { return true; }
  virtual std::optional<Failure> failure() noexcept { return std::nullopt; }

 protected:
  explicit Group(const Place& place);
  virtual void sum(const at::Tensor& t) = 0;
  virtual void send(const at::Tensor& t, int from) = 0;

 private:
  int rank_, size_, local_;
  int64_t bytes_ = 0;
  at::Tensor count_, number_;  // of sum_of
};

// Waits for all others to come; who does not answer for `timeout` counts as gone. Throws InputError
// where the place cannot be reached or its port is taken.
std::unique_ptr<Group> join_group(const Place& place, std::chrono::seconds timeout);
// One process.
std::unique_ptr<Group> single_group();

}  // namespace compact
