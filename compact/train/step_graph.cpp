// SPDX-License-Identifier: Apache-2.0
#include "compact/train/step_graph.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "compact/base/check.h"
#include "compact/train/plans.h"

namespace compact {
namespace {

constexpr int64_t kStepsBefore = 2;  // which warm up what is made once, and show what a step takes

std::vector<at::Tensor> tensors_of(const Batch& batch) {
  std::vector<at::Tensor> all = {batch.input, batch.target};
  all.insert(all.end(), batch.more.begin(), batch.more.end());
  return all;
}
std::vector<at::Tensor> tensors_of(const StepInputs& inputs) {
  std::vector<at::Tensor> all = {inputs.inputs[0], inputs.target};
  all.insert(all.end(), inputs.inputs.begin() + 1, inputs.inputs.end());
  return all;
}

}  // namespace

StepGraph::StepGraph(at::Device device) : device_(device) {
  if (!device.is_cuda()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  stream_.emplace(guard.getStreamFromGlobalPool(device));
}

void StepGraph::check(const TrainConfig& c, int64_t ranks, const Task& task, const Policy& policy,
                      const Optimizer& optimizer) {
  constexpr const char* kRule = "--cuda_graph: ";
  COMPACT_CHECK(task_named(c.task).use == ModelUse::kTokens && !task.lengths_vary, kRule,
                "only steps of language models on blocks of one length are alike, the task is ",
                c.task);
  COMPACT_CHECK(ranks == 1, kRule, "gradients of ", ranks, " ranks are summed between passes");
  const std::string why = optimizer.cannot_replay();
  COMPACT_CHECK(why.empty(), kRule, why, ", which another step does otherwise");
  std::vector<Operation> operations;
  Plans(c, task, c10::kCUDA).plan(policy, &operations);
  for (const Operation& o : operations) {
    COMPACT_CHECK(!o.host, kRule, "a step has copies between GPU and host");
    COMPACT_CHECK(!o.codec && !o.random && o.name != "dropout", kRule, "a step has `", o.name,
                  "`, whose random bits are others in every step");
  }
}

bool StepGraph::run(const Network& network, Optimizer& optimizer, const StepSettings& settings,
                    const std::vector<Batch>& batches, RunProgress& progress) {
  Form form{.micro_batches = settings.accumulation, .loss_scale = settings.loss_scale, .sizes = {}};
  for (const Batch& batch : batches) {
    for (const at::Tensor& t : tensors_of(batch)) form.sizes.push_back(t.sizes().vec());
  }
  alike_ = form == latest_ ? alike_ + 1 : 1;
  latest_ = form;
  const bool fits = recording_ && form == recorded_;
  // A recording holds what a step takes, which one that is launched needs, too.
  if (!fits) forget();
  // One that ended half-way before this process goes on where it was.
  if (settings.first != 0 || (!fits && alike_ <= kStepsBefore)) return false;
  if (!fits) {
    record(network, optimizer, settings, batches);
    recorded_ = form;
  } else {
    for (size_t i = 0; i < batches.size(); ++i) {
      const auto from = tensors_of(inputs_of(batches[i], device_)), to = tensors_of(inputs_[i]);
      for (size_t j = 0; j < to.size(); ++j) to[j].copy_(from[j], /*non_blocking=*/true);
    }
  }
  const int64_t updates = optimizer.updates();
  recording_->replay();
  ++replays_;
  if (fits && optimizer.updates() == updates) optimizer.replayed();
  for (const at::Tensor& loss : losses_) progress.add_loss(loss);
  progress.add_norm(norm_);
  return true;
}

void StepGraph::forget() {
  recording_.reset();
  losses_.clear();
  inputs_.clear();
  norm_ = at::Tensor();
}

void StepGraph::record(const Network& network, Optimizer& optimizer, const StepSettings& settings,
                       const std::vector<Batch>& batches) {
  for (const Batch& batch : batches) {
    StepInputs inputs = inputs_of(batch, device_);
    // Not the data set's own memory, which a CPU's batches may be.
    for (at::Tensor& t : inputs.inputs) t = t.clone();
    inputs.target = inputs.target.clone();
    inputs_.push_back(std::move(inputs));
  }
  StepHooks hooks;
  hooks.before_backward = [this](const at::Tensor& loss) { losses_.push_back(loss.detach()); };
  hooks.before_update = [this](const at::Tensor& norm) { norm_ = norm; };
  auto recording = device_.is_cuda() ? cuda_recording(device_) : plain_recording();
  recording->record([this, &network, &optimizer, settings, hooks] {
    losses_.clear();
    train_step(
        network, optimizer, settings,
        [this](int64_t micro) { return inputs_[static_cast<size_t>(micro)]; }, hooks);
  });
  recording_ = std::move(recording);
}

}  // namespace compact
