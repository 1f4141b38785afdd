// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/generate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/data/files/utf8.h"
#include "compact/io/model_weights.h"
#include "compact/models/config_rows.h"
#include "compact/models/llama/config.h"
#include "compact/models/llama/llama.h"
#include "tests/tasks/save_tokenizer.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

LlamaConfig shape(int64_t vocabulary = 257) {
  return {.block = block_shape(16, 24, 2, 1, 8),
          .num_hidden_layers = 2,
          .vocab_size = vocabulary,
          .max_position_embeddings = 48,
          .initializer_range = 0.5};
}

class Generate : public testing::Test {
 protected:
  std::string text(const GenerateOptions& options, int64_t window = 48) const {
    return generate(model, *tokenizer, options, window, {}).at(0).text;
  }
  Llama model{shape(), Policy(), NetworkOptions{.max_length = 48, .seed = 3}};
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
};

TEST_F(Generate, GreedyFollowsTheFullForwardPass) {
  const GenerateOptions options{
      .prompt = "ab", .max_new_tokens = 12, .sampling = {.temperature = 0}};
  std::vector<uint32_t> want;
  std::vector<int64_t> ids = {'a', 'b'};
  bool ended = false;
  while (want.size() < 12) {
    const at::Tensor logits = model.logits(at::tensor(ids, at::kLong).unsqueeze(0))[0][-1];
    const auto next = logits.argmax().item<int64_t>();
    ended = next == 256;
    if (ended) break;
    want.push_back(static_cast<uint32_t>(next));
    ids.push_back(next);
  }
  const Sample got = generate(model, *tokenizer, options, 48, {}).at(0);
  Utf8Repair repair;
  std::string text;
  repair.feed(tokenizer->decode(want), text);
  repair.finish(text);
  EXPECT_EQ(got.text, text);
  EXPECT_EQ(got.ended, ended);
}

TEST_F(Generate, SeedAndSampleNumberDecide) {
  const GenerateOptions one{.prompt = "x", .max_new_tokens = 30, .sampling = {.temperature = 2}};
  GenerateOptions three = one, other = one;
  three.num_samples = 3;
  other.config.seed = 1;
  const auto samples = generate(model, *tokenizer, three, 48, {});
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples[0].text, text(one));
  EXPECT_NE(samples[0].text, samples[1].text);
  EXPECT_NE(samples[1].text, samples[2].text);
  EXPECT_NE(text(one), text(other));
}

TEST_F(Generate, SinkHearsEverythingInOrder) {
  const GenerateOptions options{
      .max_new_tokens = 25, .num_samples = 2, .sampling = {.temperature = 2}};
  std::vector<std::string> heard(2);
  int64_t latest = 0;
  const auto samples =
      generate(model, *tokenizer, options, 48, [&](int64_t number, std::string_view piece) {
        EXPECT_FALSE(piece.empty());
        EXPECT_GE(number, latest);
        latest = number;
        heard.at(static_cast<size_t>(number)) += piece;
      });
  EXPECT_EQ(heard[0], samples[0].text);
  EXPECT_EQ(heard[1], samples[1].text);
}

TEST_F(Generate, GoesOnBeyondTheWindow) {
  // Greedy samples are equal: the cache is made again where an earlier sample slid.
  const GenerateOptions options{
      .prompt = "some", .max_new_tokens = 100, .num_samples = 3, .sampling = {.temperature = 0}};
  const auto samples = generate(model, *tokenizer, options, 12, {});
  EXPECT_GT(samples[0].tokens, 12);
  EXPECT_EQ(samples[0].text, samples[1].text);
  EXPECT_EQ(samples[0].text, samples[2].text);
}

TEST_F(Generate, StopsAtEndOfText) {
  Llama stops(shape(), Policy(), {.max_length = 48, .seed = 3});
  at::NoGradGuard no_grad;
  // The end's row of the head is far along the last hidden state of this prompt.
  const GenerateOptions greedy{
      .prompt = "ab", .max_new_tokens = 12, .sampling = {.temperature = 0}};
  const at::Tensor logits =
      stops.logits(at::tensor({int64_t{'a'}, int64_t{'b'}}).unsqueeze(0))[0][-1];
  const auto best = logits.argmax().item<int64_t>();
  stops.head().weight[256].copy_(stops.head().weight[best] * 2);
  const Sample sample = generate(stops, *tokenizer, greedy, 48, {}).at(0);
  EXPECT_TRUE(sample.ended);
  EXPECT_EQ(sample.tokens, 1);
  EXPECT_EQ(sample.text, "");
}

TEST_F(Generate, StopsBeforeAString) {
  GenerateOptions options{.prompt = "ab", .max_new_tokens = 30, .sampling = {.temperature = 2}};
  const Sample whole = generate(model, *tokenizer, options, 48, {}).at(0);
  ASSERT_GT(whole.text.size(), 20u);
  options.stop = {"not there", whole.text.substr(9, 5)};
  std::string heard;
  const auto sink = [&](int64_t, std::string_view piece) { heard += piece; };
  const Sample cut = generate(model, *tokenizer, options, 48, sink).at(0);
  EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(options.stop[1])));
  EXPECT_EQ(heard, cut.text);
  EXPECT_TRUE(cut.ended);
  EXPECT_LT(cut.tokens, whole.tokens);
}

TEST_F(Generate, TokensInsteadOfAPrompt) {
  const GenerateOptions options{
      .prompt = "xy", .max_new_tokens = 12, .sampling = {.temperature = 2}};
  const GenerateOptions other{.prompt = "ab", .max_new_tokens = 12, .sampling = {.temperature = 2}};
  EXPECT_EQ(generate(model, *tokenizer, options, 48, {}, {'a', 'b'}).at(0).text, text(other));
}

TEST_F(Generate, NeverChoosesAPaddedToken) {
  const Llama padded(shape(300), Policy(), {.max_length = 48, .seed = 3});
  const GenerateOptions options{
      .max_new_tokens = 200, .num_samples = 4, .sampling = {.temperature = 50}};
  EXPECT_NO_THROW(generate(padded, *tokenizer, options, 48, {}));
}

TEST_F(Generate, RefusesBadOptions) {
  const auto refused = [&](GenerateOptions options, const char* what, int64_t window = 48) {
    EXPECT_THAT(error_of([&] { generate(model, *tokenizer, options, window, {}); }),
                testing::HasSubstr(what));
  };
  refused({.max_new_tokens = -1}, "max_new_tokens");
  refused({.num_samples = 0}, "num_samples");
  refused({.sampling = {.top_p = 2}}, "top_p");
  GenerateOptions seed;
  seed.config.seed = -1;
  refused(seed, "--seed must be at least 0, is -1");
  refused({.prompt = "four and more"}, "at most 4", 4);
  const Llama narrow(shape(100), Policy(), {.max_length = 48});
  EXPECT_THROW(generate(narrow, *tokenizer, {}, 48, {}), InputError);
  EXPECT_EQ(text({.prompt = "four", .max_new_tokens = 0}, 4), "");
}

TEST_F(Generate, ReadsAFolder) {
  const TemporaryFolder folder;
  write_model_folder(folder.path(), model.named_tensors(), write_config(model.config()));
  GenerateOptions options{.prompt = "ab", .max_new_tokens = 20, .sampling = {.temperature = 1}};
  options.config.model_name_or_path = folder.path().string();
  options.config.device = "cpu";
  std::vector<std::string> warnings;
  EXPECT_THROW(generate(options, {}, warnings), InputError);  // no tokenizer
  save_tokenizer(folder.path(), *tokenizer);
  EXPECT_EQ(generate(options, {}, warnings).at(0).text, text(options));
}

}  // namespace
}  // namespace compact
