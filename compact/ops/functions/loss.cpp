// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/loss.h"

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "compact/base/check.h"
#include "compact/codecs/launch.h"
#include "compact/codecs/meta_device.h"
#include "compact/ops/autograd/autograd.h"
#include "compact/ops/functions/softmax_rows.h"
#include "compact/ops/memory/memory_trace.h"

namespace compact {
namespace {

using torch::autograd::variable_list;

// A multiple of 64, for which matrix products are fast. On a GPU few launches count for more than
// bytes do.
int64_t automatic_chunk(int64_t vocabulary, c10::DeviceType device) {
  const int64_t logits = int64_t{1} << (device == c10::kCUDA ? 27 : 24);
  return std::max<int64_t>(64, logits / vocabulary / 64 * 64);
}

constexpr int64_t kHeadRows = 4096;  // rows of the head's gradient made at a time

// Adds g^T h to the f32 sum. Only a GPU's products of smaller types have f32 results; elsewhere
// some rows are made at a time, so that there is no second tensor of the head's size.
void add_head_gradient(at::Tensor sum, const at::Tensor& g, const at::Tensor& h) {
  if (g.scalar_type() == at::kFloat) {
    sum.addmm_(g.t(), h);
    return;
  }
  if (device_type_of(sum) == c10::kCUDA) {
    at::addmm_out(sum, sum, g.t(), h, at::kFloat);
    return;
  }
  for (int64_t v = 0; v < sum.size(0); v += kHeadRows) {
    const int64_t rows = std::min(kHeadRows, sum.size(0) - v);
    // An explicit cast: add_ would cast by itself on the CPU, unseen by plans, and not elsewhere.
    sum.narrow(0, v, rows).add_(g.narrow(1, v, rows).t().mm(h).to(at::kFloat));
  }
}

// The cap as an operand. For f32 logits a tensor of their device: a number would become a tensor of
// the CPU, unseen by plans. For smaller types a number, since the tensor would be rounded.
at::Tensor cap_for(const at::Tensor& logits, double cap) {
  return logits.scalar_type() == at::kFloat ? at::full({}, cap, logits.options())
                                            : at::native::wrapped_scalar_tensor(cap);
}

struct LossNode : torch::autograd::Node {
  // The tensors that the forward pass leaves. A backward pass copies them where another one may
  // follow, else moves them away, so that no pass finds half of them.
  struct Held {
    at::Tensor hidden, head;                // keep only; each for the gradient of the other
    at::Tensor targets, logits, log_probs;  // keep only
    at::Tensor ghidden, ghead;              // chunked only
    at::Tensor ignored;                     // tokens without a target
    at::Tensor weights;                     // keep only, of the tokens' losses; undefined: ones
    VersionCheck versions;
  };
  double scale = 1, softcap = 0;
  std::vector<int64_t> sizes;  // of the hidden states
  Held held;
  bool released = false;

  std::string name() const override { return "CompActLinearCrossEntropy"; }
  void release_variables() override {
    released = true;
    held = {};
  }
  variable_list apply(variable_list&& grads) override;
};

// t times g, the gradient of the loss; in place unless `keep`. Elements to which no target
// contributes (`none`) stay 0 where g is not finite, as that of a mean over no targets; on a GPU
// they are set in any case, since asking whether g is finite would wait for it.
at::Tensor scaled(at::Tensor t, const at::Tensor& g, const at::Tensor& none, bool keep) {
  if (g.is_cpu() && g.item<double>() == 1.0) return keep ? t.clone() : t;
  t = keep ? t.mul(g) : t.mul_(g);
  const bool finite =
      g.is_cpu() ? std::isfinite(g.item<double>()) : device_type_of(t) != c10::kCUDA;
  return finite ? t : t.masked_fill_(none, 0);
}

// x [tokens, n] with a token's row multiplied by its weight.
at::Tensor weighted(at::Tensor x, const at::Tensor& weights) {
  return weights.defined() ? x.mul(weights.unsqueeze(1)).to(x.scalar_type()) : x;
}

variable_list LossNode::apply(variable_list&& grads) {
  TORCH_CHECK(
      !released,
      "[linear_cross_entropy] backward a second time, or after a backward pass that failed: "
      "the saved tensors are freed; pass retain_graph=True to the first backward");
  TORCH_CHECK(!at::GradMode::is_enabled(),
              "[linear_cross_entropy] gradients of gradients are not supported");
  held.versions.check("linear_cross_entropy");
  const NoAutocast no_autocast;
  trace_moment(Phase::kBackwardOf, "loss");
  const bool keep = torch::autograd::get_current_graph_task_keep_graph();
  released = !keep;
  Held h = keep ? held : std::exchange(held, {});
  variable_list result(2);
  if (!grads[0].defined()) return result;
  const bool want_hidden = task_should_compute_output(0), want_head = task_should_compute_output(1);
  bool copy = keep;
  if (h.log_probs.defined()) {
    copy = false;
    at::Tensor tanh = softcap > 0 ? h.logits.div(cap_for(h.logits, softcap)) : at::Tensor();
    at::Tensor g = keep ? at::empty_like(h.logits) : std::move(h.logits);
    softmax_backward({}, h.log_probs, {}, h.targets, scale, g);
    h.log_probs = at::Tensor();
    if (tanh.defined()) at::tanh_backward_out(g, g, tanh);
    tanh = at::Tensor();
    if (want_head) h.ghead = g.t().mm(weighted(h.hidden, h.weights));
    if (want_hidden) h.ghidden = weighted(g.mm(h.head), h.weights);
  }
  if (want_head) result[1] = scaled(std::move(h.ghead), grads[0], h.ignored.all(), copy);
  if (want_hidden) {
    result[0] = scaled(std::move(h.ghidden), grads[0], h.ignored.unsqueeze(1), copy);
  }
  if (result[0].defined()) result[0] = result[0].view(sizes);
  return result;
}

// On the CPU only: elsewhere it would wait for the device.
void check_targets(const at::Tensor& targets, int64_t vocabulary) {
  if (!targets.is_cpu() || targets.numel() == 0) return;
  const at::Tensor valid = targets.masked_select(targets.ne(kernels::kIgnoreIndex));
  if (valid.numel() == 0) return;
  const int64_t low = valid.min().item<int64_t>(), high = valid.max().item<int64_t>();
  COMPACT_CHECK(low >= 0 && high < vocabulary, "[linear_cross_entropy] a target must be ",
                kernels::kIgnoreIndex, " or in [0, ", vocabulary, "), is ", low < 0 ? low : high);
}

}  // namespace

LossTreatment LossTreatment::from(const Treatment& slot, int64_t vocabulary,
                                  c10::DeviceType device) {
  if (slot.storage() == Storage::kKeep) return {0};
  COMPACT_CHECK(slot.storage() == Storage::kChunk,
                "slot `loss.logits` takes `keep` or `chunk:tokens=N`, is `", slot.text(), "`");
  return {slot.first().integer("tokens", automatic_chunk(vocabulary, device))};
}

void cap_logits(const at::Tensor& logits, double softcap) {
  if (softcap == 0) return;
  const at::Tensor cap = cap_for(logits, softcap);
  logits.div_(cap).tanh_().mul_(cap);
}

namespace {

// `combine`: null, or makes the loss of those of the tokens.
at::Tensor loss_of(const at::Tensor& hidden_, const at::Tensor& w, const at::Tensor& targets_,
                   double scale, const LossTreatment& treatment, const CombineLosses* combine,
                   LossReport* report, double softcap) {
  for (const at::Tensor& t : {hidden_, w, targets_}) check_plain("linear_cross_entropy", t);
  COMPACT_CHECK(hidden_.size(-1) == w.size(1), "[linear_cross_entropy] hidden states of width ",
                hidden_.size(-1), " and a head of width ", w.size(1));
  COMPACT_CHECK(
      targets_.scalar_type() == at::kLong && targets_.numel() * w.size(1) == hidden_.numel(),
      "[linear_cross_entropy] needs one int64 target per token");
  check_like("linear_cross_entropy", hidden_, {{"head", w}});
  check_like("linear_cross_entropy", hidden_, {{"targets", targets_}}, at::kLong);
  trace_moment(Phase::kLoss);
  check_targets(targets_, w.size(0));
  const bool grad = at::GradMode::is_enabled();
  const bool want_hidden = grad && hidden_.requires_grad(), want_head = grad && w.requires_grad();
  const bool record = want_hidden || want_head;

  const at::NoGradGuard no_grad;
  const NoAutocast no_autocast;
  const at::Tensor h = hidden_.detach().reshape({-1, w.size(1)}),
                   targets = targets_.reshape(-1).contiguous();
  const int64_t tokens = h.size(0), vocabulary = w.size(0);
  const auto f32 = h.options().dtype(at::kFloat);
  const bool keep = treatment.chunk_tokens == 0 && record && tokens > 0;
  const int64_t chunk = keep                     ? tokens
                        : treatment.chunk_tokens ? treatment.chunk_tokens
                                                 : automatic_chunk(vocabulary, device_type_of(h));
  const at::Tensor weight = w.detach();
  at::Tensor lse = at::empty({tokens}, f32), loss = at::empty({tokens}, f32);
  const NodePtr owner = record ? make_node<LossNode>() : NodePtr();
  auto* const node = static_cast<LossNode*>(owner.get());
  const bool one_chunk = tokens <= chunk;
  at::Tensor ghidden, ghead;
  if (want_hidden && !keep) ghidden = at::empty_like(h);
  if (want_head && !keep && !one_chunk) ghead = at::zeros(weight.sizes(), f32);
  at::Tensor logits;  // of a chunk
  // The losses of a chunk's tokens.
  const auto score = [&](int64_t i, int64_t rows) {
    const at::Tensor hc = h.narrow(0, i, rows), tc = targets.narrow(0, i, rows);
    logits = at::Tensor();
    logits = hc.mm(weight.t());
    cap_logits(logits, softcap);
    const at::Tensor log_probs = keep ? at::empty({rows, vocabulary}, f32) : at::Tensor();
    softmax_forward(logits, tc, lse.narrow(0, i, rows), loss.narrow(0, i, rows), log_probs);
    if (!keep) return;
    node->held.logits = logits;
    node->held.log_probs = log_probs;
    node->held.targets = targets;
  };
  CombinedLoss combined;
  if (combine) {
    for (int64_t i = 0; i < tokens; i += chunk) score(i, std::min(chunk, tokens - i));
    if (!one_chunk) logits = at::Tensor();
    combined = (*combine)(loss);
  }
  for (int64_t i = 0; i < tokens && (!combine || (record && !keep)); i += chunk) {
    const int64_t rows = std::min(chunk, tokens - i);
    const at::Tensor tc = targets.narrow(0, i, rows), lc = lse.narrow(0, i, rows);
    if (!combine || !one_chunk) score(i, rows);
    if (keep || !record) continue;
    const at::Tensor wc = combine ? combined.weights.narrow(0, i, rows) : at::Tensor();
    const at::Tensor hc = weighted(h.narrow(0, i, rows), wc);
    at::Tensor tanh = softcap > 0 ? logits.div(cap_for(logits, softcap)) : at::Tensor();
    softmax_backward(logits, {}, lc, tc, scale, logits);
    if (tanh.defined()) at::tanh_backward_out(logits, logits, tanh);
    tanh = at::Tensor();
    if (want_head) {
      if (one_chunk) {
        ghead = logits.t().mm(hc);
      } else {
        add_head_gradient(ghead, logits, hc);
      }
    }
    if (want_hidden) {
      at::Tensor out = ghidden.narrow(0, i, rows);
      at::mm_out(out, logits, weight);
      if (combine) out.copy_(weighted(out, wc));
    }
  }
  logits = lse = at::Tensor();
  // A tensor of the device: a number would become a tensor of the CPU, unseen by plans.
  at::Tensor result = combine ? combined.total : loss.to(at::kDouble).sum();
  result = result.mul_(at::full({}, scale, result.options())).to(at::kFloat);
  if (!record) return result;
  if (want_head && tokens == 0) ghead = at::zeros_like(weight);
  LossNode::Held& held = node->held;
  held.ghidden = ghidden;
  held.ghead = ghead.defined() ? ghead.to(weight.scalar_type()) : ghead;
  ghead = at::Tensor();
  held.ignored = targets.eq(kernels::kIgnoreIndex);
  node->scale = scale;
  node->softcap = softcap;
  node->sizes = hidden_.sizes().vec();
  if (keep) held.weights = combined.weights;
  if (keep) held.versions.add(targets_);
  if (keep && want_head) {
    held.hidden = h;
    held.versions.add(hidden_);
  }
  if (keep && want_hidden) {
    held.head = weight;
    held.versions.add(w);
  }
  if (report) {
    const at::Tensor hidden[] = {held.hidden},
                     others[] = {held.logits, held.log_probs, held.ghidden,
                                 held.ghead,  held.ignored,   held.weights};
    *report = {bytes_of(hidden), bytes_of(others)};
  }
  const at::Tensor inputs[] = {hidden_, w};
  connect(owner, inputs);
  torch::autograd::set_history(result, owner);
  return result;
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& head,
                                const at::Tensor& targets, double scale,
                                const LossTreatment& treatment, LossReport* report,
                                double softcap) {
  return loss_of(hidden, head, targets, scale, treatment, nullptr, report, softcap);
}

at::Tensor linear_combined_loss(const at::Tensor& hidden, const at::Tensor& head,
                                const at::Tensor& targets, double scale,
                                const LossTreatment& treatment, CombineLosses combine,
                                LossReport* report, double softcap) {
  return loss_of(hidden, head, targets, scale, treatment, &combine, report, softcap);
}

}  // namespace compact
