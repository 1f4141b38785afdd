// SPDX-License-Identifier: Apache-2.0
#include "compact/parallel/group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "compact/base/check.h"

namespace compact {
namespace {

class Done final : public Pending {
  void wait() override {}
};

// A group of one process: sums and copies change nothing.
class LoneGroup final : public Group {
 public:
  explicit LoneGroup(const Place& place) : Group(place) {}
  bool lead(FunctionRef<void()> work) override {
    work();
    return true;
  }

 protected:
  PendingPtr start(Transfer, const at::Tensor&, int) override { return std::make_unique<Done>(); }
};

}  // namespace

std::unique_ptr<Group> single_group() { return std::make_unique<LoneGroup>(Place{}); }

std::unique_ptr<Group> planned_group(int rank, int size) {
  COMPACT_CHECK(rank >= 0 && rank < size, "[group] a rank must be in [0, ", size, "), is ", rank);
  return std::make_unique<LoneGroup>(Place{.rank = rank, .size = size});
}

void Group::Clock::begin() {
  const std::lock_guard lock(mutex_);
  if (under_way_++ == 0) since_ = std::chrono::steady_clock::now();
}

void Group::Clock::end() {
  const std::lock_guard lock(mutex_);
  if (--under_way_ > 0) return;
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - since_).count();
}

double Group::Clock::seconds() {
  const std::lock_guard lock(mutex_);
  return seconds_;
}

Group::Group(const Place& place) : rank_(place.rank), size_(place.size), local_(place.local) {
  if (size_ == 1) return;
  count_ = at::zeros({1}, at::kLong);
  number_ = at::zeros({1}, at::kDouble);
}

GroupTraffic Group::traffic() const {
  GroupTraffic now = traffic_;
  now.busy = clock_->seconds();
  return now;
}

class Group::TreeSum final : public Pending {
 public:
  TreeSum(Group& group, Transfer transfer, at::Tensor t, int rank)
      : group_(group), transfer_(transfer), t_(std::move(t)), rank_(rank) {}
  void wait() override {
    group_.clock()->begin();
    group_.sum_tree(t_, rank_);
    group_.clock()->end();
    if (transfer_ == Transfer::kSum) group_.start(Transfer::kSend, t_, rank_)->wait();
  }

 private:
  Group& group_;
  Transfer transfer_;
  at::Tensor t_;
  int rank_;
};

PendingPtr Group::begin(Transfer transfer, const at::Tensor& t, int rank) {
  COMPACT_CHECK(rank >= 0 && rank < size_, "[group] a rank must be in [0, ", size_, "), is ", rank);
  if (size_ == 1 || t.numel() == 0) return std::make_unique<Done>();
  COMPACT_CHECK(t.is_contiguous(), "[group] a tensor to be summed or sent must be contiguous");
  traffic_.bytes += (transfer == Transfer::kSum ? 2 : 1) * static_cast<int64_t>(t.nbytes());
  if (tree_ && transfer != Transfer::kSend) {
    return std::make_unique<TreeSum>(*this, transfer, t, rank);
  }
  return start(transfer, t, rank);
}

void Group::sum_in_a_tree() {
  COMPACT_CHECK((size_ & (size_ - 1)) == 0,
                "[group] a tree of sums needs a power of two of ranks, there are ", size_);
  tree_ = size_ > 2;
}

// In each round of two neighbours the one whose rank has the same bit as `to` gets their sum.
void Group::sum_tree(const at::Tensor& t, int to) {
  at::Tensor other;
  for (int bit = 1; bit < size_; bit <<= 1) {
    const int neighbour = rank_ ^ bit;
    if ((rank_ & bit) != (to & bit)) return start(Transfer::kPass, t, neighbour)->wait();
    if (!other.defined()) other = at::empty_like(t);
    start(Transfer::kReceive, other, neighbour)->wait();
    t.add_(other);
  }
}

PendingPtr Group::begin_all_reduce(const at::Tensor& t) { return begin(Transfer::kSum, t, 0); }
PendingPtr Group::begin_reduce(const at::Tensor& t, int to) {
  return begin(Transfer::kSumTo, t, to);
}
PendingPtr Group::begin_broadcast(const at::Tensor& t, int from) {
  return begin(Transfer::kSend, t, from);
}

void Group::wait(PendingPtr pending) {
  const auto start = std::chrono::steady_clock::now();
  pending->wait();
  traffic_.waited +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Group::all_reduce(const at::Tensor& t) { wait(begin_all_reduce(t)); }
void Group::broadcast(const at::Tensor& t, int from) { wait(begin_broadcast(t, from)); }

void Group::add(const at::Tensor& t) { start(Transfer::kSum, t, 0)->wait(); }

std::vector<std::string> Group::gather(const std::string& text) { return gather(text, false); }
std::vector<std::string> Group::gather_patiently(const std::string& text) {
  return gather(text, true);
}

std::vector<std::string> Group::gather(const std::string& text, bool patiently) {
  if (size_ == 1) return {text};
  const at::Tensor lengths = at::zeros({size_}, at::kLong);
  auto* length = lengths.mutable_data_ptr<int64_t>();
  length[rank_] = static_cast<int64_t>(text.size());
  const auto sum = [&](const at::Tensor& t) { patiently ? sum_patiently(t) : add(t); };
  sum(lengths);
  const int64_t most = *std::max_element(length, length + size_);
  // Every rank writes its row; other rows are zeros, so the sum has all.
  const at::Tensor all = at::zeros({size_, std::max<int64_t>(most, 1)}, at::kByte);
  auto* bytes = reinterpret_cast<char*>(all.mutable_data_ptr<uint8_t>());
  std::memcpy(bytes + rank_ * all.size(1), text.data(), text.size());
  sum(all);
  std::vector<std::string> texts;
  for (int r = 0; r < size_; ++r) {
    texts.emplace_back(bytes + r * all.size(1), static_cast<size_t>(length[r]));
  }
  return texts;
}

std::string Group::broadcast(const std::string& text) {
  return gather(leads() ? text : std::string())[0];
}

int64_t Group::sum_of(int64_t value) {
  if (size_ == 1) return value;
  auto* own = count_.mutable_data_ptr<int64_t>();
  *own = value;
  add(count_);
  return *own;
}

double Group::sum_of(double value) {
  if (size_ == 1) return value;
  auto* own = number_.mutable_data_ptr<double>();
  *own = value;
  add(number_);
  return *own;
}

void Group::barrier() { sum_of(int64_t{0}); }

}  // namespace compact
