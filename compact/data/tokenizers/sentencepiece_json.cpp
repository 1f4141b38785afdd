// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/sentencepiece_json.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "compact/data/tokenizers/hf_characters.h"
#include "compact/data/tokenizers/tokenizer_json.h"

namespace compact {
namespace {

using nlohmann::json;

const char* const kMark = "\u2581";

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j) {
      word = word << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += j <= count ? kDigits[word >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

// A text that a regular expression finds as it is.
std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-#&~ \t\n").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

json replace(json pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", std::move(pattern)}, {"content", content}};
}

// Pairs of pieces that become one: the best piece first, of one piece's pairs in the order of their
// texts.
json merges_of(const std::map<std::string, std::pair<float, int>>& normal) {
  std::vector<std::tuple<float, int, std::string, std::string>> ranked;
  for (const auto& [piece, rank] : normal) {
    for (size_t i = 0; i < piece.size();) {
      next_character(piece, i);
      if (i == piece.size()) break;
      std::string left = piece.substr(0, i), right = piece.substr(i);
      if (normal.contains(left) && normal.contains(right)) {
        ranked.emplace_back(-rank.first, rank.second, std::move(left), std::move(right));
      }
    }
  }
  std::ranges::sort(ranked);
  json merges = json::array();
  for (auto& [score, id, left, right] : ranked) merges.push_back({left, right});
  return merges;
}

}  // namespace

std::string sentencepiece_json(const sentencepiece::SentencePieceProcessor& model,
                               const SentencePieceSettings& settings, Metaspace::Prefix prefix,
                               const std::vector<AddedToken>& added,
                               const std::vector<uint32_t>& begin) {
  const bool bpe = settings.model_type == 2;
  json vocabulary = bpe ? json::object() : json::array();
  std::map<std::string, std::pair<float, int>> normal;
  std::vector<std::string> whole = settings.whole;
  std::ranges::sort(whole, [](const auto& a, const auto& b) { return a.size() > b.size(); });
  for (int id = 0; id < model.GetPieceSize(); ++id) {
    const std::string& piece = model.IdToPiece(id);
    if (bpe) {
      vocabulary[piece] = id;
    } else {
      vocabulary.push_back({piece, static_cast<double>(model.GetScore(id))});
    }
    const bool other = model.IsUnknown(id) || model.IsControl(id) || model.IsByte(id) ||
                       model.IsUnused(id) || std::ranges::find(whole, piece) != whole.end();
    if (!other) normal[piece] = {model.GetScore(id), id};
  }
  json normalizers = json::array(), words = json::array(), decoders = json::array();
  if (!settings.rules.empty()) {
    normalizers.push_back(
        {{"type", "Precompiled"}, {"precompiled_charsmap", base64(settings.rules)}});
  }
  if (settings.squeezes_spaces) {
    normalizers.push_back(replace({{"Regex", "\\A +|[ \u2581]+\\z"}}, ""));
    normalizers.push_back(replace({{"Regex", " {2,}"}}, " "));
  }
  if (settings.marks_spaces) normalizers.push_back(replace({{"String", " "}}, kMark));
  if (prefix == Metaspace::Prefix::kAlways) {
    // Metaspace puts no mark before a text that begins with one.
    normalizers.push_back(replace({{"Regex", "\\A\u2581"}}, "\u2581\u2581"));
  }
  if (prefix != Metaspace::Prefix::kNone) {
    words.push_back({{"type", "Metaspace"},
                     {"replacement", kMark},
                     {"prepend_scheme", prefix == Metaspace::Prefix::kFirst ? "first" : "always"},
                     {"split", false}});
  }
  if (!whole.empty()) {
    std::string any;
    for (const std::string& piece : whole) any += (any.empty() ? "" : "|") + quoted(piece);
    words.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", any}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  decoders.push_back(replace({{"String", kMark}}, " "));
  if (settings.byte_fallback) decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (prefix != Metaspace::Prefix::kNone || settings.squeezes_spaces) {
    decoders.push_back({{"type", "Strip"},
                        {"content", " "},
                        {"start", settings.squeezes_spaces ? 1 << 30 : 1},
                        {"stop", 0}});
  }
  json model_json;
  if (bpe) {
    model_json = {{"type", "BPE"},
                  {"dropout", nullptr},
                  {"unk_token", model.IdToPiece(model.unk_id())},
                  {"continuing_subword_prefix", nullptr},
                  {"end_of_word_suffix", nullptr},
                  {"fuse_unk", true},
                  {"byte_fallback", settings.byte_fallback},
                  {"ignore_merges", !whole.empty()},
                  {"vocab", std::move(vocabulary)},
                  {"merges", merges_of(normal)}};
  } else {
    model_json = {{"type", "Unigram"},
                  {"unk_id", model.unk_id()},
                  {"byte_fallback", settings.byte_fallback},
                  {"vocab", std::move(vocabulary)}};
  }
  json processor;
  if (!begin.empty()) {
    json ids = json::array(), template_tokens = json::object(), one = json::array();
    for (const uint32_t id : begin) {
      const std::string& token = model.IdToPiece(static_cast<int>(id));
      template_tokens[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
      one.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    }
    one.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    json two = one;
    for (json piece : one) {
      (*piece.begin())["type_id"] = 1;
      if (piece.contains("Sequence")) piece["Sequence"]["id"] = "B";
      two.push_back(std::move(piece));
    }
    processor = {{"type", "TemplateProcessing"},
                 {"single", one},
                 {"pair", two},
                 {"special_tokens", template_tokens}};
  }
  const auto sequence = [](const char* key, json list) {
    return json{{"type", "Sequence"}, {key, std::move(list)}};
  };
  return json{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", json_of(added)},
      {"normalizer", sequence("normalizers", normalizers)},
      {"pre_tokenizer", words.empty() ? json() : sequence("pretokenizers", std::move(words))},
      {"post_processor", processor},
      {"decoder", sequence("decoders", decoders)},
      {"model", std::move(model_json)}}
      .dump();
}

}  // namespace compact
