// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/word_splitter.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/data/files/printable.h"
#include "compact/data/tokenizers/hf_characters.h"
#include "compact/data/tokenizers/tokenizer_json.h"

namespace compact {
namespace {

using nlohmann::json;

const char* const kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Expressions that never match across the place before a single space between two characters that
// are not white space, whatever stands around: every alternative that takes that space begins with
// it, and none looks back. GPT-2's, LLaMA 3's (GPT-4's), and Qwen 2's with single digits.
const char* const kCutBeforeSpace[] = {
    kGpt2,
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    kQwen2};

}  // namespace

const char* WordSplitter::qwen2_expression() { return kQwen2; }

WordSplitter WordSplitter::gpt2() {
  WordSplitter splitter;
  splitter.add_byte_level(false, true, "gpt2");
  return splitter;
}

WordSplitter::WordSplitter(const json& pre_tokenizer, const std::string& where) {
  const std::string at = cat(where, ": pre_tokenizer");
  if (component_type({{"pre_tokenizer", pre_tokenizer}}, "pre_tokenizer", where) != "Sequence") {
    add(pre_tokenizer, true, at);
    return;
  }
  allow_keys(pre_tokenizer, {"type", "pretokenizers"}, at);
  const auto parts = pre_tokenizer.find("pretokenizers");
  COMPACT_CHECK(parts != pre_tokenizer.end() && parts->is_array() && !parts->empty(), at,
                ": pretokenizers must be a list");
  for (size_t i = 0; i < parts->size(); ++i) {
    add((*parts)[i], i + 1 == parts->size(), cat(at, ".pretokenizers[", i, "]"));
  }
}

void WordSplitter::add_byte_level(bool add_prefix_space, bool use_regex, const std::string& where) {
  if (add_prefix_space) stages_.push_back({Stage::kPrefixSpace, {}});
  if (!use_regex) return;
  stages_.push_back({Stage::kPattern, {}});
  stages_.back().pattern.emplace_back(kGpt2, false, where);
}

void WordSplitter::add(const json& part, bool last, const std::string& where) {
  const std::string type = component_type({{"pre_tokenizer", part}}, "pre_tokenizer", where);
  const std::string at = cat(where, " ", printable(type));
  COMPACT_CHECK(last == (type == "ByteLevel"), where,
                ": must be ByteLevel, or a Sequence that ends with it and has it nowhere else; ",
                last ? "the last one is " : "this one is ",
                type.empty() ? "null" : printable(type));
  if (type == "ByteLevel") {
    allow_keys(part, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, at);
    COMPACT_CHECK(part.contains("add_prefix_space"), at, " must have `add_prefix_space`");
    add_byte_level(json_flag(part, "add_prefix_space", true, at),
                   json_flag(part, "use_regex", true, at), at);
  } else if (type == "Digits") {
    allow_keys(part, {"type", "individual_digits"}, at);
    stages_.push_back({Stage::kDigits, {}});
    stages_.back().individual_digits = json_flag(part, "individual_digits", false, at);
  } else if (type == "Split") {
    allow_keys(part, {"type", "pattern", "behavior", "invert"}, at);
    const auto pattern = part.find("pattern");
    COMPACT_CHECK(pattern != part.end() && pattern->is_object() && pattern->size() == 1 &&
                      pattern->begin()->is_string() &&
                      (pattern->begin().key() == "Regex" || pattern->begin().key() == "String"),
                  at, ": pattern must be {\"Regex\": text} or {\"String\": text}");
    const std::string behavior = json_string(part, "behavior", "", at);
    COMPACT_CHECK(behavior == "Isolated" || behavior == "Removed", at, ": behavior `",
                  printable(behavior), "` is not known here; known: Isolated, Removed");
    const bool invert = json_flag(part, "invert", false, at);
    stages_.push_back({Stage::kPattern, {}});
    Stage& stage = stages_.back();
    stage.pattern.emplace_back(pattern->begin()->get<std::string>(),
                               pattern->begin().key() == "String", at);
    stage.keep_matches = behavior == "Isolated" || invert;
    stage.keep_rest = behavior == "Isolated" || !invert;
  } else {
    fail(at, " is not known here");
  }
}

WordSplitter WordSplitter::clone() const {
  WordSplitter copy;
  for (const Stage& stage : stages_) {
    copy.stages_.push_back(
        {stage.kind, {}, stage.keep_matches, stage.keep_rest, stage.individual_digits});
    for (const Pattern& pattern : stage.pattern) {
      copy.stages_.back().pattern.push_back(pattern.clone());
    }
  }
  return copy;
}

void WordSplitter::split(std::string_view text, FunctionRef<void(std::string_view)> word) {
  if (!text.empty()) run(0, text, word);
}

void WordSplitter::run(size_t index, std::string_view text,
                       FunctionRef<void(std::string_view)> word) {
  if (index == stages_.size()) return word(text);
  Stage& stage = stages_[index];
  if (stage.kind == Stage::kPrefixSpace) {
    if (text.starts_with(' ')) return run(index + 1, text, word);
    return run(index + 1, " " + std::string(text), word);
  }
  if (stage.kind == Stage::kPattern) {
    return stage.pattern[0].split(text, [&](std::string_view part, bool is_match) {
      if (is_match ? stage.keep_matches : stage.keep_rest) run(index + 1, part, word);
    });
  }
  size_t begin = 0;
  bool digits = false;  // of text[begin, i)
  for (size_t i = 0; i < text.size();) {
    const size_t at = i;
    const bool digit = is_numeric(next_character(text, i));
    if (at > begin && (digit != digits || (digit && stage.individual_digits))) {
      run(index + 1, text.substr(begin, at - begin), word);
      begin = at;
    }
    digits = digit;
  }
  run(index + 1, text.substr(begin), word);
}

bool WordSplitter::can_cut_before_space() const {
  bool some = false;
  for (const Stage& stage : stages_) {
    if (stage.kind != Stage::kPattern) continue;
    const std::string& expression = stage.pattern[0].expression();
    if (std::none_of(std::begin(kCutBeforeSpace), std::end(kCutBeforeSpace),
                     [&](const char* known) { return expression == known; })) {
      return false;
    }
    some |= stage.keep_matches && stage.keep_rest;
  }
  return some;
}

bool WordSplitter::is_qwen2() const {
  return stages_.size() == 1 && stages_[0].kind == Stage::kPattern && stages_[0].keep_matches &&
         stages_[0].keep_rest && stages_[0].pattern[0].expression() == kQwen2;
}

}  // namespace compact
