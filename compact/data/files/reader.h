// SPDX-License-Identifier: Apache-2.0
// Documents out of text files, streamed in constant memory. `.txt`: a file is a document, taken
// byte by byte as it is but for a byte order mark. `.jsonl`: a line is a document, the string in
// one field of its object; blank lines are skipped, and a line may be up to 64 MiB. Either may also
// be `.gz`, `.xz` or `.zst`. Invalid UTF-8 and halves of pairs of surrogates in `.jsonl`, and NUL
// in either, become U+FFFD and are counted; lines that are no such objects are left out. Where
// readers are strict, each of these is an error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compact/data/files/replaced.h"

namespace compact {

// Bytes of the input files read so far, as stored, and in all. May throw to stop.
using Progress = std::function<void(int64_t done, int64_t total)>;

// The files named by paths and patterns (`*`, `?`, `[a-z]`, `{a,b}`, and `**` for folders at any
// depth, as in `books/**/*.txt`) and in folders, at any depth: in the order given, those of one
// pattern or folder sorted by bytes. Throws InputError where a pattern or folder has none, a file
// is missing, empty, no regular file, has an unknown ending, or comes twice.
std::vector<std::string> expand_inputs(const std::vector<std::string>& inputs);

// A part of a document. The view lives until the next call of next().
struct DocumentPiece {
  std::string_view text;
  bool last = false;  // the document ends here
};

struct DocumentFile;  // that is being read

class DocumentReader {
 public:
  DocumentReader(const std::vector<std::string>& inputs, const std::string& field = "text",
                 Progress progress = {}, bool strict = true);
  ~DocumentReader();

  // The next piece; false after the last. Throws InputError with the path (and the line) on
  // unreadable, binary (where strict, any NUL; otherwise more than one byte, and of 100, in the
  // first block of at most 64 KiB) or corrupt files.
  bool next(DocumentPiece& piece);

  const std::vector<std::string>& files() const { return files_; }
  int64_t documents() const { return documents_; }
  int64_t text_bytes() const { return text_bytes_; }      // given out so far
  const Replaced& replaced() const { return replaced_; }  // U+FFFD put in
  // Where the last piece is: "PATH: line 3", or "PATH" of a .txt.
  std::string where() const;
  const std::vector<std::string>& warnings() const { return warnings_; }  // of files, a line each

 private:
  void open(const std::string& path);
  void watch(std::string_view block);
  void close();

  std::vector<std::string> files_;
  std::string field_;
  Progress progress_;
  bool strict_;
  size_t next_file_ = 0;
  std::unique_ptr<DocumentFile> file_;
  std::vector<std::string> warnings_;
  int64_t documents_ = 0, text_bytes_ = 0;
  Replaced replaced_;
  int64_t done_ = 0, total_ = 0;  // bytes of the files
};

}  // namespace compact
