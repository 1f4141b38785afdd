// SPDX-License-Identifier: Apache-2.0
// Steps of classifiers planned on the meta device beside real ones.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "compact/models/graph/graph_network.h"
#include "compact/models/resnet/resnet.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

void expect_equal(const StepRequest& r, double tolerance, const std::string& text) {
  install_counting_allocator();
  const StepMemory plan = plan_step(r).memory, real = run_for_real(r);
  expect_equal_parts(plan, real, text);
  EXPECT_LE(std::abs(static_cast<double>(plan.peak - real.peak)),
            tolerance * static_cast<double>(real.peak))
      << text << ": planned " << plan.peak << " in " << str(plan.at_peak.moment) << ", real "
      << real.peak << " in " << str(real.at_peak.moment);
}

TEST(ClassifierMemory, OfResnetsIsPlanned) {
  const ResnetConfig small{.blocks = {1, 2}, .width = 16, .small_images = true, .classes = 10};
  const ResnetConfig bottleneck{.blocks = {1, 1}, .width = 8, .bottleneck = true, .classes = 10};
  for (const ResnetConfig& config : {small, bottleneck}) {
    for (const char* preset : {"off", "exact", "gact-l1", "gact-l1.2", "pool", "pool-quant"}) {
      for (const int64_t batch : {6, 32}) {
        StepRequest r;
        r.network = [&](at::Device device) {
          return std::make_unique<Resnet>(config, Policy::preset(preset),
                                          NetworkOptions{.device = device});
        };
        r.micro_batch = [&](at::Device device, int64_t) {
          return StepInputs{{at::randn({batch, 3, 32, 32}, at::device(device))},
                            at::ones({batch}, at::device(device).dtype(at::kLong))};
        };
        r.optimizer.kind = &sgd_optimizer;
        expect_equal(r, 0.01,
                     std::string(preset) + " batch " + std::to_string(batch) +
                         (config.bottleneck ? " bottleneck" : ""));
      }
    }
  }
}

TEST(ClassifierMemory, OfEncodersIsPlanned) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const char* preset :
         {"off", "exact", "recompute", "compact", "compact-paper", "gact-l1"}) {
      StepRequest r;
      r.network = [&](at::Device device) {
        return std::make_unique<Encoder>(small_encoder(), Policy::preset(preset),
                                         NetworkOptions{.device = device, .dtype = type});
      };
      r.micro_batch = [&](at::Device device, int64_t) {
        return StepInputs{encoder_inputs(device, 8, 96),
                          at::zeros({8}, at::device(device).dtype(at::kLong))};
      };
      expect_equal(r, 0.01, std::string(preset) + " " + c10::toString(type));
    }
  }
}

// Sizes, presets and accumulation drawn at random: of f32 equal to the byte. With more threads the
// peak depends on how many of them are within the backward pass of attention at once.
TEST(ClassifierMemory, OfEncodersDrawnAtRandomIsPlanned) {
  const OneThread one;
  const char* const presets[] = {"off", "exact", "recompute", "compact", "compact-paper"};
  std::mt19937 random(11);
  const auto from = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int round = 0; round < 60; ++round) {
    EncoderConfig c = small_encoder();
    c.num_attention_heads = from(1, 4);
    c.hidden_size = c.num_attention_heads * 8 * from(1, 6);
    c.intermediate_size = from(40, 300);
    c.num_hidden_layers = from(1, 3);
    c.vocab_size = from(60, 3000);
    c.labels.clear();
    for (int64_t i = from(2, 5); i > 0; --i) c.labels.push_back(cat("label_", i));
    if (round % 2) c.hidden_dropout = c.attention_dropout = 0;
    const char* const preset = presets[round % 5];
    const at::ScalarType type = round / 5 % 3 == 2 ? at::kBFloat16 : at::kFloat;
    const bool is_long = round % 6 == 5;
    const int64_t batch = from(1, is_long ? 4 : 16);
    const int64_t length = is_long ? from(250, 520) : from(2, 128);
    StepRequest r;
    r.network = [&](at::Device device) {
      return std::make_unique<Encoder>(c, Policy::preset(preset),
                                       NetworkOptions{.device = device, .dtype = type});
    };
    r.micro_batch = [&](at::Device device, int64_t) {
      return StepInputs{encoder_inputs(device, batch, length),
                        at::zeros({batch}, at::device(device).dtype(at::kLong))};
    };
    r.step = {.accumulation = from(1, 2), .clip = random() % 2 == 0};
    expect_equal(r, type == at::kFloat ? 0 : 0.01,
                 cat(preset, " ", c10::toString(type), " width ", c.hidden_size, " heads ",
                     c.num_attention_heads, " mlp ", c.intermediate_size, " layers ",
                     c.num_hidden_layers, " vocabulary ", c.vocab_size, " dropout ",
                     c.hidden_dropout, " ", batch, " x ", length, " x ", r.step.accumulation));
  }
}

TEST(ClassifierMemory, OfOffloadedSlotsIsPlanned) {
  const ResnetConfig small{.blocks = {1, 2}, .width = 16, .small_images = true, .classes = 10};
  StepRequest r;
  r.network = [&](at::Device device) {
    return std::make_unique<Resnet>(
        small, Policy::parse("slot layer*.{input,conv*,relu*} = offload\n", "test"),
        NetworkOptions{.device = device});
  };
  r.micro_batch = [&](at::Device device, int64_t) {
    return StepInputs{{at::randn({6, 3, 32, 32}, at::device(device))},
                      at::ones({6}, at::device(device).dtype(at::kLong))};
  };
  r.optimizer.kind = &sgd_optimizer;
  expect_equal(r, 0.01, "offload");
}

// The first layers are frozen, as fine-tuning has it, or what multiplies.
TEST(ClassifierMemory, OfFrozenWeightsIsPlanned) {
  const OneThread one;
  const ResnetConfig small{.blocks = {1, 2}, .width = 16, .small_images = true, .classes = 10};
  const auto peak = [&](const char* preset, bool images, const char* lines) {
    Policy policy = Policy::preset(preset);
    policy.append(Policy::parse(lines, "test"));
    StepRequest r;
    r.network = [&](at::Device device) -> std::unique_ptr<Network> {
      const NetworkOptions options{.device = device};
      if (images) return std::make_unique<Resnet>(small, policy, options);
      return std::make_unique<Encoder>(small_encoder(), policy, options);
    };
    r.micro_batch = [&](at::Device device, int64_t) {
      return StepInputs{images ? Tensors{at::randn({8, 3, 32, 32}, at::device(device))}
                               : encoder_inputs(device, 8, 96),
                        at::zeros({8}, at::device(device).dtype(at::kLong))};
    };
    r.optimizer.kind = &sgd_optimizer;
    expect_equal(r, 0.01, cat(preset, " ", lines));
    return plan_step(r).memory.peak;
  };
  for (const char* preset : {"off", "exact", "gact-l1"}) {
    const int64_t of_images = peak(preset, true, ""), of_sentences = peak(preset, false, "");
    EXPECT_LT(peak(preset, true, "grad {conv1.*,bn1.*,layer1.*} = frozen"), of_images);
    EXPECT_LT(peak(preset, true, "grad *.weight = frozen"), of_images);
    EXPECT_LT(
        peak(preset, false, "grad {embedding,positions,types,layers.0.*,layers.1.*} = frozen"),
        of_sentences);
  }
}

TEST(ClassifierMemory, OfGraphNetworksIsPlanned) {
  constexpr int64_t kNodes = 300;
  // A ring with chords.
  std::vector<at::Tensor> from, to;
  const at::Tensor nodes = at::arange(kNodes);
  for (const int64_t step : {int64_t{1}, int64_t{7}, kNodes - 7, kNodes - 1}) {
    from.push_back(nodes);
    to.push_back((nodes + step).remainder(kNodes));
  }
  const at::Tensor order = std::get<1>((at::cat(from) * kNodes + at::cat(to)).sort());
  const at::Tensor edges =
      at::stack({at::cat(from).index_select(0, order), at::cat(to).index_select(0, order)});
  for (const GraphNetInfo& info : graph_networks()) {
    for (const bool whole : {false, true}) {
      for (const char* preset : {"off", "exact", "gact-l1"}) {
        GraphNetConfig config = info.config;
        config.features = 40;
        config.classes = 7;
        config.whole_graphs = whole;
        StepRequest r;
        r.network = [&](at::Device device) {
          return std::make_unique<GraphNetwork>(config, Policy::preset(preset),
                                                NetworkOptions{.device = device});
        };
        r.resident = true;
        r.micro_batch = [&](at::Device device, int64_t) {
          const at::Tensor x = at::randn({kNodes, 40}, at::device(device));
          const int64_t targets = whole ? 3 : kNodes;
          StepInputs in{{x, edges.to(device)},
                        at::ones({targets}, at::device(device).dtype(at::kLong))};
          if (whole) {
            in.inputs.push_back(at::arange(kNodes).div(100, "floor").to(at::kLong).to(device));
            in.inputs.push_back(at::full({3, 1}, 100.0, at::device(device)));
          }
          return in;
        };
        expect_equal(r, 0, info.name + (whole ? " whole " : " ") + preset);
      }
    }
  }
}

}  // namespace
}  // namespace compact
