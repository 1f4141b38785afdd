// SPDX-License-Identifier: Apache-2.0
// Training steps in a program of one's own: what a step will take, twenty of them, and a folder of
// the model that transformers loads.
#include <cstdio>
#include <filesystem>
#include <memory>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "compact/compact.h"

int main() {
  using namespace compact;
  install_counting_allocator();  // before the first tensor: bytes are counted from here on
  // Or read_model("folder of Hugging Face", ModelUse::kTokens), whatever its type.
  const auto config = model_named("llama-tiny", ModelUse::kTokens).config->clone();
  ModelShape shape = config->shape();
  shape.tokens.vocabulary = 257;
  config->fit(shape);
  const Policy policy = Policy::preset("compact");  // or Policy::parse("slot ... = recompute", "")

  const auto on = [&](at::Device device) {
    return config->build(policy, {.device = device, .max_length = 64});
  };
  const StepPlan plan =
      plan_step({.network = on, .micro_batch = [](at::Device device, int64_t) {
                   const at::Tensor ids = at::zeros({8, 64}, at::device(device).dtype(at::kLong));
                   return StepInputs{{ids}, ids};
                 }});
  std::printf("planned peak %s, in %s\n", format_bytes(plan.memory.peak).c_str(),
              str(plan.memory.at_peak.moment).c_str());

  const auto model = config->build(policy, {.max_length = 64, .seed = 1});
  Optimizer optimizer(model->trained(), OptimizerOptions());
  const at::Tensor ids = at::arange(8 * 64, at::kLong).remainder(97).view({8, 64});
  const at::Tensor targets = (ids + 1).remainder(97);
  double loss = 0;
  for (uint64_t step = 0; step < 20; ++step) {
    reset_peak(at::kCPU);
    // Random bits of codecs and of dropout come from the noise: another one at every step.
    at::Tensor mean = model->loss(
        {ids}, targets, {.scale = 1.0 / static_cast<double>(targets.numel()), .noise = step});
    mean.backward();
    optimizer.step(1e-2, Optimizer::clip_factor(optimizer.gradient_norm(), 1.0));
    loss = mean.item<double>();
    if (step % 5 == 0) std::printf("step %d  loss %.3f\n", static_cast<int>(step), loss);
  }
  std::printf("measured peak %s, loss %.3f\n", format_bytes(peak_bytes(at::kCPU)).c_str(), loss);

  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / "compact-train-step";
  std::filesystem::create_directories(folder);
  write_model_folder(folder, model->named_tensors(), config->to_json("float32"));
  // As a program begins that goes on from a folder.
  const auto again = read_model(folder, ModelUse::kTokens)->build(policy, {.max_length = 64});
  {
    const at::NoGradGuard no_grad;
    const ModelWeights weights(folder);
    for (auto& [name, tensor] : again->named_tensors()) weights.read_into(name, tensor);
  }
  const double before = model->score({ids}, targets).loss,
               after = again->score({ids}, targets).loss;
  std::filesystem::remove_all(folder);
  return loss < 3 && before == after ? 0 : 1;
}
