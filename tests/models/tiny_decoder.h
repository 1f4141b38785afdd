// SPDX-License-Identifier: Apache-2.0
// Small decoders for tests: 37 words, sequences of up to 20 tokens.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compact/models/decoder.h"
#include "compact/models/language_model.h"

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

}  // namespace compact
