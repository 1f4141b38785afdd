// SPDX-License-Identifier: Apache-2.0
// The `post_processor` of a tokenizer.json: what is put around sentences.
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/data/files/printable.h"
#include "compact/data/tokenizers/tokenizer_json.h"

namespace compact {
namespace {

using nlohmann::json;

// Nothing around them; the library gives a second sentence the type 1 then.
SequenceFormat plain() { return {{}, {}, {}, 0, true}; }

uint32_t checked(const json& id, const Vocabulary& vocabulary, const std::string& where) {
  COMPACT_CHECK(
      id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocabulary.size()),
      where, ": ids must be of the vocabulary, below ", vocabulary.size(), ", one is ",
      printable(id.dump()));
  return id.get<uint32_t>();
}

// `sep` and `cls` of BertProcessing and RobertaProcessing: ["[SEP]", 102].
uint32_t named(const json& processor, const char* key, const Vocabulary& vocabulary,
               const std::string& where) {
  const auto found = processor.find(key);
  COMPACT_CHECK(found != processor.end() && found->is_array() && found->size() == 2, where, ": ",
                key, " must be [token, id]");
  return checked((*found)[1], vocabulary, where);
}

// A template taken apart: ids before, between and after the sentences, with the types they have.
struct Parts {
  std::vector<uint32_t> ids[3];
  std::vector<int64_t> types[3];
  std::vector<int64_t> sentence_types;
  bool in_order = true;
};

int64_t type_of(const json& piece, const std::string& where) {
  const auto type = piece.find("type_id");
  COMPACT_CHECK(type != piece.end() && type->is_number_unsigned(), where,
                ": type_id must be a whole number");
  return type->get<int64_t>();
}

Parts take_apart(const json& processor, const char* key, const Vocabulary& vocabulary,
                 const std::string& where) {
  const auto list = processor.find(key);
  COMPACT_CHECK(list != processor.end() && list->is_array(), where, ": ", key, " must be a list");
  const auto special = processor.find("special_tokens");
  Parts parts;
  for (const json& piece : *list) {
    COMPACT_CHECK(piece.is_object() && piece.size() == 1 && piece.begin()->is_object(), where, ": ",
                  key, " must be a list of {SpecialToken} and {Sequence}");
    const json& body = *piece.begin();
    const std::string id = json_string(body, "id", "", where);
    const int64_t type = type_of(body, where);
    const size_t part = parts.sentence_types.size();
    if (piece.begin().key() == "Sequence") {
      parts.in_order &= part < 2 && id == (part == 0 ? "A" : "B");
      parts.sentence_types.push_back(type);
      continue;
    }
    COMPACT_CHECK(piece.begin().key() == "SpecialToken" && special != processor.end() &&
                      special->contains(id) && (*special)[id].contains("ids") &&
                      (*special)[id]["ids"].is_array(),
                  where, ": ", key, ": special_tokens must have `", printable(id), "` with ids");
    if (part > 2) continue;
    for (const json& token : (*special)[id]["ids"]) {
      parts.ids[part].push_back(checked(token, vocabulary, where));
      parts.types[part].push_back(type);
    }
  }
  return parts;
}

std::optional<SequenceFormat> of_template(const json& processor, const Vocabulary& vocabulary,
                                          const std::string& where) {
  const Parts one = take_apart(processor, "single", vocabulary, where);
  const Parts two = take_apart(processor, "pair", vocabulary, where);
  const auto all_are = [](const std::vector<int64_t>& types, int64_t type) {
    return std::all_of(types.begin(), types.end(), [&](int64_t t) { return t == type; });
  };
  if (!one.in_order || !two.in_order || one.sentence_types != std::vector<int64_t>{0} ||
      two.sentence_types.size() != 2 || one.ids[0] != two.ids[0] || one.ids[1] != two.ids[2]) {
    return std::nullopt;
  }
  const int64_t second = two.sentence_types[1];
  if (two.sentence_types[0] != 0 || second > 1 || !all_are(one.types[0], 0) ||
      !all_are(one.types[1], 0) || !all_are(two.types[0], 0) || !all_are(two.types[1], 0) ||
      !all_are(two.types[2], second)) {
    return std::nullopt;
  }
  return SequenceFormat{two.ids[0], two.ids[1], two.ids[2], 0, second == 1};
}

std::optional<SequenceFormat> format_of(const json& processor, const Vocabulary& vocabulary,
                                        const std::string& where) {
  const std::string type = component_type({{"post_processor", processor}}, "post_processor", where);
  const std::string at = cat(where, ": post_processor ", printable(type));
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    const uint32_t cls = named(processor, "cls", vocabulary, at);
    const uint32_t sep = named(processor, "sep", vocabulary, at);
    if (type == "BertProcessing") return SequenceFormat{{cls}, {sep}, {sep}, 0, true};
    return SequenceFormat{{cls}, {sep, sep}, {sep}, 0, false};
  }
  if (type == "TemplateProcessing") return of_template(processor, vocabulary, at);
  if (type == "ByteLevel") return plain();  // moves offsets only
  COMPACT_CHECK(type == "Sequence", at, " is not known here");
  const auto list = processor.find("processors");
  COMPACT_CHECK(list != processor.end() && list->is_array(), at, ": processors must be a list");
  std::optional<SequenceFormat> result = plain();
  for (const json& child : *list) {
    COMPACT_CHECK(component_type({{"post_processor", child}}, "post_processor", at) != "Sequence",
                  at, ": a Sequence must not hold another");
    const auto more = format_of(child, vocabulary, where);
    if (!more) return std::nullopt;
    const bool adds = !more->begin.empty() || !more->middle.empty() || !more->end.empty();
    if (adds && !(result->begin.empty() && result->middle.empty() && result->end.empty())) {
      return std::nullopt;  // one after the other: not of our form
    }
    if (adds) result = more;
  }
  return result;
}

}  // namespace

std::optional<SequenceFormat> read_sequence_format(const json& root, const Vocabulary& vocabulary,
                                                   const std::string& where) {
  const auto found = root.find("post_processor");
  if (found == root.end() || found->is_null()) return plain();
  return format_of(*found, vocabulary, where);
}

}  // namespace compact
