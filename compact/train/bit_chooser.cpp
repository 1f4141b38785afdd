// SPDX-License-Identifier: Apache-2.0
#include "compact/train/bit_chooser.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/kernels/kernels.h"
#include "compact/ops/functions/range_attention.h"
#include "compact/ops/memory/memory.h"
#include "compact/ops/scopes/op_names.h"
#include "compact/plan/sensitivity.h"

namespace compact {
namespace {

constexpr int64_t kSample = int64_t{1} << 16;  // elements of the gradient that are compared

// Every so-many-th element of the gradients, which are freed.
at::Tensor sampled_gradient(const Network& model) {
  int64_t all = 0;
  for (const Parameter* p : model.trained()) all += p->leaf().numel();
  const int64_t stride = (all + kSample - 1) / kSample;
  std::vector<at::Tensor> parts;
  for (const Parameter* p : model.trained()) {
    at::Tensor& grad = p->leaf().mutable_grad();
    parts.push_back(grad.reshape({-1}).slice(0, 0, {}, stride).to(at::kFloat, false, true));
    grad.reset();
  }
  return at::cat(parts);
}

// Tensors that a forward pass changes beside parameters, as statistics of norms: restored at the
// end.
class Restored {
 public:
  explicit Restored(const Network& network) {
    std::set<const void*> parameters;
    for (const Parameter* p : network.parameters()) parameters.insert(storage_of(p->weight));
    for (auto& [name, tensor] : network.named_tensors()) {
      if (!parameters.contains(storage_of(tensor))) kept_.emplace_back(tensor, tensor.clone());
    }
  }
  ~Restored() {
    const at::NoGradGuard no_grad;
    for (auto& [tensor, value] : kept_) tensor.copy_(value);
  }
  Restored(const Restored&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

// Lines for these tensors alone.
Policy lines_for(std::span<const AdaptiveTensor> tensors, const Policy& policy) {
  std::string text;
  for (const AdaptiveTensor& t : tensors) {
    text += cat("slot ", t.name, " = ", policy.slot(t.name).text(), "\n");
  }
  return Policy::parse(text, "bits");
}

// Part of all tensors of a batch, which have the same size along `dim`: rows, or tokens of them.
StepInputs narrowed(const StepInputs& batch, int64_t dim, int64_t from, int64_t count) {
  StepInputs part{{}, batch.target.narrow(dim, from, count)};
  for (const at::Tensor& t : batch.inputs) part.inputs.push_back(t.narrow(dim, from, count));
  if (batch.ranges.defined()) part.ranges = part_of_ranges(batch.ranges, dim, from, count);
  return part;
}

// The dimension along which a batch can be taken apart: that of samples, or the sequence of one
// that has a target for every token; -1: none.
int64_t dimension_of(const Network& network, const StepInputs& batch) {
  if (!network.divisible()) return -1;
  if (batch.target.size(0) > 1) return 0;
  const bool tokens = batch.target.dim() == 2 && batch.inputs.size() == 1;
  return tokens && batch.target.size(1) > 1 ? 1 : -1;
}

// The first rows of a batch, at least one, or of one sequence a part.
StepInputs part_of(const Network& network, const StepInputs& batch, int64_t eighths) {
  const int64_t dim = dimension_of(network, batch);
  if (dim < 0) return batch;
  const int64_t some = batch.target.size(dim) * eighths / 8;
  if (some > 0) return narrowed(batch, dim, 0, some);
  const StepInputs one = narrowed(batch, dim, 0, 1);
  return dim == 0 && dimension_of(network, one) == 1
             ? narrowed(one, 1, 0, std::max<int64_t>(1, batch.target.numel() * eighths / 8))
             : one;
}

// The batch with every other of its targets, from the first or from the second on.
StepInputs every_other_target(const StepInputs& batch, int64_t first) {
  const at::Tensor flat = batch.target.reshape({-1});
  const at::Tensor counted = flat.ne(kernels::kIgnoreIndex).nonzero().squeeze(1);
  const at::Tensor left_out = counted.slice(0, 1 - first, {}, 2);
  return {.inputs = batch.inputs,
          .target = flat.index_fill(0, left_out, kernels::kIgnoreIndex).view_as(batch.target),
          .ranges = batch.ranges};
}

// Variance of the batch's gradient, over the elements compared: the squared difference between the
// gradients of its two halves. Where a batch cannot be halved, as a graph, half of the squared
// difference between two draws of dropout; where this is below `least`, the squared difference
// between the halves of its targets.
template <class F>
double own_variance(const Network& network, const StepInputs& batch, uint64_t noise, double least,
                    F gradient_of) {
  const auto squared = [](const at::Tensor& x) {
    return x.square().sum(at::kDouble).item<double>();
  };
  const auto between = [&](const StepInputs& a, const StepInputs& b) {
    const at::Tensor one = gradient_of(a, noise);
    return squared(one - gradient_of(b, noise));
  };
  const int64_t dim = dimension_of(network, batch);
  if (dim >= 0) {
    const int64_t half = batch.target.size(dim) / 2;
    return between(narrowed(batch, dim, 0, half), narrowed(batch, dim, half, half));
  }
  const at::Tensor one = gradient_of(batch, derive(noise, 1));
  const double draws = squared(one - gradient_of(batch, derive(noise, 2))) / 2;
  // A row of tokens that cannot be taken apart, as a pair of answers, has one loss.
  const bool several =
      batch.target.dim() == 1 && batch.target.ne(kernels::kIgnoreIndex).sum().item<int64_t>() > 1;
  if (draws >= least || !several) return draws;
  return between(every_other_target(batch, 0), every_other_target(batch, 1));
}

// A policy of the treatments that these tensors had before bits were chosen.
std::string usual_lines(std::span<const AdaptiveTensor> tensors) {
  std::string text;
  for (const AdaptiveTensor& t : tensors)
    text += cat("slot ", t.name, " = ", t.treatment.text(), "\n");
  return text;
}

}  // namespace

BitChooser::BitChooser(const TrainConfig& config, const Policy& policy)
    : interval_(config.bits_interval),
      probes_(config.bits_probes),
      guard_(config.bits_guard),
      bounded_(!config.budget.empty()),
      fewest_(policy.fewest_open_bits()) {}

bool BitChooser::due(int64_t step) const {
  // How rounding moves a gradient changes fast at first: attention is uniform in a new network.
  const bool early = step >= 8 && std::has_single_bit(static_cast<uint64_t>(step));
  return fewest_ && (step % interval_ == 0 || (step < interval_ && early));
}

std::string BitChooser::choose(Network& network, const StepInputs& batch, const PassReport& latest,
                               const std::function<bool(const std::string& bits)>& fits) {
  const auto as_before = [&](const std::string& reason) {
    restore(network, bits_);
    return "bits     as they were: " + reason;
  };
  try {
    const Choice choice = measure(network, batch, latest);
    if (choice.bits.empty()) return choice.line;
    if (!fits(choice.bits)) {
      return as_before("the chosen ones would pass the budget at the peak");
    }
    restore(network, choice.bits);
    return choice.line;
  } catch (const std::exception& e) {
    const std::optional<std::string> what = out_of_memory(e);
    if (!what) throw;
    for (Parameter* p : network.trained()) p->leaf().mutable_grad().reset();
    return as_before("measuring them takes too much, " + *what);
  }
}

BitChooser::Choice BitChooser::measure(Network& network, const StepInputs& batch,
                                       const PassReport& latest) {
  const uint64_t noise = batch.noise;
  const StepInputs some = part_of(network, batch, *fewest_);
  const Restored statistics(network);
  const double scale = 1 / static_cast<double>(some.target.numel());
  const auto gradient_of = [&](const StepInputs& in, uint64_t key, PassReport* report = nullptr) {
    const at::Tensor loss = network.loss(
        in.inputs, in.target, {.scale = scale, .noise = key, .ranges = in.ranges}, report);
    torch::autograd::backward({loss}, {});
    return sampled_gradient(network);
  };
  std::vector<CodecTensor> held = network.codec_tensors(latest);
  if (held.empty()) {
    PassReport first;
    gradient_of(some, noise, &first);
    held = network.codec_tensors(first);
    // The elements of a pass on the whole batch.
    for (CodecTensor& t : held) t.elements *= batch.target.size(0) / some.target.size(0);
  }
  std::vector<AdaptiveTensor> tensors = adaptive_tensors(held);
  if (tensors.empty()) return {"bits     no tensor's are open", bits_};
  if (bits_.empty()) bits_ = usual_lines(tensors);
  const GradientProbe probe = [&](const Policy& policy, uint64_t key) {
    network.set_codecs(lines_for(tensors, policy));
    return gradient_of(some, key);
  };
  const std::vector<double> sensitivity =
      sensitivity_by_groups(probe, tensors, static_cast<int>(probes_), noise);
  BitPlan plan = adaptive_bits(tensors, sensitivity);
  double own = 0;
  if (guard_ > 0) {
    std::vector<AdaptiveTensor> fine = tensors;
    for (AdaptiveTensor& t : fine) t.average = 8;
    const BitPlan finest = adaptive_bits(fine, sensitivity);
    network.set_codecs(finest.policy);
    const double rounding = 4 * finest.allocation.error;
    own = own_variance(network, some, noise, rounding, gradient_of);
    if (own < rounding) own = 0;
  }
  const double usual = plan.allocation.error;
  std::string raised;
  int more = 0;  // bits, of every average below 8
  const auto too_much = [&] { return own > 0 && plan.allocation.error > guard_ * own; };
  const auto open = [](const AdaptiveTensor& t) { return t.average < 8; };
  while (too_much() && !bounded_ && std::ranges::any_of(tensors, open)) {
    for (AdaptiveTensor& t : tensors) t.average = std::min(8.0, t.average + 1);
    plan = adaptive_bits(tensors, sensitivity);
    raised = cat(", raised by ", ++more);
  }
  if (usual > guard_ * own && own > 0) {
    raised = cat("; rounding would have been ", std::lround(100 * usual / own),
                 " % of the gradient's own variance", raised.empty() ? " and is" : raised);
  }
  std::map<int, int> counts;
  for (size_t i = 0; i < tensors.size(); ++i) ++counts[plan.bits[i]];
  std::string text;
  for (const auto& [bits, count] : counts)
    text += cat(text.empty() ? "" : ", ", count, " x ", bits);
  return {cat("bits     ", text, "; predicted error of the gradient ",
              std::lround(100 * plan.allocation.error / plan.uniform_error),
              " % of that of equal bits", raised),
          plan.policy.str()};
}

void BitChooser::restore(Network& network, const std::string& bits) {
  bits_ = bits;
  if (!bits.empty()) network.set_codecs(Policy::parse(bits, "bits"));
}

}  // namespace compact
