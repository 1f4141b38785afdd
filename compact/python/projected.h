// SPDX-License-Identifier: Apache-2.0
// Random projections of the gradients of products that read one input (CompAct, arXiv 2410.15352),
// of weights that another program owns: what a block projects with, and the updates in the
// projected space.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "compact/codecs/parameter.h"
#include "compact/optim/optimizer.h"

namespace compact {

using UpdateNumbers = c10::Dict<std::string, double>;  // of an optimizer's step: lr, beta1, ...

// Many threads may use one.
class Projected final : public torch::CustomClassHolder {
 public:
  // `treatment`: project:rank=0.25,..., as policies have it. `name`: layers.3.attn.qkv, which with
  // the seed says what is drawn. `in`: the width of the input, of so many products. Throws
  // InputError on settings that cannot be, and on those for the C++ program alone (release, and
  // share=false of several products).
  Projected(const std::string& treatment, const std::string& name, int64_t in, int64_t products,
            int64_t seed);

  // The arguments that it was made from.
  using Settings = std::tuple<std::string, std::string, int64_t, int64_t, int64_t>;
  const Settings& settings() const { return settings_; }
  // Describes its draws: equal texts mean equal projections, under any wording of the policy.
  std::string text() const;
  int64_t rank() const { return shape_->rank; }
  int64_t period() const { return shape_->period; }  // updates between draws; 0: there is one draw
  double rate() const { return rate_; }              // multiplies the learning rate
  int64_t draw() const;
  // Draws projections number `draw`: of the passes to come.
  void redraw(int64_t draw);

  // One update of a weight whose gradient [out, rank] is projected, by the optimizer `kind`, with
  // moments of the gradient's shape: the step is made in the projected space and added to the
  // weight, [out, in] or, `transposed`, [in, out]. Where this update is the last of a period, the
  // moments follow into the projection of the next one; redraw() is to be called after the updates
  // of all that share the projection. The rest as of torch.ops.compact.update_parameters.
  void update(const std::string& kind, const at::Tensor& weight, const at::Tensor& grad,
              const std::optional<at::Tensor>& m, const std::optional<at::Tensor>& v,
              const std::optional<at::Tensor>& m_scales, const std::optional<at::Tensor>& v_scales,
              const std::optional<at::Tensor>& master, int64_t step, int64_t index, int64_t seed,
              const std::optional<at::Tensor>& grad_scale, const UpdateNumbers& numbers,
              bool transposed);

  // A carrier that has widths alone.
  std::shared_ptr<Carrier> shape() const { return shape_; }
  // The projection in force, f32 [in, rank].
  at::Tensor matrix(at::Device device, at::ScalarType type) {
    const std::lock_guard lock(mutex_);
    return drawn(device, type)->projections[0]->matrix();
  }
  // With the projection in force, for products on this device of this type.
  std::shared_ptr<const Carrier> carrier(at::Device device, at::ScalarType type);
  // The same as a weight's own, which may be drawn again.
  std::shared_ptr<Carrier> carrier_of(const at::Tensor& weight);

 private:
  std::shared_ptr<Carrier> drawn(at::Device device, at::ScalarType type);

  Settings settings_;
  double rate_ = 1;
  std::shared_ptr<Carrier> shape_;
  mutable std::mutex mutex_;
  using Place = std::pair<std::string, at::ScalarType>;  // a device, and the type of products there
  std::map<Place, std::shared_ptr<Carrier>> drawn_;      // all of the draw in force
  std::optional<at::ScalarType> type_;                   // of the products of the latest pass
  int64_t draw_ = 0;
};

}  // namespace compact
