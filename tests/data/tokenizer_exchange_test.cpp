// SPDX-License-Identifier: Apache-2.0
// The C++ half of tests/data/tokenizers.py. In the folder COMPACT_EXCHANGE, `specs` has a line per
// tokenizer and `texts` a length (uint32) and bytes per text. For the i-th tokenizer, `ids.i` gets
// a count and ids per text, `decoded.i` texts, `info.i` its figures as JSON.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "compact/data/tokenizers/stream_encoder.h"
#include "compact/data/tokenizers/tokenizer.h"
#include "tests/data/files.h"

namespace compact {
namespace {

void put_number(std::string& out, uint32_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::vector<std::string> read_texts(const std::string& bytes) {
  std::vector<std::string> texts;
  for (size_t at = 0; at < bytes.size();) {
    uint32_t size = 0;
    std::memcpy(&size, bytes.data() + at, sizeof size);
    texts.push_back(bytes.substr(at + sizeof size, size));
    at += sizeof size + size;
  }
  return texts;
}

nlohmann::json info(const Tokenizer& tokenizer) {
  nlohmann::json json{{"vocabulary", tokenizer.vocabulary()},
                      {"end_of_text", tokenizer.end_of_text()},
                      {"cut", static_cast<int>(tokenizer.cut())},
                      {"format", nullptr}};
  if (const auto format = tokenizer.sequence_format()) {
    json["format"] = {{"begin", format->begin},
                      {"middle", format->middle},
                      {"end", format->end},
                      {"pad", format->pad},
                      {"second_type", format->second_type}};
  }
  return json;
}

TEST(TokenizerExchange, All) {
  const char* const given = std::getenv("COMPACT_EXCHANGE");
  if (!given) GTEST_SKIP() << "run by tests/data/tokenizers.py";
  const std::string folder = std::string(given) + "/";
  const std::vector<std::string> texts = read_texts(slurp(folder + "texts"));
  std::istringstream specs(slurp(folder + "specs"));
  std::string spec;
  for (int i = 0; std::getline(specs, spec); ++i) {
    const auto tokenizer = make_tokenizer(spec);
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::vector<uint32_t>> ids;
    for (const std::string& text : texts) ids.push_back(tokenizer->encode(text));
    const auto end = std::chrono::steady_clock::now();
    std::string encoded, decoded, whole;
    std::vector<uint32_t> streamed;
    StreamEncoder stream(*tokenizer);
    for (size_t t = 0; t < texts.size(); ++t) {
      put_number(encoded, static_cast<uint32_t>(ids[t].size()));
      for (const uint32_t id : ids[t]) put_number(encoded, id);
      const std::string text = tokenizer->decode(ids[t]);
      put_number(decoded, static_cast<uint32_t>(text.size()));
      decoded += text;
      if (whole.size() < (size_t{1} << 20)) {
        whole += texts[t] + " ";
        stream.feed(texts[t] + " ", streamed);
      }
    }
    stream.finish(streamed);
    EXPECT_EQ(streamed, tokenizer->encode(whole)) << spec;
    spill(folder + "ids." + std::to_string(i), encoded);
    spill(folder + "decoded." + std::to_string(i), decoded);
    nlohmann::json json = info(*tokenizer);
    json["seconds"] = std::chrono::duration<double>(end - start).count();
    spill(folder + "info." + std::to_string(i), json.dump());
  }
}

}  // namespace
}  // namespace compact
