// SPDX-License-Identifier: Apache-2.0
#include "compact/data/files/reader.h"

#include <glob.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/json_field.h"
#include "compact/data/files/utf8.h"

namespace compact {
namespace {

constexpr size_t kBlock = size_t{1} << 16;
constexpr size_t kLongestLine = size_t{1} << 26;

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, nullptr, &found);
  std::vector<std::string> paths;
  if (status == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

std::vector<std::string> expand_inputs(const std::vector<std::string>& inputs) {
  COMPACT_CHECK(!inputs.empty(), "at least one input file is needed");
  std::vector<std::string> files;
  std::set<std::filesystem::path> seen;
  for (const std::string& input : inputs) {
    std::vector<std::string> found;
    std::error_code ignored;
    if (std::filesystem::exists(input, ignored)) {
      found = {input};
    } else {
      COMPACT_CHECK(input.find_first_of("*?[{~") != input.npos, input, ": does not exist");
      found = matches(input);
      COMPACT_CHECK(!found.empty(), input, ": the pattern matches no file");
    }
    for (const std::string& path : found) {
      input_size(path);
      const std::string_view name = without_compression(path);
      COMPACT_CHECK(name.ends_with(".txt") || name.ends_with(".jsonl"), path,
                    ": the name must end in .txt or .jsonl, then perhaps .gz, .xz or .zst");
      COMPACT_CHECK(seen.insert(std::filesystem::canonical(path, ignored)).second, path,
                    ": is given twice");
      files.push_back(path);
    }
  }
  return files;
}

DocumentReader::DocumentReader(const std::vector<std::string>& inputs, const std::string& field,
                               Progress progress)
    : files_(expand_inputs(inputs)), field_(field), progress_(std::move(progress)) {
  COMPACT_CHECK(!field.empty(), "[reader] field must not be empty");
  for (const std::string& path : files_) total_ += input_size(path);
  buffer_.resize(kBlock);
}

bool DocumentReader::open_next() {
  if (file_ == files_.size()) return false;
  path_ = files_[file_++];
  source_ = open_source(path_);
  json_ = without_compression(path_).ends_with(".jsonl");
  begin_ = end_ = 0;
  line_number_ = file_bytes_ = file_documents_ = 0;
  return true;
}

void DocumentReader::close() {
  COMPACT_CHECK(file_bytes_ > 0, path_, ": is empty after decompression (0 bytes)");
  COMPACT_CHECK(file_documents_ > 0, path_, ": holds no document, only blank lines");
  done_ += source_->consumed();
  source_.reset();
}

bool DocumentReader::fill() {
  if (begin_ < end_) return true;
  begin_ = 0;
  end_ = source_->read(buffer_.data(), buffer_.size());
  if (progress_) progress_(done_ + source_->consumed(), total_);
  if (file_bytes_ == 0 && end_ > 0) {
    const void* nul = std::memchr(buffer_.data(), 0, end_);
    COMPACT_CHECK(nul == nullptr, path_, ": must be text, but byte ",
                  static_cast<const char*>(nul) - buffer_.data(), " is NUL: a binary file");
  }
  file_bytes_ += static_cast<int64_t>(end_);
  return end_ > 0;
}

bool DocumentReader::next_text(DocumentPiece& piece) {
  if (fill()) {
    piece = {{buffer_.data() + begin_, end_ - begin_}, false};
    begin_ = end_;
  } else {
    piece = {{}, true};
    ++file_documents_;
    close();
  }
  return true;
}

// Puts the next line, without its end, into line_; false at the end of the file.
bool DocumentReader::next_line() {
  line_.clear();
  bool any = false;
  while (fill()) {
    any = true;
    const char* const start = buffer_.data() + begin_;
    const void* const newline = std::memchr(start, '\n', end_ - begin_);
    const size_t length =
        newline ? static_cast<size_t>(static_cast<const char*>(newline) - start) : end_ - begin_;
    COMPACT_CHECK(line_.size() + length <= kLongestLine, path_, ": line ", line_number_ + 1,
                  " must be at most ", format_bytes(kLongestLine), " long");
    line_.append(start, length);
    begin_ += length + (newline ? 1 : 0);
    if (newline) break;
  }
  line_number_ += any;
  return any;
}

bool DocumentReader::next_json(DocumentPiece& piece) {
  while (next_line()) {
    if (trim(line_).empty()) continue;
    Utf8Repair repair;
    repaired_.clear();
    repair.feed(line_, repaired_);
    repair.finish(repaired_);
    replaced_ += repair.replaced();
    std::string error;
    COMPACT_CHECK(json_text_field(repaired_, field_, text_, error), path_, ": line ", line_number_,
                  " ", error);
    ++file_documents_;
    piece = {text_, true};
    return true;
  }
  close();
  return false;
}

bool DocumentReader::next(DocumentPiece& piece) {
  while (source_ || open_next()) {
    if (!(json_ ? next_json(piece) : next_text(piece))) continue;
    documents_ += piece.last;
    text_bytes_ += static_cast<int64_t>(piece.text.size());
    return true;
  }
  return false;
}

}  // namespace compact
