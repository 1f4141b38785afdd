// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/column_rows.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace {

constexpr size_t kLongestRecord = size_t{1} << 26;

class CsvRows final : public ColumnRows {
 public:
  using ColumnRows::ColumnRows;

  bool next() override {
    try {
      if (!next_line()) return false;
    } catch (const OddOne& odd) {
      // A field in quotes may go on behind the line.
      if (std::ranges::count(lines_.line(), '"') % 2 != 0) fail(odd.what());
      throw;
    }
    line_ = lines_.line();
    where_ = lines_.where();
    size_ = line_.size();
    count_ = 0;
    for (size_t at = 0;; ++at) {  // past the comma
      std::string& field = add();
      if (line_.substr(at).starts_with('"')) {
        at = quoted(at + 1, field);
        if (at < line_.size() && line_[at] != ',') {
          refuse(cat(lines_.where(),
                     ": behind a closing quote there must be a comma or the line's end; quotes "
                     "within a field are doubled"));
        }
      } else {
        const size_t end = std::min(line_.find(',', at), line_.size());
        field = line_.substr(at, end - at);
        if (field.find('"') != field.npos) {
          refuse(cat(lines_.where(),
                     ": a field that holds a quote must be in quotes, its own doubled"));
        }
        at = end;
      }
      if (at == line_.size()) return true;
    }
  }

  // Where the record has gone on beyond its first line, perhaps a quote there is not closed, and
  // rows are within it.
  [[noreturn]] void refuse(const std::string& message) const override {
    if (lines_.where() == where_) throw OddOne(message);
    fail(message, "; the record begins at ", where_.substr(lines_.path().size() + 2),
         ": is a quote there not closed?");
  }
  std::string where() const override { return where_; }

 private:
  // Reads the rest of a field in quotes from line_[at, ...) on; returns the place after it.
  size_t quoted(size_t at, std::string& field) {
    while (true) {
      const size_t quote = line_.find('"', at);
      field.append(line_.substr(at, quote == line_.npos ? quote : quote - at));
      if (quote == line_.npos) {
        field += lines_.carriage() ? "\r\n" : "\n";
        go_on();
        at = 0;
      } else if (line_.substr(quote + 1).starts_with('"')) {
        field += '"';
        at = quote + 2;
      } else {
        return quote + 1;
      }
    }
  }

  // Within quotes, where the file must go on.
  void go_on() {
    bool any = true;
    try {
      any = lines_.next();
    } catch (const OddOne& odd) {
      refuse(odd.what());
    }
    COMPACT_CHECK(any, where_, ": a field in quotes is not closed before the file's end");
    line_ = lines_.line();
    size_ += line_.size() + 2;
    COMPACT_CHECK(size_ <= kLongestRecord, where_, ": a record must have at most ",
                  format_bytes(kLongestRecord), ", is a quote not closed?");
  }

  std::string where_;
  std::string_view line_;
  size_t size_ = 0;  // of the record
};

class TsvRows final : public ColumnRows {
 public:
  TsvRows(const std::string& path, bool plain) : ColumnRows(path), plain_(plain) {}

  bool next() override {
    if (!next_line()) return false;
    divide(!plain_);
    // Where quotes give another number of columns than the first row has, they are characters.
    if (!plain_ && width_ > 0 && count_ != width_) divide(false);
    if (width_ == 0) width_ = count_;
    return true;
  }

 private:
  void divide(bool quotes) {
    const std::string_view line = lines_.line();
    count_ = 0;
    for (size_t start = 0; start <= line.size();) {
      std::string& field = add();
      size_t end = quotes ? quoted(line, start, field) : line.npos;
      if (end == line.npos) {
        end = std::min(line.find('\t', start), line.size());
        field = line.substr(start, end - start);
      }
      start = end + 1;
    }
  }

  // Where a field ends that stands in quotes as a whole; npos: it does not.
  static size_t quoted(std::string_view line, size_t start, std::string& field) {
    if (!line.substr(start).starts_with('"')) return line.npos;
    for (size_t at = start + 1;;) {
      const size_t quote = line.find('"', at);
      if (quote == line.npos) return quote;
      field += line.substr(at, quote - at);
      at = quote + 1;
      if (at == line.size() || line[at] == '\t') return at;
      if (line[at] != '"') return line.npos;
      field += line[at++];
    }
  }

  bool plain_;
  size_t width_ = 0;
};

}  // namespace

std::unique_ptr<ColumnRows> csv_rows(const std::string& path) {
  return std::make_unique<CsvRows>(path);
}

std::unique_ptr<ColumnRows> tsv_rows(const std::string& path, bool plain) {
  return std::make_unique<TsvRows>(path, plain);
}

}  // namespace compact
