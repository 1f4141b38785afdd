// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/prompt_dataset.h"

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <xxhash.h>

#include <cctype>

#include "compact/data/samples/split.h"
#include "compact/data/text/token_header.h"
#include "tests/data/files.h"
#include "tests/data/wide_tokenizer.h"

namespace compact {
namespace {

using test::WideTokenizer;

const WideTokenizer kBytes(257);  // end of text is 256

// Two letters of a kind, as in "aa", are one token.
class DoublesTokenizer final : public Tokenizer {
 public:
  std::vector<uint32_t> encode(std::string_view text) const override {
    std::vector<uint32_t> out;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool twice = i + 1 < text.size() && text[i + 1] == text[i];
      out.push_back(static_cast<uint32_t>(text[i]) + (twice ? 1000 : 0));
      i += twice;
    }
    return out;
  }
  std::string decode(std::span<const uint32_t>) const override { return {}; }
  int64_t vocabulary() const override { return 2000; }
  uint32_t end_of_text() const override { return 1999; }
  Cut cut() const override { return Cut::kNowhere; }
  std::string spec() const override { return "doubles"; }
  uint64_t hash() const override { return 0; }
};

std::string line_of(const std::string& prompt, const std::string& completion) {
  return "{\"prompt\": \"" + prompt + "\", \"completion\": \"" + completion + "\"}\n";
}

class Prompts : public InFolder {};

TEST_F(Prompts, EndWithEndOfText) {
  const auto samples = read_prompts(
      write_file(folder / "a.jsonl.gz", compressed(line_of("ab", "c") + line_of("", "d"), ".gz")),
      kBytes);
  EXPECT_THAT(samples.ids, ElementsAre(ElementsAre('a', 'b', 'c', 256), ElementsAre('d', 256)));
  EXPECT_THAT(samples.prompt_lengths, ElementsAre(2, 0));
  EXPECT_THAT(samples.warnings, IsEmpty());
  const auto named = read_prompts(write_file(folder / "b.tsv", "q\ta\nx\ty\n"), kBytes,
                                  {.prompt = "q", .completion = "a"});
  EXPECT_THAT(named.ids, ElementsAre(ElementsAre('x', 'y', 256)));
}

// As kBytes, with its end and a tilde as ends, at which a generation stops.
class EndsTokenizer final : public WideTokenizer {
 public:
  EndsTokenizer() : WideTokenizer(257) {}
  std::vector<uint32_t> ends() const override { return {'~', 256}; }
};

TEST_F(Prompts, BeginAndEndOnce) {
  const std::string lines =
      line_of("^ab", "c") + line_of("ab", "c~") + line_of("a~", "") + line_of("", "^~");
  const auto samples =
      read_prompts(write_file(folder / "a.jsonl", lines), EndsTokenizer(), {.begin = {'^'}});
  EXPECT_THAT(samples.ids, ElementsAre(ElementsAre('^', 'a', 'b', 'c', 256),
                                       ElementsAre('^', 'a', 'b', 'c', '~'),
                                       ElementsAre('^', 'a', '~', 256), ElementsAre('^', '~')));
  EXPECT_THAT(samples.prompt_lengths, ElementsAre(3, 3, 3, 1));
}

TEST_F(Prompts, AreCutAtTheirEnds) {
  const std::string path = write_file(
      folder / "a.jsonl", line_of("abc", "d") + line_of("abc", "de") + line_of("abcd", "e") +
                              line_of("abcdef", "g") + line_of("", "") + line_of("a", ""));
  const auto samples = read_prompts(path, kBytes, {.max_length = 4});
  EXPECT_THAT(samples.ids, ElementsAre(ElementsAre('a', 'b', 'c', 'd'),
                                       ElementsAre('a', 'b', 'c', 'd'), ElementsAre('a', 256)));
  EXPECT_THAT(samples.prompt_lengths, ElementsAre(3, 3, 1));
  EXPECT_THAT(
      samples.warnings,
      ElementsAre(
          path + ": 2 samples lost tokens at the end to have at most 4; the first is in line 1",
          path + ": 3 samples dropped: no token of the completion within 4 tokens; the first is in "
                 "line 3"));
  const auto started =
      read_prompts(path, kBytes, {.max_length = 4, .begin = {7}, .truncation = Truncation::kStart});
  EXPECT_THAT(started.ids, ElementsAre(ElementsAre(7, 'c', 'd', 256), ElementsAre(7, 'd', 'e', 256),
                                       ElementsAre(7, 'd', 'e', 256), ElementsAre(7, 'f', 'g', 256),
                                       ElementsAre(7, 256), ElementsAre(7, 'a', 256)));
  EXPECT_THAT(started.prompt_lengths, ElementsAre(2, 1, 2, 2, 1, 2));
  const auto whole = read_prompts(path, kBytes, {.max_length = 5, .truncation = Truncation::kDrop});
  EXPECT_THAT(whole.ids, ElementsAre(ElementsAre('a', 'b', 'c', 'd', 256), ElementsAre('a', 256)));
  EXPECT_THAT(
      whole.warnings,
      ElementsAre(path + ": 4 samples dropped: more than 5 tokens; the first is in line 2"));
  EXPECT_THAT(one_line_error_of([&] { read_prompts(path, kBytes, {.max_length = 1}); }),
              HasSubstr("at least 2, is 1"));
  write_file(path, line_of("abcd", "e"));
  EXPECT_THAT(one_line_error_of([&] { read_prompts(path, kBytes, {.max_length = 4}); }),
              HasSubstr("no sample has a token of its completion within 4 tokens"));
}

// A token across the border is completion, though the prompt alone ends otherwise.
TEST_F(Prompts, TokensAcrossTheBorder) {
  const auto samples =
      read_prompts(write_file(folder / "a.jsonl", line_of("xa", "ab") + line_of("xaa", "b")),
                   DoublesTokenizer());
  EXPECT_THAT(samples.ids, ElementsAre(ElementsAre('x', 'a' + 1000, 'b', 1999),
                                       ElementsAre('x', 'a' + 1000, 'b', 1999)));
  EXPECT_THAT(samples.prompt_lengths, ElementsAre(1, 2));
  EXPECT_THAT(samples.warnings, ElementsAre(HasSubstr("1 sample with a token across the end")));
}

// As Alpaca has them: what is asked stands in two fields.
TEST_F(Prompts, HaveSeveralFields) {
  const std::string path =
      write_file(folder / "a.jsonl", R"({"instruction": "i", "input": "", "output": "x"}
{"instruction": "j", "input": "in", "output": "y"}
{"instruction": "k", "output": "z"}
)");
  const auto both =
      read_prompts(path, kBytes, {.prompt = "instruction,input", .completion = "output"});
  EXPECT_THAT(both.ids, ElementsAre(ElementsAre('i', '\n', 'x', 256),
                                    ElementsAre('j', '\n', 'i', 'n', '\n', 'y', 256),
                                    ElementsAre('k', '\n', 'z', 256)));
  EXPECT_THAT(both.prompt_lengths, ElementsAre(2, 5, 2));
  const PromptOptions alone{.prompt = "instruction", .completion = "output"};
  EXPECT_THAT(one_line_error_of([&] { read_prompts(path, kBytes, alone); }),
              HasSubstr("line 2 has an `input` beside its `instruction`"));
  // Also where the first row has none, unless it is what is learnt.
  const std::string later = write_file(folder / "b.jsonl", R"({"instruction": "i", "output": "x"}
{"instruction": "j", "input": null, "output": "y"}
{"instruction": "k", "input": "in", "output": "z"}
)");
  EXPECT_THAT(one_line_error_of([&] { read_prompts(later, kBytes, alone); }),
              HasSubstr("line 3 has an `input` beside its `instruction`"));
  const std::string learnt =
      write_file(folder / "c.jsonl", "{\"instruction\": \"i\", \"input\": \"x\"}");
  EXPECT_THAT(read_prompts(learnt, kBytes, {.prompt = "instruction", .completion = "input"}).ids,
              ElementsAre(ElementsAre('i', 'x', 256)));
  const std::string table =
      write_file(folder / "d.csv", "instruction,output,input\ni,x,\nj,y,in\n");
  EXPECT_THAT(one_line_error_of([&] { read_prompts(table, kBytes, alone); }),
              HasSubstr("line 3 has an `input` beside its `instruction`"));
}

TEST_F(Prompts, RefusesOtherLines) {
  for (const auto& [line, rule] : std::vector<std::pair<std::string, std::string>>{
           {"{\"prompt\": \"a\"}", "line 2 must have a text `completion`"},
           {"{\"completion\": \"a\"}", "line 2 must have a text `prompt`"},
           {"{\"prompt\": 3, \"completion\": \"a\"}", "line 2 must have a text `prompt`"},
           {"{\"prompt\": [], \"completion\": \"a\"}",
            "field `prompt` must be a string or a number"},
           {"{", "line 2 must be JSON"}}) {
    const std::string path = write_file(folder / "a.jsonl", line_of("a", "b") + line);
    EXPECT_THAT(one_line_error_of([&, p = path] { read_prompts(p, kBytes); }), HasSubstr(rule));
  }
  const std::string path =
      write_file(folder / "a.jsonl", "{\"prompts\": \"a\", \"answer\": \"b\"}");
  EXPECT_THAT(one_line_error_of([&] { read_prompts(path, kBytes); }),
              HasSubstr("no column `prompt`; did you mean `prompts`?"));
}

// A file of samples, each of letters, capital ones with a loss.
std::string samples_file(const std::string& path, const std::vector<std::string>& samples,
                         bool begins = true, bool pairs = false) {
  std::vector<uint32_t> ids;
  for (const std::string& sample : samples) {
    for (size_t i = 0; i < sample.size(); ++i) {
      const auto letter = static_cast<uint32_t>(std::tolower(sample[i]));
      ids.push_back(letter | (i == 0 && begins ? 1u << 30 : 0) |
                    (std::isupper(sample[i]) != 0 ? 1u << 31 : 0));
    }
  }
  const std::string bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * 4);
  const TokenFileInfo info{.samples = true,
                           .pairs = pairs,
                           .width = 4,
                           .count = static_cast<int64_t>(ids.size()),
                           .vocabulary = kBytes.vocabulary(),
                           .end_of_text = 256,
                           .tokenizer_hash = kBytes.hash(),
                           .checksum = XXH3_64bits(bytes.data(), bytes.size()),
                           .tokenizer = "wide"};
  return write_file(path, encode_token_header(info) + bytes);
}

TEST_F(Prompts, ComeFromTokenFilesWithAnyTargets) {
  const std::string path = samples_file(folder / "a", {"abCdEFg", "Ab", "xY", "ABC"});
  const auto samples =
      std::make_shared<const PromptSamples>(read_token_samples(path, kBytes, {.max_length = 8}));
  EXPECT_THAT(samples->ids, ElementsAre(ElementsAre('a', 'b', 'c', 'd', 'e', 'f', 'g'),
                                        ElementsAre('x', 'y'), ElementsAre('a', 'b', 'c')));
  EXPECT_THAT(samples->prompt_lengths, ElementsAre(2, 1, 1));
  using Range = std::pair<int64_t, int64_t>;
  EXPECT_THAT(samples->silent,
              ElementsAre(ElementsAre(Range(3, 4), Range(6, 7)), IsEmpty(), IsEmpty()));
  // A first token that is learnt is nothing's next one.
  EXPECT_THAT(samples->warnings,
              ElementsAre(HasSubstr("1 sample dropped: no token of the completion "
                                    "within 8 tokens; the first is in sample 2")));
  const PromptDataset data(samples, all_samples(3), {.pad = 0, .max_length = 7}, 1);
  EXPECT_TRUE(data.in_order(0, 1).target.equal(
      at::tensor({-100, 'c' + 0, -100, 'e' + 0, 'f' + 0, -100, -100}, at::kLong).view({1, 7})));
  const auto cut = [&](Truncation how, int64_t length) {
    return read_token_samples(path, kBytes,
                              {.max_length = length, .begin = {'a'}, .truncation = how});
  };
  const auto end = cut(Truncation::kEnd, 4);
  EXPECT_THAT(end.ids[0], ElementsAre('a', 'b', 'c', 'd'));
  EXPECT_THAT(end.silent[0], ElementsAre(Range(3, 4)));
  const auto start = cut(Truncation::kStart, 6);
  EXPECT_THAT(start.ids[0], ElementsAre('a', 'c', 'd', 'e', 'f', 'g'));
  EXPECT_THAT(start.silent[0], ElementsAre(Range(2, 3), Range(5, 6)));
  EXPECT_EQ(start.prompt_lengths[0], 1);
}

TEST_F(Prompts, OtherTokenFilesAreRefused) {
  const std::string lost = samples_file(folder / "a", {"aB"}, false);
  EXPECT_THAT(one_line_error_of([&] { read_token_samples(lost, kBytes); }),
              HasSubstr("the first token must begin a sample"));
  TokenWriter writer(folder / "b", kBytes);
  writer.append(std::vector<uint32_t>{1, 2});
  writer.finish();
  EXPECT_THAT(one_line_error_of([&] { read_token_samples(folder / "b", kBytes); }),
              HasSubstr("holds text, not samples: --task language-modeling trains on it"));
  EXPECT_THAT(one_line_error_of([&] { read_token_samples(folder / "b", WideTokenizer(300)); }),
              HasSubstr("was made with the tokenizer"));
  EXPECT_THAT(
      one_line_error_of([&] { read_token_samples(samples_file(folder / "c", {}), kBytes); }),
      HasSubstr("no sample has a token"));
}

std::string pair_line(const std::string& prompt, const std::string& a, const std::string& b) {
  return "{\"prompt\": \"" + prompt + "\", \"chosen\": \"" + a + "\", \"rejected\": \"" + b +
         "\"}\n";
}
PromptOptions pair_options(int64_t length, Truncation how = Truncation::kEnd) {
  return {.completion = "chosen",
          .rejected = "rejected",
          .max_length = length,
          .begin = {'^'},
          .truncation = how};
}

TEST_F(Prompts, OfPairsAreCutAndDroppedTogether) {
  const std::string path =
      write_file(folder / "a.jsonl", pair_line("ab", "c", "defg") + pair_line("abcdefgh", "x", "") +
                                         pair_line("a", "b", "c"));
  const auto whole = read_prompts(path, kBytes, pair_options(20));
  EXPECT_TRUE(whole.pairs);
  EXPECT_EQ(whole.size(), 3);
  EXPECT_THAT(whole.ids[0], ElementsAre('^', 'a', 'b', 'c', 256));
  EXPECT_THAT(whole.ids[1], ElementsAre('^', 'a', 'b', 'd', 'e', 'f', 'g', 256));
  EXPECT_THAT(whole.ids[3], ElementsAre('^', 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 256));
  EXPECT_THAT(whole.prompt_lengths, ElementsAre(3, 3, 9, 9, 2, 2));
  const auto end = read_prompts(path, kBytes, pair_options(6));
  EXPECT_EQ(end.size(), 2);
  EXPECT_THAT(end.ids[1], ElementsAre('^', 'a', 'b', 'd', 'e', 'f'));
  EXPECT_THAT(end.ids[2], ElementsAre('^', 'a', 'b', 256));
  EXPECT_THAT(end.warnings,
              ElementsAre(HasSubstr("1 pair lost tokens at the end to have at most 6; the first is "
                                    "in line 1"),
                          HasSubstr("1 pair dropped: no token of the completion within 6 tokens; "
                                    "the first is in line 2")));
  // Both lose what the longer one has to.
  const auto start = read_prompts(path, kBytes, pair_options(7, Truncation::kStart));
  EXPECT_THAT(start.ids[0], ElementsAre('^', 'b', 'c', 256));
  EXPECT_THAT(start.ids[1], ElementsAre('^', 'b', 'd', 'e', 'f', 'g', 256));
  EXPECT_THAT(start.ids[2], ElementsAre('^', 'e', 'f', 'g', 'h', 'x', 256));
  EXPECT_THAT(start.ids[3], ElementsAre('^', 'e', 'f', 'g', 'h', 256));
  EXPECT_THAT(read_prompts(path, kBytes, pair_options(7, Truncation::kDrop)).size(), 1);
  EXPECT_THAT(one_line_error_of([&] {
                read_prompts(write_file(folder / "b.jsonl", line_of("a", "b")), kBytes,
                             pair_options(7));
              }),
              HasSubstr("no column `chosen`"));
}

TEST_F(Prompts, OfPairsDiffer) {
  const std::string path =
      write_file(folder / "a.jsonl", pair_line("a", "b", "c") + pair_line("a", "bcd", "bce") +
                                         pair_line("a", "b", "b"));
  EXPECT_EQ(read_prompts(path, kBytes, pair_options(20)).size(), 2);
  const auto cut = read_prompts(path, kBytes, pair_options(4));
  EXPECT_EQ(cut.size(), 1);
  EXPECT_THAT(cut.warnings, Contains(HasSubstr("2 pairs dropped: both answers are the same tokens; "
                                               "the first is in line 2")));
}

// One token may be made of prompt and answer; it is the answer's in both, so that both follow the
// same prompt.
TEST_F(Prompts, OfPairsAreTheSameTokens) {
  PromptOptions options = pair_options(20);
  options.begin.clear();
  const auto samples = read_prompts(write_file(folder / "a.jsonl", pair_line("xa", "ab", "b")),
                                    DoublesTokenizer(), options);
  EXPECT_THAT(samples.ids, ElementsAre(ElementsAre('x', 'a' + 1000, 'b', 1999),
                                       ElementsAre('x', 'a', 'b', 1999)));
  EXPECT_THAT(samples.prompt_lengths, ElementsAre(1, 1));
}

TEST_F(Prompts, OfPairsComeFromTokenFiles) {
  const std::string path =
      samples_file(folder / "a", {"abCD", "abE", "aBcD", "aXY", "ab", "aB"}, true, true);
  const auto samples = read_token_samples(path, kBytes, pair_options(8));
  EXPECT_EQ(samples.size(), 2);
  EXPECT_THAT(samples.prompt_lengths, ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(samples.silent[2], ElementsAre(std::pair<int64_t, int64_t>(2, 3)));
  EXPECT_THAT(samples.warnings, ElementsAre(HasSubstr("1 pair dropped: no token of the completion "
                                                      "within 8 tokens; the first is in pair 3")));
  EXPECT_THAT(one_line_error_of([&] { read_token_samples(path, kBytes); }),
              HasSubstr("--task preference trains on it"));
  const std::string single = samples_file(folder / "b", {"aB"});
  EXPECT_THAT(one_line_error_of([&] { read_token_samples(single, kBytes, pair_options(8)); }),
              HasSubstr("--task prompt-completion trains on it"));
  const std::string odd = samples_file(folder / "c", {"aB", "aC", "aD"}, true, true);
  EXPECT_THAT(one_line_error_of([&] { read_token_samples(odd, kBytes, pair_options(8)); }),
              HasSubstr("pairs must be an even number of samples, are 3"));
}

TEST_F(Prompts, OfPairsShareARow) {
  const auto samples = std::make_shared<const PromptSamples>(read_prompts(
      write_file(folder / "a.jsonl",
                 pair_line("a", "b", "cd") + pair_line("e", "", "f") + pair_line("g", "h", "i")),
      kBytes, {.completion = "chosen", .rejected = "rejected"}));
  PromptDataset data(samples, {2, 0}, {.pad = 7, .max_length = 64}, 1);
  EXPECT_EQ(data.size(), 2);
  EXPECT_EQ(data.longest_row(), 8);
  EXPECT_EQ(data.longest_sample(), 3);
  data.set_reference(at::tensor({-1.0, -2.0, -3.0, -4.0}, at::kDouble).view({2, 2}));
  const Batch batch = data.numbered(std::vector<int64_t>{1, 0});
  EXPECT_TRUE(
      batch.input.equal(at::tensor({'a' + 0, 'b' + 0, 'a' + 0, 'c' + 0, 'd' + 0, 7, 7, 7,  //
                                    'g' + 0, 'h' + 0, 'g' + 0, 'i' + 0, 7, 7, 7, 7},
                                   at::kLong)
                            .view({2, 8})));
  EXPECT_TRUE(
      batch.target.equal(at::tensor({'b' + 0, 256, 'c' + 0, 'd' + 0, 256, -100, -100, -100,  //
                                     'h' + 0, 256, 'i' + 0, 256, -100, -100, -100, -100},
                                    at::kLong)
                             .view({2, 8})));
  using Range = std::array<int64_t, 3>;
  EXPECT_THAT(batch.ranges,
              ElementsAre(Range{0, 0, 2}, Range{0, 2, 5}, Range{1, 0, 2}, Range{1, 2, 4}));
  EXPECT_EQ(batch.losses, 2);
  EXPECT_TRUE(
      batch.more.at(0).equal(at::tensor({-3.0, -4.0, -1.0, -2.0}, at::kDouble).view({2, 2})));
}

TEST(PromptDataset, TargetsAreNextTokensOfCompletions) {
  auto samples = std::make_shared<PromptSamples>();
  samples->ids = {{1, 2, 3, 4}, {5, 6}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}};
  samples->prompt_lengths = {2, 0, 9};
  PromptDataset data(samples, all_samples(3), {.pad = 77, .max_length = 10}, 1);
  EXPECT_EQ(data.longest_row(), 10);  // 9 inputs, rounded up, but never above the maximum
  const Batch b = data.in_order(0, 2);
  EXPECT_TRUE(b.input.equal(
      at::tensor({1, 2, 3, 77, 77, 77, 77, 77, 5, 77, 77, 77, 77, 77, 77, 77}, at::kLong)
          .view({2, 8})));
  EXPECT_TRUE(b.target.equal(at::tensor({-100, 3, 4, -100, -100, -100, -100, -100, 6, -100, -100,
                                         -100, -100, -100, -100, -100},
                                        at::kLong)
                                 .view({2, 8})));
  EXPECT_TRUE(b.more.empty());
  const Batch last = data.in_order(2, 1);
  EXPECT_TRUE(
      last.input.equal(at::tensor({1, 2, 3, 4, 5, 6, 7, 8, 9, 77}, at::kLong).view({1, 10})));
  EXPECT_EQ((last.target != -100).sum().item<int64_t>(), 1);
  EXPECT_EQ(last.target[0][8].item<int64_t>(), 10);
}

TEST(PromptDataset, PositionsContinueExactly) {
  auto samples = std::make_shared<PromptSamples>();
  for (int32_t i = 0; i < 9; ++i) {
    samples->ids.emplace_back(i + 2, i);
    samples->prompt_lengths.push_back(1);
  }
  const auto make = [&] { return PromptDataset(samples, all_samples(9), {.max_length = 16}, 5); };
  PromptDataset whole = make();
  for (int i = 0; i < 3; ++i) whole.next(4);
  const DataPosition here = whole.position();
  const Batch want = whole.next(4);
  PromptDataset resumed = make();
  resumed.seek(here);
  const Batch got = resumed.next(4);
  EXPECT_TRUE(got.input.equal(want.input));
  EXPECT_TRUE(got.target.equal(want.target));
}

std::shared_ptr<PromptSamples> samples_of_lengths(const std::vector<int64_t>& tokens) {
  auto samples = std::make_shared<PromptSamples>();
  int32_t id = 1;
  for (const int64_t count : tokens) {
    std::vector<int32_t>& ids = samples->ids.emplace_back(count);
    for (int32_t& each : ids) each = id++;
    samples->prompt_lengths.push_back(1);
  }
  return samples;
}

TEST(PromptDataset, PackedRowsHaveSeveralSamples) {
  const auto samples = samples_of_lengths({4, 2, 6});
  samples->prompt_lengths[2] = 3;
  samples->silent = {{}, {}, {{4, 5}}};
  PromptDataset data(samples, all_samples(3), {.pad = 77, .max_length = 9}, 1, /*packed=*/true);
  EXPECT_EQ(data.size(), 1);
  EXPECT_EQ(data.samples(), 3);
  EXPECT_EQ(data.inputs(), 3 + 1 + 5);
  EXPECT_EQ(data.longest_sample(), 5);
  const Batch b = data.next(1);
  EXPECT_TRUE(b.input.equal(at::tensor({7, 8, 9, 10, 11, 1, 2, 3, 5}, at::kLong).view({1, 9})));
  EXPECT_TRUE(
      b.target.equal(at::tensor({-100, -100, 10, -100, 12, 2, 3, 4, 6}, at::kLong).view({1, 9})));
  using Ranges = std::vector<std::array<int64_t, 3>>;
  EXPECT_EQ(b.ranges, (Ranges{{0, 0, 5}, {0, 5, 8}, {0, 8, 9}}));
  PromptDataset two(samples, all_samples(3), {.pad = 77, .max_length = 6}, 1, /*packed=*/true);
  EXPECT_EQ(two.size(), 2);
  EXPECT_EQ(two.in_order(0, 2).ranges, (Ranges{{0, 0, 5}, {0, 5, 6}, {1, 0, 3}}));
  EXPECT_EQ(two.in_order(1, 1).input.sizes(), (at::IntArrayRef{1, 6}));
  EXPECT_TRUE(PromptDataset(samples, {0, 2}, {.max_length = 9}, 1).in_order(0, 2).ranges.empty());
}

// In every epoch each sample comes once, in rows of another order.
TEST(PromptDataset, PackedEpochsHaveEverySampleOnce) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 50; ++i) lengths.push_back(2 + i * 7 % 13);
  const auto samples = samples_of_lengths(lengths);
  PromptDataset data(samples, all_samples(50), {.max_length = 16}, 3, /*packed=*/true);
  std::vector<std::vector<int64_t>> epochs;
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<int64_t> firsts;
    for (int64_t row = 0; row < data.size(); ++row) {
      const Batch b = data.next(1);
      for (const auto& [at, begin, end] : b.ranges) {
        firsts.push_back(b.input[at][begin].item<int64_t>());
      }
    }
    epochs.push_back(firsts);
    std::ranges::sort(firsts);
    std::vector<int64_t> want;
    for (const auto& ids : samples->ids) want.push_back(ids[0]);
    EXPECT_EQ(firsts, want);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_EQ(data.position(), (DataPosition{2, 0}));
}

TEST(PromptDataset, SaysHowMuchIsPadding) {
  const auto samples = samples_of_lengths({9, 9, 5, 5});  // 8, 8, 4, 4 inputs
  const Padding padding{.max_length = 16};
  const auto share = [&](bool packed, int64_t batch) {
    return PromptDataset(samples, all_samples(4), padding, 1, packed).padding_share(batch);
  };
  EXPECT_DOUBLE_EQ(share(false, 4), 1 - 24.0 / 32);
  EXPECT_DOUBLE_EQ(share(false, 1), 1 - 24.0 / 32);  // rows are multiples of 8
  EXPECT_DOUBLE_EQ(share(true, 2), 1 - 24.0 / 32);   // 16 and 8
  EXPECT_DOUBLE_EQ(share(true, 1), 0);
}

TEST(PromptDataset, RefusesWhatItCannotHave) {
  auto samples = std::make_shared<PromptSamples>();
  samples->ids = {{1}, {1, 2, 3}};
  samples->prompt_lengths = {0, 1};
  const auto fails = [&](std::vector<int64_t> chosen, Padding padding) {
    return one_line_error_of([&] { PromptDataset(samples, std::move(chosen), padding, 1); });
  };
  EXPECT_THAT(fails({}, {.max_length = 8}), HasSubstr("no samples"));
  EXPECT_THAT(fails({0}, {.max_length = 8}), HasSubstr("from 2 to 9 tokens, has 1"));
  EXPECT_THAT(fails({1}, {.max_length = 1}), HasSubstr("from 2 to 2 tokens, has 3"));
  EXPECT_THAT(fails({2}, {.max_length = 8}), HasSubstr("within 2, is 2"));
  EXPECT_THAT(fails({1}, {.multiple = -8, .max_length = 8}), HasSubstr("positive number, is -8"));
}

}  // namespace
}  // namespace compact
