// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/block_options.h"

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace {

Policy policy_of(const std::string& text) { return Policy::parse(text, "auto"); }

// The most at a moment, or `otherwise` where a step has no such moment.
int64_t at_moment(const StepMemory& memory, const std::string& name, int64_t otherwise) {
  for (const auto& [moment, bytes] : memory.moments) {
    if (moment == name) return bytes;
  }
  return otherwise;
}

int64_t at_moment(const StepMemory& memory, const std::string& name) {
  const int64_t bytes = at_moment(memory, name, -1);
  COMPACT_CHECK(bytes >= 0, "[plan] a step has no moment `", name, "`");
  return bytes;
}

// What slots of a layer hold, extras included.
int64_t saved_of(const StepMemory& memory, const std::string& layer) {
  int64_t bytes = 0;
  for (const SlotBytes& slot : memory.slots) {
    if (slot.name.starts_with(layer + ".")) bytes += slot.stored;
  }
  return bytes;
}

struct Costs {
  double seconds = 0, products = 0;
};
Costs rebuilding(const PlanRequest& r, const Segment& segment, const Speed& speed) {
  const std::vector<bool> again = segment.rerun();
  const std::vector<Work> work = segment.work(r.step.batch * r.step.length, r.step.length,
                                              static_cast<int64_t>(c10::elementSize(r.dtype)));
  const auto micro = static_cast<double>(r.step.accumulation);
  Costs costs;
  for (size_t i = 0; i < again.size(); ++i) {
    if (!again[i]) continue;
    costs.seconds += speed.block[i] * micro;
    costs.products += work[i].products * micro;
  }
  return costs;
}

}  // namespace

std::vector<BlockOption> block_options(const PlanRequest& request, const std::string& lines,
                                       const Speed& speed) {
  PlanRequest two = request;
  two.shape.num_hidden_layers = 2;
  two.shape.vocab_size = 64;
  two.shape.bos_token_id.reset();
  two.shape.eos_token_ids.clear();
  const std::string common = lines + "slot loss.logits = chunk:tokens=64\n";
  const ModelOptions meta{
      .device = at::kMeta, .dtype = request.dtype, .max_length = request.step.length};
  std::vector<std::string> slots;
  for (const std::string& name :
       Llama(two.shape, policy_of(common), meta).layers()[0]->segment->treatable()) {
    slots.push_back(name.substr(std::string("layers.0.").size()));
  }
  COMPACT_CHECK(slots.size() <= 12, "[plan] a block of ", slots.size(), " slots has too many ways");

  std::vector<BlockOption> all;
  for (uint32_t mask = 0; mask < (1U << slots.size()); ++mask) {
    BlockOption option;
    std::string text = common;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (!(mask >> i & 1)) continue;
      option.recomputed.push_back(slots[i]);
      text += cat("slot layers.*.", slots[i], " = recompute\n");
    }
    two.policy = policy_of(text);
    const Costs costs =
        rebuilding(request, *Llama(two.shape, two.policy, meta).layers()[0]->segment, speed);
    const StepMemory memory = plan_step(two).memory;
    const int64_t saved = saved_of(memory, "layers.0");
    option.products = costs.products;
    option.bytes = {.saved = saved,
                    .forward = at_moment(memory, "forward of layers.1") - memory.fixed() - saved,
                    .backward = at_moment(memory, "backward of layers.0") - memory.fixed(),
                    .cost = std::llround(costs.seconds * 1e9)};
    all.push_back(std::move(option));
  }
  std::vector<LayerOption> bytes;
  for (const BlockOption& option : all) bytes.push_back(option.bytes);
  std::vector<BlockOption> kept;
  for (const int i : pareto(bytes)) kept.push_back(all[i]);
  return kept;
}

std::string slot_lines(const std::vector<const BlockOption*>& layers) {
  std::vector<std::string> slots;  // in the order first seen
  for (const BlockOption* layer : layers) {
    for (const std::string& slot : layer->recomputed) {
      if (std::ranges::find(slots, slot) == slots.end()) slots.push_back(slot);
    }
  }
  std::string text;
  for (const std::string& slot : slots) {
    std::string numbers;
    size_t count = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
      if (std::ranges::find(layers[i]->recomputed, slot) == layers[i]->recomputed.end()) continue;
      numbers += cat(count++ ? "," : "", i);
    }
    const std::string which = count == layers.size() ? "*"
                              : count == 1           ? numbers
                                                     : "{" + numbers + "}";
    text += cat("slot layers.", which, ".", slot, " = recompute\n");
  }
  return text;
}

LayerProblem layer_problem(const PlanRequest& request, const std::string& fixed_lines,
                           const std::vector<const std::vector<BlockOption>*>& layers) {
  // The step that all bases are taken from: every layer at its first option.
  std::vector<const BlockOption*> first;
  for (const auto* options : layers) first.push_back(&options->front());
  PlanRequest reference = request;
  reference.policy = policy_of(fixed_lines + slot_lines(first));
  const StepMemory memory = plan_step(reference).memory;

  LayerProblem problem;
  int64_t saved = 0;
  const std::string last = cat("layers.", layers.size() - 1);
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string name = cat("layers.", i);
    const LayerOption& option = first[i]->bytes;
    problem.forward_base.push_back(at_moment(memory, "forward of " + name) - saved -
                                   option.forward);
    problem.backward_base.push_back(at_moment(memory, "backward of " + name) - saved -
                                    option.backward);
    saved += option.saved;
    auto& options = problem.options.emplace_back();
    for (const BlockOption& o : *layers[i]) options.push_back(o.bytes);
  }
  for (const auto& [moment, bytes] : memory.moments) {
    const bool top = moment == "loss" || moment == "backward of loss" || moment.ends_with(" final");
    const bool layer = moment.find(" layers.") != std::string::npos;
    if (top) {
      problem.top_base = std::max(problem.top_base, bytes - saved);
    } else if (!layer || moment == "backward before layers.0") {
      problem.rest = std::max(problem.rest, bytes);
    }
  }
  return problem;
}

}  // namespace compact
