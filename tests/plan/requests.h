// SPDX-License-Identifier: Apache-2.0
// Small models to plan, and the same step run for real.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "compact/models/encoder.h"
#include "compact/ops/memory.h"
#include "compact/plan/request.h"

namespace compact {

inline PlanRequest small_request(const std::string& policy, at::ScalarType type, StepShape step,
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
      const Spec moment = p.moment(q.name);
      return moment.name.empty() ? std::string(type == at::kFloat ? "f32" : "bf16") : moment.name;
    };
    return o;
  };
  r.step = step;
  return r;
}

inline LlamaConfig small_shape(int64_t layers = 2) {
  LlamaConfig c;
  c.hidden_size = 64;
  c.intermediate_size = 172;
  c.num_hidden_layers = layers;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 16;
  c.vocab_size = 512;
  return c;
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
  c.num_key_value_heads = from(1, 2);
  c.num_attention_heads = c.num_key_value_heads * from(1, 3);
  c.head_dim = 2 * from(4, 16);
  c.hidden_size = c.num_attention_heads * c.head_dim;
  c.intermediate_size = from(20, 200);
  c.num_hidden_layers = from(1, 3);
  c.vocab_size = from(50, 3000);
  c.tie_word_embeddings = random() % 2 == 0;
  return c;
}

// The step that the plan is for, on the CPU: the second, when moments and gradients were there.
inline StepMemory run_for_real(const StepRequest& r) {
  const StepInputs resident = r.resident ? r.micro_batch(at::kCPU, 0) : StepInputs();
  const int64_t outside = live_bytes(at::kCPU);
  const auto network = r.network(at::kCPU);
  Optimizer optimizer(network->parameters(), r.optimizer);
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
