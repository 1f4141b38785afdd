// SPDX-License-Identifier: Apache-2.0
// Small tokenizers of Hugging Face's formats, to be written into a folder and changed there.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/data/files.h"

namespace compact::test {

using nlohmann::json;

inline const char* const kVocabTxt =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
    "the\nun\n##aff\n##able\na\n,\n.\n!\nwant\n##ed\nn\n'\nt\n##s\n日\n";

// vocab.txt; the spec.
inline std::string small_wordpiece(const TextFolder& folder) {
  return "wordpiece:file=" + write_file(folder / "vocab.txt", kVocabTxt);
}

inline json added_token(const char* content, int id, bool special = true) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

inline json wordpiece_json() {
  json vocab;
  int id = 0;
  std::istringstream lines(kVocabTxt);
  for (std::string line; std::getline(lines, line);) vocab[line] = id++;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", json::array({added_token("[UNK]", 1), added_token("[CLS]", 2),
                                        added_token("[SEP]", 3)})},
          {"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", true},
            {"handle_chinese_chars", true},
            {"strip_accents", nullptr},
            {"lowercase", true}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor",
           {{"type", "BertProcessing"}, {"sep", {"[SEP]", 3}}, {"cls", {"[CLS]", 2}}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 10},
            {"vocab", vocab}}}};
}

// Bytes of ASCII, a few merges, <|endoftext|>.
inline json bpe_json() {
  json vocab;
  int id = 0;
  vocab["\xC4\xA0"] = id++;  // U+0120, a space
  vocab["\xC4\x8A"] = id++;  // U+010A, a line end
  for (char c = '!'; c <= '~'; ++c) vocab[std::string(1, c)] = id++;
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"t", "h"}, {"th", "e"}, {"\xC4\xA0", "the"}, {"a", "b"}, {"b", "c"}, {"ab", "ab"}};
  json list = json::array();
  for (const auto& [left, right] : merges) {
    vocab[left + right] = id++;
    list.push_back({left, right});
  }
  const auto byte_level = json{{"type", "ByteLevel"},
                               {"add_prefix_space", false},
                               {"trim_offsets", true},
                               {"use_regex", true}};
  return {{"version", "1.0"},
          {"added_tokens", json::array({added_token("<|endoftext|>", id)})},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", list}}}};
}

// tokenizer.json; the spec.
inline std::string small_bpe(const TextFolder& folder, const json& root = bpe_json()) {
  return "bpe:file=" + write_file(folder / "tokenizer.json", root.dump());
}
inline std::string wordpiece_of(const TextFolder& folder, const json& root) {
  return "wordpiece:file=" + write_file(folder / "tokenizer.json", root.dump());
}

}  // namespace compact::test
