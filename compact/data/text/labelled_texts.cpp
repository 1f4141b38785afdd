// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/labelled_texts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/odd_ones.h"
#include "compact/data/files/printable.h"

namespace compact {
namespace {

constexpr size_t kMostTextBytes = size_t{1} << 32;
constexpr size_t kRowBytes = 2 * sizeof(std::string) + sizeof(float);
constexpr size_t kMostClasses = size_t{1} << 16;
constexpr int64_t kUnlabelled = -1;  // in data sets of Hugging Face
constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

// An integer, also as 3.0, which tables of floats have.
std::optional<int64_t> whole_number(std::string_view text) {
  const size_t point = text.find('.');
  if (point != text.npos) {
    const std::string_view rest = text.substr(point + 1);
    if (rest.empty() || rest.find_first_not_of('0') != rest.npos) return {};
    text = text.substr(0, point);
  }
  return parse_integer(std::string(text));
}

// Labels as texts become numbers.
class Labels {
 public:
  explicit Labels(const RowRules& rules) : rules_(rules) {
    for (const std::string& name : rules.class_names) {
      COMPACT_CHECK(numbers_.emplace(name, numbers_.size()).second, "the class `", printable(name),
                    "` is given twice");
    }
  }

  // That of a class, or the value; none: the row is unlabelled among those of the classes given.
  std::optional<float> number_of(const TableCell& cell, const TextTable& table) {
    const std::string text(trim(cell.text));
    const auto wrong = [&](const auto& rule) {
      throw OddOne(
          cat(table.where(), ": the label must be ", rule, ", is `", printable(text), "`"));
    };
    if (rules_.regression) {
      const auto value = parse_number(text);
      if (!value || !std::isfinite(static_cast<float>(*value))) wrong("a finite number");
      return static_cast<float>(*value);
    }
    if (text.empty()) wrong("a class");
    const std::optional<int64_t> whole = whole_number(text);
    if (cell.kind == TableCell::kNumber && !whole) wrong("a text or an integer");
    auto found = numbers_.find(text);
    if (found == numbers_.end() && whole && !rules_.class_names.empty()) {
      found = numbers_.find(std::to_string(*whole));
    }
    if (found != numbers_.end()) return static_cast<float>(found->second);
    if (!rules_.class_names.empty()) {
      if (whole == kUnlabelled && !rules_.numbered) return {};
      const auto count = static_cast<int64_t>(rules_.class_names.size());
      const auto value = rules_.numbered ? whole : std::nullopt;
      if (value && *value >= 0 && *value < count) return static_cast<float>(*value);
      fail(table.where(), ": the label must be one of ", count, " classes (",
           printable(suggestion(text, rules_.class_names).substr(2)), "), is `", printable(text),
           "`");
    }
    COMPACT_CHECK(numbers_.size() < kMostClasses, table.where(), ": there may be at most ",
                  kMostClasses, " classes; values need regression");
    return static_cast<float>(numbers_.emplace(text, numbers_.size()).first->second);
  }

  // The number of the rows that are unlabelled, where classes came from the file: three or more are
  // numbers from 0 on. It stands for no class from now on.
  std::optional<float> take_unlabelled() {
    const auto found = of_number(kUnlabelled);
    if (!rules_.class_names.empty() || found == numbers_.end() || numbers_.size() < 4) return {};
    for (const auto& [name, number] : numbers_) {
      const auto value = whole_number(name);
      if (!value || *value < kUnlabelled) return {};
    }
    const auto number = static_cast<float>(found->second);
    numbers_.erase(found);
    return number;
  }

  // Where -1 may mark rows without a label, but is a class as well as 0.
  bool takes_minus_one() const {
    return !rules_.regression && rules_.class_names.empty() &&
           of_number(kUnlabelled) != numbers_.end() && of_number(0) != numbers_.end();
  }

  // Names in their order. Classes that the file brought get the numbers of that order.
  std::vector<std::string> finish(std::vector<float>& labels, const TextTable& table) const {
    if (rules_.regression) return {};
    if (!rules_.class_names.empty() || !rules_.label) return rules_.class_names;
    COMPACT_CHECK(numbers_.size() > 1, table.path(), ": labels must be of at least two classes, ",
                  numbers_.empty() ? "there are none"
                                   : "all are `" + printable(numbers_.begin()->first) + "`");
    const bool integers = std::ranges::all_of(
        numbers_, [](const auto& entry) { return whole_number(entry.first).has_value(); });
    std::vector<std::string> names;
    std::vector<float> places(numbers_.size() + 1);  // numbers may lack the unlabelled one
    const auto put = [&](const std::string& name, size_t number, bool another) {
      if (another) names.push_back(name);
      places[number] = static_cast<float>(names.size() - 1);
    };
    if (integers) {  // 3 and 3.0 are one class
      std::multimap<int64_t, size_t> sorted;
      for (const auto& [name, number] : numbers_) sorted.emplace(*whole_number(name), number);
      for (const auto& [value, number] : sorted) {
        const std::string name = std::to_string(value);
        put(name, number, names.empty() || names.back() != name);
      }
    } else {
      for (const auto& [name, number] : numbers_) put(name, number, true);
    }
    for (float& label : labels) label = places[static_cast<size_t>(label)];
    return names;
  }

 private:
  std::map<std::string, size_t>::const_iterator of_number(int64_t value) const {
    return std::ranges::find_if(
        numbers_, [&](const auto& entry) { return whole_number(entry.first) == value; });
  }

  const RowRules& rules_;
  std::map<std::string, size_t> numbers_;
};

}  // namespace

LabelledTexts read_rows(TextTable& table, const RowRules& rules) {
  LabelledTexts out;
  Labels labels(rules);
  size_t bytes = 0, skipped = 0, unlabelled = 0;
  std::vector<TableCell> cells;
  OddOnes odd(rules.strict, table.path(), "rows");
  bool more = true;
  while (more) {
    if (!odd.read([&] { more = table.next(cells); }) || !more) continue;
    TableCell* const label = rules.label ? &cells.back() : nullptr;
    const size_t texts = rules.pair ? 2 : 1;
    bool whole = !(label && label->kind == TableCell::kMissing);
    for (size_t i = 0; i < texts; ++i) whole = whole && cells[i].kind != TableCell::kMissing;
    if (rules.skip_broken && label && !rules.regression) whole = whole && !label->text.empty();
    if (!whole) {
      if (!rules.skip_broken) {
        odd.add(cat(table.where(), " must have ", texts == 2 ? "two texts" : "a text",
                    label ? " and a label" : ""));
      } else {
        ++skipped;
      }
      continue;
    }
    std::optional<float> number = kNone;
    if (label && !odd.read([&] { number = labels.number_of(*label, table); })) continue;
    for (size_t i = 0; i < texts; ++i) bytes += cells[i].text.size();
    bytes += kRowBytes;
    COMPACT_CHECK(bytes <= kMostTextBytes, table.path(), ": must hold at most ",
                  format_bytes(kMostTextBytes), " of texts, line by line it holds more");
    if (!number) {
      ++unlabelled;
      continue;
    }
    out.labels.push_back(*number);
    out.first.push_back(std::move(cells[0].text));
    if (rules.pair) out.second.push_back(std::move(cells[1].text));
  }
  if (std::string line = odd.finish(static_cast<int64_t>(out.labels.size())); !line.empty()) {
    out.warnings.push_back(std::move(line));
  }
  if (const std::optional<float> none = labels.take_unlabelled()) {
    size_t kept = 0;
    for (size_t i = 0; i < out.labels.size(); ++i) {
      if (out.labels[i] == *none) continue;
      std::swap(out.labels[kept], out.labels[i]);
      std::swap(out.first[kept], out.first[i]);
      if (rules.pair) std::swap(out.second[kept], out.second[i]);
      ++kept;
    }
    unlabelled = out.labels.size() - kept;
    out.labels.resize(kept);
    out.first.resize(kept);
    out.second.resize(rules.pair ? kept : 0);
  }
  COMPACT_CHECK(!out.first.empty(), table.path(), ": has no whole row");
  out.class_names = labels.finish(out.labels, table);
  if (unlabelled > 0) {
    out.warnings.push_back(cat(table.path(), ": ", format_count(static_cast<int64_t>(unlabelled)),
                               unlabelled == 1 ? " row was" : " rows were",
                               " left out as unlabelled, with -1 for a class; a class of its own "
                               "needs another name"));
  }
  if (labels.takes_minus_one()) {
    out.warnings.push_back(
        cat(table.path(), ": -1 is taken for a class of its own: it marks rows ",
            "without a label only beside three classes or more that are numbers ",
            "from 0 on; where it does so here, remove these rows"));
  }
  if (skipped > 0) {
    out.warnings.push_back(cat(table.path(), ": ", skipped,
                               skipped == 1 ? " row was" : " rows were",
                               " skipped: a text or the label was missing"));
  }
  if (table.replaced().count > 0) out.warnings.push_back(table.replaced().line());
  return out;
}

LabelledTexts read_labelled_texts(const std::string& path, const TextFields& fields) {
  const auto table = open_table(path, {.strict = fields.strict});
  std::string first = fields.first, second = fields.second;
  for (const char* name : {"sentence1", "sentence", "text"}) {
    if (first.empty() && table->has(name)) first = name;
  }
  COMPACT_CHECK(!first.empty(), path, ": has none of the fields sentence1, sentence and text; name",
                " the one that holds the texts");
  if (second.empty() && fields.first.empty()) {
    if (table->has("sentence2")) {
      second = "sentence2";
    } else {
      table->refuse("sentence2");
    }
  }
  COMPACT_CHECK(first != second, path, ": the texts of a pair are in two fields, not both in `",
                printable(first), "`");
  if (fields.pair) {
    COMPACT_CHECK(!*fields.pair || !second.empty(), path,
                  ": must have pairs of texts as the training file has, has no sentence2");
    COMPACT_CHECK(*fields.pair || second.empty(), path,
                  ": must have single texts as the training file has, has pairs (", second, ")");
  }
  RowRules rules{.pair = !second.empty(),
                 .label = fields.need_labels || table->has(fields.label),
                 .regression = fields.regression,
                 .class_names = fields.class_names,
                 .strict = fields.strict};
  std::vector<std::string> columns = {first};
  if (rules.pair) columns.push_back(second);
  if (rules.label) columns.push_back(fields.label);
  table->choose(columns);
  return read_rows(*table, rules);
}

}  // namespace compact
