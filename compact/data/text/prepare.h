// SPDX-License-Identifier: Apache-2.0
// Text files to a token file, each document followed by one end of text; streamed in constant
// memory (but a line of `.jsonl` is held whole). For `compact prepare`, and for training on raw
// text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compact/data/files/reader.h"
#include "compact/data/tokenizers/tokenizer.h"

namespace compact {

struct Prepared {
  int64_t files = 0, documents = 0;
  int64_t text_bytes = 0;  // after decompression
  int64_t tokens = 0;      // end of text included
  int64_t replaced = 0;    // places that became U+FFFD (under `bytes` + .txt only NUL), if it was
                           // not strict; among `warnings`, too
  std::vector<std::string> warnings = {};  // about files, a line each
};

struct PrepareOptions {
  std::string field = "text";  // of `.jsonl`
  Progress progress;           // may throw to stop: nothing is left behind
  bool strict = true;          // see DocumentReader
};

// Writes the documents of `inputs` (files or patterns) to the token file `output`, which appears
// whole or not at all; an older token file there is replaced. Throws InputError on bad input, where
// `output` is one of the inputs or a file of another kind, or cannot be written.
Prepared prepare(const std::vector<std::string>& inputs, const Tokenizer& tokenizer,
                 const std::string& output, const PrepareOptions& options = {});

struct CachedTokens {
  std::string path;     // of the token file
  bool reused = false;  // nothing had to be read but the cached file
  Prepared prepared;    // where reused, `replaced` and `warnings` alone
};

// The token file for `inputs`. A single input that is a token file already, or a
// prepared folder with one, is returned as it is, once its tokenizer is checked. Else the inputs
// are prepared into `cache_folder` (made if missing) under a name that depends on path, size and
// time of change of each, on the tokenizer and on `field`; a file of that name which is valid is
// used again, an invalid one made again. Its warnings are stored next to it in a .warnings file and
// repeated on reuse. When one is made, those with names like it that were not used for 30 days are
// removed.
CachedTokens cached_token_file(const std::vector<std::string>& inputs, const Tokenizer& tokenizer,
                               const std::string& cache_folder, const PrepareOptions& options = {});

// `path` where that is a token file, the token file in it where it is a folder that was prepared
// (prepared_folder.h); else "".
std::string token_file_at(const std::string& path);

// Throws InputError where the inputs of cached_token_file() are missing or of no known kind.
void check_inputs(const std::vector<std::string>& inputs);

// $COMPACT_CACHE, else $XDG_CACHE_HOME/compact, else $HOME/.cache/compact, else .cache/compact.
std::string default_cache_folder();

}  // namespace compact
