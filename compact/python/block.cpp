// SPDX-License-Identifier: Apache-2.0
#include "compact/python/block.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <numeric>
#include <set>
#include <utility>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/networks/gated_block.h"
#include "compact/networks/post_norm_block.h"
#include "compact/networks/pre_norm_block.h"
#include "compact/ops/stages/stages.h"
#include "compact/python/cast_weights.h"
#include "compact/python/draw_key.h"

namespace compact {
namespace {

// What numbers say, by kind; all of a kind's must be given.
const std::set<std::string> kShared = {
    "hidden", "intermediate",      "heads",     "head_dim", "eps",
    "scale",  "attention_dropout", "qkv_parts", "qkv_bias", "transposed"};
const std::map<std::string, std::set<std::string>> kKinds = {
    {"gated",
     {"kv_heads", "norms_add_one", "geglu", "residual", "rope", "window", "softcap", "out_bias",
      "mlp_bias", "head_norms", "post_norms", "gate_up_parts"}},
    {"pre_norm", {"dropout", "gelu_tanh", "causal"}},
    {"post_norm", {"dropout", "gelu_tanh"}},
};

at::Tensor told(const std::optional<at::Tensor>& t) { return t ? t->detach() : at::Tensor(); }

// A shape and a type: a tensor that takes no memory, not even where meta tensors are counted.
at::Tensor shape(at::IntArrayRef sizes, at::ScalarType type) {
  at::Tensor t = at::empty({0}, at::device(at::kMeta).dtype(type));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, std::vector<int64_t>(sizes.size(), 0));
  return t;
}
at::Tensor shape_of(const at::Tensor& t) {
  return t.defined() ? shape(t.sizes(), t.scalar_type()) : at::Tensor();
}
at::Tensor of_shape(const at::Tensor& t) {
  return t.defined() ? at::empty(t.sizes(), t.options()) : at::Tensor();
}

}  // namespace

Block::Block(std::string kind, std::string name, std::string policy, Numbers numbers, int64_t seed)
    : kind_(std::move(kind)),
      name_(std::move(name)),
      policy_text_(std::move(policy)),
      numbers_(std::move(numbers)),
      policy_(Policy::parse(policy_text_, "policy")),
      seed_(seed) {
  const auto found = kKinds.find(kind_);
  COMPACT_CHECK(found != kKinds.end(), "[block] unknown kind `", kind_,
                "`; known: gated, pre_norm, post_norm");
  for (const std::set<std::string>& keys : {kShared, found->second}) {
    for (const std::string& key : keys) {
      COMPACT_CHECK(numbers_.contains(key), "[block] `", name_, "`: ", key, " must be given");
    }
  }
  for (const auto& entry : numbers_) {
    COMPACT_CHECK(kShared.contains(entry.key()) || found->second.contains(entry.key()), "[block] `",
                  name_, "`: a ", kind_, " block has no ", entry.key());
  }
  for (const char* key : {"hidden", "intermediate", "heads", "head_dim", "qkv_parts"}) {
    COMPACT_CHECK(integer(key) > 0, "[block] `", name_, "`: ", key, " must be positive, is ",
                  integer(key));
  }
  make_weights();
  const PartPtr any = part({at::kCPU, at::kFloat, false, false});
  for (const Parameter* p : any->parameters) {
    names_.push_back(p->name);
    product_.push_back(p->hidden);
  }
  draws_ = !any->segment.codec_slots().empty();
  project_gradients(*any);
}

// A product's matrix is one parameter, or several in order.
void Block::project_gradients(const Network::Part& part) {
  const std::vector<bool> projectable = part.segment.projectable();
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

double Block::number(const char* key) const { return numbers_.at(key); }

int64_t Block::integer(const char* key) const {
  const double value = number(key);
  COMPACT_CHECK(value == static_cast<double>(static_cast<int64_t>(value)), "[block] `", name_,
                "`: ", key, " must be a whole number, is ", value);
  return static_cast<int64_t>(value);
}

// Parameter::hidden: it is one of a product, matrix or bias.
Network::Affine Block::affine(const std::string& name, std::vector<int64_t> out, int64_t in,
                              bool bias, int64_t products) {
  const auto add = [&](const std::string& full, at::IntArrayRef sizes) {
    Parameter p;
    p.name = full;
    p.weight = shape(sizes, at::kFloat);
    p.hidden = true;
    return parameters_.emplace_back(std::make_unique<Parameter>(std::move(p))).get();
  };
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
    Network::Affine one{.weight = add(part + ".weight", {out[i], in}),
                        .bias = bias ? add(part + ".bias", {out[i]}) : nullptr};
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
  const AttentionChoice choice = choose_masked_attention(v.device, v.products, d);
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

Block::PartPtr Block::part(const Variant& variant) {
  const std::lock_guard lock(mutex_);
  PartPtr& made = parts_[variant];
  if (!made) made = make(variant);
  return made;
}

std::vector<std::tuple<std::string, std::string>> Block::slots() const {
  std::vector<std::tuple<std::string, std::string>> all;
  for (const SlotUse& use : parts_.begin()->second->segment.uses()) {
    all.emplace_back(use.name, use.role == Role::kNone ? "" : name_of(use.role));
  }
  return all;
}

at::Tensor Block::forward(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                          const std::optional<at::Tensor>& cos,
                          const std::optional<at::Tensor>& sin,
                          const std::optional<at::Tensor>& lengths, bool training) {
  COMPACT_CHECK(weights.size() == names_.size(), "[block] `", name_, "` takes ", names_.size(),
                " weights, not ", weights.size());
  COMPACT_CHECK(x.dim() == 3 && x.size(2) == integer("hidden"), "[block] `", name_,
                "` takes [batch, sequence, ", integer("hidden"), "], not ", x.sizes());
  // On the meta device: the one that is planned for.
  const c10::DeviceType device = device_type_of(x);
  const bool autocast = at::autocast::is_autocast_enabled(device);
  const at::ScalarType type = autocast ? at::autocast::get_autocast_dtype(device) : x.scalar_type();
  COMPACT_CHECK(type == at::kFloat || type == at::kBFloat16, "[block] `", name_,
                "` computes in float32 and bfloat16, not in ", c10::toString(type));
  SegmentPass pass{
      .training = training, .lengths = told(lengths), .cos = told(cos), .sin = told(sin)};
  if (type != x.scalar_type()) pass.products = type;
  if (draws_ || (training && (number("attention_dropout") > 0 ||
                              (kind_ != "gated" && number("dropout") > 0)))) {
    pass.noise = draw_key();
  }
  const bool transposed = flag("transposed");
  std::shared_ptr<CastWeights> cast;
  std::vector<Weight> read;
  read.reserve(weights.size());
  for (size_t i = 0; i < product_.size(); ++i) {
    const at::Tensor leaf =
        transposed && product_[i] && weights[i].dim() == 2 ? weights[i].t() : weights[i];
    Weight& w = read.emplace_back(leaf);
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
    if (!product_[i] || leaf.scalar_type() == type) continue;
    COMPACT_CHECK(autocast, "[block] `", name_, "`: ", names_[i], " is ",
                  c10::toString(leaf.scalar_type()), ", what it is multiplied with ",
                  c10::toString(type));
    if (!cast) cast = std::make_shared<CastWeights>(type);
    w.value = cast->add(leaf);
    w.home = cast;
  }
  const int64_t window = kind_ == "gated" ? integer("window") : 0;
  const PartPtr p = part({device, type, lengths.has_value(), window > 0 && window < x.size(1)});
  if (watched_) {
    seen_ = Seen{p,
                 shape_of(x),
                 shape_of(pass.lengths),
                 shape_of(pass.cos),
                 shape_of(pass.sin),
                 x.requires_grad(),
                 training,
                 pass.noise,
                 read};
  }
  SegmentReport report;
  at::Tensor y = p->segment(x, std::move(read), pass, &report);
  if (!report.slots.empty()) {
    const std::lock_guard lock(held_mutex_);
    held_ = std::move(report.slots);
  }
  return y;
}

Block::Call Block::last_call() const {
  COMPACT_CHECK(seen_, "[block] `", name_, "`: no call of it was watched");
  SegmentPass pass{.training = seen_->training,
                   .noise = seen_->noise,
                   .lengths = of_shape(seen_->lengths),
                   .cos = of_shape(seen_->cos),
                   .sin = of_shape(seen_->sin)};
  return {seen_->part,
          {.segment = &seen_->part->segment,
           .input = of_shape(seen_->x),
           .input_gradient = seen_->x_gradient,
           .weights = seen_->weights,
           .pass = pass}};
}

std::vector<std::tuple<std::string, std::string, int64_t, int64_t>> Block::held() const {
  const std::lock_guard lock(held_mutex_);
  std::vector<std::tuple<std::string, std::string, int64_t, int64_t>> rows;
  for (const SlotBytes& s : held_) rows.emplace_back(s.name, s.treatment, s.stored, s.if_kept);
  return rows;
}

}  // namespace compact
