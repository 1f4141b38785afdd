// SPDX-License-Identifier: Apache-2.0
#include "compact/python/projected.h"

#include <ATen/ATen.h>

#include <utility>

#include "compact/base/check.h"
#include "compact/base/philox.h"

namespace compact {

Projected::Projected(const std::string& treatment, const std::string& name, int64_t in,
                     int64_t products, int64_t seed)
    : settings_(treatment, name, in, products, seed) {
  const Spec spec = Spec::parse(treatment);
  COMPACT_CHECK(spec.name == "project", "grad `", name, "` = ", spec.str(),
                ": must be `full` or `project`; in Python requires_grad_(False) freezes a weight");
  COMPACT_CHECK(!spec.flag("release", false), "grad `", name, "` = ", spec.str(),
                ": release=true, updates inside the backward pass, is for the C++ program");
  rate_ = lr_scale_of(spec);
  shape_ = std::make_shared<Carrier>();
  try {
    shape_->in = in;
    shape_->rank = resolve_rank(spec.number("rank", 0.25), in);
  } catch (const InputError& e) {
    fail("grad `", name, "` = ", spec.str(), ": ", e.what());
  }
  COMPACT_CHECK(products == 1 || spec.flag("share", true), "grad `", name, "` = ", spec.str(),
                ": share=false, a projection for each of several products, is for the C++ program");
  shape_->projections.resize(1);
  shape_->type = spec.text("type", "srht");
  shape_->period = spec.integer("period", 200);
  COMPACT_CHECK(shape_->period >= 0, "grad `", name, "` = ", spec.str(),
                ": period must not be negative, is ", shape_->period);
  shape_->scale = spec.number("scale", 1);
  shape_->carry = spec.flag("carry", true);
  shape_->key = derive(static_cast<uint64_t>(seed), label_of(name.data(), name.size()));
  // Once, so that a type that cannot be is an error before anything runs.
  make_projection(shape_->type, in, shape_->rank, shape_->key, at::device(at::kCPU));
}

std::string Projected::text() const {
  return cat(std::get<1>(settings_), " = ", shape_->type, ":rank=", shape_->rank,
             ",period=", shape_->period, ",scale=", shape_->scale, ",carry=", shape_->carry, " of ",
             shape_->in, ", seed ", std::get<4>(settings_));
}

int64_t Projected::draw() const {
  const std::lock_guard lock(mutex_);
  return draw_;
}

void Projected::redraw(int64_t draw) {
  const std::lock_guard lock(mutex_);
  COMPACT_CHECK(draw >= 0, "[projected] number of a draw must not be negative, is ", draw);
  if (draw == draw_) return;
  // Carriers of graphs among them, which then notice in their backward pass.
  for (auto& [place, carrier] : drawn_) {
    carrier->redraw(draw, at::device(at::Device(place.first)).dtype(place.second));
  }
  draw_ = draw;
}

std::shared_ptr<const Carrier> Projected::carrier(at::Device device, at::ScalarType type) {
  const std::lock_guard lock(mutex_);
  type_ = type;
  return drawn(device, type);
}

std::shared_ptr<Carrier> Projected::drawn(at::Device device, at::ScalarType type) {
  std::shared_ptr<Carrier>& drawn = drawn_[{device.str(), type}];
  if (!drawn) {
    auto fresh = std::make_shared<Carrier>(*shape_);
    fresh->rows = {0};  // the reader has its own
    fresh->redraw(draw_, at::device(device).dtype(type));
    drawn = std::move(fresh);
  }
  return drawn;
}

std::shared_ptr<Carrier> Projected::carrier_of(const at::Tensor& weight) {
  const std::lock_guard lock(mutex_);
  // It has the type that gradients were made with.
  auto own =
      std::make_shared<Carrier>(*drawn(weight.device(), type_.value_or(weight.scalar_type())));
  own->rows = {weight.size(0)};
  return own;
}

}  // namespace compact
