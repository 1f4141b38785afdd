// SPDX-License-Identifier: Apache-2.0
// The same residual networks of plain operations, on the parameters of a Resnet: what autograd
// saves of them is what plain PyTorch saves.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <map>
#include <string>

#include "compact/models/resnet/resnet.h"

namespace compact {

// f(x) that keeps no more than x: the backward pass runs f again, as torch.utils.checkpoint does.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  using Block = std::function<at::Tensor(const at::Tensor&)>;
  struct Held : torch::CustomClassHolder {
    Block block;
    explicit Held(Block b) : block(std::move(b)) {}
  };
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const Block& block) {
    context->save_for_backward({x});
    context->saved_data["block"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(block));
    return block(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    const auto held = context->saved_data["block"].toCapsule();
    const at::AutoGradMode on(true);
    const at::Tensor y = static_cast<const Held&>(*held).block(x);
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

class PlainResnet {
 public:
  explicit PlainResnet(const Resnet& net) : config_(net.config()) {
    for (auto& [name, tensor] : net.named_tensors()) tensors_[name] = tensor;
    for (Parameter* p : net.parameters()) tensors_[p->name] = p->weight;
  }

  // `checkpoint`: every block is run again in the backward pass.
  at::Tensor forward(const at::Tensor& images, bool training, bool checkpoint = false) const {
    const bool small = config_.small_images;
    at::Tensor x = images.contiguous(at::MemoryFormat::ChannelsLast);
    x = layer("conv1", "bn1", x, small ? 1 : 2, training);
    at::relu_(x);
    if (!small) x = at::max_pool2d(x, 3, 2, 1);
    for (size_t stage = 0; stage < config_.blocks.size(); ++stage) {
      for (int64_t i = 0; i < config_.blocks[stage]; ++i) {
        const std::string name =
            "layer" + std::to_string(stage + 1) + "." + std::to_string(i) + ".";
        const auto run = [this, name, stride = stage > 0 && i == 0 ? 2 : 1, training](
                             const at::Tensor& in) { return block(name, in, stride, training); };
        x = checkpoint ? Checkpoint::apply(x, Checkpoint::Block(run)) : run(x);
      }
    }
    const std::string head = small ? "linear" : "fc";
    return at::linear(x.permute({0, 2, 3, 1}).mean({1, 2}), at(head + ".weight"),
                      at(head + ".bias"));
  }

 private:
  const at::Tensor& at(const std::string& name) const { return tensors_.at(name); }

  at::Tensor layer(const std::string& conv, const std::string& norm, const at::Tensor& x,
                   int64_t stride, bool training) const {
    const at::Tensor& w = at(conv + ".weight");
    const at::Tensor y = at::conv2d(x, w, {}, stride, w.size(2) / 2);
    return at::batch_norm(y, at(norm + ".weight"), at(norm + ".bias"), at(norm + ".running_mean"),
                          at(norm + ".running_var"), training, 0.1, 1e-5, false);
  }

  at::Tensor block(const std::string& name, const at::Tensor& x, int64_t stride,
                   bool training) const {
    const int layers = config_.bottleneck ? 3 : 2;
    at::Tensor y = x;
    for (int i = 1; i <= layers; ++i) {
      const std::string n = std::to_string(i);
      const bool strided = i == (config_.bottleneck ? 2 : 1);
      y = layer(name + "conv" + n, name + "bn" + n, y, strided ? stride : 1, training);
      if (i < layers) at::relu_(y);
    }
    at::Tensor through = x;
    if (tensors_.contains(name + "downsample.0.weight")) {
      through = layer(name + "downsample.0", name + "downsample.1", x, stride, training);
    } else if (stride != 1 || x.size(1) != y.size(1)) {
      const int64_t more = y.size(1) - x.size(1);
      through = at::constant_pad_nd(x.slice(2, 0, {}, stride).slice(3, 0, {}, stride),
                                    {0, 0, 0, 0, more / 2, more - more / 2});
    }
    y.add_(through);
    return at::relu_(y);
  }

  ResnetConfig config_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace compact
