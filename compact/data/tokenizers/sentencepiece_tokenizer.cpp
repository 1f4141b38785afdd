// SPDX-License-Identifier: Apache-2.0
// `sentencepiece:file=PATH`: a SentencePiece model, through its own library.
#include <sentencepiece_processor.h>
#include <xxhash.h>

#include <fstream>
#include <new>

#include "compact/base/check.h"
#include "compact/data/files/byte_source.h"
#include "compact/data/files/utf8.h"
#include "compact/data/tokenizers/sentencepiece_model.h"
#include "compact/data/tokenizers/tokenizer.h"

namespace compact {
namespace {

constexpr int64_t kLargestModel = int64_t{1} << 28;

std::string read_model(const std::string& path) {
  const int64_t size = input_size(path);
  COMPACT_CHECK(size <= kLargestModel, path, ": a SentencePiece model must be at most ",
                kLargestModel, " bytes, has ", size);
  std::string bytes(static_cast<size_t>(size), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), size);
  COMPACT_CHECK(file.gcount() == size, path, ": cannot be read");
  return bytes;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) : path_(path), bytes_(read_model(path)) {
    load();
    COMPACT_CHECK(processor_.GetPieceSize() > 0, path, ": has an empty vocabulary");
    COMPACT_CHECK(processor_.eos_id() >= 0, path, ": needs an end-of-sentence piece (</s>)");
    XXH3_state_t* const state = XXH3_createState();
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, "sentencepiece", 13);
    XXH3_64bits_update(state, bytes_.data(), bytes_.size());
    hash_ = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    cut_ = find_cut();
  }

  std::vector<uint32_t> encode(std::string_view text) const override {
    const std::string repaired = repaired_utf8(text);
    std::vector<int> ids;
    const auto status = processor_.Encode(repaired, &ids);
    COMPACT_CHECK(status.ok(), path_, ": cannot encode: ", status.message());
    return {ids.begin(), ids.end()};
  }

  std::string decode(std::span<const uint32_t> tokens) const override {
    for (const uint32_t token : tokens) {
      COMPACT_CHECK(token < static_cast<uint64_t>(vocabulary()), path_,
                    ": a token id must be below ", vocabulary(), ", is ", token);
    }
    std::string text;
    const auto status = processor_.Decode(std::vector<int>(tokens.begin(), tokens.end()), &text);
    COMPACT_CHECK(status.ok(), path_, ": cannot decode: ", status.message());
    return text;
  }

  int64_t vocabulary() const override { return processor_.GetPieceSize(); }
  uint32_t end_of_text() const override { return static_cast<uint32_t>(processor_.eos_id()); }
  Cut cut() const override { return cut_; }
  std::string spec() const override { return "sentencepiece:file=" + path_; }
  uint64_t hash() const override { return hash_; }
  std::map<std::string, std::string> files() const override {
    return {{"tokenizer.model", bytes_}};
  }
  // The class of `transformers` that reads tokenizer.model as its own library does.
  std::map<std::string, std::string> config() const override {
    return {{"tokenizer_class",
             sentencepiece_merges(bytes_, path_) ? "\"LlamaTokenizer\"" : "\"T5Tokenizer\""}};
  }
  Spec spec_in(const std::string& folder) const override {
    return {"sentencepiece", {{"file", folder + "tokenizer.model"}}};
  }

 private:
  void load() {
    check_sentencepiece_model(bytes_, path_);
    const std::string error = load_error();
    COMPACT_CHECK(error.empty(), path_, ": must be a SentencePiece model: ", error);
  }

  // What the library says is wrong with the file; empty where it can read it. It throws on some
  // files.
  std::string load_error() try {
    const auto status = processor_.LoadFromSerializedProto(bytes_);
    return status.ok() ? std::string() : cat(status.message());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return cat(e.what());
  }

  // How a model treats spaces is in its settings, which the library does not show: so try it out.
  Cut find_cut() const {
    const auto joined = [&](const char* second) {
      std::vector<uint32_t> tokens = encode("to be,");
      const std::vector<uint32_t> more = encode(second);
      tokens.insert(tokens.end(), more.begin(), more.end());
      return tokens;
    };
    const std::vector<uint32_t> whole = encode("to be, or not");
    if (joined("or not") == whole) return Cut::kAtSpace;
    if (joined(" or not") == whole) return Cut::kBeforeSpace;
    return Cut::kNowhere;
  }

  std::string path_, bytes_;
  sentencepiece::SentencePieceProcessor processor_;
  uint64_t hash_ = 0;
  Cut cut_ = Cut::kNowhere;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const Spec& spec) {
  spec.allow({"file"});
  COMPACT_CHECK(!spec.text("file", "").empty(), "`sentencepiece` needs file=PATH, got `",
                spec.str(), "`");
  return std::make_unique<SentencePieceTokenizer>(spec.text("file", ""));
}

}  // namespace compact
