// SPDX-License-Identifier: Apache-2.0
#include "compact/python/block.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/ops/functions/efficient_attention.h"
#include "compact/ops/functions/range_attention.h"
#include "compact/python/draw_key.h"
#include "compact/python/made_weights.h"
#include "compact/python/step_trace.h"

namespace compact {
namespace {

at::Tensor detached(const std::optional<at::Tensor>& t) { return t ? t->detach() : at::Tensor(); }

}  // namespace

Block::Block(std::string kind, std::string name, std::string policy, Numbers numbers,
             Adapters adapters, int64_t seed)
    : kind_(std::move(kind)),
      name_(std::move(name)),
      policy_text_(std::move(policy)),
      numbers_(numbers),
      adapters_(std::move(adapters)),
      policy_(Policy::parse(policy_text_, "policy")),
      seed_(seed) {
  std::map<std::string, double> fields;
  for (const auto& entry : numbers_) fields[entry.key()] = entry.value();
  shape_ = read_block_shape(kind_, fields, cat("[block] `", name_, "`"));
  make_weights();
  adapt();
  const PartPtr any = part({at::kCPU, at::kFloat, false, false});
  for (const Parameter* p : any->parameters) {
    names_.push_back(p->name);
    kinds_.push_back({p->hidden, p->name.find(kAdapter) != p->name.npos});
  }
  draws_ = !any->segment.codec_slots().empty();
  drops_ = shape_.attention_dropout > 0 || shape_.dropout > 0;
  for (const auto& adapter : adapters_) drops_ = drops_ || std::get<4>(adapter) > 0;
  project_gradients(*any);
}

std::vector<std::string> Block::projections() const {
  std::vector<std::string> all;
  for (const auto& entry : projected_) all.push_back(entry.first);
  return all;
}

c10::intrusive_ptr<Projected> Block::projected(const std::string& product) const {
  const auto found = projected_.find(product);
  COMPACT_CHECK(found != projected_.end(), "[block] `", name_, "` projects no gradient of ",
                product);
  return found->second;
}

void Block::set_projected(const std::string& product, c10::intrusive_ptr<Projected> projected) {
  COMPACT_CHECK(projected->settings() == this->projected(product)->settings(), "[block] `", name_,
                "`: another projection of ", product);
  projected_[product] = std::move(projected);
}

std::vector<std::tuple<std::string, std::string, bool>> Block::slots() const {
  std::vector<std::tuple<std::string, std::string, bool>> all;
  for (const SlotUse& use : parts_.begin()->second->segment.uses()) {
    all.emplace_back(use.name, use.role == Role::kNone ? "" : name_of(use.role), use.in_tiles);
  }
  return all;
}

at::Tensor Block::forward(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                          const std::optional<at::Tensor>& cos,
                          const std::optional<at::Tensor>& sin,
                          const std::optional<at::Tensor>& lengths,
                          const std::optional<at::Tensor>& ranges, bool training) {
  COMPACT_CHECK(weights.size() == names_.size(), "[block] `", name_, "` takes ", names_.size(),
                " weights, not ", weights.size());
  COMPACT_CHECK(x.dim() == 3 && x.size(2) == shape_.hidden, "[block] `", name_,
                "` takes [batch, sequence, ", shape_.hidden, "], not ", x.sizes());
  // On the meta device: the one that is planned for.
  const c10::DeviceType device = device_type_of(x);
  const bool autocast = at::autocast::is_autocast_enabled(device);
  const at::ScalarType type = autocast ? at::autocast::get_autocast_dtype(device) : x.scalar_type();
  COMPACT_CHECK(type == at::kFloat || type == at::kBFloat16, "[block] `", name_,
                "` computes in float32 and bfloat16, not in ", c10::toString(type));
  SegmentPass pass{.training = training,
                   .lengths = detached(lengths),
                   .ranges = detached(ranges),
                   .cos = detached(cos),
                   .sin = detached(sin)};
  // A weight that Python gives may be multiplied in another type.
  const bool mixed = std::ranges::any_of(
      weights, [type](const at::Tensor& w) { return is_provided(w) && w.scalar_type() != type; });
  if (mixed || type != x.scalar_type()) pass.products = type;
  if (draws_ || (training && drops_)) pass.noise = draw_key();
  if (ranges) {
    COMPACT_CHECK(shape_.causal && shape_.softcap == 0 && !lengths &&
                      (!training || shape_.attention_dropout == 0),
                  "[block] `", name_,
                  "` takes ranges for causal attention without dropout or capped scores, and "
                  "without lengths");
    check_ranges(*ranges, x.size(0), x.size(1));
  }
  const bool transposed = shape_.transposed;
  std::shared_ptr<MadeWeights> made;
  std::vector<Weight> read;
  read.reserve(weights.size());
  for (size_t i = 0; i < kinds_.size(); ++i) {
    const auto [product, adapter] = kinds_[i];
    if (is_provided(weights[i])) {
      if (!made) made = std::make_shared<MadeWeights>();
      const at::Tensor value = made->add(weights[i], weights[i].scalar_type());
      Weight& w = read.emplace_back(value);
      w.value = value;
      w.places.push_back({made, made->size() - 1, /*by_product=*/true});
      continue;
    }
    const at::Tensor leaf =
        transposed && product && !adapter && weights[i].dim() == 2 ? weights[i].t() : weights[i];
    Weight& w = read.emplace_back(leaf);
    w.source = weights[i];
    if (const auto found = gradients_.find(i); found != gradients_.end()) {
      const Gradient& gradient = found->second;
      w.leaf = weights[gradient.carrier];
      w.carrier = projected_.at(gradient.product)->carrier(leaf.device(), type);
      w.draw = w.carrier->draw;
      COMPACT_CHECK(
          w.leaf.dim() == 2 && w.leaf.size(0) == leaf.size(0) && w.leaf.size(1) == w.carrier->rank,
          "[block] `", name_, "`: ", names_[gradient.carrier], " must be [", leaf.size(0), ", ",
          w.carrier->rank, "], is ", w.leaf.sizes());
    }
    if (!product || leaf.scalar_type() == type) continue;
    if (adapter && !autocast) continue;      // it computes in its own type
    if (mixed && leaf.dim() == 1) continue;  // a bias in the type of its product
    COMPACT_CHECK(autocast, "[block] `", name_, "`: ", names_[i], " is ",
                  c10::toString(leaf.scalar_type()), ", what it is multiplied with ",
                  c10::toString(type));
    if (!made) made = std::make_shared<MadeWeights>();
    w.value = made->add(leaf, type);
    w.places.push_back({made, made->size() - 1});
  }
  const int64_t window = shape_.window;
  const bool windowed = window > 0 && window < x.size(1) && !ranges;
  const Variant variant{device, type, lengths.has_value(), ranges.has_value(), windowed};
  const PartPtr p = part(variant);
  if (StepTrace* const step = StepTrace::watching()) show(step->groups(), p, x, read, pass);
  SegmentReport report;
  at::Tensor y = p->segment(x, std::move(read), pass, &report);
  if (!report.slots.empty() || lengths || ranges) {
    const std::lock_guard lock(held_mutex_);
    if (!report.slots.empty()) {
      held_ = std::move(report.slots);
      tiles_ = std::move(report.tiles);
    }
    if (lengths || ranges) {
      masked_ = Masked{variant, x.size(0), x.size(1), ranges ? ranges->size(0) : 0};
    }
  }
  return y;
}

std::vector<std::tuple<std::string, std::string, int64_t, int64_t>> Block::held() const {
  const std::lock_guard lock(held_mutex_);
  std::vector<std::tuple<std::string, std::string, int64_t, int64_t>> rows;
  for (const SlotBytes& s : held_) rows.emplace_back(s.name, s.treatment, s.stored, s.if_kept);
  return rows;
}

std::vector<std::tuple<int64_t, int64_t>> Block::tiles() const {
  const std::lock_guard lock(held_mutex_);
  std::vector<std::tuple<int64_t, int64_t>> kinds;
  for (auto t = tiles_.begin(); t != tiles_.end(); ++t) {
    if (std::find(tiles_.begin(), t, *t) == t) kinds.emplace_back(t->tokens, t->count);
  }
  return kinds;
}

std::tuple<std::string, int64_t, int64_t> Block::masking() const {
  const std::lock_guard lock(held_mutex_);
  COMPACT_CHECK(masked_, "[block] `", name_, "`: no call of it had padding or ranges");
  const auto& [variant, samples, length, ranges] = *masked_;
  if (variant.ranges) {
    const AttentionChoice plain =
        choose_attention(variant.device, variant.products, shape_.head_dim);
    return {attention_text(plain, shape_.head_dim), 0, ranges};
  }
  AttentionChoice choice = choose_masked_attention(variant.device, variant.products,
                                                   shape_.head_dim, shape_.attention_dropout);
  if (variant.windowed || shape_.softcap > 0) choice = {AttentionKernel::kChunks, shape_.head_dim};
  int64_t bias = 0;
  if (choice.kernel != AttentionKernel::kChunks) {
    const at::Tensor lengths = at::empty({samples}, at::device(at::kMeta).dtype(at::kLong));
    bias = static_cast<int64_t>(
        padding_bias(lengths, variant.products, {samples, 1, 1, length}).storage().nbytes());
  }
  return {attention_text(choice, shape_.head_dim), bias, 0};
}

}  // namespace compact
