// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/budget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/codecs/projection.h"
#include "compact/plan/block_options.h"

namespace compact {
namespace {

constexpr double kRanks[] = {0.5, 0.25, 0.125};

// What holds for the whole model beside the slots of its blocks.
struct Variant {
  std::string moments;    // type of all moments; empty: as asked for
  std::string codec;      // of what blocks keep; empty: as it is
  double rank = 0;        // of projected gradients; 0: none
  int64_t projected = 0;  // layers, the last ones: their gradients come first
  int64_t chunk = 0;      // tokens of the loss at a time
};

struct Candidate {
  Variant variant;
  LayerSolution solution;
  std::vector<const BlockOption*> layers;
  std::string text;
  int64_t cost = 0;
};

std::string projection_lines(double rank, const std::string& layers, bool release) {
  const std::string how =
      cat(" = project:rank=", rank, ",type=srht,share=true,period=200,scale=1,carry=true",
          release ? ",release=true\n" : "\n");
  return cat("grad layers.", layers, ".attn.qkv", how, "grad layers.", layers,
             ".mlp.{gate_up,down}", how);
}

// What the budget bounds.
int64_t measured(const StepPlan& plan, const PlanRequest& r) {
  return r.device == c10::kCUDA ? plan.reserved : plan.memory.peak;
}

class Planner {
 public:
  Planner(const PlanRequest& request, Allowed allowed, const Speed& speed)
      : r_(request), allowed_(allowed), speed_(speed), layers_(r_.shape.num_hidden_layers) {}

  // The best under the budget, by the solver's own prediction of the peak.
  std::optional<Candidate> best(int64_t budget);
  // The smallest peak of all variants.
  int64_t least();
  double error(const Variant& v) const;
  // What the loss costs where memory is no matter.
  int64_t usual_cost() const { return chunk_cost(chunks().front()); }

 private:
  std::vector<Variant> levels() const;
  std::vector<int64_t> chunks() const;
  std::string lines(const Variant& v) const;
  // Updating inside the backward pass costs nothing and loses nothing where it may be done.
  bool release() const { return !r_.step.clip && r_.step.accumulation == 1; }
  std::string release_line() const { return release() ? "grad * = full:release=true\n" : ""; }
  static std::string codec_line(const Variant& v) {
    return v.codec.empty() ? "" : cat("slot layers.* = ", v.codec, "\n");
  }
  const std::vector<BlockOption>& options(const Variant& v, bool projected);
  const LayerProblem& problem(const Variant& v);
  std::vector<const std::vector<BlockOption>*> layer_options(const Variant& v);
  std::optional<Candidate> best_of(Variant v, int64_t budget);
  int64_t chunk_cost(int64_t chunk) const;

  const PlanRequest& r_;
  Allowed allowed_;
  const Speed& speed_;
  int64_t layers_;
  std::map<std::pair<double, std::string>, std::vector<BlockOption>> options_;
  std::map<std::string, LayerProblem> problems_;
};

// Ways to lose nothing, then precision, then more and more of the gradient.
std::vector<Variant> Planner::levels() const {
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

std::vector<int64_t> Planner::chunks() const {
  const int64_t usual = LossTreatment::from(Spec::parse("chunk"), r_.shape.vocab_size).chunk_tokens;
  std::vector<int64_t> all;
  for (const int64_t chunk : {usual, usual / 4 / 64 * 64, int64_t{64}}) {
    if (chunk >= 64 && (all.empty() || chunk < all.back())) all.push_back(chunk);
  }
  return all;
}

// Every chunk adds its part of the head's gradient to an f32 sum. Nanoseconds of a step.
int64_t Planner::chunk_cost(int64_t chunk) const {
  const int64_t tokens = r_.step.batch * r_.step.length;
  const auto sums = static_cast<double>((tokens + chunk - 1) / chunk * r_.step.accumulation);
  const auto bytes = 12.0 * static_cast<double>(r_.shape.vocab_size * r_.shape.hidden_size);
  return std::llround(sums * bytes / speed_.bytes_per_second * 1e9);
}

std::string Planner::lines(const Variant& v) const {
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

const std::vector<BlockOption>& Planner::options(const Variant& v, bool projected) {
  auto& found = options_[{projected ? v.rank : 0, v.codec}];
  if (found.empty()) {
    const std::string lines = projected ? projection_lines(v.rank, "*", release()) : "";
    found = block_options(r_, codec_line(v) + release_line() + lines, speed_);
  }
  return found;
}

std::vector<const std::vector<BlockOption>*> Planner::layer_options(const Variant& v) {
  std::vector<const std::vector<BlockOption>*> all;
  for (int64_t i = 0; i < layers_; ++i) {
    all.push_back(&options(v, i >= layers_ - v.projected));
  }
  return all;
}

const LayerProblem& Planner::problem(const Variant& v) {
  const std::string key = lines(v);
  const auto found = problems_.find(key);
  if (found != problems_.end()) return found->second;
  return problems_[key] = layer_problem(r_, key, layer_options(v));
}

// Over the chunks of the loss; ties go to the smaller peak.
std::optional<Candidate> Planner::best_of(Variant v, int64_t budget) {
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

std::optional<Candidate> Planner::best(int64_t budget) {
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

int64_t Planner::least() {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (Variant v : levels()) {
    if (v.rank > 0) v.projected = layers_;
    v.chunk = chunks().back();
    const auto best = best_of(v, least_peak(problem(v)));
    PlanRequest r = r_;
    r.policy = Policy::parse(best->text, "auto");
    least = std::min(least, measured(plan_step(r), r));
  }
  return least;
}

double Planner::error(const Variant& v) const {
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

}  // namespace

Allowed Allowed::parse(const std::string& text) {
  Allowed allowed;
  for (const std::string& part : split(text, ',')) {
    const std::vector<std::string> known = {"lossless", "quantize", "project"};
    COMPACT_CHECK(std::ranges::find(known, part) != known.end(), "--allow: no such value `", part,
                  "`", suggestion(part, known));
    allowed.quantize |= part == "quantize";
    allowed.project |= part == "project";
  }
  return allowed;
}

struct BudgetPlanner::Impl {
  PlanRequest request;
  Allowed allowed;
  Speed speed;
  Planner planner{request, allowed, speed};
};

BudgetPlanner::BudgetPlanner(const PlanRequest& request, Allowed allowed, const Speed& speed)
    : impl_(new Impl{request, allowed, speed}) {}
BudgetPlanner::~BudgetPlanner() = default;

int64_t BudgetPlanner::least_peak() { return impl_->planner.least(); }

std::optional<Chosen> BudgetPlanner::find(int64_t budget) {
  COMPACT_CHECK(budget > 0, "--budget must be positive, is ", budget, " B");
  Planner& planner = impl_->planner;
  PlanRequest request = impl_->request;
  // The solver counts bytes that tensors ask for; what a CUDA allocator rounds up, and whatever
  // the bases missed, shows in the plan of the whole step and is taken off the solver's budget.
  int64_t solver_budget = budget;
  for (int round = 0; round < 8; ++round) {
    const std::optional<Candidate> best = planner.best(solver_budget);
    if (!best) break;
    request.policy = Policy::parse(best->text, "auto");
    StepPlan plan = plan_step(request);
    const int64_t peak = measured(plan, request);
    if (peak > budget) {
      solver_budget = std::min(solver_budget, best->solution.peak) - (peak - budget);
      continue;
    }
    Chosen chosen;
    chosen.policy = request.policy;
    chosen.error = planner.error(best->variant);
    chosen.lossless =
        best->variant.rank == 0 && best->variant.moments.empty() && best->variant.codec.empty();
    chosen.states = best->solution.states;
    chosen.added_seconds = static_cast<double>(best->cost - planner.usual_cost()) * 1e-9;
    chosen.seconds = step_seconds(request, impl_->speed, plan.memory) + chosen.added_seconds;
    for (const BlockOption* layer : best->layers) chosen.added_products += layer->products;
    chosen.plan = std::move(plan);
    return chosen;
  }
  return std::nullopt;
}

Chosen BudgetPlanner::choose(int64_t budget) {
  if (auto found = find(budget)) return std::move(*found);
  const int64_t least = least_peak();
  const std::string other = ways_to_fit(impl_->request, budget, impl_->allowed, impl_->speed);
  throw BudgetError(
      cat("--budget ", format_bytes(budget), " (", format_count(budget), " B) cannot be met: the ",
          "least peak of what is allowed is ", format_bytes(least), " (", format_count(least),
          " B)",
          other.empty() ? "; neither batch, length, type nor lossy treatments reach it"
                        : cat("; it would fit with ", other)),
      least);
}

std::string ways_to_fit(const PlanRequest& request, int64_t budget, Allowed allowed,
                        const Speed& speed) {
  std::string text;
  int found = 0;
  const auto offer = [&](const std::string& what, const PlanRequest& r, Allowed a) {
    const int64_t least = Planner(r, a, speed).least();
    if (least > budget) return false;
    text += cat(found++ ? "; " : "", what, " (from ", format_bytes(least), ")");
    return true;
  };
  for (int64_t batch = request.step.batch / 2; batch >= 1; batch /= 2) {
    PlanRequest r = request;
    r.step.batch = batch;
    if (offer(cat("--per_device_train_batch_size ", batch), r, allowed)) break;
  }
  for (int64_t length = request.step.length / 2; length >= 32; length /= 2) {
    PlanRequest r = request;
    r.step.length = length;
    if (offer(cat("--block_size ", length), r, allowed)) break;
  }
  if (request.dtype == at::kFloat) {
    PlanRequest r = request;
    r.dtype = at::kBFloat16;
    offer("--dtype bfloat16", r, allowed);
  }
  if (!allowed.project) {
    Allowed more = allowed;
    more.project = true;
    if (!offer("--allow project", request, more) && !allowed.quantize) {
      more.quantize = true;
      offer("--allow quantize,project", request, more);
    }
  }
  return text;
}

}  // namespace compact
