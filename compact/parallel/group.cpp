// SPDX-License-Identifier: Apache-2.0
#include "compact/parallel/group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "compact/base/check.h"

namespace compact {
namespace {

class SingleGroup final : public Group {
 public:
  SingleGroup() : Group(Place{}) {}
  bool lead(FunctionRef<void()> work) override {
    work();
    return true;
  }

 protected:
  void sum(const at::Tensor&) override {}
  void send(const at::Tensor&, int) override {}
};

}  // namespace

std::unique_ptr<Group> single_group() { return std::make_unique<SingleGroup>(); }

Group::Group(const Place& place) : rank_(place.rank), size_(place.size), local_(place.local) {
  if (size_ == 1) return;
  count_ = at::zeros({1}, at::kLong);
  number_ = at::zeros({1}, at::kDouble);
}

void Group::all_reduce(const at::Tensor& t) {
  if (size_ == 1 || t.numel() == 0) return;
  COMPACT_CHECK(t.is_contiguous(), "[group] a tensor to be summed must be contiguous");
  bytes_ += static_cast<int64_t>(t.nbytes());
  sum(t);
}

void Group::broadcast(const at::Tensor& t, int from) {
  COMPACT_CHECK(from >= 0 && from < size_, "[group] a rank must be in [0, ", size_, "), is ", from);
  if (size_ == 1 || t.numel() == 0) return;
  COMPACT_CHECK(t.is_contiguous(), "[group] a tensor to be sent must be contiguous");
  bytes_ += static_cast<int64_t>(t.nbytes());
  send(t, from);
}

std::vector<std::string> Group::gather(const std::string& text) {
  if (size_ == 1) return {text};
  const at::Tensor lengths = at::zeros({size_}, at::kLong);
  auto* length = lengths.mutable_data_ptr<int64_t>();
  length[rank_] = static_cast<int64_t>(text.size());
  sum(lengths);
  const int64_t most = *std::max_element(length, length + size_);
  // Every rank writes its row of zeros.
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
  sum(count_);
  return *own;
}

double Group::sum_of(double value) {
  if (size_ == 1) return value;
  auto* own = number_.mutable_data_ptr<double>();
  *own = value;
  sum(number_);
  return *own;
}

void Group::barrier() { sum_of(int64_t{0}); }

}  // namespace compact
