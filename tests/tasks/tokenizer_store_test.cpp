// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/tokenizer_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/json/json.h"
#include "compact/tasks/task_model.h"
#include "tests/tasks/save_tokenizer.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

const std::string kModel = std::string(COMPACT_SOURCE_DIR) + "/examples/data/austen-2048.model";

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string folder_error(const fs::path& folder) {
  return error_of([&] { load_tokenizer(folder); });
}

TEST(TokenizerStore, BytesNeedNoFileBeside) {
  const TemporaryFolder folder;
  save_tokenizer(folder.path(), *make_tokenizer("bytes"));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"tokenizer_config.json"});
  EXPECT_EQ(load_tokenizer(folder.path())->hash(), make_tokenizer("bytes")->hash());
}

TEST(TokenizerStore, SentencePieceLivesOnWithoutTheOriginalAndAfterAMove) {
  const TemporaryFolder folder;
  const fs::path original = folder / "original.model", at = folder / "a, b+c";
  fs::copy_file(kModel, original);
  fs::create_directory(at);
  const auto tokenizer = make_tokenizer("sentencepiece:file=" + original.string());
  save_tokenizer(at, *tokenizer);
  fs::remove(original);
  const fs::path moved = folder / "moved, too";
  fs::rename(at, moved);
  const auto loaded = load_tokenizer(moved);
  EXPECT_EQ(loaded->hash(), tokenizer->hash());
  EXPECT_EQ(loaded->encode("It is a truth"), tokenizer->encode("It is a truth"));
  EXPECT_EQ(load_tokenizer(moved)->spec(),
            "sentencepiece:file=" + (moved / "tokenizer.model").string());
  // A tokenizer that was loaded can be stored again.
  save_tokenizer(folder.path(), *loaded);
  EXPECT_EQ(load_tokenizer(folder.path())->hash(), tokenizer->hash());
}

TEST(TokenizerStore, AFolderMayBeNamed) {
  const TemporaryFolder folder;
  save_tokenizer(folder.path(), *make_tokenizer("bytes"));
  EXPECT_EQ(open_tokenizer(folder.path())->spec(), "bytes");
  EXPECT_EQ(open_tokenizer("bytes")->spec(), "bytes");
  EXPECT_THAT(error_of([] { open_tokenizer("none/there"); }), testing::HasSubstr("none/there"));
}

TEST(TokenizerStore, TakesTheModelOfAHuggingFaceFolder) {
  const TemporaryFolder folder;
  fs::copy_file(kModel, folder / "tokenizer.model");
  write(folder / "tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})");
  EXPECT_THAT(folder_error(folder.path()), testing::HasSubstr("which takes pieces and merges"));
  write(folder / "tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast"})");
  EXPECT_EQ(load_tokenizer(folder.path())->vocabulary(), 2048);
  // Beside it the same for another library, which may add tokens to it.
  write(folder / "tokenizer.json", R"({"added_tokens": [{"id": 1, "content": "<s>"},
                                                        {"id": 2048, "content": "<pad>"}]})");
  EXPECT_EQ(load_tokenizer(folder.path())->vocabulary(), 2048);
  write(folder / "tokenizer.json", R"({"added_tokens": [{"id": 2048, "content": "<|user|>"}]})");
  EXPECT_THAT(folder_error(folder.path()), testing::HasSubstr("adds the token `<|user|>`"));
  // The model stands in for a tokenizer.json that asks for what is not done here.
  write(folder / "tokenizer.json", R"({"model": {"type": "BPE", "new_setting": 1}})");
  EXPECT_EQ(load_tokenizer(folder.path())->vocabulary(), 2048);
}

TEST(TokenizerStore, ATokenizerModelPutsNoBeginThatNobodyAsksFor) {
  const TemporaryFolder folder;
  fs::copy_file(kModel, folder / "tokenizer.model");
  EXPECT_FALSE(load_tokenizer(folder.path())->sequence_format());
  write(folder / "config.json", R"({"model_type": "roberta", "bos_token_id": 1})");
  EXPECT_THAT(folder_error(folder.path()), testing::HasSubstr("reads it as RobertaTokenizer"));
  write(folder / "tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast"})");
  EXPECT_FALSE(load_tokenizer(folder.path())->sequence_format());
  write(folder / "config.json", R"({"model_type": "llama", "bos_token_id": 1})");
  EXPECT_TRUE(load_tokenizer(folder.path())->sequence_format().value().begin.empty());
  write(folder / "tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<s>"})");
  EXPECT_EQ(load_tokenizer(folder.path())->sequence_format().value().begin,
            std::vector<uint32_t>{1});
}

const char* const kWords = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\nThe\n";

TEST(TokenizerStore, WordPieceOfAHuggingFaceFolder) {
  const TemporaryFolder folder, saved;
  write(folder / "vocab.txt", kWords);
  EXPECT_EQ(load_tokenizer(folder.path())->encode("The"), std::vector<uint32_t>{4});
  write(folder / "tokenizer_config.json",
        R"({"do_lower_case": false, "tokenizer_class": "BertTokenizer", "model_max_length": 512})");
  const auto tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->encode("The"), std::vector<uint32_t>{5});
  save_tokenizer(saved.path(), *tokenizer);
  EXPECT_EQ(load_tokenizer(saved.path())->hash(), tokenizer->hash());
  const auto config = read_json(saved / "tokenizer_config.json");
  EXPECT_EQ(config["model_max_length"], 512);
  EXPECT_EQ(config["do_lower_case"], false);
  EXPECT_EQ(config["compact_tokenizer"], "wordpiece:lowercase=false,file=vocab.txt");
  write(folder / "tokenizer_config.json", R"({"strip_accents": false})");
  EXPECT_THAT(folder_error(folder.path()), testing::HasSubstr("strip_accents false is not known"));
}

TEST(TokenizerStore, PairsAndJsonOfHuggingFaceFolders) {
  const TemporaryFolder folder, saved;
  write(folder / "vocab.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})");
  write(folder / "merges.txt", "#version: 0.2\na b\n");
  const auto pair = load_tokenizer(folder.path());
  EXPECT_EQ(pair->encode("aba<|endoftext|>"), (std::vector<uint32_t>{2, 0, 3}));
  save_tokenizer(saved.path(), *pair);
  EXPECT_EQ(saved.names(), (std::vector<std::string>{"merges.txt", "tokenizer.json",
                                                     "tokenizer_config.json", "vocab.json"}));
  EXPECT_EQ(load_tokenizer(saved.path())->hash(), pair->hash());
  write(folder / "tokenizer.json", R"({"model": {"type": "Unigram"}})");
  EXPECT_THAT(folder_error(folder.path()), testing::HasSubstr("a model of type `Unigram`"));
  write(folder / "tokenizer.json", R"({
    "added_tokens": [{"id": 2, "content": "</s>", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false, "special": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})");
  const auto json = load_tokenizer(folder.path());
  EXPECT_EQ(json->encode("ab</s>"), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(json->end_of_text(), 2u);
  const TemporaryFolder again;
  save_tokenizer(again.path(), *json);
  EXPECT_EQ(load_tokenizer(again.path())->hash(), json->hash());
}

std::string set_error(const TrainConfig& c, const Opening& opening, const Tokenizer& tokenizer,
                      Task& task, std::vector<std::string>& warnings) {
  return error_of([&] { set_tokenizer(c, opening, tokenizer, task, warnings); });
}

TEST(TokenizerStore, WhatTransformersReadsOtherwiseIsRefusedToNewRunsAlone) {
  const TemporaryFolder folder;
  std::string characters = slurp(kModel);
  const std::string type = "austen-2048\x18";
  characters[characters.find(type) + type.size()] = 4;
  write(folder / "characters.model", characters);
  for (const auto& [file, model, rule] :
       {std::tuple{kModel, "qwen2", "beside such a model as Qwen2Tokenizer"},
        {(folder / "characters.model").string(), "llama", "a SentencePiece model of words or"}}) {
    const auto tokenizer = make_tokenizer("sentencepiece:file=" + file);
    TrainConfig c;
    Task task;
    task.config["model_type"] = model;
    std::vector<std::string> warnings;
    EXPECT_THAT(set_error(c, {}, *tokenizer, task, warnings), testing::HasSubstr(rule));
    EXPECT_EQ(set_error(c, {.only_evaluates = true}, *tokenizer, task, warnings), "");
    EXPECT_TRUE(task.files.empty() && warnings.empty());
    c.resume_from_checkpoint = "latest";
    EXPECT_EQ(set_error(c, {}, *tokenizer, task, warnings), "");
    EXPECT_THAT(warnings, testing::ElementsAre(testing::HasSubstr(rule)));
    EXPECT_EQ(task.files.at("tokenizer.model"), slurp(file));
    for (const auto& [name, text] : task.files) write(folder / name, text);
    EXPECT_EQ(load_tokenizer(folder.path())->hash(), tokenizer->hash());
  }
}

// The C++ half of tests/tasks/tokenizer_folders.py: the tokenizer of every folder of
// COMPACT_EXCHANGE is saved beside the model of each of `types` (where it has a config.json, of
// its own and of llama) as FOLDER/TYPE, or the reason why
// not goes into FOLDER/TYPE/refused; loaded from there it encodes the strings of `lines` into
// FOLDER/ids.json and those back into FOLDER/texts.json, and what it puts around sentences into
// FOLDER/format.json. Why a folder cannot be read goes into FOLDER/refused.
TEST(TokenizerFolders, Exchange) {
  const char* const given = std::getenv("COMPACT_EXCHANGE");
  if (!given) GTEST_SKIP() << "run by tests/tasks/tokenizer_folders.py";
  const nlohmann::json lines = read_json(fs::path(given) / "lines"),
                       types = read_json(fs::path(given) / "types");
  for (const auto& entry : fs::directory_iterator(given)) {
    if (!entry.is_directory()) continue;
    std::unique_ptr<Tokenizer> tokenizer;
    try {
      tokenizer = load_tokenizer(entry.path());
    } catch (const InputError& e) {
      write(entry.path() / "refused", e.what());
      continue;
    }
    if (const auto format = tokenizer->sequence_format()) {
      write(entry.path() / "format.json",
            nlohmann::json{format->begin, format->middle, format->end}.dump());
    }
    for (const auto& [type, config] : types.items()) {
      const fs::path own = entry.path() / "config.json", folder = entry.path() / type;
      if (type != "llama" && fs::exists(own) && read_json(own)["model_type"] != type) continue;
      fs::create_directory(folder);
      try {
        save_tokenizer(folder, *tokenizer, config);
        write(folder / "config.json", config.dump());
      } catch (const InputError& e) {
        write(folder / "refused", e.what());
      }
    }
    const auto saved = load_tokenizer(entry.path() / "llama");
    EXPECT_EQ(saved->end_of_text(), tokenizer->end_of_text()) << entry.path();
    nlohmann::json ids = nlohmann::json::array(), texts = nlohmann::json::array();
    const bool few = entry.path().filename().string().starts_with("every-");
    for (const auto& line : few ? read_json(fs::path(given) / "few") : lines) {
      ids.push_back(saved->encode(line.get<std::string>()));
      texts.push_back(saved->decode(ids.back().get<std::vector<uint32_t>>()));
      EXPECT_EQ(tokenizer->encode(line.get<std::string>()),
                ids.back().get<std::vector<uint32_t>>());
    }
    write(entry.path() / "ids.json", ids.dump());
    write(entry.path() / "texts.json", texts.dump());
  }
}

TEST(TokenizerStore, ErrorsNameTheFileAndTheRule) {
  const TemporaryFolder folder;
  EXPECT_THAT(folder_error(folder.path()), testing::HasSubstr("has no tokenizer"));
  const fs::path config = folder / "tokenizer_config.json";
  for (const auto& [text, rule] : {std::pair{"[]", "must be a JSON object"},
                                   {R"({"compact_tokenizer": 3})", "must be a string"},
                                   {R"({"compact_tokenizer": "byte"})", "did you mean `bytes`"},
                                   {R"({"compact_tokenizer": "sentencepiece:file=x"})", "x"},
                                   {"{", "tokenizer_config.json"}}) {
    write(config, text);
    EXPECT_THAT(folder_error(folder.path()), testing::HasSubstr(rule)) << text;
  }
}

}  // namespace
}  // namespace compact
