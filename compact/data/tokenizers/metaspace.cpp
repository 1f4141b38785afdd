// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/metaspace.h"

#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/data/files/printable.h"
#include "compact/data/files/utf8.h"
#include "compact/data/tokenizers/tokenizer_json.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr std::string_view kSpaceMark = "\u2581";

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t found = std::min(text.find(from, at), text.size());
    out += text.substr(at, found - at);
    if (found < text.size()) out += to;
    at = found + from.size();
  }
  return out;
}

// A text of an object, "" where it has none.
std::string text_of(const json& part, const char* key) {
  const auto found = part.is_object() ? part.find(key) : part.end();
  return found != part.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool is_replace(const json& part, std::string_view from, std::string_view to) {
  return text_of(part, "type") == "Replace" && text_of(part, "content") == to &&
         part.value("pattern", json()) == json{{"String", from}};
}

// The parts of a component: those of a Sequence, itself, or none where it is null.
std::vector<json> parts_of(const json& root, const char* key, const char* list) {
  const json part = root.value(key, json());
  if (part.is_null()) return {};
  if (text_of(part, "type") != "Sequence") return {part};
  const json parts = part.value(list, json());
  return parts.is_array() ? std::vector<json>(parts.begin(), parts.end()) : std::vector<json>{part};
}

// The byte that a token as <0x0A> is; -1 for others.
int byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    value = 16 * value + digit;
  }
  return value;
}

}  // namespace

std::string Metaspace::normalized(std::string_view text) const {
  const bool mark = prefix == Prefix::kAlways && !text.empty();
  return (mark ? std::string(kSpaceMark) : "") + replaced(text, " ", kSpaceMark);
}

std::string Metaspace::word(std::string_view part, bool first) const {
  std::string text = replaced(part, " ", kSpaceMark);
  const bool wanted = prefix == Prefix::kEach || (prefix == Prefix::kFirst && first);
  return wanted && !text.starts_with(kSpaceMark) ? std::string(kSpaceMark) + text : text;
}

std::string Metaspace::decoded(std::span<const std::string* const> tokens) const {
  std::string text, bytes;
  const auto flush = [&] {  // as one text, or, where it is none, a U+FFFD for each byte
    if (repaired_utf8(bytes) == bytes) {
      text += bytes;
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) text += "\uFFFD";
    }
    bytes.clear();
  };
  for (const std::string* const token : tokens) {
    if (const int byte = byte_of(*token); byte >= 0) {
      bytes += static_cast<char>(byte);
      continue;
    }
    flush();
    text += replaced(*token, kSpaceMark, " ");
  }
  flush();
  return strips && text.starts_with(' ') ? text.substr(1) : text;
}

std::optional<Metaspace> read_metaspace(const json& root, const std::string& where) {
  const std::vector<json> decoders = parts_of(root, "decoder", "decoders");
  if (decoders.empty() || !is_replace(decoders[0], kSpaceMark, " ")) return std::nullopt;
  Metaspace result;
  for (size_t i = 1; i < decoders.size(); ++i) {
    const json& part = decoders[i];
    const std::string type = text_of(part, "type");
    const bool strip = type == "Strip" && text_of(part, "content") == " " &&
                       part.value("start", json()) == 1 && part.value("stop", json()) == 0 &&
                       i + 1 == decoders.size();
    COMPACT_CHECK(strip || (i == 1 && type == "ByteFallback") || type == "Fuse", where,
                  ": decoder ", printable(part.dump()),
                  " is not known here after Replace; known: ByteFallback, Fuse, Strip");
    result.strips |= strip;
  }
  const std::vector<json> normalizers = parts_of(root, "normalizer", "normalizers");
  bool marks = false;
  for (const json& part : normalizers) {
    const bool prepends =
        text_of(part, "type") == "Prepend" && text_of(part, "prepend") == kSpaceMark && !marks;
    const bool replaces = is_replace(part, " ", kSpaceMark);
    COMPACT_CHECK(prepends || replaces, where, ": normalizer ", printable(part.dump()),
                  " is not known here; known: Prepend U+2581, Replace of spaces by it");
    if (prepends) result.prefix = Metaspace::Prefix::kAlways;
    marks |= replaces;
  }
  for (const json& part : parts_of(root, "pre_tokenizer", "pretokenizers")) {
    const std::string type = text_of(part, "type");
    // It has no effect on a text that has no spaces any more.
    const bool idle =
        marks && type == "Split" && part.value("pattern", json()) == json{{"String", " "}};
    if (idle) continue;
    const std::string scheme = text_of(part, "prepend_scheme");
    COMPACT_CHECK(type == "Metaspace" && normalizers.empty() &&
                      text_of(part, "replacement") == kSpaceMark &&
                      part.value("split", json()) == false &&
                      (scheme == "always" || scheme == "first" || scheme == "never"),
                  where, ": pre_tokenizer ", printable(part.dump()),
                  " is not known here; known beside this decoder: Metaspace with U+2581 and split "
                  "false");
    result.prefix = scheme == "always"  ? Metaspace::Prefix::kEach
                    : scheme == "first" ? Metaspace::Prefix::kFirst
                                        : Metaspace::Prefix::kNone;
    marks = true;
  }
  COMPACT_CHECK(marks, where, ": must make spaces U+2581, as its decoder makes that spaces");
  return result;
}

}  // namespace compact
