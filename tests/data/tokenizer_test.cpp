// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/tokenizer.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "compact/base/file.h"
#include "compact/base/philox.h"
#include "compact/data/tokenizers/stream_encoder.h"
#include "tests/data/files.h"
#include "tests/data/small_tokenizers.h"

namespace compact {
namespace {

std::string austen_spec() { return "sentencepiece:file=" + example("austen-2048.model"); }
std::string t5_spec() { return "sentencepiece:file=" + shared_data("tokenizers/t5-spiece.model"); }
bool has_t5() { return std::filesystem::exists(shared_data("tokenizers/t5-spiece.model")); }

uint32_t crc(const std::vector<uint32_t>& tokens) {
  return static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(tokens.data()),
                                     static_cast<uInt>(tokens.size() * 4)));
}

// The tokens of `text`, fed in parts of up to `most` bytes.
std::vector<uint32_t> streamed(const Tokenizer& tokenizer, const std::string& text, size_t most,
                               size_t* held = nullptr) {
  StreamEncoder encoder(tokenizer);
  std::vector<uint32_t> tokens;
  uint64_t n = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t part = std::min(text.size() - at, 1 + philox(7, n++).v[0] % most);
    encoder.feed(std::string_view(text).substr(at, part), tokens);
    at += part;
  }
  encoder.finish(tokens);
  if (held) *held = encoder.most_held();
  return tokens;
}

class Tokenizers : public InFolder {};

TEST_F(Tokenizers, TheTableMakesEachByItsName) {
  EXPECT_EQ(tokenizers().size(), 5u);
  write_file(folder / "tokenizer.any", "x");
  const std::string prepared = write_file(
      folder / "prepared.json",
      R"({"tokenizer": {"vocabulary": 9, "ends": [8], "begin": [1], "files": ["tokenizer.any"]}})");
  for (const TokenizerEntry& entry : tokenizers()) {
    const std::string name = entry.name;
    const std::string spec = name == "bytes"           ? name
                             : name == "sentencepiece" ? austen_spec()
                             : name == "wordpiece"     ? test::small_wordpiece(folder)
                             : name == "prepared"      ? "prepared:file=" + prepared
                                                       : test::small_bpe(folder);
    const auto tokenizer = make_tokenizer(spec);
    EXPECT_EQ(tokenizer->spec(), spec);
    EXPECT_THAT(entry.usage, HasSubstr(entry.name));
    EXPECT_EQ(make_tokenizer(tokenizer->spec())->hash(), tokenizer->hash());
    EXPECT_LT(tokenizer->end_of_text(), tokenizer->vocabulary());
  }
  EXPECT_NE(make_tokenizer("bytes")->hash(), make_tokenizer(austen_spec())->hash());
}

TEST_F(Tokenizers, BadSpecs) {
  const auto fails = [](const std::string& spec) {
    return one_line_error_of([&] { make_tokenizer(spec); });
  };
  EXPECT_THAT(fails("byte"), HasSubstr("did you mean `bytes`?"));
  EXPECT_THAT(fails("sentencpiece:file=a"), HasSubstr("did you mean `sentencepiece`?"));
  EXPECT_THAT(fails("gpt2"), HasSubstr("known: bytes sentencepiece:file=PATH wordpiece:file=PATH"));
  EXPECT_THAT(fails("bytes:file=a"), HasSubstr("no setting `file`"));
  EXPECT_THAT(fails("sentencepiece"), HasSubstr("needs file=PATH"));
  EXPECT_THAT(fails("sentencepiece:files=a"), HasSubstr("did you mean `file`?"));
  EXPECT_THAT(fails(""), HasSubstr("needs a name"));
}

TEST_F(Tokenizers, BadModelFiles) {
  const auto fails = [](const std::string& path) {
    return one_line_error_of([&] { make_tokenizer("sentencepiece:file=" + path); });
  };
  const std::string missing = folder / "missing.model";
  EXPECT_THAT(fails(missing), HasSubstr(missing + ": cannot be read"));
  EXPECT_THAT(fails(write_file(folder / "empty.model", "")), HasSubstr("is empty"));
  EXPECT_THAT(fails(folder.path()), HasSubstr("is a folder"));
  EXPECT_THAT(fails(write_file(folder / "text.model", "just some text\n")),
              HasSubstr("must be a SentencePiece model"));
  const std::string whole = slurp(example("austen-2048.model"));
  for (const size_t size : {1u, 10u, 1000u, 20000u, static_cast<unsigned>(whole.size() - 1)}) {
    EXPECT_THAT(fails(write_file(folder / "cut.model", whole.substr(0, size))),
                HasSubstr("cut.model: "))
        << size;
  }
}

TEST(BytesTokenizer, EveryByteComesBack) {
  const auto tokenizer = make_tokenizer("bytes");
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  std::vector<uint32_t> tokens = tokenizer->encode(all);
  ASSERT_EQ(tokens.size(), 256u);
  EXPECT_EQ(tokens[255], 255u);
  EXPECT_EQ(tokenizer->vocabulary(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 256u);
  tokens.push_back(256);
  EXPECT_EQ(tokenizer->decode(tokens), all);
  EXPECT_THAT(one_line_error_of([&] { tokenizer->decode(std::vector<uint32_t>{257}); }),
              HasSubstr("is 257"));
  EXPECT_EQ(streamed(*tokenizer, all + all, 5), tokenizer->encode(all + all));
  EXPECT_TRUE(tokenizer->encode("").empty());
}

// The results of the Python package, stored by make_expected.py.
void compare_with_python(const std::string& name, const std::string& spec) {
  const auto tokenizer = make_tokenizer(spec);
  const auto expected = nlohmann::json::parse(
      slurp(COMPACT_SOURCE_DIR "/tests/data/sentencepiece_expected.json"))[name];
  EXPECT_EQ(tokenizer->vocabulary(), expected["vocabulary"].get<int64_t>());
  EXPECT_EQ(tokenizer->end_of_text(), expected["end_of_text"].get<uint32_t>());
  ASSERT_GE(expected["texts"].size(), 10u);
  for (const auto& row : expected["texts"]) {
    const std::string text = row["text"];
    const std::vector<uint32_t> ids = row["ids"], ours = tokenizer->encode(text);
    if (text.starts_with("</s>")) {  // special tokens, which the library alone does not look for
      EXPECT_EQ(ours[0], tokenizer->end_of_text());
      EXPECT_EQ(tokenizer->decode(std::span(ours).first(1)), "");
      continue;
    }
    EXPECT_EQ(ours, ids) << text;
    std::string decoded = row["decoded"];
    const std::string unknown = " \xE2\x81\x87 ";  // gives no text here
    for (size_t at = 0; (at = decoded.find(unknown)) != decoded.npos;) {
      decoded.erase(at, unknown.size());
    }
    EXPECT_EQ(tokenizer->decode(ids), decoded);
  }
  // A whole novel in one call there, in a stream of small parts here.
  const std::string novel = slurp(example("hard-times.txt"));
  size_t held = 0;
  const std::vector<uint32_t> tokens = streamed(*tokenizer, novel, 5000, &held);
  EXPECT_EQ(tokens.size(), expected["novel_tokens"].get<size_t>());
  EXPECT_EQ(crc(tokens), expected["novel_crc32"].get<uint32_t>());
  EXPECT_LT(held, 2 * kStreamGather);
}

TEST(SentencePiece, BundledModelAsInPython) { compare_with_python("austen", austen_spec()); }

TEST(SentencePiece, T5AsInPython) {
  if (!has_t5()) GTEST_SKIP() << "no tokenizers/t5-spiece.model in $COMPACT_DATA";
  compare_with_python("t5", t5_spec());
}

TEST(SentencePiece, TextComesBack) {
  const auto tokenizer = make_tokenizer(austen_spec());
  const std::string novel = slurp(example("pride-and-prejudice.txt")).substr(0, 100000);
  for (const std::string& text :
       {novel, std::string("  \n\n \xE2\x82\xAC \xF0\x9F\x98\x80\t"), std::string()}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
  std::vector<uint32_t> tokens = tokenizer->encode("One.");
  tokens.push_back(tokenizer->end_of_text());
  EXPECT_EQ(tokenizer->decode(tokens), "One.");
  EXPECT_THAT(one_line_error_of([&] { tokenizer->decode(std::vector<uint32_t>{2048}); }),
              HasSubstr("must be below 2048, is 2048"));
  EXPECT_THAT(one_line_error_of([&] { tokenizer->decode(std::vector<uint32_t>{~0u}); }),
              HasSubstr("is 4294967295"));
  const std::map<std::string, std::string> files = tokenizer->files();
  ASSERT_EQ(files.size(), 2u);  // tests/tasks/tokenizer_folders.py reads tokenizer.json
  EXPECT_EQ(files.at("tokenizer.model"), slurp(example("austen-2048.model")));
}

TEST(SentencePiece, EndsWhereAGenerationStops) {
  const TextFolder folder;
  const std::string spec = "sentencepiece:file=" + write_file(folder / "tokenizer.model",
                                                              slurp(example("austen-2048.model")));
  const uint32_t own = make_tokenizer(spec)->end_of_text();
  write_file(folder / "generation_config.json", R"({"eos_token_id": [1000, 4000]})");
  const auto tokenizer = make_tokenizer(spec);
  EXPECT_NE(own, 1000u);
  EXPECT_EQ(tokenizer->end_of_text(), 1000u);
  EXPECT_FALSE(tokenizer->config().contains("eos_token"));
  EXPECT_THAT(tokenizer->warnings(), ElementsAre(HasSubstr("the token 4000, which the tokenizer"),
                                                 HasSubstr("which is an ordinary one")));
  write_file(folder / "generation_config.json", cat(R"({"eos_token_id": [1000, )", own, "]}"));
  EXPECT_EQ(make_tokenizer(spec)->end_of_text(), own);
  EXPECT_THAT(make_tokenizer(spec)->warnings(), ElementsAre());
}

TEST(SentencePiece, InvalidUtf8BecomesTheReplacementCharacter) {
  const auto tokenizer = make_tokenizer(austen_spec());
  EXPECT_EQ(tokenizer->encode("a\xFF\xE2\x82z"), tokenizer->encode("a\xEF\xBF\xBD\xEF\xBF\xBDz"));
  StreamEncoder encoder(*tokenizer);
  std::vector<uint32_t> tokens;
  encoder.feed("a\xFF\xE2", tokens);
  encoder.feed("\x82z\xC3", tokens);
  encoder.finish(tokens);
  EXPECT_EQ(tokens, tokenizer->encode("a\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD"));
  EXPECT_EQ(encoder.replaced(), 3);
}

// Words and other things that may stand beside a space: white space, wide characters, combining
// marks, ligatures, characters that normalisation turns into a space and more.
const char* const kNeighbours[] = {"and",
                                   ",",
                                   "17",
                                   "\n",
                                   " ",
                                   "\t",
                                   "\xC2\xA0",
                                   "\xC2\xA8",
                                   "\xCC\x81",
                                   "\xC3\xA9t",
                                   "\xD0\xBE",
                                   "\xE1\x9A\x80",
                                   "\xE2\x80\x89",
                                   "\xE3\x80\x80",
                                   "\xE6\x97\xA5",
                                   "\xEF\xAC\x81",
                                   "\xF0\x9F\x98\x80"};

TEST(StreamEncoder, AwkwardSpacesStayTogether) {
  std::string text;
  for (uint64_t i = 0; text.size() < 200000; ++i) {
    text += kNeighbours[philox(3, i).v[0] % std::size(kNeighbours)];
    if (philox(4, i).v[0] % 3 == 0) text += ' ';
  }
  for (const std::string& spec : {austen_spec(), t5_spec()}) {
    if (spec == t5_spec() && !has_t5()) continue;
    const auto tokenizer = make_tokenizer(spec);
    EXPECT_EQ(tokenizer->cut(), Cut::kAtSpace);
    EXPECT_EQ(streamed(*tokenizer, text, 3000), tokenizer->encode(text)) << spec;
  }
}

// The library tries them on a model without the rules, which are applied here.
TEST_F(Tokenizers, SentencePieceSamplesThatNeedRulesAreNotTried) {
  const std::string model = read_text(COMPACT_SOURCE_DIR "/tests/data/spaces.model", 1 << 24);
  const std::string file = write_file(folder / "m.model", model +
                                                              "\x22\x17\n\x15\n\x06to\xC2\xA0"
                                                              "be\x12\x0B▁to ▁be");
  const auto tokenizer = make_tokenizer("sentencepiece:file=" + file);
  EXPECT_EQ(tokenizer->encode("to\u00A0be"), tokenizer->encode("to be"));
}

TEST(StreamEncoder, ACutBetweenAnyTwoNeighboursChangesNothing) {
  // A model with pieces that are runs of spaces, and a normaliser that makes more spaces.
  const auto tokenizer =
      make_tokenizer("sentencepiece:file=" COMPACT_SOURCE_DIR "/tests/data/spaces.model");
  std::string start;
  while (start.size() < kStreamGather - 60) start += "to be ";
  for (const std::string left : kNeighbours) {
    for (const std::string right : kNeighbours) {
      // The space between the two is the last one when the encoder looks for a cut.
      const std::string text = start + left + " " + right + std::string(60, 'm') + " the end";
      StreamEncoder encoder(*tokenizer);
      std::vector<uint32_t> tokens;
      encoder.feed(text, tokens);
      EXPECT_FALSE(tokens.empty());
      encoder.finish(tokens);
      EXPECT_EQ(tokens, tokenizer->encode(text)) << "`" << left << " " << right << "`";
    }
  }
}

TEST(StreamEncoder, TextWithoutSpacesIsHeldWithinItsLimit) {
  const auto tokenizer = make_tokenizer(austen_spec());
  std::string wide, lines;
  while (wide.size() < 1300000) wide += "\xE6\x97\xA5\xE6\x9C\xAC";
  while (lines.size() < 1300000) lines += "and\nthe\n";
  for (const std::string& text : {wide, lines}) {
    size_t held = 0;
    const std::vector<uint32_t> tokens = streamed(*tokenizer, text, 100000, &held);
    EXPECT_LE(held, (size_t{1} << 20) + 2 * kStreamGather);
    // A cut between characters: no byte is lost, only a space may be put in.
    std::string back = tokenizer->decode(tokens);
    std::erase(back, ' ');
    EXPECT_EQ(back, text);
  }
}

TEST(StreamEncoder, IsReadyForTheNextDocument) {
  const auto tokenizer = make_tokenizer(austen_spec());
  StreamEncoder encoder(*tokenizer);
  std::vector<uint32_t> first, second, none;
  encoder.feed("one half\xC3", first);
  encoder.finish(first);
  encoder.feed("\xA9 two", second);
  encoder.finish(second);
  encoder.finish(none);
  EXPECT_EQ(first, tokenizer->encode("one half\xEF\xBF\xBD"));
  EXPECT_EQ(second, tokenizer->encode("\xEF\xBF\xBD two"));
  EXPECT_TRUE(none.empty());
}

}  // namespace
}  // namespace compact
