// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/transformer_options.h"

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace {

Policy policy_of_lines(const std::string& text) { return Policy::parse(text, "auto"); }

// Plans steps of two blocks.
class BlockPlanner {
 public:
  BlockPlanner(const PlanRequest& request, std::string lines, const Speed& speed)
      : two_(request), speed_(speed), lines_(std::move(lines)) {
    two_.shape.num_hidden_layers = 2;
    two_.shape.vocab_size = 64;
    two_.shape.bos_token_id.reset();
    two_.shape.eos_token_ids.clear();
    // One chunk: quickly planned.
    lines_ +=
        cat("slot loss.logits = chunk:tokens=", request.step.batch * request.step.length, "\n");
    work_ = forward_work(step_request(two_))[0];
  }

  std::vector<std::string> slots() const {
    std::vector<std::string> slots;
    for (const SlotUse& use : model(lines_).segments()[0]->uses()) {
      if (use.rebuilt) slots.push_back(use.name.substr(kFirst.size()));
    }
    return slots;
  }

  // Fills in what a step takes and costs, beside what the error is worth.
  void plan(BlockOption& option) {
    const std::string text = lines_ + slot_lines({&option, &option});
    two_.policy = policy_of_lines(text);
    const StepMemory memory = plan_step(two_).memory;
    const double encoded = add_slots(option, memory.slots, kFirst);
    // Read and written once by the encoder and once by the decoder.
    double seconds = 2 * encoded / speed_.bytes_per_second;
    const Llama blocks = model(text);
    const Rebuilding again = rebuilding(*blocks.segments()[0], speed_.segments[0], work_);
    seconds += again.seconds;
    const auto micro = static_cast<double>(two_.step.accumulation);
    option.products = again.products * micro;
    option.nanoseconds = std::llround(seconds * micro * 1e9);
    LayerOption& o = option.bytes;
    o.forward = memory.at_moment("forward of layers.1") - memory.fixed() - o.saved;
    o.backward = memory.at_moment("backward of layers.0") - memory.fixed();
    o.cost = option.nanoseconds;
  }

 private:
  static inline const std::string kFirst = "layers.0.";
  Llama model(const std::string& text) const {
    return {two_.shape,
            policy_of_lines(text),
            {.device = at::kMeta, .dtype = two_.dtype, .max_length = two_.step.length}};
  }

  PlanRequest two_;
  const Speed& speed_;
  std::string lines_;
  std::vector<Work> work_;  // of a block
};

// Whether mixing two others keeps no more and costs no more.
bool on_hull(const LayerOption& o, const std::vector<BlockOption>& all) {
  const auto beaten = [&](const LayerOption& a, const LayerOption& b) {  // a keeps less than o
    const double part =
        static_cast<double>(o.saved - a.saved) / static_cast<double>(b.saved - a.saved);
    return static_cast<double>(a.cost) + part * static_cast<double>(b.cost - a.cost) <=
           static_cast<double>(o.cost);
  };
  for (const BlockOption& a : all) {
    if (a.bytes.saved <= o.saved && a.bytes.cost <= o.cost &&
        (a.bytes.saved < o.saved || a.bytes.cost < o.cost)) {
      return false;
    }
    for (const BlockOption& b : all) {
      if (a.bytes.saved < o.saved && o.saved < b.bytes.saved && beaten(a.bytes, b.bytes)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

std::vector<BlockOption> block_options(const PlanRequest& request, const std::string& lines,
                                       const Speed& speed) {
  BlockPlanner planner(request, lines, speed);
  std::vector<BlockOption> all = recompute_options(planner.slots());
  for (BlockOption& option : all) planner.plan(option);
  return undominated(all);
}

std::vector<BlockOption> quantized_options(const PlanRequest& request, const std::string& lines,
                                           const Speed& speed,
                                           const std::vector<BlockOption>& exact,
                                           double error_cost) {
  BlockPlanner planner(request, lines, speed);
  std::vector<std::string> slots = planner.slots();
  slots.insert(slots.begin(), "attn.input");
  std::vector<BlockOption> all = exact;
  const auto add = [&](const BlockOption& from, std::vector<std::pair<std::string, int>> quantized,
                       int all_bits) {
    BlockOption& option = all.emplace_back();
    option.recomputed = from.recomputed;
    option.quantized = std::move(quantized);
    option.all_bits = all_bits;
    planner.plan(option);
    option.bytes.cost += std::llround(option.error * error_cost);
  };
  for (const BlockOption& option : exact) {
    std::vector<std::string> kept;
    for (const std::string& slot : slots) {
      if (std::ranges::find(option.recomputed, slot) == option.recomputed.end()) {
        kept.push_back(slot);
      }
    }
    const bool by_slot = kept.size() > 1 && on_hull(option.bytes, exact);
    for (size_t b = 0; b < std::size(kSlotBits); ++b) {
      std::vector<std::pair<std::string, int>> quantized;
      for (const std::string& slot : kept) quantized.emplace_back(slot, kSlotBits[b]);
      add(option, quantized, kSlotBits[b]);
      for (size_t i = 0; by_slot && i < kept.size(); ++i) {
        add(option, {quantized[i]}, 0);
        if (b == 0) continue;
        auto finer = quantized;
        finer[i].second = kSlotBits[b - 1];
        add(option, std::move(finer), kSlotBits[b]);
      }
    }
  }
  return undominated(all);
}

std::string slot_lines(const std::vector<const BlockOption*>& layers) {
  std::vector<std::string> names;
  for (size_t i = 0; i < layers.size(); ++i) names.push_back(cat("layers.", i));
  return slot_lines(names, layers);
}

LayerProblem layer_problem(const PlanRequest& request, const std::string& fixed_lines,
                           const std::vector<const std::vector<BlockOption>*>& layers) {
  // The step that all bases are taken from: every layer at its first option.
  std::vector<const BlockOption*> first;
  for (const auto* options : layers) first.push_back(&options->front());
  PlanRequest reference = request;
  reference.policy = policy_of_lines(fixed_lines + slot_lines(first));
  const StepMemory memory = plan_step(reference).memory;

  LayerProblem problem;
  int64_t saved = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string name = cat("layers.", i);
    const LayerOption& option = first[i]->bytes;
    problem.forward_base.push_back(memory.at_moment("forward of " + name) - saved - option.forward);
    problem.backward_base.push_back(memory.at_moment("backward of " + name) - saved -
                                    option.backward);
    problem.after_base.push_back(memory.at_moment("backward before " + name) - saved);
    saved += option.saved;
    auto& options = problem.options.emplace_back();
    for (const BlockOption& o : *layers[i]) options.push_back(o.bytes);
  }
  for (const auto& [moment, bytes] : memory.moments) {
    const bool top = moment == "loss" || moment == "backward of loss" || moment.ends_with(" final");
    const bool layer = moment.find(" layers.") != std::string::npos;
    if (top) {
      problem.top_base = std::max(problem.top_base, bytes - saved);
    } else if (!layer) {
      problem.rest = std::max(problem.rest, bytes);
    }
  }
  return problem;
}

}  // namespace compact
