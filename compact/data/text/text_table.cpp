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
#include "compact/data/text/column_rows.h"

namespace compact {
namespace {

// The first row is met twice: for the names of the columns, or their number, and as a row.
class ColumnTable final : public TextTable {
 public:
  ColumnTable(const std::string& path, TableForm form, std::unique_ptr<ColumnRows> rows)
      : TextTable(path), form_(form), rows_(std::move(rows)) {
    COMPACT_CHECK(rows_->next(), path, ": has no lines");
    COMPACT_CHECK(rows_->count() <= kMostColumns, where(), " must have at most ", kMostColumns,
                  " columns, has ", rows_->count());
    for (size_t c = 0; c < rows_->count(); ++c) {
      names_.push_back(form.header ? std::string(rows_->field(c)) : std::to_string(c));
    }
    if (!form.header) return;
    try {
      COMPACT_CHECK(rows_->next(), path, ": has a header and no rows");
    } catch (const OddOne& odd) {
      odd_.emplace_back(odd.what());
      first_ = false;
    }
  }

  bool next(std::vector<TableCell>& cells) override {
    say_odd();
    if (!std::exchange(first_, false) && !rows_->next()) return false;
    if (!form_.ragged && rows_->count() != names_.size()) {
      rows_->refuse(cat(where(), " must have ", names_.size(), " columns as the first line, has ",
                        rows_->count()));
    }
    cells.resize(columns_.size());
    for (size_t i = 0; i < columns_.size(); ++i) {
      const bool there = columns_[i] < rows_->count();
      cells[i].kind = there ? TableCell::kText : TableCell::kMissing;
      cells[i].text = there ? rows_->field(columns_[i]) : std::string_view();
    }
    return true;
  }
  std::string where() const override { return rows_->where(); }
  int64_t replaced() const override { return rows_->replaced(); }

 private:
  TableForm form_;
  std::unique_ptr<ColumnRows> rows_;
};

class JsonTable final : public TextTable {
 public:
  JsonTable(const std::string& path, bool strict) : TextTable(path), lines_(path), strict_(strict) {
    constexpr size_t kMostOdd = 100;
    std::string error;
    do {
      COMPACT_CHECK(next_line(), odd_.empty() ? path + ": has no lines" : odd_[0]);
      if (json_fields(lines_.line(), {}, others_, error, repairs())) break;
      odd_.push_back(cat(where(), " ", error));
    } while (!strict && odd_.size() < kMostOdd);
    COMPACT_CHECK(error.empty(), odd_[0]);
    replaced_ = 0;  // it is read again
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
    if (!json_fields(lines_.line(), fields_, others_, error, repairs())) {
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
        throw OddOne(
            cat(where(), " field `", chosen_[i], "` must be a string or a number, is ", kind));
      }
      cells[i].text.swap(fields_[i].text);
    }
    return true;
  }
  bool choose_also(const std::string& name) override {
    chosen_.push_back(name);
    return true;
  }
  std::string where() const override { return lines_.where(); }
  int64_t replaced() const override { return lines_.replaced() + replaced_; }

 private:
  // Goes to the next line that is not blank.
  bool next_line() {
    while (lines_.next()) {
      if (!trim(lines_.line()).empty()) return true;
    }
    return false;
  }

  int64_t* repairs() { return strict_ ? nullptr : &replaced_; }

  TextLines lines_;
  bool strict_;
  int64_t replaced_ = 0;  // halves of pairs of surrogates
  std::vector<JsonField> fields_;
  std::vector<std::string> others_;
};

std::unique_ptr<TextTable> open_csv(const std::string& path, TableForm form) {
  return std::make_unique<ColumnTable>(path, form, csv_rows(path));
}

std::unique_ptr<TextTable> open_tsv(const std::string& path, TableForm form) {
  return std::make_unique<ColumnTable>(path, form, tsv_rows(path, /*plain=*/form.tsv));
}

std::unique_ptr<TextTable> open_jsonl(const std::string& path, TableForm form) {
  return std::make_unique<JsonTable>(path, form.strict);
}

constexpr struct {
  std::string_view ending;
  std::unique_ptr<TextTable> (*open)(const std::string& path, TableForm form);
} kTableFormats[] = {{".csv", open_csv}, {".tsv", open_tsv}, {".jsonl", open_jsonl}};

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
  return form.tsv ? open_tsv(path, form) : format_of(path, kTableFormats).open(path, form);
}

}  // namespace compact
