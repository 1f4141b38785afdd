// SPDX-License-Identifier: Apache-2.0
// Whole networks, codecs and optimizers on the kernels of a GPU, emulated, beside the CPU's.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <string>
#include <vector>

#include "backends.h"
#include "compact/codecs/codec.h"
#include "compact/models/resnet/resnet.h"
#include "compact/optim/optimizer.h"
#include "emulator.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

using kernels::OnEmulator;

struct Kind {
  std::string name;
  std::unique_ptr<Network> (*make)(const Policy& policy, at::ScalarType type);
  StepInputs (*batch)(at::ScalarType type);
  std::vector<std::string> lossless, lossy;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

at::Tensor numbers(int64_t count, int64_t most) {
  return at::arange(count, at::kLong).mul(7919).remainder(most);
}

const Kind kKinds[] = {
    {"llama",
     [](const Policy& policy, at::ScalarType type) -> std::unique_ptr<Network> {
       return std::make_unique<Llama>(small_shape(1), policy,
                                      NetworkOptions{.dtype = type, .max_length = 24});
     },
     [](at::ScalarType) {
       const at::Tensor ids = numbers(3 * 25, 512).reshape({3, 25});
       return StepInputs{{ids.narrow(1, 0, 24).contiguous()}, ids.narrow(1, 1, 24).contiguous(), 5};
     },
     {"exact", "recompute"},
     {"gact-l1", "gact-l2", "compact", "compact-paper"}},
    {"encoder",
     [](const Policy& policy, at::ScalarType type) -> std::unique_ptr<Network> {
       EncoderConfig c = small_encoder();
       c.num_hidden_layers = 1;
       return std::make_unique<Encoder>(c, policy, NetworkOptions{.dtype = type, .max_length = 24});
     },
     [](at::ScalarType) {
       return StepInputs{encoder_inputs(at::kCPU, 3, 24), numbers(3, 2), 5};
     },
     {"exact", "recompute"},
     {"gact-l1", "gact-l2"}},
    {"resnet",
     [](const Policy& policy, at::ScalarType type) -> std::unique_ptr<Network> {
       const ResnetConfig c{.blocks = {1, 1}, .width = 16, .small_images = true, .classes = 10};
       return std::make_unique<Resnet>(c, policy, NetworkOptions{.dtype = type});
     },
     [](at::ScalarType type) {
       const at::Tensor x =
           at::sin(at::arange(4 * 3 * 16 * 16, at::kFloat)).reshape({4, 3, 16, 16});
       return StepInputs{{x.to(type)}, numbers(4, 10), 5};
     },
     {"exact"},
     {"gact-l1", "pool", "pool-quant"}},
};

// The loss and all gradients of one pass.
std::vector<at::Tensor> pass(const Kind& kind, const std::string& preset, at::ScalarType type) {
  const auto network = kind.make(Policy::preset(preset), type);
  const StepInputs batch = kind.batch(type);
  const at::Tensor loss =
      network->loss(batch.inputs, batch.target, {.scale = 0.25, .noise = batch.noise});
  torch::autograd::backward({loss}, {});
  std::vector<at::Tensor> all = {loss.detach()};
  for (const Parameter* p : network->parameters()) all.push_back(p->leaf().grad());
  return all;
}

std::vector<at::Tensor> emulated_pass(const Kind& kind, const std::string& preset,
                                      at::ScalarType type) {
  const OnEmulator on;
  const uint32_t before = emulated::running.launch_began;
  const auto result = pass(kind, preset, type);
  EXPECT_GT(emulated::running.launch_began, before) << "no kernel was launched";
  return result;
}

// |a - b| / |b| of all gradients together.
double apart(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double error = 0, size = 0;
  for (size_t i = 1; i < b.size(); ++i) {
    const at::Tensor x = a[i].to(at::kDouble), y = b[i].to(at::kDouble);
    error += (x - y).square().sum().item<double>();
    size += y.square().sum().item<double>();
  }
  return std::sqrt(error / size);
}

class OnAnEmulatedGpu : public testing::TestWithParam<std::tuple<Kind, at::ScalarType>> {};

// LLaMA's norms are summed in another order, and exp is another's; of the others the bits are those
// of the CPU.
TEST_P(OnAnEmulatedGpu, NetworksGiveWhatTheCpuGives) {
  const auto& [kind, type] = GetParam();
  std::vector<std::string> presets = {"off"};
  presets.insert(presets.end(), kind.lossless.begin(), kind.lossless.end());
  presets.insert(presets.end(), kind.lossy.begin(), kind.lossy.end());
  const double most = kind.name != "llama" ? 0 : type == at::kFloat ? 1e-5 : 1e-3;
  for (const std::string& preset : presets) {
    const auto want = pass(kind, preset, type), got = emulated_pass(kind, preset, type);
    ASSERT_EQ(got.size(), want.size());
    const double loss = want[0].item<double>();
    EXPECT_LE(std::abs(got[0].item<double>() - loss), most * loss) << preset;
    EXPECT_LE(apart(got, want), most) << preset;
  }
}

TEST_P(OnAnEmulatedGpu, LosslessPresetsGiveTheBitsOfPlainTraining) {
  const auto& [kind, type] = GetParam();
  const auto want = emulated_pass(kind, "off", type);
  for (const std::string& preset : kind.lossless) {
    const auto got = emulated_pass(kind, preset, type);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(at::equal(got[i], want[i])) << preset << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, OnAnEmulatedGpu,
                         testing::Combine(testing::ValuesIn(kKinds),
                                          testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name +
                                  (std::get<1>(info.param) == at::kFloat ? "_f32" : "_bf16");
                         });

// Codecs whose arithmetic is exact, or consists of the same operations in the same order.
TEST(EmulatedGpu, CodecsGiveTheBitsOfTheCpu) {
  for (const char* text :
       {"quantize:bits=8", "quantize:bits=4", "quantize:bits=2", "quantize:bits=1",
        "quantize:bits=4,levels=lloyd,rounding=nearest", "quantize:bits=4,levels=positive",
        "quantize:bits=2,group=64", "quantize:bits=4,group=1024", "mask"}) {
    const CodecPtr codec = make_codec(text);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const int64_t width : {1, 96, 1000, 2304}) {
        at::Tensor x = at::sin(at::arange(5 * width, at::kFloat).mul(0.37)).reshape({5, width});
        if (std::string(text) == "mask") x = x.gt(0.2).to(at::kFloat);
        x = x.to(type);
        if (!codec->takes(x)) continue;
        const Encoded want = codec->encode(x, 11);
        const OnEmulator on;
        const Encoded got = codec->encode(x, 11);
        ASSERT_EQ(got.parts.size(), want.parts.size()) << text;
        for (size_t i = 0; i < want.parts.size(); ++i) {
          EXPECT_TRUE(at::equal(got.parts[i], want.parts[i])) << text << " " << width << " " << i;
        }
        EXPECT_TRUE(at::equal(got.restore(), want.restore())) << text << " " << width;
      }
    }
  }
}

// Two updates from the same gradients: AdamW, its 8-bit moments, and projected weights' fold of
// what the CPU projected.
TEST(EmulatedGpu, UpdatesGiveTheBitsOfTheCpu) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::string moment : {"f32", "bf16", "f8"}) {
      for (const bool masters : {false, true}) {
        const auto updated = [&] {
          const auto network = kKinds[0].make(Policy::preset("off"), type);
          OptimizerOptions options;
          options.weight_decay = 0.1;
          options.master_weights = masters;
          options.moment = [&](const Parameter&) { return moment; };
          Optimizer optimizer(network->parameters(), options);
          std::vector<at::Tensor> weights;
          for (int step = 0; step < 2; ++step) {
            for (Parameter* p : network->parameters()) {
              p->leaf().mutable_grad() =
                  at::sin(at::arange(p->weight.numel(), at::kFloat).add(step))
                      .reshape(p->weight.sizes())
                      .to(type);
            }
            optimizer.step(1e-2, at::full({}, 0.5));
          }
          for (const Parameter* p : network->parameters()) weights.push_back(p->weight.detach());
          return weights;
        };
        const auto want = updated();
        const OnEmulator on;
        const auto got = updated();
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_TRUE(at::equal(got[i], want[i])) << moment << " " << i << " masters " << masters;
        }
      }
    }
  }
}

}  // namespace
}  // namespace compact
