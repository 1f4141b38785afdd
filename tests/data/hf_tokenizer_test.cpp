// SPDX-License-Identifier: Apache-2.0
// `wordpiece` and `bpe`: what they do on small vocabularies, and what they refuse. That their
// tokens are those of Hugging Face's library is tests/data/tokenizers.py.
#include <gmock/gmock.h>

#include <chrono>
#include <span>
#include <thread>

#include "compact/base/philox.h"
#include "compact/data/tokenizers/stream_encoder.h"
#include "compact/data/tokenizers/tokenizer.h"
#include "tests/data/small_tokenizers.h"

namespace compact {
namespace {

using namespace test;  // NOLINT: helpers of this layer's tests

using Change = std::function<void(json&)>;

using Ids = std::vector<uint32_t>;

std::string error_of(const std::string& spec) {
  return one_line_error_of([&] { make_tokenizer(spec); });
}

// A text of these parts, by a key, is encoded piece by piece as it is whole.
void expect_cuts_change_nothing(const Tokenizer& tokenizer, std::span<const char* const> parts,
                                uint64_t key) {
  std::string text;
  for (uint64_t i = 0; text.size() < 100000; ++i) {
    text += parts[philox(key, i).v[0] % parts.size()];
    if (philox(key + 1, i).v[0] % 3 == 0) text += ' ';
  }
  StreamEncoder stream(tokenizer);
  std::vector<uint32_t> tokens;
  stream.feed(text, tokens);
  EXPECT_FALSE(tokens.empty()) << key;
  stream.finish(tokens);
  EXPECT_EQ(tokens, tokenizer.encode(text)) << key;
}

TEST(WordPiece, LongestPiecesFirst) {
  const TextFolder folder;
  const auto tokenizer = make_tokenizer(small_wordpiece(folder));
  EXPECT_EQ(tokenizer->vocabulary(), 20);
  EXPECT_THAT(tokenizer->encode("UNaffable,the  Wants!"), ElementsAre(6, 7, 8, 10, 5, 13, 18, 12));
  EXPECT_THAT(tokenizer->encode("unx [MASK] d\xC3\xA9 [mask]"), ElementsAre(1, 4, 1, 1, 1, 1));
  EXPECT_THAT(tokenizer->encode("a\xE6\x97\xA5"
                                "a \xC3\x81"),
              ElementsAre(9, 19, 9, 9));
  EXPECT_THAT(tokenizer->encode(""), IsEmpty());
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("[CLS] Unaffable, wants a.")),
            "unaffable, wants a.");
  EXPECT_EQ(tokenizer->end_of_text(), 3u);
  const auto cased = make_tokenizer("wordpiece:lowercase=false,file=" + (folder / "vocab.txt"));
  EXPECT_THAT(cased->encode("The the"), ElementsAre(1, 5));
  EXPECT_NE(cased->hash(), tokenizer->hash());
  EXPECT_EQ(make_tokenizer(cased->spec())->hash(), cased->hash());
}

TEST(WordPiece, LongWordsAreUnknown) {
  const TextFolder folder;
  const auto tokenizer = make_tokenizer(wordpiece_of(folder, wordpiece_json()));
  json root = wordpiece_json();
  root["model"]["vocab"]["##a"] = 20;
  const TextFolder other;
  const auto longer = make_tokenizer(wordpiece_of(other, root));
  EXPECT_EQ(longer->encode(std::string(10, 'a')).size(), 10u);
  EXPECT_THAT(longer->encode(std::string(11, 'a')), ElementsAre(1));
  EXPECT_NE(longer->hash(), tokenizer->hash());
}

TEST(WordPiece, SequenceFormat) {
  const TextFolder folder;
  for (const std::string& spec :
       {small_wordpiece(folder), wordpiece_of(folder, wordpiece_json())}) {
    const auto format = make_tokenizer(spec)->sequence_format();
    ASSERT_TRUE(format) << spec;
    EXPECT_THAT(format->begin, ElementsAre(2));
    EXPECT_THAT(format->middle, ElementsAre(3));
    EXPECT_THAT(format->end, ElementsAre(3));
    EXPECT_EQ(format->pad, 0u);
    EXPECT_TRUE(format->second_type);
  }
}

class ByteBpe : public InFolder {};

TEST_F(ByteBpe, MergesInTheirOrder) {
  const auto tokenizer = make_tokenizer(small_bpe(folder));
  const auto id = [&](const char* token) {
    return bpe_json()["model"]["vocab"][token].get<uint32_t>();
  };
  EXPECT_THAT(tokenizer->encode("the the"), ElementsAre(id("the"), id("\xC4\xA0the")));
  // ab before bc, however they stand.
  EXPECT_THAT(tokenizer->encode("abc"), ElementsAre(id("ab"), id("c")));
  EXPECT_THAT(tokenizer->encode("bcabab"), ElementsAre(id("bc"), id("abab")));
  EXPECT_THAT(tokenizer->encode("ababab"), ElementsAre(id("abab"), id("ab")));
  const uint32_t end = tokenizer->end_of_text();
  EXPECT_THAT(tokenizer->encode("a<|endoftext|>b"), ElementsAre(id("a"), end, id("b")));
  EXPECT_EQ(tokenizer->decode(std::vector<uint32_t>{id("\xC4\xA0the"), end, id("a")}), " thea");
  // Bytes that are no token are left out, as in the library; here all but ASCII.
  EXPECT_THAT(tokenizer->encode("a\xC3\xA9"), ElementsAre(id("a")));
}

TEST_F(ByteBpe, UnknownTokensAndIgnoredMerges) {
  json root = bpe_json();
  root["model"]["unk_token"] = "?";
  const uint32_t unknown = root["model"]["vocab"]["?"], a = root["model"]["vocab"]["a"];
  EXPECT_THAT(make_tokenizer(small_bpe(folder, root))->encode("a\xC3\xA9"),
              ElementsAre(a, unknown, unknown));
  root["model"]["fuse_unk"] = true;
  EXPECT_THAT(make_tokenizer(small_bpe(folder, root))->encode("a\xC3\xA9"),
              ElementsAre(a, unknown));
  root["model"]["vocab"]["xyz"] = 102;  // after the token of end of text, which is 102 now
  root["added_tokens"][0]["id"] = 103;
  EXPECT_EQ(make_tokenizer(small_bpe(folder, root))->encode("xyz").size(), 3u);
  root["model"]["ignore_merges"] = true;
  EXPECT_THAT(make_tokenizer(small_bpe(folder, root))->encode("xyz"), ElementsAre(102));
}

TEST_F(ByteBpe, OneLongWordTakesNoQuadraticTime) {
  const auto tokenizer = make_tokenizer(small_bpe(folder));
  std::string word;
  while (word.size() < (size_t{1} << 20)) word += "ab";
  EXPECT_EQ(tokenizer->encode(word).size(), word.size() / 4);
  const std::string hostile = std::string(1 << 20, ' ') + std::string(1 << 20, '\n') + "a";
  EXPECT_EQ(tokenizer->encode(hostile).size(), hostile.size());
}

TEST_F(ByteBpe, ManyMarksInALineTakeNoQuadraticTime) {
  json root = bpe_json();
  root["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = make_tokenizer(small_bpe(folder, root));
  std::string line = "e", sorted;
  for (int i = 0; i < 300000; ++i) line += i % 2 == 0 ? "\u0301" : "\u0327";
  EXPECT_THAT(tokenizer->encode(line), testing::IsEmpty());  // bytes that are no tokens
  EXPECT_EQ(tokenizer->encode("a" + line.substr(1) + "z").size(), 1u);
}

// A tokenizer.json as LLaMA 2 has it: `a`, `b`, the mark of a space, bytes.
json metaspace_json() {
  json vocab{{"<unk>", 0},  {"</s>", 1},    {"a", 2}, {"b", 3},
             {"\u2581", 4}, {"\u2581a", 5}, {"ab", 6}};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    vocab[name] = 7 + byte;
  }
  const auto replace = [](const char* from, const char* to) {
    return json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  json root = bpe_json();
  root["added_tokens"] = json::array({added_token("<unk>", 0), added_token("</s>", 1)});
  root["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       json::array({json{{"type", "Prepend"}, {"prepend", "\u2581"}}, replace(" ", "\u2581")})}};
  root["pre_tokenizer"] = nullptr;
  root["decoder"] = {
      {"type", "Sequence"},
      {"decoders",
       json::array({replace("\u2581", " "), json{{"type", "ByteFallback"}}, json{{"type", "Fuse"}},
                    json{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})}};
  root["model"]["vocab"] = vocab;
  root["model"]["merges"] = json::array({json::array({"\u2581", "a"}), json::array({"a", "b"})});
  root["model"]["byte_fallback"] = true;
  root["model"]["fuse_unk"] = true;
  root["model"]["unk_token"] = "<unk>";
  return root;
}

TEST(Metaspace, CharactersThatAreNoTokensAreTheirBytes) {
  const TextFolder folder;
  const auto tokenizer = make_tokenizer(small_bpe(folder, metaspace_json()));
  const std::vector<uint32_t> ids = tokenizer->encode("ab a\u00E9</s>b");
  EXPECT_THAT(ids, ElementsAre(5, 3, 5, 7 + 0xC3, 7 + 0xA9, 1, 4, 3));
  EXPECT_EQ(tokenizer->decode(ids), "ab a\u00E9 b");
  EXPECT_EQ(tokenizer->decode(std::vector<uint32_t>{2, 7 + 0xC3, 3}), "a\uFFFDb");
  EXPECT_EQ(tokenizer->cut(), Cut::kAtSpace);
  json root = metaspace_json();
  root["normalizer"] = root["normalizer"]["normalizers"][1];
  EXPECT_EQ(make_tokenizer(small_bpe(folder, root))->cut(), Cut::kBeforeSpace);
  root["model"]["vocab"]["b\u2581"] = 263;  // a token across words
  EXPECT_EQ(make_tokenizer(small_bpe(folder, root))->cut(), Cut::kNowhere);
  root["normalizer"] = nullptr;
  EXPECT_THAT(error_of(small_bpe(folder, root)), HasSubstr("must make spaces U+2581"));
}

TEST(Metaspace, ACutChangesNothing) {
  const TextFolder folder;
  for (const bool prepends : {true, false}) {
    json root = metaspace_json();
    if (!prepends) root["normalizer"] = root["normalizer"]["normalizers"][1];
    const auto tokenizer = make_tokenizer(small_bpe(folder, root));
    const char* const parts[] = {"a", "ab", " ", "\n", "</s>", "\u00E9", "  "};
    expect_cuts_change_nothing(*tokenizer, parts, 5);
  }
}

TEST(TokenRoles, TheEndIsWhatTheFolderSaysAndWhereAGenerationStops) {
  const TextFolder folder;
  json root = bpe_json();
  const int first = root["added_tokens"][0]["id"];
  root["added_tokens"].push_back(added_token("<|im_end|>", first + 1));
  const auto end_with = [&](const char* name, const std::string& text) {
    write_file(folder / name, text);
    return static_cast<int>(make_tokenizer(small_bpe(folder, root))->end_of_text()) - first;
  };
  EXPECT_EQ(end_with("tokenizer_config.json", "{}"), 0);
  const uint64_t before = make_tokenizer(small_bpe(folder, root))->hash();
  EXPECT_EQ(end_with("special_tokens_map.json", R"({"eos_token": {"content": "<|im_end|>"}})"), 1);
  EXPECT_NE(make_tokenizer(small_bpe(folder, root))->hash(), before);
  EXPECT_EQ(end_with("tokenizer_config.json",
                     R"({"eos_token": "<|endoftext|>", "added_tokens_decoder": {}})"),
            0);
  const auto ids = [&](int id) { return cat(R"({"eos_token_id": )", id, "}"); };
  EXPECT_EQ(end_with("config.json", ids(first + 1)), 1);
  // One that is within texts, too, which is said; a special one goes before it.
  EXPECT_EQ(end_with("config.json", ids(5)), 5 - first);
  const auto ordinary = make_tokenizer(small_bpe(folder, root));
  EXPECT_THAT(ordinary->warnings(), ElementsAre(HasSubstr("config.json: a generation stops at the "
                                                          "token 5, `$`, which is an ordinary")));
  EXPECT_EQ(ordinary->decode(Ids{5}), "$");
  EXPECT_FALSE(ordinary->config().contains("eos_token"));
  EXPECT_EQ(end_with("config.json", cat(R"({"eos_token_id": [5, )", first + 1, "]}")), 1);
  // Where transformers finds no stop, it is said.
  for (const char* none : {"{}", R"({"eos_token_id": null})"}) {
    EXPECT_EQ(end_with("config.json", none), 0);
    EXPECT_THAT(make_tokenizer(small_bpe(folder, root))->warnings(),
                ElementsAre(testing::AllOf(HasSubstr("config.json: has no eos_token_id"),
                                           HasSubstr(cat("\"eos_token_id\": ", first, " there")))));
  }
  // One that is not there is named.
  EXPECT_EQ(end_with("config.json", ids(9999)), 0);
  EXPECT_THAT(make_tokenizer(small_bpe(folder, root))->warnings(), ElementsAre(HasSubstr("9999")));
  EXPECT_EQ(end_with("config.json", ids(first + 1)), 1);
  EXPECT_EQ(end_with("generation_config.json", ids(first)), 0);
  EXPECT_EQ(end_with("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})"), 0);
  EXPECT_THAT(make_tokenizer(small_bpe(folder, root))->ends(),
              testing::Each(static_cast<uint32_t>(first)));
  root["added_tokens"].back()["special"] = false;
  write_file(folder / "tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  EXPECT_EQ(end_with("generation_config.json", ids(first + 1)), 1);
  EXPECT_THAT(make_tokenizer(small_bpe(folder, root))->warnings(), ElementsAre());
  root["added_tokens"].back()["special"] = true;
  EXPECT_EQ(end_with("generation_config.json", ids(first)), 0);
  // A token that a file beside adds is one token, and no part of another word.
  const std::string more = R"({"added_tokens_decoder": {"999": {"content": "zz", "special": false,
      "single_word": true, "normalized": false}}})";
  EXPECT_EQ(end_with("tokenizer_config.json", more), 0);
  EXPECT_THAT(make_tokenizer(small_bpe(folder, root))->encode("zz"),
              ElementsAre(static_cast<uint32_t>(first) + 2));
  EXPECT_EQ(make_tokenizer(small_bpe(folder, root))->encode("zzs").size(), 3u);
  EXPECT_EQ(make_tokenizer(wordpiece_of(folder, wordpiece_json()))->encode("zzs").size(), 1u);
  for (const auto& [text, rule] :
       {std::pair{R"({"added_tokens_decoder": []})", "must be an object"},
        {R"({"added_tokens_decoder": {"x": "y"}})", "ids must be numbers"},
        {R"({"eos_token": 3})", "eos_token must be a token"},
        {"[]", "must be a JSON object"}}) {
    write_file(folder / "tokenizer_config.json", text);
    EXPECT_THAT(error_of(small_bpe(folder, root)), HasSubstr(rule));
  }
}

TEST_F(ByteBpe, SeveralThreadsAtOnce) {
  const auto tokenizer = make_tokenizer(small_bpe(folder));
  const std::string text = slurp(example("hard-times.txt")).substr(0, 200000);
  const auto expected = tokenizer->encode(text);
  std::vector<std::thread> threads;
  std::vector<std::vector<uint32_t>> got(4);
  for (auto& ids : got) threads.emplace_back([&] { ids = tokenizer->encode(text); });
  for (auto& thread : threads) thread.join();
  for (const auto& ids : got) EXPECT_EQ(ids, expected);
}

class HfTokenizers : public InFolder {};

TEST_F(HfTokenizers, InvalidUtf8BecomesTheReplacementCharacter) {
  for (const std::string& spec : {small_wordpiece(folder), small_bpe(folder)}) {
    const auto tokenizer = make_tokenizer(spec);
    EXPECT_EQ(tokenizer->encode("a\xFF\xE2\x82z"), tokenizer->encode("a\xEF\xBF\xBD\xEF\xBF\xBDz"));
  }
}

TEST_F(HfTokenizers, ACutChangesNothing) {
  const char* const parts[] = {"the", ",",  "17",       "\n",           " ",    "\t", "abab",
                               "'t",  "!!", "\xC2\xA0", "\xE6\x97\xA5", "[SEP]"};
  for (const std::string& spec : {small_wordpiece(folder), small_bpe(folder)}) {
    const auto tokenizer = make_tokenizer(spec);
    EXPECT_EQ(tokenizer->cut(), Cut::kBeforeSpace);
    expect_cuts_change_nothing(*tokenizer, parts, 3);
  }
  json root = bpe_json();
  root["added_tokens"][0]["rstrip"] = true;  // takes the space after it
  EXPECT_EQ(make_tokenizer(small_bpe(folder, root))->cut(), Cut::kNowhere);
  root = bpe_json();
  root["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       json::array({{{"type", "Split"},
                     {"pattern", {{"Regex", "\\S+ \\S+"}}},
                     {"behavior", "Isolated"},
                     {"invert", false}},
                    {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}})}};
  EXPECT_EQ(make_tokenizer(small_bpe(folder, root))->cut(), Cut::kNowhere);
}

TEST_F(HfTokenizers, WhatIsNotKnownHereIsNamed) {
  const std::pair<const char*, Change> wordpiece[] = {
      {"model must be of type WordPiece, is Unigram",
       [](json& j) { j["model"]["type"] = "Unigram"; }},
      {"normalizer Lowercase",
       [](json& j) {
         j["normalizer"] = {{"type", "Lowercase"}};
       }},
      {"pre_tokenizer Whitespace",
       [](json& j) {
         j["pre_tokenizer"] = {{"type", "Whitespace"}};
       }},
      {"decoder BPEDecoder",
       [](json& j) {
         j["decoder"] = {{"type", "BPEDecoder"}};
       }},
      {"`new_option`", [](json& j) { j["normalizer"]["new_option"] = 1; }},
      {"`[UNK]`, in the vocabulary",
       [](json& j) {
         j["model"]["vocab"].erase("[UNK]");
         j["added_tokens"].erase(0);
       }},
      {"must have the id 2, as in the vocabulary", [](json& j) { j["added_tokens"][1]["id"] = 9; }},
      {"`lstrip`", [](json& j) { j["added_tokens"][1].erase("lstrip"); }},
      {"post_processor Other is not known", [](json& j) { j["post_processor"]["type"] = "Other"; }},
      {"ids must be of the vocabulary", [](json& j) { j["post_processor"]["sep"][1] = 99; }},
      {"ids must be unique, 5 is given", [](json& j) { j["model"]["vocab"]["x"] = 5; }},
      {"whole numbers from 0 to 4194303, token `x` has -1",
       [](json& j) { j["model"]["vocab"]["x"] = -1; }},
      {"has 4294967296", [](json& j) { j["model"]["vocab"]["x"] = int64_t{1} << 32; }},
      {"version must be 1.0", [](json& j) { j["version"] = "2.0"; }}};
  for (const auto& [rule, change] : wordpiece) {
    json root = wordpiece_json();
    change(root);
    EXPECT_THAT(error_of(wordpiece_of(folder, root)), HasSubstr(rule));
  }
  const auto split = [](const char* regex) {
    return json{
        {"type", "Sequence"},
        {"pretokenizers", json::array({{{"type", "Split"},
                                        {"pattern", {{"Regex", regex}}},
                                        {"behavior", "Isolated"},
                                        {"invert", false}},
                                       {{"type", "ByteLevel"}, {"add_prefix_space", false}}})}};
  };
  const std::pair<const char*, Change> bpe[] = {
      {"byte_fallback", [](json& j) { j["model"]["byte_fallback"] = true; }},
      {"dropout", [](json& j) { j["model"]["dropout"] = 0.1; }},
      {"end_of_word_suffix", [](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
      {"normalizer NFKC is not known here, must be NFC or null",
       [](json& j) {
         j["normalizer"] = {{"type", "NFKC"}};
       }},
      {"must be ByteLevel", [](json& j) { j["pre_tokenizer"] = nullptr; }},
      {"the last one is Metaspace",
       [](json& j) {
         j["pre_tokenizer"] = {{"type", "Metaspace"}};
       }},
      {"decoder must be ByteLevel", [](json& j) { j["decoder"] = nullptr; }},
      {"merge 1 (`t` and `h`) needs the token `th`",
       [](json& j) { j["model"]["vocab"].erase("th"); }},
      {"merge 1 must be two tokens", [](json& j) { j["model"]["merges"] = {"a b c"}; }},
      {"merge 2 must be of the same form", [](json& j) { j["model"]["merges"][1] = "a b"; }},
      {"needs a special added token", [](json& j) { j["added_tokens"] = json::array(); }},
      {"unk_token `<unk>`", [](json& j) { j["model"]["unk_token"] = "<unk>"; }},
      {"is there twice", [](json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); }},
      {"must be a regular expression", [&](json& j) { j["pre_tokenizer"] = split("(a"); }},
      {"uses `\\w`", [&](json& j) { j["pre_tokenizer"] = split("\\w+"); }},
      {"behavior `Contiguous`", [&](json& j) {
         j["pre_tokenizer"] = split("a");
         j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Contiguous";
       }}};
  for (const auto& [rule, change] : bpe) {
    json root = bpe_json();
    change(root);
    EXPECT_THAT(error_of(small_bpe(folder, root)), HasSubstr(rule));
  }
}

TEST_F(HfTokenizers, HostileFiles) {
  const auto bpe = [&](const std::string& text) {
    return error_of("bpe:file=" + write_file(folder / "t.json", text));
  };
  EXPECT_THAT(bpe(std::string(100000, '[')), HasSubstr("64 levels deep"));
  EXPECT_THAT(bpe(R"({"a": 1, "a": 2})"), HasSubstr("given twice"));
  EXPECT_THAT(bpe("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(bpe(""), HasSubstr("is empty"));
  EXPECT_THAT(error_of("bpe:file=" + folder.path()), HasSubstr("is a folder"));
  EXPECT_THAT(error_of("bpe:vocab=x"), HasSubstr("vocab=PATH and merges=PATH"));
  const auto txt = [&](const std::string& text) {
    return error_of("wordpiece:file=" + write_file(folder / "v.txt", text));
  };
  EXPECT_THAT(txt("[UNK]\na\na\n"), HasSubstr("tokens must be unique, `a`"));
  EXPECT_THAT(txt("[UNK]\n\xFF\n"), HasSubstr("line 2 must be UTF-8"));
  EXPECT_THAT(txt("a\nb\n"), HasSubstr("[UNK]"));
  EXPECT_THAT(txt("[UNK]\nb\n"), HasSubstr("[SEP]"));
  EXPECT_THAT(error_of("wordpiece:lowercase=true,file=a.json"), HasSubstr("for a vocab.txt"));
}

TEST_F(HfTokenizers, AnExpressionThatTakesForeverIsStopped) {
  json root = bpe_json();
  root["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", json::array({{{"type", "Split"},
                                      {"pattern", {{"Regex", "(a*)*(a*)*(a*)*b"}}},
                                      {"behavior", "Isolated"},
                                      {"invert", false}},
                                     {{"type", "ByteLevel"}, {"add_prefix_space", false}}})}};
  const auto tokenizer = make_tokenizer(small_bpe(folder, root));
  EXPECT_THAT(one_line_error_of([&] { tokenizer->encode(std::string(2000, 'a')); }),
              HasSubstr("gives up on a text"));
}

TEST_F(HfTokenizers, GapsInTheIds) {
  json root = wordpiece_json();
  root["model"]["vocab"]["x"] = 25;
  const auto tokenizer = make_tokenizer(wordpiece_of(folder, root));
  EXPECT_EQ(tokenizer->vocabulary(), 26);
  EXPECT_EQ(tokenizer->decode(std::vector<uint32_t>{22, 25}), "x");
}

}  // namespace
}  // namespace compact
