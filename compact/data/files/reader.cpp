// SPDX-License-Identifier: Apache-2.0
#include "compact/data/files/reader.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"
#include "compact/data/files/json_field.h"
#include "compact/data/files/odd_ones.h"
#include "compact/data/files/text_lines.h"

namespace compact {

struct DocumentFile {
  TextLines lines;
  OddOnes odd;
  std::string field;
  bool strict;
  bool (*next)(DocumentFile& file, DocumentPiece& piece);  // false after the last
  int64_t documents = 0, replaced = 0;
  std::string text = {};  // of a piece
};

namespace {

// A whole file is one document.
bool next_block(DocumentFile& file, DocumentPiece& piece) {
  if (file.documents > 0) return false;
  piece.text = file.lines.block();
  piece.last = piece.text.empty();
  file.documents += piece.last;
  file.replaced = file.lines.replaced();
  return true;
}

// Each line is a document: the string in one field of its object.
bool next_object(DocumentFile& file, DocumentPiece& piece) {
  for (int64_t before = file.lines.replaced(); file.lines.next(); before = file.lines.replaced()) {
    if (trim(file.lines.line()).empty()) continue;
    std::string error;
    int64_t replaced = file.lines.replaced() - before;
    if (!json_text_field(file.lines.line(), file.field, file.text, error,
                         file.strict ? nullptr : &replaced)) {
      file.odd.add(cat(file.lines.where(), " ", error));
      continue;
    }
    file.replaced += replaced;
    ++file.documents;
    piece = {file.text, true};
    return true;
  }
  return false;
}

constexpr struct {
  std::string_view ending;
  decltype(DocumentFile::next) next;
} kDocumentFormats[] = {{".txt", next_block}, {".jsonl", next_object}};

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
        take(top.empty() ? path.substr(2) : path);  // the path had no "./"
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
    if (is_folder(input)) {
      found = files_of(escaped(input) + "/**");
      std::erase_if(found, [](const std::string& path) {
        return std::ranges::none_of(kDocumentFormats, [&](const auto& format) {
          return without_compression(path).ends_with(format.ending);
        });
      });
      COMPACT_CHECK(!found.empty(), input, ": the folder holds no .txt and no .jsonl file");
    } else if (std::filesystem::exists(input, ignored)) {
      found = {input};
    } else {
      COMPACT_CHECK(input.find_first_of("*?[{~") != input.npos, input, ": does not exist");
      found = files_of(input);
      COMPACT_CHECK(!found.empty(), input, ": the pattern matches no file");
    }
    for (const std::string& path : found) {
      input_size(path);
      format_of(path, kDocumentFormats);
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
}

DocumentReader::~DocumentReader() = default;

void DocumentReader::watch(std::string_view block) {
  const TextLines& lines = file_->lines;
  if (progress_) progress_(done_ + lines.consumed(), total_);
  const auto nuls = static_cast<size_t>(std::ranges::count(block, '\0'));
  constexpr size_t kTextBytes = 100;  // for each NUL
  if (nuls > 0 && (strict_ || (lines.bytes() == 0 && nuls > 1 + block.size() / kTextBytes))) {
    fail(lines.path(), ": must be text, but byte ",
         lines.bytes() + static_cast<int64_t>(block.find('\0')), " is NUL: a binary file");
  }
}

void DocumentReader::open(const std::string& path) {
  TextRules rules{.nul = TextRules::kReplaced, .strict = strict_, .watch = [this](auto block) {
                    watch(block);
                  }};
  file_.reset(new DocumentFile{TextLines(path, std::move(rules)), OddOnes(strict_, path, "lines"),
                               field_, strict_, format_of(path, kDocumentFormats).next});
}

void DocumentReader::close() {
  const TextLines& lines = file_->lines;
  COMPACT_CHECK(lines.bytes() > 0, lines.path(), ": is empty after decompression (0 bytes)");
  if (std::string line = file_->odd.finish(file_->documents); !line.empty()) {
    warnings_.push_back(line);
  }
  COMPACT_CHECK(file_->documents > 0, lines.path(), ": holds no document, only blank lines");
  done_ += lines.consumed();
  file_.reset();
}

std::string DocumentReader::where() const { return file_->lines.where(); }

bool DocumentReader::next(DocumentPiece& piece) {
  while (file_ || next_file_ < files_.size()) {
    if (!file_) open(files_[next_file_++]);
    const int64_t before = file_->replaced;
    if (file_->next(*file_, piece)) {
      documents_ += piece.last;
      text_bytes_ += static_cast<int64_t>(piece.text.size());
      replaced_.add(file_->replaced - before, where());
      return true;
    }
    close();
  }
  return false;
}

}  // namespace compact
