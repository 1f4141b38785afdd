// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "compact/base/philox.h"
#include "compact/codecs/launch.h"
#include "compact/ops/functions/dropout.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

// How many tokens at a time are copied to another type, or with dropout.
constexpr int64_t kTokens = 1024;

at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// y += delta, rounded once.
void add_to(at::Tensor y, const at::Tensor& delta) {
  if (y.scalar_type() == delta.scalar_type()) {
    y.add_(delta);
    return;
  }
  y.copy_(y.to(at::kFloat).add_(delta.to(at::kFloat)));
}

// The gradient of a matrix, a sum over tokens: in f32 where several chunks of them would each be
// rounded.
class Sum {
 public:
  Sum(bool wanted, const at::Tensor& of, bool several) : type_(of.scalar_type()) {
    if (!wanted) return;
    const bool narrow = several && of.element_size() < 4;
    sum_ = at::zeros(of.sizes(), narrow ? of.options().dtype(at::kFloat) : of.options());
  }
  void add(const at::Tensor& x, const at::Tensor& y, double scale) {
    if (sum_.scalar_type() == type_) {
      sum_.addmm_(x, y, 1, scale);
      return;
    }
    const at::Tensor part = at::empty(sum_.sizes(), x.options());
    sum_.add_(part.addmm_(x, y, 0, scale).to(at::kFloat));  // rounded once, after scaling
  }
  at::Tensor value() const { return sum_.defined() ? sum_.to(type_) : sum_; }

 private:
  at::ScalarType type_;
  at::Tensor sum_;
};

class AdaptedLinearStage final : public Stage {
 public:
  AdaptedLinearStage(const LinearOptions& options, std::vector<LowRankAdapter> adapters)
      : linear_(linear_stage(options)),
        parts_(options.parts),
        zeros_(options.zeros),
        adapters_(std::move(adapters)) {}

  Needs needs() const override { return {.input = true}; }
  int parameters() const override {
    return linear_->parameters() + 2 * static_cast<int>(adapters_.size());
  }
  bool by_token() const override { return true; }
  // The bias's gradient alone would not need the input; that rare case is not distinguished.
  int reads_input_for() const override { return parameters(); }

  Work work(const at::Tensor& input, const at::Tensor& output, Weights weights,
            const Pass& pass) const override {
    Work all = linear_->work(input, output, of_linear(weights), pass);
    const auto tokens = static_cast<double>(input.numel() / input.size(-1));
    for (size_t i = 0; i < adapters_.size(); ++i) {
      const auto numbers = static_cast<double>(a_of(weights, i).numel() + b_of(weights, i).numel());
      all.products += 2 * tokens * numbers;
      all.bytes += static_cast<double>(a_of(weights, i).element_size()) * numbers;
    }
    return all;
  }

  at::Tensor forward(Forward& f) const override {
    const at::Tensor input = f.input;
    const Weights weights = f.weights;
    f.weights = of_linear(weights);
    at::Tensor y = linear_->forward(f);
    f.weights = weights;
    const at::Tensor x = as_rows(f.pass.as(input, y.scalar_type())), rows = as_rows(y);
    for (size_t i = 0; i < adapters_.size(); ++i) {
      const at::Tensor a = a_of(weights, i), b = b_of(weights, i);
      const at::Tensor part = part_of(rows, weights, i);
      each_chunk(x, a, f.pass, i, [&](int64_t first, int64_t count) {
        const at::Tensor h = read(x, a, f.pass, i, first, count).mm(a.t()),
                         to = part.narrow(0, first, count);
        if (to.scalar_type() == b.scalar_type()) {
          to.addmm_(h, b.t(), 1, adapters_[i].scale);
        } else {
          add_to(to, h.mm(b.t()).mul_(adapters_[i].scale));
        }
      });
    }
    return y;
  }

  at::Tensor backward(Backward& b) const override {
    b.gy = b.pass.as_product(b.gy);
    const at::Tensor x =
        b.input.defined() ? as_rows(b.pass.as(b.input, b.gy.scalar_type())) : b.input;
    b.input = at::Tensor();
    Tensors hidden;  // of each adapter, the gradient of x A^T
    for (size_t i = 0; i < adapters_.size(); ++i) hidden.push_back(adapter_back(b, x, i));
    const auto first = b.want_parameters.begin();
    if (std::find(first, first + parts_, true) != first + parts_) b.input = x;
    const Weights weights = b.weights;
    const SegmentPass pass = b.pass;
    at::Tensor gx = linear_->backward(b);
    if (!gx.defined()) return gx;
    const at::Tensor rows = as_rows(gx);
    for (size_t i = 0; i < adapters_.size(); ++i) {
      const at::Tensor a = a_of(weights, i);
      each_chunk(rows, a, pass, i, [&](int64_t first, int64_t count) {
        const at::Tensor g = hidden[i].narrow(0, first, count), to = rows.narrow(0, first, count);
        if (to.scalar_type() == a.scalar_type() && !drops(pass, i)) {
          to.addmm_(g, a);
        } else {
          add_to(to, drop(g.mm(a), pass, i, first));
        }
      });
    }
    return gx;
  }

 private:
  Weights of_linear(Weights all) const {
    return all.first(static_cast<size_t>(linear_->parameters()));
  }
  const at::Tensor& a_of(Weights all, size_t i) const {
    return all[static_cast<size_t>(linear_->parameters()) + 2 * i].value;
  }
  const at::Tensor& b_of(Weights all, size_t i) const {
    return all[static_cast<size_t>(linear_->parameters()) + 2 * i + 1].value;
  }
  // The columns that adapter i adds to.
  at::Tensor part_of(const at::Tensor& rows, Weights weights, size_t i) const {
    return rows.narrow(1, adapters_[i].first, b_of(weights, i).size(0));
  }
  bool drops(const SegmentPass& pass, size_t i) const {
    return pass.training && adapters_[i].dropout > 0;
  }
  at::Tensor drop(at::Tensor rows, const SegmentPass& pass, size_t i, int64_t first) const {
    if (!drops(pass, i)) return rows;
    const uint64_t key = derive(derive(pass.noise, i + 1), static_cast<uint64_t>(first));
    return dropped(std::move(rows), adapters_[i].dropout, key);
  }
  // The input of adapter i: these rows of x in its own type, under dropout.
  at::Tensor read(const at::Tensor& x, const at::Tensor& a, const SegmentPass& pass, size_t i,
                  int64_t first, int64_t count) const {
    const at::Tensor rows = x.narrow(0, first, count);
    const bool drops_some = drops(pass, i);
    const at::Tensor own = rows.to(a.scalar_type(), /*non_blocking=*/false, /*copy=*/drops_some);
    return drops_some ? drop(own.contiguous(), pass, i, first) : own;
  }
  // How many rows adapter i computes at a time: all, or kTokens where they are copied.
  int64_t chunk_of(const at::Tensor& rows, const at::Tensor& a, const SegmentPass& pass,
                   size_t i) const {
    const bool copies = drops(pass, i) || rows.scalar_type() != a.scalar_type();
    return copies ? std::min(kTokens, rows.size(0)) : rows.size(0);
  }
  template <class F>
  void each_chunk(const at::Tensor& rows, const at::Tensor& a, const SegmentPass& pass, size_t i,
                  const F& visit) const {
    const int64_t all = rows.size(0), most = chunk_of(rows, a, pass, i);
    for (int64_t first = 0; first < all; first += most) visit(first, std::min(most, all - first));
  }
  // Computes the wanted gradients of adapter i's A and B; returns that of x A^T where gx is wanted.
  at::Tensor adapter_back(Backward& back, const at::Tensor& x, size_t i) const {
    const size_t place = static_cast<size_t>(linear_->parameters()) + 2 * i;
    const bool want_a = back.want_parameters[place], want_b = back.want_parameters[place + 1];
    if (!want_a && !want_b && !back.want_input) return {};
    const at::Tensor a = a_of(back.weights, i), b = b_of(back.weights, i);
    const double scale = adapters_[i].scale;
    const at::Tensor gy = part_of(as_rows(back.gy), back.weights, i);
    const at::Tensor hidden = at::empty({gy.size(0), a.size(0)}, a.options());
    const bool several = chunk_of(gy, a, back.pass, i) < gy.size(0);
    Sum ga(want_a, a, several), gb(want_b, b, several);
    each_chunk(gy, a, back.pass, i, [&](int64_t first, int64_t count) {
      const at::Tensor g = gy.narrow(0, first, count).to(a.scalar_type());
      at::Tensor gh = hidden.narrow(0, first, count);
      at::mm_out(gh, g, b).mul_(scale);
      if (!want_a && !want_b) return;
      const at::Tensor own = read(x, a, back.pass, i, first, count);
      if (want_a) ga.add(gh.t(), own, 1);
      if (want_b) gb.add(g.t(), own.mm(a.t()), scale);
    });
    back.gparameters[place] = ga.value();
    if (want_a && zeros_ > 0) back.gparameters[place].narrow(1, a.size(1) - zeros_, zeros_).zero_();
    back.gparameters[place + 1] = gb.value();
    return back.want_input ? hidden : at::Tensor();
  }

  std::shared_ptr<const Stage> linear_;
  int64_t parts_, zeros_;
  std::vector<LowRankAdapter> adapters_;
};

}  // namespace

std::shared_ptr<const Stage> adapted_linear_stage(const LinearOptions& options,
                                                  std::vector<LowRankAdapter> adapters) {
  return std::make_shared<AdaptedLinearStage>(options, std::move(adapters));
}

}  // namespace compact
