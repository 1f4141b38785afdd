// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/text_pair_dataset.h"

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "compact/base/text.h"
#include "compact/data/samples/split.h"
#include "compact/data/text/glue.h"
#include "tests/data/files.h"

namespace compact {
namespace {

using testing::Each;

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
const SequenceFormat kBert{.begin = {2}, .middle = {3}, .end = {3}, .pad = 0, .second_type = true};

// "w7 w8" -> 17, 18.
std::vector<uint32_t> words(std::string_view text) {
  std::vector<uint32_t> out;
  for (const std::string& word : split(text, ' ')) {
    if (!word.empty()) out.push_back(10 + static_cast<uint32_t>(std::stoi(word.substr(1))));
  }
  return out;
}

TEST(EncodeTexts, AsThePythonPackageDoes) {
  const auto expected =
      nlohmann::json::parse(slurp(COMPACT_SOURCE_DIR "/tests/data/pairs_expected.json"));
  ASSERT_GT(expected["rows"].size(), 200u);
  for (const auto& row : expected["rows"]) {
    const auto& form = expected["forms"][row["form"].get<std::string>()];
    const SequenceFormat format{.begin = form["begin"],
                                .middle = form["middle"],
                                .end = form["end"],
                                .second_type = form["second_type"]};
    LabelledTexts texts{.first = {row["texts"][0]}, .labels = {1}};
    if (row["texts"].size() == 2) texts.second = {row["texts"][1]};
    const EncodedTexts got = encode_texts(texts, words, format, row["length"]);
    EXPECT_EQ(got.ids[0], row["ids"].get<std::vector<int32_t>>()) << row;
    std::vector<int> types(got.ids[0].size());
    std::fill(types.begin() + got.second_begin[0], types.end(), 1);
    EXPECT_EQ(types, row["types"].get<std::vector<int>>()) << row;
  }
}

TEST(EncodeTexts, CountsWhatWasCut) {
  const LabelledTexts texts{.first = {"w1 w2 w3", "w1 w2", ""}, .labels = {0, 1, kNone}};
  const EncodedTexts got = encode_texts(texts, words, kBert, 4);
  EXPECT_THAT(got.ids,
              ElementsAre(ElementsAre(2, 11, 12, 3), ElementsAre(2, 11, 12, 3), ElementsAre(2, 3)));
  EXPECT_THAT(got.second_begin, ElementsAre(4, 4, 2));
  EXPECT_EQ(got.cut, 1);
  EXPECT_EQ(got.labels[1], 1);
  const LabelledTexts pairs{.first = {"w1", "w1 w2"}, .second = {"w3", "w3"}, .labels = {0, 0}};
  EXPECT_EQ(encode_texts(pairs, words, kBert, 5).cut, 1);
}

TEST(EncodeTexts, RefusesWhatDoesNotFit) {
  const LabelledTexts single{.first = {"w1"}, .labels = {0}};
  const LabelledTexts pair{.first = {"w1"}, .second = {"w2"}, .labels = {0}};
  EXPECT_THAT(one_line_error_of([&] { encode_texts(single, words, kBert, 2); }),
              HasSubstr("the length must be at least 3, the special tokens and one of each text"));
  EXPECT_NO_THROW(encode_texts(single, words, kBert, 3));
  EXPECT_THAT(one_line_error_of([&] { encode_texts(pair, words, kBert, 4); }),
              HasSubstr("at least 5"));
  EXPECT_THAT(one_line_error_of([&] { encode_texts(pair, words, kBert, -7); }), HasSubstr("is -7"));
  const auto large = [](std::string_view) { return std::vector<uint32_t>{1u << 31}; };
  EXPECT_THAT(one_line_error_of([&] { encode_texts(single, large, kBert, 8); }),
              HasSubstr("below 2^31, is 2147483648"));
  EXPECT_THROW(encode_texts({.first = {"w1"}, .labels = {}}, words, kBert, 8), InputError);
  EXPECT_THROW(
      encode_texts({.first = {"w1"}, .second = {"w1", "w2"}, .labels = {0}}, words, kBert, 8),
      InputError);
}

// Text i has i + 1 tokens of value i, the last half of them of type 1, and the label i.
std::shared_ptr<EncodedTexts> rising(int64_t count) {
  auto texts = std::make_shared<EncodedTexts>();
  for (int64_t i = 0; i < count; ++i) {
    texts->ids.emplace_back(i + 1, static_cast<int32_t>(i));
    texts->second_begin.push_back(i + 1 - (i + 1) / 2);
    texts->labels.push_back(static_cast<float>(i));
  }
  return texts;
}

TEST(TextPairDataset, PadsToTheLongestOfTheBatch) {
  const auto texts = rising(30);
  TextPairDataset data(texts, {2, 0, 8, 20, 29}, {.pad = 99, .multiple = 8, .max_length = 30},
                       TextTarget::kClass, 1);
  EXPECT_EQ(data.longest_row(), 30);  // not 32
  const auto lengths = [&](int64_t first, int64_t count) {
    return data.in_order(first, count).input.size(1);
  };
  EXPECT_EQ(lengths(0, 2), 8);
  EXPECT_EQ(lengths(1, 2), 16);
  EXPECT_EQ(lengths(3, 1), 24);
  EXPECT_EQ(lengths(0, 5), 30);

  const Batch b = data.in_order(0, 2);
  EXPECT_TRUE(b.input.equal(
      at::tensor({2, 2, 2, 99, 99, 99, 99, 99, 0, 99, 99, 99, 99, 99, 99, 99}, at::kLong)
          .view({2, 8})));
  ASSERT_EQ(b.more.size(), 2u);
  EXPECT_TRUE(b.more[0].equal(
      at::tensor({0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, at::kLong).view({2, 8})));
  EXPECT_TRUE(b.more[1].equal(at::tensor({3, 1}, at::kLong)));
  EXPECT_TRUE(b.target.equal(at::tensor({2, 0}, at::kLong)));
  // A length that is a multiple already stays, and other multiples work.
  EXPECT_EQ(TextPairDataset(texts, {7}, {.max_length = 30}, TextTarget::kClass, 1).longest_row(),
            8);
  EXPECT_EQ(TextPairDataset(texts, {7}, {.multiple = 1, .max_length = 30}, TextTarget::kClass, 1)
                .in_order(0, 1)
                .input.size(1),
            8);
}

TEST(TextPairDataset, LabelsThatAreNone) {
  const auto texts = rising(3);
  texts->labels[1] = kNone;
  texts->labels[2] = 2;
  const Batch classes =
      TextPairDataset(texts, all_samples(3), {.max_length = 8}, TextTarget::kClass, 1)
          .in_order(0, 3);
  EXPECT_TRUE(classes.target.equal(at::tensor({0, -100, 2}, at::kLong)));
  texts->labels[2] = -2.5;
  const Batch values =
      TextPairDataset(texts, all_samples(3), {.max_length = 8}, TextTarget::kValue, 1)
          .in_order(0, 3);
  EXPECT_EQ(values.target.scalar_type(), at::kFloat);
  EXPECT_EQ(values.target[2].item<float>(), -2.5);
  EXPECT_TRUE(std::isnan(values.target[1].item<float>()));
}

TEST(TextPairDataset, PositionsContinueExactly) {
  const auto texts = rising(11);
  const auto make = [&] {
    return TextPairDataset(texts, all_samples(11), {.max_length = 16}, TextTarget::kClass, 5);
  };
  TextPairDataset whole = make();
  for (int i = 0; i < 4; ++i) whole.next(4);
  const DataPosition here = whole.position();
  EXPECT_EQ(here, (DataPosition{1, 5}));
  const Batch want = whole.next(4);
  TextPairDataset resumed = make();
  resumed.seek(here);
  const Batch got = resumed.next(4);
  EXPECT_TRUE(got.input.equal(want.input));
  EXPECT_TRUE(got.more[0].equal(want.more[0]));
  EXPECT_TRUE(got.target.equal(want.target));
}

TEST(TextPairDataset, RefusesWhatItCannotHave) {
  const auto fails = [&](const std::shared_ptr<EncodedTexts>& texts, std::vector<int64_t> chosen,
                         Padding padding = {.max_length = 8}) {
    return one_line_error_of(
        [&] { TextPairDataset(texts, std::move(chosen), padding, TextTarget::kClass, 1); });
  };
  EXPECT_THAT(fails(rising(3), {}), HasSubstr("no texts"));
  EXPECT_THAT(fails(rising(3), {3}), HasSubstr("within 3, is 3"));
  EXPECT_THAT(fails(rising(3), {-1}), HasSubstr("within 3, is -1"));
  EXPECT_THAT(fails(rising(9), {8}), HasSubstr("text 8 must have from 1 to 8 tokens, has 9"));
  EXPECT_THAT(fails(rising(3), {0}, {.multiple = 0, .max_length = 8}), HasSubstr("is 0"));
  const auto texts = rising(3);
  texts->ids[1].clear();
  EXPECT_THAT(fails(texts, {1}), HasSubstr("tokens, has 0"));
  for (const float bad : {-1.0f, .5f, 1e10f, HUGE_VALF}) {
    texts->labels[0] = bad;
    EXPECT_THAT(fails(texts, {0}), HasSubstr("must be a class's number"));
  }
}

// Every sentence of CoLA once an epoch, each as long as its words.
TEST(TextPairDataset, Cola) {
  const std::string folder = shared_data("glue/CoLA");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no glue/CoLA in $COMPACT_DATA";
  const LabelledTexts texts = read_glue(glue_task("cola"), folder, "dev");
  const auto letters = [](std::string_view text) {
    std::vector<uint32_t> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  };
  const auto encoded = std::make_shared<EncodedTexts>(encode_texts(texts, letters, kBert, 64));
  const auto count = static_cast<int64_t>(texts.first.size());
  TextPairDataset data(encoded, all_samples(count), {.max_length = 64}, TextTarget::kClass, 2);
  int64_t ones = 0, tokens = 0, want = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const Batch b = data.next(std::min<int64_t>(16, count - i));
    ones += b.target.sum().item<int64_t>();
    tokens += b.more[1].sum().item<int64_t>();
    EXPECT_TRUE(b.input.size(1) % 8 == 0 && b.input.size(1) <= 64);
    EXPECT_LT(b.input.size(1) - b.more[1].max().item<int64_t>(), 8);
  }
  for (const std::string& text : texts.first) {
    want += std::min<int64_t>(64, static_cast<int64_t>(text.size()) + 2);
  }
  EXPECT_EQ(ones, 721);
  EXPECT_EQ(tokens, want);
  EXPECT_GT(encoded->cut, 0);
}

}  // namespace
}  // namespace compact
