// SPDX-License-Identifier: Apache-2.0
// Products and attention in bf16 that are made in tiles of f32 take as much in plans as they do.
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

}  // namespace
}  // namespace compact
