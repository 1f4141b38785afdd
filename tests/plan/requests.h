// SPDX-License-Identifier: Apache-2.0
// Small models to plan, and the same step run for real.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "compact/models/encoder/encoder.h"
#include "compact/models/llama/llama.h"
#include "compact/ops/memory/memory.h"
#include "compact/plan/search.h"

namespace compact {

// While it lives.
struct OneThread {
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before); }
  const int before = at::get_num_threads();
};

struct TestStep {
  int64_t batch = 1, length = 1;  // of a micro-batch; length: tokens of a sequence
  int64_t accumulation = 1;
  bool clip = true;
};

// A step of a LLaMA.
struct PlanRequest {
  LlamaConfig shape;
  Policy policy;
  at::ScalarType dtype = at::kFloat;
  // The optimizer's options, given the policy that says how moments are held.
  std::function<OptimizerOptions(const Policy&)> optimizer;
  TestStep step;
  c10::DeviceType device = c10::kCPU;
};

inline StepRequest step_request(const PlanRequest& r) {
  return {.network =
              [r](at::Device device) {
                return std::make_unique<Llama>(
                    r.shape, r.policy,
                    NetworkOptions{.device = device,
                                   .dtype = r.dtype,
                                   .max_length = r.step.length,
                                   .offload_folder = "."});  // the tests' own, on a disk
              },
          .micro_batch =
              [r](at::Device device, int64_t i) {
                const auto ids = at::TensorOptions().device(device).dtype(at::kLong);
                const std::vector<int64_t> sizes = {r.step.batch, r.step.length};
                return StepInputs{{at::full(sizes, i + 1, ids)}, at::full(sizes, i + 2, ids)};
              },
          .optimizer = r.optimizer(r.policy),
          .step = {.accumulation = r.step.accumulation, .clip = r.step.clip},
          .device = r.device};
}
inline StepPlan plan_step(const PlanRequest& request) { return plan_step(step_request(request)); }

// The same step under another policy.
inline PlanRequest with_policy(PlanRequest r, const Policy& policy) {
  r.policy = policy;
  return r;
}

inline Speed stated_speed(const PlanRequest& r, double products, double bytes) {
  return stated_speed(SegmentGroups(step_request(r)), products, bytes);
}

// The options of a network's segments, by their groups; `error_cost`: with codecs, see
// rounded_options.
inline std::vector<std::vector<SegmentOption>> options_of(const StepRequest& r, const Speed& speed,
                                                          std::optional<double> error_cost = {}) {
  const SegmentGroups groups(r);
  std::vector<std::vector<SegmentOption>> all;
  for (const SegmentInfo& info : groups.segments()) {
    if (info.group < all.size()) continue;
    const OptionSettings settings{.info = info,
                                  .sample = groups.samples()[info.group],
                                  .seconds = speed.segments[info.group],
                                  .bytes_per_second = speed.bytes_per_second,
                                  .micro = static_cast<double>(r.step.accumulation)};
    all.push_back(exact_options(settings));
    if (error_cost) all.back() = rounded_options(settings, all.back(), *error_cost);
  }
  return all;
}
// The options of a LLaMA's blocks.
inline std::vector<SegmentOption> block_options(const PlanRequest& r, const Speed& speed,
                                                std::optional<double> error_cost = {}) {
  return options_of(step_request(r), speed, error_cost)[0];
}

inline BudgetSearch planner_of(const BudgetSearch::Step& step, Allowed allowed,
                               const Speed& speed) {
  return {step, allowed, speed};
}
inline BudgetSearch planner_of(const PlanRequest& r, Allowed allowed, const Speed& speed) {
  return planner_of([r](const Policy& p) { return step_request(with_policy(r, p)); }, allowed,
                    speed);
}

inline PlanRequest small_request(const std::string& policy, at::ScalarType type, TestStep step,
                                 LlamaConfig shape, const OptimizerInfo& kind = adamw_optimizer) {
  PlanRequest r;
  r.shape = shape;
  r.policy = policy.find('=') == std::string::npos ? Policy::preset(policy)
                                                   : Policy::parse(policy, "test");
  r.dtype = type;
  r.optimizer = [type, kind = &kind, sums = step.accumulation > 1](const Policy& p) {
    OptimizerOptions o;
    o.f32_sums = sums;
    o.kind = kind;
    o.weight_decay = 0.1;
    o.moment = [type, p](const Parameter& q) {
      const std::string moment = p.moment(q.name);
      return moment.empty() ? std::string(type == at::kFloat ? "f32" : "bf16") : moment;
    };
    o.offload_folder = ".";  // the tests' own, on a disk
    return o;
  };
  r.step = step;
  return r;
}

inline LlamaConfig small_shape(int64_t layers = 2) {
  return {.block = block_shape(64, 172, 4, 2, 16), .num_hidden_layers = layers, .vocab_size = 512};
}

inline EncoderConfig small_encoder() {
  EncoderConfig c;
  c.hidden_size = 64;
  c.intermediate_size = 256;
  c.num_hidden_layers = 3;
  c.num_attention_heads = 4;
  c.vocab_size = 500;
  c.labels = {"a", "b"};
  return c;
}

// Whole sentences of an encoder.
inline std::vector<at::Tensor> encoder_inputs(at::Device device, int64_t batch, int64_t length) {
  const auto whole = at::device(device).dtype(at::kLong);
  return {at::ones({batch, length}, whole), at::zeros({batch, length}, whole),
          at::full({batch}, length, whole)};
}

inline LlamaConfig random_shape(std::mt19937& random) {
  const auto from = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % (high - low + 1));
  };
  LlamaConfig c;
  BlockShape& b = c.block;
  b.kv_heads = from(1, 2);
  b.heads = b.kv_heads * from(1, 3);
  b.head_dim = 2 * from(4, 16);
  b.hidden = b.heads * b.head_dim;
  b.intermediate = from(20, 200);
  c.num_hidden_layers = from(1, 3);
  c.vocab_size = from(50, 3000);
  c.tie_word_embeddings = random() % 2 == 0;
  return c;
}

// The same with what other decoders have.
inline LlamaConfig random_decoder(std::mt19937& random) {
  LlamaConfig c = random_shape(random);
  const auto sometimes = [&] { return random() % 3 == 0; };
  c.block.head_norms = sometimes();
  c.block.qkv_bias = sometimes(), c.block.out_bias = sometimes(), c.block.mlp_bias = sometimes();
  if (sometimes()) c.rope.partial = 0.5;
  if (c.block.head_dim % 4 != 0) c.rope.partial = 1;
  if (sometimes()) {
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) c.rope_layers.push_back(random() % 2 == 0);
  }
  if (sometimes()) c.embedding_multiplier = 3, c.block.residual = 0.5, c.logits_scaling = 2;
  if (sometimes()) c.block.scale = 0.3;
  if (sometimes())
    c.rope.kind = RopeKind::kDynamic, c.rope.factor = 2, c.max_position_embeddings = 20;
  if (sometimes()) c.pad_token_id = 1;
  return c;
}

// The step that the plan is for, on the CPU: the second, when moments and gradients were there.
inline StepMemory run_for_real(const StepRequest& r) {
  const StepInputs resident = r.resident ? r.micro_batch(at::kCPU, 0) : StepInputs();
  const int64_t outside = live_bytes(at::kCPU);
  const auto network = r.network(at::kCPU);
  Optimizer optimizer(network->trained(), r.optimizer);
  StepRecorder recorder(*network, optimizer);
  const auto batch = [&](int64_t i) { return r.resident ? resident : r.micro_batch(at::kCPU, i); };
  run_step(*network, optimizer, r.step, batch, recorder, outside);
  return run_step(*network, optimizer, r.step, batch, recorder, outside);
}
inline StepMemory run_for_real(const PlanRequest& r) { return run_for_real(step_request(r)); }

// All that is planned, but the peak.
inline void expect_equal_parts(const StepMemory& plan, const StepMemory& real,
                               const std::string& text) {
  EXPECT_EQ(plan.weights, real.weights) << text;
  EXPECT_EQ(plan.gradients, real.gradients) << text;
  EXPECT_EQ(plan.optimizer, real.optimizer) << text;
  EXPECT_EQ(plan.projections, real.projections) << text;
  EXPECT_EQ(plan.other, real.other) << text;
  EXPECT_EQ(plan.saved, real.saved) << text;
  EXPECT_EQ(plan.held, real.held) << text;
}

}  // namespace compact
