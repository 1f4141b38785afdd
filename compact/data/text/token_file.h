// SPDX-License-Identifier: Apache-2.0
// Token files: a header, then token ids as little-endian uint16 (vocabularies up to 65,536) or
// uint32, with end of text after each document (version 1); or samples, whose ids are uint32 with
// two marks (2); or pairs of samples, in turn a prompt with its chosen and its rejected answer (3).
//
//   offset  0  "CompActT"                      24  uint64 vocabulary: every id is below it
//           8  uint32 version, 1, 2 or 3       32  uint64 id of end of text
//          12  uint32 bytes per id, 2 or 4     40  uint64 XXH3 of the tokenizer (Tokenizer::hash)
//          16  uint64 number of ids            48  uint64 XXH3 of the ids as stored
//          56  uint32 length of the tokenizer's spec, which follows at 64
//          60  uint32 low half of the XXH3 of all of the header but this field
//   then zeros up to a multiple of 64, then the ids, then nothing.
// Files of text are written here, others by python/compact/prepare.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compact/base/atomic_file.h"
#include "compact/base/file.h"
#include "compact/data/tokenizers/tokenizer.h"

struct XXH3_state_s;  // of xxhash.h

namespace compact {

// Marks of an id in a file of samples, whose vocabulary is at most 2^30.
constexpr int64_t kSampleBegin = int64_t{1} << 30;  // the first of a sample
constexpr int64_t kTarget = int64_t{1} << 31;       // it has a loss as the next of those before

struct TokenFileInfo {
  bool samples = false;  // or pairs of them
  bool pairs = false;
  int width = 2;      // bytes per id
  int64_t count = 0;  // ids
  int64_t vocabulary = 0;
  uint32_t end_of_text = 0;
  uint64_t tokenizer_hash = 0;
  uint64_t checksum = 0;  // of the ids: tells two data sets apart
  std::string tokenizer;  // spec
};

// A token file, checked in full when opened: header, size, checksum, every id. Ids are read when
// they are asked for, so that a file which is cut or changed meanwhile is an error and not a
// signal; what was read lately is in the system's cache.
class TokenFile {
 public:
  // Throws InputError with path, rule and value. Takes one pass over the file.
  explicit TokenFile(const std::string& path);

  const std::string& path() const { return path_; }
  const TokenFileInfo& info() const { return info_; }
  int64_t count() const { return info_.count; }

  // Copies ids [begin, begin + out.size()), with their marks. Throws InputError past the end, and
  // where the file by now ends before it or holds an id that is not below the vocabulary.
  void copy(int64_t begin, std::span<int64_t> out) const;
  // Throws InputError unless the file was made with this tokenizer (judged by its hash).
  void check_tokenizer(const Tokenizer& tokenizer) const;

 private:
  void check_contents() const;
  // Without marks.
  uint32_t largest_of(const unsigned char* ids, int64_t count) const;

  std::string path_;
  InputFile file_;
  TokenFileInfo info_;
  int64_t begin_ = 0;  // of the ids, in the file
};

// Whether `path` is a file that starts as token files do.
bool is_token_file(const std::string& path);

// Writes a token file piece by piece, in constant memory; it appears at finish(), whole.
class TokenWriter {
 public:
  TokenWriter(const std::string& path, const Tokenizer& tokenizer);

  // Throws InputError on an id >= vocabulary, and where the disk is full.
  void append(std::span<const uint32_t> tokens);
  int64_t count() const { return info_.count; }
  // Writes the header and puts the file in its place.
  void finish();

 private:
  AtomicFileWriter file_;
  TokenFileInfo info_;
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> checksum_;
  std::vector<uint16_t> narrow_;
};

}  // namespace compact
