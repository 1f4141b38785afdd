// SPDX-License-Identifier: Apache-2.0
// Any text through tokenizers that are sound.
#include "compact/data/tokenizers/tokenizer.h"
#include "fuzz/fuzz.h"

namespace {

constexpr const char* kVocabulary =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\nun\n##a\n##b\na\nb\nc\n,\n\xe6\x97\xa5\n##\xcc\x81\n";

// Every byte, some merges.
std::string vocabulary_of_bytes() {
  std::string text = "{";
  int id = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool shown =
        (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    static int hidden = 0;
    char unit[16];
    snprintf(unit, sizeof unit, "\\u%04x", shown ? byte : 256 + hidden++);
    text += "\"" + std::string(unit) + "\": " + std::to_string(id++) + ", ";
  }
  return text + "\"ab\": 256, \"abab\": 257, \"<|endoftext|>\": 258}";
}

}  // namespace

FUZZ(bytes) {
  using namespace compact;
  static const auto wordpiece =
      make_tokenizer("wordpiece:file=" + fuzz::folder().file("sound.txt", kVocabulary));
  static const auto bpe = make_tokenizer(
      "bpe:vocab=" + fuzz::folder().file("sound.json", vocabulary_of_bytes()) +
      ",merges=" + fuzz::folder().file("sound.merges", "#version: 0.2\na b\nab ab\n"));
  for (const auto& tokenizer : {wordpiece.get(), bpe.get()}) {
    const auto ids = tokenizer->encode(bytes);
    for (const uint32_t id : ids) fuzz::require(id < tokenizer->vocabulary());
    tokenizer->decode(ids);
  }
}
