// SPDX-License-Identifier: Apache-2.0
// A SentencePiece model, and text through it.
#include "compact/data/tokenizers/tokenizer.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  const std::string path = fuzz::folder().file("spm.model", bytes);
  fuzz::accepted([&] {
    const auto tokenizer = make_tokenizer("sentencepiece:file=" + path);
    tokenizer->decode(tokenizer->encode("It was the best of times, \xc3\xa9\xff \n"));
  });
}
