// SPDX-License-Identifier: Apache-2.0
// Weights outside of the device: the bits of those on it, none of its memory but while a segment
// runs.
#include "compact/codecs/placed_weights.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/vfs.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/models/families.h"
#include "compact/models/gpt2/gpt2.h"
#include "compact/models/graph/graph_network.h"
#include "compact/models/resnet/resnet.h"
#include "compact/models/vit/vit.h"
#include "tests/parallel/threads.h"
#include "tests/plan/two_steps.h"

namespace compact {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const std::string kDisk = "weight * = disk\n";

Policy with_lines(const char* preset, const std::string& lines) {
  Policy policy = Policy::preset(preset);
  policy.append(Policy::parse(lines, "test"));
  return policy;
}

PlanRequest llama(const char* preset, const std::string& lines, at::ScalarType type = at::kFloat,
                  const OptimizerInfo& kind = adamw_optimizer, int64_t layers = 3) {
  PlanRequest r =
      small_request(preset, type, {.batch = 2, .length = 24}, small_shape(layers), kind);
  return with_policy(r, with_lines(preset, lines));
}
// Every optimizer, with moments in memory and in files, with masters, projections that are drawn
// again, frozen weights and updates inside the backward pass.
TEST(PlacedWeights, TrainAsThoseInMemory) {
  struct Way {
    const char* preset;
    const char* lines = "";
    bool master = true;
  };
  const Way ways[] = {
      {"off"},
      {"exact", "moment * = f32+disk\n"},
      {"recompute", "grad layers.{0,1}.* = frozen\n"},
      {"gact-l1", "", false},
      {"compact", "moment * = f8\n", false},
      {"exact", "grad layers.*.{attn.qkv,mlp.down} = project:rank=8,period=1\n"},
      {"exact", "grad * = full:release=true\nmoment * = bf16+disk\n", false},
  };
  for (const OptimizerInfo* kind : optimizers()) {
    for (const Way& way : ways) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        std::array<TwoSteps, 2> all;
        for (const bool disk : {false, true}) {
          StepRequest step =
              step_request(llama(way.preset, way.lines + (disk ? kDisk : ""), type, *kind));
          step.optimizer.master_weights = type == at::kBFloat16 && way.master;
          all[disk] = two_steps(step);
        }
        expect_same(all[1], all[0],
                    cat(kind->name, " ", c10::toString(type), " ", way.preset, " ", way.lines));
      }
    }
  }
}

// A step of each kind of network, and which of its weights may lie elsewhere.
struct KindOfNetwork {
  const char* name;
  std::function<std::unique_ptr<Network>(const Policy&, const NetworkOptions&)> make;
  std::function<StepInputs(at::Device)> inputs;
};
std::vector<KindOfNetwork> networks() {
  const auto tokens = [](at::Device d) {
    const auto ids = at::ones({2, 24}, at::device(d).dtype(at::kLong));
    return StepInputs{{ids}, ids, 3};
  };
  const auto images = [](int64_t size) {
    return [size](at::Device d) {
      return StepInputs{{at::full({4, 3, size, size}, 0.5, at::device(d))},
                        at::ones({4}, at::device(d).dtype(at::kLong)),
                        3};
    };
  };
  return {
      {"llama",
       [](const Policy& p, const NetworkOptions& o) -> std::unique_ptr<Network> {
         return std::make_unique<Llama>(small_shape(3), p, o);
       },
       tokens},
      {"gpt2",
       [](const Policy& p, const NetworkOptions& o) -> std::unique_ptr<Network> {
         return std::make_unique<Gpt2>(Gpt2Config{.n_embd = 64,
                                                  .n_layer = 3,
                                                  .n_head = 4,
                                                  .n_inner = 256,
                                                  .vocab_size = 300,
                                                  .n_positions = 32,
                                                  .bos_token_id = {},
                                                  .eos_token_ids = {}},
                                       p, o);
       },
       tokens},
      {"encoder",
       [](const Policy& p, const NetworkOptions& o) -> std::unique_ptr<Network> {
         return std::make_unique<Encoder>(small_encoder(), p, o);
       },
       [](at::Device d) {
         return StepInputs{encoder_inputs(d, 4, 32), at::zeros({4}, at::device(d).dtype(at::kLong)),
                           3};
       }},
      {"vit",
       [](const Policy& p, const NetworkOptions& o) -> std::unique_ptr<Network> {
         return std::make_unique<Vit>(VitConfig{.hidden_size = 64,
                                                .intermediate_size = 256,
                                                .num_hidden_layers = 3,
                                                .num_attention_heads = 4,
                                                .height = 32,
                                                .width = 32,
                                                .patch_size = 8},
                                      p, o);
       },
       images(32)},
      {"resnet",
       [](const Policy& p, const NetworkOptions& o) -> std::unique_ptr<Network> {
         return std::make_unique<Resnet>(
             ResnetConfig{.blocks = {1, 2}, .width = 16, .small_images = true, .classes = 10}, p,
             o);
       },
       images(16)},
  };
}
StepRequest request_of(const KindOfNetwork& n, const Policy& policy, at::ScalarType type) {
  return {.network =
              [=](at::Device device) {
                return n.make(policy, {.device = device,
                                       .dtype = type,
                                       .max_length = 24,
                                       .seed = 5,
                                       .offload_folder = "."});
              },
          .micro_batch = [=](at::Device device, int64_t) { return n.inputs(device); },
          .optimizer = {.f32_sums = type != at::kFloat}};
}

TEST(PlacedWeights, OfEveryKindOfNetworkTrainAlike) {
  for (const KindOfNetwork& n : networks()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const char* preset : {"off", "exact", "gact-l1"}) {
        expect_same(two_steps(request_of(n, with_lines(preset, kDisk), type)),
                    two_steps(request_of(n, Policy::preset(preset), type)),
                    cat(n.name, " ", preset));
      }
    }
  }
}

// Bytes of the weights that may lie elsewhere: matrices of each segment.
std::vector<int64_t> segment_bytes(const Network& network) {
  std::vector<int64_t> all;
  for (const Segment* s : network.segments()) {
    int64_t bytes = 0;
    for (const Parameter* p : network.parameters_of(*s)) {
      if (p->weight.dim() > 1) bytes += static_cast<int64_t>(p->weight.nbytes());
    }
    if (bytes > 0) all.push_back(bytes);
  }
  return all;
}
int64_t sum_of(const std::vector<int64_t>& all) {
  return std::accumulate(all.begin(), all.end(), int64_t{0});
}

TEST(PlacedWeights, AreCountedToTheByte) {
  install_counting_allocator();
  const OneThread one;
  for (const KindOfNetwork& n : networks()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const char* preset : {"off", "exact", "gact-l1"}) {
        SCOPED_TRACE(cat(n.name, " ", preset, " ", c10::toString(type)));
        const StepRequest there = request_of(n, with_lines(preset, kDisk), type);
        const StepMemory plan = plan_step(there).memory, real = run_for_real(there),
                         dense = plan_step(request_of(n, Policy::preset(preset), type)).memory;
        expect_equal_parts(plan, real, n.name);
        EXPECT_EQ(plan.weights_outside, real.weights_outside);
        EXPECT_LE(std::abs(plan.peak - real.peak),
                  type == at::kFloat && n.name != std::string("resnet") ? 0 : real.peak / 100);
        EXPECT_EQ(plan.weights_outside, sum_of(segment_bytes(*there.network(at::kMeta))));
        EXPECT_EQ(plan.weights + plan.weights_outside, dense.weights);
        EXPECT_EQ(plan.other, dense.other);
        EXPECT_LE(plan.peak, dense.peak);
      }
    }
  }
}

// A CPU has the weights of one block at a time, a GPU those of the next one, too; the optimizer
// changes them where they lie.
TEST(PlacedWeights, OneBlockIsThereAtATimeOrTwo) {
  for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
    const bool gpu = device == c10::kCUDA;
    PlanRequest r = llama("exact", "", at::kFloat, adamw_optimizer, 8);
    r.device = device;
    const StepMemory dense = plan_step(r).memory;
    r.policy.append(Policy::parse(gpu ? "weight * = offload" : "weight * = disk", "test"));
    std::vector<Operation> operations;
    const StepMemory m = plan_step(step_request(r), &operations).memory;
    const auto network = step_request(r).network(at::kMeta);
    const std::vector<int64_t> blocks = segment_bytes(*network);
    ASSERT_EQ(blocks.size(), 8);
    EXPECT_EQ(m.weights_outside, 8 * blocks[0]);
    EXPECT_EQ(m.host.asked, 8 * blocks[0]);
    const auto less = [&](const StepMoment& at) { return dense.at(at) - m.at(at); };
    for (const Phase phase : {Phase::kForwardOf, Phase::kBackwardOf}) {
      for (const char* part : {"layers.3", "layers.4"}) {
        EXPECT_EQ(less({phase, part}), (gpu ? 6 : 7) * blocks[0]) << part;
      }
    }
    EXPECT_EQ(less({Phase::kBackwardOf, "layers.0"}), 7 * blocks[0]);
    EXPECT_EQ(less({Phase::kForwardOf, "layers.7"}), 7 * blocks[0]);
    EXPECT_EQ(less({Phase::kOptimizer}), 8 * blocks[0]);
    // Twice from the host for a step's passes; read and written by the update.
    double copied = 0, updated = 0;
    for (const Operation& o : operations) {
      if (o.host) (o.moment.phase == Phase::kOptimizer ? updated : copied) += o.bytes;
    }
    if (!gpu) continue;
    EXPECT_EQ(copied, 2 * 8 * static_cast<double>(blocks[0]));
    EXPECT_EQ(updated, 2 * 8 * static_cast<double>(blocks[0]));
  }
  set_meta_device(c10::kCPU);
}

// Adapters beside a base that is frozen, as it is or in NF4, of which the codes lie elsewhere.
TEST(PlacedWeights, AdaptersTrainBesideThem) {
  install_counting_allocator();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::optional<Nf4Format>& nf4 :
         {std::optional<Nf4Format>(), std::optional(Nf4Format{}),
          std::optional(Nf4Format{.nested = true})}) {
      std::array<TwoSteps, 2> all;
      std::array<StepMemory, 2> plans;
      for (const bool disk : {false, true}) {
        const PlanRequest r = llama("exact", disk ? kDisk : "", type);
        StepRequest step = step_request(r);
        step.network = [=](at::Device device) {
          return std::make_unique<Llama>(r.shape, r.policy,
                                         NetworkOptions{.device = device,
                                                        .dtype = type,
                                                        .max_length = 24,
                                                        .lora = {.rank = 4, .dropout = 0.1},
                                                        .nf4 = nf4,
                                                        .offload_folder = "."});
        };
        all[disk] = two_steps(step);
        plans[disk] = plan_step(step).memory;
        const StepMemory real = run_for_real(step);
        expect_equal_parts(plans[disk], real, "adapters");
        EXPECT_EQ(plans[disk].weights_outside, real.weights_outside);
        EXPECT_TRUE(plans[disk].peak == real.peak || type != at::kFloat);
      }
      expect_same(all[1], all[0], nf4 ? "nf4" : "dense");
      EXPECT_EQ(plans[0].weights, plans[1].weights + plans[1].weights_outside);
      EXPECT_GT(plans[1].weights_outside, 0);
      EXPECT_LT(plans[1].peak, plans[0].peak);
    }
  }
}

TEST(PlacedWeights, OfSeveralRanksTrainAlike) {
  for (const char* policy : {"off", "compact"}) {
    for (const int zero : {0, 1, 2}) {
      std::array<std::array<TwoSteps, 2>, 2> all;
      for (const bool disk : {false, true}) {
        with_shared_ranks(2, [&](const std::shared_ptr<Group>& group) {
          const PlanRequest r = llama(policy, disk ? kDisk : "");
          all[disk][static_cast<size_t>(group->rank())] = two_steps(step_request(r), group, zero);
        });
      }
      for (const size_t rank : {0, 1}) expect_same(all[1][rank], all[0][rank], policy);
    }
  }
}

// No memory for a copy: the pass fails, and the weights are as they were.
TEST(PlacedWeights, StayWhereAPassFails) {
  install_counting_allocator();
  const PlanRequest r = llama("off", kDisk);
  const auto network = step_request(r).network(at::kCPU);
  const StepInputs batch = step_request(r).micro_batch(at::kCPU, 0);
  const auto loss = [&] { return network->loss(batch.inputs, batch.target, {}); };
  const at::Tensor before = loss().detach();
  const int64_t block = segment_bytes(*network)[0], live = live_bytes(at::kCPU);
  std::vector<at::Tensor> weights;
  for (const Parameter* p : network->parameters()) weights.push_back(p->weight.detach().clone());
  int64_t failures = 0;
  for (int64_t room = block / 16; failures == 0 || room < 40 * block; room += block / 3) {
    limit_cpu_bytes(live_bytes(at::kCPU) + room);
    try {
      torch::autograd::backward({loss()}, {});
      room = 100 * block;
    } catch (const std::exception&) {
      ++failures;
    }
    limit_cpu_bytes({});
    for (const Parameter* p : network->parameters()) p->weight.mutable_grad().reset();
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_TRUE(at::equal(network->parameters()[i]->weight, weights[i]));
    }
  }
  EXPECT_GT(failures, 3);
  EXPECT_TRUE(at::equal(loss().detach(), before));
  weights.clear();
  EXPECT_EQ(live_bytes(at::kCPU), live);
}

// On a GPU copies of the next segment begin early; they are made again where its values are others
// by then, and dropped where another segment comes.
TEST(PlacedWeights, ComeOneSegmentAhead) {
  install_counting_allocator();
  set_meta_device(c10::kCUDA);
  PlacedWeights home;
  constexpr int64_t kBytes = 1024;
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 3; ++i) {
    weights.push_back(at::zeros({16, 16}, at::kMeta));
    move_to(MemoryPlace::kHost, weights.back(), "");
    EXPECT_EQ(home.add({weights.back()}), i);
  }
  const int64_t before = live_bytes(at::kMeta);
  OperationRecorder recorder;
  const auto copies = [&] { return recorder.take().size(); };
  const auto here = [&] { return (live_bytes(at::kMeta) - before) / kBytes; };
  const auto is_here = [&](int i) { return !lies_on_host(weights[static_cast<size_t>(i)]); };
  home.fetch(0, false);
  EXPECT_EQ(copies(), 2);
  EXPECT_TRUE(is_here(0) && !is_here(1));
  EXPECT_EQ(here(), 2);
  home.release(0);
  EXPECT_FALSE(is_here(0));
  EXPECT_EQ(here(), 1);
  home.fetch(1, false);
  EXPECT_EQ(copies(), 1);
  home.fetch(1, false);  // a second reader
  home.release(1);
  EXPECT_TRUE(is_here(1));
  home.release(1);
  EXPECT_EQ(here(), 1);
  EXPECT_EQ(copies(), 0);
  weights[2].unsafeGetTensorImpl()->bump_version();  // as updates do
  home.fetch(2, true);
  EXPECT_EQ(copies(), 2);  // its own anew, and that of 1
  home.release(2);
  home.fetch(0, false);  // 1 is ahead in either direction
  EXPECT_EQ(copies(), 1);
  EXPECT_EQ(here(), 2);
  home.release(0);
  home.fetch(2, false);
  home.release(2);
  EXPECT_EQ(here(), 0);
  set_meta_device(c10::kCPU);
}

std::string error_of_policy(const std::string& lines, at::Device device = at::kCPU,
                            const std::string& folder = ".") {
  try {
    const Llama model(small_shape(2), Policy::parse(lines, "test"),
                      {.device = device, .max_length = 8, .offload_folder = folder});
    for (const Parameter* p : model.parameters()) {
      if (p->place != MemoryPlace::kDevice) return "moved";
    }
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

TEST(PlacedWeights, AreMatricesOfOneSegment) {
  EXPECT_EQ(error_of_policy("weight * = disk"), "moved");
  EXPECT_EQ(error_of_policy("weight layers.0.mlp.up* = disk\nweight layers.1.attn.* = disk"),
            "test:1: pattern `layers.0.mlp.up*` matches no weight of this model; did you mean "
            "`layers.*.mlp.norm`?");
  EXPECT_EQ(error_of_policy("weight * = disk\nweight layers.* = keep"), "");
  EXPECT_EQ(error_of_policy("weight * = offload"), "");  // a CPU's memory is the host's
  for (const char* other : {"embedding", "head", "layers.*.norm", "*.attn.norm", "final.norm"}) {
    EXPECT_THAT(error_of_policy(cat("weight ", other, " = disk")), HasSubstr("matches no weight"));
  }
  EXPECT_THAT(error_of_policy("weight embedding = disk"),
              HasSubstr("that may lie elsewhere: matrices that one segment alone reads, not "
                        "vectors, embeddings and heads"));
  EXPECT_THAT(error_of_policy("weight layers.9.attn.qkv = disk"), HasSubstr("did you mean"));
  EXPECT_THAT(error_of_policy("weight * = dsk"), HasSubstr("did you mean `disk`"));
  EXPECT_THAT(error_of_policy("weight * = disk+offload"), HasSubstr("are joined by `+`"));
  EXPECT_THAT(error_of_policy("weight role:norm = disk"), HasSubstr("slots alone have roles"));
  EXPECT_THAT(error_of_policy("weight * = disk", at::kCPU, ""), HasSubstr("needs a folder"));
  EXPECT_THAT(error_of_policy("weight * = disk", at::kCPU, "no/such"), HasSubstr("no/such: no"));
  struct statfs system = {};
  if (statfs("/dev/shm", &system) == 0 && system.f_type == 0x01021994) {
    EXPECT_THAT(error_of_policy("weight * = disk", at::kCPU, "/dev/shm"),
                HasSubstr("in memory (tmpfs)"));
  }
  set_meta_device(c10::kCUDA);
  EXPECT_THAT(error_of_policy("weight * = disk", at::kMeta), HasSubstr("beside a GPU"));
  set_meta_device(c10::kCPU);
  EXPECT_THAT([] { GraphNetwork(GraphNetConfig{}, Policy::parse("weight * = disk", "test")); },
              ThrowsMessage<InputError>(HasSubstr("matches no weight that may lie elsewhere")));
}

TEST(PlacedWeights, AreForOneGpuAndNotForZero3) {
  for (const bool gpu : {false, true}) {
    PlanRequest r = llama("off", gpu ? "weight * = offload" : "weight * = disk");
    r.device = gpu ? c10::kCUDA : c10::kCPU;
    StepRequest step = step_request(r);
    step.optimizer.group = planned_group(0, 2);
    step.optimizer.zero = gpu ? 0 : 3;
    EXPECT_THAT([&] { plan_step(step); }, ThrowsMessage<InputError>(HasSubstr("for one process")));
    if (!gpu) {
      step.optimizer.zero = 2;
      EXPECT_GT(plan_step(step).memory.weights_outside, 0);
    }
  }
  set_meta_device(c10::kCPU);
}

}  // namespace
}  // namespace compact
