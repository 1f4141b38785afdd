// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/block_options.h"

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/plan/bits.h"

namespace compact {
namespace {

Policy policy_of(const std::string& text) { return Policy::parse(text, "auto"); }

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
  }

  std::vector<std::string> slots() const {
    std::vector<std::string> slots;
    for (const SlotUse& use : model(lines_).layers()[0]->segment->uses()) {
      if (use.rebuilt) slots.push_back(use.name.substr(kFirst.size()));
    }
    return slots;
  }

  // Fills in what a step takes and costs, beside what the error is worth.
  void plan(BlockOption& option) {
    const std::string text = lines_ + slot_lines({&option, &option});
    two_.policy = policy_of(text);
    const StepMemory memory = plan_step(two_).memory;
    const double encoded = add_slots(option, memory.slots, kFirst);
    // Read and written once by the encoder and once by the decoder.
    double seconds = 2 * encoded / speed_.bytes_per_second;
    const Llama blocks = model(text);
    const Segment& segment = *blocks.layers()[0]->segment;
    const Rebuilding again = rebuilding(
        segment, speed_.segments[0],
        segment.work(two_.step.batch * two_.step.length, two_.step.length, element_size()));
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
  int64_t element_size() const { return static_cast<int64_t>(c10::elementSize(two_.dtype)); }
  Llama model(const std::string& text) const {
    return {two_.shape,
            policy_of(text),
            {.device = at::kMeta, .dtype = two_.dtype, .max_length = two_.step.length}};
  }

  PlanRequest two_;
  const Speed& speed_;
  std::string lines_;
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

// "layers.3", "layers.{0,2}", or "layers.*" for all of `all` that begin so; one for each beginning.
std::vector<std::string> patterns_of(const std::vector<std::string>& names,
                                     const std::vector<std::string>& all) {
  const auto beginning = [](const std::string& name) {
    return name.substr(0, name.rfind('.') + 1);
  };
  std::vector<std::string> begun, patterns;
  for (const std::string& name : names) {
    const std::string b = beginning(name);
    if (std::ranges::find(begun, b) != begun.end()) continue;
    begun.push_back(b);
    const auto same = [&](const std::string& other) { return beginning(other) == b; };
    std::string ends;
    for (const std::string& other : names) {
      if (same(other)) ends += cat(ends.empty() ? "" : ",", other.substr(b.size()));
    }
    const auto count = std::ranges::count_if(names, same);
    if (!b.empty() && count == std::ranges::count_if(all, same)) ends = "*";
    patterns.push_back(b + (count > 1 && ends != "*" ? "{" + ends + "}" : ends));
  }
  return patterns;
}

}  // namespace

double add_slots(BlockOption& option, const std::vector<SlotBytes>& slots,
                 const std::string& prefix) {
  option.bytes.saved = 0;  // extras included
  option.error = 0;
  double encoded = 0, kept = 0;
  for (const SlotBytes& slot : slots) {
    if (!slot.name.starts_with(prefix)) continue;
    option.bytes.saved += slot.stored;
    const auto elements = static_cast<double>(slot.if_kept);
    const std::string name = slot.name.substr(prefix.size());
    // Signs are exact.
    const bool values = !name.ends_with("extras") && !slot.treatment.starts_with("mask");
    if (values && slot.treatment != "recompute") kept += elements;
    for (const auto& [quantized, bits] : option.quantized) {
      if (quantized != name) continue;
      encoded += elements + static_cast<double>(slot.stored);
      option.error += rounding_error(bits) * elements;
    }
  }
  if (option.error > 0) option.error /= kept;
  return encoded;
}

std::vector<BlockOption> undominated(const std::vector<BlockOption>& all) {
  std::vector<LayerOption> bytes;
  for (const BlockOption& option : all) bytes.push_back(option.bytes);
  std::vector<BlockOption> kept;
  for (const int i : pareto(bytes)) kept.push_back(all[i]);
  return kept;
}

std::vector<BlockOption> block_options(const PlanRequest& request, const std::string& lines,
                                       const Speed& speed) {
  BlockPlanner planner(request, lines, speed);
  const std::vector<std::string> slots = planner.slots();
  COMPACT_CHECK(slots.size() <= 12, "[plan] a block of ", slots.size(), " slots has too many ways");
  std::vector<BlockOption> all;
  for (uint32_t mask = 0; mask < (1U << slots.size()); ++mask) {
    BlockOption& option = all.emplace_back();
    for (size_t i = 0; i < slots.size(); ++i) {
      if (mask >> i & 1) option.recomputed.push_back(slots[i]);
    }
    planner.plan(option);
  }
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

std::string slot_lines(const std::vector<std::string>& names,
                       const std::vector<const BlockOption*>& options) {
  // Lines in the order first seen; those of whole segments stand below the others.
  struct Line {
    std::string slot, how;
    std::vector<std::string> names;
  };
  std::vector<Line> whole, quantized, recomputed;
  const auto add = [](std::vector<Line>& lines, const std::string& slot, const std::string& how,
                      const std::string& name) {
    for (Line& line : lines) {
      if (line.slot == slot && line.how == how) return line.names.push_back(name);
    }
    lines.push_back({slot, how, {name}});
  };
  for (size_t i = 0; i < options.size(); ++i) {
    const BlockOption& o = *options[i];
    if (o.all_bits > 0) add(whole, "*", cat("quantize:bits=", o.all_bits), names[i]);
    for (const auto& [slot, bits] : o.quantized) {
      if (bits != o.all_bits) add(quantized, slot, cat("quantize:bits=", bits), names[i]);
    }
    for (const std::string& slot : o.recomputed) add(recomputed, slot, "recompute", names[i]);
  }
  std::string text;
  for (const auto* lines : {&whole, &quantized, &recomputed}) {
    for (const Line& l : *lines) {
      for (const std::string& pattern : patterns_of(l.names, names)) {
        const bool all = pattern.ends_with("*") && l.slot == "*";
        text += cat("slot ", pattern, all ? "" : "." + l.slot, " = ", l.how, "\n");
      }
    }
  }
  return text;
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
  reference.policy = policy_of(fixed_lines + slot_lines(first));
  const StepMemory memory = plan_step(reference).memory;

  LayerProblem problem;
  int64_t saved = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string name = cat("layers.", i);
    const LayerOption& option = first[i]->bytes;
    problem.forward_base.push_back(memory.at_moment("forward of " + name) - saved - option.forward);
    problem.backward_base.push_back(memory.at_moment("backward of " + name) - saved -
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
