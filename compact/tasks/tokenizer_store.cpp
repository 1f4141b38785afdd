// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/tokenizer_store.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/spec.h"
#include "compact/base/text.h"
#include "compact/data/files/printable.h"
#include "compact/data/tokenizers/prepared_folder.h"
#include "compact/data/tokenizers/tokenizer_json.h"
#include "compact/io/json_file.h"

namespace compact {
namespace {

const char* const kConfigFile = "tokenizer_config.json";
const char* const kJsonFile = "tokenizer.json";
const char* const kKey = "compact_tokenizer";
const char* const kLowerCase = "do_lower_case";

// For a folder with both files: tokens that tokenizer.json adds must be in the SentencePiece model,
// which cannot be extended; except a padding token.
void check_added_tokens(const std::string& file, const Tokenizer& tokenizer) {
  const nlohmann::json json = read_json(file);
  if (!json.is_object() || !json.contains("added_tokens")) return;
  for (const nlohmann::json& token : json["added_tokens"]) {
    if (!token.is_object() || !token.contains("id") || !token["id"].is_number_integer()) continue;
    const std::string content = json_string(token, "content", "", file);
    if (content == "<pad>" || content == "[PAD]") continue;
    COMPACT_CHECK(token["id"] < tokenizer.vocabulary(), file, ": adds the token `",
                  printable(content), "` to tokenizer.model, which is not supported; --tokenizer ",
                  tokenizer.spec(), " leaves it out");
  }
}

}  // namespace

std::map<std::string, std::string> tokenizer_files(const Tokenizer& tokenizer,
                                                   const nlohmann::json& model,
                                                   std::vector<std::string>* warnings) {
  std::map<std::string, std::string> files = tokenizer.files();
  if (tokenizer.keeps_files()) return files;
  const auto check = [&](bool holds, const char* otherwise) {
    if (holds) return;
    const std::string line = cat("the tokenizer ", tokenizer.spec(), otherwise);
    if (!warnings) fail(line);
    warnings->push_back(line);
  };
  check(files.empty() || files.contains(kJsonFile),
        ": transformers has no tokenizer for a SentencePiece model of words or characters, or with "
        "spaces after words: it must be of the type unigram or bpe");
  check(model.value("model_type", "") != "qwen2" || files.empty() || tokenizer.is_qwen2(),
        " and a model of type qwen2: transformers reads every tokenizer "
        "beside such a model as Qwen2Tokenizer, which splits words at other places; take a "
        "tokenizer.json with Qwen's normalizer and pre_tokenizer, `--tokenizer bytes`, or a "
        "model of another type, as qwen3 or llama");
  // Keeps the tokenizer's own keys and adds those that `transformers` needs to load it.
  std::string& text = files[kConfigFile];
  nlohmann::json config = text.empty() ? nlohmann::json::object() : parse_json(text, kConfigFile);
  for (const auto& [key, value] : tokenizer.config()) {
    if (!config.contains(key) || key == kLowerCase) config[key] = nlohmann::json::parse(value);
  }
  if (files.contains(kJsonFile)) {
    // Other classes rebuild a tokenizer from its vocabulary and drop what they do not know; this
    // one reads the file as it is.
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
    config.erase("auto_map");
  }
  const std::optional<SequenceFormat> format = tokenizer.sequence_format();
  if (format && format->second_type && model.value("type_vocab_size", 0) > 1) {
    config["model_input_names"] = {"input_ids", "token_type_ids", "attention_mask"};
  }
  config[kKey] = tokenizer.spec_in("").str();
  text = json_text(config, kConfigFile);
  return files;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder) {
  const auto path = [&](const char* name) { return (folder / name).string(); };
  const auto has = [&](const char* name) { return is_file(folder / name); };
  bool lower_case = true;
  if (has(kConfigFile)) {
    const std::string file = path(kConfigFile);
    const nlohmann::json json = read_json(file);
    COMPACT_CHECK(json.is_object(), file, ": must be a JSON object");
    if (const auto found = json.find(kKey); found != json.end()) {
      const std::string where = cat(file, ": ", kKey);
      COMPACT_CHECK(found->is_string(), where, " must be a string");
      Spec spec = Spec::parse(found->get<std::string>());
      for (const char* const key : {"file", "vocab", "merges"}) {
        if (spec.has(key)) spec.set(key, path(spec.text(key, "").c_str()));
      }
      return make_tokenizer(spec, where);
    }
    lower_case = json_flag(json, kLowerCase, true, file);
    // Only a tokenizer.json has these settings; beside mere vocabularies they must be the usual.
    if (!has("tokenizer.json") && !has("tokenizer.model")) {
      for (const auto& [key, known] :
           {std::pair{"strip_accents", lower_case}, std::pair{"tokenize_chinese_chars", true},
            std::pair{"add_prefix_space", false}}) {
        COMPACT_CHECK(json_flag(json, key, known, file) == known, file, ": ", key, " ",
                      known ? "false" : "true", " is not known here without a tokenizer.json");
      }
    }
  }
  const std::string file = path(kJsonFile), type = has(kJsonFile) ? tokenizer_json_type(file) : "";
  if (type == "BPE" || type == "WordPiece") {
    try {
      return make_tokenizer({type == "BPE" ? "bpe" : "wordpiece", {{"file", file}}},
                            folder.string());
    } catch (const InputError&) {
      if (!has("tokenizer.model")) throw;  // else that file holds the same tokenizer
    }
  }
  if (has("tokenizer.model")) {
    auto tokenizer =
        make_tokenizer({"sentencepiece", {{"file", path("tokenizer.model")}}}, folder.string());
    if (has(kJsonFile)) check_added_tokens(file, *tokenizer);
    return tokenizer;
  }
  COMPACT_CHECK(
      !has(kJsonFile), file, ": a model of type `", type,
      "` is not known here; known: WordPiece, BPE; `python -m compact.prepare` reads what "
      "transformers does, for training");
  if (has("vocab.json") && has("merges.txt")) {
    return make_tokenizer({"bpe", {{"vocab", path("vocab.json")}, {"merges", path("merges.txt")}}},
                          folder.string());
  }
  COMPACT_CHECK(has("vocab.txt"), folder.string(),
                ": has no tokenizer: neither `compact_tokenizer` in tokenizer_config.json nor a "
                "SentencePiece tokenizer.model, a tokenizer.json, vocab.json with merges.txt, or "
                "vocab.txt");
  Spec spec{"wordpiece", {{"file", path("vocab.txt")}}};
  if (!lower_case) spec.set("lowercase", "false");
  return make_tokenizer(spec, folder.string());
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& spec_or_folder) {
  const bool named = std::ranges::any_of(
      tokenizers(), [&](const TokenizerEntry& entry) { return entry.name == spec_or_folder; });
  if (named || !is_folder(spec_or_folder)) return make_tokenizer(spec_or_folder);
  if (!is_prepared_folder(spec_or_folder)) return load_tokenizer(spec_or_folder);
  const std::filesystem::path card = std::filesystem::path(spec_or_folder) / kPreparedCard;
  return make_tokenizer(Spec{"prepared", {{"file", card.string()}}});
}

}  // namespace compact
