// SPDX-License-Identifier: Apache-2.0
// `prepared`: any tokenizer of transformers, which has made its ids already. Known here are how
// many they are, which end a text, and its files, which are stored as they are.
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/data/tokenizers/prepared_folder.h"
#include "compact/data/tokenizers/tokenizer.h"
#include "compact/json/json.h"

namespace compact {
namespace {

constexpr int64_t kLargestPreparedFile = int64_t{256} << 20;

uint64_t hash_of_files(const std::map<std::string, std::string>& files) {
  std::string all;
  for (const auto& [name, bytes] : files) {
    for (const std::string* text : {&name, &bytes}) {
      const uint64_t hash = XXH3_64bits(text->data(), text->size());
      all.append(reinterpret_cast<const char*>(&hash), sizeof hash);
    }
  }
  return XXH3_64bits(all.data(), all.size());
}

class PreparedTokenizer final : public Tokenizer {
 public:
  explicit PreparedTokenizer(std::string card) : card_(std::move(card)) {
    const nlohmann::json json = read_json(card_);
    const auto said = json.is_object() ? json.find("tokenizer") : json.end();
    COMPACT_CHECK(said != json.end() && said->is_object(), card_, ": must have a `tokenizer`");
    const auto list = [&](const char* key) {
      const auto found = said->find(key);
      COMPACT_CHECK(found != said->end() && found->is_array(), card_, ": `", key,
                    "` of the tokenizer must be a list");
      return *found;
    };
    const auto id = [&](const nlohmann::json& value, int64_t below) {
      COMPACT_CHECK(value.is_number_unsigned() && value < below, card_,
                    ": a number of the tokenizer must be below ", below, ", is ", value.dump());
      return value.get<uint32_t>();
    };
    vocabulary_ = id(said->value("vocabulary", nlohmann::json()), (int64_t{1} << 30) + 1);
    for (const nlohmann::json& value : list("ends")) ends_.push_back(id(value, vocabulary_));
    COMPACT_CHECK(!ends_.empty(), card_, ": the tokenizer must have an end of text");
    for (const nlohmann::json& value : list("begin")) begin_.push_back(id(value, vocabulary_));
    const std::filesystem::path folder = std::filesystem::path(card_).parent_path();
    for (const nlohmann::json& value : list("files")) {
      const std::string name = value.is_string() ? value.get<std::string>() : "";
      COMPACT_CHECK(
          !name.empty() && name == std::filesystem::path(name).filename() && name[0] != '.', card_,
          ": a file of the tokenizer must be a name, is ", value.dump());
      files_[name] = read_text(folder / name, kLargestPreparedFile);
    }
    hash_ = hash_of_files(files_);
  }

  std::vector<uint32_t> encode(std::string_view) const override { no_text(); }
  std::string decode(std::span<const uint32_t>) const override { no_text(); }
  int64_t vocabulary() const override { return vocabulary_; }
  uint32_t end_of_text() const override { return ends_.front(); }
  std::vector<uint32_t> ends() const override { return ends_; }
  Cut cut() const override { return Cut::kNowhere; }
  std::string spec() const override { return Spec{"prepared", {{"file", card_}}}.str(); }
  uint64_t hash() const override { return hash_; }
  std::map<std::string, std::string> files() const override { return files_; }
  bool keeps_files() const override { return true; }
  std::optional<SequenceFormat> sequence_format() const override {
    return SequenceFormat{.begin = begin_, .middle = {}, .end = {}, .pad = ends_.front()};
  }

 private:
  [[noreturn]] void no_text() const {
    fail(card_,
         ": its tokenizer is read by transformers alone: text goes through "
         "`python -m compact.prepare`");
  }

  std::string card_;
  int64_t vocabulary_ = 0;
  std::vector<uint32_t> ends_, begin_;
  std::map<std::string, std::string> files_;
  uint64_t hash_ = 0;
};

}  // namespace

bool is_prepared_folder(const std::string& path) {
  return is_file(std::filesystem::path(path) / kPreparedCard);
}

std::unique_ptr<Tokenizer> make_prepared_tokenizer(const Spec& spec) {
  spec.allow({"file"});
  const std::string file = spec.text("file", "");
  COMPACT_CHECK(!file.empty(), "prepared: needs file=PATH, the ", kPreparedCard, " of a folder");
  return std::make_unique<PreparedTokenizer>(file);
}

}  // namespace compact
