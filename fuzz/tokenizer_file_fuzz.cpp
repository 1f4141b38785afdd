// SPDX-License-Identifier: Apache-2.0
// Files of WordPiece and byte-level BPE tokenizers, and text through them.
#include "compact/data/tokenizers/tokenizer.h"
#include "fuzz/fuzz.h"

namespace {

// A spec of the files that the bytes become; vocab.json and merges.txt have a NUL between them.
std::string spec_of(std::string_view bytes) {
  using namespace compact;
  switch (fuzz::choice(bytes, 4)) {
    case 0:
      return "wordpiece:file=" + fuzz::folder().file("vocab.txt", bytes);
    case 1:
      return "wordpiece:file=" + fuzz::folder().file("tokenizer.json", bytes);
    case 2:
      return "bpe:file=" + fuzz::folder().file("tokenizer.json", bytes);
  }
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const std::string vocab = fuzz::folder().file("vocab.json", bytes.substr(0, end)),
                    merges = fuzz::folder().file("merges.txt",
                                                 bytes.substr(std::min(end + 1, bytes.size())));
  return "bpe:vocab=" + vocab + ",merges=" + merges;
}

}  // namespace

FUZZ(bytes) {
  using namespace compact;
  fuzz::accepted([&] {
    const auto tokenizer = make_tokenizer(spec_of(bytes));
    tokenizer->sequence_format();
    const auto ids =
        tokenizer->encode("It was the b\xc3\xa9st of 1234 times, \xe6\x97\xa5\xff [SEP] \n");
    for (const uint32_t id : ids) fuzz::require(id < tokenizer->vocabulary());
    tokenizer->decode(ids);
  });
}
