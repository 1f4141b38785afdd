// SPDX-License-Identifier: Apache-2.0
// What a block is made of: shapes of its weights, and segments that read them.
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/networks/gated_block.h"
#include "compact/networks/post_norm_block.h"
#include "compact/networks/pre_norm_block.h"
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
const Parameter* Block::add_weight(const std::string& full, at::IntArrayRef sizes) {
  Parameter p;
  p.name = full;
  p.weight = shape(sizes, at::kFloat);
  p.hidden = true;
  return parameters_.emplace_back(std::make_unique<Parameter>(std::move(p))).get();
}

Network::Affine Block::affine(const std::string& name, std::vector<int64_t> out, int64_t in,
                              bool bias, int64_t products) {
  const std::string full = name_ + "." + name;
  const Spec grad = policy_.grad(full);
  COMPACT_CHECK(products == 0 || grad.name != "full" || grad.str() == "full", "grad `", full,
                "` = ", grad.str(), ": settings of full gradients are for the C++ program");
  std::shared_ptr<Carrier> carrier;
  if (products > 0 && grad.name != "full") {
    const auto made = c10::make_intrusive<Projected>(grad.str(), full, in, products, seed_);
    carrier = made->shape();
    projected_[name] = made;
  }
  Network::Affine all;
  for (size_t i = 0; i < out.size(); ++i) {
    const std::string part = out.size() == 1 ? name : cat(name, ".", i);
    Network::Affine one{.weight = add_weight(part + ".weight", {out[i], in}),
                        .bias = bias ? add_weight(part + ".bias", {out[i]}) : nullptr};
    const_cast<Parameter*>(one.weight)->carrier = carrier;
    if (i == 0) {
      all = std::move(one);
    } else {
      all.others.push_back(std::move(one));
    }
  }
  return all;
}

Network::Affine Block::norm(const std::string& name, int64_t width, bool bias) {
  Network::Affine a = affine(name, {width}, 1, bias, 0);
  for (const Parameter* p : {a.weight, a.bias}) {
    if (p) const_cast<Parameter*>(p)->hidden = false;
  }
  return a;
}

void Block::make_weights() {
  const int64_t n = integer("hidden"), m = integer("intermediate"), heads = integer("heads"),
                d = integer("head_dim");
  const bool gated = kind_ == "gated";
  const int64_t q = heads * d, kv = gated ? integer("kv_heads") * d : q;
  const auto parts = [&](const char* key, const std::vector<int64_t>& rows) {
    const int64_t count = integer(key);
    if (count == static_cast<int64_t>(rows.size())) return rows;
    COMPACT_CHECK(count == 1, "[block] `", name_, "`: ", key, " must be 1 or ", rows.size(),
                  ", is ", count);
    return std::vector<int64_t>{std::accumulate(rows.begin(), rows.end(), int64_t{0})};
  };
  affines_["attn.qkv"] =
      affine("attn.qkv", parts("qkv_parts", {q, kv, kv}), n, flag("qkv_bias"), 3);
  affines_["attn.out"] = affine("attn.out", {n}, q, !gated || flag("out_bias"));
  affines_["mlp.norm"] = norm("mlp.norm", n, !gated);
  if (gated) {
    affines_["attn.norm"] = norm("attn.norm", n, false);
    affines_["mlp.gate_up"] =
        affine("mlp.gate_up", parts("gate_up_parts", {m, m}), n, flag("mlp_bias"), 2);
    affines_["mlp.down"] = affine("mlp.down", {n}, m, flag("mlp_bias"));
    if (flag("head_norms")) {
      affines_["attn.q_norm"] = norm("attn.q_norm", d, false);
      affines_["attn.k_norm"] = norm("attn.k_norm", d, false);
    }
    if (flag("post_norms")) {
      affines_["attn.post_norm"] = norm("attn.post_norm", n, false);
      affines_["mlp.post_norm"] = norm("mlp.post_norm", n, false);
    }
    return;
  }
  affines_[kind_ == "pre_norm" ? "attn.norm" : "final.norm"] =
      norm(kind_ == "pre_norm" ? "attn.norm" : "final.norm", n, true);
  affines_["mlp.up"] = affine("mlp.up", {m}, n, true);
  affines_["mlp.down"] = affine("mlp.down", {n}, m, true);
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
    const std::string full = cat(product, kAdapter, all.adapters.size());
    const at::IntArrayRef sizes = one.weight->weight.sizes();
    all.adapters.push_back({.how = {.part = part, .scale = scale, .dropout = dropout},
                            .a = add_weight(full + ".A", {rank, sizes[1]}),
                            .b = add_weight(full + ".B", {sizes[0], rank})});
  }
}

AttentionChoice Block::masked_attention_of(const Variant& v) const {
  return choose_masked_attention(v.device, v.products, integer("head_dim"),
                                 number("attention_dropout"));
}

Block::PartPtr Block::make(const Variant& v) const {
  const int64_t n = integer("hidden"), heads = integer("heads"), d = integer("head_dim");
  const auto at = [&](const char* name) {
    const auto found = affines_.find(name);
    return found == affines_.end() ? Network::Affine{} : found->second;
  };
  const Network::Affine qkv = at("attn.qkv"), out = at("attn.out"), mlp_norm = at("mlp.norm"),
                        down = at("mlp.down");
  const double given = number("scale"), dropout = number("attention_dropout");
  const std::optional<double> scale = given > 0 ? std::optional(given) : std::nullopt;
  const AttentionChoice choice = masked_attention_of(v);
  auto part = std::make_shared<Network::Part>(
      name_, slot_of(policy_, name_ + ".attn.input", Role::kInput, n));
  if (kind_ == "gated") {
    const int64_t kv_heads = integer("kv_heads"), window = v.windowed ? integer("window") : 0;
    const double softcap = number("softcap");
    add_gated_block(*part, name_, policy_,
                    {.attn_norm = at("attn.norm"),
                     .qkv = qkv,
                     .out = out,
                     .mlp_norm = mlp_norm,
                     .gate_up = at("mlp.gate_up"),
                     .down = down,
                     .q_norm = at("attn.q_norm"),
                     .k_norm = at("attn.k_norm"),
                     .attn_post = at("attn.post_norm"),
                     .mlp_post = at("mlp.post_norm")},
                    {.hidden = n,
                     .intermediate = integer("intermediate"),
                     .heads = heads,
                     .kv_heads = kv_heads,
                     .head_dim = d,
                     .eps = number("eps"),
                     .norms_add_one = flag("norms_add_one"),
                     .geglu = flag("geglu"),
                     .residual = number("residual"),
                     .rope = flag("rope") ? rope_stage(nullptr, heads + kv_heads, d) : nullptr,
                     .attention = v.padded ? masked_attention_stage(heads, d,
                                                                    {.dropout = dropout,
                                                                     .kv_heads = kv_heads,
                                                                     .causal = true,
                                                                     .scale = scale,
                                                                     .window = window,
                                                                     .softcap = softcap,
                                                                     .choice = choice})
                                           : attention_stage(heads, kv_heads, d,
                                                             {.scale = scale,
                                                              .dropout = dropout,
                                                              .window = window,
                                                              .softcap = softcap,
                                                              .choice = choice})});
    return part;
  }
  const bool causal = kind_ == "pre_norm" && flag("causal");
  const auto attention =
      causal && !v.padded
          ? attention_stage(heads, heads, d, {.scale = scale, .dropout = dropout, .choice = choice})
          : masked_attention_stage(
                heads, d, {.dropout = dropout, .causal = causal, .scale = scale, .choice = choice});
  if (kind_ == "pre_norm") {
    add_pre_norm_block(*part, name_, policy_,
                       {at("attn.norm"), qkv, out, mlp_norm, at("mlp.up"), down},
                       {.eps = number("eps"),
                        .dropout = number("dropout"),
                        .gelu_tanh = flag("gelu_tanh"),
                        .attention = attention});
    return part;
  }
  add_post_norm_block(*part, 0, name_, policy_, {qkv, out, mlp_norm, at("mlp.up"), down},
                      {.eps = number("eps"),
                       .dropout = number("dropout"),
                       .gelu_tanh = flag("gelu_tanh"),
                       .attention = attention});
  const Network::Affine last = at("final.norm");
  part->add(layer_norm_stage(number("eps")), {last.weight, last.bias});
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
                                .cos = of_shape(pass.cos),
                                .sin = of_shape(pass.sin)}};
  sample.pass.products = pass.products;
  // Their gradients go to nobody, whatever becomes of the program's own.
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
