// SPDX-License-Identifier: Apache-2.0
// Products, convolutions and attention in bf16 that are made in tiles of f32 take as much in plans
// as they do.
#include "compact/ops/cpu/bf16_products.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "compact/base/check.h"
#include "compact/models/resnet/resnet.h"
#include "compact/ops/memory/memory.h"
#include "compact/plan/meta/meta_ops.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

class Bf16Plans : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    install_counting_allocator();
    register_meta_ops();
  }
  Bf16Plans() { set_bf16_products(Bf16Products::kConverted); }
  ~Bf16Plans() override { set_bf16_products(Bf16Products::kNative); }
};

// Most bytes beside what there was, of an operation on tensors of a device.
int64_t peak_of(at::Device device, const std::function<std::vector<at::Tensor>(at::Device)>& make,
                const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& run) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> given = make(device);
  const int64_t before = live_bytes(device);
  reset_peak(device);
  const auto made = run(given);
  return peak_bytes(device) - before;
}

int64_t rows_of_threads() { return 1024 * (at::get_num_threads() - 1); }

TEST_F(Bf16Plans, ProductsTakeWhatTheyDo) {
  for (const auto& [m, k, n] : {std::tuple<int64_t, int64_t, int64_t>{512, 256, 688},
                                {512, 688, 256},
                                {688, 512, 256},
                                {512, 1376, 512},
                                {1376, 512, 512},
                                {3000, 1500, 1100},
                                {1, 300, 257},
                                {257, 512, 256}}) {
    for (int layout = 0; layout < 4; ++layout) {
      for (const bool adds : {false, true}) {
        const auto make = [&, m = m, k = k, n = n](at::Device device) {
          const auto of = [&](int64_t rows, int64_t columns, bool by_columns) {
            const auto options = at::device(device).dtype(at::kBFloat16);
            return by_columns ? at::empty({columns, rows}, options).t()
                              : at::empty({rows, columns}, options);
          };
          std::vector<at::Tensor> all = {of(m, k, layout & 1), of(k, n, layout & 2),
                                         of(m, n, false)};
          if (!device.is_meta()) {
            for (at::Tensor& t : all) t.fill_(0.01);
          }
          return all;
        };
        const auto run = [&](const std::vector<at::Tensor>& t) {
          if (!adds) return std::vector{t[0].mm(t[1])};
          at::Tensor into = t[2];
          into.addmm_(t[0], t[1]);
          return std::vector{into};
        };
        EXPECT_EQ(peak_of(at::kMeta, make, run), peak_of(at::kCPU, make, run))
            << m << " " << k << " " << n << " layout " << layout << (adds ? " added" : "");
      }
    }
  }
}

TEST_F(Bf16Plans, AttentionTakesWhatItDoes) {
  for (const auto& [batch, heads, tokens, dim] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t>{2, 8, 256, 32},
        {1, 2, 64, 16},
        {3, 40, 300, 64},
        {1, 4, 1100, 64}}) {
    const auto make = [&, b = batch, h = heads, t = tokens, d = dim](at::Device device) {
      std::vector<at::Tensor> all;
      for (int i = 0; i < 4; ++i) {
        all.push_back(
            at::empty({b, t, h, d}, at::device(device).dtype(at::kBFloat16)).transpose(1, 2));
        if (!device.is_meta()) all.back().fill_(0.01 * i);
      }
      return all;
    };
    const auto forward = [](const std::vector<at::Tensor>& t) {
      const auto [out, lse] =
          at::_scaled_dot_product_flash_attention_for_cpu(t[0], t[1], t[2], 0.0, true);
      return std::vector{out, lse};
    };
    const auto both = [&](const std::vector<at::Tensor>& t) {
      const auto kept = forward(t);
      const auto [a, b, c] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          t[3], t[0], t[1], t[2], kept[0], kept[1], 0.0, true);
      return std::vector{kept[0], kept[1], a, b, c};
    };
    const std::string what = cat(batch, " ", heads, " ", tokens, " ", dim);
    EXPECT_EQ(peak_of(at::kMeta, make, forward), peak_of(at::kCPU, make, forward)) << what;
    // Each thread of the backward pass takes a row of scores; one that starts late takes it after
    // another one's is gone. One is planned.
    const int64_t planned = peak_of(at::kMeta, make, both), real = peak_of(at::kCPU, make, both);
    EXPECT_GE(real, planned) << what << " backward";
    EXPECT_LE(real, planned + rows_of_threads()) << what << " backward";
  }
}

// One part and several, in both layouts, with and without the gradient of the input.
TEST_F(Bf16Plans, ConvolutionsTakeWhatTheyDo) {
  const OneThread one;
  struct Case {
    std::vector<int64_t> x, w;
    int64_t stride, padding, dilation, groups;
  };
  for (const Case& c : {Case{{4, 16, 14, 14}, {32, 16, 3, 3}, 1, 1, 1, 1},
                        {{20, 64, 56, 56}, {64, 64, 3, 3}, 1, 1, 1, 1},
                        {{23, 64, 28, 28}, {256, 64, 1, 1}, 1, 0, 1, 1},
                        {{9, 3, 112, 112}, {64, 3, 7, 7}, 2, 3, 1, 1},
                        {{40, 256, 14, 14}, {512, 256, 1, 1}, 2, 0, 1, 1},
                        {{50, 64, 28, 28}, {64, 1, 3, 3}, 1, 1, 1, 64},
                        {{30, 64, 28, 28}, {64, 16, 3, 3}, 1, 2, 2, 4},
                        {{6, 4, 300, 520}, {2, 4, 2, 2}, 1, 0, 1, 1},
                        {{70, 32, 1000}, {48, 32, 5}, 1, 2, 1, 1},
                        {{3, 8, 20, 30, 40}, {8, 8, 3, 3, 3}, 1, 1, 1, 1}}) {
    for (const bool channels_last : {false, true}) {
      if (channels_last && c.x.size() != 4) continue;
      for (const bool want_input : {false, true}) {
        const auto times = [&](int64_t value) {
          return std::vector<int64_t>(c.x.size() - 2, value);
        };
        const auto convolve = [&](const std::vector<at::Tensor>& t) {
          return at::convolution(t[0], t[1], t[2], times(c.stride), times(c.padding),
                                 times(c.dilation), false, times(0), c.groups);
        };
        const auto make = [&](at::Device device) {
          const auto options = at::device(device).dtype(at::kBFloat16);
          std::vector<at::Tensor> made = {at::zeros(c.x, options), at::zeros(c.w, options),
                                          at::zeros({c.w[0]}, options)};
          if (channels_last) made[0] = made[0].contiguous(at::MemoryFormat::ChannelsLast);
          made.push_back(convolve(made));
          return made;
        };
        const auto forward = [&](const std::vector<at::Tensor>& t) {
          return std::vector{convolve(t)};
        };
        const auto backward = [&](const std::vector<at::Tensor>& t) {
          const auto [gx, gw, gbias] = at::convolution_backward(
              t[3], t[0], t[1], c.w[0], times(c.stride), times(c.padding), times(c.dilation), false,
              times(0), c.groups, {want_input, true, true});
          return std::vector{gx, gw, gbias};
        };
        const std::string what = cat(at::IntArrayRef(c.x), " by ", at::IntArrayRef(c.w),
                                     channels_last ? " channels last" : "");
        EXPECT_EQ(peak_of(at::kMeta, make, forward), peak_of(at::kCPU, make, forward)) << what;
        EXPECT_EQ(peak_of(at::kMeta, make, backward), peak_of(at::kCPU, make, backward))
            << what << " backward" << (want_input ? "" : " of the weight");
      }
    }
  }
}

// LibTorch's own attention in bf16, of a length that is not a multiple of its tiles: a plan counts
// what every thread takes for its products, too.
TEST_F(Bf16Plans, AttentionOfOnednnTakesNoMoreThanPlanned) {
  set_bf16_products(Bf16Products::kNative);
  for (const auto& [length, dim] : {std::pair<int64_t, int64_t>{700, 64}, {520, 64}, {1000, 128}}) {
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      const auto make = [&, t = length, d = dim](at::Device device) {
        std::vector<at::Tensor> all;
        for (int i = 0; i < 5; ++i) {
          all.push_back(at::empty({1, t, 4, d}, at::device(device).dtype(type)).transpose(1, 2));
          if (!device.is_meta()) all.back().fill_(0.01 * i);
        }
        all.push_back(at::zeros({1, t, 4}, at::device(device).dtype(at::kFloat)).transpose(1, 2));
        return all;
      };
      const auto run = [](const std::vector<at::Tensor>& t) {
        const auto [a, b, c] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            t[0], t[1], t[2], t[3], t[4], t[5], 0.0, true);
        return std::vector{a, b, c};
      };
      EXPECT_LE(peak_of(at::kCPU, make, run), peak_of(at::kMeta, make, run) + rows_of_threads())
          << type << " " << length << " " << dim;
    }
  }
}

// A whole step, to the byte where the f32 products take nothing.
TEST_F(Bf16Plans, StepsTakeWhatTheyDo) {
  std::mt19937 random(5);
  for (const char* policy : {"off", "exact", "recompute", "compact"}) {
    const PlanRequest r = small_request(policy, at::kBFloat16, {.batch = 2, .length = 70},
                                        random_decoder(random), *optimizers()[0]);
    EXPECT_EQ(plan_step(r).memory.peak, run_for_real(r).peak) << policy;
  }
}

// The same of a network of convolutions.
TEST_F(Bf16Plans, StepsOfResnetsTakeWhatTheyDo) {
  const OneThread one;
  const ResnetConfig small{.blocks = {1, 2}, .width = 16, .small_images = true, .classes = 10};
  const ResnetConfig bottleneck{.blocks = {1, 1}, .width = 8, .bottleneck = true, .classes = 10};
  for (const ResnetConfig& config : {small, bottleneck}) {
    for (const char* preset : {"off", "exact", "gact-l1", "pool"}) {
      StepRequest r;
      r.network = [&](at::Device device) {
        return std::make_unique<Resnet>(config, Policy::preset(preset),
                                        NetworkOptions{.device = device, .dtype = at::kBFloat16});
      };
      r.micro_batch = [](at::Device device, int64_t) {
        return StepInputs{{at::randn({96, 3, 32, 32}, at::device(device))},
                          at::ones({96}, at::device(device).dtype(at::kLong))};
      };
      r.optimizer.kind = &sgd_optimizer;
      EXPECT_EQ(plan_step(r).memory.peak, run_for_real(r).peak)
          << preset << (config.bottleneck ? " bottleneck" : "");
    }
  }
}

}  // namespace
}  // namespace compact
