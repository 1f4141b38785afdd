// SPDX-License-Identifier: Apache-2.0
// A network of one's own, made with torch::nn, whose saved tensors are held in 4 bits.
#include <cstdio>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/optim/adam.h>

#include "compact/base/text.h"
#include "compact/ops/scopes/saved_tensors.h"

int main() {
  namespace nn = torch::nn;
  nn::Sequential network(nn::Conv2d(nn::Conv2dOptions(3, 16, 3).padding(1)), nn::ReLU(),
                         nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1)),
                         nn::ReLU(), nn::AdaptiveAvgPool2d(4), nn::Flatten(), nn::Linear(512, 2));
  torch::optim::Adam adam(network->parameters(), 1e-3);
  const at::Tensor images = at::randn({64, 3, 32, 32}), labels = images.mean({1, 2, 3}).gt(0);

  compact::SavedTensorOptions options;
  for (const auto& p : network->named_parameters())
    options.parameters.emplace_back(p.key(), p.value());
  double loss = 0;
  for (int step = 0; step < 40; ++step) {
    options.noise = static_cast<uint64_t>(step);
    const compact::SavedTensorScope scope(compact::Policy::preset("gact-l1"), options);
    at::Tensor mean = at::cross_entropy_loss(network->forward(images), labels.to(at::kLong));
    if (step == 0) {
      const compact::SavedTensorReport report = scope.report();
      std::printf("%s saved, held in %s\n", compact::format_bytes(report.bytes()).c_str(),
                  compact::format_bytes(report.stored()).c_str());
    }
    adam.zero_grad();
    mean.backward();
    adam.step();
    loss = mean.item<double>();
  }
  std::printf("loss %.3f\n", loss);
  return loss < 0.68 ? 0 : 1;
}
