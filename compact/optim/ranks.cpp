// SPDX-License-Identifier: Apache-2.0
// An optimizer's exchange with other ranks besides updates (exchange.cpp): sums, norms, weights.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/optim/optimizer.h"
#include "compact/optim/update.h"

namespace compact {

void Optimizer::shard_weights(const std::vector<std::vector<Parameter*>>& segments) {
  if (!reduction_) return;
  for (const auto& read : segments) {
    for (const Parameter* p : read) {
      const at::Device device = p->weight.device();
      COMPACT_CHECK(!is_outside(p->place, device) ||
                        (options_.zero < 3 && device_type_of(device) == at::kCPU),
                    "weight `", p->name,
                    "`: weights that lie elsewhere are for one process, or for several on CPUs "
                    "below --zero 3");
    }
  }
  if (options_.zero < 3 || shards_) return;
  std::map<const Parameter*, int> readers;
  for (const auto& read : segments) {
    for (const Parameter* p : read) ++readers[p];
  }
  const auto apart = [&](const Parameter* p) { return p->weight.dim() > 1 && readers[p] == 1; };
  std::map<const Parameter*, int> owners;
  for (const ParameterState& s : states_) owners[s.parameter] = s.owner;
  // Frozen ones are dealt after the others.
  std::vector<const Parameter*> frozen;
  for (const auto& read : segments) {
    std::ranges::copy_if(read, std::back_inserter(frozen),
                         [&](const Parameter* p) { return !p->trained && apart(p); });
  }
  std::vector<int64_t> bytes;
  for (const Parameter* p : frozen) bytes.push_back(p->weight_bytes());
  const std::vector<int> dealt = deal_owners(bytes, options_.group->size(), loads_);
  for (size_t i = 0; i < frozen.size(); ++i) {
    owners[frozen[i]] = dealt[i];
    if (dealt[i] != kEveryRank) loads_[static_cast<size_t>(dealt[i])] += bytes[i];
  }
  std::vector<std::vector<WeightShards::Shard>> shards(segments.size());
  std::vector<std::pair<Parameter*, int>> sharded;
  for (size_t i = 0; i < segments.size(); ++i) {
    for (Parameter* p : segments[i]) {
      const auto owner = owners.find(p);
      if (!apart(p) || owner == owners.end() || owner->second == kEveryRank) continue;
      const std::vector<at::Tensor> here =
          p->places.empty() ? std::vector{p->weight} : p->places[0].home->held(p->weight);
      COMPACT_CHECK(!here.empty(), "[optimizer] the weight of `", p->name,
                    "` is with the ranks of an optimizer before this one: gather_weights() before "
                    "that goes");
      for (const at::Tensor& t : here) shards[i].push_back({t, owner->second});
      sharded.emplace_back(p, static_cast<int>(i));
    }
  }
  shards_ = std::make_shared<WeightShards>(options_.group, std::move(shards));
  for (const auto& [p, segment] : sharded) {
    p->places.insert(p->places.begin(), {shards_, segment});
    sharded_.push_back(p);
  }
}

void Optimizer::gather_weights() {
  if (shards_) shards_->gather();
}

void Optimizer::scatter_weights() {
  if (shards_) shards_->scatter();
}

void Optimizer::end_backward() {
  if (shards_) shards_->settle();
  if (reduction_) reduction_->end_pass();
}

void Optimizer::check_scattered() const {
  COMPACT_CHECK(!shards_ || !shards_->is_gathered(),
                "[optimizer] weights of several ranks are gathered, of which updates would change "
                "those of their owners alone: scatter_weights() first");
}

void Optimizer::check_summed() const {
  COMPACT_CHECK(!reduction_ || reduction_->is_done(), "[optimizer] gradients of ",
                options_.group->size(),
                " ranks must be summed before they are used: sum_over_ranks()");
}

void Optimizer::sum_over_ranks() {
  for (ParameterState& s : states_) s.finish_tree();  // parameters that the last pass did not reach
  if (reduction_) reduction_->finish();
}

// Each rank contributes the norms of the parameters it owns (rank 0 also the shared ones), zeros
// elsewhere, and one all-reduce adds them: the result is that of one process.
at::Tensor Optimizer::norm_over_ranks() const {
  if (states_.empty()) return at::zeros({}, at::kFloat);
  const at::Tensor zero = at::zeros({}, states_[0].weight.options().dtype(at::kFloat));
  std::vector<at::Tensor> norms(states_.size(), zero), gpu_gradients;
  std::vector<size_t> on_gpu;
  for (size_t i = 0; i < states_.size(); ++i) {
    const ParameterState& s = states_[i];
    const at::Tensor& g = s.gradient();
    if (!g.defined() || std::max(s.owner, 0) != s.rank) continue;
    if (device_type_of(g) == at::kCUDA) {
      on_gpu.push_back(i);
      gpu_gradients.push_back(g);
      continue;
    }
    std::vector<at::Tensor> parts;
    append_norms(g, parts);
    norms[i] = parts.size() == 1 ? parts[0] : at::linalg_vector_norm(at::stack(parts));
  }
  if (!on_gpu.empty()) {
    const std::vector<at::Tensor> found = at::_foreach_norm(gpu_gradients, 2, at::kFloat);
    for (size_t k = 0; k < on_gpu.size(); ++k) norms[on_gpu[k]] = found[k];
  }
  const at::Tensor all = at::stack(norms);
  options_.group->all_reduce(all);
  return at::linalg_vector_norm(all);
}

}  // namespace compact
