// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/text_table.h"

#include <algorithm>
#include <utility>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/json_field.h"
#include "compact/data/files/odd_ones.h"
#include "compact/data/files/printable.h"
#include "compact/data/files/text_lines.h"

namespace compact {
namespace {

constexpr size_t kMostColumns = 1000;  // whose fields are kept
constexpr size_t kLongestRecord = size_t{1} << 26;

// The rows of a file of columns: how many fields one has, and the first of them.
class ColumnRows {
 public:
  ColumnRows(const std::string& path, const TableForm& form, char separator)
      : lines_(path, {.strict = form.strict}),
        separator_(separator),
        plain_(form.tsv),
        fields_(kMostColumns) {}
  size_t count() const { return count_; }
  std::string_view field(size_t i) const { return fields_[i]; }
  const std::string& where() const { return where_; }  // the row's first line
  int64_t replaced() const { return lines_.replaced(); }

  bool next() {
    try {
      do {
        if (!lines_.next()) return false;
      } while (lines_.line().empty());
    } catch (const OddOne& odd) {
      begin();
      if (goes_on()) fail(odd.what());
      throw;
    }
    begin();
    if (records() || goes_on()) {
      divide(kOverLines);
    } else if (width_ > 0 && count_ != width_) {
      divide(kCharacters);
    }
    if (width_ == 0) width_ = count_;
    return true;
  }

  // Where the row continues beyond its first line, perhaps a quote there is not closed, and other
  // rows are within it.
  [[noreturn]] void refuse(const std::string& message) const {
    if (lines_.where() == where_) throw OddOne(message);
    fail(message, "; the record begins at ", where_.substr(lines_.path().size() + 2),
         ": is a quote there not closed?");
  }

 private:
  enum Quotes { kCharacters, kOneLine, kOverLines };  // of a .tsv: of fields that may be in them

  bool records() const { return separator_ == ','; }  // as RFC 4180 has them

  void begin() {
    line_ = lines_.line();
    where_ = lines_.where();
    size_ = line_.size();
  }

  // Whether a field in quotes continues on the next line: in a .tsv where columns are missing.
  bool goes_on() {
    if (records()) return std::ranges::count(line_, '"') % 2 != 0;
    divide(plain_ ? kCharacters : kOneLine);
    return open_ && count_ < width_;
  }

  void divide(Quotes quotes) {
    count_ = 0;
    open_ = false;
    for (size_t at = 0;; ++at) {  // past the separator
      std::string& field = add();
      size_t end = line_.npos;
      if (quotes != kCharacters && line_.substr(at).starts_with('"')) {
        end = quoted(at + 1, field, quotes == kOverLines);
      }
      if (end == line_.npos) {
        end = std::min(line_.find(separator_, at), line_.size());
        field = line_.substr(at, end - at);
        if (records() && field.find('"') != field.npos) {
          refuse(cat(lines_.where(),
                     ": a field that holds a quote must be in quotes, its own doubled"));
        }
      }
      at = end;
      if (at == line_.size()) return;
    }
  }

  // The next field of the row, empty.
  std::string& add() {
    std::string& field = count_ < fields_.size() ? fields_[count_] : unseen_;
    ++count_;
    field.clear();
    return field;
  }

  // Reads the rest of a field in quotes from line_[at, ...) on; returns the place after it, npos:
  // its quotes are characters.
  size_t quoted(size_t at, std::string& field, bool over_lines) {
    for (bool began = false;;) {
      const size_t quote = line_.find('"', at);
      field.append(line_.substr(at, quote - at));
      if (quote == line_.npos) {
        open_ = true;
        if (!over_lines) return quote;
        field += lines_.carriage() ? "\r\n" : "\n";
        go_on();
        began = true;
        at = 0;
      } else if (line_.substr(quote + 1).starts_with('"')) {
        field += '"';
        at = quote + 2;
      } else if (quote + 1 == line_.size() || line_[quote + 1] == separator_) {
        return quote + 1;
      } else if (records() || began) {
        refuse(cat(lines_.where(), ": after a closing quote there must be a ",
                   records() ? "comma" : "tab",
                   " or the line's end; quotes within a field are doubled"));
      } else {
        return line_.npos;
      }
    }
  }

  // Goes to the next line within quotes, of which there must be one.
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

  TextLines lines_;
  char separator_;
  bool plain_;                    // quotes are characters as others are
  size_t width_ = 0, count_ = 0;  // of the first row, of this one
  std::vector<std::string> fields_;
  std::string unseen_, where_;
  std::string_view line_;
  size_t size_ = 0;    // of the row
  bool open_ = false;  // quotes of the row are not closed on its first line
};

// The first row is met twice: for the names of the columns, or their number, and as a row.
class ColumnTable final : public TextTable {
 public:
  ColumnTable(const std::string& path, TableForm form, char separator)
      : TextTable(path), form_(form), rows_(path, form, separator) {
    COMPACT_CHECK(rows_.next(), path, ": has no lines");
    COMPACT_CHECK(rows_.count() <= kMostColumns, where(), " must have at most ", kMostColumns,
                  " columns, has ", rows_.count());
    for (size_t c = 0; c < rows_.count(); ++c) {
      names_.push_back(form.header ? std::string(rows_.field(c)) : std::to_string(c));
    }
    if (!form.header) return;
    try {
      COMPACT_CHECK(rows_.next(), path, ": has a header and no rows");
    } catch (const OddOne& odd) {
      odd_.emplace_back(odd.what());
      first_ = false;
    }
  }

  bool next(std::vector<TableCell>& cells) override {
    say_odd();
    if (!std::exchange(first_, false) && !rows_.next()) return false;
    note_replaced(rows_.replaced());
    if (!form_.ragged && rows_.count() != names_.size()) {
      rows_.refuse(cat(where(), " must have ", names_.size(), " columns as the first line, has ",
                       rows_.count()));
    }
    cells.resize(columns_.size());
    for (size_t i = 0; i < columns_.size(); ++i) {
      const bool there = columns_[i] < rows_.count();
      cells[i].kind = there ? TableCell::kText : TableCell::kMissing;
      cells[i].text = there ? rows_.field(columns_[i]) : std::string_view();
    }
    return true;
  }
  std::string where() const override { return rows_.where(); }

 private:
  TableForm form_;
  ColumnRows rows_;
};

class JsonTable final : public TextTable {
 public:
  JsonTable(const std::string& path, TableForm form)
      : TextTable(path), lines_(path, {.strict = form.strict}), strict_(form.strict) {
    constexpr size_t kMostOdd = 100;
    std::string error;
    do {
      COMPACT_CHECK(next_line(), odd_.empty() ? path + ": has no lines" : odd_[0]);
      if (json_fields(lines_.line(), {}, others_, error, repairs())) break;
      odd_.push_back(cat(where(), " ", error));
    } while (!strict_ && odd_.size() < kMostOdd);
    COMPACT_CHECK(error.empty(), odd_[0]);
    surrogates_ = 0;  // it is read again
    for (const std::string& name : others_) {
      if (!has(name)) names_.push_back(name);  // if a key is given twice, the last one counts
    }
  }

  bool next(std::vector<TableCell>& cells) override {
    say_odd();
    if (!std::exchange(first_, false) && !next_line()) return false;
    fields_.resize(chosen_.size());
    for (size_t i = 0; i < chosen_.size(); ++i) fields_[i].name = chosen_[i];
    std::string error;
    const bool sound = json_fields(lines_.line(), fields_, others_, error, repairs());
    note_replaced(lines_.replaced() + surrogates_);
    if (!sound) {
      throw OddOne(cat(where(), " ", error));
    }
    COMPACT_CHECK(refused_.empty() || std::ranges::find(others_, refused_) == others_.end(),
                  where(), " has a field `", refused_, "`, which the first line has not");
    cells.resize(fields_.size());
    for (size_t i = 0; i < fields_.size(); ++i) {
      const std::string_view kind = fields_[i].kind;
      cells[i].kind = kind == "a string"   ? TableCell::kText
                      : kind == "a number" ? TableCell::kNumber
                                           : TableCell::kMissing;
      if (cells[i].kind == TableCell::kMissing && !kind.empty() && kind != "null") {
        throw OddOne(cat(
            where(), " field `", chosen_[i], "` must be a string or a number, is ", kind,
            kind == "an array" ? "; messages of chats go through `compact prepare --data`" : ""));
      }
      cells[i].text.swap(fields_[i].text);
    }
    return true;
  }
  bool typed() const override { return true; }
  bool choose_also(const std::string& name) override {
    chosen_.push_back(name);
    return true;
  }
  std::string where() const override { return lines_.where(); }

 private:
  // Goes to the next line that is not blank.
  bool next_line() {
    while (lines_.next()) {
      if (!trim(lines_.line()).empty()) return true;
    }
    return false;
  }

  int64_t* repairs() { return strict_ ? nullptr : &surrogates_; }

  TextLines lines_;
  bool strict_;
  int64_t surrogates_ = 0;  // halves of pairs that were replaced
  std::vector<JsonField> fields_;
  std::vector<std::string> others_;
};

template <class Table, char... separator>
std::unique_ptr<TextTable> opened_table(const std::string& path, TableForm form) {
  return std::make_unique<Table>(path, form, separator...);
}

constexpr struct {
  std::string_view ending;
  std::unique_ptr<TextTable> (*open)(const std::string& path, TableForm form);
} kTableFormats[] = {{".csv", opened_table<ColumnTable, ','>},
                     {".tsv", opened_table<ColumnTable, '\t'>},
                     {".jsonl", opened_table<JsonTable>}};

}  // namespace

void TextTable::say_odd() {
  if (odd_.empty()) return;
  const OddOne first(odd_.front());
  odd_.erase(odd_.begin());
  throw first;
}

bool TextTable::has(const std::string& name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

void TextTable::choose(const std::vector<std::string>& names) {
  columns_.clear();
  chosen_ = names;
  for (const std::string& name : names) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    COMPACT_CHECK(found != names_.end(), path_, ": has no column `", name, "`",
                  printable(suggestion(name, names_)));
    COMPACT_CHECK(std::find(found + 1, names_.end(), name) == names_.end(), path_,
                  ": has the column `", name, "` twice");
    columns_.push_back(static_cast<size_t>(found - names_.begin()));
  }
}

bool TextTable::choose_also(const std::string& name) {
  if (!has(name)) return false;
  std::vector<std::string> names = chosen_;
  names.push_back(name);
  choose(names);
  return true;
}

std::unique_ptr<TextTable> open_table(const std::string& path, TableForm form) {
  return form.tsv ? opened_table<ColumnTable, '\t'>(path, form)
                  : format_of(path, kTableFormats).open(path, form);
}

}  // namespace compact
