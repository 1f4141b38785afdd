// SPDX-License-Identifier: Apache-2.0
// Small decoders for tests: 37 words, sequences of up to 20 tokens.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compact/models/decoder.h"
#include "compact/models/language_model.h"
#include "compact/ops/functions/range_attention.h"

namespace compact {

inline const NetworkOptions kTinyOptions{.max_length = 20, .seed = 5};

inline at::Tensor tiny_ids(int64_t batch, int64_t length) {
  return (at::arange(batch * length, at::kLong) * 5 + 3).remainder(37).view({batch, length});
}

// Token by token, after prompts of some lengths, the logits are those of the whole sequence.
inline void expect_decoder_equals_whole(const LanguageModel& model, const std::string& what) {
  const at::Tensor ids = tiny_ids(1, 15), want = model.logits(ids)[0];
  const std::span<const int64_t> all(ids.const_data_ptr<int64_t>(), 15);
  for (const size_t prompt : {1, 4, 9}) {
    Decoder decoder(model, 20);
    at::Tensor got = decoder.append(all.first(prompt));
    for (size_t i = prompt - 1; i < 15; ++i) {
      if (i >= prompt) got = decoder.append(all.subspan(i, 1));
      EXPECT_TRUE(at::allclose(got, want[static_cast<int64_t>(i)], 1e-4, 1e-5)) << i << what;
    }
  }
}

// Loss and gradients under policies without loss are the same bits.
using MakeDecoder = std::function<std::unique_ptr<LanguageModel>(const Policy&)>;
inline void expect_same_bits_without_loss(const MakeDecoder& make, const std::string& what) {
  std::vector<at::Tensor> want;
  for (const char* preset : {"off", "exact", "recompute"}) {
    const std::unique_ptr<LanguageModel> model = make(Policy::preset(preset));
    const at::Tensor ids = tiny_ids(2, 12);
    const at::Tensor loss = model->loss({ids}, ids.roll(-1, 1), {.noise = 7});
    torch::autograd::backward({loss}, {});
    std::vector<at::Tensor> got = {loss.detach()};
    for (const Parameter* p : model->parameters()) got.push_back(p->weight.grad());
    if (want.empty()) want = got;
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::equal(got[i], want[i])) << preset << i << what;
    }
  }
}

// Rows of several samples, the second with padding behind it: loss and gradients are those of every
// sample alone, under policies without loss.
inline void expect_rows_equal_samples_alone(const MakeDecoder& make, const std::string& what) {
  const std::vector<std::array<int64_t, 3>> ranges = {
      {0, 0, 7}, {0, 7, 16}, {0, 16, 20}, {1, 0, 1}, {1, 1, 14}};
  const at::Tensor ids = tiny_ids(2, 20), targets = (ids * 3 + 1).remainder(37);
  targets.select(1, 5).fill_(-100);
  targets[1].narrow(0, 14, 6).fill_(-100);
  const auto gradients = [](const LanguageModel& model) {
    std::vector<at::Tensor> all;
    for (const Parameter* p : model.parameters()) all.push_back(p->weight.grad());
    return all;
  };
  for (const char* preset : {"off", "exact", "recompute"}) {
    const std::unique_ptr<LanguageModel> model = make(Policy::preset(preset)),
                                         alone = make(Policy::preset(preset));
    const at::Tensor loss = model->loss({ids}, targets, {.ranges = ranges_tensor(ranges)});
    torch::autograd::backward({loss}, {});
    double sum = 0;
    for (const auto& [row, begin, end] : ranges) {
      const auto part = [&](const at::Tensor& t) {
        return t.narrow(0, row, 1).narrow(1, begin, end - begin).contiguous();
      };
      const at::Tensor one = alone->loss({part(ids)}, part(targets), {});
      torch::autograd::backward({one}, {});
      sum += one.item<double>();
    }
    EXPECT_NEAR(loss.item<double>() / sum, 1, 1e-6) << preset << what;
    const auto got = gradients(*model), want = gradients(*alone);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::allclose(got[i], want[i], 1e-5, 1e-5))
          << preset << " " << model->parameters()[i]->name << " "
          << (got[i] - want[i]).abs().max().item<double>() << what;
    }
    const double as_one = model->loss({ids}, targets, {}).item<double>();
    EXPECT_GT(std::abs(as_one / sum - 1), 1e-4) << what;
  }
}

}  // namespace compact
