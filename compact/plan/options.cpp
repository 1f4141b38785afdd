// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/options.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "compact/base/check.h"
#include "compact/base/ranges.h"
#include "compact/ops/memory/memory_trace.h"

namespace compact {
namespace {

// Whether mixing two others keeps no more and costs no more.
bool on_hull(const LayerOption& o, const std::vector<SegmentOption>& all) {
  const auto beaten = [&](const LayerOption& a, const LayerOption& b) {  // a keeps less than o
    const double part =
        static_cast<double>(o.saved - a.saved) / static_cast<double>(b.saved - a.saved);
    return static_cast<double>(a.cost) + part * static_cast<double>(b.cost - a.cost) <=
           static_cast<double>(o.cost);
  };
  for (const SegmentOption& a : all) {
    if (a.bytes.saved <= o.saved && a.bytes.cost <= o.cost &&
        (a.bytes.saved < o.saved || a.bytes.cost < o.cost)) {
      return false;
    }
    for (const SegmentOption& b : all) {
      if (a.bytes.saved < o.saved && o.saved < b.bytes.saved && beaten(a.bytes, b.bytes)) {
        return false;
      }
    }
  }
  return true;
}

// Bytes of a segment's own passes: the peak of each, and those held between them.
struct Taken {
  int64_t saved = 0, forward = 0, backward = 0;
  std::vector<SlotBytes> slots;
};

// As a training step runs it: what it reads is its own, and so is the gradient that it is given.
Taken run_alone(const Segment& segment, const SegmentSample& sample) {
  const at::AutoGradMode with_graph(true);
  Taken taken;
  struct Scope {  // also where a pass fails
    const SegmentSample& sample;
    ~Scope() {
      stop_trace();
      for (const Weight& w : sample.weights) {
        w.leaf.mutable_grad().reset();
        w.source.mutable_grad().reset();  // where the leaf is a view of it
      }
    }
  } const scope{sample};
  start_trace(at::kMeta);
  {
    SegmentReport report;
    at::Tensor x =
        at::empty_strided(sample.input.sizes(), sample.input.strides(), sample.input.options());
    if (sample.input_gradient) x.add_(at::zeros({1}, x.options()).requires_grad_(true));
    at::Tensor y = segment(std::move(x), sample.weights, sample.pass, &report);
    trace_moment(Phase::kLoss);
    taken.saved = report.saved_bytes;
    taken.slots = std::move(report.slots);
    if (y.requires_grad()) {
      const at::Tensor loss = y.mul(at::empty_like(y)).sum();
      y = at::Tensor();
      torch::autograd::backward({loss}, {});
    }
  }
  for (const auto& [moment, bytes] : timeline_of(stop_trace()).moments) {
    if (moment == StepMoment{Phase::kForwardOf, segment.name()}) taken.forward = bytes;
    if (moment == StepMoment{Phase::kBackwardOf, segment.name()}) taken.backward = bytes;
  }
  return taken;
}

// Every assignment, nothing filled in.
std::vector<SegmentOption> assignments(const std::vector<std::string>& slots) {
  constexpr size_t kMost = 12;
  COMPACT_CHECK(slots.size() <= kMost, "[plan] a segment of ", slots.size(),
                " slots that may be rebuilt has too many ways, at most ", kMost, " are planned");
  std::vector<SegmentOption> all(size_t{1} << slots.size());
  for (size_t mask = 0; mask < all.size(); ++mask) {
    for (size_t i = 0; i < slots.size(); ++i) {
      if (mask >> i & 1) all[mask].rebuilt.push_back(slots[i]);
    }
  }
  return all;
}

// Nothing filled in.
std::vector<SegmentOption> with_codecs(const std::vector<SegmentOption>& exact,
                                       const std::vector<std::string>& held) {
  const std::span<const CodecChoice> choices = codec_choices();
  std::vector<SegmentOption> all;
  for (const SegmentOption& option : exact) {
    std::vector<std::string> kept;
    for (const std::string& slot : held) {
      if (std::ranges::find(option.rebuilt, slot) == option.rebuilt.end()) kept.push_back(slot);
    }
    if (kept.empty()) continue;
    const auto add = [&](auto rounded, const CodecChoice* most) {
      all.push_back({.rebuilt = option.rebuilt, .rounded = std::move(rounded), .most = most});
    };
    const bool by_slot = kept.size() > 1 && on_hull(option.bytes, exact);
    for (const CodecChoice& choice : choices) {
      std::vector<std::pair<std::string, const CodecChoice*>> rounded;
      for (const std::string& slot : kept) rounded.emplace_back(slot, &choice);
      add(rounded, &choice);
      for (size_t i = 0; by_slot && i < kept.size(); ++i) {
        add(std::vector{rounded[i]}, nullptr);
        if (&choice == &choices.front()) continue;
        auto finer = rounded;
        finer[i].second = &choice - 1;
        add(std::move(finer), &choice);
      }
    }
  }
  return all;
}

std::vector<SegmentOption> undominated(const std::vector<SegmentOption>& all) {
  std::vector<LayerOption> bytes;
  for (const SegmentOption& option : all) bytes.push_back(option.bytes);
  std::vector<SegmentOption> kept;
  for (const int i : pareto(bytes)) kept.push_back(all[i]);
  return kept;
}

// Fills in bytes and time of an option; the caller adds the price of its error.
void fill_in(SegmentOption& option, const OptionSettings& settings) {
  const SegmentInfo& info = settings.info;
  const std::string lines = keep_lines({info}) + slot_lines({info.name}, {&option});
  const Segment segment = settings.sample.segment->treated(Policy::parse(lines, "auto"));
  const Taken taken = run_alone(segment, settings.sample);
  double encoded = 0, kept = 0;  // bytes
  option.error = 0;
  for (const SlotBytes& slot : taken.slots) {
    const auto is = [&](const std::string& name) { return slot.name == info.in_segment(name); };
    if (std::ranges::none_of(info.held, is) || std::ranges::any_of(option.rebuilt, is)) continue;
    const auto bytes = static_cast<double>(slot.if_kept);
    kept += bytes;
    for (const auto& [rounded, choice] : option.rounded) {
      if (!is(rounded)) continue;
      encoded += bytes + static_cast<double>(slot.stored);
      option.error += choice->error * bytes;
    }
  }
  if (option.error > 0) option.error /= kept;
  const Rebuilding again = rebuilding(segment, settings.seconds, info.work);
  // Read and written once by the encoder and once by the decoder.
  const double seconds = 2 * encoded / settings.bytes_per_second + again.seconds;
  option.products = again.products * settings.micro;
  option.nanoseconds = option.bytes.cost = std::llround(seconds * settings.micro * 1e9);
  option.bytes.saved = taken.saved;
  option.bytes.forward = taken.forward;
  option.bytes.backward = taken.backward;
}

}  // namespace

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
    std::vector<std::string> ends;
    for (const std::string& other : names) {
      if (same(other)) ends.push_back(other.substr(b.size()));
    }
    const bool every =
        !b.empty() && static_cast<int64_t>(ends.size()) == std::ranges::count_if(all, same);
    patterns.push_back(b + (every ? "*" : braced(ends)));
  }
  return patterns;
}

std::string slot_lines(const std::vector<std::string>& names,
                       const std::vector<const SegmentOption*>& options) {
  // Lines in the order first seen; those of whole segments come first: narrower ones override them.
  struct Line {
    std::string slot, how;
    std::vector<std::string> names;
  };
  std::vector<Line> whole, rounded, rebuilt;
  const auto add = [](std::vector<Line>& lines, const std::string& slot, const std::string& how,
                      const std::string& name) {
    for (Line& line : lines) {
      if (line.slot == slot && line.how == how) return line.names.push_back(name);
    }
    lines.push_back({slot, how, {name}});
  };
  std::vector<std::string> distinct;  // calls of one segment have one option
  for (size_t i = 0; i < options.size(); ++i) {
    if (std::ranges::find(distinct, names[i]) != distinct.end()) continue;
    distinct.push_back(names[i]);
    const SegmentOption& o = *options[i];
    if (o.most) add(whole, "*", o.most->spec, names[i]);
    for (const auto& [slot, choice] : o.rounded) {
      if (choice != o.most) add(rounded, slot, choice->spec, names[i]);
    }
    for (const std::string& slot : o.rebuilt) add(rebuilt, slot, "recompute", names[i]);
  }
  std::string text;
  for (const auto* lines : {&whole, &rounded, &rebuilt}) {
    for (const Line& l : *lines) {
      for (const std::string& pattern : patterns_of(l.names, distinct)) {
        const bool all = pattern.ends_with("*") && l.slot == "*";
        text += cat("slot ", pattern, all ? "" : "." + l.slot, " = ", l.how, "\n");
      }
    }
  }
  return text;
}

Rounding rounding_of(const SegmentSample& sample) {
  Rounding sum;
  double kept = 0;  // bytes
  for (const SlotBytes& slot : run_alone(*sample.segment, sample).slots) {
    if (slot.stored == 0) continue;
    const auto bytes = static_cast<double>(slot.if_kept);
    kept += bytes;
    for (const CodecChoice& choice : codec_choices()) {
      if (!slot.treatment.starts_with(choice.spec)) continue;
      sum.bytes += 2 * (bytes + static_cast<double>(slot.stored));
      sum.error += choice.error * bytes;
    }
  }
  if (sum.error > 0) sum.error /= kept;
  return sum;
}

Rebuilding rebuilding(const Segment& segment, const std::vector<double>& seconds,
                      const std::vector<Work>& work) {
  Rebuilding sum;
  const std::vector<bool> again = segment.rerun();
  for (size_t i = 0; i < again.size(); ++i) {
    if (!again[i]) continue;
    sum.seconds += seconds[i];
    sum.products += work[i].products;
  }
  return sum;
}

std::vector<SegmentOption> exact_options(const OptionSettings& settings) {
  std::vector<SegmentOption> all = assignments(settings.info.rebuilt);
  for (SegmentOption& option : all) fill_in(option, settings);
  return undominated(all);
}

std::vector<SegmentOption> rounded_options(const OptionSettings& settings,
                                           const std::vector<SegmentOption>& exact,
                                           double error_cost) {
  std::vector<SegmentOption> all = exact;
  for (SegmentOption& option : with_codecs(exact, settings.info.held)) {
    fill_in(option, settings);
    option.bytes.cost += std::llround(option.error * error_cost);
    all.push_back(std::move(option));
  }
  return undominated(all);
}

std::vector<const SegmentOption*> one_way(const std::vector<std::string>& names,
                                          std::vector<const SegmentOption*> options) {
  std::map<std::string, const SegmentOption*> least;
  for (size_t i = 0; i < names.size(); ++i) {
    const SegmentOption*& of_name = least[names[i]];
    if (!of_name || options[i]->bytes.saved < of_name->bytes.saved) of_name = options[i];
  }
  for (size_t i = 0; i < names.size(); ++i) options[i] = least[names[i]];
  return options;
}

std::string call_name(const std::string& segment, size_t call) {
  return call == 0 ? segment : cat(segment, " call ", call + 1);
}

LayerProblem segment_problem(const StepMemory& memory, const std::vector<std::string>& names,
                             const std::vector<const std::vector<SegmentOption>*>& options) {
  LayerProblem problem;
  std::vector<StepMoment> chosen;  // that options change
  int64_t saved = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto before = names.begin() + static_cast<int64_t>(i);
    const auto call = static_cast<size_t>(std::count(names.begin(), before, names[i]));
    const auto moment = [&](Phase phase) {
      chosen.push_back({phase, call_name(names[i], call)});
      if (!memory.has(chosen.back())) chosen.back().part = names[i];
      return memory.at(chosen.back()) - saved;
    };
    const LayerOption& first = options[i]->front().bytes;
    problem.forward_base.push_back(moment(Phase::kForwardOf) - first.forward);
    problem.backward_base.push_back(moment(Phase::kBackwardOf) - first.backward);
    problem.after_base.push_back(moment(Phase::kBackwardBefore));
    saved += first.saved;
    auto& bytes = problem.options.emplace_back();
    for (const SegmentOption& o : *options[i]) bytes.push_back(o.bytes);
  }
  for (const auto& [moment, bytes] : memory.moments) {
    // When all segments keep what they keep; before and after them.
    const bool top = moment.phase == Phase::kLoss || moment.phase == Phase::kBackward ||
                     moment == StepMoment{Phase::kBackwardOf, "loss"};
    if (top) {
      problem.top_base = std::max(problem.top_base, bytes - saved);
    } else if (std::ranges::find(chosen, moment) == chosen.end()) {
      problem.rest = std::max(problem.rest, bytes);
    }
  }
  return problem;
}

}  // namespace compact
