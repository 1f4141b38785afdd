// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/parameter.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "compact/base/check.h"
#include "compact/base/philox.h"

namespace compact {

std::vector<at::Tensor> Carrier::project(const at::Tensor& x) const {
  std::vector<at::Tensor> z;
  z.reserve(projections.size());
  for (const ProjectionPtr& p : projections) z.push_back(p->apply(x));
  return z;
}

at::Tensor Carrier::gradient(const at::Tensor& gy, const std::vector<at::Tensor>& z) const {
  const at::NoGradGuard no_grad;
  if (z.size() == 1) return gy.t().mm(z[0]);
  at::Tensor g = at::empty({gy.size(1), rank}, gy.options());
  int64_t row = 0;
  for (size_t i = 0; i < z.size(); ++i) {
    at::Tensor part = g.narrow(0, row, rows[i]);
    at::mm_out(part, gy.narrow(1, row, rows[i]).t(), z[i]);
    row += rows[i];
  }
  return g;
}

at::Tensor zero_leaf(at::IntArrayRef sizes, at::TensorOptions options) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> one(sizes.size(), 1);
  return at::zeros(one, options).expand(sizes).requires_grad_(true);
}

void Carrier::redraw(int64_t number, at::TensorOptions options) {
  COMPACT_CHECK(number >= 0, "[carrier] number of a draw must not be negative, is ", number);
  const uint64_t drawn = derive(key, static_cast<uint64_t>(number));
  std::vector<ProjectionPtr> fresh;
  fresh.reserve(rows.size());
  for (size_t group = 0; group < rows.size(); ++group) {
    ProjectionPtr p = make_projection(type, in - zeros, rank, derive(drawn, group), options);
    fresh.push_back(beside_zeros(std::move(p), zeros));
  }
  projections = std::move(fresh);
  draw = number;
}

double lr_scale_of(const Spec& grad) {
  const double scale = grad.number("lr_scale", 1);
  COMPACT_CHECK(scale >= 0, "lr_scale must not be negative, is ", scale);
  return scale;
}

std::shared_ptr<Carrier> make_carrier(const Spec& grad, const std::string& name,
                                      const at::Tensor& weight, const std::vector<int64_t>& parts,
                                      uint64_t key, int64_t zeros) {
  if (grad.name != "project") return nullptr;
  auto carrier = std::make_shared<Carrier>();
  try {
    carrier->in = weight.size(1);
    carrier->zeros = zeros;
    carrier->rank = resolve_rank(grad.number("rank", 0.25), carrier->in - zeros);
  } catch (const InputError& e) {
    fail("grad `", name, "` = ", grad.str(), ": ", e.what());
  }
  const bool share = grad.flag("share", true);
  carrier->rows = share ? std::vector<int64_t>{weight.size(0)} : parts;
  carrier->type = grad.text("type", "srht");
  carrier->period = grad.integer("period", 200);
  carrier->scale = grad.number("scale", 1);
  carrier->carry = grad.flag("carry", true);
  carrier->key = key;
  const std::vector<int64_t> sizes = {weight.size(0), carrier->rank};
  carrier->value = grad.flag("dense", false)
                       ? at::zeros(sizes, weight.options()).requires_grad_(true)
                       : zero_leaf(sizes, weight.options());
  carrier->redraw(0, weight.options());
  return carrier;
}

at::Tensor padded(const at::Tensor& values, const std::vector<int64_t>& parts,
                  const ZeroPadding& padding) {
  std::vector<int64_t> sizes = values.sizes().vec();
  sizes[0] += static_cast<int64_t>(parts.size()) * padding.rows;
  if (padding.columns > 0) sizes[1] += padding.columns;
  const at::Tensor all = at::zeros(sizes, values.options());
  const at::Tensor columns = padding.columns > 0 ? all.narrow(1, 0, values.size(1)) : all;
  int64_t from = 0, to = 0;
  for (const int64_t part : parts) {
    const int64_t rows = part - padding.rows;
    columns.narrow(0, to, rows).copy_(values.narrow(0, from, rows));
    from += rows;
    to += part;
  }
  return all;
}

int64_t Parameter::count() const {
  if (weight.dim() == 0) return weight.numel();
  const int64_t rows = weight.size(0) - static_cast<int64_t>(parts.size()) * padding.rows;
  const int64_t row = weight.size(0) == 0 ? 0 : weight.numel() / weight.size(0);
  return rows * (row - padding.columns);
}

int64_t Parameter::weight_bytes() const {
  if (places.empty()) return static_cast<int64_t>(weight.nbytes());
  size_t bytes = weight.storage().nbytes();
  for (const WeightPlace& place : places) {
    for (const at::Tensor& t : place.home->held(weight)) bytes += t.storage().nbytes();
  }
  return static_cast<int64_t>(bytes);
}

void treat_gradient(Parameter& p, const Spec& grad, uint64_t key) {
  p.lr_scale = lr_scale_of(grad);
  p.release = grad.flag("release", false);
  p.carrier = make_carrier(grad, p.name, p.weight, p.parts, key, p.padding.columns);
  p.trained = grad.name != "frozen";
  p.weight.requires_grad_(p.trained && !p.carrier);
}

}  // namespace compact
