// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/graph_task.h>

#include <functional>
#include <utility>

#include "compact/ops/segments/early_restore_impl.h"

namespace compact {

void settle_copies(std::span<const Encoded* const> left) {
  // Encoded::settle keeps no tensor alive, so these may outlive their segment.
  thread_local std::vector<std::function<void()>> under_way;
  std::vector<std::function<void()>> own;
  for (const Encoded* e : left) {
    if (e->settle) own.push_back(e->settle);
  }
  for (const auto& settle : std::exchange(under_way, std::move(own))) settle();
}

bool runs_in_this_pass(torch::autograd::Node* node) {
  const auto* info = torch::autograd::get_current_graph_task_exec_info();
  if (!info || info->empty()) return true;
  const auto found = info->find(node);
  return found != info->end() && found->second.needed_;
}

void EarlyRestore::begin(std::span<const Encoded* const> held) {
  const int pass = torch::autograd::get_current_graph_task_id();
  const std::lock_guard lock(mutex_);
  if (pass_ == pass) return;
  begun_.clear();
  for (const Encoded* e : held) begun_.push_back(e->fetch ? e->fetched() : Encoded());
  pass_ = pass;
}

void EarlyRestore::replace(std::span<Encoded* const> held) {
  std::vector<Encoded> begun;
  {
    const std::lock_guard lock(mutex_);
    begun = std::exchange(begun_, {});
    if (std::exchange(pass_, -1) != torch::autograd::get_current_graph_task_id()) return;
  }
  for (size_t i = 0; i < begun.size(); ++i) {
    if (begun[i].defined()) *held[i] = std::move(begun[i]);
  }
}

void EarlyRestore::drop() {
  const std::lock_guard lock(mutex_);
  begun_.clear();
  pass_ = -1;
}

}  // namespace compact
