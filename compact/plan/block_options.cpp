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

constexpr int kBits[] = {8, 4, 2};

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
    for (const std::string& name : model(lines_).layers()[0]->segment->treatable()) {
      slots.push_back(name.substr(kFirst.size()));
    }
    return slots;
  }

  // Fills in what a step takes and costs, beside what the error is worth.
  void plan(BlockOption& option) {
    const std::string text = lines_ + slot_lines({&option, &option});
    two_.policy = policy_of(text);
    const StepMemory memory = plan_step(two_).memory;
    int64_t saved = 0;  // extras included
    double encoded = 0, kept = 0;
    option.error = 0;
    for (const SlotBytes& slot : memory.slots) {
      if (!slot.name.starts_with(kFirst)) continue;
      saved += slot.stored;
      const auto elements = static_cast<double>(slot.if_kept);
      const std::string name = slot.name.substr(kFirst.size());
      if (name != "attn.extras" && slot.treatment != "recompute") kept += elements;
      for (const auto& [quantized, bits] : option.quantized) {
        if (quantized != name) continue;
        encoded += elements + static_cast<double>(slot.stored);
        option.error += rounding_error(bits) * elements;
      }
    }
    if (option.error > 0) option.error /= kept;
    // Read and written once by the encoder and once by the decoder.
    double seconds = 2 * encoded / speed_.bytes_per_second;
    option.products = 0;
    const Llama blocks = model(text);
    const Segment& segment = *blocks.layers()[0]->segment;
    const std::vector<bool> again = segment.rerun();
    const std::vector<Work> work =
        segment.work(two_.step.batch * two_.step.length, two_.step.length, element_size());
    for (size_t i = 0; i < again.size(); ++i) {
      if (!again[i]) continue;
      seconds += speed_.block[i];
      option.products += work[i].products;
    }
    const auto micro = static_cast<double>(two_.step.accumulation);
    option.products *= micro;
    option.nanoseconds = std::llround(seconds * micro * 1e9);
    option.bytes = {.saved = saved,
                    .forward = at_moment(memory, "forward of layers.1") - memory.fixed() - saved,
                    .backward = at_moment(memory, "backward of layers.0") - memory.fixed(),
                    .cost = option.nanoseconds};
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

std::vector<BlockOption> undominated(const std::vector<BlockOption>& all) {
  std::vector<LayerOption> bytes;
  for (const BlockOption& option : all) bytes.push_back(option.bytes);
  std::vector<BlockOption> kept;
  for (const int i : pareto(bytes)) kept.push_back(all[i]);
  return kept;
}

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

// "3", "{0,2}", or "*" where a line holds for all `count` layers.
std::string which(const std::vector<size_t>& layers, size_t count) {
  std::string numbers;
  for (const size_t i : layers) numbers += cat(numbers.empty() ? "" : ",", i);
  return layers.size() == count ? "*" : layers.size() == 1 ? numbers : "{" + numbers + "}";
}

}  // namespace

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
    for (size_t b = 0; b < std::size(kBits); ++b) {
      std::vector<std::pair<std::string, int>> quantized;
      for (const std::string& slot : kept) quantized.emplace_back(slot, kBits[b]);
      add(option, quantized, kBits[b]);
      for (size_t i = 0; by_slot && i < kept.size(); ++i) {
        add(option, {quantized[i]}, 0);
        if (b == 0) continue;
        auto finer = quantized;
        finer[i].second = kBits[b - 1];
        add(option, std::move(finer), kBits[b]);
      }
    }
  }
  return undominated(all);
}

std::string slot_lines(const std::vector<const BlockOption*>& layers) {
  // Lines in the order first seen; those of whole layers stand below the others.
  struct Line {
    std::string slot, how;
    std::vector<size_t> layers;
  };
  std::vector<Line> whole, quantized, recomputed;
  const auto add = [](std::vector<Line>& lines, const std::string& slot, const std::string& how,
                      size_t layer) {
    for (Line& line : lines) {
      if (line.slot == slot && line.how == how) return line.layers.push_back(layer);
    }
    lines.push_back({slot, how, {layer}});
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    const BlockOption& o = *layers[i];
    if (o.all_bits > 0) add(whole, "*", cat("quantize:bits=", o.all_bits), i);
    for (const auto& [slot, bits] : o.quantized) {
      if (bits != o.all_bits) add(quantized, slot, cat("quantize:bits=", bits), i);
    }
    for (const std::string& slot : o.recomputed) add(recomputed, slot, "recompute", i);
  }
  std::string text;
  for (const auto* lines : {&whole, &quantized, &recomputed}) {
    for (const Line& l : *lines) {
      const std::string numbers = which(l.layers, layers.size());
      text +=
          cat("slot layers.", numbers, numbers == l.slot ? "" : "." + l.slot, " = ", l.how, "\n");
    }
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
