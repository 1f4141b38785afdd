// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text_table.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/json_field.h"
#include "compact/data/printable.h"
#include "compact/data/text_lines.h"

namespace compact {
namespace {

constexpr size_t kMostColumns = 1000;

class LineTable : public TextTable {
 public:
  explicit LineTable(const std::string& path) : TextTable(path), lines_(path) {}
  std::string where() const override { return lines_.where(); }
  int64_t replaced() const override { return lines_.replaced(); }

 protected:
  // Goes to the next line that is not blank. The first row is read twice: for its names, as a row.
  bool next_line() {
    if (again_) {
      again_ = false;
      return true;
    }
    while (lines_.next()) {
      if (!blank(lines_.line())) return true;
    }
    return false;
  }
  virtual bool blank(std::string_view line) const = 0;

  TextLines lines_;
  bool again_ = false;
};

class TsvTable final : public LineTable {
 public:
  TsvTable(const std::string& path, TableForm form) : LineTable(path), form_(form) {
    COMPACT_CHECK(next_line(), path, ": has no lines");
    size_t count = split_line();
    COMPACT_CHECK(count <= kMostColumns, where(), " must have at most ", kMostColumns,
                  " columns, has ", count);
    for (size_t c = 0; c < count; ++c) {
      names_.push_back(form.header ? std::string(parts_[c]) : std::to_string(c));
    }
    if (form.header) COMPACT_CHECK(next_line(), path, ": has a header and no rows");
    again_ = true;
  }

  bool next(std::vector<TableCell>& cells) override {
    if (!next_line()) return false;
    const size_t count = split_line();
    COMPACT_CHECK(form_.ragged || count == names_.size(), where(), " must have ", names_.size(),
                  " columns as the first line, has ", count);
    cells.resize(columns_.size());
    for (size_t i = 0; i < columns_.size(); ++i) {
      const bool there = columns_[i] < count;
      cells[i].kind = there ? TableCell::kText : TableCell::kMissing;
      cells[i].text = there ? parts_[columns_[i]] : std::string_view();
    }
    return true;
  }

 private:
  bool blank(std::string_view line) const override { return line.empty(); }
  // How many columns the line has; the first of them are in parts_.
  size_t split_line() {
    const std::string_view line = lines_.line();
    parts_.clear();
    size_t count = 0;
    for (size_t start = 0; start <= line.size();) {
      const size_t end = std::min(line.find('\t', start), line.size());
      if (++count <= kMostColumns) parts_.push_back(line.substr(start, end - start));
      start = end + 1;
    }
    return count;
  }

  TableForm form_;
  std::vector<std::string_view> parts_;
};

class JsonTable final : public LineTable {
 public:
  explicit JsonTable(const std::string& path) : LineTable(path) {
    COMPACT_CHECK(next_line(), path, ": has no lines");
    std::string error;
    COMPACT_CHECK(json_fields(lines_.line(), {}, others_, error), where(), " ", error);
    for (const std::string& name : others_) {
      if (!has(name)) names_.push_back(name);  // of a key given twice the last counts
    }
    again_ = true;
  }

  bool next(std::vector<TableCell>& cells) override {
    if (!next_line()) return false;
    fields_.resize(chosen_.size());
    for (size_t i = 0; i < chosen_.size(); ++i) fields_[i].name = chosen_[i];
    std::string error;
    COMPACT_CHECK(json_fields(lines_.line(), fields_, others_, error), where(), " ", error);
    COMPACT_CHECK(refused_.empty() || std::ranges::find(others_, refused_) == others_.end(),
                  where(), " has a field `", refused_, "`, which the first line has not");
    cells.resize(fields_.size());
    for (size_t i = 0; i < fields_.size(); ++i) {
      const std::string_view kind = fields_[i].kind;
      cells[i].kind = kind == "a string"   ? TableCell::kText
                      : kind == "a number" ? TableCell::kNumber
                                           : TableCell::kMissing;
      COMPACT_CHECK(cells[i].kind != TableCell::kMissing || kind.empty() || kind == "null", where(),
                    " field `", chosen_[i], "` must be a string or a number, is ", kind);
      cells[i].text.swap(fields_[i].text);
    }
    return true;
  }

 private:
  bool blank(std::string_view line) const override { return trim(line).empty(); }

  std::vector<JsonField> fields_;
  std::vector<std::string> others_;
};

}  // namespace

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

std::unique_ptr<TextTable> open_table(const std::string& path, TableForm form) {
  const std::string_view name = without_compression(path);
  if (!form.tsv && name.ends_with(".jsonl")) return std::make_unique<JsonTable>(path);
  COMPACT_CHECK(form.tsv || name.ends_with(".tsv"), path,
                ": the name must end in .tsv or .jsonl, then perhaps .gz, .xz or .zst");
  return std::make_unique<TsvTable>(path, form);
}

}  // namespace compact
