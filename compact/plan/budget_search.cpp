// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/budget_search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compact/base/check.h"
#include "compact/codecs/projection.h"

namespace compact {
namespace {

constexpr double kRanks[] = {0.5, 0.25, 0.125};

std::string projection_lines(double rank, const std::string& layers, bool release) {
  const std::string how =
      cat(" = project:rank=", rank, ",type=srht,share=true,period=200,scale=1,carry=true",
          release ? ",release=true\n" : "\n");
  return cat("grad layers.", layers, ".attn.qkv", how, "grad layers.", layers,
             ".mlp.{gate_up,down}", how);
}

std::string codec_line(const Variant& v) {
  return v.codec.empty() ? "" : cat("slot layers.* = ", v.codec, "\n");
}

}  // namespace

int64_t bounded_bytes(const StepPlan& plan, const PlanRequest& r) {
  return r.device == c10::kCUDA ? plan.reserved : plan.memory.peak;
}

// Ways to lose nothing, then precision, then more and more of the gradient.
std::vector<Variant> BudgetSearch::levels() const {
  std::vector<Variant> all = {{}};
  if (allowed_.quantize) {
    const std::string asked = r_.optimizer(Policy::parse("", "auto")).moment(Parameter{});
    if (asked == "f32") all.push_back({.moments = "bf16"});
    if (asked != "f8") all.push_back({.moments = "f8"});
    all.push_back({.moments = all.back().moments, .codec = "quantize:bits=4"});
  }
  if (allowed_.project) {
    const Variant last = all.back();
    for (const double rank : kRanks) {
      all.push_back({.moments = last.moments, .codec = last.codec, .rank = rank});
    }
  }
  return all;
}

std::vector<int64_t> BudgetSearch::chunks() const {
  const int64_t usual = LossTreatment::from(Spec::parse("chunk"), r_.shape.vocab_size).chunk_tokens;
  std::vector<int64_t> all;
  for (const int64_t chunk : {usual, usual / 4 / 64 * 64, int64_t{64}}) {
    if (chunk >= 64 && (all.empty() || chunk < all.back())) all.push_back(chunk);
  }
  return all;
}

// Every chunk adds its part of the head's gradient to an f32 sum. Nanoseconds of a step.
int64_t BudgetSearch::chunk_cost(int64_t chunk) const {
  const int64_t tokens = r_.step.batch * r_.step.length;
  const auto sums = static_cast<double>((tokens + chunk - 1) / chunk * r_.step.accumulation);
  const auto bytes = 12.0 * static_cast<double>(r_.shape.vocab_size * r_.shape.hidden_size);
  return std::llround(sums * bytes / speed_.bytes_per_second * 1e9);
}

std::string BudgetSearch::lines(const Variant& v) const {
  std::string text = cat("slot loss.logits = chunk:tokens=", v.chunk, "\n");
  text += codec_line(v);
  if (!v.moments.empty()) text += cat("moment * = ", v.moments, "\n");
  text += release_line();
  if (v.projected > 0) {
    std::string numbers;
    for (int64_t i = layers_ - v.projected; i < layers_; ++i) {
      numbers += cat(numbers.empty() ? "" : ",", i);
    }
    text += projection_lines(v.rank,
                             v.projected == layers_ ? "*"
                             : v.projected == 1     ? numbers
                                                    : "{" + numbers + "}",
                             release());
  }
  return text;
}

const std::vector<BlockOption>& BudgetSearch::options(const Variant& v, bool projected) {
  auto& found = options_[{projected ? v.rank : 0, v.codec}];
  if (found.empty()) {
    const std::string lines = projected ? projection_lines(v.rank, "*", release()) : "";
    found = block_options(r_, codec_line(v) + release_line() + lines, speed_);
  }
  return found;
}

std::vector<const std::vector<BlockOption>*> BudgetSearch::layer_options(const Variant& v) {
  std::vector<const std::vector<BlockOption>*> all;
  for (int64_t i = 0; i < layers_; ++i) {
    all.push_back(&options(v, i >= layers_ - v.projected));
  }
  return all;
}

const LayerProblem& BudgetSearch::problem(const Variant& v) {
  const std::string key = lines(v);
  const auto found = problems_.find(key);
  if (found != problems_.end()) return found->second;
  return problems_[key] = layer_problem(r_, key, layer_options(v));
}

// Over the chunks of the loss; ties go to the smaller peak.
std::optional<Candidate> BudgetSearch::best_of(Variant v, int64_t budget) {
  std::optional<Candidate> best;
  for (const int64_t chunk : chunks()) {
    v.chunk = chunk;
    const std::optional<LayerSolution> solution = solve(problem(v), budget);
    if (!solution) continue;
    const int64_t cost = solution->cost + chunk_cost(chunk);
    if (best &&
        (cost > best->cost || (cost == best->cost && solution->peak >= best->solution.peak)))
      continue;
    best = Candidate{.variant = v, .solution = *solution, .cost = cost};
  }
  if (!best) return best;
  const auto all = layer_options(best->variant);
  for (size_t i = 0; i < all.size(); ++i) {
    best->layers.push_back(&(*all[i])[best->solution.choice[i]]);
  }
  best->text = lines(best->variant) + slot_lines(best->layers);
  return best;
}

std::optional<Candidate> BudgetSearch::best(int64_t budget) {
  for (Variant v : levels()) {
    if (v.rank == 0) {
      if (auto found = best_of(v, budget)) return found;
      continue;
    }
    // As few projected layers as will do.
    v.projected = layers_;
    std::optional<Candidate> found = best_of(v, budget);
    if (!found) continue;
    int64_t low = 1, high = layers_;
    while (low < high) {
      v.projected = (low + high) / 2;
      if (auto fewer = best_of(v, budget)) {
        found = std::move(fewer);
        high = v.projected;
      } else {
        low = v.projected + 1;
      }
    }
    return found;
  }
  return std::nullopt;
}

int64_t BudgetSearch::least() {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (Variant v : levels()) {
    if (v.rank > 0) v.projected = layers_;
    v.chunk = chunks().back();
    const auto best = best_of(v, least_peak(problem(v)));
    PlanRequest r = r_;
    r.policy = Policy::parse(best->text, "auto");
    least = std::min(least, bounded_bytes(plan_step(r), r));
  }
  return least;
}

double BudgetSearch::error(const Variant& v) const {
  // Of 4 bits on normal values in groups of 256: the part of a tensor's square, and at most that of
  // the gradients made from it.
  const double rounding = v.codec.empty() ? 0 : 0.0238;
  if (v.projected == 0) return rounding;
  // Weighted by elements; the projection of the attention's output is full.
  const LlamaConfig& c = r_.shape;
  const auto n = static_cast<double>(c.hidden_size), m = static_cast<double>(c.intermediate_size),
             heads = static_cast<double>(c.num_attention_heads * c.head_dim),
             kv = static_cast<double>(c.num_key_value_heads * c.head_dim);
  double sum = 0, all = n * heads;
  for (const auto& [in, out] :
       {std::pair(n, heads + 2 * kv), std::pair(n, 2 * m), std::pair(m, n)}) {
    const auto rank = static_cast<double>(resolve_rank(v.rank, static_cast<int64_t>(in)));
    sum += in * out * (in / rank - 1);
    all += in * out;
  }
  return rounding + sum / all * static_cast<double>(v.projected) / static_cast<double>(layers_);
}

}  // namespace compact
