// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/transformer_search.h"

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/ranges.h"
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

}  // namespace

std::vector<Variant> TransformerSearch::levels() const {
  std::vector<Variant> all = lossy_levels(r_.optimizer(Policy()), allowed_);
  if (allowed_.project) {
    const Variant last = all.back();
    for (const double rank : kRanks) {
      all.push_back({.moments = last.moments, .quantize = last.quantize, .rank = rank});
    }
  }
  return all;
}

std::vector<int64_t> TransformerSearch::chunks() const {
  const int64_t usual =
      LossTreatment::from(Treatment::parse("chunk"), r_.shape.vocab_size).chunk_tokens;
  std::vector<int64_t> all;
  for (const int64_t chunk : {usual, usual / 4 / 64 * 64, int64_t{64}}) {
    if (chunk >= 64 && (all.empty() || chunk < all.back())) all.push_back(chunk);
  }
  return all;
}

// Every chunk adds its part of the head's gradient to an f32 sum. Nanoseconds of a step.
int64_t TransformerSearch::chunk_cost(int64_t chunk) const {
  const int64_t tokens = r_.step.batch * r_.step.length;
  const auto sums = static_cast<double>((tokens + chunk - 1) / chunk * r_.step.accumulation);
  const auto bytes = 12.0 * static_cast<double>(r_.shape.vocab_size * r_.shape.hidden_size);
  return std::llround(sums * bytes / speed_.bytes_per_second * 1e9);
}

std::string TransformerSearch::lines(const Variant& v) const {
  std::string text = cat("slot loss.logits = chunk:tokens=", v.chunk, "\n");
  if (!v.moments.empty()) text += cat("moment * = ", v.moments, "\n");
  text += release_line();
  if (v.projected > 0) {
    std::vector<std::string> numbers;
    for (int64_t i = layers_ - v.projected; i < layers_; ++i) numbers.push_back(std::to_string(i));
    text += projection_lines(v.rank, v.projected == layers_ ? "*" : braced(numbers),
                             r_.step.may_release());
  }
  return text;
}

StepPlan TransformerSearch::plan(const Policy& policy) const {
  PlanRequest r = r_;
  r.policy = policy;
  return plan_step(r);
}

double TransformerSearch::step_seconds(const StepMemory& memory) const {
  return ::compact::step_seconds(r_, speed_, memory);
}

double TransformerSearch::error_cost() {
  if (!error_cost_) {
    const Policy policy = Policy::parse(lines({.chunk = chunks().front()}), "auto");
    error_cost_ = step_seconds(plan(policy).memory) * 1e9 / static_cast<double>(layers_);
  }
  return *error_cost_;
}

const std::vector<BlockOption>& TransformerSearch::options(const Variant& v, bool projected) {
  const double rank = projected ? v.rank : 0;
  const std::string fixed =
      release_line() + (projected ? projection_lines(rank, "*", r_.step.may_release()) : "");
  auto& exact = options_[{rank, false}];
  if (exact.empty()) exact = block_options(r_, fixed, speed_);
  if (!v.quantize) return exact;
  auto& quantized = options_[{rank, true}];
  if (quantized.empty()) quantized = quantized_options(r_, fixed, speed_, exact, error_cost());
  return quantized;
}

std::vector<const std::vector<BlockOption>*> TransformerSearch::layer_options(const Variant& v) {
  std::vector<const std::vector<BlockOption>*> all;
  for (int64_t i = 0; i < layers_; ++i) {
    all.push_back(&options(v, i >= layers_ - v.projected));
  }
  return all;
}

const LayerProblem& TransformerSearch::problem(const Variant& v) {
  const std::string fixed = lines(v), key = fixed + (v.quantize ? "q" : "");
  const auto found = problems_.find(key);
  if (found != problems_.end()) return found->second;
  return problems_[key] = layer_problem(r_, fixed, layer_options(v));
}

// Over the chunks of the loss; ties go to the smaller peak.
std::optional<Candidate> TransformerSearch::best_of(Variant v, int64_t budget) {
  std::optional<Candidate> best;
  for (const int64_t chunk : chunks()) {
    v.chunk = chunk;
    const std::optional<LayerSolution> solution =
        solve(problem(v), budget, best ? best->cost - chunk_cost(chunk) : kAnyCost);
    if (!solution) continue;
    const int64_t cost = solution->cost + chunk_cost(chunk);
    if (best &&
        (cost > best->cost || (cost == best->cost && solution->peak >= best->solution.peak)))
      continue;
    best = Candidate{.variant = v, .solution = *solution, .cost = cost};
  }
  if (!best) return best;
  const auto all = layer_options(best->variant);
  best->nanoseconds = chunk_cost(best->variant.chunk);
  for (size_t i = 0; i < all.size(); ++i) {
    best->layers.push_back(&(*all[i])[best->solution.choice[i]]);
    best->nanoseconds += best->layers.back()->nanoseconds;
  }
  best->text = lines(best->variant) + slot_lines(best->layers);
  return best;
}

std::optional<Candidate> TransformerSearch::best(const Variant& level, int64_t budget) {
  Variant v = level;
  if (v.rank > 0) {
    // As few projected layers as will do.
    v.projected = layers_;
    if (!fits_one(v, budget)) return std::nullopt;
    int64_t low = 1;
    while (low < v.projected) {
      Variant fewer = v;
      fewer.projected = (low + v.projected) / 2;
      if (fits_one(fewer, budget)) {
        v = fewer;
      } else {
        low = fewer.projected + 1;
      }
    }
  }
  return best_of(v, budget);
}

bool TransformerSearch::fits_one(Variant v, int64_t budget) {
  for (const int64_t chunk : chunks()) {
    v.chunk = chunk;
    if (fits(problem(v), budget)) return true;
  }
  return false;
}

int64_t TransformerSearch::least_predicted(const Variant& level) {
  Variant v = level;
  if (v.rank > 0) v.projected = layers_;
  v.chunk = chunks().back();
  return ::compact::least_peak(problem(v));
}

double TransformerSearch::error(const Candidate& candidate) const {
  const Variant& v = candidate.variant;
  double rounding = 0;
  for (const BlockOption* layer : candidate.layers) rounding += layer->error;
  rounding /= static_cast<double>(layers_);
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
