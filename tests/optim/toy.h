// SPDX-License-Identifier: Apache-2.0
// A small network with gradients written by hand: o = (g * (x A^T B^T)) V^T, squared error against
// a noisy teacher. A is three fused products and may be projected, B is a hidden matrix with its
// own learning rate, V and the vector g are plain. Everything follows from keys.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <utility>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/codecs/launch.h"
#include "compact/optim/optimizer.h"

namespace compact {

inline at::Tensor normal(at::IntArrayRef sizes, uint64_t key, float scale = 1) {
  at::Tensor t = at::empty(sizes, at::kFloat);
  backend_of(t).draw({.out = t.data_ptr(),
                      .count = t.numel(),
                      .key = key,
                      .scale = scale,
                      .distribution = kernels::Distribution::kNormal,
                      .type = kernels::Type::kFloat32},
                     launch_for(t));
  return t;
}

struct ToyOptions {
  std::string projection;  // empty: A's gradient is full
  bool share = false;      // one P for the three products
  bool carry = true;
  int64_t period = 5;
  at::ScalarType type = at::kFloat;
};

struct Toy {
  static constexpr int64_t kTokens = 8, kIn = 20, kHidden = 24, kMiddle = 12, kOut = 5, kRank = 6;
  static constexpr int64_t kMicroBatches = 2;
  std::vector<Parameter> parameters;
  at::ScalarType type;

  explicit Toy(const ToyOptions& o) : type(o.type) {
    const std::vector<int64_t> parts = {12, 6, 6};
    parameters = {
        {.name = "a", .weight = normal({kHidden, kIn}, 1, 0.2f), .parts = parts, .hidden = true},
        {.name = "b",
         .weight = normal({kMiddle, kHidden}, 2, 0.2f),
         .hidden = true,
         .lr_scale = .5},
        {.name = "g", .weight = normal({kMiddle}, 3, 0.2f) + 1, .decay = false},
        {.name = "v", .weight = normal({kOut, kMiddle}, 4, 0.3f)},
    };
    for (Parameter& p : parameters) p.weight = p.weight.to(type);
    if (o.projection.empty()) return;
    auto c = std::make_shared<Carrier>();
    c->value = at::zeros({kHidden, kRank}, type);
    c->rows = o.share ? std::vector<int64_t>{kHidden} : parts;
    c->type = o.projection;
    c->in = kIn;
    c->rank = kRank;
    c->period = o.period;
    c->scale = 0.5;
    c->carry = o.carry;
    c->key = 77;
    c->redraw(0, type);
    parameters[0].carrier = std::move(c);
  }
  Toy(const Toy&) = delete;
  Toy& operator=(const Toy&) = delete;

  std::vector<Parameter*> pointers() {
    std::vector<Parameter*> all;
    for (Parameter& p : parameters) all.push_back(&p);
    return all;
  }

  static at::Tensor input(int64_t step, int64_t micro) {
    return normal({kTokens, kIn}, derive(derive(100, step), micro));
  }
  static at::Tensor target(int64_t step, int64_t micro) {
    return input(step, micro).mm(normal({kIn, kOut}, 99, 0.3f)) +
           normal({kTokens, kOut}, derive(derive(101, step), micro), 0.1f);
  }

  // Adds the gradients of one micro-batch.
  void accumulate(int64_t step, int64_t micro) {
    const auto& [a, b, g, v] = std::tie(parameters[0], parameters[1], parameters[2], parameters[3]);
    const at::Tensor x = input(step, micro).to(type), t = target(step, micro).to(type);
    const at::Tensor h = x.mm(a.weight.t()), k = h.mm(b.weight.t()), kg = k * g.weight;
    const at::Tensor go = (kg.mm(v.weight.t()) - t) / (kTokens * kMicroBatches);
    const at::Tensor gkg = go.mm(v.weight), gk = gkg * g.weight, gh = gk.mm(b.weight);
    add(a, a.carrier ? a.carrier->gradient(gh, a.carrier->project(x)) : gh.t().mm(x));
    add(b, gk.t().mm(h));
    add(g, (gkg * k).sum(0));
    add(v, go.t().mm(kg));
  }
  void accumulate(int64_t step) {
    for (int64_t micro = 0; micro < kMicroBatches; ++micro) accumulate(step, micro);
  }

  // Adds to a gradient and says so, as autograd does.
  static void add(const Parameter& p, const at::Tensor& gradient) {
    at::Tensor& grad = p.leaf().mutable_grad();
    grad = grad.defined() ? grad + gradient : gradient;
    const auto& hook = torch::autograd::impl::post_acc_grad_hooks(p.leaf());
    if (hook) (*hook)(p.leaf());
  }
};

inline OptimizerState copy_of(const OptimizerState& s) {
  OptimizerState copy{.numbers = s.numbers};
  for (const auto& [name, t] : s.tensors) copy.tensors.emplace_back(name, t.clone());
  return copy;
}

}  // namespace compact
