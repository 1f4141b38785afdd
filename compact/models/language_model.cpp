// SPDX-License-Identifier: Apache-2.0
#include "compact/models/language_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/kernels/kernels.h"
#include "compact/ops/functions/fork.h"
#include "compact/ops/functions/range_attention.h"
#include "compact/ops/memory/memory_trace.h"

namespace compact {

LanguageModel::LanguageModel(const Policy& policy, const NetworkOptions& options, TokenIds tokens,
                             int64_t hidden, double initializer_range)
    : Network(policy, options),
      tokens_(std::move(tokens)),
      width_(hidden),
      deviation_(initializer_range) {
  embedding_ = table("embedding");
}

const Parameter* LanguageModel::table(const char* name) {
  return parameter(name, normal(name, {tokens_.vocabulary, width_}, deviation_));
}

Network::Affine LanguageModel::in_block(const std::string& name, int64_t in,
                                        std::vector<int64_t> out, bool bias, double scale,
                                        const ZeroPadding& padding) {
  return linear(name, in, std::move(out),
                {.deviation = scale * deviation_, .bias = bias, .padding = padding});
}

void LanguageModel::finish_parameters(bool tied) {
  if (!tied) head_ = table("head");
  treat_parameters();
}

void LanguageModel::finish_parts() {
  loss_treatment_ = LossTreatment::from(policy().slot("loss.logits", Role::kLogits),
                                        tokens_.vocabulary, device_type_of(embedding_->weight));
  COMPACT_CHECK(policy().slot("final.norm", Role::kHead).storage() == Storage::kKeep,
                "slot `final.norm` can only be `keep`: the loss reads it (under chunk it is freed "
                "in the forward pass)");
  for (const auto& part : parts()) {
    for (const Slot& c : part->segment.codec_slots()) {
      COMPACT_CHECK(c.treatment.codec()->bytes(1, c.width, dtype()), "slot `", c.name,
                    "` = ", c.treatment.text(),
                    ": what it would take of a transformer's tensor cannot be planned");
    }
  }
  std::vector<NamedRole> slots = segment_slots();
  slots.push_back({"final.norm", Role::kHead});
  slots.push_back({"loss.logits", Role::kLogits});
  policy().check_patterns(PolicyKind::kSlot, slots);
  place_weights();
}

at::Tensor LanguageModel::hidden(const at::Tensor& ids, const at::Tensor& embedding,
                                 const Pass& pass, TokenCache* cache, SegmentReport* report) const {
  COMPACT_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kLong,
                "[language model] ids must be int64 [batch, sequence]");
  if (pass.ranges.defined()) check_ranges(pass.ranges, ids.size(0), ids.size(1));
  const int64_t first = cache ? cache->length() : 0,
                length = pass.ranges.defined() ? longest_range(pass.ranges) : first + ids.size(1);
  COMPACT_CHECK(length <= options().max_length, "[language model] a sequence of ", length,
                " tokens is longer than max_length ", options().max_length);
  trace_moment(Phase::kForwardOf, "embedding");
  at::Tensor x = embedded(ids, embedding, pass, first);
  SegmentPass within = pass.of_segments();
  within.cache = cache;
  // A part may reuse the memory of what it is given.
  const auto& all = parts();
  for (size_t i = 0; i < all.size(); ++i) {
    if (cache && i + 1 == all.size()) x = x.narrow(1, x.size(1) - 1, 1);
    x = all[i]->run(std::move(x), within, report);
  }
  return x;
}

at::Tensor LanguageModel::loss(const Tensors& inputs, const at::Tensor& targets, const Pass& pass,
                               PassReport* report) const {
  return loss_of(inputs, targets, pass, report, nullptr);
}

at::Tensor LanguageModel::loss_of(const Tensors& inputs, const at::Tensor& targets,
                                  const Pass& pass, PassReport* report,
                                  PreferenceScore* score) const {
  // Tied, the two gradients are added by a node of ours.
  const auto [embedding, head] =
      head_ ? std::pair(embedding_->weight, head_->weight) : fork(embedding_->weight);
  const at::Tensor x = hidden(inputs.at(0), embedding, pass, nullptr, report);
  LossReport held;
  PreferenceScore pairs;
  if (!score) score = &pairs;
  const at::Tensor sum =
      inputs.size() > 1
          ? preference_loss(x, head, targets, pass.ranges, inputs[1], options().preference,
                            pass.scale, loss_treatment_, &held, softcap_, score)
          : linear_cross_entropy(x, head, targets, pass.scale, loss_treatment_, &held, softcap_);
  if (!report || !sum.requires_grad()) return sum;
  report->rewards = score->rewards;
  const int64_t chunk = loss_treatment_.chunk_tokens;
  report->slots.push_back(
      {"final.norm", chunk ? "freed" : "keep", held.hidden, static_cast<int64_t>(x.nbytes())});
  report->slots.push_back({"loss.logits", chunk ? cat("chunk:tokens=", chunk) : "keep", held.logits,
                           inputs[0].numel() * tokens_.vocabulary * (x.element_size() + 4)});
  report->saved_bytes += held.bytes();
  return sum;
}

Network::Names LanguageModel::other_names(const std::string& name) const {
  const std::string_view embedding = embedding_name();
  const std::string_view prefix = embedding.substr(0, embedding.find('.') + 1);
  return name.starts_with(prefix) ? Names{name.substr(prefix.size())} : Names{};
}

Network::Names LanguageModel::copies_of(const std::string& name) const {
  return !head_ && name == embedding_name() ? Names{"lm_head.weight"} : Names{};
}

Score LanguageModel::score(const Tensors& inputs, const at::Tensor& targets,
                           const at::Tensor& ranges) const {
  const at::NoGradGuard no_grad;
  PreferenceScore pairs;
  Score score = {
      .loss = loss_of(inputs, targets, {.training = false, .ranges = ranges}, nullptr, &pairs)
                  .item<double>()};
  if (!pairs.rewards.defined()) {
    score.targets = targets.ne(kernels::kIgnoreIndex).sum().item<int64_t>();
    return score;
  }
  score.log_probs = pairs.log_probs.cpu();
  score.rewards = pairs.rewards.cpu();
  score.targets = score.rewards.size(0);
  score.correct = score.rewards.select(1, 0).gt(score.rewards.select(1, 1)).sum().item<int64_t>();
  return score;
}

at::Tensor LanguageModel::logits(const at::Tensor& ids) const {
  const at::NoGradGuard no_grad;
  const at::Tensor logits = at::linear(
      hidden(ids, embedding_->weight, {.training = false}, nullptr, nullptr), head().weight);
  cap_logits(logits, softcap_);
  return logits;
}

at::Tensor LanguageModel::logits_of_last(const at::Tensor& ids, TokenCache& cache) const {
  const at::NoGradGuard no_grad;
  const at::Tensor x = hidden(ids, embedding_->weight, {.training = false}, &cache, nullptr);
  cache.advance(ids.size(1));
  const at::Tensor logits = at::linear(x, head().weight).view({-1});
  cap_logits(logits, softcap_);
  return logits;
}

}  // namespace compact
