// SPDX-License-Identifier: Apache-2.0
#include "compact/train/tokenizer_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "compact/base/check.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

const std::string kModel = std::string(COMPACT_SOURCE_DIR) + "/examples/data/austen-2048.model";

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string error_of(const fs::path& folder) {
  try {
    load_tokenizer(folder);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
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

TEST(TokenizerStore, TakesTheModelOfAHuggingFaceFolder) {
  const TemporaryFolder folder;
  fs::copy_file(kModel, folder / "tokenizer.model");
  write(folder / "tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})");
  EXPECT_EQ(load_tokenizer(folder.path())->vocabulary(), 2048);
}

TEST(TokenizerStore, ErrorsNameTheFileAndTheRule) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of(folder.path()), testing::HasSubstr("has no tokenizer"));
  const fs::path config = folder / "tokenizer_config.json";
  for (const auto& [text, rule] : {std::pair{"[]", "must be a JSON object"},
                                   {R"({"compact_tokenizer": 3})", "must be a string"},
                                   {R"({"compact_tokenizer": "byte"})", "did you mean `bytes`"},
                                   {R"({"compact_tokenizer": "sentencepiece:file=x"})", "x"},
                                   {"{", "tokenizer_config.json"}}) {
    write(config, text);
    EXPECT_THAT(error_of(folder.path()), testing::HasSubstr(rule)) << text;
  }
  EXPECT_THROW(save_tokenizer(folder / "missing", *make_tokenizer("bytes")), InputError);
}

}  // namespace
}  // namespace compact
