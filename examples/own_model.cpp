// SPDX-License-Identifier: Apache-2.0
// A network of one's own made of segments, one of whose operations is one's own, trained under a
// byte budget: the fastest policy that fits is searched for, and the peak is what was planned.
#include <cstdio>
#include <memory>

#include <ATen/ATen.h>

#include "compact/compact.h"

namespace {

using namespace compact;

constexpr int64_t kWidth = 256, kBatch = 2048, kBlocks = 4;

// y = tanh(x). Its backward pass reads what it gave and nothing else, so that a policy may hold
// that, or rebuild it from what it was made of.
class TanhStage final : public Stage {
 public:
  Needs needs() const override { return {.output = true}; }
  at::Tensor forward(Forward& f) const override {
    return f.overwrite ? f.input.tanh_() : f.input.tanh();
  }
  at::Tensor backward(Backward& b) const override {
    return b.plus_residual(at::tanh_backward(b.gy, b.output));
  }
};

// x + W2 tanh(W1 x), four times; the loss is the square of the distance to the target.
class Residuals final : public Network {
 public:
  Residuals(const Policy& policy, at::Device device) : Network(policy, {.device = device}) {
    for (int64_t i = 0; i < kBlocks; ++i) {
      const std::string name = cat("blocks.", i);
      const auto slot = [&](const char* what, Role role) {
        return slot_of(policy, cat(name, ".", what), role, kWidth);
      };
      Part& part = add_part(name, slot("input", Role::kInput));
      part.add(linear_stage({}), {matrix(name + ".up")});
      part.add(std::make_shared<TanhStage>(), {}, slot("tanh", Role::kActivation));
      part.add(linear_stage({}), {matrix(name + ".down")});
      part.segment.add_residual(0);
      part.segment.finish();
    }
    treat_parameters();
  }

  at::Tensor loss(const Tensors& inputs, const at::Tensor& target, const Pass& pass,
                  PassReport* report) const override {
    at::Tensor x = inputs[0];
    for (const auto& part : parts()) x = part->run(std::move(x), pass.of_segments(), report);
    return (x - target).square().sum() * pass.scale;
  }
  Score score(const Tensors& inputs, const at::Tensor& target, const at::Tensor&) const override {
    const at::Tensor sum = loss(inputs, target, {.training = false}, nullptr);
    return {.loss = sum.item<double>(), .targets = target.size(0)};
  }
  std::vector<std::pair<std::string, at::Tensor>> named_tensors() const override {
    std::vector<std::pair<std::string, at::Tensor>> all;
    for (const Parameter* p : parameters()) all.emplace_back(p->name, p->weight.detach());
    return all;
  }

 private:
  const Parameter* matrix(const std::string& name) {
    return parameter(name, normal(name, {kWidth, kWidth}, 0.05), true);
  }
};

StepInputs batch_on(at::Device device) {
  const at::Tensor x = at::randn({kBatch, kWidth}, at::device(device));
  return {{x}, x.neg()};
}

}  // namespace

int main() {
  install_counting_allocator();  // before the first tensor: bytes are counted from here on
  const auto step = [](const Policy& policy) {
    return StepRequest{
        .network = [policy](at::Device d) { return std::make_unique<Residuals>(policy, d); },
        .micro_batch = [](at::Device d, int64_t) { return batch_on(d); },
        .step = {.clip = false}};
  };
  const int64_t whole = plan_step(step(Policy::parse("slot * = keep", "all"))).memory.peak;
  // Speeds decide which of the policies that fit is the fastest: here stated, 100 GFLOP/s.
  BudgetSearch search(step, {}, stated_speed(SegmentGroups(step(Policy())), 1e11, 1e10));
  const int64_t budget = (whole + search.least_peak()) / 2;
  const auto chosen = search.find(budget);
  if (!chosen) return 1;
  std::printf("peak of all kept %s, budget %s; chosen:\n%s", format_bytes(whole).c_str(),
              format_bytes(budget).c_str(), chosen->policy.str().c_str());

  const StepRequest request = step(chosen->policy);
  const auto network = request.network(at::kCPU);
  Optimizer optimizer(network->trained(), request.optimizer);
  double first = 0, last = 0;
  for (uint64_t i = 0; i < 10; ++i) {
    const StepInputs batch = batch_on(at::kCPU);
    at::Tensor mean = network->loss(batch.inputs, batch.target,
                                    {.scale = 1.0 / (kBatch * kWidth), .noise = i}, nullptr);
    optimizer.begin_backward(1e-3);  // a policy may update weights inside the backward pass
    mean.backward();
    optimizer.step(1e-3, {});
    (i == 0 ? first : last) = mean.item<double>();
  }
  StepRecorder recorder(*network, optimizer);
  const StepMemory real = run_step(
      *network, optimizer, request.step, [](int64_t) { return batch_on(at::kCPU); }, recorder);
  std::printf("planned peak %s, measured %s; loss %.3f, then %.3f\n",
              format_bytes(chosen->plan.memory.peak).c_str(), format_bytes(real.peak).c_str(),
              first, last);
  return real.peak == chosen->plan.memory.peak && real.peak <= budget && last < first ? 0 : 1;
}
