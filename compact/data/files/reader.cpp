// SPDX-License-Identifier: Apache-2.0
#include "compact/data/files/reader.h"

#include <glob.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"
#include "compact/data/files/json_field.h"
#include "compact/data/files/utf8.h"

namespace compact {
namespace {

constexpr size_t kBlock = size_t{1} << 16;
constexpr size_t kLongestLine = size_t{1} << 26;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, nullptr, &found);
  std::vector<std::string> paths;
  if (status == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

// The pattern of this path alone.
std::string escaped(const std::string& path) {
  std::string out;
  for (const char c : path) {
    if (std::string_view("*?[]{},~\\").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// A part `**` stands for any folders, or none: those whose names begin with a dot and links are not
// entered. At the end it stands for all files there.
std::vector<std::string> walked(const std::string& pattern) {
  namespace fs = std::filesystem;
  size_t at = pattern.starts_with("**/") || pattern == "**" ? 0 : pattern.find("/**/");
  if (at == pattern.npos && pattern.ends_with("/**")) at = pattern.size() - 3;
  if (at == pattern.npos) return matches(pattern);
  const size_t stars = pattern.find("**", at);
  const std::string above = pattern.substr(0, stars), below = pattern.substr(stars + 2);
  std::vector<std::string> paths;
  const auto take = [&](const std::string& folder) {  // ends in a slash, or is empty
    for (std::string& path : walked(escaped(folder) + (below.empty() ? "*" : below.substr(1)))) {
      if (!below.empty() || !is_folder(path)) paths.push_back(std::move(path));
    }
  };
  for (const std::string& top : above.empty() ? std::vector<std::string>{""} : matches(above)) {
    take(top);
    constexpr auto kPassedOver = fs::directory_options::skip_permission_denied;
    std::error_code error;
    for (fs::recursive_directory_iterator entry(top.empty() ? "." : top, kPassedOver, error), end;
         !error && entry != end; entry.increment(error)) {
      if (!entry->is_directory(error) || entry->is_symlink(error)) continue;
      const std::string path = entry->path().string() + "/";
      if (entry->path().filename().string().starts_with('.')) {
        entry.disable_recursion_pending();
      } else {
        take(top.empty() ? path.substr(2) : path);  // "./" is nobody's
      }
    }
  }
  return paths;
}

std::vector<std::string> files_of(const std::string& pattern) {
  std::vector<std::string> paths = walked(pattern);
  std::ranges::sort(paths);
  paths.erase(std::ranges::unique(paths).begin(), paths.end());
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
      found = files_of(input);
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
                               Progress progress, bool strict)
    : files_(expand_inputs(inputs)),
      field_(field),
      progress_(std::move(progress)),
      strict_(strict) {
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
  odd_.emplace(strict_, path_, "lines");
  return true;
}

void DocumentReader::close() {
  COMPACT_CHECK(file_bytes_ > 0, path_, ": is empty after decompression (0 bytes)");
  if (std::string line = odd_->finish(file_documents_); !line.empty()) warnings_.push_back(line);
  COMPACT_CHECK(file_documents_ > 0, path_, ": holds no document, only blank lines");
  done_ += source_->consumed();
  source_.reset();
}

bool DocumentReader::fill() {
  if (begin_ < end_) return true;
  begin_ = 0;
  end_ = source_->read(buffer_.data(), buffer_.size());
  if (progress_) progress_(done_ + source_->consumed(), total_);
  const std::string_view block(buffer_.data(), end_);
  if (file_bytes_ == 0) refuse_utf16(path_, block);
  const auto nuls = static_cast<size_t>(std::ranges::count(block, '\0'));
  constexpr size_t kTextBytes = 100;  // for each NUL
  if (nuls > 0 && (strict_ || (file_bytes_ == 0 && nuls > 1 + block.size() / kTextBytes))) {
    fail(path_, ": must be text, but byte ", file_bytes_ + static_cast<int64_t>(block.find('\0')),
         " is NUL: a binary file");
  }
  if (file_bytes_ == 0 && block.starts_with(kByteOrderMark)) begin_ = kByteOrderMark.size();
  file_bytes_ += static_cast<int64_t>(end_);
  return begin_ < end_ || (end_ > 0 && fill());
}

bool DocumentReader::next_text(DocumentPiece& piece) {
  if (fill()) {
    piece = {{buffer_.data() + begin_, end_ - begin_}, false};
    begin_ = end_;
    if (piece.text.find('\0') == piece.text.npos) return true;
    text_ = piece.text;
    replaced_ += replace_nuls(text_);
    piece.text = text_;
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
    std::string error;
    int64_t replaced = repair.replaced() + replace_nuls(repaired_);
    if (!json_text_field(repaired_, field_, text_, error, strict_ ? nullptr : &replaced)) {
      odd_->add(cat(path_, ": line ", line_number_, " ", error));
      continue;
    }
    replaced_ += replaced;
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
