// SPDX-License-Identifier: Apache-2.0
// bench_weight_error [--threads N]: what pooling and quantizing the inputs of convolutions does to
// the gradients of their weights: ResNet-20 with its published weights on CIFAR-10 images, from
// $COMPACT_DATA (default ../shared/data). One line of CSV for each layer and treatment: relative
// error, the root of E|g' - g|^2 / |g|^2 over draws of the random bits, and the bytes held.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <cstdlib>
#include <map>

#include "bench/timing.h"
#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/data/images/images.h"
#include "compact/data/images/read_images.h"
#include "compact/io/safetensors.h"
#include "compact/models/resnet/resnet.h"

namespace {

using compact::cat;

std::string data_file(const std::string& name) {
  const char* const folder = std::getenv("COMPACT_DATA");
  return cat(folder ? folder : "../shared/data", "/", name);
}

constexpr int64_t kBatch = 128;
constexpr const char* kTreatments[] = {"pool:size=2",
                                       "pool:size=4",
                                       "pool:size=8",
                                       "quantize:bits=8",
                                       "quantize:bits=4",
                                       "quantize:bits=2",
                                       "pool:size=2+quantize:bits=8",
                                       "pool:size=2+quantize:bits=4"};

struct Step {
  std::map<std::string, at::Tensor> gradients;     // of weights of convolutions in blocks
  std::map<std::string, compact::SlotBytes> rows;  // of what they read, by the same names
};

// `layer1.0.conv2.weight` reads `layer1.0.relu1`, `layer1.0.conv1.weight` reads `layer1.0.input`.
std::string slot_of(const std::string& weight) {
  const size_t end = weight.rfind(".conv");
  const int number = weight[end + 5] - '0';
  return weight.substr(0, end) + (number == 1 ? ".input" : cat(".relu", number - 1));
}

Step step_of(const std::string& how, uint64_t noise, const compact::SafetensorsFile& weights,
             const at::Tensor& images, const at::Tensor& labels) {
  const compact::Policy policy = compact::Policy::parse(
      cat("slot * = keep\nslot layer*.{input,relu*} = ", how, "\n"), "bench");
  const compact::Resnet net(compact::named(compact::resnets(), "resnet20", "no model").config,
                            policy);
  {
    const at::NoGradGuard no_grad;
    for (auto& [name, tensor] : net.named_tensors()) tensor.copy_(weights.read(name));
  }
  compact::PassReport report;
  const compact::Pass pass{.scale = 1.0 / kBatch, .noise = noise};
  torch::autograd::backward({net.loss({images}, labels, pass, &report)}, {});
  Step step;
  for (const compact::Parameter* p : net.parameters()) {
    if (p->weight.dim() != 4 || p->name == "conv1.weight") continue;
    step.gradients[p->name] = p->weight.grad();
    for (const compact::SlotBytes& row : report.slots) {
      if (row.name == slot_of(p->name)) step.rows[p->name] = row;
    }
  }
  return step;
}

}  // namespace

int main(int argc, char** argv) {
  if (!Settings::begin(argc, argv)) return 2;
  try {
    const compact::SafetensorsFile weights(data_file("pretrained/resnet20-12fca82f.safetensors"));
    const compact::LabelledImages data =
        compact::read_cifar10(std::vector{data_file("vision/cifar10-lossless-4000.bin.gz")});
    // As the weights were trained.
    const at::Tensor mean = at::tensor({.485F, .456F, .406F}).view({1, 3, 1, 1}),
                     deviation = at::tensor({.229F, .224F, .225F}).view({1, 3, 1, 1});
    const at::Tensor images =
        (data.images.slice(0, 0, kBatch).to(at::kFloat) / 255 - mean) / deviation;
    const at::Tensor labels = data.labels.slice(0, 0, kBatch).to(at::kLong);
    const Step exact = step_of("keep", 0, weights, images, labels);
    std::printf("layer,treatment,relative error,bytes,bytes if kept\n");
    for (const std::string how : kTreatments) {
      const int draws = how.find("quantize") == std::string::npos ? 1 : 8;
      std::map<std::string, double> squares;
      Step step;
      for (int draw = 0; draw < draws; ++draw) {
        step = step_of(how, static_cast<uint64_t>(draw) + 1, weights, images, labels);
        for (const auto& [name, g] : exact.gradients) {
          const double off = (step.gradients.at(name) - g).norm().item<double>();
          squares[name] += off * off / draws;
        }
      }
      for (const auto& [name, g] : exact.gradients) {
        const compact::SlotBytes& row = step.rows.at(name);
        std::printf("%s,%s,%.5f,%lld,%lld\n", name.substr(0, name.rfind('.')).c_str(), how.c_str(),
                    std::sqrt(squares[name]) / g.norm().item<double>(),
                    static_cast<long long>(row.stored), static_cast<long long>(row.if_kept));
      }
    }
  } catch (const compact::InputError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
