// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/placed_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/codecs/side_copy_impl.h"

namespace compact {
namespace {

// The same memory as a tensor of the host, which a GPU's tensor on its host is not.
at::Tensor as_host(const at::Tensor& t) {
  return t.is_cuda() ? at::from_blob(t.data_ptr(), t.sizes(), at::dtype(t.scalar_type())) : t;
}

}  // namespace

void move_to(MemoryPlace place, const at::Tensor& t, const std::string& folder) {
  const at::NoGradGuard no_grad;
  COMPACT_CHECK(t.storage_offset() == 0 && t.is_contiguous() && t.storage().nbytes() == t.nbytes(),
                "[weights] one that lies elsewhere must have a storage of its own");
  const at::Tensor there = zeros_in(place, t.sizes(), t.options().requires_grad(false), folder);
  as_host(there).copy_(t);
  exchange_memory(t, there);
}

PlacedWeights::PlacedWeights() = default;
PlacedWeights::~PlacedWeights() = default;

int PlacedWeights::add(std::vector<at::Tensor> weights) {
  groups_.push_back({.weights = std::move(weights)});
  return static_cast<int>(groups_.size()) - 1;
}

std::vector<PlacedWeights::Copy> PlacedWeights::begin(const Group& group) const {
  const at::NoGradGuard no_grad;
  std::vector<Copy> copies;
  for (const at::Tensor& w : group.weights) {
    const bool cpu = device_type_of(w) == at::kCPU;
    Copy copy{.here = at::empty_like(w), .coming = nullptr, .version = w._version()};
    if (cpu) {
      copy.here.copy_(w);
    } else {
      copy.coming = std::make_unique<SideCopy>(copy.here);
      copy.coming->from_host(as_host(w));
    }
    copies.push_back(std::move(copy));
  }
  return copies;
}

// Whether what was begun ahead is of the values that the weights have now.
bool PlacedWeights::is_current(const Group& group) const {
  for (size_t i = 0; i < ahead_.size(); ++i) {
    if (ahead_[i].version != group.weights[i]._version()) return false;
  }
  return true;
}

void PlacedWeights::fetch(int number, bool backward) {
  const std::lock_guard lock(mutex_);
  Group& group = groups_.at(static_cast<size_t>(number));
  std::vector<Copy> copies;
  if (group.readers == 0) {
    if (next_ == number) {
      if (!is_current(group)) ahead_.clear();
      copies = std::exchange(ahead_, {});
    }
    if (copies.empty()) copies = begin(group);
  }
  const int next = backward ? number - 1 : number + 1;
  const bool there = next >= 0 && next < static_cast<int>(groups_.size());
  if (next != next_ || ahead_.empty()) {
    ahead_.clear();
    next_ = next;
    const Group* const following = there ? &groups_[static_cast<size_t>(next)] : nullptr;
    if (following && following->readers == 0) {
      if (device_type_of(group.weights[0]) != at::kCPU) {
        ahead_ = begin(*following);
      } else {
        for (const at::Tensor& w : following->weights) read_ahead(w);
      }
    }
  }
  group.away.reserve(copies.size());
  ++group.readers;  // from here on no memory is asked for
  for (size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].coming) copies[i].coming->wait();
    exchange_memory(group.weights[i], copies[i].here);
    group.away.push_back(std::move(copies[i].here));
  }
}

void PlacedWeights::release(int number) {
  const std::lock_guard lock(mutex_);
  Group& group = groups_.at(static_cast<size_t>(number));
  if (--group.readers > 0) return;
  for (size_t i = 0; i < group.away.size(); ++i) exchange_memory(group.weights[i], group.away[i]);
  group.away.clear();
}

}  // namespace compact
