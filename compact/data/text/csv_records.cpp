// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/csv_records.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/odd_ones.h"

namespace compact {
namespace {

constexpr size_t kLongestRecord = size_t{1} << 26;

}  // namespace

void CsvRecords::refuse(const std::string& message) const {
  if (lines_.where() == where_) throw OddOne(message);
  fail(message, "; the record begins at ", where_.substr(lines_.path().size() + 2),
       ": is a quote there not closed?");
}

// Within quotes, where the file must go on.
void CsvRecords::next_line() {
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

size_t CsvRecords::quoted(size_t at, std::string& field) {
  while (true) {
    const size_t quote = line_.find('"', at);
    field.append(line_.substr(at, quote == line_.npos ? quote : quote - at));
    if (quote == line_.npos) {
      field += lines_.carriage() ? "\r\n" : "\n";
      next_line();
      at = 0;
    } else if (line_.substr(quote + 1).starts_with('"')) {
      field += '"';
      at = quote + 2;
    } else {
      return quote + 1;
    }
  }
}

bool CsvRecords::next() {
  do {
    try {
      if (!lines_.next()) return false;
    } catch (const OddOne& odd) {
      // A field in quotes may go on behind the line.
      const bool open = std::ranges::count(lines_.line(), '"') % 2 != 0;
      if (open) fail(odd.what());
      throw;
    }
    line_ = lines_.line();
  } while (line_.empty());
  where_ = lines_.where();
  size_ = line_.size();
  count_ = 0;
  for (size_t at = 0;; ++at) {  // past the comma
    std::string& field = count_ < fields_.size() ? fields_[count_] : unseen_;
    ++count_;
    field.clear();
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
        refuse(
            cat(lines_.where(), ": a field that holds a quote must be in quotes, its own doubled"));
      }
      at = end;
    }
    if (at == line_.size()) return true;
  }
}

}  // namespace compact
