// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/language_task.h"

#include <gtest/gtest.h>

#include "compact/data/text/prompt_dataset.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

// Bytes, with or without a file that says what stands around sentences.
class Bytes final : public Tokenizer {
 public:
  explicit Bytes(std::optional<SequenceFormat> format) : format_(std::move(format)) {}
  std::vector<uint32_t> encode(std::string_view text) const override {
    return bytes_->encode(text);
  }
  std::string decode(std::span<const uint32_t> tokens) const override {
    return bytes_->decode(tokens);
  }
  int64_t vocabulary() const override { return bytes_->vocabulary(); }
  uint32_t end_of_text() const override { return bytes_->end_of_text(); }
  Cut cut() const override { return bytes_->cut(); }
  std::string spec() const override { return "bytes"; }
  uint64_t hash() const override { return 1; }
  std::optional<SequenceFormat> sequence_format() const override { return format_; }

 private:
  std::unique_ptr<Tokenizer> bytes_ = make_tokenizer("bytes");
  std::optional<SequenceFormat> format_;
};

using Ids = std::vector<uint32_t>;

TEST(LanguageTask, PromptsBeginAsTheTokenizersFilesSay) {
  const TokenIds named{.vocabulary = 257, .bos = 7, .eos = {}}, unnamed{.vocabulary = 257};
  EXPECT_EQ(begin_of_prompt(Bytes(SequenceFormat{}), named), Ids{});
  EXPECT_EQ(begin_of_prompt(Bytes(SequenceFormat{.begin = {3, 4}}), named), (Ids{3, 4}));
  EXPECT_EQ(begin_of_prompt(Bytes(SequenceFormat{.begin = {3}}), unnamed), Ids{3});
  EXPECT_EQ(begin_of_prompt(Bytes({}), named), Ids{7});
  EXPECT_EQ(begin_of_prompt(Bytes({}), unnamed), Ids{});
}

TEST(LanguageTask, SamplesOfPromptsBeginSoToo) {
  const TemporaryFolder folder;
  spill(folder / "a.jsonl", R"({"prompt": "ab", "completion": "c"})"
                            "\n");
  const Bytes tokenizer{std::nullopt};
  const PromptSamples samples =
      read_prompts((folder / "a.jsonl").string(), tokenizer, {.begin = {7, 8}});
  EXPECT_EQ(samples.ids, (std::vector<std::vector<int32_t>>{{7, 8, 'a', 'b', 'c', 256}}));
  EXPECT_EQ(samples.prompt_lengths, std::vector<int64_t>{4});
}

}  // namespace
}  // namespace compact
