// SPDX-License-Identifier: Apache-2.0
#include "compact/train/tokenizer_store.h"

#include <nlohmann/json.hpp>
#include <string>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/spec.h"
#include "compact/base/text.h"
#include "compact/io/json_file.h"

namespace compact {
namespace {

const char* const kConfigFile = "tokenizer_config.json";
const char* const kModelFile = "tokenizer.model";
const char* const kKey = "compact_tokenizer";

// As make_tokenizer, without the detour through text: a folder's name may hold a comma.
std::unique_ptr<Tokenizer> make(const Spec& spec, const std::string& where) {
  std::vector<std::string> names;
  for (const TokenizerEntry& entry : tokenizers()) {
    if (spec.name == entry.name) return entry.make(spec);
    names.emplace_back(entry.name);
  }
  fail(where, ": no tokenizer `", spec.name, "`", suggestion(spec.name, names));
}

}  // namespace

std::map<std::string, std::string> tokenizer_files(const Tokenizer& tokenizer) {
  std::map<std::string, std::string> files;
  const std::string full = tokenizer.spec();
  Spec spec{full.substr(0, full.find(':')), {}};
  if (!tokenizer.model_bytes().empty()) {
    files[kModelFile] = tokenizer.model_bytes();
    spec.set("file", kModelFile);
  }
  files[kConfigFile] = json_text({{kKey, spec.str()}}, kConfigFile);
  return files;
}

void save_tokenizer(const std::filesystem::path& folder, const Tokenizer& tokenizer) {
  for (const auto& [name, content] : tokenizer_files(tokenizer)) {
    write_file_atomically(folder / name, content);
  }
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kConfigFile;
  const bool has_model = is_file(folder / kModelFile);
  if (is_file(file)) {
    const nlohmann::json json = read_json(file);
    COMPACT_CHECK(json.is_object(), file.string(), ": must be a JSON object");
    if (const auto found = json.find(kKey); found != json.end()) {
      const std::string where = cat(file.string(), ": ", kKey);
      COMPACT_CHECK(found->is_string(), where, " must be a string");
      Spec spec = Spec::parse(found->get<std::string>());
      if (spec.has("file")) spec.set("file", (folder / spec.text("file", "")).string());
      return make(spec, where);
    }
  }
  COMPACT_CHECK(has_model, folder.string(),
                ": has no tokenizer: neither `compact_tokenizer` in tokenizer_config.json nor a "
                "SentencePiece tokenizer.model");
  return make(Spec{"sentencepiece", {{"file", (folder / kModelFile).string()}}}, folder.string());
}

}  // namespace compact
