// SPDX-License-Identifier: Apache-2.0
// The parts of a block: shapes of its weights, and segments that read them.
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/networks/gated_block.h"
#include "compact/networks/ungated_block.h"
#include "compact/ops/stages/stages.h"
#include "compact/python/block.h"
#include "compact/python/shape.h"

namespace compact {

// A product's matrix is one parameter, or several in order.
void Block::project_gradients(const Network::Part& part) {
  const std::vector<bool> projectable = part.segment.projectable();
  for (size_t i = 0; i < projectable.size(); ++i) {
    if (projectable[i]) projectable_.insert(part.parameters[i]);
  }
  std::vector<std::string> carriers;
  for (const auto& [product, affine] : affines_) {
    if (!projected_.contains(product)) continue;
    std::vector<const Parameter*> matrices = {affine.weight};
    for (const Network::Affine& other : affine.others) matrices.push_back(other.weight);
    for (size_t i = 0; i < matrices.size(); ++i) {
      const auto found = std::ranges::find(part.parameters, matrices[i]);
      const auto place = static_cast<size_t>(found - part.parameters.begin());
      COMPACT_CHECK(i > 0 || projectable[place], "grad `", name_, ".", product,
                    "`: another operation reads its input, which would be kept all the same; set "
                    "`full`");
      const std::string& weight = matrices[i]->name;
      gradients_[place] = {product, names_.size() + carriers.size()};
      carriers.push_back(weight.substr(0, weight.rfind('.')) + ".carrier");
    }
  }
  names_.insert(names_.end(), carriers.begin(), carriers.end());
}

// Parameter::hidden: it is one of a product, matrix or bias.
Parameter* Block::add_weight(const std::string& full, at::IntArrayRef sizes, bool of_product) {
  Parameter p;
  p.name = full;
  p.weight = shape(sizes, at::kFloat);
  p.hidden = of_product;
  return parameters_.emplace_back(std::make_unique<Parameter>(std::move(p))).get();
}

Network::Affine Block::product(const std::string& name, int64_t in, std::vector<int64_t> out,
                               bool bias) {
  const std::string full = name_ + "." + name;
  const Spec grad = policy_.grad(full);
  COMPACT_CHECK(grad.name != "full" || grad.str() == "full", "grad `", full, "` = ", grad.str(),
                ": settings of full gradients are for the C++ program");
  std::shared_ptr<Carrier> carrier;
  const int64_t parts = std::ssize(out), matrices = name == "attn.qkv"      ? shape_.qkv_parts
                                                    : name == "mlp.gate_up" ? shape_.gate_up_parts
                                                                            : 1;
  COMPACT_CHECK(matrices == 1 || matrices == parts, "[block] `", full, "` must be 1 matrix or ",
                parts, ", is ", matrices);
  if (grad.name != "full") {
    const auto made = c10::make_intrusive<Projected>(grad.str(), full, in, parts, seed_);
    carrier = made->shape();
    projected_[name] = made;
  }
  if (matrices == 1) out = {std::accumulate(out.begin(), out.end(), int64_t{0})};
  Network::Affine& all = affines_[name];
  for (size_t i = 0; i < out.size(); ++i) {
    const std::string part = out.size() == 1 ? name : cat(name, ".", i);
    Parameter* const weight = add_weight(part + ".weight", {out[i], in});
    weight->carrier = carrier;
    const Parameter* const b = bias ? add_weight(part + ".bias", {out[i]}) : nullptr;
    if (i == 0) {
      all = {weight, b};
    } else {
      all.others.push_back({weight, b});
    }
  }
  return all;
}

Network::Affine Block::norm(const std::string& name, int64_t width, bool bias) {
  return affines_[name] = {add_weight(name + ".weight", {width, 1}, false),
                           bias ? add_weight(name + ".bias", {width}, false) : nullptr};
}

void Block::make_weights() {
  if (kind_ == "gated") {
    gated_block(
        shape_, [&](const char* name, int64_t width) { return norm(name, width, false); },
        [&](const char* name, int64_t in, std::vector<int64_t> out, bool bias, const auto&) {
          return product(name, in, std::move(out), bias);
        });
    return;
  }
  const int64_t n = shape_.hidden, m = shape_.intermediate, q = shape_.heads * shape_.head_dim;
  product("attn.qkv", n, {q, q, q}, shape_.qkv_bias);
  product("attn.out", q, {n}, true);
  product("mlp.up", n, {m}, true);
  product("mlp.down", m, {n}, true);
  for (const char* name : {shape_.pre_norms ? "attn.norm" : "final.norm", "mlp.norm"}) {
    norm(name, n, true);
  }
}

void Block::adapt() {
  for (const auto& [product, part, rank, scale, dropout] : adapters_) {
    const auto found = affines_.find(product);
    COMPACT_CHECK(found != affines_.end() && found->second.weight->weight.dim() == 2, "[block] `",
                  name_, "` has no ", product, " to adapt");
    Network::Affine& all = found->second;
    COMPACT_CHECK(part >= 0 && part <= static_cast<int64_t>(all.others.size()) && rank > 0 &&
                      dropout >= 0 && dropout < 1,
                  "[block] `", name_, "`: an adapter of ", product, " with part ", part, ", rank ",
                  rank, ", dropout ", dropout);
    COMPACT_CHECK(!projected_.contains(product), "grad `", name_, ".", product,
                  "`: an adapter is trained in its place; set `full`");
    const Network::Affine& one = part == 0 ? all : all.others[static_cast<size_t>(part) - 1];
    int64_t first = 0;  // of the columns that the adapter adds to
    for (int64_t i = 0; i < part; ++i) {
      const Network::Affine& before = i == 0 ? all : all.others[static_cast<size_t>(i) - 1];
      first += before.weight->weight.size(0);
    }
    const std::string full = cat(product, kAdapter, all.adapters.size());
    const at::IntArrayRef sizes = one.weight->weight.sizes();
    all.adapters.push_back({.how = {.first = first, .scale = scale, .dropout = dropout},
                            .a = add_weight(full + ".A", {rank, sizes[1]}),
                            .b = add_weight(full + ".B", {sizes[0], rank})});
  }
}

Block::PartPtr Block::make(const Variant& v) const {
  const auto at = [&](const char* name, auto...) { return affines_.at(name); };
  BlockShape shape = shape_;
  if (!v.windowed) shape.window = 0;
  if (v.ranges) shape.attention_dropout = 0;
  const std::shared_ptr<const Stage> attention =
      attention_of(shape, v.device, v.products, v.padded);
  auto part = std::make_shared<Network::Part>(
      name_, slot_of(policy_, name_ + ".attn.input", Role::kInput, shape.hidden));
  if (kind_ == "gated") {
    add_gated_block(*part, name_, policy_, gated_block(shape, at, at), shape, nullptr, attention);
    return part;
  }
  const Network::Affine norm = at(shape.pre_norms ? "attn.norm" : "final.norm");
  add_ungated_block(
      *part, 0, name_, policy_,
      {norm, at("attn.qkv"), at("attn.out"), at("mlp.norm"), at("mlp.up"), at("mlp.down")}, shape,
      attention);
  if (!shape.pre_norms) part->add(layer_norm_stage(shape.eps), {norm.weight, norm.bias});
  part->segment.finish();
  return part;
}

void Block::show(SegmentGroups& seen, const PartPtr& part, const at::Tensor& x, Weights weights,
                 const SegmentPass& pass) const {
  SegmentSample sample{.segment = {part, &part->segment},
                       .input = shape_of(x),
                       .input_gradient = x.requires_grad(),
                       .weights = {weights.begin(), weights.end()},
                       .pass = {.training = pass.training,
                                .noise = pass.noise,
                                .lengths = of_shape(pass.lengths),
                                .ranges = pass.ranges,
                                .cos = of_shape(pass.cos),
                                .sin = of_shape(pass.sin)}};
  sample.pass.products = pass.products;
  // Detached copies: planning must not add to the caller's .grad.
  const auto own = [](const at::Tensor& t) { return t.detach().requires_grad_(t.requires_grad()); };
  for (Weight& w : sample.weights) {
    const bool same = w.leaf.is_same(w.source);
    w.source = own(w.source);
    w.leaf = same ? w.source : w.carrier ? own(w.leaf) : w.source.t();
  }
  const FetchedWeights there(sample.weights, /*backward=*/false);  // cast ones have sizes then
  SegmentInfo info = segment_info(*sample.segment, x, sample.weights, sample.pass, {});
  std::string kind = kind_;
  for (const auto& [product, affine] : affines_) {
    if (!affine.weight->hidden) continue;  // a norm
    const auto place = static_cast<size_t>(std::ranges::find(part->parameters, affine.weight) -
                                           part->parameters.begin());
    const at::Tensor& first = affine.weight->weight;
    SegmentMatrix matrix{.name = cat(name_, ".", product),
                         .out = first.size(0),
                         .in = first.size(1),
                         .projectable = projectable_.contains(affine.weight) &&
                                        !full_.contains(product) && affine.adapters.empty() &&
                                        weights[place].leaf.requires_grad()};
    if (full_.contains(product)) kind += cat(" full ", product);
    for (const Network::Affine& other : affine.others) matrix.out += other.weight->weight.size(0);
    info.matrices.push_back(std::move(matrix));
  }
  for (const auto& entry : numbers_) kind += cat(" ", entry.key(), "=", entry.value());
  seen.add(std::move(info), std::move(sample), kind);
}

Block::PartPtr Block::part(const Variant& variant) {
  const std::lock_guard lock(mutex_);
  PartPtr& made = parts_[variant];
  if (!made) made = make(variant);
  return made;
}

}  // namespace compact
