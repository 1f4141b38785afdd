// SPDX-License-Identifier: Apache-2.0
// Text files, compressed or not, as documents.
#include "compact/data/files/reader.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  static const char* const names[] = {"a.txt",    "a.jsonl",    "a.txt.gz",  "a.jsonl.gz",
                                      "a.txt.xz", "a.jsonl.xz", "a.txt.zst", "a.jsonl.zst"};
  const char* name = names[fuzz::choice(bytes, 8)];
  const std::string path = fuzz::folder().file(name, bytes);
  fuzz::accepted([&] {
    DocumentReader reader({path});
    DocumentPiece piece;
    int64_t total = 0;
    while (reader.next(piece)) total += static_cast<int64_t>(piece.text.size());
    fuzz::require(total == reader.text_bytes());
  });
}
