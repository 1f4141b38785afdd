// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "compact/codecs/launch.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

class LinearStage final : public Stage {
 public:
  explicit LinearStage(const LinearOptions& options) : options_(options) {}

  Needs needs() const override { return {.input = true}; }
  int parameters() const override { return static_cast<int>(parts() * (options_.bias ? 2 : 1)); }
  Work work(const at::Tensor& input, const at::Tensor& output, Weights weights,
            const Pass&) const override {
    double bytes = static_cast<double>(input.nbytes() + output.nbytes());
    for (size_t i = 0; i < parts(); ++i) bytes += static_cast<double>(weights[i].value.nbytes());
    return {.products = 2.0 * static_cast<double>(output.numel() * input.size(-1)),
            .bytes = bytes,
            .inner = input.size(-1)};
  }
  int reads_input_for() const override { return static_cast<int>(options_.parts); }
  bool may_project() const override { return true; }
  bool by_token() const override { return true; }
  int64_t sketch_width() const override { return options_.sketch_width; }

  at::Tensor forward(Forward& f) const override {
    const at::Tensor x = f.pass.as(f.input, f.weights[0].value.scalar_type());
    for (size_t i = 0; i < f.weights.size(); ++i) {
      check_like("linear", x, {{i < parts() ? "weight" : "bias", f.weights[i].value}});
    }
    if (f.sketch) f.extras = f.weights[0].carrier->project(x);
    if (parts() == 1) {
      const Fetched there(f.weights, 0, /*backward=*/false);
      at::Tensor y = at::linear(x, f.weights[0].value);
      return f.pass.as_product(options_.bias ? y.add_(f.weights[1].value) : y);
    }
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = 0;
    for (size_t i = 0; i < parts(); ++i) sizes.back() += f.weights[i].value.size(0);
    at::Tensor y = at::empty(sizes, x.options());
    const at::Tensor rows = rows_of(x);
    each_part(y, f.weights, [&](size_t i, at::Tensor part) {
      const Fetched there(f.weights, i, /*backward=*/false);
      at::mm_out(part, rows, f.weights[i].value.t());
      if (options_.bias) part.add_(f.weights[parts() + i].value);
    });
    return f.pass.as_product(y);
  }

  at::Tensor backward(Backward& b) const override {
    const at::ScalarType type = b.weights[0].value.scalar_type();
    b.gy = b.pass.as(b.gy, type);
    const bool wanted =
        std::any_of(b.want_parameters.begin(), b.want_parameters.begin() + options_.parts,
                    [](bool each) { return each; });
    if (wanted && b.weights[0].carrier) {
      project_gradients(b, type);
    } else if (wanted) {
      const at::Tensor x = rows_of(b.pass.as(b.input, type));
      b.input = at::Tensor();
      each_part(b.gy, b.weights, [&](size_t i, const at::Tensor& gy) {
        if (!b.want_parameters[i]) return;
        const at::Tensor gw = b.gparameters[i] = gy.t().mm(x);
        if (options_.zeros > 0) gw.narrow(1, gw.size(1) - options_.zeros, options_.zeros).zero_();
      });
    }
    b.input = at::Tensor();
    if (options_.bias) {
      each_part(b.gy, b.weights, [&](size_t i, const at::Tensor& gy) {
        if (b.want_parameters[parts() + i]) b.gparameters[parts() + i] = gy.sum(0);
      });
    }
    if (!b.want_input) return {};
    at::Tensor gx;
    if (parts() == 1) {
      const Fetched there(b.weights, 0, /*backward=*/true);
      gx = at::matmul(b.gy, b.weights[0].value);
    } else {
      std::vector<int64_t> sizes = b.gy.sizes().vec();
      sizes.back() = b.weights[0].value.size(1);
      gx = at::empty(sizes, b.gy.options());
      at::Tensor rows = rows_of(gx);
      each_part(b.gy, b.weights, [&](size_t i, const at::Tensor& gy) {
        const Fetched there(b.weights, i, /*backward=*/true);
        if (i == 0) {
          at::mm_out(rows, gy, b.weights[i].value);
        } else {
          rows.addmm_(gy, b.weights[i].value);
        }
      });
    }
    b.gy = at::Tensor();
    return b.plus_residual(b.pass.as_product(gx));
  }

 private:
  // While it lives, the matrix of a part is in memory, of those that products fetch.
  struct Fetched : FetchedWeights {
    Fetched(Weights all, size_t part, bool backward)
        : FetchedWeights(all.subspan(part, 1), backward, /*by_product=*/true) {}
  };
  size_t parts() const { return static_cast<size_t>(options_.parts); }

  // Calls visit(i, rows [tokens, out of part i]) with the columns of y that part i makes.
  template <class F>
  void each_part(const at::Tensor& y, Weights weights, const F& visit) const {
    const at::Tensor rows = rows_of(y);
    int64_t first = 0;
    for (size_t i = 0; i < parts(); ++i) {
      const int64_t out = weights[i].value.size(0);
      visit(i, rows.narrow(1, first, out));
      first += out;
    }
  }

  // All parts have one carrier, and one projection.
  void project_gradients(Backward& b, at::ScalarType type) const {
    const Carrier& carrier = *b.weights[0].carrier;
    const Tensors z = b.sketch ? *b.extras : carrier.project(b.pass.as(b.input, type));
    b.input = at::Tensor();
    if (parts() == 1) {
      b.gparameters[0] = carrier.gradient(rows_of(b.gy), z);
      return;
    }
    each_part(b.gy, b.weights, [&](size_t i, const at::Tensor& gy) {
      if (b.want_parameters[i]) b.gparameters[i] = gy.t().mm(z[0]);
    });
  }

  LinearOptions options_;
};

}  // namespace

std::shared_ptr<const Stage> linear_stage(const LinearOptions& options) {
  return std::make_shared<LinearStage>(options);
}

}  // namespace compact
