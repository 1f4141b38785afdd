// SPDX-License-Identifier: Apache-2.0
#include "compact/models/decoder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "tests/models/tiny_llama.h"

namespace compact {
namespace {

LlamaConfig decode_shape(int64_t heads, int64_t kv_heads, bool tied) {
  LlamaConfig c;
  c.block = block_shape(24, 40, heads, kv_heads, 6);
  c.num_hidden_layers = 3;
  c.vocab_size = 37;
  c.tie_word_embeddings = tied;
  c.initializer_range = 0.4;  // so that attention is far from uniform
  return c;
}

std::vector<int64_t> ids_of(int64_t count) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back((i * i + 3) % 37);
  return ids;
}

at::Tensor full_logits(const Llama& model, const std::vector<int64_t>& ids) {
  const at::Tensor row = at::tensor(ids, at::kLong).unsqueeze(0);
  return model.logits(row)[0];
}

double error(const at::Tensor& got, const at::Tensor& want) {
  return ((got - want).to(at::kDouble).norm() / want.to(at::kDouble).norm()).item<double>();
}

class Decode : public testing::TestWithParam<std::tuple<int64_t, bool>> {
 protected:
  Llama model{decode_shape(4, std::get<0>(GetParam()), std::get<1>(GetParam())), Policy(),
              NetworkOptions{.max_length = 32, .seed = 5}};
};

TEST_P(Decode, EveryPositionEqualsTheFullForwardPass) {
  const std::vector<int64_t> ids = ids_of(17);
  const at::Tensor want = full_logits(model, ids);
  for (const size_t prompt : {size_t{1}, size_t{2}, size_t{9}, size_t{17}}) {
    Decoder decoder(model, 17);
    at::Tensor got = decoder.append(std::span(ids).first(prompt));
    EXPECT_LT(error(got, want[static_cast<int64_t>(prompt) - 1]), 1e-5) << prompt;
    for (size_t i = prompt; i < ids.size(); ++i) {
      got = decoder.append(std::span(ids).subspan(i, 1));
      EXPECT_LT(error(got, want[static_cast<int64_t>(i)]), 1e-5) << prompt << " " << i;
    }
    EXPECT_EQ(decoder.length(), 17);
  }
}

TEST_P(Decode, SeveralTokensOntoAPrompt) {
  const std::vector<int64_t> ids = ids_of(16);
  const at::Tensor want = full_logits(model, ids);
  Decoder decoder(model, 32);
  decoder.append(std::span(ids).first(5));
  EXPECT_LT(error(decoder.append(std::span(ids).subspan(5, 4)), want[8]), 1e-5);
  EXPECT_LT(error(decoder.append(std::span(ids).subspan(9)), want[15]), 1e-5);
}

TEST_P(Decode, TruncateForgets) {
  const std::vector<int64_t> ids = ids_of(12);
  Decoder decoder(model, 12);
  const at::Tensor first = decoder.append(ids);
  decoder.truncate(7);
  const at::Tensor again = decoder.append(std::span(ids).subspan(7));
  EXPECT_LT(error(again, first), 1e-5);
  decoder.truncate(0);
  EXPECT_TRUE(at::equal(decoder.append(ids), first));
}

INSTANTIATE_TEST_SUITE_P(Heads, Decode, testing::Combine(testing::Values(4, 2, 1), testing::Bool()),
                         [](const auto& info) {
                           return cat("kv_heads_", std::get<0>(info.param),
                                      std::get<1>(info.param) ? "_tied" : "");
                         });

class DecodeKinds : public testing::TestWithParam<DecoderKind> {};
INSTANTIATE_TEST_SUITE_P(All, DecodeKinds, testing::ValuesIn(decoder_kinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DecodeKinds, EveryPositionEqualsTheFullForwardPass) {
  LlamaConfig c = GetParam().config;
  c.initializer_range = 0.3;
  const Llama model(c, Policy(), {.max_length = 32, .seed = 5});
  {  // biases and norms that do something
    const at::NoGradGuard no_grad;
    auto generator = at::detail::createCPUGenerator(1);
    for (const Parameter* p : model.parameters()) {
      if (p->weight.dim() == 1) p->weight.add_(at::randn(p->weight.sizes(), generator) * 0.3);
    }
  }
  const std::vector<int64_t> ids = ids_of(17);
  const at::Tensor want = full_logits(model, ids);
  Decoder decoder(model, 17);
  at::Tensor got = decoder.append(std::span(ids).first(4));
  EXPECT_LT(error(got, want[3]), 1e-5);
  EXPECT_LT(error(decoder.append(std::span(ids).subspan(4, 3)), want[6]), 1e-5);
  for (size_t i = 7; i < ids.size(); ++i) {
    got = decoder.append(std::span(ids).subspan(i, 1));
    EXPECT_LT(error(got, want[static_cast<int64_t>(i)]), 1e-5) << i;
  }
}

// The cache of a short sequence is made again where it becomes a long one, and back.
TEST(DecodeLong, TurnsAllPositionsAsThoseOfALongSequence) {
  LlamaConfig c = decode_shape(4, 2, false);
  c.block.head_dim = 8;
  c.max_position_embeddings = 8;
  c.rope = {.kind = RopeKind::kDynamic, .theta = 100, .factor = 4};
  LlamaConfig factors = c;
  factors.rope = {.kind = RopeKind::kLongrope,
                  .theta = 100,
                  .factor = 4,
                  .original_length = 8,
                  .short_factor = {1, 1, 2, 2},
                  .long_factor = {2, 3, 5, 9}};
  for (const LlamaConfig& config : {c, factors}) {
    const Llama model(config, Policy(), {.max_length = 17, .seed = 5});
    const std::vector<int64_t> ids = ids_of(17);
    const auto want = [&](int64_t length) {
      return full_logits(model, {ids.begin(), ids.begin() + length})[length - 1];
    };
    EXPECT_GT(error(full_logits(model, ids)[7], want(8)), 1e-3);  // it matters
    Decoder decoder(model, 17);
    EXPECT_LT(error(decoder.append(std::span(ids).first(6)), want(6)), 1e-5);
    for (int64_t i = 6; i < 17; ++i) {
      const at::Tensor got = decoder.append(std::span(ids).subspan(static_cast<size_t>(i), 1));
      EXPECT_LT(error(got, want(i + 1)), 1e-5) << i;
      EXPECT_EQ(decoder.length(), i + 1);
    }
    decoder.truncate(5);
    EXPECT_LT(error(decoder.append(std::span(ids).subspan(5, 2)), want(7)), 1e-5);
    EXPECT_LT(error(decoder.append(std::span(ids).subspan(7, 5)), want(12)), 1e-5);
  }
}

TEST(DecodeBf16, FollowsTheFullForwardPass) {
  const Llama model(decode_shape(4, 2, false), Policy(),
                    {.dtype = at::kBFloat16, .max_length = 16, .seed = 1});
  const std::vector<int64_t> ids = ids_of(16);
  const at::Tensor want = full_logits(model, ids);
  Decoder decoder(model, 16);
  decoder.append(std::span(ids).first(8));
  for (int64_t i = 8; i < 16; ++i) {
    const at::Tensor got = decoder.append(std::span(ids).subspan(static_cast<size_t>(i), 1));
    EXPECT_EQ(got.scalar_type(), at::kBFloat16);
    EXPECT_LT(error(got, want[i]), 0.03) << i;  // a few roundings of 2^-9 in each of three layers
  }
}

TEST(DecodeErrors, AreInputErrors) {
  const Llama model(decode_shape(4, 4, false), Policy(), {.max_length = 8});
  EXPECT_THROW(Decoder(model, 0), InputError);
  EXPECT_THROW(Decoder(model, 9), InputError);
  Decoder decoder(model, 4);
  EXPECT_THROW(decoder.append({}), InputError);
  EXPECT_THROW(decoder.append(std::vector<int64_t>{37}), InputError);
  EXPECT_THROW(decoder.append(std::vector<int64_t>{-1}), InputError);
  EXPECT_THROW(decoder.append(ids_of(5)), InputError);
  EXPECT_EQ(decoder.length(), 0);
  decoder.append(ids_of(4));
  EXPECT_THROW(decoder.append(std::vector<int64_t>{1}), InputError);
  EXPECT_THROW(decoder.truncate(5), InputError);
}

}  // namespace
}  // namespace compact
